"""Shards that are overwritten, replaced, cut or deleted while streams read them: each rank gets the
original tokens, or an error that names the shard; other streams do not notice. A shard of which
only metadata changes is served on. With the shard restored, a reload continues at the cursor.
"""

import os
import shutil
import time

import numpy
import pytest

from lib import MODES, Client, Daemon, Refused, Witness, datasets, mode_name, rank_rows, rows_at
from lib.injected import injected
from lib.shard_writers import megatron, raw, seekable
from lib.wire import DATA

SEQ_LEN, TOKENS, SHARDS = 512, 40_000, 4
WINDOW = SEQ_LEN + 1
WINDOWS = (TOKENS - WINDOW) // SEQ_LEN + 1  # of a shard
WORLD, MICRO, SLOTS = 2, 2, 4
BEFORE = 5  # batches of each rank before the fault
DOCUMENT = 1000  # tokens

# ---- datasets: each returns the file of shard @number that will be changed ----


def plain(place, name, number):
    return place.file(name, f"{number}.bin")


def masked(place, name, number):
    for i in range(SHARDS):
        numpy.ones(TOKENS, "u1").tofile(place.file(f"{name}-masks", f"{i}.bin"))
    return place.file(f"{name}-masks", f"{number}.bin")


def indexed(place, name, number):
    for i in range(SHARDS):
        tokens = numpy.fromfile(place.file(name, f"{i}.bin"), "<u2")
        megatron(place.file(name, f"{i}"), tokens.reshape(-1, DOCUMENT), tokens.dtype)
    return place.file(name, f"{number}.idx")


def compressed(place, name, number):
    for i in range(SHARDS):
        shard = place.file(name, f"{i}.bin")
        seekable(".zst", raw, 8192)(shard, numpy.fromfile(shard, "<u2"))
        os.unlink(shard)
    return place.file(name, f"{number}.bin.zst")


KEYS = {masked: {"loss_mask": True}, indexed: {"documents": True}}

# ---- faults: (the file, an unused path outside of the dataset) ----


def zeros(path, other):
    """Another file with the same size and mtime."""
    st = os.stat(path)
    with open(other, "wb") as f:
        f.write(bytes(st.st_size))
    os.utime(other, ns=(st.st_atime_ns, st.st_mtime_ns))


def inverted(path, other):
    """In place."""
    with open(path, "r+b") as f:
        whole = bytes(255 - byte for byte in f.read())
        f.seek(0)
        f.write(whole)


def half_written(path, other):
    with open(path, "r+b") as f:
        f.write(bytes(os.path.getsize(path) // 2))
    os.utime(path, ns=(0, time.time_ns() + 1))


def copied_over(path, other):
    """As `cp other shard` does: truncated, then written to the same length."""
    zeros(path, other)
    shutil.copyfile(other, path)


def cut(path, other):
    os.truncate(path, os.path.getsize(path) // 4 * 2)


def replaced(path, other):
    zeros(path, other)
    os.rename(other, path)


def deleted(path, other):
    os.unlink(path)


def fifo(path, other):
    os.unlink(path)
    os.mkfifo(path)


def touched(path, other):
    os.chmod(path, 0o600)
    os.link(path, other)
    os.rename(path, f"{other}.renamed")
    os.rename(f"{other}.renamed", path)


OPEN, LATER = 0, 3  # the number of the shard: open when the fault comes, or not yet
WRITTEN = "while it was open"
LISTED = "not the file that tokend listed"
CASES = [  # dataset, order, shard, fault, words of the error
    (plain, "none", OPEN, inverted, WRITTEN),
    (plain, "none", OPEN, half_written, WRITTEN),
    (plain, "none", OPEN, copied_over, WRITTEN),
    (plain, "none", OPEN, cut, "truncated"),
    (plain, "none", OPEN, replaced, "removed or replaced"),
    (plain, "none", OPEN, deleted, "removed or replaced"),
    (plain, "none", LATER, cut, LISTED),
    (plain, "none", LATER, replaced, LISTED),
    (plain, "none", LATER, half_written, LISTED),
    (plain, "none", LATER, deleted, "No such file"),
    (plain, "none", LATER, fifo, LISTED),
    (plain, "global", OPEN, inverted, WRITTEN),
    (masked, "none", OPEN, inverted, WRITTEN),
    (indexed, "none", OPEN, inverted, WRITTEN),
    (compressed, "none", OPEN, inverted, WRITTEN),
    (compressed, "none", OPEN, copied_over, WRITTEN),
    (plain, "none", OPEN, touched, None),
]
NAMES = [f"{kind.__name__}-{order}-{n}-{fault.__name__}" for kind, order, n, fault, _ in CASES]


class Node:
    """A daemon with a stream for each case, and one of which no shard changes."""

    def __init__(self, place, io, direct):
        self.place, self.victims, self.tokens, streams = place, {}, {}, {}
        common = {"seed": 3, "seq_len": SEQ_LEN, "epochs": 100}
        for name, (kind, order, number, *_) in zip(NAMES, CASES):
            shards = [place.shard(f"{name}/{i}.bin", TOKENS) for i in range(SHARDS)]
            self.tokens[name] = [numpy.fromfile(path, "<u2") for path in shards]
            self.victims[name] = kind(place, name, number)
            dataset = {"name": "d", "path": name, "shuffle": order}
            if kind is masked:
                dataset["label_mask"] = f"{name}-masks"
            streams[name] = {**common, **KEYS.get(kind, {}), "datasets": [dataset]}
        place.shard("calm/a.bin", TOKENS)
        streams["calm"] = {**common, "datasets": datasets("calm")}
        self.config = place.config(io=io, direct=direct, streams=streams)
        self.daemon = Daemon(place, self.config)
        self.attach_calm()

    def attach_calm(self):
        self.calm = Witness(self.daemon, rows_at(self.config, "calm", 0, 4000), stream="calm")

    def rows_of(self, name, order):
        if order == "global":
            return rows_at(self.config, name, 0, 2 * SHARDS * WINDOWS)
        windows = [t[i * SEQ_LEN :][:WINDOW] for t in self.tokens[name] for i in range(WINDOWS)]
        return numpy.stack(windows * 2)

    def reload(self):
        self.daemon.reload()
        self.attach_calm()


@pytest.fixture(scope="module", params=MODES, ids=mode_name)
def node(request, shared, uring):
    io, direct = request.param
    if io == "uring" and uring:
        pytest.skip(f"io: uring: {uring}")
    made = Node(shared, io, direct)
    yield made
    made.calm.close()
    assert made.daemon.stop() == 0
    for name in (*NAMES, "others"):
        shutil.rmtree(shared.file(name))


class Rank:
    def __init__(self, node, stream, rank, rows, at=0):
        keys = {"micro": MICRO, "slots": SLOTS, "rank": rank, "world": WORLD, "position": at}
        self.client = Client(node.daemon.socket).attach(stream=stream, **keys)
        self.want = rank_rows(rows[at:], rank, WORLD, MICRO)
        self.read = 0

    def step(self, count):
        """Wrong tokens, masks or documents fail the test."""
        for _ in range(count):
            self.client.wait()
            number = self.client.batch
            if self.client.loss_mask:
                assert self.client.row_masks(number).all()
            for row in self.client.row_documents(number) if self.client.documents else []:
                assert all(b - a == DOCUMENT for a, b in zip(row, row[1:]))
            assert numpy.array_equal(self.client.next(), self.want[self.read]), self.read
            self.read += 1

    def error(self):
        with pytest.raises(Refused) as refused:
            self.step(len(self.want) - self.read)
        assert self.client.last_words() == []
        self.client.close()
        return refused.value.packet


def stopped(node, name, rows, ranks, number, words):
    """All ranks stop at the fault. Until it is mended nobody goes on. Returns where."""
    for rank in ranks:
        error = rank.error()
        assert (error["code"], error["field"]) == (DATA, "dataset d"), error
        assert f"{number}." in error["text"] and words in error["text"], error
        assert "stops here, nothing was skipped" in error["text"] and "\n" not in error["text"]
        most = number * WINDOWS // (WORLD * MICRO) + 1 if number else BEFORE + 4 * SLOTS
        assert rank.read <= most, "no batch after the fault, except those in the ring"
    at = min(rank.read for rank in ranks) * WORLD * MICRO
    try:
        again = Rank(node, name, 0, rows, at)
        again.error()
        assert again.read <= SLOTS
    except Refused as refused:
        assert f"kill -HUP {node.daemon.pid}" in refused.packet["text"]
    return at


@pytest.mark.parametrize("name", NAMES)
def test_no_token_of_a_changed_shard_is_served(node, name):
    kind, order, number, fault, words = CASES[NAMES.index(name)]
    rows, victim = node.rows_of(name, order), node.victims[name]
    ranks = [Rank(node, name, rank, rows) for rank in range(WORLD)]
    for rank in ranks:
        rank.step(BEFORE)
    assert (victim in node.daemon.opened()) == (number == OPEN)
    kept, before = shutil.copy2(victim, node.place.file("kept")), os.stat(victim)
    fault(victim, node.place.file("others", name))
    injected(10 if fault is cut else 12)
    if words is None:
        assert os.stat(victim).st_ctime_ns != before.st_ctime_ns
        for rank in ranks:
            rank.step(60)
    else:
        at = stopped(node, name, rows, ranks, number, words)
        assert node.calm.step(10), "another stream goes on"
        if os.path.lexists(victim):
            os.unlink(victim)
        shutil.move(kept, victim)
        node.reload()
        ranks = [Rank(node, name, rank, rows, at) for rank in range(WORLD)]
        for rank in ranks:
            rank.step(40)
    for rank in ranks:
        rank.client.close()
