"""Daemons and trainers are killed; other processes do not notice.

The readers are `tokctl cat`, so libtokend's reconnecting is tested. Their pipes are small, and are
emptied in step with the kills, so that nearly every kill finds a reader in the middle of its ring.
"""

import hashlib
import os
import random
import select
import signal
import subprocess
import time

import numpy
import pytest

from lib import (
    TOKCTL,
    TOKEND,
    Client,
    Daemon,
    Witness,
    datasets,
    has,
    rank_rows,
    rows_at,
    status,
    wait_for,
    with_parent,
)
from lib.injected import injected

KILLS, STOPS, RESTARTS = 200, 10, 10
MICRO, WORLD = 4, 2
BATCHES = 24000  # per rank: a hundred per event, many times more than ring and pipe hold
CYCLES = 200


class Reader:
    """tokctl cat of one rank, read up to a limit."""

    def __init__(self, place, socket, rank, want):
        self.want = want  # bytes
        self.got = 0
        self.wrong_at = None
        self.process = place.spawn(
            [TOKCTL, "cat", "train", "--socket", socket, "--run", "kill", "--slots", "4"]
            + [
                "--rank",
                str(rank),
                "--world",
                str(WORLD),
                "--micro",
                str(MICRO),
                "--batches",
                str(BATCHES),
            ],
            stdout=subprocess.PIPE,
            stderr=open(place.file(f"cat{rank}.log"), "wb"),
            pipesize=4096,
        )
        self.log = place.file(f"cat{rank}.log")
        self.pipe = self.process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self.ended = False

    def read(self, allowed):
        """Reads what is available, up to @allowed bytes in total."""
        while self.got < allowed and not self.ended:
            try:
                data = os.read(self.pipe, min(65536, allowed - self.got))
            except BlockingIOError:
                return
            if not data:
                self.ended = True
                return
            if self.wrong_at is None and data != self.want[self.got : self.got + len(data)]:
                self.wrong_at = self.got
            self.got += len(data)

    def finish(self):
        until = time.monotonic() + 20
        while not self.ended and time.monotonic() < until:
            self.read(len(self.want) + 1)
            time.sleep(0.0005)
        return self.process.wait(20)


class Clock:
    """Lets time pass only while the readers read: each event gets an equal share of their bytes."""

    def __init__(self, readers, events):
        self.readers = readers
        self.each = len(readers[0].want) * 0.95 / events
        self.begun = 0  # number of events

    def spend(self, seconds, share):
        """Reads for @seconds, up to @share of this event's bytes."""
        begin = time.monotonic()
        while True:
            part = min(1.0, (time.monotonic() - begin) / seconds) if seconds else 1.0
            for reader in self.readers:
                reader.read(int(self.each * (self.begun + share * part)))
            if part >= 1.0:
                return
            time.sleep(0.0005)

    def end_event(self):
        self.begun += 1


def random_moment(clock, daemon, rng):
    """Waits for a random moment: mostly while the daemon serves, sometimes while it starts."""
    if rng.random() < 0.2:
        clock.spend(rng.uniform(0, 0.015), 0.2)
        return
    until = time.monotonic() + 20
    while daemon.rings() == 0 and time.monotonic() < until:
        clock.spend(0.001, 0.2)
    clock.spend(rng.uniform(0, 0.06), 1.0)


def test_readers_survive_killed_daemons(shared, config, seed):
    place, rng = shared, random.Random(seed)
    rows = rows_at(config, "train", 0, BATCHES * MICRO * WORLD)
    daemon = Daemon(place, config)
    readers = [
        Reader(place, daemon.socket, r, rank_rows(rows, r, WORLD, MICRO).tobytes())
        for r in range(WORLD)
    ]
    # A first attach looks for its daemon only once: wait for batches before the first kill.
    wait_for(lambda: all(select.select([r.pipe], [], [], 0)[0] for r in readers))
    clock = Clock(readers, KILLS + STOPS + RESTARTS)
    events = ["kill"] * KILLS + ["stop"] * STOPS + ["restart"] * RESTARTS
    rng.shuffle(events)
    killed = hit = frozen = restarted = 0
    for event in events:
        random_moment(clock, daemon, rng)
        living = all(r.process.poll() is None and not r.ended for r in readers)
        if not living:
            break
        if event == "kill":
            hit += daemon.rings() > 0
            killed += daemon.alive()
            daemon.kill()
            daemon.start(ready=False)
        elif event == "stop":
            daemon.process.send_signal(signal.SIGSTOP)
            clock.spend(rng.uniform(0.01, 0.2), 1.0)
            daemon.process.send_signal(signal.SIGCONT)
            frozen += daemon.alive()
        else:
            wait_for(lambda: "ready at" in daemon.log())
            restarted += daemon.stop() == 0
            clock.spend(rng.uniform(0, 0.1), 1.0)
            daemon.start(ready=False)
        clock.end_event()
    codes = [r.finish() for r in readers]

    injected(5, hit)
    assert killed == KILLS, "daemons killed at random moments"
    assert hit > KILLS // 2, (f"of these, {hit} had sessions", hit)
    assert frozen == STOPS, "daemons stopped and continued"
    assert restarted == RESTARTS, "daemons ended by SIGTERM with 0, and restarted"
    assert living, "both readers survived"
    for r, (reader, code) in enumerate(zip(readers, codes)):
        said = open(reader.log).read()
        assert code == 0 and not said, (f"rank {r}: exit 0, and no message", (code, said))
        assert reader.got == len(reader.want), f"rank {r}: {BATCHES} batches, 0 lost, 0 repeated"
        assert reader.wrong_at is None, (f"rank {r}: 0 wrong", f"first at byte {reader.wrong_at}")
    assert daemon.stop() == 0, "the last daemon ends with 0"


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
    assert has(daemon.log(), "rank 1 of stream train is free"), "the log names who died"
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
