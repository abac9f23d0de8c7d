"""Shards written by Mosaic's writer read back the same."""

import bz2, json, os, shutil, subprocess
from pathlib import Path

import numpy as np
import pytest

from lib import TOKEND, run
from lib.mosaic import import_without_init
from lib.shard_cat import CAT

import_without_init()

from streaming.base.format import reader_from_json  # noqa: E402
from streaming.base.format.mds.writer import MDSWriter  # noqa: E402
from streaming.base.util import merge_index  # noqa: E402


def cat(path, *options):
    """Returns (facts, tokens), or the error."""
    done = subprocess.run([CAT, "-s", *options, str(path)], capture_output=True, timeout=60)
    line, _, raw = done.stdout.partition(b"\n")
    facts = json.loads(line)
    assert (done.returncode == 0) == ("error" not in facts), done
    assert done.stderr == b""
    if done.returncode:
        return facts["error"]
    return facts, np.frombuffer(raw, {2: np.uint16, 4: np.uint32}[facts["token_bytes"]])


def write(out, columns, samples, **options):
    with MDSWriter(columns=columns, out=str(out), **options) as writer:
        for sample in samples:
            writer.write(sample)
    return sorted(p for p in Path(out).rglob("shard.*") if p.is_file())


def rows(n, length, dtype, seed=1):
    most = min(np.iinfo(dtype).max, 2**32 - 1 if np.dtype(dtype).itemsize == 8 else 2**63)
    values = np.random.default_rng(seed).integers(0, most, (n, length), np.uint64, endpoint=True)
    return values.astype(dtype)


def check(shards, expected, sample_tokens, *options):
    """The shards, one after the other, contain the expected tokens, for Mosaic's reader too."""
    got = []
    for shard in shards:
        result = cat(shard, "-f", "mds", *options)
        assert not isinstance(result, str), result
        facts, tokens = result
        assert facts["format"] == "mds" and facts["documents"] is None and not facts["plain"]
        assert facts["sample_tokens"] == sample_tokens
        assert facts["tokens"] == len(tokens)
        got.append(tokens)
    assert np.array_equal(np.concatenate(got), np.asarray(expected).ravel())


TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", ["type", "shape", "shape2", "none", "bytes"])
@pytest.mark.parametrize("compression", [None, "zstd", "zstd:7"])
def test_encodings(tmp_path, dtype, form, compression):
    tokens = rows(300, 96, dtype)
    encoding = {
        "type": f"ndarray:{dtype}",
        "shape": f"ndarray:{dtype}:96",
        "shape2": f"ndarray:{dtype}:2,48",
        "none": "ndarray",
        "bytes": "bytes",
    }[form]
    value = {"shape2": lambda row: row.reshape(2, 48), "bytes": lambda row: row.tobytes()}.get(
        form, lambda row: row
    )
    shards = write(
        tmp_path / "d",
        {"tokens": encoding},
        ({"tokens": value(row)} for row in tokens),
        compression=compression,
        size_limit=1 << 15,
        hashes=["sha1", "xxh64"],
    )
    assert len(shards) > 1 or dtype in ("uint8", "int8")
    served = tokens.astype(np.uint32 if tokens.dtype.itemsize > 2 else np.uint16)
    options = []
    if form == "bytes":
        if dtype not in ("uint16", "uint32", "int64"):
            return
        options = {"uint16": ["-t", "u16"], "uint32": ["-t", "u32"], "int64": []}[dtype]
    check(shards, served, 96, *options)
    check(shards, served, 96, "-w", "96", *options)


def test_tokens_of_eight_bytes_are_served_as_two(tmp_path):
    tokens = rows(5, 40, "uint16").astype("int64")
    (shard,) = write(
        tmp_path / "d", {"tokens": "ndarray:int64"}, ({"tokens": row} for row in tokens)
    )
    facts, got = cat(shard, "-t", "u16")
    assert facts["token_bytes"] == 2 and facts["type"] == "i64"
    assert np.array_equal(got, tokens.ravel())


@pytest.mark.parametrize("dtype", TYPES + ["int"])
def test_scalars(tmp_path, dtype):
    kind = "int64" if dtype == "int" else dtype
    tokens = rows(50, 1, kind).ravel()
    (shard,) = write(tmp_path / "d", {"t": dtype}, ({"t": int(value)} for value in tokens))
    check([shard], tokens.astype(np.uint32 if tokens.dtype.itemsize > 2 else np.uint16), 1)


@pytest.mark.parametrize("length", [1, 7, 255, 256, 2048, 65535, 65536, 70000])
def test_lengths(tmp_path, length):
    """A shape has 1, 2 or 4 bytes per dimension."""
    tokens = rows(3, length, "int32")
    shards = write(
        tmp_path / "d",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in tokens),
        size_limit=None,
    )
    check(shards, tokens, length)


def test_many_dimensions(tmp_path):
    tokens = rows(4, 2**10, "uint16")
    shards = write(
        tmp_path / "d",
        {"x": "ndarray"},
        ({"x": row.reshape([2] * 10 + [1] * 22)} for row in tokens),
    )
    check(shards, tokens, 2**10)


def several(n, tokens):
    """Columns of all kinds around the tokens, with different lengths in every sample."""
    rng = np.random.default_rng(5)
    columns = {
        "a": "str",
        "b": "ndarray:int32:7",
        "id": "int",
        "json": "json",
        "p": "pkl",
        "tokens": "ndarray:int32",
        "weight": "float32",
        "z": "bytes",
        "zz": "ndarray",
    }
    for i in range(n):
        yield (
            columns,
            {
                "a": "x" * int(rng.integers(0, 200)),
                "b": np.arange(7, dtype=np.int32),
                "id": i,
                "json": {"i": i, "l": [1] * (i % 5)},
                "p": [i] * (i % 9),
                "tokens": tokens[i],
                "weight": np.float32(0.5),
                "z": b"z" * (i % 31),
                "zz": np.ones((i % 4 + 1, 3), np.float32),
            },
        )


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_several_columns(tmp_path, compression):
    tokens = rows(400, 33, "int32")
    samples = list(several(400, tokens))
    shards = write(
        tmp_path / "d",
        samples[0][0],
        (sample for _, sample in samples),
        compression=compression,
        size_limit=1 << 15,
    )
    assert len(shards) > 2
    check(shards, tokens, 33)
    check(shards, np.tile(np.arange(7), 400), 7, "-c", "b")
    check(shards, np.arange(400), 1, "-c", "id")
    for column, why in (
        ("p", "pickle"),
        ("a", "`str`"),
        ("json", "`json`"),
        ("weight", "`float32`"),
        ("nope", "no column nope"),
        ("zz", "floating-point"),
        ("z", "multiple|no tokens|has no tokens|sizes"),
    ):
        error = cat(shards[0], "-c", column)
        assert isinstance(error, str) and any(part in error for part in why.split("|")), error


def test_large_samples_of_many_columns(tmp_path):
    """Samples above 1 MiB are checked when read; headers above 64 bytes are read in parts."""
    tokens = rows(600, 700, "int32")
    columns = {f"c{i:02}": "str" for i in range(20)} | {"tokens": "ndarray:int32"}
    rng = np.random.default_rng(2)
    shards = write(
        tmp_path / "d",
        columns,
        (
            {"tokens": row} | {f"c{i:02}": "é" * int(rng.integers(0, 9)) for i in range(20)}
            for row in tokens
        ),
        size_limit=None,
    )
    assert shards[0].stat().st_size > 1 << 20
    check(shards, tokens, 700)
    shards = write(
        tmp_path / "e",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in tokens),
        size_limit=None,
    )
    assert shards[0].stat().st_size > 1 << 20
    check(shards, tokens, 700)


def test_which_column(tmp_path):
    a, b = rows(3, 5, "int32", 1), rows(3, 5, "int32", 2)
    for i, (columns, expected) in enumerate(
        [
            ({"tokens": "ndarray:int32", "input_ids": "ndarray:int32"}, a),
            ({"input_ids": "ndarray:int32", "labels": "ndarray:int32"}, a),
        ]
    ):
        name, *others = columns
        samples = (
            {
                name: x,
                **{
                    o: "s" if columns[o] == "str" else 4 if columns[o] == "int64" else y
                    for o in others
                },
            }
            for x, y in zip(a, b)
        )
        check(write(tmp_path / str(i), columns, samples), expected, 5)
    shards = write(
        tmp_path / "two",
        {"labels": "ndarray:int32", "mask": "ndarray:int32"},
        ({"labels": x, "mask": y} for x, y in zip(a, b)),
    )
    assert "no column is called tokens or input_ids" in cat(shards[0])
    check(shards, b, 5, "-c", "mask")
    shards = write(tmp_path / "none", {"text": "str", "more": "pkl"}, [{"text": "x", "more": 1}])
    assert "no column is called tokens or input_ids" in cat(shards[0])


def test_window(tmp_path):
    (shard,) = write(
        tmp_path / "d",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in rows(3, 128, "int32")),
    )
    assert "set seq_len: 128 and extra: 0" in cat(shard, "-w", "129")


WIDTHS = {"uint16": "u16", "int32": "u32"}  # of bytes


def documents(lengths, dtype, seed=3):
    values = rows(1, sum(lengths), dtype, seed)[0]
    return np.split(values, np.cumsum(lengths)[:-1])


def check_documents(shard, expected, *options):
    facts, tokens = cat(shard, *options)
    ends = np.cumsum([len(d) for d in expected])
    assert (facts["sample_tokens"], facts["documents"]) == (0, len(expected))
    assert facts["boundaries"] == ends[:-1].tolist()
    assert np.array_equal(tokens, np.concatenate(expected))


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("form", ["type", "none", "bytes", "wide", "text"])
def test_samples_of_different_lengths_are_documents(tmp_path, dtype, form):
    """The tokens of all samples, in order; also where shapes need more bytes, have two dimensions,
    or a text follows.
    """
    lengths = [100, 1, 255, 256, 300, 65535, 65536, 2, 2, 99, *range(2, 200, 2)]
    samples = documents([n + n % 2 for n in lengths] if form == "wide" else lengths, dtype)
    encoding = {"none": "ndarray", "wide": "ndarray", "bytes": "bytes"}.get(
        form, f"ndarray:{dtype}"
    )
    value = {"wide": lambda d: d.reshape(2, -1), "bytes": lambda d: d.tobytes()}.get(
        form, lambda d: d
    )
    text, options = (
        form == "text",
        (["-t", WIDTHS[dtype]] if form == "bytes" and dtype in WIDTHS else []),
    )
    for compression in None, "zstd":
        (shard,) = write(
            tmp_path / str(compression),
            {"tokens": encoding, **({"zz": "str"} if text else {})},
            (
                {"tokens": value(d), **({"zz": "x" * (k % 7)} if text else {})}
                for k, d in enumerate(samples)
            ),
            compression=compression,
            size_limit=1 << 30,
        )
        check_documents(shard, samples, *options)
        check_documents(shard, samples, "-w", "129", *options)


@pytest.mark.parametrize("lengths", [[0, 5, 5], [5, 0, 5], [5, 7, 0, 0]])
def test_empty_samples_are_documents_without_tokens(tmp_path, lengths):
    """Mosaic writes them in columns of bytes only."""
    samples = documents(lengths, "int32")
    (shard,) = write(tmp_path, {"tokens": "bytes"}, ({"tokens": d.tobytes()} for d in samples))
    facts, tokens = cat(shard, "-t", "u32")
    assert np.array_equal(tokens, np.concatenate(samples))
    assert facts["boundaries"] == sorted(set(np.cumsum(lengths).tolist()) - {0, sum(lengths)})


def test_shards_of_documents_that_are_alike_by_chance(tmp_path):
    """A small shard's samples may all have one length. Its index tells that others differ; without
    windows, or with windows of that length, they stay samples.
    """
    samples = documents([400, 300, 500, 200, 700], "int32")
    columns = {"tokens": "ndarray:int32"}
    shards = write(tmp_path / "d", columns, ({"tokens": d} for d in samples), size_limit=4000)
    assert len(shards) > 1
    *_, last = shards
    check_documents(last, samples[-1:], "-w", "65")
    assert cat(last, "-w", "700")[0]["sample_tokens"] == 700
    (tmp_path / "d/index.json").unlink()
    assert "set seq_len: 700 and extra: 0" in cat(last, "-w", "65")


def test_documents_are_served_as_one_stream(tmp_path):
    samples = documents([400, 300, 500, 200, 700], "int32")
    columns = {"tokens": "ndarray:int32"}
    write(tmp_path / "d", columns, ({"tokens": d % 1000} for d in samples), size_limit=4000)
    config = tmp_path / "tokend.yaml"
    config.write_text(
        "streams: {a: {seed: 1, seq_len: 64, documents: true, datasets: "
        f"[{{name: d, path: {tmp_path}/d}}]}}}}"
    )
    code, out, err = run(TOKEND, "--check", "-c", config)
    assert code == 0 and b"2100 tokens" in out, err


def test_damaged_documents_are_refused(tmp_path):
    samples = documents([10, 20, 30], "int32")
    (shard,) = write(tmp_path / "d", {"tokens": "ndarray:int32"}, ({"tokens": d} for d in samples))
    (tmp_path / "d/index.json").unlink()
    whole = bytearray(shard.read_bytes())
    at = whole.index(samples[1].tobytes())
    assert whole[at - 2 : at] == b"\4\24"
    whole[at - 1] = 19
    shard.write_bytes(whole)
    assert "sample 1: shape makes 19 tokens of 4 bytes" in cat(shard)


def test_samples_of_different_types_are_refused(tmp_path):
    (shard,) = write(
        tmp_path / "d",
        {"tokens": "ndarray"},
        [{"tokens": np.ones(4, "int32")}, {"tokens": np.ones(4, "uint32")}],
    )
    assert cat(shard) == "sample 1 has tokens of u32, sample 0 of i32; all must have the same type"


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_merged(tmp_path, compression):
    tokens = rows(90, 64, "uint16")
    root = tmp_path / "d"
    for k in range(3):
        write(
            root / str(k),
            {"tokens": "ndarray:uint16"},
            ({"tokens": row} for row in tokens[30 * k : 30 * k + 30]),
            compression=compression,
            size_limit=2048,
        )
    merge_index(str(root))
    shards = sorted(root.rglob("shard.*"))
    assert len(shards) > 6 and (root / "index.json").exists()
    check(shards, tokens, 64)
    for k in range(3):
        (root / str(k) / "index.json").unlink()  # the merged index is enough
    check(shards, tokens, 64)
    os.chdir(root / "1")  # however a file is named
    check(
        [Path(shards[-1].name if compression is None else shards[-1].name)],
        cat(root / "1" / shards[-1].name)[1],
        64,
    )
    shards[3].unlink()
    error = cat(shards[0])
    assert error.startswith("index.json: shards[3] is '0/") or "there is no such file" in error, (
        error
    )


def test_cache_with_raw_files_only(tmp_path):
    """Mosaic's readers unpack to the cache and may delete the compressed file."""
    import zstandard

    tokens = rows(40, 64, "int32")
    shards = write(
        tmp_path / "d",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in tokens),
        compression="zstd",
        size_limit=4096,
    )
    raws = []
    for shard in shards:
        raws.append(shard.with_suffix(""))
        raws[-1].write_bytes(zstandard.decompress(shard.read_bytes()))
    check(raws, tokens, 64)
    check(shards, tokens, 64)
    for shard in shards:
        shard.unlink()
    check(raws, tokens, 64)
    for raw in raws[::2]:  # compressed again under another name
        Path(str(raw) + ".zst").write_bytes(zstandard.compress(raw.read_bytes(), 3))
        raw.unlink()
    check([raw if raw.exists() else Path(str(raw) + ".zst") for raw in raws], tokens, 64)


def test_without_index(tmp_path):
    tokens = rows(10, 16, "uint32")
    (shard,) = write(
        tmp_path / "d", {"tokens": "ndarray:uint32"}, ({"tokens": row} for row in tokens)
    )
    shutil.copy(shard, tmp_path / "x.mds")
    check([tmp_path / "x.mds"], tokens, 16)


@pytest.mark.parametrize("compression", ["gz", "bz2", "br", "snappy"])
def test_other_compressions(tmp_path, compression):
    tokens = rows(10, 16, "uint32")
    (shard,) = write(
        tmp_path / "d",
        {"tokens": "ndarray:uint32"},
        ({"tokens": row} for row in tokens),
        compression=compression,
    )
    assert shard.name == "shard.00000.mds." + compression
    assert "; decompress it" in cat(shard)
    if compression == "bz2":
        raw = shard.with_suffix("")
        raw.write_bytes(bz2.decompress(shard.read_bytes()))
        check([raw], tokens, 16)


def test_flipped_bits_are_found(tmp_path):
    """The writer's zstd frames have no checksum, so only a hash in the index finds some errors."""
    tokens = rows(200, 64, "int32", 3) % 50000
    (shard,) = write(
        tmp_path / "d",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in tokens),
        compression="zstd",
        hashes=["xxh64"],
    )
    good = shard.read_bytes()
    for at in range(100, len(good), 997):
        shard.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert isinstance(cat(shard), str), at
    shard.write_bytes(good)
    check([shard], tokens, 64)


def test_hashes_of_the_index(tmp_path):
    """A small raw shard is compared with its hash; an invalid hash is refused."""
    tokens = rows(200, 64, "int32", 3) % 50000
    (shard,) = write(
        tmp_path / "d",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in tokens),
        hashes=["sha1", "xxh64"],
    )
    check([shard], tokens, 64)
    good = shard.read_bytes()
    shard.write_bytes(good[:2000] + bytes([good[2000] ^ 4]) + good[2001:])
    assert "raw_data.hashes in index.json is" in cat(shard)
    shard.write_bytes(good)
    at = tmp_path / "d/index.json"
    index = json.loads(at.read_text())
    for hashes, said in (
        ({"xxh64": 12}, "hashes.xxh64 is an integer"),
        ({"xxh64": "-000000000000001"}, "must be 16 hex digits"),
        (["xxh64"], "raw_data.hashes is an array; must be an object"),
    ):
        index["shards"][0]["raw_data"]["hashes"] = hashes
        at.write_text(json.dumps(index))
        assert said in cat(shard)


def test_mosaics_reader_agrees(tmp_path):
    samples = list(several(50, rows(50, 33, "int32")))
    (shard,) = write(tmp_path / "d", samples[0][0], (sample for _, sample in samples))
    index = json.loads((tmp_path / "d/index.json").read_text())
    reader = reader_from_json(str(tmp_path / "d"), "", index["shards"][0])
    check([shard], np.concatenate([reader[i]["tokens"] for i in range(50)]), 33)


def test_index_and_files_must_agree(tmp_path):
    tokens = rows(40, 64, "int32")
    shards = write(
        tmp_path / "d",
        {"tokens": "ndarray:int32"},
        ({"tokens": row} for row in tokens),
        size_limit=4096,
    )
    stray = shards[0].with_name("shard.00099.mds")
    shutil.copy(shards[0], stray)
    assert "is not among the" in cat(stray) and "index.json" in cat(stray)
    stray.unlink()
    shards[1].rename(tmp_path / "gone.mds")
    assert "shards[1] is 'shard.00001.mds', but there is no such file" in cat(shards[0])
    (tmp_path / "gone.mds").rename(shards[1])
    shutil.copy(shards[0], shards[1])  # with equal size, samples and columns: only a hash differs
    check(shards[:2], np.concatenate([cat(shards[0])[1]] * 2), 64)
    shutil.copy(shards[-1], shards[1])
    assert "number of samples is" in cat(shards[1])
