"""A store that does not answer: sessions leave at once, seek, and come back; a filled ring is
served; a local stream continues; the trainer's own log says what it waits for; nothing is lost.
"""

import concurrent.futures
import contextlib
import hashlib
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy
import pytest

from lib import PACKAGE, Daemon, status, wait_until
from lib.fault_proxy import Fault, FaultProxy
from lib.injected import injected
from lib.shard_writers import raw, seekable
from lib.store_faults import PIECE, WINDOW
from lib.stores import Hadro

sys.path.insert(0, str(PACKAGE))
import tokend

SEQ, MICRO, SHARDS, TOKENS, FRAMES = 63, 8, 4, 40_000, 60
HANG, BUSY = Fault(hang=True), Fault(status=503, code="SlowDown")
# stream: (directory, how a store is read). Each is on the disk, too, as near_NAME. The objects of
# `opened` are read in one test only: the daemon keeps answers for later readers.
STREAMS = {
    "far": ("plain", "window"), "cold_zstd": ("cold", "window"), "opened": ("opened", "window"),
    "far_frames": ("frames", "window"), "far_pieces": ("plain", "piece"),
    "cold_pieces": ("cold", "piece"),
}  # fmt: skip


def of_windows(request):
    return request.range is not None


class Site:
    """A store, a proxy that hangs, a daemon, and the same shards on the disk."""

    def __init__(self, place, store, proxy):
        self.place, self.proxy, self.store, self.streams = place, proxy, store, {}
        self.endpoint = proxy.endpoint
        for name, (directory, fetch) in STREAMS.items():
            listed = store.manifest(f"corpus/{directory}/", place.file(f"{directory}.jsonl"))
            far = {"manifest": listed, "fetch": fetch, "piece": 64 << 10}
            self.streams[name] = self.stream(f"lab://corpus/{directory}/", **far)
            self.streams[f"near_{name}"] = self.stream(f"root/corpus/{directory}")
        self.write()
        self.daemon = Daemon(place, self.config, env=store.environment())

    def stream(self, path, **more):
        dataset = {"name": "d", "path": path, "dtype": "u16", **more}
        return {"seed": 1, "seq_len": SEQ, "extra": 1, "datasets": [dataset]}

    def write(self):
        stores = {"lab": {"endpoint": self.endpoint}}
        cache = {"dir": self.place.file("cache"), "size": 64 << 20}
        self.config = self.place.config(
            stores=stores, memory=512 << 20, streams=self.streams, cache=cache
        )

    def loader(self, stream, **keys):
        keys = {"run": stream, "rank": 0, "world": 1, "slots": 16, **keys}
        return tokend.Loader(stream, MICRO, socket=self.daemon.socket, **keys)

    @contextlib.contextmanager
    def hanging(self):
        """No GET of a window is answered. At the beginning, one hangs."""
        self.proxy.inject("hang", HANG, times=1 << 30, match=of_windows)
        self.hung = self.proxy.injected["hang"]
        try:
            yield
        finally:
            self.proxy.clear()
            self.proxy.refuse()
            self.proxy.listen()

    def hangs(self):
        wait_until(lambda: self.proxy.injected["hang"] > self.hung, "a GET that hangs")


@pytest.fixture(scope="module")
def site(shared):
    rng = numpy.random.default_rng(99)
    for i in range(SHARDS):
        shared.shard(f"root/corpus/plain/{i}.bin", TOKENS, seed=i)
        for name in ("cold", "opened"):
            path = shared.shard(f"root/corpus/{name}/{i}.bin", TOKENS, seed=10 + i)
            subprocess.run(["zstd", "-q", "--rm", path], check=True)
        # many frames, so that most are not decoded after some reads
        frames = rng.integers(0, 50000, FRAMES * 4000, numpy.uint16)
        seekable(".bin.zst", raw, 8000)(shared.file(f"root/corpus/frames/{i}"), frames)
    with Hadro(shared, shared.file("root", "")) as store, FaultProxy(store.port) as proxy:
        site = Site(shared, store, proxy)
        yield site
        site.daemon.kill()


def digest(loader, batches):
    hash = hashlib.sha256()
    while batches:
        with contextlib.suppress(tokend.WaitError):
            hash.update(next(loader)["input_ids"].numpy().tobytes())
            batches -= 1
    return hash.hexdigest()


@pytest.mark.parametrize("stream", [name for name in STREAMS if name != "opened"])
def test_a_session_leaves_a_store_that_hangs(site, stream):
    """Also if it waits for the same frame as another session. What stays continues afterwards."""
    start = 90_000  # no window that was read before
    if stream == "far_frames":
        with site.loader(stream, slots=4) as loader:
            digest(loader, 4)  # opens all shards: only their frames are still to be read
    with site.hanging():
        loaders = [site.loader(stream, run=f"leave{i}", start=start, slots=1) for i in range(3)]
        before = site.daemon.rings()
        site.hangs()
        time.sleep(0.2)  # frames are waited for by several sessions
        begin = time.monotonic()
        loaders.pop().close()  # the others wait longer, so it waits for their GETs
        wait_until(lambda: site.daemon.rings() < before, "the ring is still there")
        # The goal is 50 ms. Of a session that waits for a frame that another one decodes, the
        # daemon takes the ring back after 1 s.
        assert time.monotonic() - begin < (2 if stream in ("cold_zstd", "far_frames") else 0.5)
        for i in range(100):
            loaders[0].seek(position=start + 1000 * i)
        loaders.pop(0).close()
    with loaders[0] as far, site.loader(f"near_{stream}", start=start) as near:
        assert digest(far, 30) == digest(near, 30)
    injected((PIECE if "pieces" in stream else WINDOW) + 17)


def test_local_streams_and_filled_rings_continue(site):
    """Of every kind, while each kind hangs."""
    with site.loader("far", run="filled", start=150_000) as far:
        digest(far, 1)
        wait_until(lambda: status(site.daemon.socket)[0][0]["published"] >= 9, "a filled ring")
        for local in ("near_far", "near_cold_zstd"):
            with site.loader(local, run="alone") as alone:
                want = digest(alone, 10_000)
            with site.hanging():
                hung = [
                    site.loader(stream, run=f"hung{i}", start=200_000)
                    for stream in ("far", "cold_zstd", "far_frames")
                    for i in range(3)
                ]
                site.hangs()
                with site.loader(local, run="meanwhile") as local_stream:
                    assert digest(local_stream, 10_000) == want
                digest(far, 4)
                for loader in hung:
                    loader.close()


def test_the_trainer_says_what_it_waits_for(site):
    said = "stream far: waiting [0-9]+ s for lab://corpus/plain: 503 SlowDown"
    with (
        site.loader("far", run="says", start=300_000, slots=1) as far,
        site.loader("near_far", run="says", start=300_000) as near,
        concurrent.futures.ThreadPoolExecutor() as trainer,
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        site.proxy.inject("503", BUSY, times=1 << 30)
        batches = trainer.submit(digest, far, 20)
        try:
            wait_until(lambda: any(re.search(said, str(w.message)) for w in seen), "no warning")
        finally:
            site.proxy.clear()
        assert batches.result() == digest(near, 20)
    injected(WINDOW + 1, site.proxy.injected["503"])


def test_a_wait_for_a_store_has_a_limit(site):
    """The error names the store. The cursor is that of the last batch, and next() continues."""
    site.proxy.inject("503", BUSY, times=1 << 30, match=of_windows)
    with site.loader("far", run="limited", start=350_000, deadline=3) as far:
        with pytest.raises(tokend.WaitError, match="waiting for lab://corpus/plain: 503 SlowDown"):
            next(far)
        site.proxy.clear()
        with site.loader("near_far", run="limited", start=far.position) as near:
            assert digest(far, 20) == digest(near, 20)
    injected(WINDOW + 1, site.proxy.injected["503"])


def test_an_outage_is_forgotten(site):
    """A GET that fails once more after it does not pause as long as in its midst."""
    answered = set()

    def once(request):  # the first GET heals, then each of the others fails once
        known = request.range in answered or not answered
        answered.add(request.range)
        return None if known else BUSY

    site.proxy.inject("503", BUSY, times=1 << 30, match=of_windows)
    with site.loader("far", run="outage", start=400_000) as far:
        time.sleep(4)
        site.proxy.clear()
        site.proxy.inject("once", once, times=1 << 30, match=of_windows)
        begin = time.monotonic()
        digest(far, 16)
        assert time.monotonic() - begin < 3
    site.proxy.clear()
    assert site.proxy.injected["once"] > 16


def test_a_store_that_hangs_is_replaced_by_a_reload(site):
    with site.hanging():
        waits = site.loader("far", run="moved", start=500_000)
        site.hangs()
        site.endpoint = site.store.endpoint
        site.write()
        site.daemon.reload()
        with waits, site.loader("near_far", run="stays", start=500_000) as near:
            assert digest(waits, 20) == digest(near, 20)
    site.endpoint = site.proxy.endpoint
    site.write()
    site.daemon.reload()


def test_a_reload_and_a_stop_do_not_wait_for_a_store(site):
    """Shards of the config that goes are being opened."""
    with site.hanging():
        gone = site.loader("opened", run="gone")
        site.hangs()
        site.streams["opened"]["seed"] = 2
        site.write()
        site.daemon.process.send_signal(signal.SIGHUP)
        kept = "keeps the config that it has"
        wait_until(lambda: kept in site.daemon.log(), "a session of the old seed was not seen")
        gone.close()
        wait_until(lambda: site.daemon.rings() == 0, "the ring is still there")
        site.daemon.reload()
    with site.loader("opened", run="new") as new:
        digest(new, 10)
    with site.hanging():
        waits = site.loader("far", run="stopped", start=600_000)
        site.hangs()
        begin = time.monotonic()
        assert site.daemon.stop() == 0
        assert time.monotonic() - begin < 5
    site.daemon.start()
    with waits, site.loader("near_far", start=600_000) as near:
        assert digest(waits, 20) == digest(near, 20)
