"""The protocol of copies to a GPU, against a real daemon and a fake libcuda.so.1
(tests/gpu/fake_cuda.c): what arrives "on the device" although it arrives late. A daemon that is
killed, a seek, and memory that cannot be registered are in python/test_device.py. No evidence of
how a GPU behaves: that is the business of tests/gpu/check.py.

Each scenario of tests/gpu/pin_trainer.c is a process of its own, for the library is chosen by
LD_LIBRARY_PATH.
"""

import fcntl
import os
import time

import numpy
import pytest

from lib import BIN, LONG, Daemon, datasets, has, rows_at, wait_for
from lib.injected import injected

pytestmark = pytest.mark.asan  # memory that is shared with a driver

CHECK = os.path.join(os.path.realpath(BIN), "..", "check")
FAKE = {"LD_LIBRARY_PATH": os.path.join(CHECK, "fake")}
SEQ_LEN, MICRO, BATCHES = 255, 4, 40


class Trainer:
    """A scenario under way."""

    def __init__(self, place, daemon, scenario, driver=FAKE, **environment):
        self.out, self.err = place.file(f"{scenario}.out"), place.file(f"{scenario}.err")
        command = [os.path.join(CHECK, "pin-trainer"), daemon.socket, scenario]
        env = {**os.environ, **driver, **environment}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = place.spawn(command, env=env, stdout=out, stderr=err)

    def said(self):
        with open(self.err, errors="replace") as f:
            return f.read()

    def end(self):
        """What it said, and the rows that arrived. It ends with 0."""
        assert self.process.wait(LONG * 2) == 0, self.said()
        return self.said(), numpy.fromfile(self.out, "<u2").reshape(-1, SEQ_LEN + 1)


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 90_000)
    streams = {"train": {"seed": 5, "seq_len": SEQ_LEN, "datasets": datasets("web")}}
    return Daemon(shared, shared.config(streams=streams))


@pytest.fixture(scope="module")
def rows(daemon):
    return rows_at(daemon.config, "train", 0, BATCHES * MICRO)


@pytest.fixture(scope="module", autouse=True)
def stuck(shared, daemon):
    """A trainer that takes the ten seconds after which memory is given up: others run meanwhile."""
    return Trainer(shared, daemon, "stuck")


@pytest.mark.parametrize("delay", ["0", "3"])
@pytest.mark.parametrize("scenario", ["small", "forked"])
def test_the_rows_of_the_order_arrive(shared, daemon, rows, scenario, delay):
    _, got = Trainer(shared, daemon, scenario, FAKE_CUDA_DELAY_MS=delay).end()
    assert numpy.array_equal(got, rows)


def test_control(shared, daemon, rows):
    """The same library, the same delay: a trainer that releases slots early must be seen."""
    _, got = Trainer(shared, daemon, "early", FAKE_CUDA_DELAY_MS="30").end()
    wrong = int((got != rows).any(axis=1).sum())
    injected(4, wrong // MICRO)
    assert wrong >= MICRO


def test_detaching_waits_for_copies(shared, daemon, rows):
    _, got = Trainer(shared, daemon, "detach", FAKE_CUDA_DELAY_MS="150").end()
    assert numpy.array_equal(got, rows[: 3 * MICRO])


def test_without_a_driver(shared, daemon):
    """A stub for a driver, and none: the trainer goes on, and says why."""
    said, _ = Trainer(shared, daemon, "driverless", FAKE_CUDA_INIT="34").end()
    assert has(said, "cuInit", "CUDA_ERROR_STUB_LIBRARY", "34")
    if not os.path.exists("/proc/driver/nvidia"):
        said, _ = Trainer(shared, daemon, "driverless", driver={}).end()
        assert has(said, "no NVIDIA driver", "libcuda.so.1")


@pytest.mark.parametrize("scenario", ["contexts", "refusals"])
def test_rules(shared, daemon, scenario):
    Trainer(shared, daemon, scenario).end()


def test_trainers_of_a_node_register_one_after_the_other(shared, daemon):
    """The directory of the socket is their lock."""
    directory = os.open(os.path.dirname(daemon.socket), os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    trainer = Trainer(shared, daemon, "turn")
    assert wait_for(lambda: "pinning" in trainer.said())
    time.sleep(0.2)
    assert "pinned" not in trainer.said() and trainer.process.poll() is None
    fcntl.flock(directory, fcntl.LOCK_UN)
    assert "pinned" in trainer.end()[0]
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is free again, or this raises
    os.close(directory)


def test_memory_is_given_up_after_ten_seconds(stuck, rows):
    assert numpy.array_equal(stuck.end()[1], rows[:MICRO])
