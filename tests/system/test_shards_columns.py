"""Columns of tokens that pyarrow and Mosaic's streaming may write are read as they were written:
tokens, document bounds and facts. test_formats.py serves a part of it.
"""

import os

import numpy
import pyarrow as pa
import pytest
import zstandard
from test_shards import DOCUMENTS, KINDS, RANDOM, check, several, type_name

from lib import mosaic, shard_writers
from lib.shard_cat import facts, read

mosaic.import_without_init()

from streaming.base.format.mds.writer import MDSWriter  # noqa: E402
from streaming.base.util import merge_index  # noqa: E402

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds

# ---- Arrow ----

WRITERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
LISTS = {"list": pa.list_, "large_list": pa.large_list}
U32, LIST = pa.uint32(), pa.list_(pa.int32())


def write(path, batches, writer="file", **options):
    with WRITERS[writer](str(path), batches[0].schema, **options) as out:
        for batch in batches:
            out.write(batch)
    return path


def arrow(directory, documents=DOCUMENTS, kind=U32):
    """A record batch per document, as fms-fsdp's data preparation writes it."""
    schema = pa.schema([pa.field("tokens", kind)])
    batches = [pa.record_batch([pa.array(d, kind)], schema=schema) for d in documents]
    return write(directory / "a.arrow", batches)


@pytest.mark.parametrize("kind", KINDS)
def test_arrow(directory, kind):
    path = arrow(directory, DOCUMENTS, pa.from_numpy_dtype(numpy.dtype(kind)))
    check(path, DOCUMENTS, format="arrow", type=type_name(kind), documents=9, plain=False)
    path.rename(directory / "a.data")  # the format is found by the bytes
    check(directory / "a.data", DOCUMENTS, format="arrow")


def test_many_batches(directory):
    documents = several(5000, 60_000)  # with a footer of many windows
    check(arrow(directory, documents), documents, type="u32")
    check(arrow(directory, DOCUMENTS[5:6]), DOCUMENTS[5:6], plain=True, documents=1)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_documents(directory, writer, kind):
    """As Hugging Face's datasets writes them. A batch may be empty."""
    path = directory / "a.arrow"
    batches = [DOCUMENTS[:3], [], DOCUMENTS[3:5], DOCUMENTS[5:]]
    for item in KINDS:
        type_ = LISTS[kind](pa.from_numpy_dtype(numpy.dtype(item)))
        made = [pa.record_batch({"input_ids": pa.array(lists, type_)}) for lists in batches]
        check(write(path, made, writer), DOCUMENTS, format="arrow", type=type_name(item), note="")
    many_ = several(5000, 60_000)
    array = pa.array(many_, LIST)
    parts = [array[:1024], array[1024:3073], array[3073:]]
    check(write(path, [pa.record_batch({"x": part}) for part in parts], writer), many_)


@pytest.mark.parametrize("writer", WRITERS)
def test_sliced_null_and_foreign_arrays(directory, writer):
    """Slices of longer arrays, offsets that begin after 0, a child that goes on after the last
    list, validity buffers without nulls, and rows of a fixed size. Null lists are refused.
    """
    path = directory / "a.arrow"
    rows = RANDOM.integers(0, 128, (50, 32)).tolist()
    fixed = pa.array(rows, pa.list_(pa.int32(), 32))
    late = pa.ListArray.from_arrays(pa.array([2, 4, 4, 7], pa.int32()), pa.array(range(9)))
    lists = pa.array(DOCUMENTS, LIST)
    null = pa.array([None, [1, 2], None, [], [3], None], LIST)
    numbers = pa.array([None, *range(100), None], U32)
    for arrays, documents in (
        ([lists.slice(2, 4), lists.slice(6, 1)], DOCUMENTS[2:7]),
        ([late] * 2, [[2, 3], [], [4, 5, 6]] * 2),
        ([numbers.slice(1, 50), numbers.slice(51, 50)], [range(50), range(50, 100)]),
        ([fixed.slice(0, 20), fixed.slice(20)], rows),
    ):
        check(write(path, [pa.record_batch({"tokens": a}) for a in arrays], writer), documents)
    write(path, [pa.record_batch({"x": null})], writer)
    assert "null_count is 3; must be 0" in facts(path, refused=True)


def every_kind(n):
    """Columns of n rows, one per physical layout."""
    integers, i32, text = list(range(n)), pa.int32(), pa.string()
    words = [f"a word longer than what a view holds {i}" for i in integers]
    lists, pairs = [[i] * (i % 3) for i in integers], [(i, i) for i in integers]
    return {
        "bool": pa.array([i % 2 == 0 for i in integers]),
        "holes": pa.array([None if i % 2 else i for i in integers], i32),
        "string": pa.array(words, text),
        "large string": pa.array(words, pa.large_string()),
        "fixed": pa.array([b"abc"] * n, pa.binary(3)),
        "list": pa.array(lists, pa.list_(i32)),
        "fixed list": pa.array(pairs, pa.list_(i32, 2)),
        "map": pa.array([[("a", i)] for i in integers], pa.map_(text, i32)),
        "struct": pa.array([{"x": x} for x in lists], pa.struct({"x": pa.list_(i32)})),
        "null": pa.nulls(n),
        "words": pa.DictionaryArray.from_arrays(pa.array(integers, i32), pa.array(["x"] * 400)),
    }


@pytest.mark.parametrize("writer", WRITERS)
def test_other_columns_are_ignored(directory, writer):
    """Before the tokens and after."""
    documents, batches = [DOCUMENTS[i] for i in (0, 2, 5)], []
    for document in documents:
        before = every_kind(len(document))
        after = {f"{name} after": column for name, column in before.items()}
        batches.append(pa.record_batch({**before, "tokens": pa.array(document, U32), **after}))
    check(write(directory / "a.arrow", batches, writer), documents, "-c", "tokens")


@pytest.mark.parametrize("writer", WRITERS)
def test_what_arrow_added_later_or_wrote_before_is_refused(directory, writer):
    path, ids, i32 = directory / "a.arrow", pa.array([0, 1], pa.int8()), pa.int32()
    tokens = pa.array([1, 2], U32)
    for other in (
        pa.array(["x", "y"], pa.string_view()),
        pa.array([[1], []], pa.list_view(i32)),
        pa.UnionArray.from_sparse(ids, [ids, tokens]),
        pa.RunEndEncodedArray.from_arrays(pa.array([2], i32), pa.array([1], i32)),
    ):
        write(path, [pa.record_batch({"a": other, "tokens": tokens})], writer)
        assert "next to which no tokens can be read" in facts(path, "-c", "tokens", refused=True)
    for how, words in (
        ({"metadata_version": pa.ipc.MetadataVersion.V4}, "since 1.0, is 4) is 3; must be 4"),
        ({"use_legacy_format": True}, "ARROW1" if writer == "stream" else "from before Arrow 1.0"),
    ):
        batch, options = pa.record_batch({"tokens": tokens}), pa.ipc.IpcWriteOptions(**how)
        write(path, [batch], writer, options=options)
        assert words in facts(path, refused=True)


def test_the_column_of_arrow(directory):
    """tokens, then input_ids, then the only one, or the one that is named."""
    path, these, other = directory / "a.arrow", pa.array([1, 2], U32), pa.array([5, 6], pa.int64())
    lists, text = pa.array([[1], [2]], LIST), pa.array(["x", "y"])
    for columns, options, words in (
        ({"what": pa.array([[1, 2]], LIST)}, [], ""),
        ({"length": these}, [], "one number a row, as a count"),
        ({"tokens": other, "input_ids": lists}, [], "one number a row, as a count"),
        ({"a": other, "tokens": these, "input_ids": other}, [], ""),
        ({"a": other, "input_ids": these}, [], ""),
        (("input_ids", "input_ids", "tokens"), [], ""),
        (("tokens", "input_ids", "tokens"), [], "two columns are called 'tokens'; must be"),
        ({"a": these, "tokens": other}, ["-c", "a"], ""),
        ({"text": text, "tokens": these}, [], "one number a row, as a count"),
        ({"length": other, "ids": lists}, [], "set `column` to the one"),
        ({"a": other}, ["-c", "x"], "no column is called 'x'"),
        ({'c\n"': text}, ["-c", 'c\n"'], "column 'c?\"' is of type string"),
    ):
        for writer in WRITERS:
            if isinstance(columns, tuple):
                batch = pa.record_batch([these] * len(columns), names=columns)
            else:
                batch = pa.record_batch(columns)
            write(path, [batch], writer)
            if words:
                assert words in facts(path, *options, refused=True)
            else:
                check(path, [[1, 2]], *options)


def test_bytes_before_the_footer_of_arrow(directory):
    """Writers may align it. Two files that were joined are not one."""
    data = arrow(directory).read_bytes()
    end = len(data) - 10 - int.from_bytes(data[-10:-6], "little")  # of the last message
    for padding in 1, 8, 48:
        (directory / "a.arrow").write_bytes(data[:end] + bytes(padding) + data[end:])
        check(directory / "a.arrow", DOCUMENTS)
    (directory / "a.arrow").write_bytes(2 * data)
    assert "bytes follow its end marker" in facts(directory / "a.arrow", refused=True)


def test_streams_of_arrow(directory):
    """With dictionaries between batches, a big schema, and without the mark of their end."""
    path = directory / "a.arrow"
    words = [pa.array([f"{n}"] * 2).dictionary_encode() for n in range(3)]
    ids = pa.array([[1], [2, 3]], LIST)
    batches = [pa.record_batch({"w": w, "input_ids": ids}) for w in words]
    about = batches[0].schema.with_metadata({"huggingface": "x" * 10_000})
    batches = [batch.cast(about) for batch in batches]
    check(write(path, batches, "stream"), [[1], [2, 3]] * 3, note="")
    whole = path.read_bytes()
    assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    path.write_bytes(whole[:-8])
    assert "has no end marker" in check(path, [[1], [2, 3]] * 3)["note"]


@pytest.mark.parametrize(
    "array, words",
    [
        (pa.array([1.0]), "is of type float"),
        (pa.array([1], U32).dictionary_encode(), "is of type dictionary"),
        (pa.nulls(1), "is of type null"),
        (pa.array([["a"]]), "is of type list"),
        (pa.array([None, 1], U32), "column 'tokens': null_count is 1; must be 0"),
        (pa.array([1, -5], pa.int32()), "token 1 is -5"),
    ],
)
def test_columns_of_arrow_without_tokens_are_refused(directory, array, words):
    batch = pa.record_batch({"a": pa.array([7] * len(array)), "tokens": array})
    assert words in facts(write(directory / "a.arrow", [batch]), "-c", "tokens", refused=True)


def test_compressed_files_of_arrow_are_refused(directory):
    path, numbers = directory / "a.arrow", pa.record_batch({"tokens": pa.array(range(100), U32)})
    write(path, [numbers], options=pa.ipc.IpcWriteOptions(compression="zstd"))
    assert "batch 0, column 'tokens': its body is compressed (ZSTD)" in facts(path, refused=True)


# ---- MDS ----


def mds(out, columns, samples, **options):
    with MDSWriter(columns=columns, out=str(out), size_limit=None, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return next(out.glob("shard.00000.mds*"))


def alike(path, rows, *options):
    """Samples of one length."""
    tokens = numpy.shape(rows)[1]
    about = {"sample_tokens": tokens, "documents": None}
    check(path, rows, "-f", "mds", "-w", str(tokens), *options, **about)


FORMS = {  # name: (encoding, value of a row)
    "shape": ("ndarray:{}:96", lambda row: row),
    "type": ("ndarray:{}", lambda row: row),
    "none": ("ndarray", lambda row: row),
    "bytes": ("bytes", lambda row: row.tobytes()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "zstd:7"])
def test_encodings_of_mds(directory, form, compression):
    encoding, value = FORMS[form]
    for kind in KINDS if form != "bytes" else ("<u2", "<u4", "<i8"):
        dtype = numpy.dtype(kind)
        rows = RANDOM.integers(0, 128, (300, 96)).astype(kind)
        if dtype.itemsize > 2:
            rows[:, 5] = 2**31 - 1
        samples = ({"tokens": value(row)} for row in rows)
        columns, options = {"tokens": encoding.format(dtype.name)}, []
        path = mds(directory / dtype.name, columns, samples, compression=compression)
        if form == "bytes" and dtype.itemsize < 8:
            options = ["-t", type_name(kind)]
        alike(path, rows, *options)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_columns_of_mds(directory, compression):
    """Other columns have different lengths in every sample."""
    rows = RANDOM.integers(0, 1000, (600, 700)).astype("<i4")  # over a MiB: checked when read
    columns = {
        "a": "str", "b": "ndarray:int32:7", "c": "ndarray:int32:2,3", "id": "int", "p": "pkl",
        "tokens": "ndarray:int32", "weight": "float32", "z": "bytes", "zz": "ndarray",
    }  # fmt: skip
    samples = (
        {
            "a": "é" * (i % 200), "b": numpy.arange(7, dtype="i4"), "id": i, "p": [i] * (i % 9),
            "c": numpy.ones((2, 3), "i4"), "tokens": row, "weight": numpy.float32(0.5),
            "z": b"z" * (i % 31), "zz": numpy.ones((i % 4 + 1, 3), "f4"),
        }
        for i, row in enumerate(rows)
    )  # fmt: skip
    path = mds(directory / "d", columns, samples, compression=compression)
    alike(path, rows)
    alike(path, [range(7)] * 600, "-c", "b")
    for column, words in (
        ("p", "is encoded as `pkl`"),
        ("id", "is encoded as `int`"),
        ("c", "of one dimension, with"),
        ("nope", "no column nope"),
        ("zz", "floating-point"),
    ):
        assert words in facts(path, "-c", column, refused=True)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize(
    "encoding, kind, options",
    [
        ("ndarray:uint16", "<u2", []),
        ("ndarray", "<i4", []),
        ("ndarray:int64", "<i8", []),
        ("bytes", "<i8", []),
        ("bytes", "<u2", ["-t", "u16"]),
    ],
)
def test_samples_of_different_lengths_are_documents(
    directory, encoding, kind, options, compression
):
    """Also where shapes need more bytes, and a text follows."""
    lengths = [400, 2, 256, 258, 300, *[65534] * 9, 65536, 2, 2, 98, *range(2, 200, 2)]
    samples = [RANDOM.integers(0, 1000, n).astype(kind) for n in lengths]
    rows = []
    for k, tokens in enumerate(samples):
        value = tokens.tobytes() if encoding == "bytes" else tokens
        rows.append({"tokens": value, "zz": "x" * (k % 7)})
    columns = {"tokens": encoding, "zz": "str"}
    path = mds(directory / "d", columns, rows, compression=compression)
    check(path, samples, "-w", "129", *options, sample_tokens=0, documents=len(samples))


@pytest.mark.parametrize(
    "encoding, first, others, shape",
    [
        ("ndarray:uint16", "<u2", "<u2", (2, 300)),
        ("ndarray:int32", "<i4", "<i4", (1, 1, 600)),
        ("ndarray", "<i4", "<i4", (1, 1, 600)),
        ("ndarray", "<i4", "<u4", 600),
        ("ndarray", "<i4", "<i8", 600),
    ],
)
def test_headers_of_large_shards_of_mds_are_checked_when_they_are_read(
    directory, encoding, first, others, shape
):
    """If the size of a sample is not that of an array of one dimension, it is refused at once."""
    rows = [RANDOM.integers(0, 1000, 600).astype(first) for _ in range(1000)]
    samples = [{"tokens": row} for row in rows]
    alike(mds(directory / "alike", {"tokens": encoding}, samples), rows)
    samples[500]["tokens"] = rows[500].reshape(2, 2, 150)
    path = mds(directory / "shown", {"tokens": encoding}, samples)
    assert "sample 500: " in facts(path, refused=True)
    samples[500]["tokens"] = rows[500].astype(others).reshape(shape)
    path = mds(directory / "hidden", {"tokens": encoding}, samples)
    words = "must be that of one dimension and "
    assert words in facts(path, "-w", "600", refused=True)


def rows_in_shards(out, rows, **options):
    shard_writers.mds(out, rows, 4096, **options)
    return sorted(out.glob("shard.*"))


def in_order(shards, rows):
    """The shards have these rows, one after another."""
    at = 0
    for shard in shards:
        seen, tokens = read(shard, "-w", str(len(rows[0])))
        n = seen["tokens"] // len(rows[0])
        assert numpy.array_equal(tokens, numpy.ravel(rows[at : at + n])), shard
        at += n
    assert at == len(rows)


def test_a_merged_index_of_mds(directory):
    """Instead of the one in its directory; however the shard is named."""
    rows = RANDOM.integers(0, 1000, (90, 64)).astype("<i4")
    for k in range(3):
        rows_in_shards(directory / "d" / str(k), rows[30 * k : 30 * k + 30], compression="zstd")
    merge_index(str(directory / "d"))
    shards = sorted((directory / "d").rglob("shard.*"))
    in_order(shards, rows)
    for k in range(3):
        (directory / "d" / str(k) / "index.json").unlink()
    in_order([os.path.relpath(shard) for shard in shards], rows)
    shards[-1].unlink()
    assert "there is no such file" in facts(shards[0], refused=True)


def test_raw_and_compressed_files_of_mds(directory):
    """Mosaic's readers unpack to the cache and may delete the compressed file."""
    rows = RANDOM.integers(0, 1000, (40, 64)).astype("<i4")
    shards = rows_in_shards(directory / "d", rows, compression="zstd")
    raws = [shard.with_suffix("") for shard in shards]
    for shard, raw in zip(shards, raws):
        raw.write_bytes(zstandard.decompress(shard.read_bytes()))
    in_order(raws, rows)
    in_order(shards, rows)
    for shard in shards:
        shard.unlink()
    in_order(raws, rows)


def test_lengths_of_other_columns_of_mds(directory):
    """They are compared with the offsets also if only one column has a length."""
    rows = RANDOM.integers(0, 1000, (600, 1024)).astype("<u2")
    columns = {"tokens": "ndarray:uint16:1024", "url": "str"}
    samples = ({"tokens": row, "url": "u" * (i % 99)} for i, row in enumerate(rows))
    path = mds(directory / "d", columns, samples)
    alike(path, rows)
    damaged = bytearray(path.read_bytes())
    damaged[4 + 4 * 501] ^= 8
    path.write_bytes(damaged)
    assert "sample 500: its lengths and columns take" in facts(path, refused=True)


def test_small_shards_of_documents(directory):
    """All samples of a shard may have one length by chance, and some may be empty."""
    samples = [RANDOM.integers(0, 1000, n).astype("<i4") for n in (400, 300, 500, 200, 700)]
    *_, last = rows_in_shards(directory / "d", samples)
    check(last, samples[-1:], "-w", "65", sample_tokens=0)
    alike(last, samples[-1:])
    even = mds(directory / "f", {"tokens": "ndarray:int32"}, [{"tokens": samples[0]}] * 3)
    assert "set seq_len: 400 and extra: 0" in facts(even, "-w", "65")["note"]
    nothing = RANDOM.integers(0, 1000, 0).astype("<i8")  # as an empty line of text becomes
    rows = [nothing if i == 7 else RANDOM.integers(0, 1000, 64).astype("<i8") for i in range(61)]
    path = mds(directory / "e", {"tokens": "bytes"}, [{"tokens": r.tobytes()} for r in rows])
    assert "sample 7 is not as long" in check(path, rows, "-w", "64", sample_tokens=0)["note"]
