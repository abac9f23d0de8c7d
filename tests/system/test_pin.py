"""The protocol of copies to a GPU, against a real daemon and a fake libcuda.so.1
(tests/gpu/fake_cuda.c): what arrives "on the device" although it arrives late. Copies ahead and
memory that cannot be registered are in python/test_device.py. No evidence of how a GPU behaves:
that is the business of tests/gpu/check.py.

Each scenario of tests/gpu/pin_trainer.c is a process of its own, for the library is chosen by
LD_LIBRARY_PATH.
"""

import fcntl
import os
import subprocess
import time

import numpy
import pytest

from lib import BIN, LONG, Daemon, datasets, has, rows_at, wait_for
from lib.injected import injected

pytestmark = pytest.mark.asan  # memory that is shared with a driver

CHECK = os.path.join(os.path.realpath(BIN), "..", "check")
TRAINER, FAKE = os.path.join(CHECK, "pin-trainer"), os.path.join(CHECK, "fake")
SEQ_LEN, MICRO, BATCHES = 255, 4, 40


class Trainer:
    """A scenario under way."""

    def __init__(self, place, daemon, scenario, library=FAKE, **environment):
        self.out, self.err = place.file(f"{scenario}.out"), place.file(f"{scenario}.err")
        env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        if library is not None:
            env["LD_LIBRARY_PATH"] = library
        command = [TRAINER, daemon.socket, scenario]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            pipes = {"stdin": subprocess.PIPE, "stdout": out, "stderr": err}
            self.process = place.spawn(command, env=env, **pipes)

    def said(self):
        with open(self.err, errors="replace") as f:
            return f.read()

    def says(self, word):
        wait_for(lambda: word in self.said() or self.process.poll() is not None)
        return word in self.said()

    def end(self):
        """What it said. It ends with 0."""
        assert self.process.wait(LONG * 2) == 0, self.said()
        return self.said()

    def rows(self):
        return numpy.fromfile(self.out, "<u2").reshape(-1, SEQ_LEN + 1)


def arrives(trainer, want):
    """The trainer ends, and got the rows. Returns what it said."""
    said = trainer.end()
    assert numpy.array_equal(trainer.rows(), want)
    return said


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 90_000)
    shared.shard("web/b.bin", 90_000)
    streams = {"train": {"seed": 5, "seq_len": SEQ_LEN, "datasets": datasets("web")}}
    return Daemon(shared, shared.config(streams=streams))


@pytest.fixture(scope="module")
def rows(daemon):
    return rows_at(daemon.config, "train", 0, 50 * MICRO)


@pytest.fixture(scope="module")
def stuck(shared, daemon):
    """A trainer that takes the ten seconds after which memory is given up: others run meanwhile."""
    return Trainer(shared, daemon, "stuck")


@pytest.mark.usefixtures("stuck")
@pytest.mark.parametrize("delay", [0, 3])
def test_copies(shared, daemon, rows, delay):
    for scenario in ("small", "never_pinned", "forked"):
        trainer = Trainer(shared, daemon, scenario, FAKE_CUDA_DELAY_MS=delay)
        arrives(trainer, rows[: BATCHES * MICRO])


def test_control(shared, daemon, rows):
    """The same library, the same delay: a trainer that releases slots early must be seen."""
    trainer = Trainer(shared, daemon, "early", FAKE_CUDA_DELAY_MS=30)
    trainer.end()
    got = trainer.rows()
    wrong = int((got != rows[: BATCHES * MICRO]).any(axis=1).sum())
    injected(4, wrong // MICRO)
    assert wrong >= MICRO


def test_lost_daemon(shared, daemon, rows):
    trainer = Trainer(shared, daemon, "killed")
    assert trainer.says("killme"), trainer.said()
    daemon.kill()
    trainer.process.stdin.write(b"go")
    trainer.process.stdin.flush()
    time.sleep(0.2)
    daemon.start()
    arrives(trainer, rows[: BATCHES * MICRO])


def test_elsewhere(shared, daemon, rows):
    want = numpy.concatenate([rows[: 11 * MICRO], rows[8 : 8 + (BATCHES - 11) * MICRO]])
    arrives(Trainer(shared, daemon, "seek"), want)
    arrives(Trainer(shared, daemon, "detach", FAKE_CUDA_DELAY_MS=150), rows[: 3 * MICRO])


def test_without(shared, daemon):
    """A stub for a driver, and none: the trainer goes on, and says why."""
    said = Trainer(shared, daemon, "driverless", FAKE_CUDA_INIT=34).end()
    assert has(said, "cuInit", "CUDA_ERROR_STUB_LIBRARY", "34")
    if not os.path.exists("/proc/driver/nvidia"):
        said = Trainer(shared, daemon, "driverless", library=None).end()
        assert has(said, "no NVIDIA driver", "libcuda.so.1")


def test_rules(shared, daemon):
    for scenario, environment in (("contexts", {"FAKE_CUDA_DEVICES": 2}), ("refusals", {})):
        Trainer(shared, daemon, scenario, **environment).end()


def test_turns(shared, daemon):
    """Trainers of a node register one after the other: the directory of the socket is their
    lock.
    """
    directory = os.open(os.path.dirname(daemon.socket), os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    trainer = Trainer(shared, daemon, "turn")
    assert trainer.says("pinning"), trainer.said()
    time.sleep(0.2)
    assert "pinned" not in trainer.said() and trainer.process.poll() is None
    fcntl.flock(directory, fcntl.LOCK_UN)
    assert "pinned" in trainer.end()
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is free again, or this raises
    os.close(directory)


def test_memory_is_given_up_after_ten_seconds(stuck, rows):
    arrives(stuck, rows[:MICRO])
