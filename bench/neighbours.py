#!/usr/bin/env python3
"""Measures how much a hostile client slows down a polite one.

The polite one is a trainer in C that takes batches as fast as they come. Its waits and its rate
next to each neighbour are divided by those next to an innocent one, which costs it the same cores
and reads: the same flood at another daemon, or if the neighbour takes batches, a second polite
trainer. That one's row is relative to the same trainer alone.

    make bench                                   this table is part of it
    build/venv/bin/python bench/neighbours.py    alone, about two minutes

The hostile client has its own uid if this runs as root.
"""

import argparse, json, os, shutil, signal, statistics, subprocess, sys, tempfile, time
from pathlib import Path

import hostile

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("TOKEND_BIN", ROOT / "build/bin"))
POLITE = ROOT / "build/bin/bench-polite"
NOBODY = 65534
SEQ = 2048

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


class Daemon:
    """A daemon in a directory of its own below @directory, where tokens.bin is."""

    def __init__(self, directory, name):
        self.directory = directory / name
        self.directory.mkdir()
        for place in (self.directory, directory, directory.parent):
            place.chmod(0o755)  # another user must reach the socket
        self.socket = self.directory / "s.sock"
        config = self.directory / "tokend.yaml"
        datasets = [{"name": "web", "path": str(directory / "tokens.bin"), "dtype": "u16"}]
        config.write_text(
            json.dumps(
                {
                    "socket": str(self.socket),
                    "state_dir": str(self.directory / "state"),
                    "memory": 3 << 30,
                    "allow_uids": [NOBODY],
                    "streams": {
                        "train": {"seed": 42, "seq_len": SEQ, "datasets": datasets},
                        "wide": {"seed": 42, "seq_len": 1_000_000, "datasets": datasets},
                    },
                }
            )
        )
        log = self.directory / "log"
        with open(log, "w") as stderr:
            self.process = subprocess.Popen([BIN / "tokend", "-c", config], stderr=stderr)
        until = time.monotonic() + 20
        while "ready at" not in log.read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"bench: the daemon did not start: {log.read_text()}")
            time.sleep(0.01)

    def cpu(self):
        """CPU seconds of each thread."""
        used = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            used[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        return used

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def polite(daemon, seconds, uid=None):
    command = [POLITE, daemon.socket, "train", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, user=uid)


def measured(process):
    out, _ = process.communicate(timeout=120)
    if process.returncode:
        raise SystemExit(f"bench: the polite trainer failed: exit {process.returncode}")
    return json.loads(out)


class Hostile:
    """A process that floods the daemon; the flood has begun when the constructor returns."""

    def __init__(self, daemon, kind, seconds):
        uid = NOBODY if os.geteuid() == 0 else None
        self.kind = kind
        if kind == "twin":
            self.process = polite(daemon, seconds + 1, uid)
            time.sleep(0.3)
            return
        command = [
            sys.executable,
            Path(__file__).with_name("hostile.py"),
            "--socket",
            daemon.socket,
            kind,
        ]
        command += ["--uid", str(uid)] if uid else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise SystemExit(f"bench: the hostile client did not start its flood: {kind}")
        time.sleep(0.3)

    def stop(self):
        if self.process.poll() is not None and self.kind != "twin":
            print(
                f"bench: hostile client {self.kind} ended early: exit {self.process.returncode}",
                file=sys.stderr,
            )
        self.process.kill()
        self.process.communicate()


def neighbour_of(daemon, other, kind, seconds):
    """A polite trainer's figures at @daemon, with a flood at @other, and @daemon's CPU then."""
    flood = Hostile(other, kind, seconds)
    try:
        before, begin = daemon.cpu(), time.monotonic()
        here = measured(polite(daemon, seconds))
        wall = time.monotonic() - begin
        used = {task: (cpu - before.get(task, 0)) / wall for task, cpu in daemon.cpu().items()}
    finally:
        flood.stop()
    control = used.pop(str(daemon.process.pid))
    return {**here, "control": control, "others": sum(used.values())}


def once(directory, kind, seconds):
    """A polite trainer alone, next to an innocent neighbour, and next to a hostile one. New daemons
    each time, because a daemon remembers what a user has used up."""
    with Daemon(directory, "a") as daemon, Daemon(directory, "b") as other:
        alone = innocent = measured(polite(daemon, seconds / 2))
        if kind in READERS:
            innocent = neighbour_of(daemon, daemon, "twin", seconds)
        elif kind != "twin":
            # Another user's session, without which the flood would be the only one there, and free.
            with hostile.attach(str(other.socket), "train"):
                innocent = neighbour_of(daemon, other, kind, seconds)
        return alone, innocent, neighbour_of(daemon, daemon, kind, seconds)


def neighbours(directory, args):
    return table(directory / "neighbours")


def table(directory, seconds=2.0, kinds=tuple(KINDS), rounds=3):
    """{kind: figures}; medians over the rounds."""
    directory.mkdir(exist_ok=True)
    with open(directory / "tokens.bin", "wb") as file:
        for _ in range(50):
            file.write(os.urandom(1 << 20) * 2)
    print(
        f"\nA polite trainer (batches of 8×{SEQ + 1} u16 as fast as they come) next to a hostile "
        "client of another uid, relative to an innocent neighbour"
    )
    print(
        f"  {'':<40}{'rate':>8}{'p99':>8}{'p99.9':>8}{'p99.9 µs':>12}{'alone':>8}"
        f"{'control thread':>16}{'others':>8}",
        flush=True,
    )
    rows, seen = {}, {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            alone, innocent, here = once(directory, kind, seconds)
            seen[kind].append(
                {
                    **{key: here[key] / innocent[key] for key in ("rate", "p99", "p999")},
                    "us": here["p999"],
                    "alone": here["rate"] / alone["rate"],
                    "control": here["control"],
                    "others": here["others"],
                }
            )
    for kind in kinds:
        rows[kind] = row = {
            key: statistics.median(s[key] for s in seen[kind]) for key in seen[kind][0]
        }
        print(
            f"  {KINDS[kind]:<40}{row['rate']:>8.2f}{row['p99']:>8.2f}{row['p999']:>8.2f}"
            f"{row['us']:>12.0f}{row['alone']:>8.2f}{row['control']:>14.0%}{row['others']:>10.0%}",
            flush=True,
        )
    print("  goal: a rate of at least 0.9, p99.9 of at most 2")
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line of JSON after the table")
    parser.add_argument(
        "kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="tokend-bench-", ignore_cleanup_errors=True
    ) as directory:
        rows = table(Path(directory) / "neighbours", args.seconds, args.kinds, args.rounds)
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
