"""Peers of one rank (tensor parallel) run at different speeds, and one is killed again and again.
Each has a ring of its own, and gets the same bytes at the same step.
"""

import os
import signal

import numpy

from lib import Client, Daemon, datasets, forked_reader, rank_rows, rows_at, status, wait_for
from lib.injected import injected

MICRO, WORLD, STEPS, KILLS = 4, 2, 60, 10
SPEEDS = {0: 5, 1: 2, 2: 0}  # peer: batches between two kills; peer 2 takes none
DOOMED = 3


def attach(daemon, peer, **start):
    return Client(daemon.socket).attach(
        run="tp", rank=1, world=WORLD, peer=peer, micro=MICRO, slots=4, **start
    )


def doomed(daemon, step):
    """A peer in another process, from a step on. Returns (pid, its first batch)."""
    pid, raw = forked_reader(lambda: attach(daemon, DOOMED, position=step * MICRO * WORLD))
    return pid, numpy.frombuffer(raw, "<u2").reshape(MICRO, 65)


def sessions(daemon):
    return {(s["peer"], s["pid"]) for s in status(daemon.socket)[0]}


def test_equal_steps_give_peers_equal_bytes(place):
    place.shard("web/a.bin", 200_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    daemon = Daemon(place, place.config(streams=streams))
    rows = rows_at(daemon.config, "train", 0, STEPS * MICRO * WORLD)
    want = rank_rows(rows, 1, WORLD, MICRO)
    peers = {peer: attach(daemon, peer) for peer in SPEEDS}
    taken = dict.fromkeys(SPEEDS, 0)

    def step(peer):
        assert numpy.array_equal(peers[peer].next(), want[taken[peer]]), (peer, taken)
        taken[peer] += 1

    for peer in SPEEDS:
        step(peer)
    for _ in range(KILLS):
        pid, first = doomed(daemon, taken[0])  # it begins where the fastest is
        assert numpy.array_equal(first, want[taken[0]])
        assert wait_for(lambda: daemon.rings() == 4), "each peer has a ring of its own"
        assert (DOOMED, pid) in sessions(daemon)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for peer, batches in SPEEDS.items():
            for _ in range(batches):
                step(peer)
        gone = wait_for(lambda: {peer for peer, _ in sessions(daemon)} == {*SPEEDS})
        assert gone, "the killed peer's session ends, and no other one"
    assert taken == {0: 1 + 5 * KILLS, 1: 1 + 2 * KILLS, 2: 1}, "nobody waits for a slower peer"
    peers[0].data[: peers[0].control_at] = bytes(peers[0].control_at)
    for peer in (1, 2):
        while taken[peer] < taken[0]:
            step(peer)
    injected(34, KILLS + 1)
    for client in peers.values():
        client.close()
