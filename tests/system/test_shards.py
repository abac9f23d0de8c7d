"""Shards of NumPy, datatrove, Megatron-core and zstd are read as they were written: tokens,
document bounds and facts. test_formats.py serves a part of it.
"""

import gzip
import io
import os
import struct
import subprocess
import warnings

import numpy
import pytest
import pyzstd
import torch

from lib import shard_writers
from lib.shard_cat import facts, read

with warnings.catch_warnings():  # about Transformer Engine and Apex, which its index does not need
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

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
        "{'shape': (%d,), 'fortran_order': False, 'descr': '<u2'}",
        '{"descr": "<u2", "fortran_order": False, "shape": (%d, )}',
        "{'descr': '<u2', 'fortran_order': False, 'shape': (%dL,), }",
    ],
)
def test_headers_of_numpy_that_others_write(directory, header):
    """Another order, other quotes, and the long integers of Python 2."""
    text = (header % len(U16)).ljust(117).encode() + b"\n"
    path = directory / "a.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + U16.tobytes())
    check(path, [TOKENS], format="npy", type="u16")


# ---- datatrove ----


def datatrove(directory, size=2, **how):
    shard_writers.datatrove(f"{directory}/a", DOCUMENTS, numpy.dtype(f"<u{size}"), **how)
    return directory / "a.ds"


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("metadata", [True, False])
def test_datatrove(directory, index, metadata):
    masks = [numpy.ones(len(d), bool) for d in DOCUMENTS]
    for size in 2, 4:
        about = {"save_index": index, "save_final_metadata": metadata}
        path = datatrove(directory, size, masks=masks, **about)
        options = [] if metadata or index else ["-t", f"u{8 * size}"]
        about = {"format": "datatrove", "type": f"u{8 * size}", "plain": True}
        check(path, DOCUMENTS, *options, documents=len(DOCUMENTS) if index else None, **about)


# ---- zstd ----


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
    """From a file; what does not state its size, or has several frames, is refused."""
    content, pipe = U16.tobytes(), subprocess.PIPE
    (directory / "a.bin").write_bytes(content)
    subprocess.run(["zstd", "-q", directory / "a.bin"], check=True)
    whole = (directory / "a.bin.zst").read_bytes()
    piped = subprocess.run(["zstd", "-qc"], input=content, stdout=pipe, check=True).stdout
    skipped = struct.pack("<II", 0x184D2A53, 3) + b"abc"
    for name in "b.bin.zstd", "c.bin":
        (directory / name).write_bytes(whole)
        check(directory / name, [TOKENS], format="flat", plain=False)
    for data, words in (
        (piped, "its frame does not state its size"),
        (2 * whole, "it has several frames, but no seek table"),
        (skipped + whole, "no zstd frame begins at byte 0"),
    ):
        (directory / "a.bin.zst").write_bytes(data)
        assert words in facts(directory / "a.bin.zst", refused=True)


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
    "0,7\r7,100\r": (2, [7]),
}


def test_lists_of_bounds(directory):
    (directory / "a.npy").write_bytes(bytes(200))
    for text, (documents, boundaries) in BOUNDS.items():
        (directory / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
        seen = facts(directory / "a.npy")
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


def megatron(directory, sequences=DOCUMENTS, kind="<u2", ends=None, multimodal=False):
    """@ends: the sequences that end a document; None: all."""
    path, dtype = f"{directory}/a", numpy.dtype(kind).type
    builder = IndexedDatasetBuilder(path + ".bin", dtype=dtype, multimodal=multimodal)
    for i, sequence in enumerate(sequences):
        builder.add_item(torch.from_numpy(sequence), mode=i % 2)
        if ends is None or i in ends:
            builder.end_document()
    builder.finalize(path + ".idx")
    return directory / "a.bin"


@pytest.mark.parametrize("kind", ["i1", "<i2", "<i4", "<i8", "<u2"])
def test_megatron(directory, kind):
    for multimodal in False, True:
        path = megatron(directory, DOCUMENTS, kind, multimodal=multimodal)
        about = {"type": type_name(kind), "plain": kind in ("<u2", "<i4"), "data_at": 0}
        seen = check(path, DOCUMENTS, format="megatron", documents=len(DOCUMENTS), **about)
        assert ("multimodal" in seen["note"]) == multimodal


def test_numbers_of_sequences(directory):
    check(megatron(directory, ends={3, 8}), DOCUMENTS, documents=len(DOCUMENTS))
    for sequences in (
        [],
        DOCUMENTS[1:2],
        DOCUMENTS[:1],
        *(several(n, 60_000) for n in (2049, 9999)),
    ):
        check(megatron(directory, sequences, "<i4"), sequences, documents=len(sequences))


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
