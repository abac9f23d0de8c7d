"""Copies to a GPU from the ring, against a real daemon and a stand-in for CUDA
(tests/gpu/fake_cuda.c): what arrives "on the device" although it arrives late, and that a ring is
unregistered before it is unmapped. The Python loader is in python/test_device.py. No evidence of
how a GPU behaves: that is the business of tests/gpu/check.py.
"""

import os
import subprocess

import numpy
import pytest

from lib import BIN, LONG, Daemon, datasets, rows_at, wait_for
from lib.injected import injected

pytestmark = pytest.mark.asan  # memory that is shared with a driver

CHECK = os.path.join(os.path.realpath(BIN), "..", "check")
SEQ_LEN, MICRO, BATCHES = 255, 4, 40


class Trainer:
    """A scenario under way."""

    def __init__(self, place, daemon, scenario, **environment):
        self.out, self.err = place.file(f"{scenario}.out"), place.file(f"{scenario}.err")
        command = [os.path.join(CHECK, "copies-trainer"), daemon.socket, scenario]
        env = {**os.environ, **environment}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = place.spawn(
                command, env=env, stdin=subprocess.PIPE, stdout=out, stderr=err
            )

    def said(self):
        with open(self.err, errors="replace") as f:
            return f.read()

    def end(self):
        """The rows that arrived. It ends with 0."""
        assert self.process.wait(LONG * 2) == 0, self.said()
        return numpy.fromfile(self.out, "<u2").reshape(-1, SEQ_LEN + 1)


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 90_000)
    streams = {"train": {"seed": 5, "seq_len": SEQ_LEN, "datasets": datasets("web")}}
    return Daemon(shared, shared.config(streams=streams))


@pytest.fixture(scope="module")
def rows(daemon):
    return rows_at(daemon.config, "train", 0, BATCHES * MICRO)


@pytest.mark.parametrize("delay", ["0", "3"])
@pytest.mark.parametrize("scenario", ["plain", "seek", "forked"])
def test_the_rows_of_the_order_arrive(shared, daemon, rows, scenario, delay):
    got = Trainer(shared, daemon, scenario, FAKE_CUDA_DELAY_MS=delay).end()
    assert numpy.array_equal(got, rows)


def test_control(shared, daemon, rows):
    """The same program, the same delay: a trainer that releases slots early must be seen."""
    got = Trainer(shared, daemon, "early", FAKE_CUDA_DELAY_MS="30").end()
    wrong = int((got != rows).any(axis=1).sum())
    injected(4, wrong // MICRO)
    assert wrong >= MICRO


def test_detaching_waits_for_copies(shared, daemon, rows):
    got = Trainer(shared, daemon, "detach", FAKE_CUDA_DELAY_MS="150").end()
    assert numpy.array_equal(got, rows[: 3 * MICRO])


def test_a_ring_that_cannot_be_registered_is_copied(shared, daemon, rows):
    got = Trainer(shared, daemon, "plain", FAKE_CUDA_REGISTER_FAILS="1").end()
    assert numpy.array_equal(got, rows)


def test_a_ring_that_comes_back_at_the_address_of_one_that_was_copied_from(shared, daemon, rows):
    """The daemon is killed twice with copies in flight."""
    trainer = Trainer(shared, daemon, "killed", FAKE_CUDA_DELAY_MS="3")
    for kill in (1, 2):
        assert wait_for(lambda kill=kill: trainer.said().count("kill") == kill), trainer.said()
        daemon.kill()
        daemon.start()
        trainer.process.stdin.write(b"\n")
        trainer.process.stdin.flush()
    assert numpy.array_equal(trainer.end(), rows)


def test_the_example(place, daemon):
    """tests/gpu/gpu_trainer.c: its cursor is that of the last batch trained on."""
    command = [os.path.join(CHECK, "example-gpu-trainer"), "train", daemon.socket]
    env = {**os.environ, "FAKE_CUDA_DELAY_MS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (0, "100 steps, ring registered\n"), done.stderr
    resumed = [os.path.join(BIN, "example-trainer"), "train", "", "example", "0"]
    env["TOKEND_SOCKET"] = daemon.socket
    done = subprocess.run(resumed, env=env, capture_output=True, text=True, timeout=LONG)
    assert done.stdout.endswith("position 800\n"), done
