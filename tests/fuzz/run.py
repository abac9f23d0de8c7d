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
from targets import ROOT, TARGETS


# Other threads allocate, too: only LSan's look at the end tells leaks apart.
SHARED_HEAP = ("client", "daemon")


def regressions(target):
    return sorted((ROOT / "tests/fuzz/regressions" / target.name).glob("*.b64"))


def prepare(target):
    """Writes the known inputs. Returns their directory."""
    known = target.place / "known"
    shutil.rmtree(known, ignore_errors=True)
    known.mkdir(parents=True)
    for i, data in enumerate(seeds.of(target.name)):
        (known / f"seed-{i}").write_bytes(data)
    for regression in regressions(target):
        (known / regression.stem).write_bytes(base64.b64decode(regression.read_text()))
    return known


def run(target, *options):
    limits = [
        f"-artifact_prefix={target.place}/",
        "-rss_limit_mb=1024",
        "-malloc_limit_mb=64",
        "-timeout=10",
        f"-max_len={target.most}",
        f"-close_fd_mask={3 if target.quiet else 0}",
        f"-detect_leaks={0 if target.name in SHARED_HEAP else 1}",
    ]
    return execute(target, "fuzz", *limits, *options)


def execute(target, variant, *arguments, **environment):
    return subprocess.run(
        [ROOT / f"build/{variant}/check/fuzz-{target.program}", *arguments],
        env={**os.environ, "FORMAT": target.name, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def run_known(target):
    """Runs the known inputs with the programs for asan, within the limits of run()."""
    limits = "max_allocation_size_mb=64:allocator_may_return_null=0:hard_rss_limit_mb=1024"
    leaks = 0 if target.name in SHARED_HEAP else 1
    options = f"detect_leaks={leaks}:{limits}"
    return execute(target, "asan", target.place / "known", ASAN_OPTIONS=options)


def was_slow(target, done):
    """Whether a timeout was the machine's: the input now runs in time."""
    hangs = re.findall(r"Test unit written to (\S+/timeout-\w+)", done.stdout)
    if not hangs or run(target, hangs[0]).returncode:
        return False
    os.unlink(hangs[0])
    return True


def fuzz(target, seconds):
    """Runs the known inputs, which prepare() has written; @seconds > 0: and looks for more."""
    known, found = target.place / "known", target.place / "corpus"
    found.mkdir(exist_ok=True)
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", found, known]
    done = run(target, *options) if seconds else run_known(target)
    if done.returncode and was_slow(target, done):
        done = run(target, *options)
    (target.place / "log").write_text(done.stdout)
    runs = re.findall(r"number_of_executed_units: (\d+)", done.stdout)
    inputs = int(runs[0]) if runs else len(list(known.iterdir()))
    what = f"{inputs} inputs" if runs else f"{inputs} known inputs"
    print(f"{target.name}: {what}" + (", FAILED" if done.returncode else ""), flush=True)
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
    targets = [TARGETS[name] for name in options.target]
    for target in targets:
        prepare(target)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        fine = list(pool.map(lambda target: fuzz(target, options.seconds), targets))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
