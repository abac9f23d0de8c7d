"""How much a hostile client of another user slows down a polite one.

The polite one is a trainer in C that takes batches as fast as they come. Its waits and its rate
next to each neighbour are divided by those next to an innocent one, which costs it the same cores
and reads: the same flood at another daemon, or if the neighbour takes batches, a second polite
trainer. That one's row is relative to the same trainer alone. "Reply" is what a third client waits
for an answer.

    build/venv/bin/python bench/run.py neighbours

The hostile client has its own uid if this runs as root.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time

import hostile
from common import SEQ, Daemon, medians, result

NOBODY = 65534
SECONDS, ROUNDS = 2.0, 3
KINDS = {
    "twin": "a second polite one",
    "huge": "batches of 65,536 rows",
    "wide": "rows of 2 MB",
    "wakes": "1,000 sessions of one-byte wakes",
    "describe": "64 sessions of `describe`",
    "messages": "1,000 connections of 120 KiB messages",
    "connects": "connects",
    "attaches": "attaches",
    "checkpoints": "64 sessions of checkpoints",
}
READERS = "huge", "wide"  # take batches: their innocent neighbour is a second polite trainer


def served(directory, name):
    data = [{"name": "web", "path": str(directory / "tokens.bin"), "dtype": "u16"}]
    windows = {"train": SEQ, "wide": 1_000_000}
    streams = {n: {"seed": 42, "seq_len": s, "datasets": data} for n, s in windows.items()}
    (directory / name).mkdir(exist_ok=True)
    for place in (directory / name, directory):
        place.chmod(0o755)  # another user must reach the socket
    return Daemon(directory / name, streams, memory=3 << 30, allow_uids=[NOBODY])


class Flood:
    """A process that floods the daemon; the flood has begun when the constructor returns."""

    def __init__(self, daemon, kind):
        self.kind, uid = kind, NOBODY if os.geteuid() == 0 else None
        if kind == "twin":
            self.process = daemon.polite(SECONDS + 1, user=uid)
        else:
            command = [sys.executable, hostile.__file__, "--socket", daemon.socket, kind]
            command += ["--uid", str(uid)] if uid else []
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
            if self.process.stdout.readline() != b"ready\n":
                raise SystemExit(f"bench: the hostile client did not start its flood: {kind}")
        time.sleep(0.3)

    def stop(self):
        if self.process.poll() is not None and self.kind != "twin":
            said = f"{self.kind} ended early: exit {self.process.returncode}"
            print(f"bench: hostile client {said}", file=sys.stderr)
        self.process.kill()
        self.process.communicate()


def neighbour_of(daemon, other, kind):
    """A polite trainer's figures at @daemon, with a flood at @other."""
    third = hostile.Client(str(daemon.socket)).attach(run="hostile", peer=1 << 20)
    with contextlib.closing(third):
        flood, replies = Flood(other, kind), []
        try:
            trainer = daemon.polite(SECONDS)
            while trainer.poll() is None:
                asked = time.monotonic()
                third.ask(op="describe")
                replies.append(time.monotonic() - asked)
                time.sleep(0.02)
            here = result(trainer)
        finally:
            flood.stop()
    return here | {"reply": statistics.median(replies) * 1e3}


def once(directory, kind):
    """A polite trainer alone, next to an innocent neighbour, and next to a hostile one. New daemons
    each time, because a daemon remembers what a user has used up.
    """
    with served(directory, "a") as daemon, served(directory, "b") as other:
        alone = innocent = result(daemon.polite(SECONDS / 2))
        if kind in READERS:
            innocent = neighbour_of(daemon, daemon, "twin")
        elif kind != "twin":
            # Another user's session, without which the flood would be the only one there, and free.
            with hostile.attach(str(other.socket)):
                innocent = neighbour_of(daemon, other, kind)
        here = neighbour_of(daemon, daemon, kind)
    ratios = {key: here[key] / innocent[key] for key in ("rate", "p999")}
    return ratios | {"reply": here["reply"], "alone": here["rate"] / alone["rate"]}


def neighbours(directory, args):
    directory = directory / "neighbours"
    directory.mkdir()
    directory.parent.chmod(0o755)
    with open(directory / "tokens.bin", "wb") as file:
        for _ in range(50):
            file.write(os.urandom(1 << 20) * 2)
    print(
        f"\nA polite trainer (batches of 8×{SEQ + 1} u16 as fast as they come) next to a hostile "
        "client of another uid, relative to an innocent neighbour"
    )
    print(f"  {'':<40}{'rate':>8}{'p99.9':>8}{'alone':>8}{'reply ms':>10}")
    seen = {kind: [] for kind in KINDS}
    for _ in range(1 if args.quick else ROUNDS):
        for kind in KINDS:
            seen[kind].append(once(directory, kind))
    for kind, runs in seen.items():
        row = medians(runs)
        print(
            f"  {KINDS[kind]:<40}{row['rate']:>8.2f}{row['p999']:>8.2f}{row['alone']:>8.2f}"
            f"{row['reply']:>10.2f}"
        )
    print("  goal: a rate of at least 0.9, p99.9 of at most 2")
    return {f"next_to_{kind}": medians(runs)["rate"] for kind, runs in seen.items()}
