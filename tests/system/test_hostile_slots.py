"""A client writes to its own slots while the daemon reads into them: it flips every token's top bit
again and again. Only its own batches are wrong. The daemon lives, no stream stops, and a polite
client of the same stream gets right batches.
"""

import json
import multiprocessing
import os
import time

import numpy
import pytest

from lib import LONG, TOKCTL, Client, Closed, Daemon, Refused, Witness, run, wait_for, with_parent
from lib.injected import injected
from lib.shard_writers import megatron, npy, put, raw, seekable

SEQ_LEN, TOKENS, SHARDS = 512, 50_000, 3
SECONDS = 1.0
FORK = multiprocessing.get_context("fork")
BATCHES = 2000

# name: (stored dtype, keys of the dataset, keys of the stream, writer)
KINDS = {
    "npy": ("<i4", {}, {}, put(".npy", npy)),
    "megatron": ("<i4", {}, {}, megatron),
    "vocab": ("<u2", {}, {"vocab": 30_000}, put(".bin", raw)),
    "decoded": ("<u2", {}, {"vocab": 30_000}, seekable(".bin.zst", raw, 16_384)),
    "documents": ("<i4", {}, {"documents": True, "eos": 1}, put(".npy", npy)),
}


def tokens_of(number, dtype):
    return numpy.random.default_rng([11, number]).integers(0, 30_000, TOKENS).astype(dtype)


def write_all(place):
    """Writes shards of every kind. Returns their streams."""
    streams = {}
    for kind, (dtype, keys, more, write) in KINDS.items():
        os.makedirs(place.file(kind))
        for i in range(SHARDS):
            write(place.file(kind, f"{i}"), tokens_of(i, dtype))
        streams[kind] = {
            "seed": 3,
            "seq_len": SEQ_LEN,
            **more,
            "datasets": [{"name": "d", "path": kind, **keys}],
        }
    return streams


def expected(config, kind, dtype, batches):
    """[batches × 2, window]: the rows, by tokctl plan and numpy."""
    code, out, err = run(
        TOKCTL, "plan", "-c", config, kind, "--from", 0, "--count", 2 * batches, "--json"
    )
    if code:
        raise RuntimeError(f"tokctl plan: {err}")
    shards = {i: tokens_of(i, dtype) for i in range(SHARDS)}
    rows = [
        shards[int(at["shard"].split(".")[0])][at["offset"] : at["offset"] + SEQ_LEN + 1]
        for at in map(json.loads, out.splitlines())
    ]
    return numpy.stack(rows)


# ---- the hostile client, in another process ----


def hostile(socket_path, kind, counts):
    """Flips top bits until it is killed. counts[0]: how many of its batches were wrong."""
    with_parent()
    c = Client(socket_path).attach(stream=kind, run="hostile", micro=32, slots=8)
    width = c.token_bytes
    tokens = numpy.frombuffer(c.data, f"<u{width}", c.control_at // width)
    top = tokens.dtype.type(1 << (8 * width - 1))
    while True:
        tokens ^= top
        published = c.published()
        while c.batch < published:
            at = c.offset(c.batch) // width
            counts[0] += bool((tokens[at : at + c.slot_bytes // width] >= top).any())
            c.batch += 1
        c.set_released(c.batch)
        if 0 < c.wake_at() <= c.batch:
            c.s.send(b"\0")


class Hostile:
    def __init__(self, daemon, kind):
        self.counts = multiprocessing.RawArray("Q", 1)
        self.process = FORK.Process(
            target=hostile, args=(daemon.socket, kind, self.counts), daemon=True
        )
        self.process.start()

    def harmed(self, least):
        """Waits until it has harmed @least batches. True if it has, and still runs."""
        wait_for(lambda: self.counts[0] >= least or not self.process.is_alive())
        return self.counts[0] >= least and self.process.is_alive()

    def kill(self):
        self.process.kill()
        self.process.join()


# ---- the polite client ----


class Polite(Witness):
    """A witness with known rows."""

    def __init__(self, daemon, rows, kind):
        super().__init__(daemon, rows, kind, run="polite", micro=2)


def together(polite, other):
    """The polite client reads for a while, no faster than a trainer."""
    begin = time.monotonic()
    while time.monotonic() - begin < SECONDS or polite.checked < 50:
        if time.monotonic() - begin > LONG or polite.checked + 2 > len(polite.batches):
            return
        polite.step(2)
        time.sleep(0.005)


def check_both(daemon, label, kind, rows):
    polite, other, stopped = None, Hostile(daemon, kind), None
    harmed = other.harmed(20)
    try:
        polite = Polite(daemon, rows, kind)
        together(polite, other)
    except (Refused, Closed, OSError, TimeoutError) as e:
        stopped = e
    harmed = harmed and other.harmed(other.counts[0] + 1)
    other.kill()
    assert stopped is None and daemon.alive(), (
        f"{label}: no stream stops, and the daemon lives",
        (stopped, daemon.log()[-500:]),
    )
    good = polite and polite.wrong == 0 and polite.checked >= 50
    assert good, (
        f"{label}: the polite client's batches are right",
        polite and (polite.wrong, polite.checked),
    )
    assert harmed, (
        f"{label}: the hostile client harmed its own batches, to the end",
        other.counts[0],
    )
    injected(42, other.counts[0])
    if polite:
        polite.close()


# The kinds read in each mode: once each is enough, because all modes fill slots alike.
KINDS_OF = {
    ("uring", False): ("npy", "vocab"),
    ("pread", False): ("megatron", "decoded", "documents"),
    ("uring", True): ("npy",),
    ("pread", True): ("vocab",),
}


@pytest.fixture(scope="module")
def streams(shared):
    return write_all(shared)


def test_writing_into_slots_harms_only_the_writer(shared, streams, mode):
    io, direct = mode
    for kind in KINDS_OF[mode]:
        name, only = f"{kind}-{io}{direct}.yaml", {kind: streams[kind]}
        config = shared.config(name, memory=64 << 20, io=io, direct=direct, streams=only)
        daemon = Daemon(shared, config)
        check_both(daemon, kind, kind, expected(config, kind, KINDS[kind][0], BATCHES))
        assert daemon.stop() == 0, f"{kind}: the daemon ends with 0"
