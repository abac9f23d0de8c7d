"""tokctl and the daemon have the same order as an independent implementation,
tests/lib/order_reference.py, on random configurations.

Every configuration has real shards, and is drawn from the seed and its number alone. Compared are
the output of `tokctl plan` and `tokctl when`, with and without edited cursors, and the bytes that
`tokctl cat` gets from a daemon for any rank, world, micro_batch and start.

TOKEND_SEED repeats a run; TOKEND_CONFIGS makes a longer one.
"""

import json
import random

import pytest
from configurations import CONFIGS, NAMES, Configuration, Wrong, check_plan, differs, lines, tokctl

from lib import Daemon
from lib import order_reference as ref


def check_when(c, order, *more):
    """Asks when a random token, served or not, is served in a random epoch."""
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
    """Interesting positions: the beginning, the end, the edges of segments, and far away."""
    rng = c.rng
    last = min(order.end, ref.TWO64 - 10**6)
    starts = [known, last - rng.randrange(1, 30), rng.randrange(known, max(last, known + 1)), last]
    starts += [segment.start - 3 for segment in order.segments if segment.start >= known + 3]
    starts.append(known + rng.randrange(5000))
    return [start for start in starts if known <= start <= order.end]


# ---- cursors ----


class Run:
    """Random edits of a run's cursor, with the history that they make."""

    def __init__(self, c):
        self.c = c
        self.next = 0
        self.pending = False
        self.files = []
        self.knows = []  # the segments of each cursor
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
        if self.pending:  # it never began
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
        """The order by the last cursor alone."""
        return self.c.order.known_from(2 if self.pending else 1)

    def history(self):
        """The cursors without a mix that was replaced before it began."""
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
            f"tokctl {' '.join(map(str, arguments))}\n{len(got)} bytes (want {len(want)}), "
            f"differ at {at}"
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


# ---- a configuration ----


def check_configuration(place, rng):
    c = Configuration(place, rng)
    lines = 0
    for start in some_starts(c, c.order):
        lines += check_plan(c, c.order, start, rng.randrange(60))
    for _ in range(6):
        lines += check_when(c, c.order)
    run, more = check_run(c)
    return lines + more, check_daemon(c, run)


@pytest.mark.parametrize("number", range(CONFIGS))
def test_order_equals_the_reference(place, seed, number):
    """Lines of plan and of when, and rows of cat, agree with the reference."""
    lines, rows = check_configuration(place, random.Random(f"{seed} {number}"))
    assert lines and rows
