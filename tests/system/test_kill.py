#!/usr/bin/env python3
"""Daemons and trainers that die, and what the others notice of it: nothing.

The readers are `tokctl cat`, so libtokend's re-attaching is what is tested. Their pipes are small and are emptied in step with
the kills: a reader is never far ahead, and nearly every kill finds it in the middle of its ring.
"""

import os
import random
import select
import signal
import subprocess
import sys
import time

from harness import (
    TOKCTL,
    TOKEND,
    Checks,
    Client,
    Daemon,
    Place,
    Witness,
    datasets,
    rank_rows,
    rows_at,
    status,
    wait_for,
    with_parent,
)

KILLS, STOPS, RESTARTS = 200, 10, 10
MICRO, WORLD = 4, 2
BATCHES = 24000  # of each rank; a hundred for every event, many times what ring and pipe hold
CYCLES = 200


class Reader:
    """tokctl cat of one rank, read as far as it is allowed to."""

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
        """What is there, up to @allowed bytes in all."""
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
    """Time goes on only while the readers read: the share of the run that is allowed so far."""

    def __init__(self, readers, events):
        self.readers = readers
        self.each = len(readers[0].want) * 0.95 / events
        self.begun = 0  # events

    def spend(self, seconds, share):
        """Reads for so long, up to @share of what this event may."""
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
    """Now and then while it starts, else while it serves."""
    if rng.random() < 0.2:
        clock.spend(rng.uniform(0, 0.015), 0.2)
        return
    until = time.monotonic() + 20
    while daemon.rings() == 0 and time.monotonic() < until:
        clock.spend(0.001, 0.2)
    clock.spend(rng.uniform(0, 0.06), 1.0)


def kill_daemons(checks, place, config, rng):
    rows = rows_at(config, "train", 0, BATCHES * MICRO * WORLD)
    daemon = Daemon(place, config)
    readers = [
        Reader(place, daemon.socket, r, rank_rows(rows, r, WORLD, MICRO).tobytes())
        for r in range(WORLD)
    ]
    # A first attach looks for its daemon only once, and a ring is there before its reader knows of it: wait for batches.
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

    checks.equal("daemons killed at random moments", killed, KILLS)
    checks.ok(f"of these, {hit} had sessions", hit > KILLS // 2, hit)
    checks.equal("daemons stopped and continued", frozen, STOPS)
    checks.equal("daemons ended by SIGTERM with 0, and restarted", restarted, RESTARTS)
    checks.ok("both readers lived through it all", living)
    for r, (reader, code) in enumerate(zip(readers, codes)):
        said = open(reader.log).read()
        checks.ok(f"rank {r}: exit 0 and not a word", code == 0 and not said, (code, said))
        checks.equal(
            f"rank {r}: {BATCHES} batches, 0 lost, 0 repeated", reader.got, len(reader.want)
        )
        checks.ok(f"rank {r}: 0 wrong", reader.wrong_at is None, f"first at byte {reader.wrong_at}")
    checks.equal("the last daemon ends with 0", daemon.stop(), 0)


def forked_trainer(socket):
    """A trainer that attaches and forks a child that keeps its socket and its ring. (trainer, child, leash of the child)."""
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
            os.read(held, 1)  # until the test lets go of the leash, or ends
            os._exit(0)
        os.write(into, str(child).encode())
        while True:
            client.next()
            time.sleep(0.001)
    os.close(into)
    os.close(held)
    child = int(os.read(out, 32) or b"0")
    os.close(out)
    return trainer, child, leash


def sessions_of(client):
    """By the wire: faster than a tokctl."""
    client.tell(op="status", after=0)
    sessions = []
    while True:
        packet = client.hear()
        if packet["op"] == "status":
            return sessions
        sessions.append(packet)


def kill_trainers(checks, place, config):
    rows = rows_at(config, "train", 0, 4000)
    daemon = Daemon(place, config, place.file("trainers.sock"))
    witness = Witness(daemon, rows, rank=0, world=2, run="doomed")
    times, listed = [], 0
    for _ in range(20):
        trainer, child, leash = forked_trainer(daemon.socket)
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
            os.kill(child, 0)  # it is there and holds the socket
            witness.step()
        finally:
            watcher.close()
            os.close(leash)
            os.waitpid(trainer, 0)
    checks.equal("each doomed trainer was listed before", listed, 20)
    times.sort()
    text = f"median {times[10] * 1e3:.1f} ms, last {times[-1] * 1e3:.1f} ms"
    checks.ok(
        f"a killed trainer's session is gone within 100 ms though a child holds its socket ({text})",
        times[10] <= 0.1,
        text,
    )
    checks.ok("none stays", times[-1] < 5, text)
    sessions, total = status(daemon.socket)
    checks.equal(
        "tokctl status lists the witness alone", [s["pid"] for s in sessions], [os.getpid()]
    )
    checks.equal("no wake-up was lost", total["lost_wakes"] + sessions[0]["lost_wakes"], 0)
    checks.ok(
        f"the other client read {witness.checked} batches meanwhile, 0 wrong", witness.step(10)
    )
    checks.has("the log names who died", daemon.log(), "rank 1 of train freed")
    witness.close()
    checks.equal("exit 0", daemon.stop(), 0)


def attach_and_die(socket):
    """A trainer that is killed in the middle of its ring."""
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


def return_to_start(checks, place, config):
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
    checks.equal(f"{CYCLES} trainers attached and were killed", lived, CYCLES)
    checks.ok("their sessions are gone", wait_for(idle), status(daemon.socket))
    checks.ok(
        "the daemon's descriptors are what they were",
        wait_for(lambda: daemon.fds() == fds),
        (fds, daemon.fds()),
    )
    checks.equal("its shared memory too (RssShmem)", daemon.memory_kib("RssShmem"), shared)
    checks.equal("and what it counts as used", status(daemon.socket)[1]["memory_bytes"], counted)
    grown = daemon.memory_kib("RssAnon") - own
    if sanitized():
        checks.skip("its own memory", "a sanitizer keeps what is freed")
    else:
        checks.ok(f"its own memory grew by {grown} KiB", grown < 1024, grown)
    checks.ok("0 wrong for the client beside them", witness.step())
    witness.close()
    checks.equal("exit 0 after it", daemon.stop(), 0)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed} (give it as argument to repeat)")
    checks = Checks()
    with Place() as place:
        for name in ("web/a.bin", "web/b.bin", "code/x.bin"):
            place.shard(name, 200_000, seed=seed)
        streams = {"train": {"seed": seed, "seq_len": 128, "datasets": datasets("web", "code")}}
        config = place.config(streams=streams)
        kill_trainers(checks, place, config)
        return_to_start(checks, place, config)
        kill_daemons(checks, place, config, random.Random(seed))
    checks.exit()


if __name__ == "__main__":
    main()
