"""A client without a daemon calls absent() to start one, also in calls that must not wait."""

import subprocess
import sys

import pytest
from lib import child_environment

JOB = """
import os, signal, sys, time

import numpy
from tokend import _tokend

path, pid, ahead = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ahead"
asked = []

def absent():
    asked.append(1)
    raise RuntimeError(f"asked {len(asked)}")

client = _tokend.Client("train", 4, socket=path, slots=2, deadline_ms=20000, absent=absent)
rows = numpy.empty((2, 4), numpy.int64)

def take():
    return client.next_into(0, rows.ctypes.data)

assert take() is not None
os.kill(pid, signal.SIGKILL)
input()  # it is gone
raised = []
while len(raised) < 5:
    time.sleep(0.3)  # the next look is due, so that the call which does not wait makes it
    try:
        if ahead and raised:
            client.copy_next(1, 2, 0, len(raised) > 2)
        take()
    except RuntimeError as error:
        raised.append(str(error))
assert raised == [f"asked {n}" for n in range(1, 6)], raised
client.close()
"""


@pytest.mark.parametrize("ahead", ["ahead", "plain"])
def test_absent_is_called_again_after_it_raised(daemon, ahead):
    """Such a call once held the interpreter's lock while it called absent(), and hung."""
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, daemon.socket, str(daemon.process.pid), ahead],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    daemon.process.wait()
    try:
        _, err = job.communicate("\n", timeout=20)
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    assert job.returncode == 0, err
