#!/usr/bin/env python3
"""Runs what proves the most the longer it runs, in turn: `make soak MINUTES=30`.

    kills       a DDP job and its daemon, killed at random instants (lib/killed_job.py), in chapters
                of a few minutes; each is compared with an undisturbed run
    long life   a daemon and a trainer at full speed (lib/long_life.py)
    simulator   random histories (tests/sim)
    memory      interleavings of the ring's handshakes under weak memory rules
    fuzzers     every parser (tests/fuzz)

Each part gets its share of the time. A table of totals is printed at the end, whatever failed. Exit
status: 0 if all parts passed. --seed repeats the random choices; what they hit depends on the
machine. Parts run one after the other: a machine that has no idle core delays its processes.
"""

import argparse
import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "build/python")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before the ranks are forked

from lib import Place  # noqa: E402
from lib.killed_job import KilledJob  # noqa: E402
from lib.long_life import LongLife  # noqa: E402

CHECK = ROOT / "build/gcc/check"
SHARES = {"kills": 76, "long life": 14, "simulator": 4, "memory": 2, "fuzzers": 4}  # of 100
CHAPTER_S = 240  # of kills; a fifth more for the undisturbed run
LINES = 12  # of a program's output that are its totals


def add(totals, more):
    """Adds numbers; of other values keeps the last."""
    for key, value in more.items():
        both = isinstance(value, int) and isinstance(totals.get(key), int)
        totals[key] = totals[key] + value if both else value


def kills(seconds, seed, totals):
    end, chapter = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 5 or not chapter:
        with Place() as place, KilledJob(place, seed + chapter) as job:
            totals["seeds"] = f"{seed} to {seed + chapter}"
            job.storm(until=time.monotonic() + min(CHAPTER_S, left / 1.25))
            proved = job.prove()
        add(totals, proved)
        print(f"  {proved['kills']} kills, {proved['steps']} steps", flush=True)
        chapter += 1


def long_life(seconds, _seed, totals):
    for name, share in (("compressed", 0.8), ("plain", 0.2)):
        with Place() as place:
            life = LongLife(place, 0, name == "compressed")
            seen = life.run(seconds * share)
            add(totals, {"batches": seen["batches"]})
            rest = {f"{name}: {key}": value for key, value in seen.items() if key != "position"}
            add(totals, rest)
            assert life.daemon.stop() == 0


def program(totals, name, *command):
    """Runs a program; the end of its output is its totals."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for i, line in enumerate(done.stdout.strip().splitlines()[-LINES:]):
        totals[f"{name} {i}"] = line
    assert done.returncode == 0, f"{name} ended with {done.returncode}"


def simulator(seconds, seed, totals):
    program(totals, "histories", CHECK / "sim", "--seed", seed, "--seconds", max(1, int(seconds)))


def memory(seconds, _seed, totals):
    if not (CHECK / "memory").exists():
        totals["memory"] = "there is no checker"
        return
    program(totals, "memory", CHECK / "memory", "--deep", "--seconds", max(1, int(seconds)))


def fuzzers(seconds, _seed, totals):
    program(
        totals, "fuzz", sys.executable, ROOT / "tests/fuzz/run.py", "--minutes", seconds / 60
    )  # fmt: skip


PARTS = {"kills": kills, "long life": long_life, "simulator": simulator, "memory": memory,
         "fuzzers": fuzzers}  # fmt: skip


def part(name, seconds, seed):
    """Runs a part; returns (its totals, why it failed or None)."""
    totals, begin = {}, time.monotonic()
    print(f"{name}: {seconds:.0f} s", flush=True)
    try:
        PARTS[name](seconds, seed, totals)
        failure = None
    except Exception as error:
        traceback.print_exc()
        failure = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    totals["seconds"] = round(time.monotonic() - begin)
    return totals, failure


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    options = parser.parse_args()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE).stdout.strip()  # fmt: skip
    print(f"seed {options.seed}, commit {commit}, {options.minutes:g} minutes", flush=True)
    whole = sum(SHARES[name] for name in options.parts)
    seconds = {name: options.minutes * 60 * SHARES[name] / whole for name in options.parts}
    found = {name: part(name, seconds[name], options.seed) for name in options.parts}
    for name, (totals, failure) in found.items():
        print(f"\n{name}: {'FAILED: ' + failure if failure else 'passed'}")
        for key, value in totals.items():
            print(f"  {key:<32}{value:,}" if isinstance(value, int) else f"  {key:<32}{value}")
    failures = [name for name, (_, failure) in found.items() if failure]
    print(f"\n{len(found) - len(failures)} parts passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
