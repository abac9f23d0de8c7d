#!/usr/bin/env python3
"""Measures tokend relative to other loaders and tools, in one run on this machine.

Every figure is the median of ROUNDS rounds in which the contestants take turns. Quote the ratios:
machines differ, and this one may be busy. RESULTS.md explains the figures.

    make bench                        all of it (about ten minutes)
    build/venv/bin/python bench/run.py --tokens 100000000 --rounds 3
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import day_one
import neighbours
from formats import formats
from objects import objects
from peers import peers
from scale import hundred_t, looks, opening, order, start_up
from throughput import control, throughput, transforms


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=500_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument(
        "--shards", type=int, default=1_000_000, help="of the dataset whose opening is measured"
    )
    args = parser.parse_args()
    print(
        f"tokend bench: {os.cpu_count()} CPUs, Linux {os.uname().release}, {args.rounds} rounds of "
        f"{args.seconds:g} s, medians"
    )
    directory = Path(tempfile.mkdtemp(prefix="tokend-bench-"))
    try:
        throughput(directory, args)
        peers(directory / "peers", args)
        objects(directory / "objects", args)
        transforms(directory, args)
        control(directory, args)
        neighbours.table(directory / "neighbours")
        day_one.table(directory / "day-one")
        formats(directory, args)
        start_up(directory, args)
        order(args)
        looks(directory)
        opening(directory, args)
        hundred_t(directory, args)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
