#!/usr/bin/env python3
"""tokctl and the daemon against an independent implementation of the order, on random configurations.

Every configuration has real shards and is drawn from the seed and its number alone: what `tokctl plan` and `tokctl when` say,
with and without edited cursors, and the bytes that `tokctl cat` gets from a daemon for any rank, world, micro-batch and start
must be those of tests/python/order_reference.py.

    test_order_check.py [--seed S] [--configs N] [--only I]
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import time

import numpy

from harness import TOKCTL, Daemon, Place, with_parent

from lib import order_reference as ref  # noqa: E402

DTYPES = {"u16": "<u2", "u32": "<u4"}
NAMES = ["web", "code", "math", "b-ooks", "Übersetzung", "wiki/en", "x y"]


class Wrong(Exception):
    """What differs, with the command that shows it."""


# ---- a random configuration ----


class Configuration:
    """Shards on disk, a config file that names them, and the order that they must have."""

    def __init__(self, place, rng):
        self.place = place
        self.rng = rng
        self.dtype = rng.choice(["u16", "u32"])
        self.seq_len = rng.randrange(1, 48)
        self.extra = rng.randrange(4)
        self.stride = rng.choice([None, self.seq_len, rng.randrange(1, 2 * self.seq_len + 1)])
        self.seed = rng.choice([rng.getrandbits(64), rng.randrange(100)])
        self.keys = {}  # of the stream
        self.tokens = {}  # (dataset, shard) → array
        self.entries = []  # datasets as the config has them
        self.directories = 0
        count = rng.randrange(1, 7)
        while True:
            self.datasets = [self.dataset(name) for name in NAMES[:count]]
            if any(self.windows(d) for d in self.datasets):
                break
            self.entries.clear()
        self.order = self.make_order()
        self.begin = copy.copy(self.order)  # what the config alone says, whatever becomes of a run
        self.begin.segments = list(self.order.segments)
        self.path = self.write("tokend.yaml", self.entries)

    def windows(self, dataset):
        window, stride = self.seq_len + self.extra, self.stride or self.seq_len
        return sum(ref.shard_windows(tokens, window, stride) for _, tokens in dataset.shards)

    def make_order(self):
        """Weights, epochs or samples, in the config's entries and in the reference."""
        if self.rng.random() < 0.25:
            self.keys["epochs"] = self.rng.randrange(1, 4)
            return self.reference(self.datasets, None)
        if self.rng.random() < 0.3:
            self.keys["samples"] = self.rng.choice(
                [self.rng.randrange(1, 50), self.rng.randrange(1, 10**5)]
            )
        weights = self.weights(self.datasets)
        for entry, weight in zip(self.entries, weights):
            entry["weight"] = weight
        return self.reference(self.datasets, weights)

    def reference(self, datasets, weights):
        return ref.Order(
            self.seed, self.seq_len, datasets, weights, self.extra, self.stride, **self.keys
        )

    def weights(self, datasets):
        """None but 0 for a dataset without windows, and none so small that it gets no unit."""
        able = [self.windows(d) > 0 for d in datasets]
        kinds = [
            0,
            1,
            0.05,
            self.rng.random(),
            self.rng.uniform(0, 1000),
            1e-05,
            self.rng.randrange(1, 10**6),
        ]
        while True:
            weights = [self.rng.choice(kinds) if fit else 0 for fit in able]
            if any(weights) and all(u or not w for u, w in zip(ref.units_of(weights), weights)):
                return weights

    # -- shards --

    def dataset(self, name):
        how = self.rng.choice([self.directory, self.glob, self.file])
        self.directories += 1
        directory = f"data-{self.directories}"
        path, names = how(directory)
        entry = {"name": name, "path": path, "dtype": self.dtype}
        keys = {}
        if self.rng.random() < 0.8:
            keys["shuffle"] = self.rng.choice(["none", "global", "block"])
        if keys.get("shuffle") == "block" and self.rng.random() < 0.8:
            keys["block"] = self.rng.choice([1, 2, 3, 8, 50, 1000, 2**31])
            keys["group"] = self.rng.choice([1, 3, 64])
        if self.rng.random() < 0.4:
            keys["slide"] = True
        shards = [
            (shard, self.shard(name, os.path.join(directory, shard), shard)) for shard in names
        ]
        shards.sort(key=lambda pair: pair[0].encode())
        self.entries.append({**entry, **keys})
        return ref.Dataset(name, shards, **keys)

    def directory(self, directory):
        names = ["a.bin", "a/b.bin", "a-b.bin", "B.bin", "a/c/d.bin", "é.bin", "10.bin", "9.bin"]
        return directory, self.rng.sample(names, self.rng.randrange(1, len(names)))

    def glob(self, directory):
        pattern, names = self.rng.choice(
            [
                ("*.bin", ["0.bin", "1.bin", "10.bin", "2.bin"]),
                ("s-?.bin", ["s-x.bin", "s-y.bin"]),
                ("part-*/t.bin", ["part-1/t.bin", "part-2/t.bin", "part-10/t.bin"]),
            ]
        )
        return f"{directory}/{pattern}", self.rng.sample(
            names, self.rng.randrange(1, len(names) + 1)
        )

    def file(self, directory):
        return f"{directory}/one.bin", ["one.bin"]

    def shard(self, dataset, path, shard):
        window = self.seq_len + self.extra
        tokens = self.rng.choice(
            [self.rng.randrange(1, window + 2), self.rng.randrange(window, 40 * window)]
        )
        values = numpy.random.default_rng(self.rng.getrandbits(63)).integers(
            0, 1 << 16, tokens, dtype=numpy.uint32
        )
        values.astype(DTYPES[self.dtype]).tofile(self.place.file(path))
        self.tokens[dataset, shard] = values.astype(DTYPES[self.dtype])
        return tokens

    def write(self, name, entries):
        stream = {
            "seed": self.seed,
            "seq_len": self.seq_len,
            "extra": self.extra,
            **self.keys,
            "datasets": entries,
        }
        if self.stride:
            stream["stride"] = self.stride
        return self.place.config(name, streams={"train": stream}, memory=1 << 26)

    # -- a newcomer --

    def grow(self):
        """One more dataset, anywhere in a second config; in the run's order it comes last."""
        at = self.rng.randrange(len(self.begin.datasets) + 1)
        dataset = self.dataset(NAMES[len(self.datasets)])
        self.entries.insert(at, {**self.entries.pop(), "weight": 0})
        self.datasets.append(dataset)
        self.order.add(dataset)
        listed = list(self.begin.datasets)
        listed.insert(at, dataset)
        self.begin = self.reference(listed, [entry["weight"] for entry in self.entries])
        self.path = self.write("grown.yaml", self.entries)

    # -- what must come --

    def row(self, order, position):
        """The tokens at a position; zeros behind the end."""
        place = order.place(position)
        window = self.seq_len + self.extra
        if place is None:
            return numpy.zeros(window, DTYPES[self.dtype])
        return self.tokens[place.dataset, place.shard][place.offset : place.offset + window]


# ---- asking tokctl ----


def tokctl(*arguments, ok=(0,)):
    command = [TOKCTL, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60, preexec_fn=with_parent)
    if done.returncode not in ok:
        raise Wrong(
            f"exit {done.returncode}: {' '.join(command)}\n{done.stderr.decode(errors='replace')}"
        )
    return done


def differs(arguments, got, want):
    if got != want:
        at = next(
            (i for i, (g, w) in enumerate(zip(got, want)) if g != w), min(len(got), len(want))
        )
        raise Wrong(
            f"tokctl {' '.join(map(str, arguments))}\nline {at} of {len(got)} (want {len(want)})"
            f"\n  got  {got[at : at + 1]}\n  want {want[at : at + 1]}"
        )


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_plan(c, order, start, count, *more):
    arguments = ["plan", "-c", c.path, "train", "--from", start, "--count", count, "--json", *more]
    places = (order.place(i) for i in range(start, min(start + count, order.end)))
    differs(arguments, lines(tokctl(*arguments)), [vars(place) for place in places])
    return count


def check_when(c, order, *more):
    """A token of any shard, served or not, in any epoch."""
    rng = c.rng
    d = rng.randrange(len(c.datasets))
    shard = rng.randrange(len(c.datasets[d].shards))
    name, tokens = c.datasets[d].shards[shard]
    offset, epoch = (
        rng.randrange(tokens),
        rng.choice([0, 0, 1, rng.randrange(50), rng.getrandbits(40)]),
    )
    where = ["--dataset", c.datasets[d].name, "--shard", name, "--offset", offset, "--epoch", epoch]
    arguments = ["when", "-c", c.path, "train", *where, "--json", *more]
    served = [(order.when(d, epoch, w), w) for w in order.holding(d, shard, offset, epoch)]
    want = [{"position": p, "epoch": epoch, "window": w} for p, w in served if p is not None]
    done = tokctl(*arguments, ok=(0,) if want else (1,))
    by_window = sorted(lines(done), key=lambda line: line["window"])
    differs(arguments, by_window, want)
    return len(want)


def some_starts(c, order, known=0):
    """Positions worth a look: the beginning, the ends, the edges of segments, and far away."""
    rng = c.rng
    last = min(order.end, ref.TWO64 - 10**6)
    starts = [known, last - rng.randrange(1, 30), rng.randrange(known, max(last, known + 1)), last]
    starts += [segment.start - 3 for segment in order.segments if segment.start >= known + 3]
    starts.append(known + rng.randrange(5000))
    return [start for start in starts if known <= start <= order.end]


# ---- cursors ----


class Run:
    """A run's cursor through random edits, with all that a run's history must keep."""

    def __init__(self, c):
        self.c = c
        self.next = 0
        self.pending = False
        self.files = []
        self.knows = []  # the segments in each
        tokctl("cursor", "new", "-c", c.path, "train", "-o", self.file())
        self.knows.append(self.known().segments)

    def file(self):
        """A new file for the next cursor."""
        self.files.append(self.c.place.file(f"cursor-{len(self.files)}"))
        return self.files[-1]

    def edit(self, verb, *arguments):
        before = self.files[-1]
        tokctl("cursor", verb, before, *arguments, "-o", self.file())
        self.knows.append(self.known().segments)

    def seek(self):
        rng, order = self.c.rng, self.c.order
        known = order.segments[-2 if self.pending else -1].start
        ahead = [rng.randrange(3000), rng.randrange(100000), 1024 * rng.randrange(5), 2**40]
        to = rng.choice([known + rng.randrange(1000), *(self.next + a for a in ahead)])
        self.next = min(to, order.end)
        self.pending = self.pending and self.next < order.segments[-1].start
        self.edit("seek", "--to", self.next)

    def mix(self):
        rng, order = self.c.rng, self.c.order
        current = order.segments[-2 if self.pending else -1]
        least = max(ref.ceil_div(self.next, 1024) * 1024, current.start + 1024)
        at = least + 1024 * rng.choice([0, 0, 1, rng.randrange(100)])
        weights = self.c.weights(self.c.datasets)
        if self.pending:  # it never came to act
            order.segments.pop()
        order.mix(at, weights)
        named = [
            f"{d.name}={w!r}" for d, w in zip(self.c.datasets, weights) if w or rng.random() < 0.5
        ]
        self.pending = at > self.next
        self.edit("mix", *(["--at", at] if at != least or rng.random() < 0.5 else []), *named)

    def add(self):
        if len(self.c.datasets) < len(NAMES):
            self.c.grow()
            self.edit("add", "-c", self.c.path)

    def known(self):
        """The order as the last cursor alone knows it."""
        return self.c.order.known_from(2 if self.pending else 1)

    def history(self):
        """The cursors that hold no mix that was replaced before it came to act."""
        happened = {id(segment) for segment in self.c.order.segments}
        return [
            path
            for path, known in zip(self.files, self.knows)
            if {id(s) for s in known} <= happened
        ]

    def wander(self):
        for _ in range(self.c.rng.randrange(1, 6)):
            choices = (
                [self.seek] if self.c.order.epochs else [self.seek, self.mix, self.mix, self.add]
            )
            self.c.rng.choice(choices)()


def check_cursor_file(path, next_position):
    shown = json.loads(tokctl("cursor", "show", path, "--json").stdout)
    differs(["cursor", "show", path], [shown["next"]], [next_position])


def check_run(c):
    run = Run(c)
    run.wander()
    checked = 0
    order = run.known()
    check_cursor_file(run.files[-1], run.next)
    for start in some_starts(c, order, order.segments[0].start):
        checked += check_plan(c, order, start, c.rng.randrange(30), "--cursor", run.files[-1])
    history = [argument for path in run.history() for argument in ("--cursor", path)]
    for _ in range(4):
        checked += check_when(c, c.order, *history)
        checked += check_when(c, order, "--cursor", run.files[-1])
    return run, checked


# ---- bytes from a daemon ----


def expected_rows(c, order, start, rank, world, micro, batches):
    most = order.batches(start, world, micro)
    batches = batches if most is None else min(batches, most)
    positions = [
        p for m in range(batches) for p in ref.rank_positions(start, m, rank, world, micro)
    ]
    return batches, b"".join(c.row(order, p).tobytes() for p in positions)


def check_cat(c, order, daemon, start, *where):
    rng = c.rng
    world, micro = rng.choice([1, 2, 3, 8, 1000]), rng.choice([1, 2, 5, 16])
    rank, batches, out = rng.randrange(world), rng.randrange(12), c.place.file("cursor-out")
    arguments = [
        "cat",
        "train",
        "--rank",
        rank,
        "--world",
        world,
        "--micro",
        micro,
        "--batches",
        batches,
    ]
    arguments += ["--socket", daemon.socket, "--cursor-out", out, *where]
    batches, want = expected_rows(c, order, start, rank, world, micro, batches)
    got = tokctl(*arguments).stdout
    if got != want:
        at = next(
            (i for i, (g, w) in enumerate(zip(got, want)) if g != w), min(len(got), len(want))
        )
        raise Wrong(
            f"tokctl {' '.join(map(str, arguments))}\n{len(got)} bytes (want {len(want)}), differ at {at}"
        )
    check_cursor_file(out, min(start + batches * world * micro, order.end))
    return batches * micro


def check_daemon(c, run):
    """From the beginning, from positions, and from the cursor of the run."""
    daemon = Daemon(c.place, c.path)
    rows = 0
    try:
        rows += check_cat(c, c.begin, daemon, 0, *c.rng.choice([[], ["--start", "begin"]]))
        for start in some_starts(c, c.begin):
            rows += check_cat(c, c.begin, daemon, start, "--start", start)
        for _ in range(3):
            rows += check_cat(c, c.order, daemon, run.next, "--cursor", run.files[-1])
    finally:
        daemon.stop()
    return rows


# ---- the whole ----


def check_configuration(rng):
    with Place() as place:
        c = Configuration(place, rng)
        lines = rows = 0
        for start in some_starts(c, c.order):
            lines += check_plan(c, c.order, start, rng.randrange(60))
        for _ in range(6):
            lines += check_when(c, c.order)
        run, more = check_run(c)
        rows += check_daemon(c, run)
        return lines + more, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--configs", type=int, default=60)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    begun, lines, rows = time.monotonic(), 0, 0
    chosen = range(options.configs) if options.only is None else [options.only]
    for number in chosen:
        try:
            more_lines, more_rows = check_configuration(random.Random(f"{options.seed} {number}"))
        except Wrong as wrong:
            print(f"FAIL  configuration {number} (--seed {options.seed} --only {number}): {wrong}")
            return 1
        lines += more_lines
        rows += more_rows
    seconds = time.monotonic() - begun
    print(
        f"{len(chosen)} configurations: {lines} lines of plan and when, {rows} rows of cat agree, {seconds:.0f} s"
    )
    return 0 if lines and rows else 1


if __name__ == "__main__":
    sys.exit(main())
