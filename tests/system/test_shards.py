"""Shards of NumPy, datatrove, Megatron-core and zstd are read as they were written: tokens,
document bounds and facts. test_formats.py serves a part of it.
"""

import errno
import gzip
import io
import json
import os
import struct
import subprocess
import warnings

import numpy
import pytest
import pyzstd
import torch
import xxhash
import zstandard
from datatrove.pipeline.tokens import DocumentTokenizerMerger

from lib import shard_writers
from lib.corpus import corpus
from lib.preload import Preload
from lib.shard_cat import CAT, facts, read

with warnings.catch_warnings():  # about Transformer Engine and Apex, which its index does not need
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

RANDOM = numpy.random.default_rng(7)
DOCUMENTS = [RANDOM.integers(0, 128, n) for n in (5, 0, 1, 0, 0, 300, 2049, 17, 0)]
TOKENS = numpy.concatenate(DOCUMENTS)
KINDS = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8")
U16 = TOKENS.astype("<u2")


def several(count, most):
    """Many short documents."""
    lengths = RANDOM.integers(0, 4, count)
    return numpy.split(RANDOM.integers(0, most, lengths.sum()), lengths.cumsum()[:-1])


def check(path, parts, *options, **wanted):
    """The shard has the documents @parts one after another, and the @wanted facts. Samples of MDS
    that are alike have no bounds.
    """
    seen, tokens = read(path, *options)
    ends = numpy.cumsum([len(part) for part in parts], dtype=int)
    want = numpy.concatenate([*parts, []]).astype(int)
    assert numpy.array_equal(tokens, want), (seen, len(tokens), len(want))
    inner = sorted({int(end) for end in ends if 0 < end < len(want)})
    if wanted.get("documents", 0) is None or seen["sample_tokens"]:
        inner = []
    assert (seen["tokens"], seen["boundaries"]) == (len(want), inner)
    assert {key: seen[key] for key in wanted} == wanted
    return seen


def type_name(kind):
    kind = numpy.dtype(kind)
    return f"{kind.kind}{8 * kind.itemsize}"


# ---- NumPy ----


@pytest.mark.parametrize("kind", KINDS)
def test_numpy(directory, kind):
    path = directory / "a.npy"
    for major, shape in ((1, TOKENS.shape), (2, (len(TOKENS), 1)), (3, (0, 7))):
        tokens = TOKENS[: numpy.prod(shape)]
        with open(path, "wb") as file:
            array = tokens.astype(kind).reshape(shape)
            numpy.lib.format.write_array(file, array, version=(major, 0))
        plain = kind in ("<u2", "<u4", "<i4")
        check(path, [tokens], format="npy", type=type_name(kind), plain=plain, documents=None)
    numpy.save(path, TOKENS.astype(kind))
    for hint in ("u16", "u32"):
        check(path, [TOKENS], "-t", hint, documents=None)


@pytest.mark.parametrize(
    "header",
    [
        '{"shape" : ( 9 , ) , "fortran_order" : True , "descr" : "<u2" }',
        " { 'descr': '<u2', 'fortran_order': False, 'shape': (9L,), } ",
    ],
)
def test_a_header_of_numpy_has_any_spelling(directory, header):
    head = b"\x93NUMPY\1\0" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n"
    (directory / "a.npy").write_bytes(head + U16[:9].tobytes())
    check(directory / "a.npy", [U16[:9]], format="npy", plain=True)


# ---- datatrove ----


def datatrove(directory, size=2, documents=DOCUMENTS, **how):
    shard_writers.datatrove(f"{directory}/a", documents, numpy.dtype(f"<u{size}"), **how)
    return directory / "a.ds"


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("metadata", [True, False])
def test_datatrove(directory, size, index, metadata):
    masks = [numpy.ones(len(d), bool) for d in DOCUMENTS]
    path = datatrove(directory, size, masks=masks, save_index=index, save_final_metadata=metadata)
    options = [] if metadata or index else ["-t", f"u{8 * size}"]
    about = {"format": "datatrove", "type": f"u{8 * size}", "plain": True}
    check(path, DOCUMENTS, *options, documents=len(DOCUMENTS) if index else None, **about)


def test_merged_datatrove(directory):
    for name in ("in", "out"):
        (directory / name).mkdir()
    datatrove(directory / "in", 4)
    places = str(directory / "in"), str(directory / "out")
    DocumentTokenizerMerger(*places, "all", seed=1, progress=False).run(None)
    (shard,) = (directory / "out").glob("*.ds")
    tokens, ends = numpy.fromfile(shard, "<u4"), numpy.fromfile(str(shard) + ".index", "<u8")
    assert len(tokens) == len(TOKENS)
    check(shard, numpy.split(tokens, ends[:-1].astype(int)), documents=len(ends), type="u32")


# ---- zstd ----


@pytest.mark.parametrize("sized, sums, empty", [(True, True, False), (False, False, True)])
def test_seekable_zstd(directory, sized, sums, empty):
    """The layout of zstd's contrib/seekable_format, with frames of the zstandard package."""
    compressor = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=sums)
    content, path, table = U16.tobytes(), directory / "a.bin.zst", b""
    pieces = [content[at : at + 101] for at in range(0, len(content), 101)]
    if empty:
        pieces = [part for piece in pieces for part in (b"", piece)]
    frames = [compressor.compress(piece) for piece in pieces]
    for piece, packed in zip(pieces, frames):
        table += struct.pack("<II", len(packed), len(piece))
        if sums:
            table += struct.pack("<I", xxhash.xxh64_intdigest(piece) & 0xFFFFFFFF)
    table = struct.pack("<II", 0x184D2A5E, len(table) + 9) + table
    table += struct.pack("<IBI", len(frames), 128 if sums else 0, 0x8F92EAB1)
    path.write_bytes(b"".join(frames) + table)
    check(path, [TOKENS], format="flat", plain=False, frame_bytes=101)


@pytest.mark.parametrize("frame", [257, 1 << 30])  # the first has a table of several reads
def test_zstd_of_pyzstd(directory, frame):
    """With blocks and frames that are flushed anywhere."""
    tokens = RANDOM.integers(0, 50_000, 100_003)
    content = io.BytesIO()
    numpy.save(content, tokens)
    content = content.getvalue()
    path = directory / "a.npy.zst"
    with pyzstd.SeekableZstdFile(path, "w", max_frame_content_size=frame) as file:
        for at in range(0, len(content), 777):
            file.write(content[at : at + 777])
            if at % 7770 == 0:
                file.flush(file.FLUSH_FRAME if at % 15540 == 0 else file.FLUSH_BLOCK)
    assert 0 < check(path, [tokens], format="npy", plain=False)["frame_bytes"] <= frame


def test_the_program_zstd(directory):
    """From a file, from a pipe (without its size), both, and with skippable frames, as pzstd."""
    content, pipe = U16.tobytes(), subprocess.PIPE
    (directory / "a.bin").write_bytes(content)
    subprocess.run(["zstd", "-q", directory / "a.bin"], check=True)
    whole = (directory / "a.bin.zst").read_bytes()
    piped = subprocess.run(["zstd", "-qc"], input=content, stdout=pipe, check=True).stdout
    skipped = struct.pack("<II", 0x184D2A53, 3) + b"abc"
    for name, data, times in (
        ("b.bin.zstd", piped, 1),
        ("bare.zst", whole + piped, 2),
        ("c.bin", 2 * whole + piped, 3),
        ("skippable.bin.zst", skipped + whole + skipped + piped, 2),
    ):
        (directory / name).write_bytes(data)
        check(directory / name, [numpy.tile(TOKENS, times)], format="flat", plain=False)


def test_an_index_next_to_a_compressed_shard(directory):
    for write in (datatrove, megatron):
        path = write(directory)
        subprocess.run(["zstd", "-q", "--rm", path], check=True)
        check(f"{path}.zst", DOCUMENTS, plain=False, documents=len(DOCUMENTS))
        os.unlink(f"{path}.zst")


# ---- lists of document bounds ----

BOUNDS = {  # text: (documents, boundaries) of 100 tokens
    "0,100": (1, []),
    "0,40\r\n40,41\r\n41,100\r\n": (3, [40, 41]),
    "10,20\n20,30\n50,99\n": (3, [10, 20, 30, 50, 99]),
    "0,0\n0,5\n5,5\n5,5\n7,7\n9,100\n100,100\n": (7, [5, 9]),  # empty ones have no bounds
    "": (0, []),
    '0,7,"a, ""b""\r\n1,2",s3://x,3\r\n7,100,,,\r\n': (2, [7]),
    '"0","007",x"y,z\r7,100,""\r': (2, [7]),
}


@pytest.mark.parametrize("ending", [".npy", ".bin"])
def test_lists_of_bounds(directory, ending):
    (directory / f"a{ending}").write_bytes(bytes(200))
    for text, (documents, boundaries) in BOUNDS.items():
        (directory / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
        seen = facts(directory / f"a{ending}")
        assert (seen["documents"], seen["boundaries"]) == (documents, boundaries), text


def test_a_list_of_many_members_of_gzip(directory):
    """Rows may cross them and the chunks in which the file is read."""
    ends = RANDOM.integers(1, 3000, 40_000).cumsum()
    rows = "".join(f"{a},{b},{a * b:x}\n" for a, b in zip([0, *ends], ends)).encode()
    cuts = sorted(RANDOM.integers(0, len(rows), 50).tolist())
    parts = [gzip.compress(rows[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)])]
    (directory / "a.csv.gz").write_bytes(b"".join(parts))
    with open(directory / "a.bin", "wb") as file:
        file.truncate(2 * int(ends[-1]))
    seen = facts(directory / "a.bin")
    assert seen["boundaries"] == ends[:-1].tolist()
    assert 40_000 < seen["index_bytes"] < 3 * 40_000  # what the daemon counts as memory


# ---- Megatron ----


def megatron(directory, sequences=DOCUMENTS, kind="<u2", ends=None, multimodal=False, name="a"):
    """@ends: the sequences that end a document; None: all."""
    path = f"{directory}/{name}"
    builder = IndexedDatasetBuilder(
        path + ".bin", dtype=numpy.dtype(kind).type, multimodal=multimodal
    )
    for i, sequence in enumerate(sequences):
        builder.add_item(torch.from_numpy(sequence), mode=i % 2)
        if ends is None or i in ends:
            builder.end_document()
    builder.finalize(path + ".idx")
    return directory / f"{name}.bin"


@pytest.mark.parametrize("kind", ["u1", "i1", "<i2", "<i4", "<i8", "<u2"])
@pytest.mark.parametrize("multimodal", [False, True])
def test_megatron(directory, kind, multimodal):
    path = megatron(directory, DOCUMENTS, kind, multimodal=multimodal)
    about = {"type": type_name(kind), "plain": kind in ("<u2", "<i4"), "data_at": 0}
    seen = check(path, DOCUMENTS, format="megatron", documents=len(DOCUMENTS), **about)
    assert ("multimodal" in seen["note"]) == multimodal
    theirs = IndexedDataset(str(path)[:-4])
    assert numpy.array_equal(numpy.concatenate([theirs[i] for i in range(len(theirs))]), TOKENS)


def test_numbers_of_sequences(directory):
    check(megatron(directory, ends={3, 8}), DOCUMENTS, documents=len(DOCUMENTS))
    for sequences in (
        [],
        DOCUMENTS[1:2],
        DOCUMENTS[:1],
        *(several(n, 60_000) for n in (2049, 9999)),
    ):
        check(megatron(directory, sequences, "<i4"), sequences, documents=len(sequences))


def test_merged_megatron(directory):
    megatron(directory, name="one")
    megatron(directory, DOCUMENTS[::-1], name="two")
    builder = IndexedDatasetBuilder(str(directory / "a.bin"), dtype=numpy.uint16)
    for name in "one", "two":
        builder.add_index(str(directory / name))
    builder.end_document()  # a second end in the same place
    builder.finalize(str(directory / "a.idx"))
    check(directory / "a.bin", DOCUMENTS + DOCUMENTS[::-1], documents=18)


@pytest.mark.parametrize("order", [[8, 7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 6, 7], [5, 6, 7], []])
def test_sequences_in_another_order_than_in_the_file(directory, order):
    for kind in ("u1", "<u2", "<i8"):
        path, index = megatron(directory, DOCUMENTS, kind), directory / "a.idx"
        data, n = index.read_bytes(), len(DOCUMENTS)
        lengths = numpy.frombuffer(data, "<i4", n, 34)[order]
        pointers = numpy.frombuffer(data, "<i8", n, 34 + 4 * n)[order]
        counts = struct.pack("<QQ", len(order), 2) + lengths.tobytes() + pointers.tobytes()
        index.write_bytes(data[:18] + counts + struct.pack("<qq", 0, len(order)))
        plain = order in ([5, 6, 7], []) and kind == "<u2"
        seen = check(path, [DOCUMENTS[i] for i in order], documents=len(order), plain=plain)
        assert ("are in no sequence" in seen["note"]) == (len(order) < 9)


# ---- reads that fail ----

FAILING = r"""
#include <errno.h>
#include <sys/stat.h>

static int fails(void)
{
	int64_t i = words[READS]++;

	errno = EIO;
	return i >= words[FIRST] && i < words[END];
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	NEXT(pread);
	return fails() ? -1 : next(fd, to, n, at);
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) { return pread(fd, to, n, at); }
"""
READ = {  # one shard of each kind
    "npy": "a/0.npy", "olmo": "a/0.npy", "datatrove": "a/0.ds", "megatron": "a/0.bin",
    "arrow": "a/0.arrow", "zstd-frames": "a/0.bin.zst",
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_read_that_fails_is_no_fault_of_the_shard(place, name):
    """With any read failed, alone or with later ones, the shard is the same or the error has EIO:
    the daemon tries again because of it.
    """
    preload = Preload(place, FAILING, ["reads", "first", "end"])
    path, refused = corpus()[0] / name / READ[name], 0

    def seen(first, end):
        preload.set(reads=0, first=first, end=end)
        done = subprocess.run([CAT, path], capture_output=True, env=preload.env)
        return json.loads(done.stdout)

    sound = seen(0, 0)
    reads = preload.get("reads")
    assert 1 < reads < 500
    for first in range(0, reads, 1 + reads // 40):
        for end in (first + 1, reads):
            one = seen(first, end)
            assert one == sound or one.get("errno") == errno.EIO, (first, end, one)
            refused += one != sound
    assert refused > 1
