"""Shards of real writers that were damaged in one place, or are files of another kind: each is
refused with the field that is wrong. Truncated ones are refused at every length.
"""

import gzip
import os
import pickle
import shutil
import struct

import numpy
import pyarrow as pa
import pytest
import pyzstd
import zstandard

from lib import shard_writers
from lib.shard_cat import facts, many
from lib.shard_writers import llmc, npy

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds

TOKENS = numpy.array([0, 1, 2, 127, 3, 50, 99, 127, 4], "<u2")
DOCUMENTS = numpy.split(TOKENS, [3, 3, 5])  # the second is empty
ROWS = numpy.array([[1, 2, 3, 4]] * 3, "<i4")

# ---- what is damaged: name: (writer of a directory, its shard) ----


def one(name, content):
    return lambda path: (path / name).write_bytes(content), name


def documents(write, name):
    return lambda path: write(f"{path}/a", DOCUMENTS, TOKENS.dtype), name


def arrow(writer):
    lists = pa.array([[7, 8], [9, 10, 11], [12]], pa.list_(pa.int32()))
    batch = pa.record_batch({"a": pa.array([0.5] * 3), "input_ids": lists})

    def write(path):
        with writer(str(path / "a.arrow"), batch.schema) as out:
            out.write(batch)
            out.write(batch)

    return write, "a.arrow"


def mds(rows, **how):
    end = ".zstd" if how else ""
    return lambda path: shard_writers.mds(path, rows, None, **how), "shard.00000.mds" + end


def seekable(path):
    """Three frames, one of them empty, with a table."""
    sums = {pyzstd.CParameter.checksumFlag: 0}
    with pyzstd.SeekableZstdFile(path / "a.bin.zst", "w", level_or_option=sums) as file:
        for part in (2500, 0, 3500):
            file.write((numpy.arange(part, dtype="<u2") % 50).tobytes())
            file.flush(file.FLUSH_FRAME)


def bounds(path):
    (path / "a.bin").write_bytes(TOKENS.tobytes())
    (path / "a.csv.gz").write_bytes(gzip.compress(b"0,5\n5,9\n"))


FILES = {
    "flat": one("a.bin", TOKENS.tobytes()),
    "npy": one("a.npy", npy(TOKENS)),
    "square": one("a.npy", npy(TOKENS.reshape(3, 3))),
    "llmc": one("a.bin", llmc(TOKENS)),
    "bounds": (bounds, "a.bin"),
    "datatrove": documents(shard_writers.datatrove, "a.ds"),
    "megatron": documents(shard_writers.megatron, "a.bin"),
    "arrow": arrow(pa.ipc.new_file),
    "stream": arrow(pa.ipc.new_stream),
    "mds": mds(ROWS),
    "mds-documents": mds([ROWS[0], ROWS[0][:2], ROWS[0]]),
    "mds-zstd": mds(ROWS, compression="zstd"),
    "zstd": (seekable, "a.bin.zst"),
}

# ---- damages: (bytes of a file) → bytes ----


def at(offset, value, size=4):
    """The number at an offset is @value."""

    def act(data):
        data = bytearray(data)
        start = offset % len(data)
        data[start : start + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        return bytes(data)

    return act


def sub(old, new):
    def act(data):
        assert data.count(old) >= 1, (old, data)
        return data.replace(old, new, 1)

    return act


def head(old, new):
    """Text of NumPy's header, whose length stays."""

    def act(data):
        text = data[10:128].decode()
        assert old in text
        return data[:10] + text.replace(old, new).rstrip().ljust(117).encode() + b"\n" + data[128:]

    return act


def whole(data):
    return lambda _: data


def more(data):
    return lambda before: before + data


def ended(data):
    """The last batch of an Arrow file is cut out."""
    end = data.rindex(b"\xff" * 4)
    return data[: data.rindex(b"\xff" * 4, 0, end)] + data[end:]


def number(*values):
    return struct.pack(f"<{len(values)}q", *values)


def offsets(*values):
    return sub(struct.pack("<4i", 0, 2, 5, 6), struct.pack("<4i", *values))


def rows_of(*lines):
    return whole(gzip.compress(b"\n".join([*lines, b""])))


def written(name, directory):
    directory.mkdir()
    FILES[name][0](directory)
    return directory


def broken(name, file, damages, directory):
    """The facts or error of a shard, for each damage to a file of it."""
    (_, shard), paths = FILES[name], []
    data = (written(name, directory / file) / file).read_bytes()
    for i, damage in enumerate(damages):
        where = directory / f"{file}-{i}"
        shutil.copytree(directory / file, where)
        (where / file).write_bytes(damage(data))
        paths.append(where / shard)
    return many(paths)


# ---- tables: (what is said, damage) of (files, the damaged one) ----

HEADER, N = 34, 4  # of the .idx: where it ends, sequences
POINTERS = HEADER + 4 * N
NODES = number(3, 0, 6, 0)
TABLES = {
    ("flat", "a.bin"): [("19 bytes is not a multiple of 2", more(b"x"))],
    ("npy", "a.npy"): [
        ("it does not begin with \\x93NUMPY", at(0, 0, 1)),
        ("header length is 65535; must be 0 to 136", at(8, 65535, 2)),
        ("big-endian", head("<u2", ">u2")),
        ("not an integer type", head("<u2", "<f2")),
        *((f'shape is {shape}', head("(9,)", shape)) for shape in ("[9]", "(9,,)", "(9)")),
        ("the file has 18 bytes after the header", head("(9,)", "(-9,)")),
        ("shape is (4294967296, 4294967296)", head("(9,)", "(4294967296, 4294967296)")),
        ("shape is (0, 1) of u16", head("(9,)", "(9, 0)")),
        ("shape is missing", head(", 'shape': (9,)", "")),
        ("shape is missing or there twice", head("}", ", 'shape': (9,)}")),
    ],
    ("square", "a.npy"): [("fortran_order is True", head("False", "True"))],
    ("llmc", "a.bin"): [
        ("magic is 20240520 and version 7; must be 20240520 and 1 (GPT-2)", at(4, 7)),
        ("token count is 8 (u16), which makes a file of 1040 bytes", at(8, 8)),
        ("big-endian", lambda d: numpy.frombuffer(d[:1024], ">u4").astype("<u4").tobytes()),
    ],
    ("datatrove", "a.ds.index"): [
        ("the end of document 1 is 2; must be 3 to 9", whole(number(3, 2, 9))),
        ("the end of the last document is 10; must be 9", whole(number(3, 10))),
    ],
    ("datatrove", "a.ds.metadata"): [
        ("token count is 8; must be 9", whole(b"gpt2|2\n8\n")),
        *(("line 2 is not the number", whole(b)) for b in (b"", bytes(9), b"gpt2|2\n9K.0 T")),
    ],
    ("megatron", "a.idx"): [
        ("it is not a Megatron index", at(0, ord("m"), 1)),
        ("dtype is 6, which is not an integer type", at(17, 6, 1)),
        ("dtype is u8, of 1 bytes; its pointers and the .bin's 18 bytes match", at(17, 1, 1)),
        *(  # times 4, 8 or 12 some are small again
            ("count is", at(field, value, 8))
            for field in (18, 26)
            for value in (0, 7, -1, 1 << 61, 1 << 62, 0x1555555555555556)
        ),
        ("length of sequence 0 is -1; must be 0 to 2147483647", at(HEADER, -1)),
        ("sequence 0 begins at byte -6 and has 3", at(POINTERS, -6, 8)),  # and ends at 0
        ("sequence 0 begins at byte 14 and has 3 tokens of u16", at(POINTERS, 14, 8)),
        ("sequence 2 begins at byte 4 and has 2 tokens of u16; must", at(POINTERS + 16, 4, 8)),
        ("are as long as the .bin, but overlap", at(POINTERS + 24, 0, 8)),
        ("sequence 0 begins at byte 1 and has 3 tokens of u16; must", at(POINTERS, 1, 8)),
        ("document boundary count is 5, which do not fill", more(b"abc")),
    ],
    ("bounds", "a.csv.gz"): [
        ("a.csv.gz: row 1: end is 10; must be 0 to 9", rows_of(b"0,10")),
        ("a.csv.gz: row 2: start is 4; must be 5 to 9", rows_of(b"0,5", b"4,9")),
        ("a.csv.gz: row 2: must begin with a start and an end", rows_of(b"0,5", b'5,"9"')),
        ("ends inside quotes: the file is truncated", rows_of(b'0,5,"a', b"5,9,b")),
        ("incorrect header check", whole(b"0,5\n")),
        ("incorrect data check", at(-8, 1)),
        ("is truncated: it ends within", more(b"x")),
    ],
    ("arrow", "a.arrow"): [
        ("column 'input_ids': offset 2 is 5; must be 6", offsets(0, 6, 5, 6)),
        ("offset 0 is -1; must be 0 to 6", offsets(-1, 2, 5, 6)),
        ("column 'input_ids': null_count is 1; must be 0", sub(NODES, number(3, 1, 6, 0))),
        ("offset 3 is 6; must be 5", sub(NODES, number(3, 0, 5, 0))),
        ("does not begin and end with ARROW1", at(-6, ord("B"), 1)),
        *((f"footer length is {n}; must be 1 to", at(-10, n)) for n in (0, 0x7FFFFFFF)),
        ("recordBatches has 2 items, but the file has 1 batches before its end", ended),
    ],
    ("stream", "a.arrow"): [
        ("8 bytes follow its end marker", more(bytes(8))),
        ("batch 1, column 'input_ids': header_type is 0; must be 1", at(-279, 0, 1)),
    ],
    ("mds", "shard.00000.mds"): [
        ("offset 2 is ", at(0, 2)),
        ("number of samples is 1073741824; must be 1 to", at(0, 1 << 30)),
        ("offset 0 is 0; must be 20 to", at(4, 0)),
        ("offset 1 is 20; must be", at(8, 20)),
        ("must be arrays of the same length", sub(b'["ndarray:int32"]', b'["int","int"]    ')),
        ("is encoded as `ndarray:int3x`", sub(b"ndarray:int32", b"ndarray:int3x")),
        ("number of samples is 0; must be 1 to", at(0, 0)),
        ("sample 0: the 18 bytes of column `tokens` must be", sub(b"\4\4\1", b"\4\3\1")),
        ("must be an array of one dimension of i32", sub(b"\4\4\1", b"\0\4\1")),
        ("lengths and columns take 23 bytes; its offsets span 22", sub(b"\22\0\0\0", b"\23\0\0\0")),
    ],
    ("mds-documents", "shard.00000.mds"): [("sample 1: ", sub(b"\4\2\1", b"\4\1\1"))],
    ("mds", "index.json"): [
        ("is an array; must be a JSON object", whole(b"[]")),
        ("duplicate object key", sub(b'"version": 2', b'"version": 2, "version": 2')),
        ("index.json: Object item not found: version", whole(b'{"shards": []}')),
        ("index.json: version is 3; must be 2", whole(b'{"shards": [], "version": 3}')),
        ("is not among the 0 shards of ", whole(b'{"shards": [], "version": 2}')),
        ("has 3 samples and ", sub(b'"samples": 3', b'"samples": 4')),
        ("/index.json it has 3 and 9", sub(b'"bytes": ', b'"bytes": 9')),
        ("there is no such file", sub(b"shard.00000.mds", b"")),
        ("there is no such file", sub(b"shard.00000.mds", b"a/../x")),
        ("shards[0] is 'x?.mds', but there is no such file", sub(b"shard.00000", b"x\\n")),
        ("allowed without JSON_ALLOW_NUL", sub(b"shard.00000", b"x\\u0000")),
        ("maximum parsing depth reached", whole(b'{"shards": ' + b"[" * (3 << 20))),
        ("invalid JSON", whole(b'{"shards": ["' + b"x" * (3 << 20))),
    ],
    ("zstd", "a.bin.zst"): [  # from the end: 9 bytes of the footer, 8 of each frame before it
        *((f"number of frames is {n}", at(-9, n)) for n in (1, 4, (1 << 32) - 1)),
        ("frames do not end where it begins, at byte", at(-25, 1)),
        ("frame 0 is damaged: it has another size than the seek table says", at(-21, 5002)),
        ("zstd frame 0 is damaged", at(0, 0)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name, file", TABLES)
def test_a_damaged_shard_is_refused(directory, name, file):
    facts(written(name, directory / "sound") / FILES[name][1])
    rows = TABLES[name, file]
    seen = broken(name, file, [damage for _, damage in rows], directory)
    said = [one.get("error", "") for one in seen]
    wrong = [(words, one) for (words, _), one in zip(rows, said) if words not in one]
    assert not wrong and not any("\n" in one for one in said), wrong


SHORTER = {  # (files that are cut, the first length, tokens at the lengths that are accepted)
    "npy": (["a.npy"], 6, []),
    "llmc": (["a.bin"], 4, []),
    "datatrove": (["a.ds", "a.ds.index"], 1, []),
    "megatron": (["a.bin", "a.idx"], 0, []),
    "bounds": (["a.csv.gz"], 0, []),
    "arrow": (["a.arrow"], 0, []),
    "stream": (["a.arrow"], 0, [0, 6, 12]),  # the ends of batches
    "mds": (["shard.00000.mds", "index.json"], 0, []),
    "mds-zstd": (["shard.00000.mds.zstd"], 0, []),
    "zstd": (["a.bin.zst"], 0, []),
}


@pytest.mark.parametrize("name", SHORTER)
def test_truncated_files_are_refused(directory, name):
    files, first, accepted = SHORTER[name]
    for file in files:
        size = (written(name, directory / f"sound-{file}") / file).stat().st_size
        lengths = range(first, size)
        seen = broken(name, file, [lambda data, n=n: data[:n] for n in lengths], directory)
        sound = [one for one in seen if "error" not in one]
        assert [one["tokens"] for one in sound] == accepted
        assert name != "stream" or all("has no end marker" in one["note"] for one in sound)


FRAME = bytes.fromhex("28b52ffd0088")  # a header of zstd, without the content's size
FOREIGN = [  # file, its bytes, what is said, options
    ("a.bin", pickle.dumps([1, 2]), "is a Python pickle, not a shard"),
    ("a.bin", gzip.compress(bytes(99)), "is gzip-compressed"),
    ("a.bin", b"\x1f\x8b\x08\x18" + bytes(5) + b"\3pigz\0of a name\0", "is gzip-compressed"),
    ("a.bin", b"Ff00\r\n" + bytes(65280) + b"\r\n0\r\n\r\n", "with the chunks of its upload"),
    ("a.bin", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ("a.npy", b"<html><body>404 Not Found</body></html>\n", "is text, not a shard"),
    ("a.ds.index", bytes(8), "is a datatrove index, not a shard"),
    ("a.bin.zst", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ("a.bin.zst", zstandard.compress(zstandard.compress(bytes(9))), "is zstd-compressed twice"),
    ("b.bin", bytes(20), "has no .idx next to it", "-f", "megatron"),
    ("a.bin.zst", FRAME + bytes(3 << 20), "its frame does not state its size"),
    ("a.bin.zst", zstandard.compress(bytes(7000)), "the decode budget is 6999, a quarter of",
     "-b", "6999"),
    # It has a claim of 200 MiB, and no content.
    ("a.bin.zst", bytes.fromhex("28b52ffda0") + struct.pack("<I", 200 << 20) + b"\x41\0\0abcdefgh",
     "zstd frame 0 is damaged: "),
    ("a.bin.zst", b"abcdef", "no zstd frame begins at byte 0 of 6 (magic 64636261; must be fd2fb"),
    ("a.bin.zst", bytes.fromhex("00b1ea928f"), "no zstd frame begins at byte 0 of 5"),
]  # fmt: skip


def test_files_of_another_kind_are_refused(directory):
    for file, content, words, *options in FOREIGN:
        (directory / file).write_bytes(content)
        assert words in facts(directory / file, *options, refused=True)


def test_side_files_that_are_no_files_are_refused(directory):
    for name, side in (("a.bin", "a.idx"), ("b.ds", "b.ds.index"), ("c.bin", "c.csv.gz")):
        (directory / name).write_bytes(TOKENS.tobytes())
        (directory / side).mkdir()
        assert "is not a regular file" in facts(directory / name, refused=True)
        (directory / side).rmdir()
        (directory / side).symlink_to("nowhere")
        assert "is a link to a missing file; restore" in facts(directory / name, refused=True)


def test_tokens_of_more_than_32_bits_are_refused(directory):
    for kind, value in (("<u8", 1 << 32), ("<u8", (1 << 64) - 1), ("<i8", 1 << 32)):
        numpy.save(directory / "a.npy", numpy.array([1, 2, 3, value, 4], kind))
        assert f"token 3 is {value}; must be 0 to" in facts(directory / "a.npy", refused=True)
    os.truncate(sparse := os.memfd_create("sparse"), 7 << 60)
    said = facts(f"/proc/{os.getpid()}/fd/{sparse}", "-f", "datatrove", refused=True)
    assert "its size is 8070450532247928832; must be 0 to" in said


def test_files_of_mds_that_its_index_does_not_list(directory):
    shard_writers.mds(directory, numpy.ones((60, 64), "<i4"), 4096)
    shards = sorted(directory.glob("shard.*"))
    stray = directory / "shard.00099.mds"
    stray.write_bytes(shards[0].read_bytes())
    assert "is not among the" in facts(stray, refused=True)
    shards[1].write_bytes(shards[-1].read_bytes())
    assert "index.json it has " in facts(shards[1], refused=True)
    shards[1].unlink()
    assert "is 'shard.00001.mds', but there is no such file" in facts(shards[0], refused=True)
    shards[1].mkdir()
    assert "there is no such file" in facts(shards[0], refused=True)
