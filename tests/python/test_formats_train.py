"""Tokens in every format train the GPT of `make run` to the same losses, bit for bit, through a
real daemon and loader.
"""

import importlib.util
import json
import pathlib
import socket
import sys

import numpy
import pytest
import torch
from lib import REPO
from lib.stock import StockDaemon
from lib.shard_writers import arrow, datatrove, llmc, mds, megatron, npy, put, raw, seekable

SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens
SEQ, STEPS, VOCABULARY = (
    128,
    10,
    1000,
)  # the steps take every window, some twice; a larger vocabulary would slow the output layer
SAMPLES = 160  # of its 16 a step


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
    """Small tokens are more frequent, so that the model can learn something."""
    return (VOCABULARY * numpy.random.default_rng([5, seed]).random(n) ** 3).astype(numpy.int64)


def write_streams(directory):
    """A directory per format, with the same shards; and a flat one with one token altered."""
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
    """MDS, NumPy rows and flat shards whose windows are the same samples, shard by shard."""
    rows = tokens(SAMPLES * SEQ, 9).reshape(SAMPLES, SEQ).astype(numpy.int32)
    for name, how in {"mds": {}, "mds-zstd": {"compression": "zstd"}}.items():
        mds(directory / name, rows, 20_000, **how)
    counts = [
        shard["samples"]
        for shard in json.loads((directory / "mds/index.json").read_text())["shards"]
    ]
    assert len(counts) > 2 and sum(counts) == SAMPLES
    for name in "samples", "rows":
        (directory / name).mkdir()
    for i, shard in enumerate(numpy.split(rows, numpy.cumsum(counts)[:-1])):
        shard.astype("<u2").tofile(directory / f"samples/{i}.bin")
        numpy.save(directory / f"rows/{i}.npy", shard)
    return {
        name: {"extra": 0, "datasets": [{"name": "d", "path": name}]}
        for name in ("samples", "rows", "mds", "mds-zstd")
    }


@pytest.fixture(scope="module")
def gpt():
    """client/example/gpt/train.py as the only rank, on one thread."""
    spec = importlib.util.spec_from_file_location("train", REPO / "client/example/gpt/train.py")
    module, before = importlib.util.module_from_spec(spec), torch.get_num_threads()
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def train(gpt, shared):
    """A function of a stream that returns the records of its steps and of the validation after
    them.
    """
    directory = pathlib.Path(shared.path)
    streams = write_streams(directory) | write_samples(directory)

    def train(name):
        d, stream = StockDaemon(directory), {"seed": 3, "seq_len": SEQ, **streams[name]}
        streams_ = {
            "train": {**stream, "samples": 16 * STEPS},
            "valid": {**stream, "seed": 4, "samples": 32},
        }
        d.config.write_text(
            json.dumps(
                {
                    "socket": d.socket,
                    "state_dir": f"{directory}/state",
                    "memory": 64 << 20,
                    "streams": streams_,
                }
            )
        )
        with socket.socket() as free, pytest.MonkeyPatch.context() as patch:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            for key, value in {
                "RANK": 0,
                "WORLD_SIZE": 1,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }.items():
                patch.setenv(key, str(value))
            patch.setattr(sys, "argv", ["train.py", "--socket", d.socket, "--checkpoints",
                str(directory / "none"),
                                        "--record", str(directory / "record"), "--every",
                                        "1000"])  # fmt: skip
            d.start()
            try:
                gpt.main()
            finally:
                d.kill()
        _, *steps, end = map(
            json.loads, pathlib.Path(directory / "record-0.jsonl").read_text().splitlines()
        )
        assert len(steps) == STEPS
        return [(step["position"], step["checksum"], step["loss"]) for step in steps], end["valid"]

    return train


@pytest.fixture(scope="module")
def flat(train):
    return train("flat")


@pytest.fixture(scope="module")
def samples(train):
    return train("samples")


@pytest.mark.parametrize("name", OTHERS)
def test_all_formats_give_equal_losses(train, flat, name):
    assert train(name) == flat


@pytest.mark.parametrize("name", ["mds", "mds-zstd", "rows"])
def test_all_formats_of_samples_give_equal_losses(train, samples, name):
    assert train(name) == samples


def test_one_altered_token_changes_the_losses(train, flat, samples):
    """The model learns, and one altered token of 20,423 changes its losses."""
    for steps, _ in (flat, samples):
        assert steps[-1][2] < steps[0][2] - 0.5
    altered = train("altered")
    assert [loss for *_, loss in altered[0]] != [loss for *_, loss in flat[0]]
    assert altered[1]["loss"] != flat[1]["loss"]
