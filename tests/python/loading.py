"""Helpers of the tests of Loader."""

import json
import subprocess
import sys
import warnings

import numpy

import tokend
from lib import TOKCTL, child_environment, run

SEQ = 64
WINDOWS = 468  # of the finite stream


def make(daemon, stream="train", micro=4, **more):
    return tokend.Loader(stream, micro, socket=daemon.socket, **{"rank": 0, "world": 1, **more})


def rows_of(daemon, plan, window=SEQ + 1):
    return numpy.stack([daemon.tokens(row, window) for row in plan])


def check(daemon, batch, rows, names, window=SEQ + 1):
    """The batch is exactly these rows of the plan."""
    assert batch["position"].tolist() == [row["position"] for row in rows]
    assert [names[d] for d in batch["dataset"].tolist()] == [row["dataset"] for row in rows]
    expected = rows_of(daemon, rows, window)
    assert numpy.array_equal(numpy.asarray(batch["input_ids"]), expected[:, :SEQ])
    assert numpy.array_equal(numpy.asarray(batch["labels"]), expected[:, 1 : SEQ + 1])


def check_run(
    daemon, loader, batches, stream="train", start=0, rank=0, world=1, micro=4, cursor=None
):
    """Takes batches; they are this rank's share of the plan from position start on."""
    plan = daemon.plan(stream, start, batches * world * micro, cursor)
    names = loader.datasets
    for step in range(batches):
        at = (step * world + rank) * micro
        check(daemon, next(loader), plan[at : at + micro], names)


def positions(batches):
    """Those of all rows but padding."""
    return [row for batch in batches for row in batch["position"].tolist() if row >= 0]


def warned(act):
    """The texts of the warnings of act(). Each is shown at a line of the caller's file, or here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    assert {warning.filename for warning in caught} <= {act.__code__.co_filename, __file__}
    return [str(warning.message) for warning in caught]


def verify(daemon, stream, records, *more):
    """The exit status of `tokctl verify`, and of each pass these fields."""
    code, out, err = run(TOKCTL, "verify", "-c", daemon.config, stream, records, "--json", *more)
    assert out, err
    fields = ("pass", "samples", "void", "lost", "repeated")
    return code, [[said[key] for key in fields] for said in map(json.loads, out.splitlines())]


def python(program, *arguments, **environment):
    """Runs `python -c PROGRAM ARGUMENTS…`."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=child_environment(**environment),
    )
