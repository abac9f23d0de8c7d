"""First inputs for the targets of shards: small files from the formats' own writers.

An input is: two bytes of failures, two bytes of hints and four of a change (fuzz_shard.c), for each
side file its length (65535: there is none) and its bytes; then the shard.
"""

import gzip
import io
import json
import pathlib
import struct
import tempfile
import warnings

import numpy
import pyarrow
import torch
import zstandard
from lib import shard_writers

TOKENS = numpy.arange(300) * 7 % 100
# type, has_type, window_tokens, …: see set_hint() in fuzz_shard.c
HINTS = [
    b"\0\x10", b"\3\0", b"\x52\x08", b"\xc5\x0d", b"\x61\x02", b"\x40\x60", b"\x41\xf2",
]  # fmt: skip


def seed(shard, *sides, hints=b"\0\0", change=b"\0\0\0\0"):
    """The input of a shard and its side files; None: the file is absent."""
    files = [
        struct.pack("<H", 65535) if b is None else struct.pack("<H", len(b)) + b for b in sides
    ]
    return b"\0\0" + hints + change + b"".join(files) + shard


def hinted(shard, *sides):
    for hints in HINTS:
        yield seed(shard, *sides, hints=hints)


def npy(array, version=(1, 0)):
    file = io.BytesIO()
    numpy.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def npys():
    for version in (1, 0), (2, 0), (3, 0):
        for dtype in ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", ">i4", "<f4"):
            yield seed(npy(TOKENS[:40].astype(dtype), version))
    yield from hinted(npy(TOKENS.reshape(-1, 4).astype("<u2")))
    yield from hinted(npy(TOKENS.astype("<i8")))
    yield seed(npy(numpy.asfortranarray(TOKENS.reshape(-1, 4).astype("<i8"))))
    yield seed(npy(numpy.zeros(3, [("a", "<u2"), ("b", "?")])))
    yield seed(npy(numpy.zeros((2, 3, 4, 5), "<u2")))
    yield seed(npy(numpy.zeros((), "<u2")))
    plain = npy(TOKENS[:40].astype("<u2"))
    for old, new in (
        (b"(40,)", b"(99,)"), (b"(40,)", b"40   "), (b"'<u2'", b"'|b1'"), (b"'<u2'", b"'<u9'"),
        (b"False", b"Maybe"), (b"'descr'", b"'descR'"), (b"}", b" "), (b"'shape'", b'"shape"'),
        (b"'<u2'", b'"<u2"'), (b"(40,)", b"(4,10,)"), (b"{", b"["), (b"(40,)", b"(-1,)"),
        (b"(40,)", b"(0x8,)"), (b"\n", b"x"), (b"(40,)", b"(99999999999999999999,)"),
    ):  # fmt: skip
        yield seed(plain.replace(old, new, 1))
    yield from (seed(plain[:n]) for n in (0, 5, 8, 9, 20, 100, 128, 129, len(plain) - 1))
    yield seed(b"\x93NUMPY\x04\0" + plain[8:])


def llmcs():
    for dtype in "<u2", "<u4":
        yield from hinted(shard_writers.llmc(TOKENS.astype(dtype)))
    for magic, version, count in (20240522, 1, 300), (20240520, 2, 300), (20240520, 1, -1):
        header = numpy.zeros(256, "<i4")
        header[:3] = magic, version, count
        yield seed(header.tobytes() + TOKENS.astype("<u2").tobytes())
    yield seed(shard_writers.llmc(TOKENS.astype("<u2"))[:-1])
    yield seed(shard_writers.llmc(TOKENS.astype("<u2"))[:500])


def written(write, *endings):
    """The files that @write makes of "a"."""
    with tempfile.TemporaryDirectory() as directory:
        write(directory + "/a")
        return [pathlib.Path(directory + "/a" + ending).read_bytes() for ending in endings]


def datatroves():
    for dtype in "<u2", "<u4":
        tokens = TOKENS.astype(dtype)
        files = written(
            lambda path, tokens=tokens: shard_writers.datatrove(path, tokens),
            ".ds", ".ds.metadata", ".ds.index",
        )  # fmt: skip
        yield from hinted(*files)
        shard, metadata, index = files
        yield from hinted(shard, metadata, None)
        yield from hinted(shard, None, index)
        yield seed(shard, metadata, index[:-3])
        yield seed(shard, metadata, index[:-8])
        yield seed(shard, metadata, index + index)
        yield seed(shard, metadata, b"")
        yield seed(shard[:-2], metadata, index)
        for text in (
            b"", b"gpt2|2\n300\n300 T", b"Unknown Tokenizer|4|4\n300\n300 T", b"gpt2\n300\n",
            b"gpt2|3\n300\n", b"gpt2|2\nx\n", b"gpt2|4\n150\n", b"x" * 5000,
        ):  # fmt: skip
            yield seed(shard, text, index)
            yield seed(shard, text, None)


def zstds():
    content = TOKENS.astype("<u2").tobytes()
    for sized in True, False:
        compressor = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=sized)
        yield from hinted(compressor.compress(content))
        frames = [
            (compressor.compress(piece), len(piece))
            for piece in (content[:77], b"", content[77:300], content[300:])
        ]
        whole = b"".join(f for f, n in frames)
        yield from hinted(whole)
        yield seed(struct.pack("<II", 0x184D2A51, 3) + b"abc" + frames[0][0])
        table = b"".join(struct.pack("<II", len(f), n) for f, n in frames)
        footer = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
        yield from hinted(whole + struct.pack("<II", 0x184D2A5E, len(table) + 9) + table + footer)
        yield seed(whole[:-3])
        yield seed(whole + b"junk")
    (made,) = written(
        lambda path: shard_writers.seekable(".zst", shard_writers.raw, 64)(
            path, TOKENS.astype("<u2")
        ),
        ".zst",
    )
    yield from hinted(made)
    for at in (-1, -5, -9, -12, -20, 3, 5, 40):
        changed = bytearray(made)
        changed[at] ^= 0x41
        yield seed(bytes(changed))
    yield seed(zstandard.ZstdCompressor().compress(bytes(1 << 20)))
    yield from hinted(zstandard.ZstdCompressor(level=19).compress(TOKENS.repeat(99).tobytes()))


def megatron(lengths, dtype, modes):
    with warnings.catch_warnings():  # as in shard_writers.megatron()
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    def write(path):
        builder = IndexedDatasetBuilder(path + ".bin", dtype=dtype, multimodal=modes)
        at = 0
        for i, n in enumerate(lengths):
            item = torch.from_numpy(TOKENS[at : at + n].astype(dtype))
            builder.add_item(item, mode=i % 2) if modes else builder.add_item(item)
            at += n
            if i % 2:
                builder.end_document()
        builder.finalize(path + ".idx")

    return written(write, ".bin", ".idx")


def megatrons():
    for dtype in "u1 i1 i2 i4 i8 f8 f4 u2".split():
        for modes in False, True:
            shard, index = megatron([100, 0, 150, 50], numpy.dtype(dtype).type, modes)
            yield from hinted(shard, index)
            yield seed(shard[:-1], index)
            yield seed(shard, index[:-3])
    for order in [3, 2, 1, 0], [0, 1, 3], []:  # other tools' indexes: not in the file's order
        lengths = numpy.array([100, 0, 150, 50], "<i4")
        pointers = (numpy.cumsum(lengths) - lengths).astype("<i8") * 2
        documents = numpy.array([0, len(order) // 2, len(order)], "<i8")
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(order), 3)
        index = head + lengths[order].tobytes() + pointers[order].tobytes() + documents.tobytes()
        yield from hinted(TOKENS.astype("<u2").tobytes(), index)
    yield seed(TOKENS.astype("<u2").tobytes(), None)
    yield seed(TOKENS.astype("<u2").tobytes(), b"MMIDIDX\0\0")


def arrows():
    for options in (
        {},
        {"use_legacy_format": True},
        {"metadata_version": pyarrow.ipc.MetadataVersion.V4},
        {"compression": "zstd"},
    ):
        for ahead in [[], ["list"], ["text", "union"], ["dictionary", "view"], ["struct", "fixed"]]:
            yield from hinted(arrow(options, ahead, pyarrow.uint32()))
    for kind in (
        pyarrow.uint8(), pyarrow.int8(), pyarrow.uint16(), pyarrow.int16(), pyarrow.int32(),
        pyarrow.int64(), pyarrow.uint64(), pyarrow.float32(), pyarrow.list_(pyarrow.int32()),
        pyarrow.large_list(pyarrow.int32()), pyarrow.list_(pyarrow.int32(), 2),
    ):  # fmt: skip
        yield from hinted(arrow({}, [], kind))
        yield seed(arrow({}, [], kind, nulls=True))
        yield from hinted(arrow({}, ["dictionary"], kind, new=pyarrow.ipc.new_stream))
        yield seed(arrow({}, [], kind, nulls=True, new=pyarrow.ipc.new_stream))
    (made,) = written(lambda path: shard_writers.arrow(path, TOKENS.astype("u2")), ".arrow")
    yield from hinted(made)
    yield from (seed(made[:n]) for n in (0, 5, 8, 20, len(made) - 1, len(made) - 30))
    batch = pyarrow.record_batch({"tokens": pyarrow.array([[i] for i in range(2000)])})
    file = io.BytesIO()
    with pyarrow.ipc.new_file(file, batch.schema) as writer:
        writer.write(batch)
    # The offset that two reads of 1,025 have in common differs in the first of them.
    yield from (seed(file.getvalue(), change=bytes([i, 0x10, 1, 1])) for i in range(1, 60))


def arrow(options, ahead, kind, nulls=False, new=pyarrow.ipc.new_file):
    file, rows = io.BytesIO(), 10
    ids, text = (
        pyarrow.array([i % 2 for i in range(rows)], pyarrow.int8()),
        pyarrow.array(["a word that no view holds"] * rows),
    )
    kinds = {
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
    columns = {name: kinds[name] for name in ahead} | {"tokens": pyarrow.array(values, kind)}
    batch = pyarrow.record_batch(columns)
    options = pyarrow.ipc.IpcWriteOptions(**options)
    with new(file, batch.schema, options=options) as writer:
        for n in rows, 0, 3:
            writer.write(batch.slice(0, n))
    return file.getvalue()


def mds(columns, samples, **how):
    """Shard and index of Mosaic's writer."""
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / "out"
        with shard_writers.mds_writer()(columns=columns, out=str(out), **how) as writer:
            for sample in samples:
                writer.write(sample)
        (shard,) = out.glob("shard.00000.mds*")
        return shard.read_bytes(), (out / "index.json").read_bytes()


def mdss():
    rows = TOKENS[:48].reshape(4, 12)
    for encoding, value in (
        ("ndarray:int32", lambda r: r.astype("i4")),
        ("ndarray:uint16:12", lambda r: r.astype("u2")),
        ("ndarray:int64:3,4", lambda r: r.astype("i8").reshape(3, 4)),
        ("ndarray", lambda r: r.astype("u2")),
        ("bytes", lambda r: r.astype("u2").tobytes()),
        ("ndarray:uint8", lambda r: r.astype("u1")),
    ):
        for how in {}, {"compression": "zstd", "hashes": ["xxh64"]}, {"hashes": ["sha1", "xxh64"]}:
            samples = [{"tokens": value(r)} for r in rows]
            shard, index = mds({"tokens": encoding}, samples, **how)
            yield from hinted(shard, index)
            yield seed(shard, None)
            yield seed(shard[:-2], index)
            yield seed(shard, index.replace(b"xxh64", b"xxh32"))
        both = [{"a": "x" * i, "tokens": value(r), "z": i} for i, r in enumerate(rows)]
        shard, index = mds({"a": "str", "tokens": encoding, "z": "int"}, both)
        yield from hinted(shard, index)
        yield seed(shard, None)
    ragged = [{"input_ids": r[: i + 3].astype("i4")} for i, r in enumerate(rows)]
    shard, index = mds({"input_ids": "ndarray:int32"}, ragged)
    yield from hinted(shard, index)
    entry = json.loads(index)
    entry["shards"] = [entry["shards"][0], {**entry["shards"][0], "zip_data": None}]
    for text in json.dumps(entry), json.dumps(entry, indent=1), "{}", "[", '{"shards": 3}':
        yield seed(shard, text.encode())
    yield seed(shard, index.replace(b"00000", b"00001"))
    yield seed(shard, index.replace(b'"samples": 4', b'"samples": 5'))
    yield seed(zstandard.ZstdCompressor().compress(shard), index)


def annotations():
    bounds = b'0,7,id,s3://a\r\n7,7,"a, ""b""\n",x\r\n9,300,,\r\n'
    mask = bytes(i % 3 != 1 for i in range(300))
    for dtype, hints in ("<u2", b"\0\0"), ("<u2", b"\x20\0"), ("<u4", b"\x23\0"):
        shard = TOKENS.astype(dtype).tobytes()
        packed = gzip.compress(bounds, mtime=0)
        for text in (
            bounds, bounds + b"0", packed, packed[:-3], packed + b"junk",
            gzip.compress(b"".join(b"%d,%d,x\n" % (i, i + 1) for i in range(300)), mtime=0),
            b"0,300", b"0,300\n", b"start,end\n", b"0,301\n", b"5,2\n", b"",
            b"0,1\n" + b"1,2," + b"x" * 40000 + b"\n", None,
        ):  # fmt: skip
            yield seed(shard, text, mask, hints=hints)
            yield seed(shard, text, npy(numpy.frombuffer(mask, "?")), hints=hints)
        yield seed(shard, bounds, None, hints=hints)
        yield seed(shard, bounds, mask[:-1] + b"\2", hints=hints)
        yield seed(shard, bounds, mask[:-1], hints=hints)
        yield seed(shard, bounds, npy(TOKENS.astype("u1")), hints=hints)


def autos():
    for generate in npys, llmcs, zstds:
        for data in list(generate())[:40:3]:
            for name in range(8):
                yield data[:3] + bytes([name << 5]) + data[4:]
    for head in (
        b"\x80\4\x95\2\0\0\0\0\0\0\0N.", b"\x80\2}q\0.", b"PK\3\4", b"MMIDIDX\0\0", b"ARROW1",
        b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"text that is long enough to be seen as such\n" * 4,
        b"\xfd7zXZ\0", b"PAR1", b"GGUF", b"\0" * 40, b"",
    ):  # fmt: skip
        for name in range(8):
            yield seed(head + TOKENS.astype("<u2").tobytes(), hints=bytes([0, name << 5]))
            yield seed(head, hints=bytes([0, name << 5]))
    wide = (TOKENS + 70000).astype("<u4").tobytes(), TOKENS.repeat(40).astype("<i8").tobytes()
    for content in *wide, (TOKENS.repeat(9) * 99).astype("<u4").tobytes():
        for hints in HINTS:
            yield seed(content, hints=hints)
        yield seed(content[:-1])


SHARDS = {
    "auto": autos, "zstd": zstds, "npy": npys, "llmc": llmcs, "datatrove": datatroves,
    "megatron": megatrons, "arrow": arrows, "mds": mdss, "annotations": annotations,
}  # fmt: skip
