"""Sums of a manifest: pieces of a store that differ from them are fetched again, and no window of a
damaged piece is served.
"""

import os
import shutil
import struct

import pytest
import xxhash
import test_cache
from test_cache import BUCKET, PIECE, PIECES, SHARDS, WINDOWS, Job, piece_of

from lib import TOKEND, run
from lib.fault_proxy import Fault
from lib.injected import injected
from lib.store_faults import OTHER_SUM
from lib.wire import Refused

store = test_cache.store


@pytest.fixture(scope="module")
def summed(store, shared):
    """A manifest with sums, whose file has the documented layout."""
    path = os.path.join(shared.file("summed", ""), "web.jsonl")
    store.manifest(f"{BUCKET}/web/", path, "--sums", "--piece", str(PIECE))
    with open(path[: -len("jsonl")] + "sums", "rb") as file:
        head, sums = struct.unpack("<8sQQQ", file.read(32)), file.read()[16:]
    assert head == (b"tkdsums1", PIECE, SHARDS, PIECES)
    with open(shared.file("root", BUCKET, "web", "0.bin"), "rb") as file:
        first = xxhash.xxh64_intdigest(file.read(PIECE))
    assert sums[:8] == first.to_bytes(8, "little") and len(sums) == 8 * PIECES
    return path


def damage(store, times=2**30):
    """Flips a bit of each answer with piece 3 of shard 1."""
    store.proxy.inject("flip", Fault(flip=4711), times=times, match=piece_of(1, 3))


def test_a_piece_that_differs_from_its_sum_is_fetched_again(store, shared, summed):
    """Manifest and sums are in the store."""
    for name in "web.jsonl", "web.sums":
        shutil.copy(os.path.join(os.path.dirname(summed), name), shared.file("root", BUCKET, name))
    urls = {k: f"lab://{BUCKET}/web.{n}" for k, n in (("manifest", "jsonl"), ("sums", "sums"))}
    job = Job(shared, store, 32 << 20, dataset=urls)
    damage(store, times=2)
    daemon = job.daemon()
    job.read(daemon, WINDOWS)
    assert store.proxy.injected["flip"] == 2
    assert daemon.stop() == 0
    injected(OTHER_SUM, 2)


def test_a_piece_that_stays_different_stops_the_stream(store, shared, summed):
    """Also one that was cached before the sums were there."""
    before = Job(shared, store, 32 << 20)
    job = Job(shared, store, 32 << 20, dataset={"manifest": summed}, cache=before.cache)
    damage(store)
    daemon = before.daemon()
    with pytest.raises(AssertionError):
        before.read(daemon, WINDOWS)
    assert daemon.stop() == 0
    flips = store.proxy.injected["flip"]
    daemon = job.daemon()
    with pytest.raises(Refused) as refused:
        job.read(daemon, WINDOWS)
    with open(shared.file("root", BUCKET, "web", "1.bin"), "rb") as file:
        piece = bytearray(file.read()[3 * PIECE : 4 * PIECE])
    good = xxhash.xxh64_hexdigest(piece)
    piece[4711] ^= 1
    bad = xxhash.xxh64_hexdigest(piece)
    text = str(refused.value)
    assert f"{BUCKET}/web/1.bin: piece 3 (bytes {3 * PIECE} to {4 * PIECE})" in text, text
    assert f"XXH64 {bad}, in the sums of the manifest {good}; restore" in text, text
    assert store.proxy.injected["flip"] - flips == 3
    store.proxy.clear()
    assert daemon.stop() == 0
    injected(OTHER_SUM, 4)


def test_sums_that_cannot_be_used(store, shared, summed):
    with open(summed[: -len("jsonl")] + "sums", "rb") as file:
        good = file.read()
    changed = bytearray(good)
    changed[-1] ^= 1
    other = bytearray(good)
    other[32] ^= 1
    cases = {
        b"": "is not a file of sums",
        good[:-8]: "write it again",
        bytes(changed): "is damaged",
        bytes(other): "are the sums of another manifest",
        good: f"piece: is {2 * PIECE}; write it again with --piece {2 * PIECE}",
        None: "No such file",
    }
    for i, (data, words) in enumerate(cases.items()):
        path = shared.file("summed", f"{i}.sums")
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        keys = {"piece": 2 * PIECE} if data == good else {}
        job = Job(shared, store, 32 << 20, dataset={"manifest": summed, "sums": path, **keys})
        code, out, err = run(TOKEND, "--check", "-c", job.config, env=job.env())
        assert code == 1 and len(err.splitlines()) == 1, (out, err)
        assert ".datasets[0].sums: " in err and f"{path}: " in err and words in err, err
    sums = {"manifest": summed, "sums": summed[: -len("jsonl")] + "sums"}
    for fetch, words in ("piece", "compared with their sums"), ("window", "sums: is not used"):
        job = Job(shared, store, 32 << 20, dataset={**sums, "fetch": fetch})
        code, out, err = run(TOKEND, "--check", "-c", job.config, env=job.env())
        assert code == 0 and words in out.decode(), (out, err)
