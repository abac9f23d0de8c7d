"""Shards written by pyarrow, read back by tokend: tokens and document bounds."""

import itertools
import json
import struct
import subprocess

import numpy
import pyarrow as pa
import pytest
from lib.shard_cat import CAT, facts, tokens

RANDOM = numpy.random.default_rng(7)
DOCUMENTS = [RANDOM.integers(0, 128, n) for n in (5, 0, 1, 0, 0, 300, 2049, 17, 0)]
U32 = pa.uint32()
TYPES = {
    "u8": pa.uint8(),
    "i8": pa.int8(),
    "u16": pa.uint16(),
    "i16": pa.int16(),
    "u32": U32,
    "i32": pa.int32(),
    "u64": pa.uint64(),
    "i64": pa.int64(),
}


def ibm(path, documents=DOCUMENTS, type=U32, name="tokens"):
    """Writes a record batch per document, as fms-fsdp's data preparation does."""
    schema = pa.schema([pa.field(name, type)])
    with pa.ipc.new_file(str(path), schema) as writer:
        for document in documents:
            writer.write(pa.record_batch([pa.array(document, type)], schema=schema))
    return path


def table(path, columns, options=None):
    """@columns: pairs of a name and an array per document."""
    batches = [
        pa.record_batch(list(arrays), names=list(columns)) for arrays in zip(*columns.values())
    ]
    with pa.ipc.new_file(str(path), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write(batch)
    return path


def check(path, documents, *options):
    """The shard has the documents one after another, and pyarrow reads the same."""
    seen = facts(path, *options)
    expected = numpy.concatenate([*documents, []]).astype(int)
    ends = itertools.accumulate(map(len, documents))
    assert (seen["format"], seen["tokens"], seen["documents"]) == (
        "arrow",
        len(expected),
        len(documents),
    )
    assert seen["boundaries"] == sorted({e for e in ends if 0 < e < len(expected)})
    assert seen["plain"] == (
        sum(len(d) > 0 for d in documents) == 1 and seen["type"] in ("u16", "u32", "i32")
    )
    numpy.testing.assert_array_equal(tokens(path, *options), expected)
    return seen


@pytest.mark.parametrize("type", TYPES)
def test_types(tmp_path, type):
    assert check(ibm(tmp_path / "a.arrow", type=TYPES[type]), DOCUMENTS)["type"] == type


def test_wide(tmp_path):
    wide = [RANDOM.integers(0, 200_000, n) for n in (100, 2049)]
    for type in pa.uint32(), pa.int32(), pa.int64():
        check(ibm(tmp_path / "a.arrow", wide, type), wide)


@pytest.mark.parametrize(
    "documents",
    [[], DOCUMENTS[1:2], DOCUMENTS[1:2] * 3, DOCUMENTS[:1], DOCUMENTS[:2], DOCUMENTS[5:7]],
)
def test_small(tmp_path, documents):
    check(ibm(tmp_path / "a.arrow", documents), documents)


def test_many(tmp_path):
    """With a footer of many windows."""
    lengths = RANDOM.integers(0, 4, 5000)
    documents = numpy.split(RANDOM.integers(0, 60_000, lengths.sum()), lengths.cumsum()[:-1])
    check(ibm(tmp_path / "a.arrow", documents), documents)


def test_the_format_is_found_by_the_bytes(tmp_path):
    check(ibm(tmp_path / "a.data"), DOCUMENTS)


def test_column_names(tmp_path):
    path = tmp_path / "a.arrow"
    other = [pa.array(d[::-1], pa.int64()) for d in DOCUMENTS]
    these = [pa.array(d, pa.uint32()) for d in DOCUMENTS]
    text = [pa.array(["x"] * len(d), pa.string()) for d in DOCUMENTS]
    backwards = [d[::-1] for d in DOCUMENTS]
    check(ibm(path, name="what"), DOCUMENTS)
    check(ibm(path, name="what"), DOCUMENTS, "-c", "what")
    assert "set `column` to the one" in facts(
        table(path, {"text": text, "what": these}), refused=True
    )
    assert "one number a row, next to text" in facts(
        table(path, {"text": text, "tokens": these}), refused=True
    )
    check(table(path, {"a": other, "tokens": these, "input_ids": other}), DOCUMENTS)
    check(table(path, {"a": other, "input_ids": these}), DOCUMENTS)
    check(table(path, {"a": other, "tokens": these}), backwards, "-c", "a")
    table(path, {"a": other, "b": these, 'c\n"': text})
    assert 'with the tokens, of: a, b, c?"' in facts(path, refused=True)
    assert "no column is called 'x'" in facts(path, "-c", "x", refused=True)
    assert "column 'c?\"' is of type string" in facts(path, "-c", 'c\n"', refused=True)


def every_kind(n):
    """Columns of n rows, one per physical layout."""
    integers, words = (
        list(range(n)),
        [f"a word longer than what a view holds {i}" for i in range(n)],
    )
    lists = [[i] * (i % 3) for i in range(n)]
    ids = pa.array([i % 2 for i in range(n)], pa.int8())
    children = [pa.array(integers, pa.int32()), pa.array(words, pa.string())]

    def of(values, type):
        return pa.array(values, type)

    i32, text, pairs = pa.int32(), pa.string(), [(i, i, i) for i in range(n)]
    nested = pa.struct({"x": pa.int8(), "y": pa.struct({"z": pa.list_(pa.int8())})})
    kinds = {
        "null": pa.nulls(n),
        "float": of(integers, pa.float16()),
        "bool": of([i % 2 == 0 for i in range(n)], pa.bool_()),
        "decimal": of(integers, pa.decimal128(20)),
        "date": of(integers, pa.date32()),
        "time": of(integers, pa.time64("us")),
        "timestamp": of(integers, pa.timestamp("s")),
        "duration": of(integers, pa.duration("s")),
        "interval": of(pairs, pa.month_day_nano_interval()),
        "holes": of([None if i % 2 else i for i in range(n)], i32),
        "string": of(words, text),
        "large string": of(words, pa.large_string()),
        "string view": of(words, pa.string_view()),
        "short view": of(["x"] * n, pa.string_view()),
        "binary": of(words, pa.binary()),
        "binary view": of(words, pa.binary_view()),
        "fixed": of([b"abc"] * n, pa.binary(3)),
        "dictionary": of(words, text).dictionary_encode(),
        "list": of(lists, pa.list_(i32)),
        "large list": of(lists, pa.large_list(i32)),
        "fixed list": of(pairs, pa.list_(i32, 3)),
        "list view": of(lists, pa.list_view(i32)),
        "large list view": of(lists, pa.large_list_view(i32)),
        "map": of([[("a", i)] for i in range(n)], pa.map_(text, i32)),
        "struct": of([{"x": i % 100, "y": {"z": [1] * (i % 3)}} for i in range(n)], nested),
        "sparse": pa.UnionArray.from_sparse(ids, children),
        "dense": pa.UnionArray.from_dense(ids, of([i // 2 for i in range(n)], i32), children),
    }
    if n:
        kinds["runs"] = pa.RunEndEncodedArray.from_arrays(
            pa.array([n], pa.int32()), pa.array([1], pa.int8())
        )
    return kinds


KINDS = list(every_kind(1))
SOME = [DOCUMENTS[i] for i in (0, 2, 5)]


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
@pytest.mark.parametrize("legacy", [False, True])
def test_other_columns_are_ignored(tmp_path, kind, version, legacy):
    """Every kind of column, alone and all together (None), before the tokens and after; both
    versions and framings.
    """
    documents = SOME if kind in (None, "runs") else [*SOME, DOCUMENTS[1]]
    columns = {name: [] for name in KINDS if kind in (name, None)}
    for document in documents:
        made = every_kind(len(document))
        for name, arrays in columns.items():
            arrays.append(made[name])
    if any(
        name == "dictionary" for name in columns
    ):  # one dictionary for all batches, as files require
        whole = pa.array([f"{i}" for i in range(400)])
        columns["dictionary"] = [
            pa.DictionaryArray.from_arrays(pa.array(range(len(d)), pa.int32()), whole)
            for d in documents
        ]
    these = [pa.array(d, pa.uint32()) for d in documents]
    options = pa.ipc.IpcWriteOptions(metadata_version=version, use_legacy_format=legacy)
    path = tmp_path / "a.arrow"
    named = "-c", "tokens"  # next to text, a number may be a count
    check(table(path, {**columns, "tokens": these, "zz": these}, options), documents, *named)
    check(table(path, {"aa": these, "tokens": these, **columns}, options), documents, *named)


def test_nullable_without_nulls(tmp_path):
    """Also with a validity buffer, and as slices of larger arrays."""
    path = tmp_path / "a.arrow"
    whole = pa.array([None] + list(range(100)) + [None], pa.uint32())
    slices = [whole.slice(1, 50), whole.slice(51, 50)]
    check(table(path, {"tokens": slices}), [numpy.arange(50), numpy.arange(50, 100)])
    table(path, {"tokens": [whole]})
    assert "Arrow batch 0: null_count of column 'tokens' is 2; must be 0" in facts(
        path, refused=True
    )


def test_files_with_false_counts_are_refused(tmp_path):
    """Nulls counted as none, rows counted as null, and a batch missing in the footer."""
    path = tmp_path / "a.arrow"
    table(path, {"tokens": [pa.array([None] + list(range(100)), pa.uint32())]})
    good = path.read_bytes()
    at = good.index(struct.pack("<qq", 101, 1))
    path.write_bytes(good[: at + 8] + bytes(8) + good[at + 16 :])
    assert "null_count of column 'tokens' is 0, but in its validity row 0 is null" in facts(
        path, refused=True
    )
    ibm(path)
    good = path.read_bytes()
    last = good.rindex(
        b"\xff\xff\xff\xff", 0, good.rindex(b"\xff\xff\xff\xff")
    )  # before the end marker
    at = good.rindex(struct.pack("<q", last)) - 24 * (len(DOCUMENTS) - 1) - 4
    assert good[at : at + 4] == struct.pack("<I", len(DOCUMENTS))
    path.write_bytes(good[:at] + struct.pack("<I", len(DOCUMENTS) - 1) + good[at + 4 :])
    assert "the bytes between them belong to no batch" in facts(path, refused=True)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_bodies(tmp_path, codec):
    path = table(
        tmp_path / "a.arrow",
        {"tokens": [pa.array(DOCUMENTS[5], pa.uint32())]},
        pa.ipc.IpcWriteOptions(compression=codec),
    )
    name = {"lz4": "LZ4_FRAME", "zstd": "ZSTD"}[codec]
    assert f"Arrow batch 0: its body is compressed ({name})" in facts(path, refused=True)


def test_whole_file_compressed(tmp_path):
    path = ibm(tmp_path / "a.arrow")
    subprocess.run(["zstd", "-q", "--rm", path], check=True)
    seen = facts(tmp_path / "a.arrow.zst")
    assert (seen["format"], seen["boundaries"]) == ("arrow", [5, 6, 306, 2355])
    numpy.testing.assert_array_equal(tokens(tmp_path / "a.arrow.zst"), numpy.concatenate(DOCUMENTS))


def test_other_types_are_refused(tmp_path):
    path = tmp_path / "a.arrow"
    for array, kind in [
        (pa.array([1.0]), "float"),
        (pa.array(["a"]), "string"),
        (pa.array([1], pa.uint32()).dictionary_encode(), "int, dictionary-encoded"),
        (pa.nulls(1), "null"),
    ]:
        table(path, {"a": [pa.array([1])], "tokens": [array]})
        assert (
            f"column 'tokens' is of type {kind}; tokens must be a column of integers, "
            "or of lists of integers" in facts(path, refused=True)
        )
    table(path, {"x": [pa.array(["a"])]})
    assert "no column is called tokens or input_ids" in facts(path, refused=True)
    schema = pa.schema([pa.field("tokens", pa.uint32()), pa.field("tokens", pa.int32())])
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write(
            pa.record_batch([pa.array([1], pa.uint32()), pa.array([2], pa.int32())], schema=schema)
        )
    assert "2 columns are called 'tokens'" in facts(path, refused=True)
    ibm(path, [numpy.array([1, -5])], pa.int32())
    assert "token 1 is -5" in facts(path, refused=True)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.arrow"
    schema = pa.schema([pa.field("tokens", pa.uint32())])
    others = {
        b"": "instead of ARROW1",
        b"FEA1" + bytes(20): "a Feather file of version 1",
        b"ARROW1": "its size is 6",
    }
    for data, text in others.items():
        path.write_bytes(data)
        assert text in facts(path, refused=True)
    writer = pa.ipc.new_file(str(path), schema)  # never closed: no footer
    writer.write(pa.record_batch([pa.array(range(1000), pa.uint32())], schema=schema))
    data = path.read_bytes()
    writer.close()
    path.write_bytes(data)
    assert ": it is truncated, or its writer was not closed" in facts(path, refused=True)


def test_truncated_files_are_refused(tmp_path):
    """At every length, in one process: all names on one command line."""
    whole = ibm(tmp_path / "whole.arrow", SOME[:2]).read_bytes()
    for n in range(len(whole)):
        (tmp_path / f"{n}.arrow").write_bytes(whole[:n])
    done = subprocess.run(
        [CAT, *(tmp_path / f"{n}.arrow" for n in range(len(whole)))], capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and len(lines) == len(whole) and not done.stderr
    assert all(json.loads(line)["error"] for line in lines)
