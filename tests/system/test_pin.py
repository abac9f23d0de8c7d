"""The protocol of copies to a GPU, against a real daemon and a fake libcuda.so.1
(tests/gpu/fake_cuda.c): what arrives "on the device" although it arrives late. No evidence of how a
GPU behaves: that is tests/gpu/check.py's business.

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
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = place.spawn(
                [TRAINER, daemon.socket, scenario],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=env,
            )

    def said(self):
        with open(self.err, errors="replace") as f:
            return f.read()

    def says(self, word):
        return (
            wait_for(lambda: word in self.said() or self.process.poll() is not None)
            and word in self.said()
        )

    def tell(self):
        self.process.stdin.write(b"go")
        self.process.stdin.flush()

    def end(self):
        """Its exit status and what it said."""
        self.process.wait(LONG * 2)
        return self.process.returncode, self.said()

    def rows(self):
        return numpy.fromfile(self.out, "<u2").reshape(-1, SEQ_LEN + 1)


def arrives(name, trainer, want):
    code, said = trainer.end()
    assert code == 0, (f"{name}: ends well", (code, said))
    got = trainer.rows()
    wrong = [] if got.shape != want.shape else numpy.nonzero((got != want).any(axis=1))[0].tolist()
    assert got.shape == want.shape and not wrong, (
        f"{name}: the right {len(want)} rows",
        (got.shape, wrong),
    )
    return said


@pytest.mark.usefixtures("stuck")
def test_copies(shared, daemon, rows):
    place = shared
    for delay in (0, 3):
        for scenario in ("simple", "ahead", "small", "never_pinned", "capture", "forked"):
            trainer = Trainer(place, daemon, scenario, FAKE_CUDA_DELAY_MS=delay)
            arrives(f"{scenario}, {delay} ms late", trainer, rows[: BATCHES * MICRO])


def test_control(shared, daemon, rows):
    """The same library, the same delay: a trainer that releases slots early must be seen."""
    place = shared
    trainer = Trainer(place, daemon, "early", FAKE_CUDA_DELAY_MS=30)
    code, said = trainer.end()
    got = trainer.rows()
    assert code == 0 and got.shape == rows[: BATCHES * MICRO].shape, (
        "negative control: ends",
        (code, said),
    )
    wrong = int((got != rows[: len(got)]).any(axis=1).sum())
    injected(4, wrong // MICRO)
    assert wrong >= MICRO, ("negative control: slots given back early arrive wrong", wrong)


def test_lost_daemon(shared, daemon, rows):
    place = shared
    trainer = Trainer(place, daemon, "killed")
    assert trainer.says("killme"), ("killed: copies under way", trainer.said())
    daemon.kill()
    trainer.tell()
    time.sleep(0.2)
    daemon.start()
    arrives("killed", trainer, rows[: BATCHES * MICRO])


def test_elsewhere(shared, daemon, rows):
    place = shared
    want = numpy.concatenate([rows[: 11 * MICRO], rows[8 : 8 + (BATCHES - 11) * MICRO]])
    arrives("seek", Trainer(place, daemon, "seek"), want)
    arrives("seek, copied ahead", Trainer(place, daemon, "seek_ahead"), rows[: BATCHES * MICRO])
    arrives("detach", Trainer(place, daemon, "detach", FAKE_CUDA_DELAY_MS=150), rows[: 3 * MICRO])


def test_without(shared, daemon, rows):
    place = shared
    said = arrives(
        "unpinned",
        Trainer(place, daemon, "unpinned", FAKE_CUDA_REGISTER_FAILS=1),
        rows[: BATCHES * MICRO],
    )
    injected(22)
    assert has(said, "cannot be registered", "CUDA_ERROR_OUT_OF_MEMORY", "to pin memory"), (
        "unpinned: says why, in one line"
    )
    assert said.count("\n") == 1, "unpinned: one line"
    code, said = Trainer(place, daemon, "driverless", FAKE_CUDA_INIT=34).end()
    assert code == 0, ("a stub for a driver: goes on", said)
    assert has(said, "cuInit", "CUDA_ERROR_STUB_LIBRARY", "34"), "a stub for a driver: says so"


def test_rules(shared, daemon):
    place = shared
    for scenario, environment in (("contexts", {"FAKE_CUDA_DEVICES": 2}), ("refusals", {})):
        code, said = Trainer(place, daemon, scenario, **environment).end()
        assert code == 0, (scenario, (code, said))


def test_turns(shared, daemon):
    """Trainers of a node register one after the other: the directory of the socket is their
    lock.
    """
    place = shared
    directory = os.open(os.path.dirname(daemon.socket), os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    trainer = Trainer(place, daemon, "turn")
    assert trainer.says("pinning"), ("turns: wants to register", trainer.said())
    time.sleep(0.2)
    waits = "pinned" not in trainer.said() and trainer.process.poll() is None
    assert waits, ("turns: waits while another one does", trainer.said())
    fcntl.flock(directory, fcntl.LOCK_UN)
    code, said = trainer.end()
    assert code == 0 and "pinned" in said, ("turns: then it does", (code, said))
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is free again, or this raises
    os.close(directory)


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


def test_without_a_driver(shared, daemon):
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a driver here")
    code, said = Trainer(shared, daemon, "driverless", library=None).end()
    assert code == 0, ("no driver: goes on", said)
    assert has(said, "no NVIDIA driver", "libcuda.so.1"), "no driver: says so"


def test_memory_is_given_up_after_ten_seconds(stuck, rows):
    arrives("stuck", stuck, rows[:MICRO])
