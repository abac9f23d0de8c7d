#!/usr/bin/env python3
"""A hostile client of another uid beside a polite one: batches of 65,536 rows, and floods of wakes, messages and connects.

bench/neighbours.py measures what is left to the polite one; here it is only seen that it is not starved. Machines are busy, so the
bounds are wide, each measurement is the best of a few, and they are ratios to the same one alone, or to what was seen before there
was any protection (in brackets): a hundred times as much.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from harness import LONG, REPO, Checks, Client, Daemon, Place, datasets, wait_for, with_parent

POLITE = os.path.join(REPO, "build", "bin", "bench-polite")
HOSTILE = os.path.join(REPO, "bench", "hostile.py")
NOBODY = 65534
TRIES = 3


def patient(path):
    """A client; the queue of the socket may be full of others, and libtokend tries again, too."""
    until = time.monotonic() + LONG
    while True:
        try:
            return Client(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)


class Hostile:
    """A flood in a process of its own; it has begun when this is entered."""

    def __init__(self, bench, kind, count=0, uid=NOBODY):
        self.command = [
            sys.executable,
            HOSTILE,
            "--socket",
            bench.daemon.socket,
            "--count",
            str(count),
            kind,
        ]
        self.command += ["--uid", str(uid)] if os.geteuid() == 0 else []
        self.place = bench.place

    def __enter__(self):
        self.process = self.place.spawn(self.command, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.command} did not begin")
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        self.ended = self.process.poll()
        self.process.kill()
        self.process.communicate()
        self.place.children.remove(self.process)


class Bench:
    def __init__(self, checks, place):
        self.checks, self.place = checks, place
        place.shard("web/a.bin", 2_000_000)
        streams = {"train": {"seed": 3, "seq_len": 512, "datasets": datasets("web")}}
        config = place.config(streams=streams, memory=2 << 30, allow_uids=[NOBODY])
        self.daemon = Daemon(place, config)

    def polite(self, seconds):
        """What a trainer in C sees that takes batches as fast as they come."""
        command = [POLITE, self.daemon.socket, "train", str(seconds)]
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=60, preexec_fn=with_parent
        )
        return json.loads(done.stdout)

    def control_cpu(self):
        with open(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/schedstat") as f:
            return int(f.read().split()[0]) / 1e9

    def answers(self, seconds):
        """Median time of an answer to a session that asks now and then, and what the control thread used of a core."""
        client, times = patient(self.daemon.socket).attach(run="polite"), []
        begin, cpu = time.monotonic(), self.control_cpu()
        while time.monotonic() < begin + seconds:
            asked = time.perf_counter()
            client.ask(op="describe")
            times.append(time.perf_counter() - asked)
            time.sleep(0.005)
        used = (self.control_cpu() - cpu) / (time.monotonic() - begin)
        client.close()
        return statistics.median(times), used


def starve(bench, name, kind):
    seen = []
    for _ in range(TRIES):
        before = bench.polite(0.5)
        with Hostile(bench, kind):
            beside = bench.polite(1)
        after = bench.polite(0.5)
        seen.append(
            (
                beside["rate"] * 2 / (before["rate"] + after["rate"]),
                beside["p999"] * 2 / (before["p999"] + after["p999"]),
            )
        )
        if max(seen)[0] > 0.2 and min(s[1] for s in seen) < 15:
            break
    bench.checks.ok(
        f"{name}: a fair share ({max(seen)[0]:.2f} of the rate alone)", max(seen)[0] > 0.15, seen
    )
    bench.checks.ok(f"{name}: no long waits for it", min(s[1] for s in seen) < 20, seen)


def flood(bench, name, kind, count, most_ms, uid=NOBODY):
    seen = []
    for _ in range(TRIES):
        with Hostile(bench, kind, count, uid) as hostile:
            seen.append(bench.answers(1))
        if hostile.ended is not None:
            bench.checks.ok(f"{name}: the flood goes on to the end", False, hostile.ended)
        if min(s[0] for s in seen) < most_ms / 1e3 and min(s[1] for s in seen) < 0.25:
            break
    answer, used = min(s[0] for s in seen), min(s[1] for s in seen)
    bench.checks.ok(
        f"{name}: others are answered ({answer * 1e3:.1f} ms)", answer < most_ms / 1e3, seen
    )
    bench.checks.ok(
        f"{name}: the control thread is not busy with it ({used:.0%} of a core)", used < 0.25, seen
    )


def late_words(bench):
    """Who has no credit left waits, and is served: nothing it said is lost."""
    with Hostile(bench, "messages", 64):
        clients = [Client(bench.daemon.socket, hello=False) for _ in range(40)]
        for client in clients:
            client.tell(op="hello", version=1, host="late")
        for client in clients:
            client.hear()
        for i, client in enumerate(clients):
            client.attach(run="late", peer=i)
            client.next()
        for client in clients:
            client.close()
    bench.checks.ok("40 more clients beside a flood: each is attached and served", True)
    gone = wait_for(lambda: bench.daemon.rings() == 0, LONG)
    bench.checks.ok("and all of them are gone afterwards", gone, bench.daemon.rings())


def large_ring_ends(bench):
    """Hundreds of thousands of pages are given back elsewhere than in the thread that answers everybody. [75 ms of it]"""
    used = []
    for _ in range(TRIES):
        client = Client(bench.daemon.socket).attach(run="large", micro=65536, slots=4)
        before = bench.control_cpu()
        client.close()
        gone = wait_for(lambda: bench.daemon.rings() == 0, LONG)
        time.sleep(0.3)  # it is not in the list any more while its pages are still being freed
        used.append(bench.control_cpu() - before)
        bench.checks.ok("a ring of 268 MB is gone after its client", gone)
    bench.checks.ok(
        f"and costs the control thread little ({min(used) * 1e3:.1f} ms)", min(used) < 0.015, used
    )


def main():
    checks = Checks()
    with Place() as place:
        bench = Bench(checks, place)
        starve(
            bench, "batches of 65,536 rows [0.0001 to 0.01, waits 30 to 110 times as long]", "huge"
        )
        starve(bench, "1,000 sessions of one-byte wakes [0.01, 260 times]", "wakes")
        flood(bench, "600 connections of 120 KiB messages [20 to 130 ms]", "messages", 600, 10)
        flood(bench, "the same of the same uid", "messages", 600, 10, os.geteuid())
        flood(bench, "64 sessions of describe", "describe", 64, 10)
        flood(bench, "connects", "connects", 16, 10)
        late_words(bench)
        large_ring_ends(bench)
        checks.equal("the daemon ends with 0", bench.daemon.stop(), 0)
    checks.exit()


main()
