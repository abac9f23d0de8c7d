"""Piece mode: datasets in a store are read through a cache on the disk, with the same bytes.

A piece is fetched once while it fits, and is kept over a restart. A cache that is smaller than the
dataset fetches about the part that does not fit, an epoch.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy
import pytest

from lib import TOKCTL, TOKEND, Client, Daemon, rows_at, run, status, wait_until
from lib.fault_proxy import Fault, FaultProxy
from lib.stores import Hadro

BUCKET, SEQ, PIECE = "corpus", 1024, 64 << 10
SHARDS, SHARD_BYTES = 4, 3 << 20
WINDOW_BYTES = 2 * SEQ
SHARD_WINDOWS = SHARD_BYTES // WINDOW_BYTES
WINDOWS = SHARDS * SHARD_WINDOWS
PIECES = SHARDS * SHARD_BYTES // PIECE


@pytest.fixture(scope="module")
def store(shared):
    root = shared.file("root", "")
    for i in range(SHARDS):
        shared.shard(f"root/{BUCKET}/web/{i}.bin", SHARD_BYTES // 2, seed=i)
    with Hadro(shared, root) as store, FaultProxy(store.port) as store.proxy:
        store.listed = store.manifest(f"{BUCKET}/web/", shared.file("web.jsonl"))
        yield store


class Job:
    """A config with a cache, and the same streams on the disk."""

    made = 0

    def __init__(self, place, store, size, dataset=None, users=None, cache=None, **keys):
        Job.made += 1
        self.place, self.store, self.name = place, store, f"j{Job.made}"
        self.cache = cache or place.file(f"{self.name}.cache")
        shuffle = {"shuffle": "global", "piece": PIECE, **(dataset or {})}
        disk = {"name": "d", "path": place.file("root", BUCKET, "web"), **shuffle}
        for key in "piece", "fetch", "manifest":
            disk.pop(key, None)
        stored = {"name": "d", "path": f"lab://{BUCKET}/web/", "manifest": store.listed, **shuffle}

        def streams(of):
            return {"train": {"seed": 3, "seq_len": SEQ, "extra": 0, "datasets": [of], **keys}}

        self.config = place.config(
            f"{self.name}.yaml",
            socket=place.file(f"{self.name}.sock"),
            state_dir=place.file(f"{self.name}.state", ""),
            stores={"lab": {"endpoint": store.proxy.endpoint}},
            cache={"dir": self.cache, "size": size},
            memory=64 << 20,
            **({"allow_uids": users} if users else {}),
            streams=streams(stored),
        )
        self.local = place.config(f"{self.name}.disk.yaml", streams=streams(disk))

    def env(self):
        return self.store.environment()

    def daemon(self):
        return Daemon(self.place, self.config, env=self.env())

    def read(self, daemon, windows, at=0):
        """Compares the windows from position @at on with those on the disk."""
        rows = rows_at(self.local, "train", at, windows)
        begin = {"position": at} if at else {"begin": 1}
        client = Client(daemon.socket).attach(micro=8, **begin)
        for i in range(0, windows - 7, 8):
            batch = client.next(60)
            assert numpy.array_equal(batch, rows[i : i + 8]), at + i
        client.close()

    def gets(self):
        """GETs of shards since the last call."""
        asked = [r for r in self.store.proxy.requests if r.method == "GET" and ".bin" in r.path]
        new = asked[getattr(self, "seen", 0) :]
        self.seen, self.seen_last = len(asked), new
        return new

    def disk_bytes(self):
        return sum(
            os.lstat(os.path.join(root, name)).st_blocks * 512
            for root, _, names in os.walk(self.cache)
            for name in names
        )


def whole_pieces(requests):
    return all(
        r.range[0] % PIECE == 0 and r.range[1] in (PIECE, SHARD_BYTES % PIECE) for r in requests
    )


def test_a_cache_that_fits_fetches_each_piece_once(store, shared):
    job = Job(shared, store, 32 << 20)
    code, out, err = run(TOKEND, "--check", "-c", job.config, env=store.environment())
    assert code == 0, err
    assert "read in pieces of 64 KiB: the cache has space for all of it" in out.decode(), out
    job.gets()
    daemon = job.daemon()
    job.read(daemon, 2 * WINDOWS)
    got = job.gets()
    assert whole_pieces(got)
    assert PIECES <= len(got) <= PIECES + SHARDS, len(got)
    daemon.kill()
    daemon = job.daemon()
    job.read(daemon, WINDOWS, at=4096)
    assert job.gets() == []
    (about,) = status(daemon.socket)[1]["stores"]
    assert about["used_bytes"] >= WINDOWS * WINDOW_BYTES > about["bytes"], "also of cached pieces"
    assert daemon.stop() == 0
    assert job.disk_bytes() <= (32 << 20) + 65536


def test_a_damaged_cache_gives_no_wrong_byte(store, shared):
    job = Job(shared, store, 32 << 20)
    daemon = job.daemon()
    job.read(daemon, WINDOWS)
    other = [TOKEND, "-c", job.config, "--socket", job.config + ".s"]
    code, out, err = run(*other, env=job.env())
    assert code == 1 and "another daemon uses it" in err, (out, err)
    daemon.kill()
    damaged = 0
    for root, _, names in os.walk(job.cache):
        for name in names:
            if name.endswith(".5"):
                with open(os.path.join(root, name), "r+b") as f:
                    f.seek(77)
                    byte = f.read(1)
                    f.seek(-1, os.SEEK_CUR)
                    f.write(bytes([byte[0] ^ 4]))
                damaged += 1
    assert damaged == SHARDS
    job.gets()
    daemon = job.daemon()
    job.read(daemon, WINDOWS)
    assert len(job.gets()) == damaged
    assert len(daemon.said(" differs from its sum; it is fetched again")) == 1, daemon.log()
    assert daemon.stop() == 0


def listed(daemon):
    code, out, err = run(TOKCTL, "cache", "ls", "--json", "--socket", daemon.socket)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_a_dataset_is_listed_and_dropped(store, shared):
    manifest = shutil.copy(store.listed, shared.file("copy.jsonl"))
    job = Job(shared, store, 32 << 20, users=[65534], dataset={"manifest": manifest})
    daemon = job.daemon()
    job.read(daemon, WINDOWS)
    (row,) = listed(daemon)
    assert (row["dataset"], row["url"]) == ("d", f"lab://{BUCKET}/web"), row
    assert row["pieces"] == PIECES, row
    assert job.disk_bytes() == row["bytes"]
    drop, listing = (
        [TOKCTL, "cache", *of, "--socket", daemon.socket] for of in (["drop", "d"], ["ls"])
    )
    code, out, err = run(TOKCTL, "cache", "drop", "e", "--socket", daemon.socket)
    assert code == 1 and "has no dataset e" in err, (out, err)
    if os.geteuid() == 0:
        code, out, err = run(*drop, user=65534)
        assert code == 1 and "uid 65534 cannot remove pieces" in err, err
        assert len(err.splitlines()) == 1, err
        code, out, err = run(*listing, user=65534)
        assert code == 1 and f"{job.cache}, the daemon's cache: uid 65534 cannot read" in err, err
    assert listed(daemon) == [row]
    code, out, err = run(*drop, "--json")
    assert code == 0 and json.loads(out) == {"dataset": "d", "pieces": PIECES}, (out, err)
    (row,) = listed(daemon)
    assert (row["pieces"], row["bytes"]) == (0, 0), row
    assert job.disk_bytes() == 0
    job.gets()
    job.read(daemon, WINDOWS)
    assert len(job.gets()) == PIECES
    text = Path(manifest).read_text()
    Path(manifest).write_text(text.replace('"etag":"', '"etag":"x', 1))
    assert listed(daemon)[0]["pieces"] == PIECES - PIECES // SHARDS, "an object was replaced"
    assert daemon.stop() == 0


def warm(daemon, *arguments):
    command = [TOKCTL, "cache", "warm", "train", "--json", "--socket", daemon.socket]
    code, out, err = run(*command, *arguments)
    return code, json.loads(out or "null"), err


def test_a_stream_is_warmed(store, shared):
    job = Job(shared, store, 32 << 20)
    daemon = job.daemon()
    job.gets()
    slow = Fault(delay=0.2)  # so that its ring is not filled when it ends
    store.proxy.inject("slow", slow, times=2**30, match=lambda r: ".bin" in r.path)
    code, out, err = warm(daemon, "--from", "64", "--to", "80")
    store.proxy.clear()
    assert code == 0 and (out["position"], out["end"]) == (80, "reached"), (out, err)
    wait_until(lambda: not status(daemon.socket)[0], "its end")
    some = len(job.gets())
    assert 16 <= some < PIECES // 2, "its ring reads ahead"
    code, out, err = warm(daemon)
    assert code == 0 and (out["pieces"], out["all"]) == (PIECES, PIECES), (out, err)
    assert out["end"] == "all pieces are there", out
    # Pieces in flight when the first session ended are fetched again.
    assert PIECES // 2 <= out["fetched"] <= PIECES and len(job.gets()) <= PIECES, (out, some)
    assert whole_pieces(job.seen_last)
    job.read(daemon, WINDOWS)
    assert job.gets() == []
    assert daemon.stop() == 0


def test_a_cache_that_is_warmed_keeps_the_nearest_pieces(store, shared):
    small = 100 * PIECE
    keys = {"shuffle": "block", "block": PIECE // WINDOW_BYTES, "group": 1, "fetch": "piece"}
    job = Job(shared, store, small, dataset=keys)
    daemon = job.daemon()
    store.proxy.inject("slow", Fault(delay=0.5), times=2**30, match=lambda r: ".bin" in r.path)
    code, out, err = warm(daemon)
    store.proxy.clear()
    assert code == 0 and out["end"] == "the cache is full", (out, err)
    job.gets()
    job.read(daemon, 64 * PIECE // WINDOW_BYTES)
    assert len(job.gets()) <= 32
    assert daemon.stop() == 0


def test_warming_without_pieces_is_refused(store, shared):
    job = Job(shared, store, 32 << 20, dataset={"fetch": "window"})
    daemon = job.daemon()
    code, out, err = warm(daemon)
    assert code == 1 and "none of its datasets is read in pieces" in err, (out, err)
    assert daemon.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_left_to_others(store, shared):
    """Windows are fetched singly, with a line a minute in the log."""
    job = Job(shared, store, 32 << 20)
    os.mkdir(job.cache, 0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "none", job.cache], check=True
    )
    try:
        daemon = job.daemon()
        job.gets()
        begun = time.monotonic()
        job.read(daemon, WINDOWS)
        assert not whole_pieces(job.gets())
        said = len(daemon.said("windows are fetched singly"))
        assert 1 <= said <= 1 + (time.monotonic() - begun) // 60, daemon.log()
        assert daemon.stop() == 0
    finally:
        subprocess.run(["umount", "-l", job.cache], check=True)


def test_a_cache_that_is_removed(store, shared):
    """Under a daemon that reads: also some of its pieces, again and again."""
    job = Job(shared, store, 6 << 20, dataset={"fetch": "piece"})
    daemon = job.daemon()
    ended = threading.Event()

    def remove():
        while not ended.wait(0.05):
            for name in os.listdir(job.cache):
                if len(name) > 32:
                    Path(job.cache, name).unlink(missing_ok=True)  # it may be evicted

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        job.read(daemon, 800)
    finally:
        ended.set()
        thread.join()
    assert daemon.stop() == 0
    daemon = job.daemon()
    job.read(daemon, 500)
    while os.path.exists(job.cache):  # pieces that are fetched ahead come meanwhile
        shutil.rmtree(job.cache, ignore_errors=True)
    os.mkdir(job.cache, 0o700)
    job.read(daemon, 500, at=1024)
    said = daemon.said("windows are fetched singly")
    assert len(said) == 1 and "until the daemon is started again" in said[0], daemon.log()
    assert os.listdir(job.cache) == []
    assert daemon.stop() == 0


def test_directories_that_cannot_be_a_cache(store, shared):
    def refused(cache, words, size=32 << 20):
        job = Job(shared, store, size, cache=cache)
        for arguments in ("--check",), ():
            code, out, err = run(TOKEND, "-c", job.config, *arguments, env=job.env())
            (line,) = [line for line in err.splitlines() if "cache." in line]
            assert code == 1 and f"{job.config}:" in line and words in line, (out, err)

    shared.file("open", "")
    os.chmod(shared.file("open"), 0o777)
    refused(shared.file("open"), "others may write to it")
    with open(shared.file("file"), "w"):
        refused(shared.file("file"), "cannot be opened")
    refused(shared.file("file") + "/x", "cannot be created")
    refused(shared.file("small.cache"), "fewer than 64 pieces", size=1000)
    if os.geteuid() == 0:
        os.mkdir(shared.file("others"), 0o700)
        os.chown(shared.file("others"), 12345, 12345)
        refused(shared.file("others"), "belongs to user 12345")


@pytest.mark.parametrize(
    "dataset, windows",
    [
        ({"fetch": "window"}, 3000),
        ({"fetch": "window", "shuffle": "none"}, 3200),
        ({"fetch": "piece"}, 2 * WINDOWS),
        ({"fetch": "piece", "shuffle": "none"}, WINDOWS // 2),
        ({"fetch": "piece", "shuffle": "block", "block": PIECE // WINDOW_BYTES}, 2 * WINDOWS),
    ],
)
def test_cost_is_what_a_daemon_reads(store, shared, dataset, windows):
    job = Job(shared, store, 32 << 20, dataset=dataset, samples=windows)
    command = [TOKCTL, "cost", "train", "-c", job.config, "--json"]
    code, out, err = run(*command, "--for", windows * SEQ, env=job.env())
    assert code == 0, err
    (cost,) = [c for c in map(json.loads, out.splitlines()) if c["chosen"]]
    daemon = job.daemon()
    job.gets()
    client = Client(daemon.socket).attach(micro=1, slots=8, begin=1)
    for _ in range(windows - 8):
        client.next(60)
    wait_until(lambda: client.published() >= windows - 3, "the last windows")
    got = job.gets()
    read = sum(r.range[1] for r in got)
    # A GET of two windows also has the bytes between them: up to 16 KiB, of 12 MiB here.
    pieces = cost["mode"] == "piece"
    double = 0 if pieces else sum(r.range[1] > cost["bytes"] / cost["gets"] for r in got)
    assert len(got) + double == pytest.approx(cost["gets"], rel=0.01)
    assert read == pytest.approx(cost["bytes"], rel=0.01 if pieces else 0.1)
    client.close()
    assert daemon.stop() == 0


def test_a_cache_that_is_smaller_than_the_dataset(store, shared):
    """The piece that was not read for the longest time is removed. Of a dataset of which a half
    fits, 0.85 are fetched an epoch if pieces are read in random orders. A block is a piece's
    windows.
    """
    epochs, room = 3, PIECES // 2 * PIECE + SHARDS * 4096
    keys = {"shuffle": "block", "block": PIECE // WINDOW_BYTES, "group": 1, "fetch": "piece"}
    job = Job(shared, store, room, dataset=keys)
    daemon = job.daemon()
    job.read(daemon, WINDOWS)
    job.gets()
    job.read(daemon, epochs * WINDOWS, at=WINDOWS // 1024 * 1024)
    got = len(job.gets())
    assert whole_pieces(job.seen_last)
    assert 0.7 < got / epochs / PIECES < 0.95
    assert daemon.stop() == 0
    assert job.disk_bytes() <= room + PIECE
