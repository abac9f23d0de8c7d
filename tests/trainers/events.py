"""Logs what a traced trainer does: each event is a line in $TRACE/PID.jsonl, written before the
trainer continues.
"""

import json
import os
import time

import tokend

_file = os.open(
    os.path.join(os.environ["TRACE"], f"{os.getpid()}.jsonl"),
    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
)
_holds = {int(n) for n in os.environ.get("TRACE_HOLD", "").split(",") if n}


def note(**event):
    os.write(_file, json.dumps(event).encode() + b"\n")


def hold(steps):
    """With @steps in $TRACE_HOLD: waits until the process is killed or $TRACE/go-STEPS exists."""
    if steps in _holds:
        _holds.remove(steps)
        note(held=steps)
        while not os.path.exists(os.path.join(os.environ["TRACE"], f"go-{steps}")):
            time.sleep(0.02)


def record_loaders():
    """From now on each Loader records to $TRACE_RECORDS/STREAM."""
    make = tokend.Loader.__init__

    def recorded(loader, stream, *arguments, **named):
        make(
            loader,
            stream,
            *arguments,
            **{"record": os.path.join(os.environ["TRACE_RECORDS"], stream), **named},
        )
        note(loader=stream)

    tokend.Loader.__init__ = recorded
