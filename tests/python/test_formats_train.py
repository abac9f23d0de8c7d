"""A loader gives the tokens, labels and documents of every format as its writer got them. The GPT
of `make run` learns from tokens, the same from whatever file they are in, bit for bit.
"""

import importlib.util
import json
import pathlib
import socket
import sys

import numpy
import pytest
import tokend
import torch
from lib import REPO, Daemon
from lib.corpus import FORMATS, SEQ_LEN, corpus, plan
from lib.shard_writers import megatron, npy, put, raw, seekable
from lib.stock import StockDaemon

MICRO, BATCHES = 8, 40


@pytest.fixture(scope="module")
def written():
    return corpus()


@pytest.fixture(scope="module")
def served(shared, written):
    streams = {
        name + marked: about.config(str(written[0] / name), bool(marked))
        for name, about in FORMATS.items()
        for marked in ("", "-marked")
    }
    daemon = Daemon(shared, shared.config(memory=64 << 20, streams=streams))
    yield daemon
    assert daemon.stop() == 0


@pytest.mark.parametrize("marked", ["", "-marked"])
@pytest.mark.parametrize("name", FORMATS)
def test_batches_are_what_the_writers_got(written, served, name, marked):
    about, more = FORMATS[name], {"documents": True, "loss_mask": True} if marked else {}
    shards = written[1][name]
    rows = iter(plan(served.config, name, MICRO * BATCHES))
    with tokend.Loader(
        name + marked, MICRO, socket=served.socket, rank=0, world=1, **more
    ) as loader:
        for _ in range(BATCHES):
            batch = next(loader)
            for i, at in zip(range(MICRO), rows):
                window = SEQ_LEN + about.stream.get("extra", 1)
                shard = shards[at["shard"]]
                want, starts, mask = about.window(shard, at["offset"], window)
                assert numpy.array_equal(batch["input_ids"][i], want[:SEQ_LEN]), at
                labels = numpy.where(numpy.array(mask) | (not marked), want, -100)[1:]
                assert numpy.array_equal(batch["labels"][i, : window - 1], labels), at
                if marked:
                    found = numpy.flatnonzero(batch["position_ids"][i] == 0)
                    assert found.tolist() == [0, *(s for s in starts if s < SEQ_LEN)], at


# ---- losses ----

SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens
SEQ, STEPS, VOCABULARY = 128, 10, 1000  # a larger vocabulary would slow the output layer
FILES = {  # name: (stored dtype, writer)
    "flat": ("<u2", put(".bin", raw)),
    "megatron": ("<i4", megatron),
    "zstd-npy": ("<i8", seekable(".npy.zst", npy, 4096)),
    "altered": ("<u2", put(".bin", raw)),
}


def tokens(n, seed):
    """Small tokens are more frequent, so that the model can learn something."""
    return (VOCABULARY * numpy.random.default_rng([5, seed]).random(n) ** 3).astype(numpy.int64)


def write_shards(directory):
    """A directory per format, with the same shards; and a flat one with one token altered."""
    shards = [tokens(n, i) for i, n in enumerate(SHARDS)]
    altered = [shard.copy() for shard in shards]
    altered[2][6000] ^= 1
    for name, (dtype, write) in FILES.items():
        (directory / name).mkdir()
        for i, shard in enumerate(altered if name == "altered" else shards):
            write(str(directory / name / str(i)), shard.astype(dtype))


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
    write_shards(directory)

    def train(name):
        d, datasets = StockDaemon(directory), [{"name": "d", "path": name}]
        stream = {"seed": 3, "seq_len": SEQ, "datasets": datasets}
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


def test_losses_depend_on_the_tokens_only(train):
    """The model learns, and one altered token of 20,423 changes its losses."""
    steps, valid = flat = train("flat")
    assert steps[-1][2] < steps[0][2] - 0.5
    assert train("megatron") == train("zstd-npy") == flat
    altered = train("altered")
    assert [loss for *_, loss in altered[0]] != [loss for *_, loss in steps]
    assert altered[1]["loss"] != valid["loss"]
