"""Daemons and trainers are killed; other processes do not notice.

A DDP job of four ranks and its daemon are killed at random instants, stopped and continued,
restarted, drained, and given other mixes. Its losses are those of an undisturbed job, bit for bit.
TOKEND_SEED repeats the events; what they hit depends on the machine. `make soak` does it for hours.
"""

import hashlib
import os
import signal
import time

import numpy
import pytest

from lib import TOKEND, Client, Daemon, Witness, datasets, rows_at, status, wait_for, with_parent
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
    print(totals)
    assert totals["kills"] == kills
    assert totals.get("rank", 0) + totals.get("both", 0) >= ranks, "ranks were killed"
    assert totals["with sessions"] > kills // 3, "most of the killed daemons served the job"
    assert totals["steps"] > kills, "the job trained on between the kills"


def forked_trainer(socket):
    """A trainer that attaches and forks a child, which keeps its socket and ring. Returns (trainer,
    child, a pipe to the child, a pipe from it). The child answers each byte with a digest of its
    ring, and ends with the pipe.
    """
    out, into = os.pipe()
    held, leash = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        with_parent()
        os.close(leash)
        client = Client(socket).attach(rank=1, world=2, run="doomed")
        client.next()
        child = os.fork()
        if child == 0:
            while os.read(held, 1):
                os.write(into, hashlib.sha256(client.meta[:] + client.data[:]).digest())
            os._exit(0)
        os.write(into, str(child).encode())
        os.close(into)
        while True:
            client.next()
            time.sleep(0.001)
    os.close(into)
    os.close(held)
    child = int(os.read(out, 32) or b"0")
    return trainer, child, leash, out


def sessions_of(client):
    """All sessions, over the wire: faster than tokctl."""
    client.tell(op="status", after=0)
    sessions = []
    while True:
        packet = client.hear()
        if packet["op"] == "status":
            return sessions
        sessions.append(packet)


@pytest.mark.tsan
def test_a_killed_trainer_frees_its_session(shared, config):
    place = shared
    rows = rows_at(config, "train", 0, 4000)
    daemon = Daemon(place, config, place.file("trainers.sock"))
    witness = Witness(daemon, rows, rank=0, world=2, run="doomed")
    times, listed, untouched = [], 0, 0
    for _ in range(20):
        trainer, child, leash, answers = forked_trainer(daemon.socket)
        watcher = Client(daemon.socket)
        try:
            witness.step()
            pids = {s["pid"] for s in sessions_of(watcher)}
            listed += trainer in pids
            os.kill(trainer, signal.SIGKILL)
            begin = time.monotonic()
            while trainer in pids and time.monotonic() - begin < 5:
                time.sleep(0.001)
                pids = {s["pid"] for s in sessions_of(watcher)}
            times.append(time.monotonic() - begin)
            digests = []
            for _ in range(2):  # the child lives, with socket and ring
                os.write(leash, b"x")
                digests.append(os.read(answers, 32))
                witness.step(2)
            untouched += len(digests[0]) == 32 and digests[0] == digests[1]
        finally:
            watcher.close()
            os.close(leash)
            os.close(answers)
            os.waitpid(trainer, 0)
    injected(1, listed)
    injected(2, untouched)
    assert untouched == 20, "no ring was written again that a child still has"
    heir = Client(daemon.socket).attach(rank=1, world=2, run="doomed", position=400)
    assert numpy.array_equal(heir.next(), rows[402:404]), "the next attach names its own cursor"
    heir.close()
    wait_for(lambda: status(daemon.socket)[1]["sessions"] == 1)
    assert listed == 20, "each doomed trainer was listed before"
    times.sort()
    text = f"median {times[10] * 1e3:.1f} ms, last {times[-1] * 1e3:.1f} ms"
    assert times[10] <= 0.1, (
        (
            "a killed trainer's session is gone within 100 ms though a child holds its socket "
            f"({text})"
        ),
        text,
    )
    assert times[-1] < 5, ("all of them are gone", text)
    sessions, total = status(daemon.socket)
    assert [s["pid"] for s in sessions] == [os.getpid()], "tokctl status lists the witness alone"
    assert total["lost_wakes"] + sessions[0]["lost_wakes"] == 0, "no wake-up was lost"
    assert witness.step(10), f"the other client read {witness.checked} batches meanwhile, 0 wrong"
    said = daemon.said("detached, its process ended: stream train")
    assert any("rank 1 of" in line for line in said), "the log names who died"
    witness.close()
    assert daemon.stop() == 0, "exit 0"


def attach_and_die(socket):
    """Kills a trainer in the middle of its ring. False: it died before."""
    out, into = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        with_parent()
        client = Client(socket).attach(micro=64, slots=16)
        client.next()
        os.write(into, b"x")
        while True:
            client.next()
    os.close(into)
    lived = os.read(out, 1) == b"x"
    os.close(out)
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    return lived


def sanitized():
    with open(TOKEND, "rb") as f:
        program = f.read()
    return b"__asan_init" in program or b"__tsan_init" in program


@pytest.mark.tsan
def test_killed_trainers_leave_no_memory_or_descriptors(shared, config):
    place = shared
    rows = rows_at(config, "train", 0, 2000)
    daemon = Daemon(place, config, place.file("return.sock"))
    witness = Witness(daemon, rows)

    def idle():
        return len(status(daemon.socket)[0]) == 1 and daemon.rings() == 1

    for _ in range(10):  # shards are opened, threads started
        attach_and_die(daemon.socket)
    wait_for(idle)
    fds, shared, own = (
        daemon.settled_fds(),
        daemon.memory_kib("RssShmem"),
        daemon.memory_kib("RssAnon"),
    )
    counted = status(daemon.socket)[1]["memory_bytes"]
    lived = 0
    for _ in range(CYCLES):
        lived += attach_and_die(daemon.socket)
        witness.step()
    injected(1, lived)
    assert lived == CYCLES, f"{CYCLES} trainers attached and were killed"
    assert wait_for(idle), ("their sessions are gone", status(daemon.socket))
    assert wait_for(lambda: daemon.fds() == fds), (
        "the daemon has as many descriptors as before",
        (fds, daemon.fds()),
    )
    assert daemon.memory_kib("RssShmem") == shared, "its shared memory too (RssShmem)"
    assert status(daemon.socket)[1]["memory_bytes"] == counted, (
        "and the memory that it counts as used"
    )
    grown = daemon.memory_kib("RssAnon") - own
    if not sanitized():  # sanitizers keep freed memory
        assert grown < 1024, (f"its own memory grew by {grown} KiB", grown)
    assert witness.step(), "the other client read no wrong batch"
    witness.close()
    assert daemon.stop() == 0, "exit 0"


@pytest.fixture(scope="module")
def config(shared, seed):
    for name in ("web/a.bin", "web/b.bin", "code/x.bin"):
        shared.shard(name, 200_000, seed=seed)
    streams = {"train": {"seed": seed, "seq_len": 128, "datasets": datasets("web", "code")}}
    return shared.config(streams=streams)
