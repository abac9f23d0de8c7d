#!/usr/bin/env python3
"""Measures tokend relative to other loaders and tools, in one run on this machine.

    make bench                              all parts, at most 30 minutes
    make bench-quick                        the main figures, 2 minutes
    build/venv/bin/python bench/run.py PART…   parts alone, and those that `make bench` leaves out

Contestants take turns, each in a process of its own, and figures are medians. Quote the ratios:
machines differ, and this one may be busy. RESULTS.md explains the figures.

A part is a function part(directory, args) that prints its tables and returns {figure: number}.
goals.py knows the goals by these names. All parts share the tokens of directory/tokens.bin. A part
that fails says why, and the others go on. All figures, and what the parts printed, also go to
build/bench/results.json, those of the quick run to quick.json there, and those of chosen parts to
PART.json. pages.py writes the pages' tables from these files.
"""

import argparse
import contextlib
import datetime
import importlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import goals
from common import ROOT, write_tokens

# (name, its module and function, when it runs: "quick" also in bench-quick, "full", or "alone")
PARTS = (
    ("contest", "contest:contest", "quick"),
    ("ready", "calls:ready", "quick"),
    ("memory", "contest:memory", "full"),
    ("starts", "starts:starts", "full"),
    ("steps", "steps:steps", "full"),
    ("stalls", "steps:stalls", "full"),
    ("rate", "steps:rate", "quick"),
    ("order", "calls:order", "quick"),
    ("cold", "cold:cold", "full"),
    ("formats", "formats:formats", "full"),
    ("packing", "packing:packing", "full"),
    ("positions", "starts:positions", "full"),
    ("growth", "growth:growth", "full"),
    ("neighbours", "neighbours:neighbours", "alone"),
    ("objects", "objects:objects", "alone"),
)


def machine():
    def first(path, key):
        lines = Path(path).read_text().splitlines()
        return next((l.split(":", 1)[1].strip() for l in lines if l.startswith(key)), "unknown")

    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": git.stdout.strip() or "unknown",
        "load": os.getloadavg()[0],
    }


def stolen():
    """Seconds that the host took from each core, of a virtual machine."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") / os.cpu_count()


class Both(io.StringIO):
    """Keeps what is written, and passes it on to @out."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def write(self, text):
        self.out.write(text)
        return super().write(text)


def run(directory, args, parts, found):
    """Runs @parts, and adds to @found what each returned and printed, its seconds, and why parts
    failed. Yields after each part.
    """
    for name, place, _ in parts:
        begin, printed = time.monotonic(), Both(sys.stdout)
        try:
            module, function = place.split(":")
            part = getattr(importlib.import_module(module), function)
            with contextlib.redirect_stdout(printed):
                found["parts"][name] = part(directory, args) or {}
            found["printed"][name] = printed.getvalue()
        except (Exception, SystemExit) as error:  # of any part: the others go on
            found["failed"][name] = str(error).strip() or type(error).__name__
            print(f"\n{name} failed: {found['failed'][name]}")
            if not isinstance(error, SystemExit):
                traceback.print_exc()
        seconds = found["machine"]["seconds"][name] = round(time.monotonic() - begin, 1)
        print(f"  ({name}: {seconds:.0f} s)")
        yield


def chosen(args, parser):
    names = {name for name, _, _ in PARTS}
    for name in args.parts:
        if name not in names:
            parser.error(f"no part {name}; parts: {', '.join(sorted(names))}")
    if args.parts:
        return [part for part in PARTS if part[0] in args.parts]
    return [part for part in PARTS if part[2] in ("quick",) + (() if args.quick else ("full",))]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these parts")
    parser.add_argument("--quick", action="store_true", help="the main figures, fewer rounds")
    parser.add_argument("--tokens", type=int, default=300_000_000)
    parser.add_argument("--rounds", type=int, help="5, or 3 with --quick")
    parser.add_argument("--seconds", type=float, help="of one measurement: 0.5, or 0.4")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.seconds = args.seconds or (0.4 if args.quick else 0.5)
    parts, about = chosen(args, parser), machine()
    sys.stdout.reconfigure(line_buffering=True)  # also where it is a file
    print(
        f"tokend bench: {about['cores']} cores of {about['cpu']}, {about['memory']}, Linux "
        f"{about['kernel']}, {about['date']}, commit {about['commit'][:12]}, load {about['load']}\n"
        f"{args.rounds} rounds of {args.seconds:g} s; medians"
    )
    name = "-".join(args.parts) or ("quick" if args.quick else "results")
    results = ROOT / f"build/bench/{name}.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    about |= {"rounds": args.rounds, "round_s": args.seconds, "seconds": {}}
    found = {"machine": about, "parts": {}, "printed": {}, "failed": {}}
    directory = Path(tempfile.mkdtemp(prefix="tokend-bench-"))
    begin, taken = time.monotonic(), stolen()
    try:
        write_tokens(directory / "tokens.bin", args.tokens)
        for _ in run(directory, args, parts, found):
            passed = time.monotonic() - begin
            about |= {"minutes": round(passed / 60, 1), "stolen": (stolen() - taken) / passed}
            figures = {k: value for part in found["parts"].values() for k, value in part.items()}
            found["printed"]["goals"] = goals.table(figures, found["parts"], found["failed"])
            results.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(found["printed"]["goals"])
    print(f"in all {about['minutes']:.1f} minutes; all figures: {results.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
