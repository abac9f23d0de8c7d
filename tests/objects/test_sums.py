"""Sums of a manifest: pieces of a store that differ from them are fetched again, and no window of a
damaged piece is served.
"""

import contextlib
import copy
import json
import os
import shutil
import subprocess

import pytest
import xxhash
import test_cache
from test_cache import BUCKET, PIECE, WINDOWS, Job, piece_of

from lib import TOKCTL, TOKEND, Client, run, status, wait_until
from lib.fault_proxy import Fault
from lib.injected import injected
from lib.store_faults import OTHER_SUM
from lib.wire import Refused

store = test_cache.store


@pytest.fixture(scope="module")
def summed(store, shared):
    """A manifest with sums."""
    return manifest_with_sums(store, shared, "web")


def manifest_with_sums(store, shared, name):
    job = Job(shared, store, 32 << 20, name=name)
    path = os.path.join(shared.file("summed", ""), f"{name}.jsonl")
    code, out, err = run(
        TOKCTL, "inspect", "-c", job.config, "--manifest", path, "--sums", "--piece", str(PIECE),
        f"lab://{BUCKET}/{name}/", env=job.env(),
    )  # fmt: skip
    assert code == 0, (out, err)
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
    with open(shared.file("plain", "web", "1.bin"), "rb") as file:
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


def test_pieces_of_a_stream_without_sums_are_compared(store, shared, summed):
    """Another stream of this daemon, without sums, has read the damaged piece into the cache."""
    job = Job(shared, store, 32 << 20, dataset={"manifest": summed})
    with open(job.config) as file:
        config = json.load(file)
    plain = copy.deepcopy(config["streams"]["train"])
    plain["datasets"][0]["manifest"] = store.manifests["web"]
    config["streams"]["plain"] = plain
    with open(job.config, "w") as file:
        json.dump(config, file)
    damage(store)
    daemon = job.daemon()
    client = Client(daemon.socket).attach(stream="plain", micro=8, begin=1)
    for _ in range(WINDOWS // 8):
        client.next(60)
    client.close()
    store.proxy.clear()
    job.gets()
    job.read(daemon, WINDOWS)
    assert [piece_of(1, 3)(r) for r in job.gets()] == [True]
    assert daemon.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_damaged_piece_is_not_read_by_window(store, shared, summed):
    """The disk fills up while it is written, so the cache does not take it the next time."""
    job = Job(shared, store, 32 << 20, dataset={"manifest": summed})
    os.mkdir(job.cache, 0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "none", job.cache], check=True
    )
    piece = []

    def flip(request):
        if not piece:
            piece.append((request.path, request.range[0]))
            with contextlib.suppress(OSError), open(f"{job.cache}/other", "wb", 0) as file:
                while file.write(bytes(4096)):
                    pass
        return Fault(flip=4711) if in_piece(request) else None

    def in_piece(request):
        path, at = piece[0]
        return request.path == path and at <= (request.range or [-1])[0] < at + PIECE

    def waits():
        return "does not take a piece" in status(daemon.socket)[0][0]["store_wait"]

    try:
        store.proxy.inject("full", flip, times=2**30, match=lambda r: ".bin" in r.path)
        daemon = job.daemon()
        job.gets()
        client = Client(daemon.socket).attach(micro=8, begin=1)
        wait_until(waits, "a piece that the cache does not take")
        assert [r.range[1] for r in job.gets() if in_piece(r)] == [PIECE]
        client.close()
        assert daemon.stop() == 0
    finally:
        store.proxy.clear()
        subprocess.run(["umount", "-l", job.cache], check=True)


def test_a_damaged_piece_of_a_compressed_shard_stops_the_stream(store, shared):
    listed = manifest_with_sums(store, shared, "zip")
    job = Job(shared, store, 32 << 20, dataset={"manifest": listed}, name="zip")
    damage(store)
    before = store.proxy.injected["flip"]
    daemon = job.daemon()
    with pytest.raises(Refused) as refused:
        job.read(daemon, 560)
    assert "zip/1.bin.zst: piece 3 (bytes" in str(refused.value), refused.value
    flips = store.proxy.injected["flip"] - before
    assert flips >= 3  # each read that needs it
    store.proxy.clear()
    assert daemon.stop() == 0
    injected(OTHER_SUM, flips)


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
