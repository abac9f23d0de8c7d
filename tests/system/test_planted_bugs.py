"""Tests find bugs: they are planted, one at a time, and each must be found: by the simulator, run
from a seed on until it fails, or by a C test, with the words that the patch names.

A bug is a patch in tests/bugs/ (lib/planted.py), so the product contains no switches. `make
keepers` also plants those that other tests find.
"""

import os
import subprocess

import pytest

from lib.planted import ROOT, Scratch, bugs

pytestmark = pytest.mark.nightly
PLANTED = {bug.what: bug for bug in bugs() if bug.says}


@pytest.fixture(scope="module")
def scratch():
    return Scratch()


@pytest.mark.limit(500)
@pytest.mark.parametrize("bug", PLANTED.values(), ids=PLANTED.keys())
def test_planted_bugs_are_found(scratch, bug):
    (command,) = bug.tests
    found, said = scratch.finds(bug, command)
    assert found, said[-3000:]


def test_without_a_bug_the_same_seeds_pass():
    command = [ROOT / "build/gcc/check/sim", "--seed", "1", "--histories", "40"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.limit(500)
def test_a_failing_seed_replays_and_shrinks(scratch):
    """The smallest command that is printed fails, too. A seed is always the same history, at any
    addresses.
    """
    files = scratch.plant(PLANTED["A cursor of another seed is accepted"].patch)
    scratch.make("build/gcc/check/sim")
    planted = scratch.tree / "build/gcc/check/sim"
    command = [planted, "--seed", "21", "--histories", "20", "--seconds", "500"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    first, smallest = (
        next(line for line in done.stdout.splitlines() if line.startswith(word)).split()
        for word in ("failed:", "smallest:")
    )
    assert int(smallest[smallest.index("--events") + 1]) < int(first[first.index("--events") + 1])
    for found in (first, smallest, [*smallest, "--verbose"]):
        again = subprocess.run(
            [planted, *found[2:], "--no-shrink"], capture_output=True, text=True, cwd=ROOT
        )
        assert again.returncode == 1
        assert "a cursor of another seed was accepted" in again.stderr
    scratch.restore(files)
    traces = set()
    elsewhere = {"MALLOC_MMAP_THRESHOLD_": "4000", "MALLOC_PERTURB_": "77"}
    for options in ([], [], ["--verbose"], ["--histories", "1"]):
        clean = [ROOT / "build/gcc/check/sim", *options, "--seed", "7"]
        environment = {**os.environ, **(elsewhere if options else {})}
        done = subprocess.run(clean, capture_output=True, text=True, cwd=ROOT, env=environment)
        traces.add(done.stdout.splitlines()[-1])
    assert len(traces) == 1 and "trace" in traces.pop()
