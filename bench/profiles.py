#!/usr/bin/env python3
"""Instructions per batch by function, of the daemon and of next() in C and in Python.

    make profile

valgrind counts instructions of user space. Its count of a batch is a difference of two runs, so
starts do not matter. It does not count the kernel, which copies the tokens of a plain shard: the
CPU time of daemon and kernel follows from a run without valgrind. Under valgrind io_uring makes all
threads wait, so the daemon runs with `io: pread`; without AVX-512, tokens are widened with AVX2.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import BATCH_TOKENS, BIN, ROOT, Daemon, train_stream, write_tokens

FEW, MANY = 300, 2300  # batches of the two runs
TOP = 12  # functions of a table
LOOP = """
import subprocess, sys, os
from tokend import Loader
loader = Loader("train", micro_batch=8, socket=sys.argv[1])
for _ in range(100):
    next(loader)
subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, capture_output=True)
for _ in range(int(sys.argv[2])):
    next(loader)
subprocess.run(["callgrind_control", "-i", "off", str(os.getpid())], capture_output=True)
os._exit(0)
"""


def valgrind(out, *more):
    return [
        "valgrind",
        "--tool=callgrind",
        "--fair-sched=yes",
        f"--callgrind-out-file={out}",
        *more,
    ]


def instructions(out):
    """{function: instructions} of a file of callgrind."""
    listed = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--auto=no", out],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = {}
    for count, where in re.findall(r"^\s*([\d,]+) (?:\([ \d.]+%\))?\s+(\S.*)$", listed, re.M):
        name = re.sub(r" \[.*", "", where).split(":", 1)[-1]
        if "PROGRAM TOTALS" not in where:
            found[name] = found.get(name, 0) + int(count.replace(",", ""))
    return found


def table(title, few, many, batches):
    cost = {name: (count - few.get(name, 0)) / batches for name, count in many.items()}
    total = sum(cost.values())
    print(f"\n{title}: {total:,.0f} instructions a batch of {BATCH_TOKENS:,} tokens")
    for name in sorted(cost, key=cost.get, reverse=True)[:TOP]:
        print(f"  {name[:66]:<66}{cost[name]:>12,.0f}{cost[name] / total:>8.1%}")
    widening = sum(count for name, count in cost.items() if "widen" in name)
    if widening:
        print(f"  {'the floor: widening alone':<66}{widening:>12,.0f}{widening / total:>8.1%}")


def batches_of(daemon, batches, before=()):
    trainer = [BIN / "bench-next", daemon.socket, "train", "0", str(batches), "int64"]
    subprocess.run([*before, *trainer], check=True, capture_output=True)


def in_c(directory, streams):
    of = {"daemon": [], "next": []}
    for n in (FEW, MANY):
        out, client = directory / f"daemon.{n}", directory / f"next.{n}"
        with Daemon(directory, streams, "io: pread\n") as daemon:
            daemon.wait()
            batches_of(daemon, n, valgrind(client))
        with Daemon(directory, streams, "io: pread\n", before=valgrind(out)) as daemon:
            daemon.wait()
            batches_of(daemon, n)
        of["daemon"].append(instructions(out))
        of["next"].append(instructions(client))
    table("The daemon, io: pread", *of["daemon"], MANY - FEW)
    table("next() in C, widened to int64", *of["next"], MANY - FEW)


def in_python(directory, streams):
    out = directory / "python"
    with Daemon(directory, streams, "io: pread\n") as daemon:
        daemon.wait()
        loop = [sys.executable, "-c", LOOP, daemon.socket, str(MANY)]
        subprocess.run(
            valgrind(out, "--instr-atstart=no") + loop,
            check=True,
            capture_output=True,
            env={"PYTHONPATH": str(ROOT / "build/python"), "PATH": "/usr/bin:/bin"},
        )
    table("next() in Python, input_ids and labels", {}, instructions(out), MANY)


def cpu_time(directory, streams, batches=40_000):
    """The kernel copies the tokens, and valgrind does not count it."""
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        stat = Path(f"/proc/{daemon.process.pid}/stat")
        before = [int(n) for n in stat.read_text().rsplit(")", 1)[1].split()[11:13]]
        batches_of(daemon, batches)
        after = [int(n) for n in stat.read_text().rsplit(")", 1)[1].split()[11:13]]
    user, kernel = ((b - a) * 1e4 / batches for a, b in zip(before, after, strict=True))
    print(
        f"\nCPU time of the daemon a batch, io: uring: {user:.1f} µs user, {kernel:.1f} µs kernel"
    )


def main():
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tokend-profile-") as where:
        directory, streams = Path(where), train_stream("tokens.bin")
        write_tokens(directory / "tokens.bin", 20_000_000)
        in_c(directory, streams)
        cpu_time(directory, streams)
        in_python(directory, streams)
    print(f"in all {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
