#!/usr/bin/env python3
"""Prints which lines of their files the fuzzers reach, and fails below 90 % for any target. The
lowest file of each is printed, too.

Each target runs the known inputs and what was found so far (build/fuzz/TARGET/corpus), with the
programs of build/cover. Targets of one program (the shards') count together for the files that they
share. --grow SECONDS fuzzes each target first; a target that has found nothing
yet is always fuzzed, for a minute.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

from run import fuzz, prepare, run
from targets import ROOT, TARGETS

LEAST = 90
FIRST_SECONDS = 60


def profile(target):
    """Runs the target's inputs. Returns the file with the counts."""
    raw = target.place / "cover.profraw"
    found = [d for d in (target.place / "known", target.place / "corpus") if d.is_dir()]
    done = run(target, "-runs=0", *found, variant="cover", LLVM_PROFILE_FILE=str(raw))
    if done.returncode:
        print(done.stdout[-3000:])
        sys.exit(f"{target.name}: build/cover's program failed")
    return raw


def measure(target, raws):
    """The lines of each file that ran: {file: (lines, ran)}."""
    merged = target.place / "cover.profdata"
    subprocess.run(["llvm-profdata", "merge", "-o", merged, *raws], check=True)
    program = ROOT / f"build/cover/check/fuzz-{target.program}"
    report = subprocess.run(
        ["llvm-cov", "export", "-summary-only", f"-instr-profile={merged}", program]
        + [ROOT / file for file in target.files],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    summary = json.loads(report.stdout)["data"][0]["files"]
    lines = {os.path.realpath(f["filename"]): f["summary"]["lines"] for f in summary}
    return {
        file: (lines[path]["count"], lines[path]["covered"])
        for file in target.files
        if (path := str(ROOT / file)) in lines
    }


def grow(target, seconds):
    """Fuzzes the target if that was asked for, or if it has found nothing yet."""
    corpus = target.place / "corpus"
    new = not (corpus.is_dir() and any(corpus.iterdir()))
    return not (seconds or new) or fuzz(target, seconds or FIRST_SECONDS)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--grow", type=int, default=0, metavar="SECONDS")
    options.add_argument("--files", action="store_true", help="a line for each file, too")
    options.add_argument("target", nargs="*", default=list(TARGETS), metavar="TARGET")
    options = options.parse_args()
    targets = [TARGETS[name] for name in options.target]
    for target in targets:
        prepare(target)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if not all(list(pool.map(lambda target: grow(target, options.grow), targets))):
            return 1
    raws = {target: profile(target) for target in targets}
    low = []
    print(f"{'target':12} {'files':>5} {'lines':>6} {'reached':>8}   lowest file")
    for target in targets:
        same = [raw for other, raw in raws.items() if other.program == target.program]
        files = measure(target, same)
        lines, ran = (sum(column) for column in zip(*files.values(), strict=True))
        shares = {file: 100 * reached / of for file, (of, reached) in files.items()}
        least = min(shares, key=shares.get)
        print(f"{target.name:12} {len(files):5} {lines:6} {100 * ran / lines:7.1f}%"
              f"   {shares[least]:5.1f}% {least}", flush=True)  # fmt: skip
        for file, (of, _) in files.items() if options.files else ():
            print(f"  {file:40} {of:4} {shares[file]:7.1f}%")
        if set(files) != set(target.files) or 100 * ran < LEAST * lines:
            low.append(target.name)
    if low:
        print(f"below {LEAST} %: {', '.join(low)}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
