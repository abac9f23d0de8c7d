"""Packing documents into rows: padding, documents cut, and time.

    build/venv/bin/python bench/run.py packing

Documents have log-normal lengths, with a median of 300 tokens. Concatenation and best-fit are
`tokctl pack --format flat` and `tokctl pack --fit`: read, packed, written and read back. First-fit
puts each document, as it comes, into the first row that it fits. It is done in Python here, and
without reading or writing, so its time compares with nothing.
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


def first_fit(lengths):
    """The number of rows. A tree of the most free tokens finds the first row that a rest fits."""
    leaves = 1 << (len(lengths) - 1).bit_length()
    most = [ROW] * (2 * leaves)
    rows = full = 0
    for length in lengths:
        full += length // ROW
        rest, node = length % ROW, 1
        if not rest:
            continue
        while node < leaves:
            node = 2 * node + (most[2 * node] < rest)
        rows = max(rows, node - leaves + 1)
        most[node] -= rest
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])
    return full + rows


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
    begin = time.monotonic()
    first = first_fit(lengths.tolist())
    seconds["first"] = [time.monotonic() - begin]
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
        ("first", "first-fit (in Python)", first, sums["cut"]),
        ("best", "best-fit (--fit)", sums["rows"], sums["cut"]),
    ):
        padding = 1 - total / (rows * ROW)
        per = found[f"packing_{name}_s"] = statistics.median(seconds[name]) / total * 1e9
        share = cut / len(lengths)
        print(f"  {what:26}{rows / least:>14.4f}{padding:>10.3%}{share:>15.1%}{per:>19.1f}")
    ratio = found["packing_rows"] = sums["rows"] / least
    row("rows of best-fit ÷ the least possible", f"{ratio:.4f}", "wanted ≤ 1.01")
    return found
