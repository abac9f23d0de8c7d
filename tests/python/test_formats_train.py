"""Tokens in every format train a model to the same losses, bit for bit, through a real daemon and Loader."""

import importlib.util
import json
import shutil
import sys
import types

import numpy
import pytest
import tokend
import torch
from conftest import Daemon, socket_directory
from shard_writers import arrow, datatrove, llmc, megatron, npy, put, raw, seekable

# The package's __init__ wants torchvision, transformers and all clouds; its writer does not.
ROOT = importlib.util.find_spec("streaming").submodule_search_locations[0]
for name, path in (("streaming", ROOT), ("streaming.base", ROOT + "/base")):
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module

from streaming.base.format.mds.writer import MDSWriter  # noqa: E402

SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens
SEQ, MICRO, STEPS, VOCABULARY = 64, 16, 20, 256  # the steps take every window, and some twice
SAMPLES = 320


# name: (stored dtype, keys, writer)
FORMATS = {
    "flat": ("<u2", {}, put(".bin", raw)),
    "flat-u32": ("<u4", {"dtype": "u32"}, put(".bin", raw)),
    "npy": ("<u2", {}, put(".npy", npy)),
    "npy-i64": ("<i8", {}, put(".npy", npy)),
    "llmc": ("<u2", {}, put(".bin", llmc)),
    "llmc-u32": ("<u4", {}, put(".bin", llmc)),
    "datatrove": ("<u2", {}, datatrove),
    "datatrove-u32": ("<u4", {}, datatrove),
    "megatron": ("<u2", {}, megatron),
    "megatron-i32": ("<i4", {}, megatron),
    "arrow": ("<u4", {}, arrow),
    "zstd": ("<u2", {}, seekable(".bin.zst", raw, 1000)),
    "zstd-npy": ("<i8", {}, seekable(".npy.zst", npy, 4096)),
    "zstd-llmc": ("<u2", {}, seekable(".bin.zst", llmc, 4096)),
}
OTHERS = [name for name in FORMATS if name != "flat"]


def tokens(n, seed):
    """Small numbers more often, so that there is something to learn."""
    return (VOCABULARY * numpy.random.default_rng([5, seed]).random(n) ** 3).astype(numpy.int64)


def write_streams(directory):
    """A directory a format, with the same shards in each; and a flat one with one token altered."""
    shards = [tokens(n, i) for i, n in enumerate(SHARDS)]
    altered = [shard.copy() for shard in shards]
    altered[2][6000] ^= 1
    streams = {}
    for name, (dtype, keys, write) in [*FORMATS.items(), ("altered", FORMATS["flat"])]:
        (directory / name).mkdir()
        for i, shard in enumerate(altered if name == "altered" else shards):
            write(str(directory / name / str(i)), shard.astype(dtype))
        streams[name] = {"datasets": [{"name": "d", "path": name, **keys}]}
    return streams


def write_samples(directory):
    """MDS, rows of NumPy and flat shards whose windows are the same samples, shard by shard."""
    rows, streams = tokens(SAMPLES * SEQ, 9).reshape(SAMPLES, SEQ).astype(numpy.int32), {}
    for name, how in {"mds": {}, "mds-zstd": {"compression": "zstd"}}.items():
        with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(directory / name), size_limit=20_000, **how) as writer:
            for row in rows:
                writer.write({"tokens": row})
        streams[name] = {"extra": 0, "datasets": [{"name": "d", "path": name}]}
    counts = [shard["samples"] for shard in json.loads((directory / "mds/index.json").read_text())["shards"]]
    assert len(counts) > 2 and sum(counts) == SAMPLES
    for name in "samples", "rows":
        (directory / name).mkdir()
        streams[name] = {"extra": 0, "datasets": [{"name": "d", "path": name}]}
    for i, shard in enumerate(numpy.split(rows, numpy.cumsum(counts)[:-1])):
        shard.astype("<u2").tofile(directory / f"samples/{i}.bin")
        numpy.save(directory / f"rows/{i}.npy", shard)
    return streams


@pytest.fixture(scope="module")
def daemon():
    d = Daemon(socket_directory())
    streams = write_streams(d.directory) | write_samples(d.directory)
    streams = {name: {"seed": 3, "seq_len": SEQ, **stream} for name, stream in streams.items()}
    config = {"socket": d.socket, "state_dir": f"{d.directory}/state", "memory": 64 << 20, "streams": streams}
    d.config.write_text(json.dumps(config))
    yield d.start()
    d.kill()
    shutil.rmtree(d.directory)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(daemon, stream):
    """The losses, and the weights they end with."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(16, VOCABULARY))
    descent, losses = torch.optim.SGD(model.parameters(), lr=2.0), []
    with tokend.Loader(stream, MICRO, socket=daemon.socket, rank=0, world=1) as loader:
        for _ in range(STEPS):
            batch = next(loader)
            loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
            descent.zero_grad()
            loss.backward()
            descent.step()
            losses.append(loss.item())
    return losses, torch.cat([weights.detach().flatten() for weights in model.parameters()])


@pytest.fixture(scope="module")
def flat(daemon):
    return train(daemon, "flat")


@pytest.fixture(scope="module")
def samples(daemon):
    return train(daemon, "samples")


def same(a, b):
    return a[0] == b[0] and torch.equal(a[1], b[1])


@pytest.mark.parametrize("name", OTHERS)
def test_losses_of_streams(daemon, flat, name):
    assert same(train(daemon, name), flat)


@pytest.mark.parametrize("name", ["mds", "mds-zstd", "rows"])
def test_losses_of_samples(daemon, samples, name):
    assert same(train(daemon, name), samples)


def test_losses_tell(daemon, flat, samples):
    """The model learns, and one altered token of 20,423 shows in what it learns."""
    for losses, _ in (flat, samples):
        assert losses[-1] < losses[0] - 0.5
    assert train(daemon, "altered")[0] != flat[0]
