"""tokctl and the daemon have the same order, and make the same edits of a cursor, as an independent
implementation (tests/lib/order_reference.py, edits_reference.py).

Each random configuration gets a random chain of edits, which both make or refuse. After each,
segments, ends of datasets, and what `tokctl plan` and `when` print are equal. At the end a daemon
serves the same rows, from cursors and positions, to any rank, world and micro_batch.

TOKEND_SEED repeats a run; TOKEND_CONFIGS makes a longer one.
"""

import collections
import os
import random

import pytest
from configurations import Configuration, tokctl

from lib import Daemon
from lib import edits_reference as edits
from lib import order_reference as ref

CONFIGS = int(os.environ.get("TOKEND_CONFIGS", 60))
FAR = ref.TWO64 - 10**6
counts = collections.Counter()


class Run:
    """Random edits of a cursor file, and the same edits of the reference's cursor."""

    def __init__(self, c):
        self.c, self.cursor, self.files = c, c.cursor, []
        tokctl("cursor", "new", "-c", c.path, "train", "-o", self.file())
        self.check()

    @property
    def path(self):
        return self.files[-1]

    def file(self):
        self.files.append(self.c.place.file(f"cursor-{len(self.files)}"))
        return self.files[-1]

    # -- one edit --

    def edit(self, expected, verb, *arguments):
        """Edits the file; @expected edits the reference. Either both refuse or none."""
        before, to = self.path, self.c.place.file("refused")
        try:
            expected()
        except edits.Refused:
            _, out, err = tokctl("cursor", verb, before, *arguments, "-o", to, ok=(1,))
            said = err.splitlines()
            assert not out and len(said) == 1 and not os.path.exists(to), (verb, arguments, said)
            counts[f"{verb} refused"] += 1
            return
        json = ["--json"] if self.c.rng.random() < 0.5 else []
        _, out, _ = tokctl("cursor", verb, before, *arguments, *json, "-o", self.file())
        differ, changes, _ = tokctl("cursor", "diff", before, self.path, *json, ok=(0, 1))
        assert out == changes, (verb, arguments)
        same = open(before, "rb").read() == open(self.path, "rb").read()
        assert same == (differ == 0), (verb, arguments)
        counts[verb] += 1
        self.check()

    def check(self):
        """Compares the file with the reference."""
        _, (shown,), _ = tokctl("cursor", "show", self.path, "--json")
        cursor = self.cursor
        listed = shown["past"] + shown["segments"]
        got = [(s["start"], s["units"], s["base"]) for s in listed]
        want = [(s.start, cursor.wide(s.units), cursor.wide(s.base)) for s in cursor.segments]
        assert (shown["next"], got) == (cursor.next, want), self.files
        for d, (dataset, about) in enumerate(
            zip(cursor.order.datasets, shown["datasets"], strict=True)
        ):
            ends = (about["max_epochs"], about["ends_at"], about["unserved"])
            limit = cursor.max_epochs.get(dataset.name)
            assert ends == (limit, *(cursor.unserved(d) or (None, None))), self.files
            part = [int(share * ref.UNITS) for share in about["part"] or (0, 1)]
            assert part == [int(share * ref.UNITS) for share in dataset.part], dataset

    # -- the edits --

    def seek(self):
        rng, cursor = self.c.rng, self.cursor
        near = rng.choice(cursor.segments).start + rng.choice([-1, 0, 1, 500, 1024, -1024])
        to = [near, cursor.next + rng.randrange(5000), cursor.order.end + rng.randrange(2), 2**40]
        position = min(max(rng.choice(to), 0), ref.TWO64 - 10**7)
        self.edit(lambda: cursor.seek(position), "seek", "--to", position)

    def skip(self):
        samples = self.c.rng.choice([0, 1, 1023, 1024, self.c.rng.randrange(30000)])
        self.edit(lambda: self.cursor.skip(samples), "skip", "--samples", samples)

    def some_at(self):
        """None: the earliest possible. Sometimes an invalid one."""
        rng, least = self.c.rng, self.cursor.mix_at()
        start = rng.choice(self.cursor.segments).start
        at = rng.choice([None, None, least, least + 1024 * rng.randrange(60), start, least - 1024])
        at = least + 1 if rng.random() < 0.1 else at
        return (least, []) if at is None or at < 0 else (at, ["--at", at])

    def mix(self):
        rng, cursor = self.c.rng, self.cursor
        at, arguments = self.some_at()
        weights = self.c.weights(cursor.order.datasets)
        pairs = zip(cursor.order.datasets, weights)
        named = [f"{d.name}={w!r}" for d, w in pairs if w or rng.random() < 0.5]
        self.edit(lambda: cursor.mix(at, weights), "mix", *arguments, *named)

    def remove(self):
        at, arguments = self.some_at()
        d = self.c.rng.randrange(len(self.cursor.order.datasets))
        name = self.cursor.order.datasets[d].name
        self.edit(lambda: self.cursor.remove(d, at), "remove", name, *arguments)

    def schedule(self):
        """Another schedule, and other limits."""
        c, rng, cursor = self.c, self.c.rng, self.cursor
        steps = [] if c.keys else c.steps(c.datasets, now=cursor.next)
        entries = [{**entry} for entry in c.entries]
        for entry in entries:
            if rng.random() < 0.3:
                entry.pop("max_epochs", None)
            elif rng.random() < 0.3 and "epochs" not in c.keys:
                entry["max_epochs"] = rng.choice([1, 50, 5000])
        limits = {e["name"]: e["max_epochs"] for e in entries if "max_epochs" in e}
        path = c.write("replanned.yaml", entries, steps)
        plan = list(steps)
        if plan and plan[0].at < plan[0].to and plan[0].at < cursor.mix_at():
            # a ramp that has begun starts from the config's weights
            weight = {entry["name"]: entry["weight"] for entry in entries}
            plan.insert(0, edits.Step(0, 0, 1, [weight[d.name] for d in cursor.order.datasets]))
        new = ["cursor", "new", "-c", path, "train", "-o", c.place.file("replanned")]
        if tokctl(*new, ok=(0, 1))[0] == 0:
            self.edit(lambda: cursor.schedule(plan, limits), "schedule", "-c", path)

    def add(self):
        c, cursor = self.c, self.cursor
        if "epochs" in c.keys or len(c.datasets) == 7:
            return
        dataset = c.grow()
        limit = c.max_epochs.get(dataset.name)
        self.edit(lambda: cursor.add(dataset, limit), "add", "-c", c.path)

    # -- the order --

    def starts(self):
        """Interesting positions: around every segment's start, the end, and far away."""
        order, rng = self.cursor.known(), self.c.rng
        first, last = order.segments[0].start, min(order.end, FAR)
        edges = [s.start - 3 for s in order.segments[1:]]
        starts = [first, self.cursor.next, last - rng.randrange(30), rng.randrange(first, last + 1)]
        starts += rng.sample(edges, min(3, len(edges)))
        return [min(max(start, first), order.end) for start in starts]

    def check_order(self):
        """Compares plan and when with the reference."""
        order, rng = self.cursor.known(), self.c.rng
        by = ["-c", self.c.path, "train", "--json"]
        if len(self.files) > 1 or rng.random() < 0.5:  # the config describes the first cursor, too
            by += ["--cursor", self.path]
        for start in self.starts():
            count = 1 + rng.randrange(30)
            _, rows, _ = tokctl("plan", *by, "--from", start, "--count", count)
            places = [order.place(i) for i in range(start, min(start + count, order.end))]
            assert rows == [vars(place) for place in places], (by, start)
            counts["plan"] += len(rows)
            if places:
                d = [dataset.name for dataset in order.datasets].index(places[0].dataset)
                shard = [s for s, _ in order.datasets[d].shards].index(places[0].shard)
                found = self.check_when(order, by, d, shard, places[0].offset, places[0].epoch)
                assert start in found, "the reference contradicts itself"
            d = rng.randrange(len(order.datasets))
            shard = rng.randrange(len(order.datasets[d].shards))
            offset = rng.randrange(order.datasets[d].shards[shard][1])
            epoch = rng.choice([0, 0, 1, rng.randrange(50), rng.getrandbits(40)])
            self.check_when(order, by, d, shard, offset, epoch)

    def check_when(self, order, by, d, shard, offset, epoch):
        """When tokens are served in an epoch: the positions."""
        dataset = order.datasets[d]
        file, total = dataset.shards[shard]
        tokens = min(self.c.rng.choice([1, 1, 5, 200]), total - offset)
        where = ["--dataset", dataset.name, "--shard", file, "--offset", offset]
        where += ["--tokens", tokens, "--epoch", epoch]
        asked = range(offset, offset + tokens)
        windows = {w for token in asked for w in order.holding(d, shard, token, epoch)}
        served = [(order.when(d, epoch, w), w) for w in sorted(windows)]
        want = [{"position": p, "epoch": epoch, "window": w} for p, w in served if p is not None]
        _, rows, _ = tokctl("when", *by, *where, ok=(0,) if want else (1,))
        assert sorted(rows, key=lambda row: row["window"]) == want, (by, where)
        counts["when" if want else "when refused"] += 1
        return [row["position"] for row in want]

    def wander(self):
        self.check_order()
        for _ in range(self.c.rng.randrange(2, 9)):
            kinds = [self.seek, self.skip, self.mix, self.remove, self.schedule, self.add]
            self.c.rng.choices(kinds, [2, 2, 3, 2, 3, 1])[0]()
            if self.c.rng.random() < 0.5:
                self.check_order()
        self.check_order()

    # -- rows from a daemon --

    def check_cat(self, daemon, order, start, *where):
        c, rng = self.c, self.c.rng
        world, micro = rng.choice([1, 2, 3, 8, 1000]), rng.choice([1, 2, 5, 16])
        rank, batches, out = rng.randrange(world), rng.randrange(12), c.place.file("cursor-out")
        arguments = ["--rank", rank, "--world", world, "--micro", micro, "--batches", batches]
        arguments += ["--socket", daemon.socket, "--cursor-out", out, *where]
        _, got, _ = tokctl("cat", "train", *arguments)
        most = order.batches(start, world, micro)
        batches = batches if most is None else min(batches, most)
        positions = [
            p for m in range(batches) for p in ref.rank_positions(start, m, rank, world, micro)
        ]
        assert got == b"".join(c.row(order, p).tobytes() for p in positions), arguments
        _, (shown,), _ = tokctl("cursor", "show", out, "--json")
        assert shown["next"] == min(start + batches * world * micro, order.end), arguments
        counts["rows"] += batches * micro

    def check_daemon(self, first):
        """@first: the order of the config, if that is still the daemon's."""
        daemon = Daemon(self.c.place, self.c.path)
        try:
            if first:
                self.check_cat(daemon, first, 0, *self.c.rng.choice([[], ["--start", "begin"]]))
                for start in (self.c.rng.randrange(5000), max(first.end - 5, 0), FAR):
                    start = min(start, first.end, FAR)
                    self.check_cat(daemon, first, start, "--start", start)
            for _ in range(3):
                at = self.cursor.next
                self.check_cat(daemon, self.cursor.known(), at, "--cursor", self.path)
        finally:
            daemon.stop()


@pytest.mark.parametrize("number", range(CONFIGS))
def test_order_and_edits_equal_the_reference(place, seed, number):
    c = Configuration(place, random.Random(f"{seed} {number}"))
    first, datasets = c.cursor.known(), len(c.datasets)
    run = Run(c)
    run.wander()
    run.check_daemon(first if len(c.datasets) == datasets else None)
    counts["configurations"] += 1


def test_every_edit_was_made():
    """60 configurations include each kind of edit, made and refused."""
    needed = ["seek", "skip", "mix", "remove", "schedule", "add", "plan", "when", "rows"]
    needed += [f"{what} refused" for what in ("seek", "skip", "mix", "remove", "schedule", "when")]
    if counts["configurations"] >= 60:
        assert not [what for what in needed if not counts[what]], counts
