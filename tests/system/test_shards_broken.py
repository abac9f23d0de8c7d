"""Shards of real writers that were damaged in one place, or are files of another kind: each is
refused with the field that is wrong. Truncated ones are refused at every length.
"""

import bz2
import gzip
import io
import json
import pickle
import shutil
import struct

import numpy
import pyarrow as pa
import pytest
import pyzstd
import zstandard

from lib import shard_writers
from lib.shard_cat import facts, many, read
from lib.shard_writers import llmc, npy

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds

TOKENS = numpy.array([0, 1, 2, 127, 3, 50, 99, 127, 4], "<u2")
DOCUMENTS = numpy.split(TOKENS, [3, 3, 5])  # the second is empty

# ---- what is damaged: name: (writer of a directory, its shard) ----


def one(name, content):
    return lambda path: (path / name).write_bytes(content), name


def documents(write, name, dtype="<u2"):
    return lambda path: write(f"{path}/a", DOCUMENTS, numpy.dtype(dtype)), name


def arrow(writer, values):
    columns = {"a": pa.array([0.5] * len(values)), "input_ids": values}
    batch = pa.record_batch(columns)

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


LISTS = pa.array([[7, 8], [9, 10, 11], [12]], pa.list_(pa.int32()))
ROWS = numpy.array([[1, 2, 3, 4]] * 3, "<i4")
FILES = {
    "npy": one("a.npy", npy(TOKENS)),
    "square": one("a.npy", npy(TOKENS.reshape(3, 3))),
    "llmc": one("a.bin", llmc(TOKENS)),
    "llmc-u32": one("a.bin", llmc(TOKENS.astype("<u4"))),
    "flat": one("a.bin", TOKENS.tobytes()),
    "bounds": (bounds, "a.bin"),
    "datatrove": documents(shard_writers.datatrove, "a.ds"),
    "megatron": documents(shard_writers.megatron, "a.bin"),
    "arrow": arrow(pa.ipc.new_file, pa.array(range(10, 13), pa.uint32())),
    "lists": arrow(pa.ipc.new_file, LISTS),
    "stream": arrow(pa.ipc.new_stream, LISTS),
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
        text = text.replace(old, new).rstrip()
        return data[:8] + struct.pack("<H", max(118, len(text) + 1)) + (
            text.ljust(117) + "\n"
        ).encode() + data[128:]  # fmt: skip

    return act


def whole(data):
    return lambda _: data


def index(*keys):
    """@keys: the path of a member of index.json, and its new value."""

    def act(data):
        top = json.loads(data)
        inner = top
        for key in keys[:-2]:
            inner = inner[key]
        inner[keys[-2]] = keys[-1]
        return json.dumps(top).encode()

    return act


def entry(*keys):
    return index("shards", 0, *keys)


def number(*values):
    return struct.pack(f"<{len(values)}q", *values)


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


# ---- tables: (file, what is said, damage) ----

NPY = [
    ("big-endian", head("<u2", ">u2")),
    ("pickled objects", head("<u2", "|O")),
    ("not an integer type", head("<u2", "<f2")),
    ("descr is '|b1'; must be", head("<u2", "|b1")),
    ("descr is '='; must be", head("<u2", "=")),
    ("descr is \"[('a', '<u2')]", head("'<u2'", "[('a', '<u2')]")),
    ('descr is "__import__', head("'<u2'", "__import__('os').abort()")),
    ("must be a comma, or } at the end", head("<u2'", "<u2")),
    ('fortran_order is "0', head("False", "0")),
    ("0 dimensions", head("(9,)", "()")),
    ("3 dimensions", head("(9,)", "(3, 3, 1)")),
    *(
        (f'shape is "{shape}', head("(9,)", shape))
        for shape in ("(9)", "9", "[9]", "(-9,)", "(9.0,)", "(3 3)", "(9,,)", "(,)", f"({'9' * 30}")
    ),
    ('shape is "(1,1', head("(9,)", f"({'1,' * 32}1)")),
    *(
        (f"shape is ({shape}) of u16; the file has 18 bytes", head("(9,)", f"({shape})"))
        for shape in ("4294967296, 4294967296", "0, 9")
    ),
    ("shape is (8, 1) of u16", head("(9,)", "(8,)")),
    ("shape is (9223372036854775817, 1)", head("(9,)", "(9223372036854775817,)")),
    ("shape is (9, 1) of u32", head("<u2", "<u4")),
    ("shape is missing", head(", 'shape': (9,)", "")),
    ("descr is missing", head("'descr': '<u2', ", "")),
    ("key 'descr' occurs twice", head("'fortran_order': False", "'descr': '<u2'")),
    ("key 'order' is unknown", head("fortran_order", "order")),
    ("its beginning is \"['descr", head("{", "[")),
    ('the text after } is "x', head("}", "}x")),
    ("version is 4.0", at(6, 4, 1)),
    ("version is 1.1", at(7, 1, 1)),
    ("header length is 65535; the file has only 136", at(8, 65535, 2)),
    ("it does not begin with \\x93NUMPY", at(0, 0, 1)),
]
LLMC = [
    ("is an llm.c evaluation file", at(0, 20240522)),
    ("magic is 20240519; must be", at(0, 20240519)),
    ("version is 7; must be 1", at(4, 7)),
    ("token count is 8 (u16), which makes a file of 1040 bytes", at(8, 8)),
    ("token count is -2147483648; must be 0 to", at(8, 1 << 31)),
    ("token count is 2147483647 (u16)", at(8, 0x7FFFFFFF)),
    ("which is big-endian", lambda d: numpy.frombuffer(d[:1024], ">u4").astype("<u4").tobytes()),
]
ENDS = [
    ("document 1 ends at token 2, before the previous one (3)", number(3, 2, 9)),
    ("the last document ends at token 10; the file has 9 tokens", number(3, 10)),
    ("document 0 ends at token 10; the file has 9", number(10, 9)),
    ("ends at token 9223372036854775808", number(3, -(1 << 63))),
    ("7 bytes is not a multiple of 8", b"1234567"),
]
METADATA = [
    ("token size, line 1, is 3; must be 2 or 4", "gpt2|3\n9\n"),
    ("token size, line 1, is '18446744073709551616'", "gpt2|18446744073709551616\n9\n"),
    ("token size, line 1, is '-2'", "gpt2|-2\n9\n"),
    ("its 0 bytes have no line 2, the token count", ""),
    ("token count, line 2, is '?[31m?'", "gpt2|2\n\33[31m\7\n"),
    ("token count is 8; the file has 9 tokens of 2 bytes", "gpt2|2\n8\n"),
    ("18 bytes is not a multiple of 4", "gpt2|4\n9\n"),
    ("its size is 131072 bytes; must be at most 65536", "x" * (1 << 17)),
]
HEADER, N, D = 34, 4, 5  # of the .idx: sequences, boundaries of documents
POINTERS, BOUNDARIES = HEADER + 4 * N, HEADER + 12 * N
IDX = [
    ("it is not a Megatron index", at(0, ord("m"), 1)),
    ("magic is TNTIDX", at(0, 0x584449544E54, 8)),
    ("version is 2; must be 1", at(9, 2, 8)),
    *((f"dtype is {kind}", at(17, kind, 1)) for kind in (0, 9, 255)),
    ("dtype is 6 (f64), which is not an integer type", at(17, 6, 1)),
    ("dtype is 7 (f32), which is not an integer type", at(17, 7, 1)),
    ("dtype is u8, of 1 bytes; its pointers and the .bin's 18 bytes match", at(17, 1, 1)),
    ("9 tokens of i32 in total; the .bin has 18 bytes, which is 4", at(17, 4, 1)),
    *(
        ("count is", at(field, value, 8))  # times 4, 8 or 12 some are small again
        for field in (18, 26)
        for value in (0, 7, -1, 1 << 61, 1 << 62, 0x1555555555555556)
    ),
    ("length of sequence 0 is -1; must be 0 to 2147483647", at(HEADER, -1)),
    ("2147483653 tokens of u16 in total; the .bin has", at(HEADER, 0x7FFFFFFF)),
    ("10 tokens of u16 in total; the .bin has 18 bytes, which is 9", at(HEADER, 4)),
    ("sequence 0 begins at byte -1 and has 3 tokens", at(POINTERS, -1, 8)),
    ("sequence 0 begins at byte -6 and has 3", at(POINTERS, -6, 8)),  # and ends at 0
    ("sequence 0 begins at byte 14 and has 3 tokens of u16", at(POINTERS, 14, 8)),
    ("sequence 0 begins at byte 1; must be a multiple of 2", at(POINTERS, 1, 8)),
    ("sequence 2 begins at byte 4, within the previous one", at(POINTERS + 16, 4, 8)),
    ("sequence 1 begins at byte 20 and has 0 tokens", at(POINTERS + 8, 20, 8)),
    ("sequence 3 begins at byte 9223372036854775807", at(POINTERS + 24, (1 << 63) - 1, 8)),
    ("document boundary 0 is sequence 1; must be 0 to 0", at(BOUNDARIES, 1, 8)),
    ("document boundary 1 is sequence -1; must be 0 to 4", at(BOUNDARIES + 8, -1, 8)),
    ("document boundary 2 is sequence 0; must be 1 to 4", at(BOUNDARIES + 16, 0, 8)),
    ("the last document boundary is sequence 3; must be 4", at(BOUNDARIES + 32, 3, 8)),
]
CSV = [
    ("a.csv.gz:1: end is 10; must be at most 9, the number of tokens", b"0,10\n"),
    ("end is '18446744073709551616'; must be an integer below 2^64", b"0,18446744073709551616\n"),
    ("end is 9223372036854775809; must be at most 9", b"9223372036854775809," * 2 + b"\n"),
    ("a.csv.gz:2: end is 4; must be at least 5, its start", b"0,5\n5,4\n"),
    ("start is 4; must be at least 5, the end of the previous row", b"0,5\n4,9\n"),
    ("start is 6; must be at least 7", b"7,7\n6,9\n"),
    ("a.csv.gz:1: start is 'start'", b"start,end\n0,5\n"),
    ("a.csv.gz:2: start is ''", b"0,5\n\n5,9\n"),
    ("end is ''", b"0,5\n9\n"),
    ("start is '-1'", b"-1,5\n"),
    ("end is '5 '", b"0,5 \n"),
    ("start is '0;5'", b"0;5\n"),
    ("end is 'a?b??[31m'", b'0,"a\tb\n\033[31m"\n'),
    ("ends inside quotes: the file is truncated", b'0,5,"a\n5,9,b\n'),
]
OFFSETS = struct.pack("<4i", 0, 2, 5, 6)
NODES = number(3, 0, 6, 0)


def offsets(*values):
    return sub(OFFSETS, struct.pack("<4i", *values))


def nodes(*values):
    return sub(NODES, number(*values))


ARROW_LISTS = [
    ("offset 2 of column 'input_ids' is 5; must be 6 to 6", offsets(0, 6, 5, 6)),
    ("offset 2 of column 'input_ids' is 7; must be 2 to 6", offsets(0, 2, 7, 6)),
    ("offset 1 of column 'input_ids' is -1; must be 0 to 6", offsets(0, -1, 5, 6)),
    ("begin with -1 and end with 6; must ascend within 0 to 6", offsets(-1, 2, 5, 6)),
    ("begin with 0 and end with 7", offsets(0, 2, 5, 7)),
    ("begin with 6 and end with 0", offsets(6, 2, 5, 0)),
    ("has nulls, but no validity", nodes(3, 1, 6, 0)),
    ("null_count of column 'input_ids' is 4; must be 0 to 3", nodes(3, 4, 6, 0)),
    ("null_count of column 'input_ids''s items is 1; must be 0", nodes(3, 0, 6, 1)),
    ("length of column 'input_ids's items is -1", nodes(3, 0, -1, 0)),
    ("begin with 0 and end with 6; must ascend within 0 to 5", nodes(3, 0, 5, 0)),
]
ARROW = [
    ("ends with 'BRROW1' instead of ARROW1: it is truncated", at(-6, ord("B"), 1)),
    *((f"footer length is {n}; must be 1 to", at(-10, n)) for n in (0, -1, 0x7FFFFFFF)),
    ("footer: its root is at byte", at(-10, 3)),
    ("instead of ARROW1", at(0, ord("F"), 1)),
]
MDS = [
    ("number of samples is 0: it has no tokens", at(0, 0)),
    ("the last sample ends at byte", at(0, 2)),
    ("number of samples is 4294967295, whose offsets end at", at(0, -1)),
    ("number of samples is 1073741824, whose offsets end at", at(0, 1 << 30)),
    ("offset 0 is 0; must be 20 (the end of the offsets) to", at(4, 0)),
    ("config: invalid JSON at byte 0", at(4, 20)),
    ("offset 1 is 20; must be", at(8, 20)),
    ("offset 2 is 2147483647; must be", at(12, 0x7FFFFFFF)),
    ("(offset 3); the file has", at(16, 20)),
    ("version is 1; must be 2", sub(b'"version": 2', b'"version": 1')),
    ("format is 'mdt'; must be mds", sub(b'"format": "mds"', b'"format": "mdt"')),
    ("format is missing", sub(b'"format"', b'"farmot"')),
    ("column_names has", sub(b'["ndarray:int32"]', b'["int","int"]    ')),
    ("column_names[0] is an integer", sub(b'["tokens"]', b"[77777777]")),
    ("column_sizes[0] is -7", sub(b"[null]", b"[-7]  ")),
    ("column_sizes[0] is a fraction", sub(b"[null]", b"[0.5] ")),
    *(
        (f"is encoded as `{encoding.rstrip()}`", sub(b"ndarray:int32", encoding.encode()))
        for encoding in ("ndarray:int3x", "ndarray:int8:")
    ),
    ("shape makes 3 tokens of 4 bytes; column `tokens` has 16", sub(b"\4\4\1", b"\4\3\1")),
    ("shape has 0 dimensions of 2 bytes; must have 1 to 63", sub(b"\4\4\1", b"\1\4\1")),
    ("shape has 63 dimensions of 8 bytes", sub(b"\4\4\1", b"\377\4\1")),
    ("its lengths and columns take 23 bytes; its offsets span 22", sub(b"\22\0\0\0", b"\23\0\0\0")),
    ("take 4294967299 bytes; its offsets span 22", sub(b"\22\0\0\0", b"\377\377\377\377")),
]
PLACE = "must be a file name, or DIRECTORY/NAME below the index's own directory"
RAW, ZIP = ("raw_data", "basename"), "zip_data"
INDEX = [
    ("invalid JSON at byte 0: '{' is missing", whole(b"[]")),
    ("`shards` is missing", whole(b"{}")),
    ("'[' is missing", index("shards", 5)),
    ("shards[0] is an integer; must be an object", index("shards", [5])),
    ("a key occurs twice", lambda data: data[:-1] + b', "shards": []}'),
    ("extra characters after the end", lambda data: data + b"{}"),
    ("version is 1; must be 2", index("version", 1)),
    ("is not among the 0 shards of ", index("shards", [])),
    ("shards[0].format is 'csv'; must be mds", entry("format", "csv")),
    ("number of samples is 3; index.json: shards[0].samples is 4", entry("samples", 4)),
    ("shards[0].samples is -3; must be 0 to", entry("samples", -3)),
    ("shards[0].samples is a fraction", entry("samples", 3.0)),
    ("index.json: those of shards[0] are tokens: int", entry("column_encodings", ["int"])),
    ("shards[0].raw_data.bytes is 9", entry("raw_data", "bytes", 9)),
    ("too big integer", entry("raw_data", "bytes", 10**20)),
    ("shards[0].raw_data is null; must be an object", entry("raw_data", None)),
    ("basename is missing", entry("raw_data", {})),
    *(
        (PLACE, entry(*RAW, name))
        for name in (
            "",
            "../x.mds",
            "a/../x.mds",
            "./x.mds",
            "/etc/passwd",
            "a/b/x.mds",
            "a/",
            "..",
        )
    ),
    ("shards[0] is 'x?.mds', but there is no such file", entry(*RAW, "x\n.mds")),
    ("allowed without JSON_ALLOW_NUL", entry(*RAW, "x\0.mds")),
    ("zip_data is an integer; must be an object or null", entry(ZIP, 5)),
    ("zip_data.basename is '../x.zstd'", entry(ZIP, {"basename": "../x.zstd", "bytes": 5})),
    ("must be raw_data.basename and an ending", entry(ZIP, {"basename": "x", "bytes": 5})),
    ("hashes.xxh64 is '12'; must be 16 hex digits", entry("raw_data", "hashes", {"xxh64": "12"})),
    ("raw_data.hashes in index.json is", entry("raw_data", "hashes", {"xxh64": "0" * 16})),
    ("hashes is an array; must be an object", entry("raw_data", "hashes", ["xxh64"])),
    ("maximum parsing depth reached", whole(b'{"shards": ' + b"[" * (3 << 20))),
    ("is longer than 1048576 bytes", whole(b'{"shards": ["' + b"x" * (3 << 20))),
]
FRAMES = [  # offsets from the end: 9 of the footer, 8 of each frame before it
    ("descriptor is 0x04; its bits 2 to 6 must be 0", at(-5, 4, 1)),
    *((f"number of frames is {n}", at(-9, n)) for n in (1, 4, 0, (1 << 32) - 1)),
    ("frame 0 has a compressed size of 4294967295", at(-25, -1)),
    ("frame 0: decompressed size is 5000; its 1 compressed bytes hold", at(-25, 1)),
    ("frame 0 has a decompressed size of 0", at(-21, 0)),
    ("frame 0 decodes to 5000 bytes; the seek table says 5002", at(-21, 5002)),
    ("frame 0: decompressed size is 4294967295; its", at(-21, -1)),
    ("frame 0 is at byte 0, where no zstd frame begins", at(0, 0)),
]
TABLES = {
    "npy": ("npy", "a.npy", NPY),
    "llmc": ("llmc", "a.bin", LLMC),
    "datatrove's ends": ("datatrove", "a.ds.index", [(s, whole(d)) for s, d in ENDS]),
    "datatrove's facts": (
        "datatrove", "a.ds.metadata", [(s, whole(d.encode())) for s, d in METADATA]
    ),
    "megatron": ("megatron", "a.idx", IDX),
    "bounds": ("bounds", "a.csv.gz", [(s, whole(gzip.compress(d))) for s, d in CSV]),
    "arrow": ("arrow", "a.arrow", ARROW),
    "lists": ("lists", "a.arrow", ARROW_LISTS),
    "stream": ("stream", "a.arrow", ARROW_LISTS),
    "mds": ("mds", "shard.00000.mds", MDS),
    "index": ("mds", "index.json", INDEX),
    "zstd": ("zstd", "a.bin.zst", FRAMES),
}  # fmt: skip
SINGLE = {  # what has tables of its own only here: (file, what is said, damage, options)
    "fortran": ("square", "a.npy", "fortran_order is True", head("False", "True")),
    "llama": ("llmc-u32", "a.bin", "version is 1; must be 7", at(4, 1)),
    "short llmc": ("llmc", "a.bin", "llm.c's header alone is 1024", lambda d: d[:4]),
    "not gzip": ("bounds", "a.csv.gz", "incorrect header check", whole(b"0,5\n")),
    "damaged gzip": ("bounds", "a.csv.gz", "incorrect data check", at(-8, 1)),
    "more gzip": ("bounds", "a.csv.gz", "is truncated: it ends within", lambda d: d + b"x"),
    "no sample": (
        "mds-documents", "shard.00000.mds", "sample 1: shape makes 1 tokens",
        sub(b"\4\2\1", b"\4\1\1"),
    ),
    "longer idx": ("megatron", "a.idx", "has 3 bytes after its 4 sequences", lambda d: d + b"abc"),
    "more after a stream": (
        "stream", "a.arrow", "8 bytes follow its end marker", lambda d: d + bytes(8)
    ),
    "feather": ("arrow", "a.arrow", "a Feather file of version 1", whole(b"FEA1" + bytes(20))),
    "odd": ("flat", "a.bin", "19 bytes is not a multiple of 2", lambda d: d + b"x"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_shard_is_refused(directory, name):
    source, file, rows = TABLES[name]
    seen = broken(source, file, [damage for _, damage in rows], directory)
    said = [one.get("error", "") for one in seen]
    wrong = [(words, one) for (words, _), one in zip(rows, said) if words not in one]
    assert not wrong and not any("\n" in one for one in said), wrong


@pytest.mark.parametrize("name", SINGLE)
def test_other_damages_are_refused(directory, name):
    source, file, words, damage = SINGLE[name]
    assert words in broken(source, file, [damage], directory)[0]["error"]


def test_a_sound_shard_is_read(directory):
    """Without damage all of them are."""
    for name, (_, shard) in FILES.items():
        facts(written(name, directory / name) / shard)


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
    "zstd": (["a.bin.zst"], 0, [2500, 6000]),  # the ends of frames
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


def archive(write, *arguments):
    file = io.BytesIO()
    write(file, *arguments)
    return file.getvalue()


FOREIGN = {  # name: (file, its bytes, what is said, options)
    "pickle": ("a.bin", pickle.dumps([1, 2]), "is a Python pickle, not a shard"),
    "pickle 2": ("a.npy", pickle.dumps([1, 2, 3], 2), "is a Python pickle"),
    "npz": ("a.npy", archive(lambda f: numpy.savez(f, a=TOKENS)), "is a zip archive"),
    "gzip": ("a.bin", gzip.compress(bytes(99)), "is gzip-compressed"),
    "bzip2": ("a.bin", bz2.compress(bytes(99)), "is bzip2-compressed"),
    "lz4": ("a.bin", b"\4\"M\30\x64\x40", "is lz4-compressed"),
    "parquet": ("a.bin", b"PAR1\25\4\25\20", "is a Parquet file"),
    "HDF5": ("a.bin", b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
    "LFS": ("a.bin", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    "HTML": ("a.npy", b"<html><body>404 Not Found</body></html>\n", "is text, not a shard"),
    "JSON": ("a.json", b"{}", "has no known format"),
    "an index": ("a.ds.index", bytes(8), "is a datatrove index, not a shard"),
    "an idx": ("a.idx", b"MMIDIDX\0\0" + bytes(30), "is a Megatron index, not a shard of tokens"),
    "an idx as megatron": ("a.idx", b"MMIDIDX\0\0" + bytes(30), "give the .bin", "-f", "megatron"),
    "twice": (
        "a.bin.zst", zstandard.compress(zstandard.compress(bytes(99))), "is zstd-compressed twice"
    ),
    "brotli": ("a.mds.br", bytes(99), "; decompress it"),
    "flat as npy": ("a.npy", TOKENS.tobytes(), "it does not begin with \\x93NUMPY", "-f", "npy"),
    "flat as llmc": ("a.bin", bytes(2048), "magic is 0; must be 20240520", "-f", "llmc"),
    "flat as megatron": ("a.bin", bytes(20), "has no .idx next to it", "-f", "megatron"),
    "jsonl.zst": ("a.jsonl.zst", zstandard.compress(bytes(8)), "has no known format"),
    # A file of the right length that was never filled looks like 2^33 empty blocks.
    "empty blocks": (
        "a.bin.zst", bytes.fromhex("28b52ffd0088") + bytes(3 << 20), "too many empty blocks"
    ),
    "a large frame": (  # without its size; its blocks add up to far above the budget
        "a.bin.zst",
        bytes.fromhex("28b52ffd0088") + bytes.fromhex("02001000") * 65535 + b"\3\0\x10\0",
        "zstd frame 0 decodes to more than 268435456 bytes; the decode budget",
    ),
    "over the budget": (
        "a.bin.zst", zstandard.compress(bytes(7000)),
        "the decode budget is 6999, a quarter of `memory`: compress the file in frames of",
        "-b", "6999",
    ),
    "an empty claim": (  # of 200 MiB
        "a.bin.zst",
        bytes.fromhex("28b52ffda0") + struct.pack("<I", 200 << 20) + b"\x41\0\0abcdefgh",
        "content size is 209715200; its blocks hold at most 8",
    ),
    "no zstd": ("a.bin.zst", b"abcdef", "no zstd frame begins at byte 0 of 6"),
    "no bytes": ("a.bin.zst", b"", "its size is 0 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_kind_is_refused(directory, name):
    file, content, words, *options = FOREIGN[name]
    (directory / file).write_bytes(content)
    assert words in facts(directory / file, *options, refused=True)


def test_side_files_that_are_no_files_are_refused(directory):
    for name, side in (("a.bin", "a.idx"), ("b.ds", "b.ds.index"), ("c.bin", "c.csv.gz")):
        (directory / name).write_bytes(TOKENS.tobytes())
        (directory / side).mkdir()
        assert "is not a regular file" in facts(directory / name, refused=True)
    for name, side in (("d.bin", "d.idx"), ("e.ds", "e.ds.index"), ("f.ds", "f.ds.metadata")):
        (directory / name).write_bytes(TOKENS.tobytes())
        (directory / side).symlink_to("nowhere")
        assert "is a link to a missing file; restore" in facts(directory / name, refused=True)


@pytest.mark.parametrize("kind", ["|i1", "<i2", "<i4", "<i8", "<u8"])
def test_tokens_out_of_range_are_refused(directory, kind):
    """In the served type: negative ones, and those that are too large."""
    most = {"<u8": [1 << 32, (1 << 64) - 1], "<i8": [-100, 1 << 32]}.get(kind, [-2])
    for value in most:
        numpy.save(directory / "a.npy", numpy.array([1, 2, 3, value, 4], kind))
        said = facts(directory / "a.npy", refused=True)
        assert f"token 3 is {value}; must be 0 to" in said
        assert ("tokenize the shard again" in said) == (value < 0)
    numpy.save(directory / "a.npy", numpy.array([65536], "<i8"))
    assert "set dtype: u32" in facts(directory / "a.npy", "-t", "u16", refused=True)
    assert read(directory / "a.npy")[1].tolist() == [65536]


def test_samples_of_a_large_shard_are_checked_when_read(directory):
    rows = numpy.ones((100, 4000), "<i4")
    rows[:, 0] = numpy.arange(100)
    shard_writers.mds(directory, rows, None)
    path = directory / "shard.00000.mds"
    path.write_bytes(sub(b"\5\xa0\x0f\x3c\0", b"\5\x9f\x0f\x3c\0")(path.read_bytes()))
    assert "sample 60: shape makes 3999 tokens of 4 bytes" in facts(path, refused=True)


def test_mds_of_several_types_is_refused(directory):
    samples = [{"tokens": numpy.ones(4, "int32")}, {"tokens": numpy.ones(4, "uint32")}]
    with shard_writers.mds_writer()(columns={"tokens": "ndarray"}, out=str(directory)) as out:
        for sample in samples:
            out.write(sample)
    assert "sample 1 has tokens of u32, sample 0 of i32" in facts(
        directory / "shard.00000.mds", refused=True
    )


def test_files_of_mds_that_its_index_does_not_list(directory):
    shard_writers.mds(directory, numpy.ones((60, 64), "<i4"), 4096)
    shards = sorted(directory.glob("shard.*"))
    stray = directory / "shard.00099.mds"
    stray.write_bytes(shards[0].read_bytes())
    assert "is not among the" in facts(stray, refused=True)
    assert "set seq_len: 64 and extra: 0" in facts(shards[0], "-w", "65", refused=True)
    shards[1].write_bytes(shards[-1].read_bytes())
    assert "number of samples is" in facts(shards[1], refused=True)
    shards[1].unlink()
    assert "shards[1] is 'shard.00001.mds', but there is no such file" in facts(
        shards[0], refused=True
    )
