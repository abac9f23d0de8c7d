"""An independent implementation of the edits of a cursor, written from proto/cursor.h alone.

It adds to order_reference.py a run's past, current and pending segments, schedules and max_epochs.
Two questions that the header leaves open are answered so: datasets keep the ratio of the weights as
given, or that of the units if a mix has no others (one in force, or in the middle of a ramp). The
limits apply to the samples served by the end of a block.
"""

from dataclasses import dataclass

from lib import order_reference as ref

BLOCK = ref.BLOCK


class Refused(Exception):
    """The edit is refused, and nothing has changed."""


@dataclass
class Step:
    """A planned change of the mix; a jump if `at` and `to` are equal."""

    at: int
    to: int
    steps: int
    weights: list


def ramp(before, after, k, steps):
    """Units after k of the steps."""
    sums = [b * (steps - k) + a * k for b, a in zip(before, after)]
    units = [s // steps for s in sums]
    missing = ref.UNITS - sum(units)
    for d in sorted(range(len(sums)), key=lambda d: (-(sums[d] % steps), d))[:missing]:
        units[d] += 1
    return units


def points(before, steps):
    """(position, weights) of every change that the steps make, starting from units."""
    found = []
    for step in steps:
        after = ref.units_of([float(w) for w in step.weights])
        for k in range(1, step.steps + 1):
            at = step.at + (step.to - step.at) * k // step.steps
            weights = step.weights if k == step.steps else ramp(before, after, k, step.steps)
            found.append((at // BLOCK * BLOCK, [float(w) for w in weights]))
        before = after
    return found


class Layout:
    """The segments that follow from points and limits."""

    def __init__(self, cursor, current, floor):
        self.cursor, self.floor = cursor, floor
        self.segments = [current] if current else []

    def beyond(self, segment, d):
        """The start of the first block that would exceed the limit of d, or None."""
        limit = self.cursor.limit(d)
        if limit is None or d >= len(segment.units) or segment.units[d] == 0:
            return None
        limit = max(limit, segment.base[d])
        first, most = segment.start // BLOCK, ref.TWO64 // BLOCK

        def takes(m):
            end = min((m + 1) * BLOCK, ref.TWO64 - 1)  # the last position is never served
            return segment.base[d] + segment.walk(end - segment.start)[0][d] > limit

        if not takes(most - 1):
            return None
        low, high = first, most - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if takes(middle) else (middle + 1, high)
        return low * BLOCK

    def gone(self, segment, at):
        """Datasets whose limit the block at `at`, or an earlier one, would exceed."""
        blocks = {d: self.beyond(segment, d) for d in range(len(segment.units))}
        return [d for d, block in blocks.items() if block is not None and block <= at]

    def place(self, at, weights, asked=False):
        """Adds a mix from `at` on; returns the weights that the limits leave of it."""
        while True:
            if not any(weights):
                raise Refused(f"no dataset is left from {at} on")
            units = ref.units_of(weights)
            if any(weight and not unit for weight, unit in zip(weights, units)):
                raise Refused("a weight is too small a part of the sum")
            before = self.segments[-1] if self.segments else None
            segment = ref.next_segment(before, at, units) if before else ref.first_segment(units)
            gone = self.gone(segment, at)
            if not gone:
                known = before and before.units + [0] * (len(units) - len(before.units))
                if asked or units != known:
                    self.segments.append(segment)
                return weights
            if asked:
                raise Refused(f"dataset {gone[0]} is served by {at}")
            weights = [0.0 if d in gone else w for d, w in enumerate(weights)]

    def follow(self, weights, until):
        """Adds the mixes that the limits cause after the last one, before `until`."""
        while True:
            last = self.segments[-1]
            blocks = [self.beyond(last, d) for d in range(len(last.units))]
            blocks = [max(block, self.floor) for block in blocks if block is not None]
            if not blocks or min(blocks) >= until:
                return
            at = min(blocks)
            gone = self.gone(last, at)
            weights = self.place(at, [0.0 if d in gone else w for d, w in enumerate(weights)])


class Cursor:
    """A cursor: position, past, current and pending segments, limits."""

    def __init__(self, order, max_epochs, weights, steps):
        """`order`: datasets and identity; `max_epochs`: by name, of those that have a limit."""
        self.order, self.max_epochs, self.next = order, dict(max_epochs), 0
        self.segments = []
        if order.epochs:
            self.segments = list(order.segments)
            return
        weights = [float(w) for w in weights]
        self.lay_out([(0, weights), *points(ref.units_of(weights), steps)])

    def limit(self, d):
        epochs = self.max_epochs.get(self.order.datasets[d].name)
        return None if epochs is None else epochs * self.order.datasets[d].windows

    def wide(self, units):
        return list(units) + [0] * (len(self.order.datasets) - len(units))

    def known(self):
        """The part of the order that this cursor describes."""
        return self.order.with_segments(self.segments)

    # -- laying out --

    def past(self):
        """The number of segments before the current one."""
        return sum(segment.start <= self.next for segment in self.segments) - 1

    def now(self):
        return self.segments[self.past()]

    def mix_at(self):
        least = max(self.next, self.now().start + 1)
        return ref.ceil_div(least, BLOCK) * BLOCK

    def lay_out(self, planned, asked=False):
        past = self.segments[: self.past()] if self.segments else []
        current = self.now() if self.segments else None
        layout = Layout(self, current, self.mix_at() if current else 0)
        starts = [at for at, _ in planned]
        ends = [min(at, self.order.end) for at in starts] + [self.order.end]
        if current:
            layout.follow([float(u) for u in self.wide(current.units)], ends[0])
        for i, (at, weights) in enumerate(planned):
            left = layout.place(at, list(weights), asked and i + 1 == len(planned))
            layout.follow(left, ends[i + 1])
        self.segments = past + layout.segments

    # -- edits --

    def seek(self, position):
        if position < self.segments[0].start or position > self.order.end:
            raise Refused(f"{position} is not known")
        self.next = position

    def skip(self, samples):
        self.seek(self.next + samples)

    def check_at(self, at):
        if self.order.epochs or at % BLOCK or at < self.mix_at():
            raise Refused(f"no mix can act from {at} on")

    def mix(self, at, weights):
        self.check_at(at)
        self.lay_out([(at, [float(w) for w in weights])], asked=True)

    def add(self, dataset, max_epochs=None):
        self.order.add(dataset)
        if max_epochs is not None:
            self.max_epochs[dataset.name] = max_epochs

    def remove(self, d, at):
        self.check_at(at)
        ahead = self.segments[self.past() + 1 :]
        pending = [(s.start, [float(u) for u in self.wide(s.units)]) for s in ahead]
        force = [s for s in self.segments if s.start <= at][-1]
        if force.start < at:
            pending.append((at, [float(u) for u in self.wide(force.units)]))
            pending.sort()
        if not any(start >= at and weights[d] for start, weights in pending):
            raise Refused(f"dataset {d} has no weight from {at} on")
        for start, weights in pending:
            if start >= at:
                weights[d] = 0.0
        self.lay_out(pending)

    def schedule(self, steps, max_epochs):
        if self.order.epochs:
            raise Refused("the mix of a finite stream cannot change")
        former, self.max_epochs = self.max_epochs, dict(max_epochs)
        try:
            least = self.mix_at()
            planned = points(self.wide(self.now().units), steps)
            passed = [weights for at, weights in planned if at <= least]
            ahead = [(at, weights) for at, weights in planned if at > least]
            self.lay_out([(least, passed[-1]), *ahead] if passed else ahead)
        except Refused:
            self.max_epochs = former
            raise

    # -- samples never served --

    def unserved(self, d):
        """(position, windows): where a dataset with max_epochs ends, and how many windows its limit
        leaves unserved; or None.
        """
        if self.limit(d) is None:
            return None
        served = [i for i, s in enumerate(self.segments) if self.wide(s.units)[d] > 0]
        after = served[-1] + 1 if served else 0
        if after == len(self.segments) or self.segments[after].start >= self.order.end:
            return None
        segment = self.segments[after]
        left = max(0, self.limit(d) - self.wide(segment.base)[d])
        return segment.start, min(left, ref.M64)  # a number of 64 bits, as all are
