"""`tokctl cursor show` finds the cursors of Loaders in checkpoints of real writers."""

import json
import random
import resource
from functools import partial

import pytest
import torch
import torch.distributed.checkpoint as dcp
from lib import TOKCTL, run, with_parent
from lib.stock import another_daemon

import tokend

PIECE = 4 << 20


def shown(path, code=0):
    got, out, err = run(TOKCTL, "cursor", "show", path, "--json")
    assert got == code, err
    return [json.loads(line) for line in out.splitlines()], err


def as_torch(path, state, **options):
    torch.save(state, path, **options)


def as_dcp(path, state, **options):
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **options), no_dist=True)


def as_text(path, state):
    path.write_text(json.dumps([state[name]["cursor"].hex() for name in ("loader", "valid")]))


WRITERS = {
    "torch": as_torch,
    "torch, as before 1.6": partial(as_torch, _use_new_zipfile_serialization=False),
    "dcp": as_dcp,
    "hex in JSON": as_text,
}


@pytest.fixture(scope="module")
def states():
    """The states of two loaders."""
    states = {}
    with another_daemon() as daemon:
        for name, stream, batches in ("loader", "train", 3), ("valid", "finite", 2):
            with tokend.Loader(stream, 4, socket=daemon.socket, rank=0, world=1) as loader:
                for _ in range(batches):
                    next(loader)
                states[name] = loader.state_dict()
    return states


@pytest.mark.parametrize("writer", WRITERS)
def test_cursors_are_found_in_checkpoints(tmp_path, states, writer):
    path = tmp_path / "checkpoint"
    model = {"weight": torch.rand(300, 300), "bias": torch.arange(5)}
    WRITERS[writer](path, {"model": model, "step": 7, **{k: dict(v) for k, v in states.items()}})
    found, _ = shown(path)
    expected = []
    for name, state in states.items():
        file = tmp_path / f"{name}.cursor"
        file.write_bytes(state["cursor"])
        expected += shown(file)[0]
    by_stream = {one["stream"]: one for one in found}
    assert len(found) == len(by_stream) == 2
    for want in expected:
        got = by_stream[want["stream"]]
        assert {key: got[key] for key in want} == want
        assert got["file"].startswith(str(path)) and got["places"] == 1
    text = run(TOKCTL, "cursor", "show", path)[1].decode()
    assert text.count("byte ") == 2 and "next    12\n" in text and "next    8\n" in text


def test_a_checkpoint_without_a_cursor_is_refused(tmp_path):
    torch.save({"model": torch.ones(3)}, tmp_path / "model.pt")
    found, err = shown(tmp_path, code=1)
    assert not found and "contains no cursor" in err and err.count("\n") == 1, err


def test_a_large_file_needs_little_memory(tmp_path, states):
    """A damaged cursor is counted. What only begins as a cursor costs little."""
    cursor = states["loader"]["cursor"]
    path = tmp_path / "large"
    edge = random.randrange(1, len(cursor))
    damaged = bytearray(cursor)
    damaged[-1] ^= 1
    with open(path, "wb") as file:
        for at, what in (
            (PIECE - edge, cursor),
            (5 * PIECE, damaged),
            (9 * PIECE - 7, cursor),
            (12 * PIECE, b"746b6463" * (PIECE // 8)),  # in hex, as a cursor begins
            (256 * 2**20 - len(cursor), states["valid"]["cursor"]),
        ):
            file.seek(at)
            file.write(what)

    def little():
        with_parent()
        resource.setrlimit(resource.RLIMIT_DATA, (64 << 20, 64 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # seconds; it takes one

    code, out, err = run(TOKCTL, "cursor", "show", path, "--json", preexec_fn=little)
    assert code == 0, err
    first, second = map(json.loads, out.splitlines())
    assert (first["offset"], first["places"]) == (PIECE - edge, 2)
    assert (second["offset"], second["stream"]) == (256 * 2**20 - len(cursor), "finite")
    assert "1 cursors in it are damaged" in err
