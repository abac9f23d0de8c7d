"""Datasets in a store are those on the disk: digest, tokens, documents and masks of every format.
Opening a shard takes as many GETs as its format needs.
"""

import gzip
import json
import os
import shutil

import numpy
import pytest
import pyzstd

from lib import TOKCTL, Daemon, dataset_cat, run
from lib.corpus import FORMATS, Format, corpus
from lib.fault_proxy import FaultProxy
from lib.shard_writers import mds, npy, put, raw, seekable
from lib.stores import Hadro

BUCKET = "corpus"
RNG = numpy.random.default_rng(17)


def whole(path, tokens):
    """A zstd file without a seek table."""
    put(".bin.zst", lambda t: pyzstd.compress(t.tobytes()))(path, tokens)


def many_documents(path, tokens):
    """A .idx of several hundred KiB."""
    from megatron.core.datasets.indexed_dataset import _IndexWriter

    lengths = [8] * (len(tokens) // 8)
    tokens[: 8 * len(lengths)].tofile(path + ".bin")
    with _IndexWriter(path + ".idx", tokens.dtype.type) as index:
        index.write(lengths, None, list(range(len(lengths) + 1)))


def of_lengths(path, tokens):
    ends = numpy.cumsum(RNG.integers(1, 400, len(tokens) // 200))
    mds(path, numpy.split(tokens, ends[ends < len(tokens)])[:-1], 400_000)


def large(write):
    def all_(directory, dtype):
        for i, n in enumerate((300_000, 90_001)):
            os.makedirs(f"{directory}/{i}")
            write(f"{directory}/{i}/x", RNG.integers(6, 50_000, n).astype(dtype))

    return all_


LARGE = {
    "flat-part": Format("flat", large(put(".bin", raw)), dataset={"part": [0.2, 0.7]}),
    "megatron-large": Format("megatron", large(many_documents), bounds="documents"),
    "mds-large": Format("mds", large(of_lengths), "<i4", bounds="documents", width=4),
    "zstd-large": Format("flat", large(seekable(".bin.zst", raw, 1 << 15))),
    "zstd-whole": Format("flat", large(whole)),
    "zstd-i64-large": Format("npy", large(seekable(".npy.zst", npy, 1 << 14)), "<i8", width=4),
}
ALL = FORMATS | LARGE
# GETs to open a shard; of other streams any number
GETS = {
    "flat": 0, "flat-marked": 0, "flat-part": 0, "olmo-u32": 0, "olmo-marked": 1,
    "npy": 0, "npy-i64": 1, "npy-i64-u32": 1, "llmc": 0, "datatrove": 0,
    "datatrove-u32-marked": 1, "megatron": 0, "megatron-scattered-marked": 1, "mds": 1,
    "mds-documents-marked": 1, "mds-large-marked": 1, "zstd": 1, "zstd-large": 1,
    "zstd-i64": 1, "zstd-i64-large": 2,
}  # fmt: skip


def each():
    """(stream, format, its name, with annotations?)"""
    for name, about in ALL.items():
        yield name, about, name, False
        if name != "npy-rows":  # they have none in files, and are opened on the disk only
            yield f"{name}-marked", about, name, True


def wide(name):
    return ["u32"] if ALL[name].dataset.get("dtype") == "u32" else []


@pytest.fixture(scope="module")
def root(shared):
    """A directory for each format."""
    root = shared.file("root", BUCKET)
    shutil.copytree(corpus()[0], root)
    for name, about in LARGE.items():
        about.write(f"{root}/{name}", numpy.dtype(about.dtype))
    return root


@pytest.fixture(scope="module")
def store(shared, root):
    with Hadro(shared, shared.file("root", "")) as store, FaultProxy(store.port) as proxy:
        store.proxy = proxy
        yield store


@pytest.fixture(scope="module")
def configs(shared, root, store):
    """(of the disk, of the store): the same streams."""
    s3 = store.client()
    for name, about in ALL.items():
        dataset_cat.for_store(
            s3, BUCKET, f"{name}/", f"{root}/{name}", shared.file(f"{name}.jsonl"),
            *(["--input-dtype", "u32"] if wide(name) else []),
            masks=f"{name}-masks/" if "label_mask" in about.dataset else None,
            cat_options=["-t", "u32"] if wide(name) else [],
        )  # fmt: skip
    disk = {stream: about.config(f"{root}/{name}", marked)
            for stream, about, name, marked in each()}  # fmt: skip
    stored = {
        stream: about.config(
            f"lab://{BUCKET}/{name}/", marked, manifest=shared.file(f"{name}.jsonl")
        )
        for stream, about, name, marked in each()
    }
    lab = {"lab": {"endpoint": store.proxy.endpoint}}
    return (
        shared.config("disk.yaml", streams=disk),
        shared.config("store.yaml", stores=lab, streams=stored),
    )


def test_datasets_are_those_on_the_disk(configs, store):
    disk, stored = configs
    for stream, *_ in each():
        seen = dataset_cat.cat(stored, stream, env=store.environment())
        assert seen == dataset_cat.cat(disk, stream), stream


def parts(lines):
    """The lines without side files, and all side files: one of a directory may be in any line."""
    side = {name: about for line in lines for name, about in line.pop("side", {}).items()}
    return lines, side


def test_inspect_writes_these_manifests(configs, store, shared):
    """From a listing and headers, without reading all tokens, so without digests."""
    for name in ALL:
        want = [json.loads(line) for line in open(shared.file(f"{name}.jsonl"))]
        path = shared.file("inspected", f"{name}.jsonl")
        url = f"lab://{BUCKET}/{name}/"
        more = ["--input-dtype", "u32"] if wide(name) else []
        arguments = ["inspect", "--manifest", path, "-c", configs[1], *more, url]
        code, out, err = run(TOKCTL, *arguments, env=store.environment())
        assert code == 0, (name, out, err)
        found = [json.loads(line) for line in open(path)]
        for line in want:
            del line["digest"]
        assert parts(found) == parts(want), name


def test_gets_to_open_a_shard(configs, store):
    """Shards are opened for their first window only. Side files are read once a shard, an
    index.json once a directory."""
    for stream, *_ in each():
        before = len(store.proxy.requests)
        (dataset,) = dataset_cat.cat(configs[1], stream, "-o", env=store.environment())
        asked = [r.path for r in store.proxy.requests[before:]]
        indexes = [path for path in asked if path.endswith("index.json")]
        print(f"{stream}: {len(asked)} GETs to open {len(dataset['shards'])} shards")
        assert len(indexes) == len(set(indexes)), "an index.json is read once"
        if stream in GETS:
            gets, tokens = len(asked) - len(indexes), [n for n, *_ in dataset["shards"].values()]
            least = len(tokens) - tokens.count(0)  # that one may need none
            assert GETS[stream] * least <= gets <= GETS[stream] * len(tokens), (stream, asked)


def test_a_changed_object_is_refused(configs, root, store):
    """Of a side file, too."""
    path = f"{root}/olmo/a/0.csv.gz"
    with open(path, "rb") as f:
        was = f.read()
    with open(path, "wb") as f:
        f.write(gzip.compress(gzip.decompress(was)[:-7]))
    line = dataset_cat.cat(configs[1], "olmo-marked", env=store.environment(), refused=True)
    with open(path, "wb") as f:
        f.write(was)
    assert "olmo/a/0.npy: " in line, line


def test_doctor_reads_a_window_of_each_dataset(configs, store):
    _, out, _ = run(TOKCTL, "doctor", "-c", configs[1], env=store.environment())
    lines = [line for line in out.decode().splitlines() if "the first window of" in line]
    assert len(lines) == len(list(each())), out


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
