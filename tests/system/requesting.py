"""A daemon, trainers that execute calls on command, and operators (`tokctl mix` and the like).

Run as a program (`trainer OPTIONS`), it is one trainer."""

import ctypes as c
import json
import os
import subprocess
import sys

from lib import REPO, TOKCTL, Daemon, datasets, status, wait_for
from lib.declarations import Batch, Options, Request

LIBRARY = os.path.join(REPO, "build", "lib", "libtokend.so.1")
CURSOR_BYTES = 96 * 1024
NOTED, DONE, FAILED = 1, 2, 3
SEQ = 7

# ---- a trainer ----


class Handle:
    """The calls of a trainer's process. Each returns what is sent to the test."""

    def __init__(self, options):
        self.lib = c.CDLL(LIBRARY)
        self.lib.tokend_why.restype = c.c_char_p
        self.lib.tokend_request_number.restype = c.c_uint64
        self.lib.tokend_cursor.restype = c.c_int64
        self.t = c.c_void_p()
        why = c.create_string_buffer(1000)
        r = self.lib.tokend_attach(c.byref(self.t), c.byref(options), why, c.c_size_t(1000))
        if r < 0:
            sys.exit(f"attach: {why.value.decode()}")

    def said(self, r, **more):
        return {"r": r, "why": self.lib.tokend_why(self.t).decode() if r < 0 else "", **more}

    def step(self, count):
        """Takes @count batches. Returns the position after them."""
        batch = Batch()
        for _ in range(count):
            r = self.lib.tokend_next(self.t, c.byref(batch))
            if r != 1:
                return self.said(r)
            self.lib.tokend_release(self.t, c.byref(batch))
        return {"next": batch.next}

    def number(self):
        return self.lib.tokend_request_number(self.t)

    def fetch(self):
        request = Request()
        r = self.lib.tokend_request(self.t, c.byref(request))
        return self.said(
            r, number=request.number, kind=request.kind.decode(), args=request.args.decode()
        )

    def obey(self, kind, args):
        at = c.c_uint64()
        return self.said(
            self.lib.tokend_obey(self.t, kind.encode(), args.encode(), c.byref(at)), at=at.value
        )

    def answer(self, number, outcome, text=""):
        return self.said(self.lib.tokend_answer(self.t, c.c_uint64(number), outcome, text.encode()))

    def cursor(self):
        data = c.create_string_buffer(CURSOR_BYTES)
        n = self.lib.tokend_cursor(self.t, data, c.c_size_t(CURSOR_BYTES))
        return data.raw[:n].hex() if n > 0 else self.said(n)


def trainer(arguments):
    about = json.loads(arguments)
    cursor = bytes.fromhex(about.pop("cursor", ""))
    options = Options(
        size=c.sizeof(Options), slots=4, deadline_ms=15000, cursor=cursor or None,
        cursor_bytes=len(cursor),
        **{k: v.encode() if isinstance(v, str) else v for k, v in about.items()},
    )  # fmt: skip
    handle = Handle(options)
    print("null", flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(handle, name)(*arguments)), flush=True)


class Trainer:
    """A trainer's process, which executes calls on command."""

    def __init__(self, bench, rank=0, world=1, micro=64, run="job", stream="train", **more):
        about = {
            "socket": bench.daemon.socket,
            "stream": stream,
            "run": run,
            "rank": rank,
            "world": world,
            "micro_batch": micro,
        }
        self.process = bench.place.spawn(
            [sys.executable, os.path.abspath(__file__), "trainer", json.dumps({**about, **more})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.heard()

    def heard(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the trainer is gone")
        return json.loads(line)

    def __getattr__(self, name):
        def call(*arguments):
            self.process.stdin.write(json.dumps([name, arguments]) + "\n")
            self.process.stdin.flush()
            return self.heard()

        return call

    def sees(self):
        """Waits until the trainer sees a request. Returns its number."""
        return wait_for(self.number)

    def carry_out(self):
        """Fetches, executes and answers a request, as control() does in a world of one."""
        number = self.sees()
        request = self.fetch()
        done = self.obey(request["kind"], request["args"])
        self.answer(
            number, FAILED if done["r"] < 0 else DONE, done["why"] or f"acts from {done['at']}"
        )
        return done

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Operator:
    """A tokctl process that waits for answers."""

    def __init__(self, bench, *arguments, json=True, **keys):
        more = ["--json"] if json else []
        self.process = bench.place.spawn(
            [TOKCTL, *map(str, arguments), *more, "--socket", bench.daemon.socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **keys,
        )

    def end(self, seconds=30):
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out.decode(), err.decode()

    def result(self, seconds=30):
        """(exit code, answers, the last object, stderr)"""
        code, out, err = self.end(seconds)
        lines = [json.loads(line) for line in out.splitlines()]
        answers = [line for line in lines if "outcome" in line]
        return code, answers, next((line for line in lines if "kind" in line), None), err


class Bench:
    def __init__(self, place):
        self.place = place
        place.shard("web/a.bin", 400_000)
        place.shard("code/a.bin", 300_000, seed=2)
        window = {"seq_len": SEQ, "extra": 1, "vocab": 50000}
        self.streams = {
            "train": {"seed": 1, **window, "datasets": datasets("web", "code", shuffle="global")},
            "short": {"seed": 2, **window, "samples": 100_000, "datasets": datasets("web", "code")},
        }
        self.config = place.config(streams=self.streams)
        self.daemon = Daemon(place, self.config)

    def nothing_open(self, *trainers):
        """No request is open: no session sees or can fetch one, and a new one would be accepted."""
        seen = [t.number() for t in trainers] + [t.fetch()["number"] for t in trainers]
        seen += [s["request"] for s in status(self.daemon.socket)[0]]
        assert not any(seen) and self.daemon.alive(), seen


if __name__ == "__main__":
    trainer(sys.argv[2])
