#!/usr/bin/env python3
"""Runs the open-ended tests one after the other: `make soak MINUTES=30`.

    kills       a DDP job and its daemon, killed at random instants (lib/killed_job.py), in chapters
                of a few minutes; each is compared with an undisturbed run
    long life   a daemon and a trainer at full speed across position 2^63 (lib/long_life.py)
    simulator   random histories (tests/sim)
    month       two trillion tokens in the simulator; only if MINUTES is 60 or more
    memory      interleavings of the ring's handshakes under weak memory rules
    fuzzers     every parser (tests/fuzz)

Each part gets its share of the time and prints its totals. Exit status: 0 if all parts passed.
--seed repeats the random choices; what they hit depends on the machine.
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
CHAPTER_S = 240  # of kills; a fifth more for the undisturbed run
LIFE_LEAST_S = 3  # for enough samples
MONTH_S = 360  # of the month, which ends when it is over
MONTH_FROM = 60  # minutes


def kills(seconds, seed):
    end, chapter = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 5 or not chapter:
        with Place() as place, KilledJob(place, seed + chapter) as job:
            job.storm(until=time.monotonic() + min(CHAPTER_S, left / 1.25))
            print(f"seed {seed + chapter}: {job.prove()}", flush=True)
        chapter += 1


def long_life(seconds, _seed):
    for name, share in (("compressed", 0.96), ("plain", 0.04)):
        with Place() as place:
            begin = (1 << 63) - int(100_000 * seconds * share)  # a slow machine crosses 2^63, too
            life = LongLife(place, begin, name == "compressed")
            seen = life.run(max(LIFE_LEAST_S, seconds * share))
            print(f"{name}: {seen}")
            assert seen["position"] > 1 << 63
            assert life.daemon.stop() == 0


def program(*command):
    subprocess.run([str(part) for part in command], check=True)


def simulator(seconds, seed):
    program(CHECK / "sim", "--seed", seed, "--seconds", max(1, int(seconds)))


def month(_seconds, seed):
    program(CHECK / "sim", "--seed", seed, "--month")


def memory(seconds, _seed):
    program(CHECK / "memory", "--deep", "--seconds", max(1, int(seconds)))


def fuzzers(seconds, _seed):
    program(sys.executable, ROOT / "tests/fuzz/run.py", "--minutes", seconds / 60)


FUNCTIONS = (kills, long_life, simulator, month, memory, fuzzers)
PARTS = {function.__name__.replace("_", " "): function for function in FUNCTIONS}


def budget(minutes, parts):
    """The seconds of each part."""
    names = parts or [name for name in PARTS if name in SHARES or minutes >= MONTH_FROM]
    fixed = {name: MONTH_S for name in names if name not in SHARES}
    left = max(0, minutes * 60 - sum(fixed.values()))
    whole = sum(SHARES[name] for name in names if name in SHARES)
    return {name: fixed.get(name) or left * SHARES[name] / whole for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--parts", nargs="*", default=[], choices=list(PARTS))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    failed = []
    for name, seconds in budget(options.minutes, options.parts).items():
        print(f"{name}: {seconds:.0f} s", flush=True)
        try:
            PARTS[name](seconds, options.seed)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
