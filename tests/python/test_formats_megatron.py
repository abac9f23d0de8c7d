"""Shards written by Megatron-core's builder, read back by tokend: tokens and document bounds."""

import itertools
import os
import struct
import subprocess
import warnings

import numpy
import pytest
import torch
from lib.shard_cat import facts, tokens

# it warns that Transformer Engine and Apex are missing, which its index does not need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

HEADER = 34
TYPES = {
    numpy.uint8: "u8",
    numpy.int8: "i8",
    numpy.int16: "i16",
    numpy.int32: "i32",
    numpy.int64: "i64",
    numpy.uint16: "u16",
}
RANDOM = numpy.random.default_rng(7)
SEQUENCES = [RANDOM.integers(0, 128, n) for n in (5, 0, 1, 0, 0, 300, 2049, 17, 0)]


def write(folder, sequences=SEQUENCES, dtype=numpy.uint16, ends=None, name="a", multimodal=False):
    """@ends: the sequences that end a document; None: all."""
    builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype, multimodal=multimodal)
    for i, sequence in enumerate(sequences):
        builder.add_item(torch.from_numpy(sequence), mode=i % 2)
        if ends is None or i in ends:
            builder.end_document()
    builder.finalize(str(folder / f"{name}.idx"))
    return folder / f"{name}.bin"


def check(path, sequences, *options):
    """The shard has the sequences one after another, and Megatron's reader reads the same."""
    seen = facts(path, *options)
    expected = numpy.concatenate([*sequences, []]).astype(int)
    ends = itertools.accumulate(map(len, sequences))
    assert (seen["format"], seen["tokens"], seen["documents"]) == (
        "megatron",
        len(expected),
        len(sequences),
    )
    assert seen["boundaries"] == sorted({e for e in ends if 0 < e < len(expected)})
    numpy.testing.assert_array_equal(tokens(path, *options), expected)
    if len(expected):  # it cannot map an empty file
        theirs = IndexedDataset(str(path)[:-4])
        numpy.testing.assert_array_equal(
            numpy.concatenate([theirs[i] for i in range(len(theirs))]), expected
        )
    return seen


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("multimodal", [False, True])
def test_types(tmp_path, dtype, multimodal):
    seen = check(write(tmp_path, dtype=dtype, multimodal=multimodal), SEQUENCES)
    assert seen["type"] == TYPES[dtype]
    assert seen["plain"] == (dtype in (numpy.uint16, numpy.int32))
    assert seen["data_at"] == 0
    assert ("multimodal" in seen["note"]) == multimodal


def test_wide(tmp_path):
    """Vocabularies above 65,500; tokens of 8 bytes are served in either width."""
    wide = [RANDOM.integers(0, 200_000, n) for n in (100, 2049)]
    for dtype in numpy.int32, numpy.int64:
        check(write(tmp_path, wide, dtype), wide)
    assert "token" in facts(tmp_path / "a.bin", "-t", "u16", refused=True)
    check(write(tmp_path, SEQUENCES, numpy.int64), SEQUENCES, "-t", "u16")


@pytest.mark.parametrize("ends", [{8}, {0, 1, 8}, {3, 8}])
def test_documents_are_sequences(tmp_path, ends):
    check(write(tmp_path, ends=ends), SEQUENCES)


def test_repeated_document_boundaries(tmp_path):
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=numpy.int32)
    builder.end_document()
    builder.add_document(SEQUENCES[5], [100, 0, 200])
    builder.end_document()
    builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    check(tmp_path / "a.bin", [SEQUENCES[5][:100], SEQUENCES[5][:0], SEQUENCES[5][100:]])


@pytest.mark.parametrize(
    "sequences",
    [[], [SEQUENCES[1]], [SEQUENCES[1]] * 3, [SEQUENCES[0]], [SEQUENCES[1], SEQUENCES[0]]],
)
def test_small(tmp_path, sequences):
    check(write(tmp_path, sequences), sequences)


@pytest.mark.parametrize("count", [255, 256, 257, 511, 512, 513, 2047, 2048, 2049, 10_000])
def test_many(tmp_path, count):
    """More than are read at once; some are empty."""
    lengths = RANDOM.integers(0, 4, count)
    sequences = numpy.split(RANDOM.integers(0, 60_000, lengths.sum()), lengths.cumsum()[:-1])
    check(write(tmp_path, sequences), sequences)


def test_merged(tmp_path):
    write(tmp_path, name="one")
    write(tmp_path, SEQUENCES[::-1], name="two")
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=numpy.uint16)
    for name in "one", "two":
        builder.add_index(str(tmp_path / name))
    builder.finalize(str(tmp_path / "a.idx"))
    check(tmp_path / "a.bin", SEQUENCES + SEQUENCES[::-1])


class Index:
    """The parts of an .idx, to write another one for the same .bin."""

    def __init__(self, path):
        self.path, data = path, path.read_bytes()
        self.head, (n, d) = data[:18], struct.unpack("<QQ", data[18:HEADER])
        self.lengths = numpy.frombuffer(data, "<i4", n, HEADER).copy()
        self.pointers = numpy.frombuffer(data, "<i8", n, HEADER + 4 * n).copy()
        self.documents = numpy.frombuffer(data, "<i8", d, HEADER + 12 * n).copy()

    def write(self, order=slice(None)):
        lengths, pointers = self.lengths[order], self.pointers[order]
        documents = numpy.array([0, len(lengths)], "<i8")
        self.path.write_bytes(
            self.head
            + struct.pack("<QQ", len(lengths), len(documents))
            + lengths.tobytes()
            + pointers.tobytes()
            + documents.tobytes()
        )


ORDERS = {
    "backwards": list(range(9))[::-1],
    "gap in the middle": [0, 1, 2, 6, 7, 8],
    "first and last in place": [0, 6, 5, 1, 2, 3, 4, 7, 8],
    "first left out": [5, 6, 7],
    "last left out": [0, 1, 2, 5],
    "one": [6],
    "none": [],
}


@pytest.mark.parametrize("dtype", [numpy.uint8, numpy.uint16, numpy.int32, numpy.int64])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_sequences_in_another_order_than_in_the_file(tmp_path, dtype, order):
    path = write(tmp_path, dtype=dtype)
    Index(tmp_path / "a.idx").write(order)
    seen = check(path, [SEQUENCES[i] for i in order])
    row = order in ([5, 6, 7], [0, 1, 2, 5], [6], [])
    assert seen["plain"] == (row and dtype in (numpy.uint16, numpy.int32))
    assert ("are in no sequence" in seen["note"]) == (
        sum(len(SEQUENCES[i]) for i in order) < sum(map(len, SEQUENCES))
    )


def test_compressed(tmp_path):
    path = write(tmp_path)
    subprocess.run(["zstd", "-q", "--rm", path], check=True)
    seen = facts(tmp_path / "a.bin.zst")
    assert (seen["format"], seen["plain"], seen["documents"]) == ("megatron", False, len(SEQUENCES))
    assert seen["boundaries"] == [5, 6, 306, 2355]
    numpy.testing.assert_array_equal(tokens(tmp_path / "a.bin.zst"), numpy.concatenate(SEQUENCES))


def test_files_without_their_partner_are_refused(tmp_path):
    path = write(tmp_path)
    assert "is a Megatron index, " in facts(tmp_path / "a.idx", refused=True)
    assert "give the .bin" in facts(tmp_path / "a.idx", "-f", "megatron", refused=True)
    (tmp_path / "a.idx").unlink()
    assert "has no .idx next to it" in facts(path, "-f", "megatron", refused=True)
    assert facts(path)["format"] == "flat"
    (tmp_path / "a.idx").mkdir()
    assert "a.idx: is not a regular file" in facts(path, refused=True)


def test_an_unfinished_index_is_refused(tmp_path):
    """The builder allows a missing end of the last document; Megatron's reader refuses it too."""
    path = write(tmp_path, ends={0, 4})
    assert "the last document boundary is sequence 5; must be 9" in facts(path, refused=True)
    with pytest.raises(AssertionError):
        IndexedDataset(str(path)[:-4])


@pytest.mark.parametrize("dtype, code", [(numpy.float32, 7), (numpy.float64, 6)])
def test_floats_are_refused(tmp_path, dtype, code):
    path = write(tmp_path, dtype=dtype)
    assert f"dtype is {code} (f{8 * dtype().itemsize}), which is not an integer type" in facts(
        path, refused=True
    )


def test_truncated_files_are_refused(tmp_path):
    """The .idx at every length, and the .bin a token short."""
    path = write(tmp_path, multimodal=True)
    index = (tmp_path / "a.idx").read_bytes()
    for n in set(range(len(index))) - {len(index) - len(SEQUENCES)}:  # where the modes begin
        (tmp_path / "a.idx").write_bytes(index[:n])
        assert facts(path, refused=True).startswith(".idx: ")
    (tmp_path / "a.idx").write_bytes(index)
    os.truncate(path, path.stat().st_size - 2)
    assert "2372 tokens of u16 in total; the .bin has 4742 bytes, which is 2371" in facts(
        path, refused=True
    )
