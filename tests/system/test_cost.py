"""`tokctl plan --cost` counts the GETs and bytes of exactly the windows that `plan` lists."""

import json
import os

import numpy
import pytest

from lib import TOKCTL, datasets, run

PIECE = 1 << 20
SEQ_LEN = 2048
WINDOW = SEQ_LEN + 1
HEADER = {"web": 128, "code": 0}


@pytest.fixture(scope="module")
def scene(shared):
    """Shards of several pieces, which are holes: only their headers are read."""
    for i, tokens in enumerate([9_000_017, 30_000_000, 20_000_000, 77]):
        path = shared.file("web", f"{i}.npy")
        numpy.lib.format.open_memmap(path, "w+", "<u2", (tokens,))
    with open(shared.file("code", "a.bin"), "wb") as f:
        f.truncate(100_000_000)
    mix = datasets("web", weight=0.7, piece=PIECE) + datasets("code", weight=0.3, piece=PIECE)
    shared.config(streams={"train": {"seed": 5, "seq_len": SEQ_LEN, "datasets": mix}})
    return shared


def plan(scene, *arguments):
    code, out, err = run(TOKCTL, "plan", "-c", scene.file("tokend.yaml"), *arguments, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def cost(scene, *arguments):
    """By dataset (None: all) and mode."""
    return {(c["dataset"], c["mode"]): c for c in plan(scene, *arguments, "--cost")}


def read_pieces(scene, windows):
    """(GETs, bytes) of each dataset, if a piece is read once."""
    pieces = {"web": {}, "code": {}}
    for w in windows:
        path = scene.file(w["dataset"], w["shard"])
        at, size = HEADER[w["dataset"]] + 2 * w["offset"], os.path.getsize(path)
        for p in range(at // PIECE, (at + 2 * WINDOW - 1) // PIECE + 1):
            pieces[w["dataset"]][path, p] = min(PIECE, size - p * PIECE)
    return {name: (len(p), sum(p.values())) for name, p in pieces.items()}


def test_cost_counts_what_plan_lists(scene):
    first, count = 1500, 100
    windows = plan(scene, "train", "--from", first, "--count", count)
    read = read_pieces(scene, windows)
    found = cost(scene, "train", "--from", first, "--for", count * SEQ_LEN)
    for name in ("web", "code"):
        n = sum(w["dataset"] == name for w in windows)
        window, piece = found[name, "window"], found[name, "piece"]
        assert (window["gets"], window["bytes"]) == (n, n * 2 * WINDOW)
        assert (piece["gets"], piece["bytes"]) == read[name]
    for mode in ("window", "piece"):
        for key in ("gets", "bytes"):
            assert found[None, mode][key] == sum(found[d, mode][key] for d in ("web", "code"))


def test_nodes_rate_and_prices(scene):
    tokens = 100_000 * SEQ_LEN
    more = "--nodes 8 --rate 1e6 --get 0.4 --egress 2".split()
    many = cost(scene, "train", "--for", tokens, *more)
    sizes = [os.path.getsize(scene.file("web", f"{i}.npy")) for i in range(3)] + [100_000_000]
    every = sum(-(-size // PIECE) for size in sizes)  # no window is in 3.npy
    assert many[None, "piece"]["gets"] == 8 * every
    assert many[None, "window"]["gets"] == 100_000
    for c in many.values():
        assert c["gets_per_second"] == pytest.approx(c["gets"] * 1e6 / tokens)
        assert c["dollars"] == pytest.approx(c["gets"] / 1000 * 0.4 + c["bytes"] / 1e9 * 2)
