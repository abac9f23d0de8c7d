"""Random configs with real shards, and their order and first cursor by the reference."""

import json
import os

import numpy

from lib import TOKCTL, run
from lib import edits_reference as edits
from lib import order_reference as ref

BLOCK = ref.BLOCK
DTYPES = {"u16": "<u2", "u32": "<u4"}
NAMES = ["web", "code", "math", "b-ooks", "Übersetzung", "wiki/en", 'a "b\\c" é']
PATHS = [  # of a dataset, and the shards that it may have
    ("", ["a.bin", "a/b.bin", "a-b.bin", "B.bin", "a/c/d.bin", "é.bin", "10.bin", "9.bin"]),
    ("/*.bin", ["0.bin", "1.bin", "10.bin", "2.bin"]),
    ("/part-*/t.bin", ["part-1/t.bin", "part-2/t.bin", "part-10/t.bin"]),
    ("/one.bin", ["one.bin"]),
]


def tokctl(*arguments, ok=(0,)):
    """Its exit code, lines of stdout as JSON or text, and lines of stderr."""
    code, out, err = run(TOKCTL, *arguments)
    assert code in ok, (code, *arguments, err)
    lines = out.decode().splitlines() if arguments[0] != "cat" else out
    return code, [json.loads(x) for x in lines] if "--json" in arguments else lines, err


class Configuration:
    """Shards, a config that names them, and the reference's first cursor."""

    def __init__(self, place, rng):
        self.place, self.rng = place, rng
        self.dtype = rng.choice(["u16", "u32"])
        self.seq_len = rng.randrange(1, 48)
        self.extra = rng.randrange(4)
        self.stride = rng.choice([None, self.seq_len, rng.randrange(1, 2 * self.seq_len + 1)])
        self.seed = rng.choice([rng.getrandbits(64), rng.randrange(100)])
        self.window = self.seq_len + self.extra
        self.keys = {}  # of the stream
        self.tokens = {}  # (dataset, shard) → array
        self.entries, self.max_epochs = [], {}
        self.directories = 0
        count = rng.randrange(1, 7)
        while True:
            self.datasets = [self.dataset(name) for name in NAMES[:count]]
            if any(self.windows(d) for d in self.datasets):
                break
            self.entries.clear()
        self.plan, self.cursor = self.begin()
        self.path = self.write("tokend.yaml", self.entries, self.plan)

    # -- shards --

    def windows(self, dataset):
        stride = self.stride or self.seq_len
        return sum(ref.shard_windows(tokens, self.window, stride) for _, tokens in dataset.shards)

    def dataset(self, name):
        rng = self.rng
        pattern, shards = rng.choice(PATHS)
        self.directories += 1
        directory = f"data-{self.directories}"
        keys = {}
        if rng.random() < 0.8:
            keys["shuffle"] = rng.choice(["none", "global", "block"])
        if keys.get("shuffle") == "block" and rng.random() < 0.8:
            keys["block"] = rng.choice([1, 2, 3, 8, 50, 1000, 2**31])
            keys["group"] = rng.choice([1, 3, 64])
        if rng.random() < 0.4:
            keys["slide"] = True
        shards = rng.sample(shards, rng.randrange(1, len(shards) + 1))
        shards = [(s, self.shard(name, os.path.join(directory, s), s)) for s in shards]
        dataset = ref.Dataset(name, sorted(shards, key=lambda pair: pair[0].encode()), **keys)
        if not dataset.slide and (self.stride or self.seq_len) >= self.seq_len:
            self.divide(dataset, keys)
        self.max_epochs.pop(name, None)  # of a dataset that was drawn and discarded
        if rng.random() < 0.5:
            keys["max_epochs"] = rng.choice([1, 3, 40, 300, 3000, 10**6, 2**64 - 1])
            self.max_epochs[name] = keys["max_epochs"]
        self.entries.append(
            {"name": name, "path": directory + pattern, "dtype": self.dtype, **keys}
        )
        return dataset

    def divide(self, dataset, keys):
        """Makes the dataset a part of its path, if that has a run."""
        part = sorted(self.rng.choice([0, 1, 0.5, 0.9, self.rng.random()]) for _ in range(2))
        if part[0] < part[1] and len(ref.windows_of_part(self.windows(dataset), *part)):
            dataset.part = keys["part"] = part

    def shard(self, dataset, path, shard):
        most = self.rng.choice([self.window + 2, 40 * self.window])
        tokens = self.rng.randrange(1, most)
        values = numpy.random.default_rng(self.rng.getrandbits(63)).integers(0, 50000, tokens)
        self.tokens[dataset, shard] = values.astype(DTYPES[self.dtype])
        self.tokens[dataset, shard].tofile(self.place.file(path))
        return tokens

    # -- weights, schedules and limits --

    def weights(self, datasets):
        """Random weights: 0 for a dataset without windows, and none too small to get a unit."""
        rng = self.rng
        kinds = [0, 1, 0.05, 1e-05, rng.random(), rng.uniform(0, 1000), rng.randrange(1, 10**6)]
        while True:
            weights = [rng.choice(kinds) if self.windows(d) else 0 for d in datasets]
            if any(weights) and all(u or not w for u, w in zip(ref.units_of(weights), weights)):
                return weights

    def steps(self, datasets, now=0):
        """A random schedule; some of its steps may be in the past."""
        rng = self.rng
        found, at = [], BLOCK * rng.choice([0, 0, 1, now // BLOCK, rng.randrange(40)])
        for _ in range(rng.randrange(6)):
            room = rng.choice([1, 2, 7, 60, 2**30])
            if rng.random() < 0.5:
                steps = rng.randrange(1, min(room, 8) + 1)
                found.append(edits.Step(at, at + room * BLOCK, steps, self.weights(datasets)))
                at += room * BLOCK
            else:
                at += BLOCK * rng.choice([1, 3, 50])
                found.append(edits.Step(at, at, 1, self.weights(datasets)))
            at += BLOCK * rng.choice([0, 0, 1, 20])
        return found

    def begin(self):
        """A schedule and the first cursor: in some streams with epochs or samples."""
        rng = self.rng
        if rng.random() < 0.25 and all(map(self.windows, self.datasets)):
            self.keys["epochs"] = rng.randrange(1, 4)
            self.drop_limits()
            return [], edits.Cursor(self.reference(None), {}, None, [])
        if rng.random() < 0.3:
            self.keys["samples"] = rng.choice([rng.randrange(1, 50), rng.randrange(1, 10**5)])
        for _ in range(12):
            weights = self.weights(self.datasets)
            for entry, weight in zip(self.entries, weights):
                entry["weight"] = weight
            plan = [] if "samples" in self.keys else self.steps(self.datasets)
            try:
                return plan, edits.Cursor(self.reference(weights), self.max_epochs, weights, plan)
            except edits.Refused:
                continue  # too small a weight, or no dataset is left
        self.drop_limits()  # with them no dataset would be left, whatever the weights
        return plan, edits.Cursor(self.reference(weights), {}, weights, plan)

    def drop_limits(self):
        self.max_epochs = {}
        for entry in self.entries:
            entry.pop("max_epochs", None)

    def reference(self, weights):
        keys = {"extra": self.extra, "stride": self.stride, **self.keys}
        return ref.Order(self.seed, self.seq_len, list(self.datasets), weights, **keys)

    # -- the file --

    def entry_of(self, step):
        given = zip(self.datasets, step.weights)
        weights = {d.name: w for d, w in given if w or self.rng.random() < 0.3}
        if step.at == step.to:
            return {"at": step.at, "weights": weights}
        return {"from": step.at, "to": step.to, "steps": step.steps, "weights": weights}

    def write(self, name, entries, plan):
        """Writes a config. `entries` are its datasets."""
        stream = {"seed": self.seed, "seq_len": self.seq_len, "extra": self.extra, **self.keys}
        stream["datasets"] = entries
        if self.stride:
            stream["stride"] = self.stride
        if plan:
            stream["schedule"] = [self.entry_of(step) for step in plan]
        return self.place.config(name, streams={"train": stream}, memory=1 << 26)

    def grow(self):
        """Adds a dataset, anywhere in a second config. In the cursor's order it comes last."""
        dataset = self.dataset(NAMES[len(self.datasets)])
        entry = {**self.entries.pop(), "weight": 0}
        self.entries.insert(self.rng.randrange(len(self.entries) + 1), entry)
        self.datasets.append(dataset)
        self.path = self.write("grown.yaml", self.entries, self.plan)
        return dataset

    # -- expected rows --

    def row(self, order, position):
        """The tokens at a position; zeros after the end."""
        place = order.place(position)
        if place is None:
            return numpy.zeros(self.window, DTYPES[self.dtype])
        return self.tokens[place.dataset, place.shard][place.offset :][: self.window]
