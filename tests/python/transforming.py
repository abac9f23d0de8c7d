"""Helpers of the tests of transforms."""

import os
import subprocess

import numpy

import tokend

SEQ = 64
WINDOW = SEQ + 1


def expected(daemon, function, row, seed=42):
    """The transformed row, by the definition of the rng, not by the loader's code."""
    key = tokend._tokend.derive(seed, 7, row["position"])
    rng = numpy.random.Generator(numpy.random.Philox(key=key))
    return function(daemon.tokens(row, WINDOW), row["position"], rng)


def check(daemon, loader, function, batches, start=0, rank=0, world=1, micro=4, cursor=None):
    plan = daemon.plan("train", start, batches * world * micro, cursor)
    for step in range(batches):
        at = (step * world + rank) * micro
        batch = next(loader)
        rows = numpy.stack([expected(daemon, function, row) for row in plan[at : at + micro]])
        assert batch["position"].tolist() == [row["position"] for row in plan[at : at + micro]]
        assert numpy.array_equal(batch["input_ids"].numpy(), rows[:, :SEQ])
        assert numpy.array_equal(batch["labels"].numpy(), rows[:, 1:])


def children():
    """The processes that we have started and that are alive, without zombies."""
    done = subprocess.run(
        ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line.split()[0]) for line in done.stdout.splitlines() if "tokend.workers" in line]
