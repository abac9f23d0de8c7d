"""One corpus: the same documents in every format, from the formats' own writers, with what a reader
must get. build/corpus keeps it for all tests, until what writes it changes.
"""

import csv
import dataclasses
import fcntl
import gzip
import hashlib
import json
import os
import pathlib
import pickle
import shutil
import struct
import typing

import numpy
import pyarrow
import pyzstd

from . import shard_writers
from .process import REPO, TOKCTL, run
from .shard_writers import llmc, npy, put, raw, seekable

SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens; one shard has less than a window, one has none
SEQ_LEN, EOS = 128, 5


class Shard:
    """The tokens of a shard, its documents and its loss mask. Any list of its bounds omits some
    documents, the gaps.
    """

    def __init__(self, tokens, seed):
        rng = numpy.random.default_rng([7, seed])
        self.tokens = rng.integers(0, 50_000, tokens)
        self.tokens[rng.random(tokens) < 0.05] = EOS
        if tokens > 12 * SEQ_LEN:  # windows in which all documents are empty, and with none
            self.tokens[3 * SEQ_LEN : 6 * SEQ_LEN] = EOS
            self.tokens[6 * SEQ_LEN : 9 * SEQ_LEN] = EOS + 1
        lengths = rng.choice([0, 1, 2, 7, 32, SEQ_LEN, SEQ_LEN + 1, 400], tokens // 50 + 1)
        ends = numpy.cumsum(lengths)
        ends = [0, *ends[ends < tokens], tokens] if tokens else []
        self.documents = [(int(a), int(b)) for a, b in zip(ends, ends[1:])]
        self.listed = [d for i, d in enumerate(self.documents) if i % 5 != 2]
        self.mask = rng.integers(0, 5, tokens) > 0

    def parts(self, dtype):
        return [self.tokens[a:b].astype(dtype) for a, b in self.documents]

    def inside(self):
        inside = numpy.zeros(len(self.tokens), bool)
        for a, b in self.listed:
            inside[a:b] = True
        return inside


WHOLE = [Shard(n, seed) for seed, n in enumerate(SHARDS)]

# ---- writers: (directory, dtype) → {name of a shard: Shard} ----


def each(write, ending):
    """A writer of one shard after another: @write is (path without ending, Shard, dtype)."""

    def all_(directory, dtype):
        names = {f"{'ab'[i % 2]}/{i}": shard for i, shard in enumerate(WHOLE)}
        for name, shard in names.items():
            os.makedirs(os.path.dirname(f"{directory}/{name}"), exist_ok=True)
            write(f"{directory}/{name}", shard, dtype)
        return {name + ending: shard for name, shard in names.items()}

    return all_


def tokens(write, ending):
    """@write is (path without ending, tokens)."""
    return each(lambda path, shard, dtype: write(path, shard.tokens.astype(dtype)), ending)


def documents(write, ending):
    """@write is (path without ending, documents, dtype)."""
    return each(lambda path, shard, dtype: write(path, shard.parts(dtype), dtype), ending)


def plain(ending, content):
    return tokens(put(ending, content), ending)


def listed(write, ending):
    """With document bounds as dolma writes them: CRLF line ends, and an id that must be quoted."""

    def with_bounds(path, shard, dtype):
        write(path, shard.tokens.astype(dtype))
        with gzip.open(path + ".csv.gz", "wt", newline="") as f:
            for i, (start, end) in enumerate(shard.listed):
                csv.writer(f).writerow([start, end, f'id "{i}", of\nmany', "s3://a/b.gz", i])

    return each(with_bounds, ending)


def masked(writer):
    """With masks for `label_mask:`, in a directory next to the shards."""

    def with_masks(directory, dtype):
        shards = writer(directory, dtype)
        for name, shard in shards.items():
            os.makedirs(os.path.dirname(f"{directory}-masks/{name}"), exist_ok=True)
            with open(f"{directory}-masks/{name}", "wb") as f:
                f.write(shard.mask.tobytes())
        return shards

    return with_masks


def zstd_frame(path, tokens):
    """As written by `zstd FILE`: one frame, which states its size."""
    with open(path + ".bin.zst", "wb") as f:
        f.write(pyzstd.compress(tokens.tobytes(), {pyzstd.CParameter.checksumFlag: 1}))


def scattered(path, shard, dtype):
    """Megatron sequences in reverse order in the file, with holes, as other tools write them."""
    at, data, parts = [], b"", shard.parts(dtype)
    for part in reversed(parts):
        data += b"\xff" * 6
        at.insert(0, len(data))
        data += part.tobytes()
    put(".bin", lambda _: data)(path, None)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(parts), len(parts) + 1)
    index += numpy.array([len(part) for part in parts], "<i4").tobytes()
    index += numpy.array([*at, *range(len(parts) + 1)], "<i8").tobytes()
    put(".idx", lambda _: index)(path, None)


def arrow_lists(path, shard, dtype):
    """Lists in an IPC stream, as Hugging Face's datasets writes them."""
    ids = pyarrow.array(shard.parts(dtype), pyarrow.list_(pyarrow.from_numpy_dtype(dtype)))
    batch = pyarrow.record_batch({"input_ids": ids})
    with pyarrow.ipc.new_stream(path + ".arrow", batch.schema) as out:
        for at in range(0, len(ids), 20):
            out.write(batch.slice(at, 20))


class Part:
    """A part of the corpus as a shard of samples."""

    def __init__(self, first, rows):
        self.tokens = ROWS[first : first + rows].ravel()
        self.listed = self.documents = []
        self.mask = numpy.ones(len(self.tokens), bool)


ROWS = numpy.concatenate([shard.tokens for shard in WHOLE])
ROWS = ROWS[: len(ROWS) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)


def mds(**how):
    def write(directory, dtype):
        shard_writers.mds(directory, ROWS.astype(dtype), 20_000, **how)
        shards, at = {}, 0
        for about in json.load(open(f"{directory}/index.json"))["shards"]:
            name = (about["zip_data"] or about["raw_data"])["basename"]
            shards[name] = Part(at, about["samples"])
            at += about["samples"]
        return shards

    return write


def numpy_rows(directory, dtype):
    """Rows as long as a window, which are samples."""
    shards = {f"{at}.npy": Part(at, 50) for at in range(0, len(ROWS), 50)}
    for name, part in shards.items():
        numpy.save(f"{directory}/{name}", part.tokens.reshape(-1, SEQ_LEN).astype(dtype))
    return shards


def mds_documents(directory, dtype):
    """Samples of different lengths, which are documents. MDS has no empty arrays."""
    shards = {i: shard for i, shard in enumerate(WHOLE) if len(shard.tokens)}
    for i, shard in shards.items():
        parts = [part for part in shard.parts(dtype) if len(part)]
        shard_writers.mds(f"{directory}/{i}", parts, None)
    return {f"{i}/shard.00000.mds": shard for i, shard in shards.items()}


def datatrove_masked(path, shard, dtype):
    masks = [shard.mask[a:b] for a, b in shard.documents]
    shard_writers.datatrove(path, shard.parts(dtype), dtype, masks)


# ---- formats ----


@dataclasses.dataclass
class Format:
    name: str  # as in facts and `format:`
    write: typing.Callable
    dtype: str = "<u2"  # stored
    dataset: dict = dataclasses.field(default_factory=dict)  # keys
    stream: dict = dataclasses.field(default_factory=dict)
    bounds: str = "eos"  # what the boundaries are: eos, documents, listed
    mask: str = ""  # what the loss mask is: mask, listed, both

    def config(self, path, marked, **more):
        """The stream; @marked: with annotations."""
        dataset = {"name": "d", "path": path, **self.dataset, **more}
        if "label_mask" in dataset:
            dataset["label_mask"] = path.rstrip("/") + "-masks" + "/" * path.endswith("/")
            if not marked:
                del dataset["label_mask"]
        eos = {"eos": EOS} if self.bounds == "eos" else {}
        marks = {"documents": True, "loss_mask": True, **eos} if marked else {}
        return {"seed": 3, "seq_len": SEQ_LEN, **self.stream, **marks, "datasets": [dataset]}

    def boundaries(self, shard):
        documents = getattr(shard, self.bounds, [])
        return sorted({at for d in documents for at in d if d[0] < d[1]})

    def window(self, shard, at, count):
        """(tokens, document starts, loss mask) of a window."""
        tokens = shard.tokens[at : at + count]
        if self.bounds == "eos":
            starts = numpy.flatnonzero(tokens[:-1] == EOS) + 1
        else:
            starts = numpy.array(self.boundaries(shard), int) - at
        mask = numpy.ones(len(shard.tokens), bool)
        if self.mask in ("mask", "both"):
            mask &= shard.mask
        if self.mask in ("listed", "both"):
            mask &= shard.inside()
        return (
            tokens,
            starts[(starts > 0) & (starts < count)].tolist(),
            mask[at : at + count].tolist(),
        )


_megatron = documents(shard_writers.megatron, ".bin")
_datatrove = documents(shard_writers.datatrove, ".ds")
_arrow = documents(shard_writers.arrow, ".arrow")
FORMATS = {
    "flat": Format("flat", plain(".bin", raw)),
    "flat-masked": Format(
        "flat", masked(plain(".bin", raw)), dataset={"label_mask": "", "slide": True},
        mask="mask",
    ),
    "olmo": Format(
        "flat", listed(put(".npy", raw), ".npy"), stream={"extra": 0}, bounds="listed",
        mask="listed",
    ),
    "npy": Format("npy", plain(".npy", npy)),
    "npy-rows": Format("npy", numpy_rows, stream={"extra": 0}),
    "npy-i64": Format("npy", plain(".npy", npy), "<i8", {"dtype": "u16"}),
    "npy-listed": Format(
        "npy", masked(listed(put(".npy", npy), ".npy")),
        dataset={"label_mask": "", "slide": True},
        bounds="listed", mask="both",
    ),
    "llmc": Format("llmc", plain(".bin", llmc)),
    "datatrove": Format(
        "datatrove", each(datatrove_masked, ".ds"), stream={"eos": EOS}, bounds="documents",
        mask="mask",
    ),
    "megatron": Format("megatron", _megatron, bounds="documents"),
    "megatron-scattered": Format("megatron", each(scattered, ".bin"), bounds="documents"),
    "arrow": Format("arrow", _arrow, bounds="documents"),
    "arrow-lists": Format("arrow", each(arrow_lists, ".arrow"), "<i4", bounds="documents"),
    "zstd": Format(
        "flat", listed(seekable(".bin.zst", raw, 1000), ".bin.zst"), bounds="listed",
        mask="listed",
    ),
    "zstd-frame": Format("flat", tokens(zstd_frame, ".bin.zst")),
    "zstd-llmc": Format("llmc", tokens(seekable(".bin.zst", llmc, 4096), ".bin.zst")),
    "npy-i32": Format("npy", plain(".npy", npy), "<i4"),
    "llmc-u32": Format("llmc", plain(".bin", llmc), "<u4"),
    "datatrove-u32": Format(
        "datatrove", _datatrove, "<u4", {"slide": True}, {"stride": 50}, "documents"
    ),
    "megatron-i32": Format("megatron", _megatron, "<i4", {}, {"stride": 7}, "documents"),
    "zstd-i64": Format("npy", tokens(seekable(".npy.zst", npy, 1000), ".npy.zst"), "<i8"),
    "mds": Format("mds", mds(), "<i4", stream={"extra": 0}),
    "mds-zstd": Format("mds", mds(compression="zstd"), "<i4", stream={"extra": 0}),
    "mds-documents": Format("mds", mds_documents, "<i4", bounds="documents"),
}  # fmt: skip


def corpus():
    """Its directory, which has one for each format; tests only read them. And for each format
    {name of a shard: Shard}.
    """
    sources = (pathlib.Path(__file__), shard_writers.__file__, REPO / "tests/deps.sh")
    key = hashlib.sha256(b"".join(pathlib.Path(p).read_bytes() for p in sources)).hexdigest()
    home = REPO / "build/corpus"
    home.mkdir(exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / key).exists():
            for old in home.iterdir():
                shutil.rmtree(old, ignore_errors=True)
            new = home / "new"
            shards = {}
            for name, about in FORMATS.items():
                (new / name).mkdir(parents=True)
                shards[name] = about.write(str(new / name), numpy.dtype(about.dtype))
            (new / "shards").write_bytes(pickle.dumps(shards))
            new.rename(home / key)
    return home / key, pickle.loads((home / key / "shards").read_bytes())


def manifest(path, shards, *options, **keys):
    """Writes a manifest of the shards. Returns its path."""
    code, out, err = run(TOKCTL, "manifest", shards, path, *options, **keys)
    assert code == 0, (shards, out, err)
    return path


def plan(config, stream, count, *more):
    """What `tokctl plan` says about positions [0, count)."""
    code, out, err = run(
        TOKCTL, "plan", "-c", config, stream, "--from", 0, "--count", count, "--json", *more
    )
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]
