"""A client whose daemon cannot be started again raises why, also in calls that must not wait."""

import subprocess
import sys

import pytest
from lib import child_environment
from lib.stock import StockDaemon
from test_loader_daemon import kill_private

JOB = """
import os, signal, sys, time

import numpy
from tokend import _tokend

config, ahead = sys.argv[1], sys.argv[2] == "ahead"
client = _tokend.Client("train", 4, config=config, slots=2, deadline_ms=20000)
assert client.config() == os.path.realpath(config), client.config()
rows = numpy.empty((2, 4), numpy.int64)

def take():
    return client.next_into(0, rows.ctypes.data)

assert take() is not None
print(client.socket(), flush=True)
input()  # the daemon is gone, and its config is wrong
raised = []
while len(raised) < 5:
    time.sleep(0.3)  # the next look is due, so that the call which does not wait makes it
    try:
        if ahead and raised:
            client.copy_next(1, 2, 0, len(raised) > 2)
        take()
    except _tokend.Error as error:
        assert type(error) is _tokend.Error, error
        raised.append(str(error))
assert all("weight" in line and line.startswith(config) for line in raised), raised
print("raised", flush=True)
input()  # the config is valid again
assert take() is not None
client.close()
"""


@pytest.mark.parametrize("ahead", ["ahead", "plain"])
def test_a_failed_start_is_raised_and_tried_again(directory, ahead):
    """Such a call once held the interpreter's lock while it waited for that lock, and hung."""
    config = StockDaemon(directory).config
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(config), ahead],
        env=child_environment(XDG_RUNTIME_DIR=str(directory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout.readline().startswith(f"{directory}/tokend/")
        good = config.read_text()
        config.write_text(good.replace("weight: 0.7", "weight: -1"))
        kill_private(directory)
        job.stdin.write("\n")
        job.stdin.flush()
        assert job.stdout.readline() == "raised\n", job.communicate()[1]
        config.write_text(good)
        _, err = job.communicate("\n", timeout=20)
    finally:
        job.kill()
        kill_private(directory)
    assert job.returncode == 0, err
