#!/usr/bin/env python3
"""Measures how much a hostile client slows down a polite one.

The polite one is a trainer in C that takes batches as fast as they come. Its waits and its rate
next to each kind of flood are divided by those of the same trainer alone, just before and after.

    make bench                                   this table is part of it
    build/venv/bin/python bench/neighbours.py    alone, about a minute

The hostile client has its own uid if this runs as root. The row of a second polite one is the cost
of a fair neighbour: both get half of the reads and a part of the cores.
"""

import argparse, json, os, signal, statistics, subprocess, sys, tempfile, time
from pathlib import Path

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


class Daemon:
    def __init__(self, directory):
        directory.mkdir(exist_ok=True)
        for place in (directory, directory.parent):  # another user must reach the socket
            place.chmod(0o755)
        self.directory, self.socket = directory, directory / "s.sock"
        config = directory / "tokend.yaml"
        config.write_text(
            json.dumps(
                {
                    "socket": str(self.socket),
                    "state_dir": str(directory / "state"),
                    "memory": 3 << 30,
                    "allow_uids": [NOBODY],
                    "streams": {
                        "train": {
                            "seed": 42,
                            "seq_len": SEQ,
                            "datasets": [{"name": "web", "path": "tokens.bin"}],
                        },
                        "wide": {
                            "seed": 42,
                            "seq_len": 1_000_000,
                            "datasets": [{"name": "web", "path": "tokens.bin"}],
                        },
                    },
                }
            )
        )
        with open(directory / "tokens.bin", "wb") as file:
            for _ in range(50):
                file.write(os.urandom(1 << 20) * 2)
        self.process = subprocess.Popen(
            [BIN / "tokend", "-c", config], stderr=open(directory / "log", "w")
        )
        until = time.monotonic() + 20
        while "ready at" not in (directory / "log").read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(
                    f"bench: the daemon did not start: {(directory / 'log').read_text()}"
                )
            time.sleep(0.01)

    def cpu(self):
        """CPU seconds of each thread."""
        used = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            used[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        return used

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


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


def next_to(daemon, kind, seconds):
    """A polite trainer's figures alone, those next to @kind, and the daemon's CPU then."""
    alone = [measured(polite(daemon, seconds / 2))]
    hostile = Hostile(daemon, kind, seconds)
    try:
        before, begin = daemon.cpu(), time.monotonic()
        here = measured(polite(daemon, seconds))
        wall = time.monotonic() - begin
        used = {task: (cpu - before.get(task, 0)) / wall for task, cpu in daemon.cpu().items()}
    finally:
        hostile.stop()
    alone.append(measured(polite(daemon, seconds / 2)))
    control = used.pop(str(daemon.process.pid))
    return (
        {key: statistics.mean(a[key] for a in alone) for key in alone[0]},
        here,
        {"control": control, "others": sum(used.values())},
    )


def table(directory, seconds=3.0, kinds=tuple(KINDS), rounds=1):
    """{kind: {p50, p99, p999, rate: next to it ÷ alone}}; medians over the rounds."""
    daemon, rows = Daemon(directory), {}
    try:
        print(
            f"\nA polite trainer (batches of 8×{SEQ + 1} u16 as fast as they come) next to a "
            "hostile client of another uid, relative to the same trainer alone"
        )
        print(
            "  "
            f"{'':<40}{'rate':>8}{'p50':>8}{'p99':>8}{'p99.9':>8}"
            f"{'p99.9 µs':>12}{'control thread':>16}{'others':>8}",
            flush=True,
        )
        for kind in kinds:
            seen = []
            for _ in range(rounds):
                alone, here, cpu = next_to(daemon, kind, seconds)
                seen.append(
                    {**{key: here[key] / alone[key] for key in here}, "us": here["p999"], **cpu}
                )
            rows[kind] = row = {key: statistics.median(s[key] for s in seen) for key in seen[0]}
            print(
                "  "
                f"{KINDS[kind]:<40}{row['rate']:>8.2f}{row['p50']:>8.2f}{row['p99']:>8.2f}"
                f"{row['p999']:>8.2f}{row['us']:>12.0f}"
                f"{row['control']:>14.0%}{row['others']:>10.0%}",
                flush=True,
            )
    finally:
        daemon.stop()
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=1)
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
