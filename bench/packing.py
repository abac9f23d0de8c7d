"""Packing documents into rows: padding, documents cut, and time.

    build/venv/bin/python bench/run.py packing

Documents have log-normal lengths, with a median of 300 tokens. Concatenation and first-fit are
`tokctl pack --format flat` and `tokctl pack --fit`: read, packed, written and read back.
"""

import json
import shutil
import statistics
import subprocess
import time

import numpy
from common import BIN, row

DOCUMENTS, MEDIAN, SIGMA, ROW, EOS = 200_000, 300, 1.0, 1025, 1


def write(path):
    """Returns the documents' lengths."""
    random = numpy.random.default_rng(1)
    lengths = numpy.maximum(1, random.lognormal(numpy.log(MEDIAN), SIGMA, DOCUMENTS)).astype(int)
    ends = numpy.cumsum(lengths)
    tokens = random.integers(EOS + 1, 50_000, ends[-1]).astype("<u2")
    tokens[ends - 1] = EOS
    tokens.tofile(path)
    return lengths


def tokctl(directory, *options):
    """(seconds, what it printed)"""
    command = [BIN / "tokctl", "pack", "--json", directory / "documents.bin", directory / "packed"]
    begin = time.monotonic()
    done = subprocess.run([*command, *options], check=True, capture_output=True)
    seconds = time.monotonic() - begin
    shutil.rmtree(directory / "packed")
    return seconds, [json.loads(line) for line in done.stdout.splitlines()]


def packing(directory, args):
    lengths = write(directory / "documents.bin")
    fit = ["--fit", str(ROW), "--eos", str(EOS)]
    total, seconds = int(lengths.sum()), {"concatenate": [], "best": []}
    for _ in range(args.rounds):
        seconds["concatenate"].append(tokctl(directory, "--format", "flat")[0])
        some, lines = tokctl(directory, *fit)
        seconds["best"].append(some)
    (directory / "documents.bin").unlink()

    sums = {k: sum(line[k] for line in lines) for k in ("rows", "cut", "cut_by_concatenation")}
    least = -(-total // ROW)
    print(
        f"\nPacking {DOCUMENTS:,} documents of log-normal lengths (median {MEDIAN}, "
        f"{total / 1e6:.0f} M tokens) into rows of {ROW}\n"
        f"{'':28}{'rows ÷ least':>14}{'padding':>10}{'documents cut':>15}{'s per 10⁹ tokens':>19}"
    )
    found = {}
    for name, what, rows, cut in (
        ("concatenate", "concatenate", least, sums["cut_by_concatenation"]),
        ("best", "first-fit (--fit)", sums["rows"], sums["cut"]),
    ):
        padding = 1 - total / (rows * ROW)
        per = found[f"packing_{name}_s"] = statistics.median(seconds[name]) / total * 1e9
        share = cut / len(lengths)
        print(f"  {what:26}{rows / least:>14.4f}{padding:>10.3%}{share:>15.1%}{per:>19.1f}")
    ratio = found["packing_rows"] = sums["rows"] / least
    row("rows of first-fit ÷ the least possible", f"{ratio:.4f}", "wanted ≤ 1.01")
    return found
