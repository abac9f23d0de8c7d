#!/usr/bin/env python3
"""Measures what a daemon costs its node: memory without the rings, CPU while nothing happens, and
the time in which the node's trainers attach.

    make bench                              this table is part of it
    build/venv/bin/python bench/day_one.py  alone, about half a minute

The clients speak the protocol themselves (tests/lib/wire.py) from one thread, so that the time is
the daemon's and the kernel's. CPU time is from /proc/PID/schedstat, in nanoseconds.
"""

import os, socket, statistics, subprocess, sys, tempfile, time
from pathlib import Path

from common import ROOT, Daemon, cpu_ns, memory_of, row, train_stream, write_tokens

sys.path.insert(0, str(ROOT / "tests"))
from lib.wire import attach_at_once  # noqa: E402

TOKENS = 20_000_000
SESSIONS, IDLE, CROWD = 8, 20, 64


def crowd_ms(daemon, slots):
    """From the first connect to the last ring."""
    begin = time.monotonic()
    clients = attach_at_once(str(daemon.socket), CROWD, micro=8, slots=slots)
    ms = (time.monotonic() - begin) * 1e3
    close(clients)
    time.sleep(0.5)  # the daemon frees the rings
    return ms


def close(clients):
    for client in clients:
        client.close()


def idle(daemon):
    """(private MiB, CPU of a core) with SESSIONS sessions whose trainers compute."""
    clients = attach_at_once(str(daemon.socket), SESSIONS, micro=8)
    try:
        for client in clients:
            for _ in range(500):
                client.next()
            while not client.wake_at():  # until the daemon sleeps for its sake, too
                time.sleep(0.01)
        time.sleep(1)
        pid = daemon.process.pid
        begin, used = time.monotonic(), cpu_ns(pid)
        time.sleep(IDLE)
        share = (cpu_ns(pid) - used) / 1e9 / (time.monotonic() - begin)
        memory = memory_of(pid)
        return memory["VmRSS"] - memory["RssShmem"], share
    finally:
        close(clients)


def import_ms():
    code = "import time; t = time.perf_counter(); import tokend; print(time.perf_counter() - t)"
    env = os.environ | {"PYTHONPATH": str(ROOT / "build/python")}
    command = [sys.executable, "-c", code]
    seconds = [
        float(subprocess.run(command, check=True, capture_output=True, env=env).stdout)
        for _ in range(10)
    ]
    return statistics.median(seconds) * 1e3


def table(directory, args=None):
    directory = directory / "day-one"
    directory.mkdir(parents=True, exist_ok=True)
    write_tokens(directory / "tokens.bin", TOKENS)
    print("\nA daemon on a node")
    row("import tokend, before torch", f"{import_ms():.1f} ms", "wanted ≤ 15 ms")
    with socket.create_server(("127.0.0.1", 0)) as free:
        extra = f"metrics: 127.0.0.1:{free.getsockname()[1]}\nmemory: 4GiB\n"
    with Daemon(directory, train_stream("tokens.bin"), extra) as daemon:
        daemon.wait()
        memory, share = idle(daemon)
        row(f"RSS without rings, {SESSIONS} sessions", f"{memory:.1f} MiB", "wanted ≤ 16 MiB")
        row(f"CPU of a core, {SESSIONS} idle sessions", f"{share:.3%}", "wanted ≤ 0.1 %")
        for what, slots in (("128 KiB", 4), ("4 MiB, the default", 0)):
            times = [crowd_ms(daemon, slots) for _ in range(7)]
            row(
                f"{CROWD} sessions attach at once, rings of {what}",
                f"{statistics.median(times):.0f} ms",
                f"{min(times):.0f} to {max(times):.0f}; wanted ≤ 200 ms",
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tokend-bench-") as place:
        table(Path(place))
