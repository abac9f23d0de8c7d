"""The same tokens in every format are served as the same bytes, in every way of reading and across
a kill -9. Shards that are damaged or do not match stop a stream, or are refused at the start.
"""

import json
import os
import re
import struct
import subprocess

import numpy
import pytest
import pyzstd

from lib import TOKCTL, TOKEND, Daemon, has, run
from lib.shard_writers import (
    arrow,
    datatrove,
    documents_of,
    llmc,
    mds,
    megatron,
    npy,
    put,
    raw,
    seekable,
)

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds


SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens; one is shorter than a window, one is empty
SEQ_LEN = 128
WINDOW = SEQ_LEN + 1
BATCHES = 2 * sum(SHARDS) // SEQ_LEN // 4  # almost two epochs


def tokens_of(number, dtype):
    rng = numpy.random.default_rng([7, number])
    return rng.integers(0, 50000, SHARDS[number], dtype=numpy.int64).astype(dtype)


# ---- writers: (path without suffix, tokens) → file ----


def frames(ending, content, parts):
    """As written by `zstd PART…; cat`: frames without a seek table."""

    def write(path, tokens):
        content_bytes = content(tokens)
        edges = [len(content_bytes) * i // parts for i in range(parts + 1)]
        with open(path + ending, "wb") as f:
            for a, b in zip(edges, edges[1:]):
                f.write(
                    subprocess.run(
                        ["zstd", "-qc"],
                        input=content_bytes[a:b],
                        stdout=subprocess.PIPE,
                        check=True,
                    ).stdout
                )

    return write


def headers(path, tokens):
    """Headers of different lengths."""
    with open(path + ".npy", "wb") as f:
        f.write(npy(tokens, 54 + 64 * (1 + len(tokens) % 7)))


def megatron_scattered(path, tokens):
    """Sequences in reverse order in the file, with holes."""
    documents = documents_of(tokens)
    at, data = [], b""
    for document in reversed(documents):
        data += b"\xff" * 6
        at.insert(0, len(data))
        data += document.tobytes()
    with open(path + ".bin", "wb") as f:
        f.write(data)
    n = len(documents)
    code = {"uint16": 8, "int32": 4}[tokens.dtype.name]
    with open(path + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, n + 1))
        f.write(
            numpy.array([len(d) for d in documents], "<i4").tobytes()
            + numpy.array(at, "<i8").tobytes()
        )
        f.write(numpy.arange(n + 1, dtype="<i8").tobytes())


# name: (served width, stored dtype, keys, writer). The first format of a width is the reference for
# the others.
FORMATS = {
    "flat": (2, "<u2", {}, put(".bin", raw)),
    "npy": (2, "<u2", {}, put(".npy", npy)),
    "npy-headers": (2, "<u2", {}, headers),
    "npy-i64": (2, "<i8", {"dtype": "u16"}, put(".npy", npy)),
    "llmc": (2, "<u2", {}, put(".bin", llmc)),
    "datatrove": (2, "<u2", {}, datatrove),
    "megatron": (2, "<u2", {}, megatron),
    "megatron-scattered": (2, "<u2", {}, megatron_scattered),
    "arrow": (2, "<u2", {}, arrow),
    "zstd": (2, "<u2", {}, seekable(".bin.zst", raw, 1000)),
    "zstd-frames": (2, "<u2", {}, frames(".bin.zst", raw, 3)),
    "zstd-llmc": (2, "<u2", {}, seekable(".bin.zst", llmc, 4096)),
    "flat-u32": (4, "<u4", {"dtype": "u32"}, put(".bin", raw)),
    "npy-i32": (4, "<i4", {}, put(".npy", npy)),
    "npy-i64-u32": (4, "<i8", {}, put(".npy", npy)),
    "llmc-u32": (4, "<u4", {}, put(".bin", llmc)),
    "datatrove-u32": (4, "<u4", {}, datatrove),
    "megatron-i32": (4, "<i4", {}, megatron),
    "arrow-u32": (4, "<u4", {}, arrow),
    "zstd-i64": (4, "<i8", {}, seekable(".npy.zst", npy, 1000)),
}


def write_all(place):
    for name, (_, dtype, _, write) in FORMATS.items():
        os.makedirs(place.file(name, "x"))
        os.rmdir(place.file(name, "x"))
        for i in range(len(SHARDS)):
            write(place.file(name, f"{i}"), tokens_of(i, dtype))


def stream(path, **keys):
    return {"seed": 3, "seq_len": SEQ_LEN, "datasets": [{"name": "d", "path": path, **keys}]}


def config_of(place, name, **keys):
    streams = {n: stream(n, **more) for n, (_, _, more, _) in FORMATS.items()}
    return place.config(name, memory=64 << 20, streams=streams, **keys)


def cat(socket, name, *more, **keys):
    return run(
        TOKCTL,
        "cat",
        name,
        "--socket",
        socket,
        "--rank",
        0,
        "--world",
        1,
        "--micro",
        4,
        "--batches",
        BATCHES,
        *more,
        **keys,
    )


def expected(config, name, dtype):
    """The rows, by tokctl plan and numpy."""
    code, out, err = run(
        TOKCTL, "plan", "-c", config, name, "--from", 0, "--count", BATCHES * 4, "--json"
    )
    if code:
        raise RuntimeError(f"tokctl plan: {err}")
    rows = []
    for line in out.splitlines():
        at = json.loads(line)
        rows.append(
            tokens_of(int(at["shard"].split(".")[0]), dtype)[at["offset"] : at["offset"] + WINDOW]
        )
    return b"".join(row.tobytes() for row in rows)


def test_all_formats_serve_the_same_bytes(written, mode):
    place, (mode, direct) = written, mode
    config = config_of(place, f"{mode}{direct}.yaml", io=mode, direct=direct)
    daemon = Daemon(place, config)
    want = {2: expected(config, "flat", "<u2"), 4: expected(config, "flat-u32", "<u4")}
    for name, (width, *_) in FORMATS.items():
        code, out, err = cat(daemon.socket, name)
        good = code == 0 and out == want[width] and len(out) == BATCHES * 4 * WINDOW * width
        assert good, (
            f"{mode}, direct {direct}: {name}: the same bytes",
            f"exit {code}, {len(out)} bytes: {err}",
        )
    assert daemon.stop() == 0, f"{mode}, direct {direct}: the daemon ends with 0"


def test_formats_survive_a_killed_daemon(written):
    place = written
    config = config_of(place, "kill.yaml", io="pread")
    daemon = Daemon(place, config)
    want = expected(config, "flat", "<u2")
    for name in ("zstd", "npy-headers", "datatrove", "megatron-scattered", "arrow"):
        reader = place.spawn(
            [TOKCTL, "cat", name, "--socket", daemon.socket, "--rank", "0", "--world", "1",
            "--micro", "4", "--slots", "4",
             "--batches", str(BATCHES)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096,
        )  # fmt: skip
        out = os.read(reader.stdout.fileno(), 1)
        daemon.kill()
        daemon.start()
        rest, err = reader.communicate(timeout=60)
        good = reader.returncode == 0 and out + rest == want
        assert good, (
            f"{name}: kill -9 meanwhile: the same bytes",
            f"exit {reader.returncode}, {len(rest) + 1} bytes: {err}",
        )
    daemon.stop()


# ---- tokctl ----


def test_plan_and_inspect_read_all_formats(written):
    place = written
    config = config_of(place, "offline.yaml")

    def plan(name):
        return run(
            TOKCTL, "plan", "-c", config, name, "--from", 5, "--count", 300, "--tokens", "--json"
        )

    def listed(answer):
        return [
            (line["position"], line["window"], line["tokens"])
            for line in map(json.loads, answer[1].splitlines())
        ]

    for name, (width, *_) in FORMATS.items():
        answer = plan(name)
        same = answer[0] == 0 and listed(answer) == listed(
            plan("flat" if width == 2 else "flat-u32")
        )
        assert same, (f"{name}: plan --tokens", answer[2] or answer[1][:300])
    for name, (_, dtype, _keys, _) in FORMATS.items():
        more = ["--input-dtype", "u32"] if name == "flat-u32" else []
        code, out, err = run(TOKCTL, "inspect", "--json", *more, place.file(name))
        seen = [json.loads(line) for line in out.splitlines()]
        types = {f["dtype"] for f in seen}
        assert (
            code == 0
            and [f["tokens"] for f in seen] == SHARDS
            and types == {dtype[1] + str(8 * int(dtype[2]))}
        ), (f"{name}: inspect", (code, err, seen))
        if name.startswith(("datatrove", "megatron", "arrow")):
            assert [f["documents"] for f in seen] == [5 if n else 0 for n in SHARDS], (
                f"{name}: documents"
            )
    code, out, err = run(TOKCTL, "inspect", place.file("datatrove"))
    assert has(out.decode(), "datatrove", "5 documents", "has no tokens"), "inspect as text"


# ---- samples ----


def test_mds_samples_are_windows(written):
    place = written
    rows = numpy.random.default_rng(9).integers(0, 1 << 31, (500, WINDOW), dtype=numpy.int32)
    names = {"mds": {}, "mds-zstd": {"compression": "zstd"}}
    for name, how in names.items():
        mds(place.file(name), rows, 40_000, **how)
    streams = {name: stream(name) for name in names}
    firsts, at = {}, 0
    for shard in json.load(open(place.file("mds", "index.json")))["shards"]:
        firsts[shard["raw_data"]["basename"]] = at
        at += shard["samples"]
    for mode in ("pread", "auto"):
        config = place.config(f"samples-{mode}.yaml", memory=64 << 20, io=mode, streams=streams)
        daemon = Daemon(place, config)
        for name in names:
            _, out, _ = run(
                TOKCTL, "plan", "-c", config, name, "--from", 0, "--count", BATCHES * 4, "--json"
            )
            plan = [json.loads(line) for line in out.splitlines()]
            numbers = [
                firsts[p["shard"].removesuffix(".zstd")] + p["offset"] // WINDOW for p in plan
            ]
            want = b"".join(rows[n].tobytes() for n in numbers)
            code, out, err = cat(daemon.socket, name)
            assert code == 0 and out == want and len(want) > 0, (
                f"{mode}: {name}: windows are samples",
                (code, len(out), err),
            )
        daemon.stop()


# ---- errors ----


def damage(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x40]))


def test_damaged_shards_stop_the_stream(written):
    place = written
    tokens = tokens_of(2, "<u2")
    for name in ("broken", "negative", "batches", "index"):
        os.makedirs(place.file(name))
    many = (
        numpy.random.default_rng(2).integers(0, 50000, 600_000).astype("<u2")
    )  # small files are already refused at the start
    seekable(".bin.zst", raw, 1000, {pyzstd.CParameter.checksumFlag: 1})(
        place.file("broken", "a"), many
    )
    damage(place.file("broken", "a.bin.zst"), 12_500)
    signed = tokens.astype("<i4")
    signed[6000] = -7
    numpy.save(place.file("negative", "a.npy"), signed)
    arrow(place.file("batches", "a"), signed)  # the windows of a batch are contiguous
    megatron_scattered(place.file("index", "a"), tokens)
    with open(place.file("index", "a.idx"), "r+b") as f:  # the start of its fourth sequence
        f.seek(34 + 4 * 5 + 8 * 3)
        f.write(struct.pack("<q", 1 << 40))
    names = ("broken", "negative", "batches", "index")
    streams = {name: stream(name, shuffle="none") for name in names} | {"sound": stream("zstd")}
    for mode in ("pread", "auto"):
        config = place.config(f"stops-{mode}.yaml", memory=64 << 20, io=mode, streams=streams)
        daemon = Daemon(place, config)
        for name, content, word in (
            ("broken", many, "frame"),
            ("negative", signed.astype("<u4"), "token 6000 is -7"),
            ("batches", signed.astype("<u4"), "token 6000 is -7"),
            ("index", tokens, "1099511627776"),
        ):
            code, out, err = cat(daemon.socket, name)
            windows = (min(len(content), 12_000) - WINDOW) // SEQ_LEN + 1
            want = b"".join(
                content[i * SEQ_LEN : i * SEQ_LEN + WINDOW].tobytes() for i in range(windows)
            )
            at = re.search(r"shard a\.\S+ at token (\d+): ", err)
            told = (
                at
                and word in err
                and f"stream {name} stops here, nothing was skipped" in err
                and err.count("\n") == 1
            )
            assert code == 1 and told, (
                f"{mode}: {name}: the stream stops, and the error names the shard",
                (code, err),
            )
            good = (
                want.startswith(out)
                and at
                and len(out) <= int(at[1]) // SEQ_LEN * WINDOW * content.itemsize
            )
            assert good, (f"{mode}: {name}: no token after the damage is served", (len(out), err))
            assert daemon.said(word), (f"{mode}: {name}: the log says so", daemon.log())
            code, _, err = run(
                TOKCTL, "plan", "-c", config, name, "--from", 0, "--count", windows, "--tokens"
            )
            assert code == 1 and word in err, (f"{name}: so does plan --tokens", (code, err))
        assert cat(daemon.socket, "sound")[0] == 0, f"{mode}: another stream continues"
        daemon.stop()


def check(place, *, memory=64 << 20, seq_len=SEQ_LEN, extra=1, path, **keys):
    streams = {
        "s": {
            "seed": 3,
            "seq_len": seq_len,
            "extra": extra,
            "datasets": [{"name": "d", "path": path, **keys}],
        }
    }
    code, out, err = run(
        TOKEND, "--check", "-c", place.config("check.yaml", memory=memory, streams=streams)
    )
    return code, out.decode() + err


def test_unsuitable_shards_are_refused(written):
    place = written
    for name, write in (
        ("mixed", put(".npy", npy)),
        ("widths", put(".npy", npy)),
        ("rows", None),
        ("whole", None),
    ):
        os.makedirs(place.file(name))
        if write:
            write(place.file(name, "a"), tokens_of(0, "<u2"))
    put(".bin", llmc)(place.file("mixed", "b"), tokens_of(0, "<u2"))
    put(".npy", npy)(place.file("widths", "b"), tokens_of(0, "<u4"))
    numpy.save(place.file("rows", "a.npy"), numpy.arange(6400, dtype="<u2").reshape(-1, 64))
    seekable(".bin.zst", raw, 1 << 30)(
        place.file("whole", "a"), numpy.random.default_rng(1).integers(0, 9, 1_500_000, dtype="<u2")
    )

    def says(name, wanted, *words, **keys):
        code, text = check(place, **keys)
        assert (
            code == wanted
            and all(w in text for w in words)
            and (code == 0 or text.count("\n") == 1)
        ), (name, (code, text))

    says("mixed formats", 1, "b.bin: is llmc, but the first shard, a.npy, is npy", path="mixed")
    says(
        "mixed widths",
        1,
        "b.npy: has tokens of 4 bytes, but the first shard, a.npy, has tokens of 2",
        path="widths",
    )
    says(
        "rows are samples",
        0,
        "windows of 63 + 1",
        "100 windows",
        "0 tokens, 0.000 %",
        path="rows",
        seq_len=63,
    )
    says("rows without a label shift", 0, "100 windows", path="rows", seq_len=64, extra=0)
    says("rows as a stream", 0, "6400 tokens, 206 windows", path="rows", seq_len=31)
    says(
        "rows do not slide",
        1,
        "slide: its windows are samples of 64",
        path="rows",
        seq_len=63,
        slide=True,
    )
    says(
        "one large frame",
        0,
        "with shuffle: global each window of",
        "2929 KiB",
        "times as much",
        path="whole",
    )
    code, text = check(place, path="whole", shuffle="block")
    assert code == 0 and "times as much" not in text, ("one large frame, in order", text)
    says("a frame above the budget", 1, "a.bin.zst", "frame", path="whole", memory=8 << 20)


@pytest.fixture(scope="module")
def written(shared):
    """A Place with a directory for each format."""
    write_all(shared)
    return shared
