#!/usr/bin/env python3
"""Fuzzes every parser of foreign bytes, starting from small real inputs (seeds.py).

--seconds is for each target, --minutes for all of them together. --seconds 0 runs only the known
inputs, with the programs for asan: the seeds, and tests/fuzz/regressions/TARGET/*.b64, which once
failed. An input that fails now is kept in build/fuzz/TARGET/, next to `log`; what was found is in
build/fuzz/TARGET/corpus and is used again.
"""

import argparse
import base64
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

import seeds
from seeds_shards import FORMATS

# Of each target the most bytes of an input. The program for shards has a target for each format.
TARGETS = dict.fromkeys(("state", "record", "daemon", "client", "ring"), 4096)
TARGETS |= dict.fromkeys(("wire", "cursor", "config"), 20_000)
TARGETS |= dict.fromkeys(("store", "manifest", *FORMATS), 80_000)
QUIET = "state", "record", "daemon", "client"  # their messages are dropped
# Other threads allocate, too: only LSan's look at the end tells leaks apart.
SHARED_HEAP = "client", "daemon"


def place_of(target):
    """Where its inputs, findings and log are."""
    return seeds.ROOT / "build/fuzz" / target


def prepare(target):
    """Writes the known inputs."""
    known = place_of(target) / "known"
    shutil.rmtree(known, ignore_errors=True)
    known.mkdir(parents=True)
    for i, data in enumerate(seeds.of(target)):
        (known / f"seed-{i}").write_bytes(data)
    for regression in (seeds.ROOT / "tests/fuzz/regressions" / target).glob("*.b64"):
        (known / regression.stem).write_bytes(base64.b64decode(regression.read_text()))


def run(target, variant, *arguments):
    program = "shard" if target in FORMATS else target
    return subprocess.run(
        [
            seeds.ROOT / f"build/{variant}/check/fuzz-{program}",
            f"-artifact_prefix={place_of(target)}/",
            "-rss_limit_mb=1024",
            "-malloc_limit_mb=64",
            "-timeout=10",
            f"-max_len={TARGETS[target]}",
            f"-close_fd_mask={3 if target in QUIET else 0}",
            f"-detect_leaks={0 if target in SHARED_HEAP else 1}",
            *arguments,
        ],
        cwd=place_of(target) / "known",
        env={**os.environ, "FORMAT": target},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def was_slow(target, variant, done):
    """Whether a timeout was the machine's: the input now runs in time."""
    hangs = re.findall(r"Test unit written to (\S+/timeout-\w+)", done.stdout)
    if not hangs or run(target, variant, hangs[0]).returncode:
        return False
    os.unlink(hangs[0])
    return True


def fuzz(target, seconds):
    """Runs the known inputs, which prepare() has written; @seconds > 0: and looks for more."""
    found = place_of(target) / "corpus"
    found.mkdir(exist_ok=True)
    inputs = sorted(os.listdir(place_of(target) / "known"))
    variant, what = "asan", f"{len(inputs)} known inputs"
    if seconds:
        variant = "fuzz"
        inputs = [f"-max_total_time={seconds}", "-print_final_stats=1", found, "."]
    done = run(target, variant, *inputs)
    if done.returncode and was_slow(target, variant, done):
        done = run(target, variant, *inputs)
    (place_of(target) / "log").write_text(done.stdout)
    for runs in re.findall(r"number_of_executed_units: (\d+)", done.stdout):
        what = f"{runs} inputs"
    print(f"{target}: {what}" + (", FAILED" if done.returncode else ""), flush=True)
    if done.returncode:
        print(done.stdout[-6000:])
    return done.returncode == 0


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument("--minutes", type=float)
    options.add_argument("target", nargs="*", default=list(TARGETS), metavar="TARGET")
    options = options.parse_args()
    workers = os.cpu_count()
    if options.minutes:
        rounds = -(-len(options.target) // workers)
        options.seconds = max(1, int(options.minutes * 60 / rounds))
    for target in options.target:
        prepare(target)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        fine = list(pool.map(lambda target: fuzz(target, options.seconds), options.target))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
