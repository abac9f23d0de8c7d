"""One user cannot take all connections, ring memory or files in state_dir."""

import os
import threading
import time

import pytest

from lib import Daemon, Refused, client_of, datasets, few_descriptors, status, wait_for
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


ROOT, GREEDY, POLITE = 0, 1001, 1002
MOST = 2000  # more connections or sessions than a user can get
DESCRIPTORS = 400  # enough for about 60 connections


@pytest.fixture
def start(place):
    """Starts a daemon for these users; it ends with 0."""
    started = []

    def start(uids, descriptors=4000, **keys):
        place.shard("web/a.bin", 60_000)
        streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
        config = place.config(streams=streams, allow_uids=uids, **keys)
        started.append(Daemon(place, config, preexec_fn=few_descriptors(descriptors)))
        return started[-1]

    yield start
    assert [daemon.stop() for daemon in started if daemon.alive()] == [0]


def as_many(make):
    """([make(0), make(1), …] until one is refused, the error)"""
    made = []
    while len(made) < MOST:
        try:
            made.append(make(len(made)))
        except Refused as e:
            return made, e.packet
    return made, {}


def attempt(call):
    try:
        return call()
    except Refused:
        return None


def close(clients):
    for c in clients:
        c.close()


def test_a_user_gets_half_of_the_connections(start):
    daemon = start([GREEDY, POLITE], DESCRIPTORS)
    greedy, packet = as_many(lambda _: client_of(daemon, GREEDY))
    assert 20 <= len(greedy) < 36, "one user gets half of the connections"
    assert packet.get("passing") == 1 and "more than half" in packet["text"]
    injected(46)
    polite = [client_of(daemon, POLITE) for _ in range(20)]
    assert polite[0].attach(run="polite").next() is not None, "another user gets 20, and batches"
    polite += as_many(lambda _: client_of(daemon, POLITE))[0]
    operators = [client_of(daemon, ROOT) for _ in range(2)]
    assert operators[0].attach(run="root").next() is not None, "some are left for operators"
    assert len(status(daemon.socket)[0]) == 2
    close(greedy[:4])
    assert wait_for(lambda: attempt(lambda: client_of(daemon, GREEDY))), "some are free again"
    assert daemon.stop() == 0
    daemon = start([GREEDY], DESCRIPTORS)
    alone, _ = as_many(lambda _: client_of(daemon, GREEDY))
    assert len(alone) > len(greedy) + 16, "a single user gets all but the operators' connections"


def test_a_user_gets_half_of_the_ring_memory(start):
    daemon = start([GREEDY, POLITE], memory=64 << 20)
    ring = {"micro": 2048, "slots": 8}  # about 3 MiB

    def attach(uid, run, peer=0, **keys):
        return client_of(daemon, uid).attach(run=run, peer=peer, **{**ring, **keys})

    def seek(client, peer):
        keys = {"begin": 1, "replaces": client.feed["id"]}
        return attempt(lambda: attach(GREEDY, "greedy", peer, **keys))

    tiny = attach(GREEDY, "greedy", MOST, micro=1, slots=4)
    greedy, packet = as_many(lambda n: attach(GREEDY, "greedy", n))
    assert 8 <= len(greedy) <= 12, "one user gets half of memory:"
    assert packet.get("passing") == 1 and "more than half" in packet["text"]
    injected(46)
    assert not seek(tiny, MOST), "also if a large ring replaces a small one"
    assert seek(greedy[0], 0), "but not if the new ring is of the same size"
    polite = [attach(POLITE, "polite", n) for n in range(8)]
    assert polite[0].next() is not None, "another user gets the other half, and batches"
    _, packet = as_many(lambda n: attach(GREEDY, "large", micro=65536))
    assert packet and not packet.get("passing"), "larger than its user may ever have"


def test_files_are_limited(start):
    """While somebody else is connected, a user writes 10 files a second."""
    daemon = start([GREEDY, POLITE])
    greedy = client_of(daemon, GREEDY).attach(run="greedy")
    polite = client_of(daemon, POLITE).attach(run="polite")
    save = lambda client, tag: client.ask(op="checkpoint", tag=tag, cursor=client.feed["cursor"])
    saves = threading.Thread(target=lambda: [save(greedy, f"tag{n}") for n in range(50)])
    began = time.monotonic()
    saves.start()
    for _ in range(8):
        assert os.path.exists(save(polite, "mine")["path"])
    assert saves.is_alive(), "another user can save meanwhile"
    saves.join()
    assert time.monotonic() - began > 3, "the first second's may be a burst"
    injected(46, 2)
    assert greedy.next() is not None, "its session continues"


def test_packets_are_limited(start):
    """While somebody else is connected, a user's packets are handled at 10,000 a second."""
    daemon = start([GREEDY, POLITE])
    greedy = client_of(daemon, GREEDY).attach(run="greedy")

    def flood(packets):
        began = time.monotonic()
        for _ in range(packets):
            greedy.send(b"\0")
        greedy.ask(op="describe")
        return time.monotonic() - began

    polite = client_of(daemon, POLITE)
    assert flood(40_000) > 2.5, "the first second's may be a burst"
    polite.attach(run="polite").next()
    injected(46)
