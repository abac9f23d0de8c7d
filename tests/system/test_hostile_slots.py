"""A client writes to its own slots while the daemon reads into them: it flips every token's top bit
again and again. Only its own batches are wrong. The daemon lives, no stream stops, and a polite
client of the same stream gets right batches.
"""

import multiprocessing
import time

import numpy
import pytest

from lib import Client, Daemon, Witness, wait_for, with_parent
from lib.injected import injected
from lib.shard_writers import megatron, npy, put, raw, seekable

SEQ_LEN, TOKENS = 512, 50_000
FORK = multiprocessing.get_context("fork")
BATCHES = 2000

# name: (stored dtype, keys of the stream, writer, how it is read)
KINDS = {
    "npy": ("<i4", {}, put(".npy", npy), ("uring", False)),
    "vocab": ("<u2", {"vocab": 30_000}, put(".bin", raw), ("pread", True)),
    "megatron": ("<i4", {}, megatron, ("pread", False)),
    "decoded": ("<u2", {"vocab": 30_000}, seekable(".bin.zst", raw, 16_384), ("pread", False)),
    "documents": ("<i4", {"documents": True, "eos": 1}, put(".npy", npy), ("uring", True)),
}


def hostile(socket_path, counts):
    """Flips top bits until it is killed. counts[0]: how many of its batches were wrong."""
    with_parent()
    c = Client(socket_path).attach(run="hostile", micro=32, slots=8)
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


@pytest.mark.parametrize("kind", KINDS)
def test_writing_into_slots_harms_only_the_writer(place, uring, kind):
    dtype, more, write, (io, direct) = KINDS[kind]
    if io == "uring" and uring:
        pytest.skip(f"io: uring: {uring}")
    tokens = numpy.random.default_rng(11).integers(0, 30_000, TOKENS).astype(dtype)
    write(place.file(kind, "0"), tokens)
    stream = {"seed": 3, "seq_len": SEQ_LEN, **more}
    stream["datasets"] = [{"name": "d", "path": kind, "shuffle": "none"}]
    windows = [tokens[i : i + SEQ_LEN + 1] for i in range(0, TOKENS - SEQ_LEN, SEQ_LEN)]
    rows = numpy.resize(windows, (2 * BATCHES, SEQ_LEN + 1))
    daemon = Daemon(
        place, place.config(memory=64 << 20, io=io, direct=direct, streams={"train": stream})
    )
    counts = multiprocessing.RawArray("Q", 1)
    other = FORK.Process(target=hostile, args=(daemon.socket, counts), daemon=True)
    other.start()
    try:
        assert wait_for(lambda: counts[0] >= 20)
        polite = Witness(daemon, rows, run="polite", micro=2)
        end = time.monotonic() + 1
        while time.monotonic() < end or polite.checked < 50:
            assert polite.step(2)
            time.sleep(0.005)
        harmed = counts[0]
        assert wait_for(lambda: counts[0] > harmed), "it harms its own batches to the end"
    finally:
        other.kill()
        other.join()
    assert daemon.alive()
    injected(42, counts[0])
    polite.close()
