"""Random configs with real shards, on which `tokctl plan` and `tokctl when` are compared with the
reference order.
"""

import copy
import json
import os
import subprocess

import numpy

from lib import TOKCTL
from lib import order_reference as ref

DTYPES = {"u16": "<u2", "u32": "<u4"}
NAMES = ["web", "code", "math", "b-ooks", "Übersetzung", "wiki/en", "x y"]


CONFIGS = int(os.environ.get("TOKEND_CONFIGS", 60))  # drawn by each test


class Wrong(Exception):
    """A difference, with the command that shows it."""


# ---- a random configuration ----


class Configuration:
    """Shards on disk, a config file that names them, and their order by the reference."""

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
        self.begin = copy.copy(self.order)  # the config's own order; a run may change its mix
        self.begin.segments = list(self.order.segments)
        self.path = self.write("tokend.yaml", self.entries)

    def windows(self, dataset):
        window, stride = self.seq_len + self.extra, self.stride or self.seq_len
        return sum(ref.shard_windows(tokens, window, stride) for _, tokens in dataset.shards)

    def make_order(self):
        """Weights, epochs or samples, in the config's entries and in the reference."""
        if self.rng.random() < 0.25 and all(map(self.windows, self.datasets)):
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
        """Random weights: 0 for a dataset without windows, and none too small to get a unit."""
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
        dataset = ref.Dataset(name, shards, **keys)
        if not dataset.slide and (self.stride or self.seq_len) >= self.seq_len:
            self.divide(dataset, keys)
        self.entries.append({**entry, **keys})
        return dataset

    def divide(self, dataset, keys):
        """Makes the dataset a part of its path, if that has a run."""
        part = sorted(self.rng.choice([0, 1, 0.5, 0.9, self.rng.random()]) for _ in range(2))
        if part[0] < part[1] and len(ref.windows_of_part(self.windows(dataset), *part)):
            dataset.part = keys["part"] = part

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
            0, 50000, tokens, dtype=numpy.uint32
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

    # -- a new dataset --

    def grow(self):
        """Adds a dataset, anywhere in a second config. In the run's order it comes last."""
        at = self.rng.randrange(len(self.begin.datasets) + 1)
        dataset = self.dataset(NAMES[len(self.datasets)])
        self.entries.insert(at, {**self.entries.pop(), "weight": 0})
        self.datasets.append(dataset)
        self.order.add(dataset)
        listed = list(self.begin.datasets)
        listed.insert(at, dataset)
        self.begin = self.reference(listed, [entry["weight"] for entry in self.entries])
        self.path = self.write("grown.yaml", self.entries)

    # -- expected rows --

    def row(self, order, position):
        """The tokens at a position; zeros after the end."""
        place = order.place(position)
        window = self.seq_len + self.extra
        if place is None:
            return numpy.zeros(window, DTYPES[self.dtype])
        return self.tokens[place.dataset, place.shard][place.offset : place.offset + window]


# ---- running tokctl ----


def tokctl(*arguments, ok=(0,)):
    command = [TOKCTL, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60)
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
