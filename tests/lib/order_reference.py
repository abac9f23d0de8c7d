"""An independent implementation of the order, written from its definition alone.

It is simple and slow, with integers that do not wrap. Weights are IEEE doubles by definition.
"""

from dataclasses import dataclass, field
from math import isqrt

M64 = (1 << 64) - 1
TWO64 = 1 << 64
UNITS = 1 << 32
BLOCK = 1024
GOLDEN = 0x9E3779B97F4A7C15
FACTOR_1 = 0xBF58476D1CE4E5B9
FACTOR_2 = 0x94D049BB133111EB
MIX, SHUF, BLK, TAIL, GRP, SLIDE, PART = 1, 2, 3, 4, 5, 6, 7
RUN = 64  # windows


# ---- hashing ----


def mix64(x):
    x ^= x >> 30
    x = x * FACTOR_1 & M64
    x ^= x >> 27
    x = x * FACTOR_2 & M64
    return x ^ x >> 31


def derive(seed, *values):
    h = mix64(seed + GOLDEN & M64)
    for value in values:
        h = mix64((h ^ value) + GOLDEN & M64)
    return h


def name_hash(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & M64
    return h


# ---- a bijection on [0, n) ----


def ceil_div(a, b):
    return -(-a // b)


def sides(n):
    """The rectangle a·b ≥ n that the rounds work in."""
    a = isqrt(n)
    a += a * a < n
    return a, ceil_div(n, a)


def rounds(n):
    return 16 if n < 64 else 8


def scatter(v, k):
    v ^= k
    v = v * FACTOR_1 & M64
    v ^= v >> 32
    v = v * FACTOR_2 & M64
    return v ^ v >> 32


def permute(n, key, x):
    a, b = sides(n)
    while True:
        h, low = divmod(x, a)
        for r in range(rounds(n)):
            k = mix64(key + GOLDEN * (r + 1) & M64)
            if r % 2 == 0:
                h = (h + (scatter(low, k) * b >> 64)) % b
            else:
                low = (low + (scatter(h, k) * a >> 64)) % a
        x = h * a + low
        if x < n:
            return x


def unpermute(n, key, y):
    a, b = sides(n)
    while True:
        h, low = divmod(y, a)
        for r in reversed(range(rounds(n))):
            k = mix64(key + GOLDEN * (r + 1) & M64)
            if r % 2 == 0:
                h = (h - (scatter(low, k) * b >> 64)) % b
            else:
                low = (low - (scatter(h, k) * a >> 64)) % a
        y = h * a + low
        if y < n:
            return y


# ---- weights ----


def units_of(weights):
    """Integer units that sum to 2^32."""
    total = 0.0
    for weight in weights:
        total += weight
    shares = [weight / total * 4294967296.0 for weight in weights]
    units = [int(share) for share in shares]
    fractions = [share - unit for share, unit in zip(shares, units)]
    missing = UNITS - sum(units)
    for d in sorted(range(len(units)), key=lambda d: (-fractions[d], d))[:missing]:
        units[d] += 1
    return units


# ---- the mix ----


def padded(datasets):
    n = 1
    while n < datasets:
        n *= 2
    return n


@dataclass
class Segment:
    start: int
    units: list
    base: list
    phase: dict  # the middle of a node → its phase

    def weight(self, lo, hi):
        return sum(self.units[lo:hi])

    def nodes(self):
        """Every (lo, mid, hi) of the tree."""
        size = padded(len(self.units))
        for mid in range(1, size):
            half = mid & -mid
            yield mid - half, mid, mid + half

    def mixed(self):
        return sum(unit > 0 for unit in self.units) >= 2

    def left_share(self, lo, mid, hi, j):
        """How many of the first j samples of a node go left, and the remainder."""
        return divmod(j * self.weight(lo, mid) + self.phase[mid], self.weight(lo, hi))

    def split(self, j):
        lo, hi = 0, padded(len(self.units))
        while hi - lo > 1:
            mid = (lo + hi) // 2
            left = self.left_share(lo, mid, hi, j)[0]
            if self.left_share(lo, mid, hi, j + 1)[0] > left:
                hi, j = mid, left
            else:
                lo, j = mid, j - left
        return lo, self.base[lo] + j

    def join(self, d, k):
        """The j with split(j) == (d, k); d has units and k ≥ base."""
        j = k - self.base[d]
        lo, hi = d, d + 1
        while hi - lo < padded(len(self.units)):
            size = hi - lo
            if lo // size % 2 == 0:
                mid, hi = hi, hi + size
                j = (
                    ceil_div((j + 1) * self.weight(lo, hi) - self.phase[mid], self.weight(lo, mid))
                    - 1
                )
            else:
                mid, lo = lo, lo - size
                j = (j * self.weight(lo, hi) + self.phase[mid]) // self.weight(mid, hi)
        return j

    def walk(self, j):
        """The counts of every dataset in the first j samples, and the remainder of every node that
        was entered.
        """
        counts, rest = [0] * len(self.units), {}
        self._walk(0, padded(len(self.units)), j, counts, rest)
        return counts, rest

    def _walk(self, lo, hi, j, counts, rest):
        if self.weight(lo, hi) == 0:
            return
        if hi - lo == 1:
            counts[lo] = j
            return
        mid = (lo + hi) // 2
        left, rest[mid] = self.left_share(lo, mid, hi, j)
        self._walk(lo, mid, left, counts, rest)
        self._walk(mid, hi, j - left, counts, rest)


def first_segment(units):
    segment = Segment(0, list(units), [0] * len(units), {})
    segment.phase = {mid: segment.weight(lo, hi) // 2 for lo, mid, hi in segment.nodes()}
    return segment


def next_segment(before, start, units):
    assert start > before.start and start % BLOCK == 0 and len(units) >= len(before.units)
    counts, rest = before.walk(start - before.start)
    new = len(units) - len(before.units)
    base = [base + count for base, count in zip(before.base, counts)] + [0] * new
    segment = Segment(start, list(units), base, {})
    for lo, mid, hi in segment.nodes():
        weight = segment.weight(lo, hi)
        if mid in rest:
            segment.phase[mid] = rest[mid] * weight // before.weight(lo, hi)
        else:
            segment.phase[mid] = weight // 2
    return segment


# ---- within a dataset ----


@dataclass
class Dataset:
    name: str
    shards: list  # sorted (path, tokens)
    shuffle: str = "global"
    block: int = 64
    group: int = 64
    slide: bool = False
    part: tuple = (0, 1)
    # filled in by the order
    first: list = field(default_factory=list)
    windows: int = 0
    of_part: list = field(default_factory=list)  # windows of the path, by their number in the part

    def number(self, window_tokens, stride):
        self.first = [0]
        for _, tokens in self.shards:
            self.first.append(self.first[-1] + shard_windows(tokens, window_tokens, stride))
        self.of_part = windows_of_part(self.first[-1], *self.part)
        self.windows = len(self.of_part)


def windows_of_part(windows, start, end):
    """The numbers of a part's windows among those of the path, run by run."""
    if (start, end) == (0, 1):
        return range(windows)
    runs, key = ceil_div(windows, RUN), derive(0, PART, windows)
    held = range(int(start * UNITS) * runs >> 32, int(end * UNITS) * runs >> 32)
    first = [permute(runs, key, x) * RUN for x in held]
    return [w for run in first for w in range(run, run + RUN) if w < windows]


def shard_windows(tokens, window_tokens, stride):
    return (tokens - window_tokens) // stride + 1 if tokens >= window_tokens else 0


def global_key(dataset, seed, epoch):
    return derive(seed, SHUF, name_hash(dataset.name), epoch)


def block_group(dataset, seed, epoch, x):
    """The first sample, the number of samples and the key of the group that shuffles x."""
    n = dataset.windows
    groups = ceil_div(n, dataset.group * dataset.block)
    g = ((x + 1) * groups - 1) // n
    lo, hi = g * n // groups, (g + 1) * n // groups
    assert lo <= x < hi
    return lo, hi - lo, derive(seed, GRP, name_hash(dataset.name), epoch, g)


def block_tail(dataset, seed, epoch):
    """Position and length of the incomplete block."""
    full, tail = divmod(dataset.windows, dataset.block)
    p = derive(seed, TAIL, name_hash(dataset.name), epoch) * (full + 1) >> 64
    return p * dataset.block, tail


def block_key(dataset, seed, epoch):
    return derive(seed, BLK, name_hash(dataset.name), epoch)


def block_window(dataset, seed, epoch, x):
    lo, count, key = block_group(dataset, seed, epoch, x)
    y = lo + permute(count, key, x - lo)
    at, tail = block_tail(dataset, seed, epoch)
    full = dataset.windows // dataset.block
    if tail > 0 and at <= y < at + tail:
        return full * dataset.block + y - at
    if y >= at + tail:
        y -= tail
    block, rest = divmod(y, dataset.block)
    return permute(full, block_key(dataset, seed, epoch), block) * dataset.block + rest


def block_unwindow(dataset, seed, epoch, window):
    at, tail = block_tail(dataset, seed, epoch)
    full = dataset.windows // dataset.block
    block, rest = divmod(window, dataset.block)
    if block == full:
        y = at + rest
    else:
        y = unpermute(full, block_key(dataset, seed, epoch), block) * dataset.block + rest
        if y >= at:
            y += tail
    lo, count, key = block_group(dataset, seed, epoch, y)
    return lo + unpermute(count, key, y - lo)


def window_of(dataset, seed, epoch, x):
    return dataset.of_part[shuffled(dataset, seed, epoch, x)]


def shuffled(dataset, seed, epoch, x):
    if dataset.shuffle == "none":
        return x
    if dataset.shuffle == "global":
        return permute(dataset.windows, global_key(dataset, seed, epoch), x)
    return block_window(dataset, seed, epoch, x)


def unwindow(dataset, seed, epoch, window):
    """The inverse. None: the window is in another part."""
    if window not in dataset.of_part:
        return None
    window = dataset.of_part.index(window)
    if dataset.shuffle == "none":
        return window
    if dataset.shuffle == "global":
        return unpermute(dataset.windows, global_key(dataset, seed, epoch), window)
    return block_unwindow(dataset, seed, epoch, window)


# ---- the whole function ----


@dataclass
class Place:
    position: int
    dataset: str
    epoch: int
    window: int
    shard: str
    offset: int


class Order:
    """One stream. `epochs` excludes weights and later mixes; `samples` ends any other stream."""

    def __init__(
        self, seed, seq_len, datasets, weights=None, extra=1, stride=None, epochs=0, samples=0
    ):
        self.seed = seed
        self.window_tokens = seq_len + extra
        self.stride = stride or seq_len
        self.datasets = []
        self.epochs = epochs
        for dataset in datasets:
            self._append(dataset)
        if epochs:
            units = [epochs * dataset.windows for dataset in self.datasets]
            self.end = sum(units)
            assert 1 <= self.end < TWO64
        else:
            units = units_of([float(w) for w in weights])
            self.end = samples or TWO64
        self.segments = [first_segment(units)]

    def _append(self, dataset):
        dataset.number(self.window_tokens, self.stride)
        self.datasets.append(dataset)

    # -- edits --

    def add(self, dataset):
        """A new dataset, without weight until the next mix."""
        assert not self.epochs
        self._append(dataset)

    def mix(self, at, weights):
        """New weights from `at` on, one for every dataset known by then."""
        assert not self.epochs and len(weights) == len(self.datasets)
        before = self.segments[-1]
        self.segments.append(next_segment(before, at, units_of([float(w) for w in weights])))

    def with_segments(self, segments):
        """The order as a cursor with only these segments knows it."""
        view = object.__new__(Order)
        view.__dict__.update(self.__dict__)
        view.segments = list(segments)
        return view

    # -- forwards --

    def _segment_of(self, position):
        found = None
        for segment in self.segments:
            if segment.start <= position:
                found = segment
        return found

    def _scramble(self, segment, position, forwards):
        if not segment.mixed():
            return position
        block = position // BLOCK
        count = min(BLOCK, self.end - BLOCK * block) if self.epochs else BLOCK
        turn = permute if forwards else unpermute
        return BLOCK * block + turn(count, derive(self.seed, MIX, block), position % BLOCK)

    def at(self, position):
        """(dataset index, epoch, window), or None at or past the end or before what is known."""
        segment = self._segment_of(position)
        if position >= self.end or segment is None:
            return None
        j = self._scramble(segment, position, True) - segment.start
        d, k = segment.split(j)
        epoch, x = divmod(k, self.datasets[d].windows)
        return d, epoch, window_of(self.datasets[d], self.seed, epoch, x)

    def slide(self, d, epoch, shard):
        dataset = self.datasets[d]
        tokens = dataset.shards[shard][1]
        if not dataset.slide or tokens < self.window_tokens:
            return 0
        slack = (tokens - self.window_tokens) % self.stride
        return derive(self.seed, SLIDE, name_hash(dataset.name), epoch, shard) * (slack + 1) >> 64

    def locate(self, d, epoch, window):
        """Shard index and token offset of a window."""
        first = self.datasets[d].first
        shard = max(s for s in range(len(first) - 1) if first[s] <= window < first[s + 1])
        return shard, (window - first[shard]) * self.stride + self.slide(d, epoch, shard)

    def place(self, position):
        found = self.at(position)
        if found is None:
            return None
        d, epoch, window = found
        shard, offset = self.locate(d, epoch, window)
        dataset = self.datasets[d]
        return Place(position, dataset.name, epoch, window, dataset.shards[shard][0], offset)

    # -- backwards --

    def when(self, d, epoch, window):
        """The position that serves the window, or None."""
        dataset = self.datasets[d]
        x = unwindow(dataset, self.seed, epoch, window)
        if x is None:
            return None
        k = epoch * dataset.windows + x
        known = [s for s in self.segments if d < len(s.base) and s.base[d] <= k]
        if not known or known[-1].units[d] == 0:
            return None
        segment = known[-1]
        after = self.segments.index(segment) + 1
        limit = self.segments[after].start if after < len(self.segments) else TWO64
        scrambled = segment.start + segment.join(d, k)
        if scrambled >= limit:
            return None
        if self.epochs and scrambled >= self.end:
            return None
        position = self._scramble(segment, scrambled, False)
        return position if position < self.end else None

    def holding(self, d, shard, token, epoch):
        """Windows of the shard that hold the token in this epoch."""
        dataset = self.datasets[d]
        cut = self.slide(d, epoch, shard)
        found = []
        for window in range(dataset.first[shard], dataset.first[shard + 1]):
            offset = (window - dataset.first[shard]) * self.stride + cut
            if offset <= token < offset + self.window_tokens:
                found.append(window)
        return found

    # -- ranks --

    def batches(self, cursor, world, micro):
        """Micro-batches of every rank from a cursor on, or None for an endless stream."""
        if self.end == TWO64:
            return None
        return ceil_div(max(0, self.end - cursor), world * micro)


def rank_positions(cursor, m, rank, world, micro):
    """Positions of the m-th micro-batch of a rank."""
    first = cursor + (m * world + rank) * micro
    return range(first, first + micro)
