"""Datasets in a store are those on the disk: digest, tokens, documents and masks of every format.
Opening a shard takes as many GETs as its format needs.
"""

import csv
import gzip
import json
import os
import shutil

import numpy
import pytest
import pyzstd
import test_annotations

from lib import TOKCTL, Daemon, dataset_cat, run
from lib.fault_proxy import FaultProxy
from lib.shard_writers import arrow, datatrove, llmc, mds, megatron, npy, put, raw, seekable
from lib.stores import Hadro

BUCKET, SEQ = "corpus", 128
RNG = numpy.random.default_rng(17)


def whole(path, tokens):
    """A zstd file without a seek table."""
    with open(path + ".bin.zst", "wb") as f:
        f.write(pyzstd.compress(tokens.tobytes()))


def bounded(path, tokens):
    put(".npy", npy)(path, tokens)
    with gzip.open(path + ".csv.gz", "wt", newline="") as f:
        csv.writer(f).writerows((at, at + 40) for at in range(0, len(tokens) - 50, 50))


def many_documents(path, tokens):
    """A .idx of several hundred KiB."""
    from megatron.core.datasets.indexed_dataset import _IndexWriter

    lengths = [8] * (len(tokens) // 8)
    tokens[: 8 * len(lengths)].tofile(path + ".bin")
    with _IndexWriter(path + ".idx", tokens.dtype.type) as index:
        index.write(lengths, None, list(range(len(lengths) + 1)))


def backwards(path, tokens):
    """Sequences of a .bin in the opposite order, with a gap between any two."""
    parts = tokens[: len(tokens) // 500 * 500].reshape(-1, 500)
    put(".bin", raw)(path, tokens)
    pointers = [500 * i * tokens.dtype.itemsize for i in range(len(parts))][::-1]
    with open(path + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + numpy.array([1], "<u8").tobytes() + bytes([8]))
        f.write(numpy.array([len(parts), len(parts) + 1], "<u8").tobytes())
        f.write(numpy.full(len(parts), 490, "<i4").tobytes())
        f.write(numpy.array(pointers, "<i8").tobytes())
        f.write(numpy.arange(len(parts) + 1, dtype="<i8").tobytes())


def samples(**how):
    def write(path, tokens):
        rows = tokens[: len(tokens) // SEQ * SEQ].reshape(-1, SEQ).astype(numpy.int32)
        mds(path, rows, 400_000, **how)

    return write


def of_lengths(path, tokens):
    ends = numpy.cumsum(RNG.integers(1, 400, len(tokens) // 200))
    mds(path, numpy.split(tokens.astype(numpy.int32), ends[ends < len(tokens)])[:-1], 400_000)


# name: (dtype, writer, keys of the dataset, keys of the stream, GETs to open a shard; None: any)
KINDS = {
    "flat": ("<u2", put(".bin", raw), {}, {}, 0),
    "flat-u32": ("<u4", put(".bin", raw), {"dtype": "u32"}, {}, 0),
    "flat-eos": ("<u2", put(".bin", raw), {}, {"documents": True, "eos": 5}, 0),
    "flat-part": ("<u2", put(".bin", raw), {"part": [0.2, 0.7]}, {}, 0),
    "npy": ("<u2", put(".npy", npy), {}, {}, 0),
    "npy-i64": ("<i8", put(".npy", npy), {}, {}, 1),
    "npy-i64-u16": ("<i8", put(".npy", npy), {"dtype": "u16"}, {}, 1),
    "npy-narrow": ("<i8", put(".npy", npy), {"dtype": "u16"}, {}, 1),
    "bounds": ("<u2", bounded, {}, {"documents": True, "loss_mask": True}, 1),
    "llmc": ("<u2", put(".bin", llmc), {}, {}, 0),
    "datatrove": ("<u2", datatrove, {}, {}, 0),
    "datatrove-documents": ("<u2", datatrove, {}, {"documents": True}, 1),
    "megatron": ("<u2", megatron, {}, {}, 0),
    "megatron-documents": ("<u2", many_documents, {}, {"documents": True}, None),
    "megatron-backwards": ("<u2", backwards, {}, {"documents": True}, 1),
    "mds": ("<u2", samples(), {}, {"extra": 0}, 1),
    "mds-documents": ("<u2", of_lengths, {}, {"documents": True}, 1),
    "mds-zstd": ("<u2", samples(compression="zstd"), {}, {"extra": 0}, None),
    "arrow": ("<u4", arrow, {}, {"documents": True}, None),
    "zstd": ("<u2", seekable(".bin.zst", raw, 1 << 15), {}, {}, 1),
    "zstd-npy": ("<i8", seekable(".npy.zst", npy, 1 << 14), {}, {}, 2),
    "zstd-whole": ("<u2", whole, {}, {}, None),
}


class Kind:
    """A dataset on the disk, in root/corpus/NAME."""

    def __init__(self, place, name):
        self.name = name
        dtype, write, self.dataset, keys, self.gets = KINDS[name]
        self.stream = {"extra": 1, **keys}
        self.directory = place.file("root", BUCKET, name, "")
        for i, n in enumerate((300_000, 90_001)):
            tokens = RNG.integers(6, 50_000, n).astype(dtype)
            os.makedirs(os.path.join(self.directory, "ab"[i]))
            write(os.path.join(self.directory, "ab"[i], "" if "mds" in name else "x"), tokens)
        self.masks = None

    def config(self, path, manifest=None):
        dataset = {"name": "d", "path": path, **self.dataset}
        if manifest:
            dataset["manifest"] = manifest
        return {"seed": 1, "seq_len": SEQ, **self.stream, "datasets": [dataset]}


class Annotated:
    """A kind of system/test_annotations.py."""

    def __init__(self, place, name):
        self.inner = test_annotations.Kind(place, name)
        self.name, self.dataset = name, self.inner.dataset
        self.directory = place.file(name, "data", "")
        self.masks = f"{name}/masks/" if "label_mask" in self.dataset else None

    def config(self, path, manifest=None):
        config = self.inner.config()
        dataset = config["datasets"][0]
        dataset["path"] = path
        if self.masks:
            dataset["label_mask"] = os.path.join(os.path.dirname(path.rstrip("/")), "masks", "")
        if manifest:
            dataset["manifest"] = manifest
        return config


class InBucket:
    def __init__(self, place):
        self.place = place

    def file(self, *parts):
        return self.place.file("root", BUCKET, *parts)


@pytest.fixture(scope="module")
def kinds(shared):
    made = [Kind(shared, name) for name in KINDS]
    made += [
        Annotated(InBucket(shared), name) for name in test_annotations.KINDS if name not in KINDS
    ]
    return made


@pytest.fixture(scope="module")
def store(shared, kinds):
    with Hadro(shared, shared.file("root", "")) as store, FaultProxy(store.port) as proxy:
        store.proxy = proxy
        yield store


@pytest.fixture(scope="module")
def configs(shared, kinds, store):
    """(of the disk, of the store): the same streams."""
    s3, disk, stored = store.client(), {}, {}
    for kind in kinds:
        prefix = os.path.relpath(kind.directory, shared.file("root", BUCKET)) + "/"
        wide = ["u32"] if kind.dataset.get("dtype") == "u32" else []
        manifest = shared.file(f"{kind.name}.jsonl")
        dataset_cat.for_store(
            s3, BUCKET, prefix, kind.directory, manifest,
            *(["--input-dtype", *wide] if wide else []),
            masks=kind.masks, cat_options=["-t", *wide] if wide else [],
        )  # fmt: skip
        disk[kind.name] = kind.config(kind.directory.rstrip("/"))
        stored[kind.name] = kind.config(f"lab://{BUCKET}/{prefix}", manifest)
    lab = {"lab": {"endpoint": store.proxy.endpoint}}
    return (
        shared.config("disk.yaml", streams=disk),
        shared.config("store.yaml", stores=lab, streams=stored),
    )


def test_datasets_are_those_on_the_disk(kinds, configs, store):
    disk, stored = configs
    env = store.environment()
    for kind in kinds:
        assert dataset_cat.cat(stored, kind.name, env=env) == dataset_cat.cat(disk, kind.name), (
            kind.name
        )


def parts(lines):
    """The lines without side files, and all side files: one of a directory may be in any line."""
    side = {name: about for line in lines for name, about in line.pop("side", {}).items()}
    return lines, side


def test_inspect_writes_these_manifests(kinds, configs, store, shared):
    """From a listing and headers, without reading all tokens, so without digests."""
    with open(configs[1]) as f:
        streams = json.load(f)["streams"]
    for kind in kinds:
        with open(shared.file(f"{kind.name}.jsonl")) as f:
            want = [json.loads(line) for line in f]
        path = shared.file("inspected", f"{kind.name}.jsonl")
        url = streams[kind.name]["datasets"][0]["path"]
        wide = ["--input-dtype", "u32"] if kind.dataset.get("dtype") == "u32" else []
        arguments = ["inspect", "--manifest", path, "-c", configs[1], *wide, url]
        code, out, err = run(TOKCTL, *arguments, env=store.environment())
        assert code == 0, (kind.name, out, err)
        found = [json.loads(line) for line in open(path)]
        for line in want:
            del line["digest"]
        assert parts(found) == parts(want), kind.name


def test_gets_to_open_a_shard(kinds, configs, store):
    """Shards are opened for their first window only. Side files are read once a shard, an
    index.json once a directory."""
    for kind in kinds:
        if not isinstance(kind, Kind):
            continue
        before = len(store.proxy.requests)
        (dataset,) = dataset_cat.cat(configs[1], kind.name, "-o", env=store.environment())
        asked = [r.path for r in store.proxy.requests[before:]]
        indexes = [path for path in asked if path.endswith("index.json")]
        print(f"{kind.name}: {len(asked)} GETs to open {len(dataset['shards'])} shards")
        assert len(indexes) == len(set(indexes)), "an index.json is read once"
        if kind.gets is not None:
            gets = len(asked) - len(indexes)
            assert gets == kind.gets * len(dataset["shards"]), (kind.name, asked)


def test_a_changed_object_is_refused(configs, kinds, store, shared):
    """Of a side file, too."""
    directory = next(k.directory for k in kinds if k.name == "bounds")
    path = os.path.join(directory, "a", "x.csv.gz")
    with open(path, "rb") as f:
        was = f.read()
    with open(path, "wb") as f:
        f.write(gzip.compress(gzip.decompress(was)[:-7]))
    line = dataset_cat.cat(configs[1], "bounds", env=store.environment(), refused=True)
    with open(path, "wb") as f:
        f.write(was)
    assert "bounds/a/x.npy: " in line, line


def test_doctor_reads_a_window_of_each_dataset(kinds, configs, store):
    _, out, _ = run(TOKCTL, "doctor", "-c", configs[1], env=store.environment())
    lines = [line for line in out.decode().splitlines() if "the first window of" in line]
    assert len(lines) == len(kinds), out


def test_a_start_takes_one_get_a_manifest(configs, store, shared):
    """Of plain shards, with the manifest in the store, too."""
    with open(configs[1]) as f:
        config = json.load(f)
    streams = {name: config["streams"][name] for name in ("flat", "npy")}
    for name, stream in streams.items():
        shutil.copy(shared.file(f"{name}.jsonl"), shared.file("root", BUCKET, f"{name}.jsonl"))
        stream["datasets"][0]["manifest"] = f"lab://{BUCKET}/{name}.jsonl"
    path = shared.config("remote.yaml", stores=config["stores"], streams=streams)
    before = len(store.proxy.requests)
    daemon = Daemon(shared, path, env=store.environment())
    asked = [(r.method, r.path) for r in store.proxy.requests[before:]]
    assert asked == [("GET", f"/{BUCKET}/{name}.jsonl") for name in streams]
    assert daemon.stop() == 0
