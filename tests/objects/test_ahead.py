"""Pieces are fetched before they are read, and only as far as that costs nothing."""

import time

import numpy
import pytest

from lib import Client, rows_at, wait_until
from lib.fault_proxy import Fault
from lib.wire import Refused
import test_cache
from test_cache import PIECE, PIECES, SHARDS, WINDOW_BYTES, WINDOWS, Job, listed, piece_of

store = test_cache.store


def test_pieces_are_fetched_before_they_are_read(store, shared):
    """The store may be away then. A session that has read little has fetched little, and none
    fetches what is after its stream's end.
    """
    some = WINDOWS // 4
    job = Job(shared, store, 32 << 20, dataset={"shuffle": "none"}, samples=WINDOWS - 64)
    rows = rows_at(job.local, "train", 0, WINDOWS - 64)
    daemon = job.daemon()
    job.gets()
    job.read(daemon, 64)
    assert len(job.gets()) <= 16 + 4 * 64 * WINDOW_BYTES // PIECE, "the ring, then as told"
    client = Client(daemon.socket).attach(micro=8, begin=1)
    for i in range(0, some, 8):
        assert numpy.array_equal(client.next(60), rows[i : i + 8]), i
    pieces = PIECES - 64 * WINDOW_BYTES // PIECE
    wait_until(lambda: listed(daemon)[0]["pieces"] >= pieces, "all pieces")
    job.gets()
    store.proxy.inject("away", Fault(status=503), times=2**30)
    try:
        for i in range(some, WINDOWS - 64, 8):
            assert numpy.array_equal(client.next(20), rows[i : i + 8]), i
    finally:
        store.proxy.clear()
    assert job.gets() == []
    assert listed(daemon)[0]["pieces"] == pieces
    client.close()
    assert daemon.stop() == 0


def test_a_fault_of_a_later_piece_waits_for_its_read(store, shared):
    """It neither stops the session nor is tried again at once."""
    job = Job(shared, store, 32 << 20, dataset={"shuffle": "none"})
    far = PIECES // 2
    shard, number = divmod(far, PIECES // SHARDS)
    asked = store.proxy.injected["archived"]
    store.proxy.inject(
        "archived",
        Fault(status=403, code="InvalidObjectState"),
        times=2**30,
        match=piece_of(shard, number),
    )
    daemon = job.daemon()
    client = Client(daemon.socket).attach(micro=8, begin=1)
    try:
        for _ in range(WINDOWS // 4 // 8):
            client.next(60)
        wait_until(lambda: store.proxy.injected["archived"] > asked, "the piece")
        for _ in range(WINDOWS // 8 // 8):
            client.next(60)
        assert store.proxy.injected["archived"] == asked + 1
        with pytest.raises(Refused) as refused:
            for _ in range(WINDOWS // 2 // 8):
                client.next(60)
        assert f"{shard}.bin: 403 InvalidObjectState" in str(refused.value), refused.value
    finally:
        store.proxy.clear()
    client.close()
    assert daemon.stop() == 0


def test_a_full_cache_does_not_evict_for_pieces_needed_much_later(store, shared):
    """While a session rests in the middle of an epoch, the daemon has time to fetch all pieces that
    it needs next. For each of them one would be evicted that is needed a little later.
    """
    keys = {"shuffle": "block", "block": PIECE // WINDOW_BYTES, "group": 1, "fetch": "piece"}
    job = Job(shared, store, PIECES // 4 * 3 * PIECE + SHARDS * 4096, dataset=keys)
    daemon = job.daemon()
    client = Client(daemon.socket).attach(micro=8, begin=1)
    for _ in range(WINDOWS // 2 * 3 // 8):
        client.next(60)
    job.gets()
    time.sleep(1.5)  # a busy machine evicts less
    rested = len(job.gets())
    for _ in range(WINDOWS // 2 // 8):
        client.next(60)
    read = len(job.gets())
    print(f"{rested} pieces fetched while the session rested, {read} while it read half an epoch")
    assert rested <= 8, "those in flight, and of the next samples"
    assert rested + read <= 1.1 * PIECES / 4
    client.close()
    assert daemon.stop() == 0
