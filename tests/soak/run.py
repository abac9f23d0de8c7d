#!/usr/bin/env python3
"""Runs the open-ended tests one after the other: `make soak MINUTES=30`.

    kills       a DDP job and its daemon, killed at random instants (lib/killed_job.py), in chapters
                of a few minutes; each is compared with an undisturbed run
    long life   a daemon and a trainer at full speed across position 2^63 (lib/long_life.py)
    simulator   random histories (tests/sim)
    month       two trillion tokens in the simulator; only if MINUTES is 60 or more
    memory      interleavings of the ring's handshakes under weak memory rules
    fuzzers     every parser (tests/fuzz)

Each part gets its share of the time; in 30 minutes a machine without other work reaches the goals
or comes near them. A table of totals is printed at the end, whatever failed. Exit status: 0 if all
parts passed, whether or not they reached their goals. --seed repeats the random choices; what they
hit depends on the machine. Parts run one after the other: a machine that has no idle core delays
its processes.
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
SHARES = {"kills": 77, "long life": 16, "simulator": 3, "memory": 1, "fuzzers": 3}  # of 100
GOALS = {"kills": {"kills": 10_000}, "long life": {"batches": 10**9}}
CHAPTER_S = 240  # of kills; a fifth more for the undisturbed run
LIFE_LEAST_S = 3  # for enough samples
MONTH_S = 360  # of the month, which ends when it is over
MONTH_FROM = 60  # minutes
LINES = {"fuzz": 100}  # of a program's output that are its totals
FEW_LINES = 12


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
    for name, share in (("compressed", 0.96), ("plain", 0.04)):
        with Place() as place:
            begin = (1 << 63) - int(100_000 * seconds * share)  # a slow machine crosses 2^63, too
            life = LongLife(place, begin, name == "compressed")
            seen = life.run(max(LIFE_LEAST_S, seconds * share))
            assert seen["position"] > 1 << 63, seen
            add(totals, {"batches": seen["batches"]})
            rest = {f"{name}: {key}": value for key, value in seen.items() if key != "position"}
            add(totals, rest)
            assert life.daemon.stop() == 0


def program(totals, name, *command):
    """Runs a program; the end of its output is its totals."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for i, line in enumerate(done.stdout.strip().splitlines()[-LINES.get(name, FEW_LINES) :]):
        totals[f"{name} {i}"] = line
    assert done.returncode == 0, f"{name} ended with {done.returncode}"


def simulator(seconds, seed, totals):
    program(totals, "histories", CHECK / "sim", "--seed", seed, "--seconds", max(1, int(seconds)))


def month(_seconds, seed, totals):
    program(totals, "month", CHECK / "sim", "--seed", seed, "--month")


def memory(seconds, _seed, totals):
    if not (CHECK / "memory").exists():
        totals["memory"] = "there is no checker"
        return
    program(totals, "memory", CHECK / "memory", "--deep", "--seconds", max(1, int(seconds)))


def fuzzers(seconds, _seed, totals):
    program(
        totals, "fuzz", sys.executable, ROOT / "tests/fuzz/run.py", "--minutes", seconds / 60
    )  # fmt: skip


PARTS = {"kills": kills, "long life": long_life, "simulator": simulator, "month": month,
         "memory": memory, "fuzzers": fuzzers}  # fmt: skip


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


def budget(minutes, parts):
    """The seconds of each part."""
    names = parts or [name for name in PARTS if name in SHARES or minutes >= MONTH_FROM]
    fixed = {name: MONTH_S for name in names if name not in SHARES}
    left = max(0, minutes * 60 - sum(fixed.values()))
    whole = sum(SHARES[name] for name in names if name in SHARES)
    return {name: fixed.get(name) or left * SHARES[name] / whole for name in names}


def figure(name, key, value):
    """A line of the totals."""
    goal = GOALS.get(name, {}).get(key)
    text = f"{value:,}" if isinstance(value, int) else str(value)
    if goal:
        text += f" (goal {goal:,}: {'reached' if value >= goal else f'{value / goal:.0%}'})"
    return f"  {key:<32}{text}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--parts", nargs="*", default=[], choices=list(PARTS))
    options = parser.parse_args()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE).stdout.strip()  # fmt: skip
    print(f"seed {options.seed}, commit {commit}, {options.minutes:g} minutes", flush=True)
    seconds = budget(options.minutes, options.parts)
    found = {name: part(name, given, options.seed) for name, given in seconds.items()}
    for name, (totals, failure) in found.items():
        print(f"\n{name}: {'FAILED: ' + failure if failure else 'passed'}")
        for key, value in totals.items():
            print(figure(name, key, value))
    failures = [name for name, (_, failure) in found.items() if failure]
    print(f"\n{len(found) - len(failures)} parts passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
