"""Daemons and trainers are killed; other processes do not notice.

A DDP job of four ranks and its daemon are killed at random instants, stopped and continued,
restarted, reloaded, drained, and given other mixes. Its losses are those of an undisturbed job, bit
for bit. TOKEND_SEED repeats the events; what they hit depends on the machine. `make soak` does it
for hours.
"""

import hashlib
import json
import os
import signal
import time

import numpy
import pytest

from lib import TOKEND, Client, Daemon, Witness, datasets, forked_reader, rows_at, status
from lib import wait_for, with_parent
from lib.injected import injected
from lib.killed_job import KilledJob

CYCLES = 200


@pytest.mark.limit(500)
@pytest.mark.parametrize(
    ("kills", "ranks"), [(40, 1), pytest.param(200, 20, marks=pytest.mark.nightly)]
)
def test_a_ddp_job_survives_kills_bit_for_bit(place, seed, kills, ranks):
    with KilledJob(place, seed) as job:
        job.storm(kills=kills)
        totals = job.prove()
    assert totals["kills"] == kills
    assert totals.get("rank", 0) + totals.get("both", 0) >= ranks, "ranks were killed"
    assert totals["with sessions"] > kills // 3, "most of the killed daemons served the job"
    assert totals["steps"] > kills, "the job trained on between the kills"
    assert min(totals["reload"], totals["upgrade"]) >= kills // 4, "the daemon executed itself"


def forked_trainer(socket):
    """A trainer that attaches and forks a child, which keeps its socket and ring. Returns (trainer,
    a pipe to the child, a pipe from it). The child answers each byte with a digest of its ring.
    """
    out, into = os.pipe()
    held, leash = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        with_parent()
        os.close(leash)
        client = Client(socket).attach(rank=1, world=2, run="doomed")
        client.next()
        if os.fork() == 0:
            while os.read(held, 1):
                os.write(into, hashlib.sha256(client.meta[:] + client.data[:]).digest())
            os._exit(0)
        os.write(into, b"x")
        while True:
            client.next()
            time.sleep(0.001)
    os.close(into)
    os.close(held)
    assert os.read(out, 1) == b"x", "it has a ring"
    return trainer, leash, out


def pids(daemon):
    """Of all sessions, over the wire: faster than tokctl."""
    client = Client(daemon.socket)
    items = json.loads(client.ask(op="status", after=0)["args"])
    client.close()
    return {item["sessions"]["pid"] for item in items if "sessions" in item}


@pytest.mark.tsan
def test_a_killed_trainer_frees_its_session(shared, config):
    rows = rows_at(config, "train", 0, 4000)
    daemon = Daemon(shared, config, shared.file("trainers.sock"))
    witness = Witness(daemon, rows, rank=0, world=2, run="doomed")
    late = []
    for _ in range(20):
        trainer, leash, answers = forked_trainer(daemon.socket)
        witness.step()
        assert trainer in pids(daemon)
        os.kill(trainer, signal.SIGKILL)
        os.waitid(os.P_PID, trainer, os.WEXITED | os.WNOWAIT)
        late.append(trainer in pids(daemon))
        assert wait_for(lambda trainer=trainer: trainer not in pids(daemon), pause=0.001)
        digests = []
        for _ in range(2):  # the child lives, with socket and ring
            os.write(leash, b"x")
            digests.append(os.read(answers, 32))
            witness.step(2)
        assert len(digests[0]) == 32 and digests[0] == digests[1], "its ring is not written again"
        os.close(leash)
        os.close(answers)
        os.waitpid(trainer, 0)
    injected(1, 20)
    injected(2, 20)
    assert sum(late) < 10, "gone at the first look, though a child holds its socket"
    heir = Client(daemon.socket).attach(rank=1, world=2, run="doomed", position=400)
    assert numpy.array_equal(heir.next(), rows[402:404]), "the next attach names its own cursor"
    heir.close()
    assert wait_for(lambda: status(daemon.socket)[1]["sessions"] == 1)
    sessions, _ = status(daemon.socket)
    assert [s["pid"] for s in sessions] == [os.getpid()], "the witness alone"
    assert witness.step(10)
    said = daemon.said("detached, its process ended: stream train")
    assert any("rank 1 of" in line for line in said), "the log names who died"
    witness.close()
    assert daemon.stop() == 0


def attach_and_die(socket):
    """Kills a trainer in the middle of its ring."""
    trainer, first = forked_reader(lambda: Client(socket).attach(micro=64, slots=16))
    assert first, "it lived"
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)


def sanitized():
    with open(TOKEND, "rb") as f:
        program = f.read()
    return b"__asan_init" in program or b"__tsan_init" in program


@pytest.mark.tsan
def test_killed_trainers_leave_no_memory_or_descriptors(shared, config):
    daemon = Daemon(shared, config, shared.file("return.sock"))
    witness = Witness(daemon, rows_at(config, "train", 0, 2000))
    idle = lambda: len(status(daemon.socket)[0]) == 1 and daemon.rings() == 1
    memory = lambda: (daemon.memory_kib("RssShmem"), status(daemon.socket)[1]["memory_bytes"])
    for _ in range(10):  # shards are opened, threads started
        attach_and_die(daemon.socket)
    assert wait_for(idle)
    fds, used, own = daemon.settled_fds(), memory(), daemon.memory_kib("RssAnon")
    for _ in range(CYCLES):
        attach_and_die(daemon.socket)
        witness.step()
    injected(1, CYCLES)
    assert wait_for(idle) and wait_for(lambda: daemon.fds() == fds), (fds, daemon.fds())
    assert memory() == used
    # sanitizers keep freed memory
    assert sanitized() or daemon.memory_kib("RssAnon") - own < 1024
    assert witness.step()
    witness.close()
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def config(shared, seed):
    for name in ("web/a.bin", "web/b.bin", "code/x.bin"):
        shared.shard(name, 200_000, seed=seed)
    streams = {"train": {"seed": seed, "seq_len": 128, "datasets": datasets("web", "code")}}
    return shared.config(streams=streams)
