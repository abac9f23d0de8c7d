"""Shards written by NumPy, datatrove and seekable zstd, read back by tokend: tokens and document
bounds.
"""

import io
import os
import struct
import subprocess

import numpy
import pyzstd
import pytest
import xxhash
import zstandard
from datatrove.pipeline.tokens import DocumentTokenizerContextShuffler, DocumentTokenizerMerger
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from lib.shard_cat import facts, tokens

TOKENS = numpy.random.default_rng(5).integers(0, 128, 30011)


def same(path, expected, *options):
    numpy.testing.assert_array_equal(tokens(path, *options), expected)


# ---- NumPy ----


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"])
@pytest.mark.parametrize("shape", [(30011,), (30011, 1), (1, 30011), (0,), (0, 7)])
def test_numpy(tmp_path, version, dtype, shape):
    expected = TOKENS[: numpy.prod(shape)].astype(dtype)
    with open(tmp_path / "a.npy", "wb") as file:
        numpy.lib.format.write_array(file, expected.reshape(shape), version=version)
    seen = facts(tmp_path / "a.npy")
    assert (seen["format"], seen["type"], seen["tokens"]) == (
        "npy",
        numpy.dtype(dtype).str[1] + str(8 * expected.itemsize),
        len(expected),
    )
    assert seen["plain"] == (dtype in ("<u2", "<u4", "<i4"))
    same(tmp_path / "a.npy", expected)


def test_numpy_rows(tmp_path):
    rows = TOKENS[:30000].astype("<i4").reshape(-1, 50)
    numpy.save(tmp_path / "a.npy", rows)
    assert facts(tmp_path / "a.npy", "-w", "50")["sample_tokens"] == 50
    assert facts(tmp_path / "a.npy", "-w", "51")["sample_tokens"] == 0
    same(tmp_path / "a.npy", rows.ravel())


def test_numpy_refused(tmp_path):
    def refused(array, **how):
        numpy.save(tmp_path / "a.npy", array, **how)
        return facts(tmp_path / "a.npy", refused=True)

    assert "big-endian" in refused(TOKENS.astype(">i4"))
    assert "fortran_order is True" in refused(numpy.asfortranarray(TOKENS[:100].reshape(10, 10)))
    assert "pickled objects" in refused(numpy.array([1, "a"], dtype=object), allow_pickle=True)
    assert "structured" in refused(numpy.zeros(3, dtype=[("tokens", "<u2"), ("mask", "?")]))
    assert "not an integer type" in refused(TOKENS.astype("<f4"))
    assert "0 dimensions" in refused(numpy.array(3))
    assert "3 dimensions" in refused(numpy.zeros((2, 2, 2), "<u2"))
    assert "token 3 is -100; must be 0 to" in refused(numpy.array([1, 2, 3, -100, 4]))
    numpy.savez(tmp_path / "a.npy.npz", a=TOKENS)
    os.rename(tmp_path / "a.npy.npz", tmp_path / "a.npy")
    assert "zip archive" in facts(tmp_path / "a.npy", refused=True)


def test_numpy_without_header(tmp_path):
    """OLMo-core's .npy files are the bytes of a memmap."""
    written = numpy.memmap(tmp_path / "a.npy", dtype="<u2", mode="w+", shape=TOKENS.shape)
    written[:] = TOKENS
    written.flush()
    assert facts(tmp_path / "a.npy")["format"] == "flat"
    same(tmp_path / "a.npy", TOKENS)


# ---- llm.c ----


def llmc(path, model, written):
    """Writes a shard as llm.c's dev/data/data_common.py does."""
    magic, version, dtype = {
        "gpt-2": (20240520, 1, numpy.uint16),
        "llama-3": (20240801, 7, numpy.uint32),
    }[model]
    header = numpy.zeros(256, dtype=numpy.int32)
    header[0], header[1], header[2] = magic, version, len(written)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(numpy.array(written, dtype=dtype).tobytes())


@pytest.mark.parametrize("model", ["gpt-2", "llama-3"])
def test_llmc(tmp_path, model):
    llmc(tmp_path / "a.bin", model, TOKENS)
    seen = facts(tmp_path / "a.bin")
    assert (seen["format"], seen["plain"], seen["data_at"]) == ("llmc", True, 1024)
    same(tmp_path / "a.bin", TOKENS)


# ---- datatrove ----


def datatrove(folder, name, documents, **how):
    how = {"save_final_metadata": True, "tokenizer_name_or_path": "gpt2", **how}
    file = TokenizedFile(str(folder), name, **how)
    for document in documents:
        file.write(
            [int(t) for t in document],
            [True] * len(document) if how.get("save_loss_metadata") else None,
        )
    file.close()
    return file


DOCUMENTS = numpy.split(TOKENS, [0, 10, 10, 500, 501, 20000])  # two of them are empty
ENDS = [0, 10, 10, 500, 501, 20000, 30011]
BOUNDARIES = [10, 500, 501, 20000]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("tokenizer", ["gpt2", None])
def test_datatrove(tmp_path, size, index, metadata, tokenizer):
    datatrove(
        tmp_path,
        "a.ds",
        DOCUMENTS,
        token_size=size,
        save_index=index,
        save_final_metadata=metadata,
        tokenizer_name_or_path=tokenizer,
        save_loss_metadata=True,
    )
    options = [] if metadata or index else ["-t", f"u{8 * size}"]
    seen = facts(tmp_path / "a.ds", *options)
    assert (seen["format"], seen["type"], seen["plain"]) == ("datatrove", f"u{8 * size}", True)
    assert (seen["documents"], seen["boundaries"]) == (
        (len(ENDS), BOUNDARIES) if index else (None, [])
    )
    same(tmp_path / "a.ds", TOKENS, *options)


def test_datatrove_of_nothing(tmp_path):
    datatrove(tmp_path, "a.ds", [])
    seen = facts(tmp_path / "a.ds")
    assert (seen["tokens"], seen["documents"], seen["note"]) == (0, 0, "has no tokens")


def test_datatrove_shuffled(tmp_path):
    """Documents, then chunks of them, by datatrove's code; and its merger, whose .metadata belongs
    to no shard.
    """
    file = datatrove(tmp_path / "in", "a.ds", DOCUMENTS, token_size=4)
    file.copy("b", numpy.random.default_rng(1).permutation(len(DOCUMENTS)), rank=0)
    merger = DocumentTokenizerMerger(
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        "all",
        seed=1,
        shuffle_chunk_size=1000,
        progress=False,
    )
    merger.run(None)
    for shard in [*(tmp_path / "in").glob("*.ds"), *(tmp_path / "out").glob("*.ds")]:
        written, ends = numpy.fromfile(shard, "<u4"), numpy.fromfile(str(shard) + ".index", "<u8")
        seen = facts(shard)
        assert len(written) > 20000 and (seen["tokens"], seen["documents"]) == (
            len(written),
            len(ends),
        )
        assert seen["boundaries"] == sorted(set(ends.tolist()) - {0, len(written)})
        same(shard, written)
    DocumentTokenizerContextShuffler(
        str(tmp_path / "in"), str(tmp_path / "windows"), window_size=99, seed=1, token_size=4
    ).run(None)
    shards = list((tmp_path / "windows").glob("*.ds"))
    assert len(shards) == 2
    for shard in shards:
        same(shard, numpy.fromfile(shard, "<u4"), "-t", "u32")


# ---- zstd ----


def flat(path):
    return TOKENS.astype("<u2").tobytes()


def npy(path):
    file = io.BytesIO()
    numpy.save(file, TOKENS.astype("<i8"))
    return file.getvalue()


def llama(path):
    llmc(path, "llama-3", TOKENS)
    return path.read_bytes()


CONTENTS = [
    ("flat", "a.bin", flat),
    ("npy", "a.npy", npy),
    ("llmc", "b.bin", llama),
    ("datatrove", "a.ds", flat),
]


@pytest.mark.parametrize("format, name, content", CONTENTS)
@pytest.mark.parametrize(
    "frame", [257, 1001, 4096, 65536, 1 << 30]
)  # frames of 257 bytes: so many that their table needs more than one read
def test_pyzstd(tmp_path, format, name, content, frame):
    content = content(tmp_path / name)
    with pyzstd.SeekableZstdFile(
        tmp_path / (name + ".zst"), "w", max_frame_content_size=frame
    ) as file:
        for at in range(0, len(content), 777):
            file.write(content[at : at + 777])
            if at % 7770 == 0:
                file.flush(file.FLUSH_FRAME if at % 15540 == 0 else file.FLUSH_BLOCK)
    seen = facts(tmp_path / (name + ".zst"))
    assert (seen["format"], seen["plain"]) == (format, False)
    assert 0 < seen["frame_bytes"] <= frame
    same(tmp_path / (name + ".zst"), TOKENS)


def seekable(path, content, frame, sized=True, checksums=True, empty=False):
    """Writes the layout of zstd's contrib/seekable_format, with frames of the zstandard package."""
    compressor = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=checksums)
    table = b""
    with open(path, "wb") as file:
        for at in range(0, len(content), frame):
            for piece in [b"", content[at : at + frame]] if empty else [content[at : at + frame]]:
                packed = compressor.compress(piece)
                file.write(packed)
                table += struct.pack("<II", len(packed), len(piece))
                if checksums:
                    table += struct.pack("<I", xxhash.xxh64_intdigest(piece) & 0xFFFFFFFF)
        frames = len(table) // (12 if checksums else 8)
        file.write(struct.pack("<II", 0x184D2A5E, len(table) + 9) + table)
        file.write(struct.pack("<IBI", frames, 128 if checksums else 0, 0x8F92EAB1))


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_seekable(tmp_path, sized, checksums, empty):
    seekable(tmp_path / "a.bin.zst", flat(None), 1001, sized, checksums, empty)
    same(tmp_path / "a.bin.zst", TOKENS)
    subprocess.run(["zstd", "-qd", tmp_path / "a.bin.zst"], check=True)  # equal to the flat file
    assert (tmp_path / "a.bin").read_bytes() == flat(None)


def test_twice_compressed_refused(tmp_path):
    once = zstandard.ZstdCompressor().compress(flat(None))
    (tmp_path / "a.bin.zst").write_bytes(zstandard.ZstdCompressor().compress(once))
    assert "is zstd-compressed twice" in facts(tmp_path / "a.bin.zst", refused=True)


def test_zeros_after_a_header_are_refused_fast(tmp_path):
    """A file of the right length that was never filled looks like 2^33 empty blocks."""
    with open(tmp_path / "a.bin.zst", "wb") as file:
        file.write(bytes.fromhex("28b52ffd0088"))
        file.truncate(3 << 33)
    assert "too many empty blocks in a row" in facts(tmp_path / "a.bin.zst", refused=True)


def test_frames_above_the_budget_are_refused(tmp_path):
    """The frame's header has no size; those of its blocks add up to far above the budget."""
    frame = lambda blocks: (
        bytes.fromhex("28b52ffd0088")
        + bytes.fromhex("02001000") * (blocks - 1)
        + bytes.fromhex("03001000")
    )
    path = tmp_path / "a.bin.zst"
    path.write_bytes(frame(1 << 16))
    assert "zstd frame 0 decodes to more than 268435456 bytes; the decode budget" in facts(
        path, refused=True
    )


def test_zstd_program(tmp_path):
    """The program zstd: from a file, from a pipe (no content size), many frames, and above the
    budget.
    """
    (tmp_path / "a.bin").write_bytes(flat(None))
    subprocess.run(["zstd", "-q", tmp_path / "a.bin", "-o", tmp_path / "a.bin.zst"], check=True)
    piped = subprocess.run(
        ["zstd", "-qc"], input=flat(None), stdout=subprocess.PIPE, check=True
    ).stdout
    (tmp_path / "b.bin.zstd").write_bytes(piped)
    (tmp_path / "c.bin").write_bytes(2 * (tmp_path / "a.bin.zst").read_bytes() + piped)
    same(tmp_path / "a.bin.zst", TOKENS)
    same(tmp_path / "b.bin.zstd", TOKENS)
    same(tmp_path / "c.bin", numpy.tile(TOKENS, 3))
    for name in ("a.bin.zst", "b.bin.zstd"):
        assert (
            "the decode budget is 60000, a quarter of `memory`: compress the file in frames of "
            "256 KiB" in facts(tmp_path / name, "-b", "60000", refused=True)
        )


def test_index_of_a_compressed_shard(tmp_path):
    datatrove(tmp_path, "a.ds", DOCUMENTS)
    seekable(tmp_path / "a.ds.zst", (tmp_path / "a.ds").read_bytes(), 4096)
    (tmp_path / "a.ds").unlink()
    assert facts(tmp_path / "a.ds.zst")["boundaries"] == BOUNDARIES
    same(tmp_path / "a.ds.zst", TOKENS)
