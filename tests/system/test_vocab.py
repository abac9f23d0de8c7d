"""A token that is not below the stream's `vocab`, or is negative, is never served. The stream stops
before the batch with it, in every format and way of reading, and names dataset, shard, offset and
token. Tokens up to vocab - 1 are served.
"""

import os
import re

import numpy
import pytest

from lib import TOKCTL, Daemon, has, run
from lib.shard_writers import arrow, datatrove, llmc, mds, megatron, npy, put, raw, seekable

SEQ_LEN, TOKENS = 128, 12_000
WINDOW = SEQ_LEN + 1
AT = 6000  # the invalid token


def documents(path, tokens):
    mds(os.path.dirname(path), numpy.split(tokens, [7000]), None)


# name: (served dtype, stored dtype, keys, writer)
FORMATS = {
    "flat": ("<u2", "<u2", {}, put(".bin", raw)),
    "llmc": ("<u2", "<u2", {}, put(".bin", llmc)),
    "npy-i16": ("<u2", "<i2", {}, put(".npy", npy)),
    "npy-i32": ("<u4", "<i4", {}, put(".npy", npy)),
    "npy-i64-u16": ("<u2", "<i8", {"dtype": "u16"}, put(".npy", npy)),
    "datatrove": ("<u2", "<u2", {}, datatrove),
    "megatron-i32": ("<u4", "<i4", {}, megatron),
    "arrow-i32": ("<u4", "<i4", {}, arrow),
    "mds": ("<u4", "<i4", {}, documents),
    "zstd-u32": ("<u4", "<u4", {"dtype": "u32"}, seekable(".bin.zst", raw, 1000)),
}
ANYWHERE = ("flat", "npy-i32", "zstd-u32")  # one for each way into the slot


def stream(path, vocab, **keys):
    dataset = {"name": f"data-{path}", "path": path, "shuffle": "none", **keys}
    at = {"vocab": vocab} if vocab else {}
    return {"seed": 3, "seq_len": SEQ_LEN, "epochs": 1, **at, "datasets": [dataset]}


def windows(tokens):
    """In order, with the last batch of two filled up with padding."""
    rows = [tokens[i : i + WINDOW] for i in range(0, TOKENS - SEQ_LEN, SEQ_LEN)]
    return rows + [numpy.zeros(WINDOW, tokens.dtype)] * (len(rows) % 2)


@pytest.fixture(scope="module")
def written(shared):
    """(streams, {name of a stream: (its directory, rows, the invalid value)})"""
    streams, cases = {}, {}
    rng = numpy.random.default_rng(5)
    for name, (served, dtype, keys, write) in FORMATS.items():
        vocab = 1000 if served == "<u2" else 70_000
        values = {"sound": None, "above": vocab}
        if name.startswith("flat"):
            values["far"] = numpy.iinfo(served).max
        if dtype[1] == "i":
            values["negative"] = -7
        sound = rng.integers(0, vocab, TOKENS)
        sound[3] = vocab - 1
        for kind, value in values.items():
            path, tokens = f"{name}-{kind}", sound.astype(dtype)
            if value is not None:
                tokens[AT] = value
            write(shared.file(path, "a"), tokens)
            streams[path] = stream(path, vocab, **keys)
            cases[path] = path, windows(sound.astype(served)), value
        if "negative" in values:  # refused without a vocab, too
            streams[f"{name}-any"] = stream(path, None, **keys)
            cases[f"{name}-any"] = cases[path]
    return streams, cases


def test_an_invalid_token_stops_the_stream(shared, written, mode):
    (streams, cases), (io, direct) = written, mode
    config = shared.config(memory=64 << 20, io=io, direct=direct, streams=streams)
    daemon = Daemon(shared, config)
    for name, (path, rows, value) in cases.items():
        if direct != (io == "pread") and not name.startswith(ANYWHERE):
            continue
        rank = ["--rank", 0, "--world", 1, "--micro", 2]
        code, out, err = run(TOKCTL, "cat", name, "--socket", daemon.socket, *rank)
        want = b"".join(row.tobytes() for row in rows)
        if value is None:
            assert code == 0 and out == want, (name, err)
            continue
        words = [f"dataset data-{path}", f"token {AT} is {value};", "stops here, nothing was"]
        assert code == 1 and has(err, *words) and err.count("\n") == 1, (name, err)
        assert re.search(r"shard \S+ at token \d+: ", err), (name, err)
        row = rows[0].nbytes
        assert want.startswith(out) and len(out) % (2 * row) == 0, name
        assert len(out) // row <= AT // SEQ_LEN, name
    assert daemon.stop() == 0
