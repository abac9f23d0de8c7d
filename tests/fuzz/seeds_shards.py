"""First inputs for the targets of shards: files of the corpus (lib/corpus.py), whole and with
faults, and columns of Arrow that it does not have. fuzz_shard.c says what an input is.
"""

import gzip
import io
import struct

import pyarrow
from lib.corpus import corpus
from seeds import broken

FORMATS = {  # of the corpus
    "auto": "flat npy llmc-u32 datatrove megatron arrow zstd zstd-llmc zstd-i64 mds",
    "zstd": "zstd zstd-frame",
    "npy": "npy npy-rows npy-i64 npy-i32",
    "llmc": "llmc llmc-u32",
    "datatrove": "datatrove datatrove-u32",
    "megatron": "megatron megatron-scattered megatron-i32",
    "arrow": "arrow arrow-lists",
    "mds": "mds mds-zstd mds-documents",
    "annotations": "olmo flat-masked",
}
ENDINGS = ".bin", ".npy", ".ds", ".arrow", ".zst", ".zstd", ".mds"
# type, has_type, window_tokens, …: see set_hint() in fuzz_shard.c
HINTS = b"\0\x10", b"\3\0", b"\x52\x08", b"\xc5\x0d", b"\x61\x02", b"\x40\x60", b"\x41\xf2"
NAMES = 8  # that a shard of "auto" may have
MOST = 30_000  # bytes of a shard


def seed(shard, *sides, hints=b"\0\0", change=b"\0\0\0\0"):
    """The input of a shard and its side files; None: the file is absent."""
    files = [
        struct.pack("<H", 65535) if b is None else struct.pack("<H", len(b)) + b for b in sides
    ]
    return b"\0\0" + hints + change + b"".join(files) + shard


def sides_of(target, home, name, path):
    """The paths of a shard's side files, in the order of fuzz_shard.c."""
    bare = path.parent / path.name.partition(".")[0]
    masks = home / ("flat-masked-masks" if name == "flat-masked" else "npy-listed-masks")
    return {
        "datatrove": [f"{path}.metadata", f"{path}.index"],
        "megatron": [f"{bare}.idx"],
        "mds": [path.parent / "index.json"],
        "annotations": [f"{bare}.csv.gz", masks / path.relative_to(home / name)],
    }.get(target, [])


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def files_of(target):
    """[shard, side file, …] for each shard, the small ones first, and whether it is one of the
    smallest of its format.
    """
    home, _ = corpus()
    for name in FORMATS[target].split():
        found = [p for p in (home / name).rglob("*") if p.suffix in ENDINGS]
        sizes = {p: p.stat().st_size for p in found}
        found = sorted((p for p in found if 0 < sizes[p] < MOST), key=lambda p: (sizes[p], p))
        for i, path in enumerate(found[:4]):
            yield [read(p) for p in (path, *sides_of(target, home, name, path))], i < 2


def shards(target):
    for files, first in files_of(target):
        for hints in HINTS:
            yield seed(*files, hints=hints)
        for name in range(NAMES if target == "auto" else 0):
            yield seed(*files, hints=bytes([0, name << 5]))
        variants = [files]
        if target == "annotations" and files[1]:
            variants.append([files[0], gzip.decompress(files[1]), *files[2:]])
        for some in variants if first else ():
            for i, data in enumerate(some):
                for other in *broken(data or b"", 60), None if i else b"":
                    yield seed(*some[:i], other, *some[i + 1 :])
    yield from arrows() if target == "arrow" else ()
    yield from unknown() if target == "auto" else ()


def unknown():
    """Files of other kinds, and tokens whose width must be guessed."""
    for head in (
        b"\x80\4\x95\2\0\0\0\0\0\0\0N.", b"\x80\2}q\0.", b"PK\3\4", b"MMIDIDX\0\0", b"ARROW1",
        b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"text that is long enough to be seen as such\n" * 4,
        b"\xfd7zXZ\0", b"PAR1", b"GGUF", b"\0" * 40, struct.pack("<300I", *range(70000, 70300)),
        struct.pack("<900Q", *range(900)), struct.pack("<600H", *range(600)), b"",
    ):  # fmt: skip
        for name in range(NAMES):
            yield seed(head + bytes(600), hints=bytes([0, name << 5]))
            yield seed(head, hints=bytes([0, name << 5]))


def arrows():
    kinds = [getattr(pyarrow, t)() for t in "uint8 int16 uint32 int64 uint64 float32".split()]
    kinds += [pyarrow.large_list(pyarrow.int32()), pyarrow.list_(pyarrow.int32(), 2)]
    ways = [{}, {"use_legacy_format": True}, {"metadata_version": pyarrow.ipc.MetadataVersion.V4}]
    for new in pyarrow.ipc.new_file, pyarrow.ipc.new_stream:
        for kind in kinds:
            for column in [], ["dictionary"], ["list", "text", "union", "view", "struct", "fixed"]:
                for options in *ways, {"compression": "zstd"}:
                    yield seed(arrow(new, options, column, kind))
            yield seed(arrow(new, {}, [], kind, nulls=True))
    made = arrow(pyarrow.ipc.new_file, {}, ["dictionary", "text"], kinds[-2])
    yield from (seed(data) for data in broken(made, 300))
    file, batch = io.BytesIO(), pyarrow.record_batch({"tokens": [[i] for i in range(2000)]})
    with pyarrow.ipc.new_file(file, batch.schema) as writer:
        writer.write(batch)
    # The offset that two reads of 1,025 have in common differs in the first of them.
    yield from (seed(file.getvalue(), change=bytes([i, 0x10, 1, 1])) for i in range(1, 60))


def arrow(new, options, ahead, kind, nulls=False):
    """Rows of tokens after the columns @ahead."""
    file, rows = io.BytesIO(), 10
    ids = pyarrow.array([i % 2 for i in range(rows)], pyarrow.int8())
    text = pyarrow.array(["a word that no view holds"] * rows)
    others = {
        "list": pyarrow.array([[i] for i in range(rows)]),
        "text": text,
        "dictionary": text.dictionary_encode(),
        "view": text.cast(pyarrow.string_view()),
        "union": pyarrow.UnionArray.from_sparse(ids, [text, ids]),
        "struct": pyarrow.array([{"a": 1, "b": "x"}] * rows),
        "fixed": pyarrow.array([b"abcd"] * rows, pyarrow.binary(4)),
    }
    values = [[i, 1] if pyarrow.types.is_nested(kind) else i for i in range(rows)]
    if nulls:
        values[3] = None
    columns = {name: others[name] for name in ahead} | {"tokens": pyarrow.array(values, kind)}
    batch = pyarrow.record_batch(columns)
    with new(file, batch.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        for n in rows, 0, 3:
            writer.write(batch.slice(0, n))
    return file.getvalue()
