"""One user cannot take all connections, ring memory, runs or files in state_dir."""

import os
import time

import pytest

from lib import (
    Daemon,
    Refused,
    Witness,
    client_of,
    datasets,
    few_descriptors,
    rows_at,
    status,
    wait_for,
)
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


GREEDY, POLITE = 1001, 1002
MOST = 2000  # more connections or sessions than a user can get


def config_of(place, name, uids, **keys):
    place.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    keys.setdefault("state_dir", place.file(f"state-{name}/x")[:-2])
    return place.config(
        name, streams=streams, allow_uids=uids, socket=place.file(f"{name}.sock"), **keys
    )


def as_many(make):
    """([make(0), make(1), …] until one is refused, the error)"""
    made = []
    while len(made) < MOST:
        try:
            made.append(make(len(made)))
        except Refused as e:
            return made, e.packet
    return made, {}


def close(clients):
    for c in clients:
        c.close()


DESCRIPTORS = 400  # enough for about 60 connections


def test_connections_are_shared(place):
    config = config_of(place, "connections", [GREEDY, POLITE])
    daemon = Daemon(place, config, preexec_fn=few_descriptors(DESCRIPTORS))
    greedy, packet = as_many(lambda _: client_of(daemon, GREEDY))
    assert 40 <= len(greedy) < 60, ("one user gets most of the connections", len(greedy))
    assert packet.get("passing") == 1 and "other users" in packet["text"], (
        "  then the error is passing",
        packet,
    )
    injected(46)
    polite = [client_of(daemon, POLITE) for _ in range(8)]
    witness = Witness(daemon, rows_at(config, "train", 0, 100), run="root")
    assert witness.step(20), "  root gets one"
    polite[0].attach(run="polite")
    assert polite[0].next() is not None, "  another user gets 8 connections, and batches"
    assert len(status(daemon.socket)[0]) == 2, "  an operator gets one"
    close(greedy[:4])
    again = wait_for(lambda: attempt(lambda: client_of(daemon, GREEDY)))
    assert again, "  a user that closes some gets new ones"
    close([*greedy[4:], *polite, again])
    witness.close()
    assert daemon.stop() == 0, "  exit 0"
    daemon = Daemon(
        place, config_of(place, "alone", [GREEDY]), preexec_fn=few_descriptors(DESCRIPTORS)
    )
    alone, _ = as_many(lambda _: client_of(daemon, GREEDY))
    assert len(alone) > len(greedy) + 6, (
        "a single user gets all but the operators' connections",
        len(alone),
    )
    close(alone)
    assert daemon.stop() == 0, "  exit 0"


def attempt(call):
    try:
        return call()
    except Refused:
        return None


def test_ring_memory_is_shared(place):
    config = config_of(place, "memory", [GREEDY, POLITE], memory=64 << 20)
    daemon = Daemon(place, config)
    ring = {"micro": 2048, "slots": 8}  # about 3 MiB
    tiny = client_of(daemon, GREEDY).attach(run="greedy", peer=MOST, micro=1, slots=4)
    greedy, packet = as_many(
        lambda n: client_of(daemon, GREEDY).attach(run="greedy", peer=n, **ring)
    )
    assert 16 <= len(greedy) <= 23, ("one user gets most of memory:", len(greedy))
    assert packet.get("passing") == 1 and "other users" in packet["text"], (
        "  then the error is passing",
        packet,
    )
    seeking = lambda c, peer: attempt(  # noqa: E731
        lambda: client_of(daemon, GREEDY).attach(
            run="greedy", peer=peer, begin=1, replaces=c.feed["id"], **ring
        )
    )
    assert not seeking(tiny, MOST), "  also if a large ring replaces a small one"
    again = seeking(greedy[0], 0)
    assert again, "  but not if the new ring is of the same size, as after a seek"
    close([tiny, *([again] if again else [])])
    polite = attempt(lambda: client_of(daemon, POLITE).attach(run="polite", **ring))
    assert polite and polite.next() is not None, "  another user gets its share, and batches"
    packet = as_many(lambda n: client_of(daemon, GREEDY).attach(run="large", micro=65536, slots=8))[
        1
    ]
    assert packet and not packet.get("passing"), (
        "the error for a ring larger than its user may ever have does not pass",
        packet,
    )
    injected(46)
    close([*greedy, polite] if polite else greedy)
    assert daemon.stop() == 0, "  exit 0"


def test_runs_and_files_are_limited(place):
    config = config_of(place, "files", [GREEDY, POLITE])
    daemon = Daemon(place, config)
    began = time.monotonic()
    runs, packet = as_many(lambda n: client_of(daemon, GREEDY).attach(run=f"run{n}"))
    took = time.monotonic() - began
    assert 64 <= len(runs) <= 65 + took / 2, (
        "one user begins 64 runs, and then one every 2 s",
        (len(runs), took),
    )
    assert packet.get("passing") == 1 and "too many runs" in packet["text"], (
        "  then the error is passing",
        packet,
    )
    more = client_of(daemon, GREEDY).attach(run="run0", peer=1)
    polite = client_of(daemon, POLITE).attach(run="polite")
    cursor = more.feed["cursor"]
    saves, packet = as_many(lambda n: more.ask(op="checkpoint", tag=f"tag{n}", cursor=cursor))
    took = time.monotonic() - began
    limit = 256 - len(runs) + 10 * (took + 1)
    assert 256 - len(runs) - 1 <= len(saves) <= limit, (
        "one user writes 256 files, and then 10 a second",
        (len(saves), limit),
    )
    assert "too many files" in packet.get("text", ""), ("  then the error says why", packet)
    injected(46, 2)
    assert more.next() is not None, "  its session continues"
    saved = polite.ask(op="checkpoint", tag="mine", cursor=polite.feed["cursor"])
    assert os.path.exists(saved["path"]), "another user can save meanwhile"
    same = all(
        polite.ask(op="checkpoint", tag="mine", cursor=polite.feed["cursor"]) for _ in range(300)
    )
    assert same, "  saving the same snapshot again does not count as a file"
    close([*runs, more, polite])
    assert daemon.stop() == 0, "  exit 0"
