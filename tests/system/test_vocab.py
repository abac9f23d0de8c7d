"""A token that is not below the stream's `vocab`, or is negative, is never served. The stream stops
before the batch with it, in every format and way of reading, and names dataset, shard, offset and
token. Tokens up to vocab - 1 are served.
"""

import os
import re

import numpy
import pytest

from lib import TOKCTL, Daemon, run
from lib.shard_writers import arrow, datatrove, llmc, mds, megatron, npy, put, raw, seekable

SEQ_LEN, TOKENS, VOCAB = 128, 12_000, 1000
WINDOW = SEQ_LEN + 1
AT = 6000  # the invalid token

# name: (served dtype, stored dtype, keys, writer)
FORMATS = {
    "flat": ("<u2", "<u2", {}, put(".bin", raw)),
    "flat-u32": ("<u4", "<u4", {"dtype": "u32"}, put(".bin", raw)),
    "llmc": ("<u2", "<u2", {}, put(".bin", llmc)),
    "npy-i16": ("<u2", "<i2", {}, put(".npy", npy)),
    "npy-i32": ("<u4", "<i4", {}, put(".npy", npy)),
    "npy-i64": ("<u4", "<i8", {}, put(".npy", npy)),
    "npy-i64-u16": ("<u2", "<i8", {"dtype": "u16"}, put(".npy", npy)),
    "datatrove": ("<u2", "<u2", {}, datatrove),
    "megatron": ("<u2", "<u2", {}, megatron),
    "megatron-i32": ("<u4", "<i4", {}, megatron),
    "arrow-i32": ("<u4", "<i4", {}, arrow),
    "zstd": ("<u2", "<u2", {}, seekable(".bin.zst", raw, 1000)),
    "zstd-u32": ("<u4", "<u4", {"dtype": "u32"}, seekable(".bin.zst", raw, 1000)),
    "zstd-i32": ("<u4", "<i4", {}, seekable(".npy.zst", npy, 1000)),
}
ANYWHERE = ("flat", "npy-i32", "zstd-u32")  # one for each way into the slot
MDS_ROWS = 120
MDS_BAD = (70, 5)  # row, and the token in it


def tokens_of(dtype):
    """Every token of the vocabulary; the last one is in the first rows."""
    tokens = numpy.random.default_rng(5).integers(0, VOCAB, TOKENS).astype(dtype)
    tokens[3] = VOCAB - 1
    return tokens


def stream(path, vocab=VOCAB, **keys):
    at = {"vocab": vocab} if vocab else {}
    return {
        "seed": 3,
        "seq_len": SEQ_LEN,
        "epochs": 1,
        **at,
        "datasets": [{"name": f"data-{path}", "path": path, "shuffle": "none", **keys}],
    }


def cat(socket, name):
    return run(TOKCTL, "cat", name, "--socket", socket, "--rank", 0, "--world", 1, "--micro", 2)


def write_mds(place):
    """Writes an MDS shard whose rows are windows: (invalid token) → rows. With one shard, a row's
    tokens are found by arithmetic.
    """
    rows = numpy.random.default_rng(6).integers(0, VOCAB, (MDS_ROWS, WINDOW), dtype=numpy.int32)
    for name, value, how in (
        ("mds", VOCAB, {}),
        ("mds-negative", -3, {}),
        ("mds-zstd", VOCAB, {"compression": "zstd"}),
    ):
        bad = rows.copy()
        bad[MDS_BAD] = value
        mds(place.file(name), bad, 1 << 20, **how)
    return rows


def write_all(place):
    """Writes, for each format, a valid shard and, if its type can contain them, shards with an
    invalid token.
    """
    streams, cases = {}, []
    for name, (served, dtype, keys, write) in FORMATS.items():
        values = {"sound": None, "above": VOCAB}
        if name.startswith("flat"):
            values["far"] = numpy.iinfo(served).max
        if dtype[1] == "i":
            values["negative"] = -7
        for kind, value in values.items():
            path = f"{name}-{kind}"
            os.makedirs(place.file(path))
            tokens = tokens_of(dtype)
            if value is not None:
                tokens[AT] = value
            write(place.file(path, "a"), tokens)
            streams[path] = stream(path, **keys)
            cases.append((path, served, None if value is None else AT, value, tokens_of(served)))
        if dtype[1] == "i":  # negative tokens are refused without a vocab too
            streams[f"{name}-any"] = stream(f"{name}-negative", None, **keys)
            cases.append((f"{name}-any", served, AT, -7, tokens_of(served)))
    rows = write_mds(place)
    for path, value in (("mds", VOCAB), ("mds-negative", -3), ("mds-zstd", VOCAB)):
        streams[path] = stream(path)
        cases.append((path, "<u4", MDS_BAD[0] * WINDOW + MDS_BAD[1], value, rows.astype("<u4")))
    return streams, cases


def windows_of(content, served):
    """The expected rows: in order, with the last batch of two filled up with padding."""
    rows = (
        list(content)
        if content.ndim == 2
        else [content[i : i + WINDOW] for i in range(0, TOKENS - SEQ_LEN, SEQ_LEN)]
    )
    rows += [numpy.zeros(WINDOW, served)] * (len(rows) % 2)
    return [row.astype(served).tobytes() for row in rows]


def sound(label, answer, rows):
    code, out, err = answer
    assert code == 0 and out == b"".join(rows), (
        f"{label}: every token is below vocab, so all rows are served",
        (code, len(out), err),
    )


def stops(label, answer, rows, path, at, value, wide):
    """Checks where the stream stops. @wide: tokens from one window to the next."""
    code, out, err = answer
    words = [f"dataset data-{path}", f"token {at} is {value};", "stops here, nothing was skipped"]
    named = re.search(r"shard \S+ at token (\d+): ", err)
    told = named and all(w in err for w in words) and err.count("\n") == 1
    assert code == 1 and told, (
        f"{label}: the error names dataset, shard, offset and token",
        (code, err),
    )
    whole = len(out) % (2 * len(rows[0])) == 0 and b"".join(rows).startswith(out)
    assert whole and len(out) // len(rows[0]) <= at // wide, (
        f"{label}: only batches before it are served",
        (len(out), err),
    )


def test_invalid_token_stops_the_stream(shared, written, mode):
    place, (streams, cases), (mode, direct) = shared, written, mode
    config = place.config(
        f"{mode}{direct}.yaml", memory=64 << 20, io=mode, direct=direct, streams=streams
    )
    daemon = Daemon(place, config)
    for name, served, at, value, content in cases:
        if direct != (mode == "pread") and not name.startswith(ANYWHERE):
            continue
        label = f"{mode}, direct {direct}: {name}"
        answer, rows = cat(daemon.socket, name), windows_of(content, served)
        if at is None:
            sound(label, answer, rows)
        else:
            path = streams[name]["datasets"][0]["path"]
            stops(label, answer, rows, path, at, value, WINDOW if content.ndim == 2 else SEQ_LEN)
    assert daemon.stop() == 0, f"{mode}, direct {direct}: the daemon ends with 0"


@pytest.fixture(scope="module")
def written(shared):
    """(streams, cases)"""
    return write_all(shared)
