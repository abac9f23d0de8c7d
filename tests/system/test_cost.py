"""`tokctl plan --cost` counts the GETs and bytes of exactly the windows that `plan` lists."""

import json
import os

import numpy
import pytest

from lib import TOKCTL, Place, run

PIECE = 1 << 20
SEQ_LEN = 2048
WINDOW = SEQ_LEN + 1
HEADER = {"web": 128, "code": 0}
STREAMS = {
    "global": {"shuffle": "global"},
    "none": {"shuffle": "none"},
    "block": {"shuffle": "block", "block": 4096, "group": 4},
}


@pytest.fixture(scope="module")
def scene():
    """Shards of several pieces, which are holes: only their headers are read."""
    with Place() as place:
        for i, tokens in enumerate([9_000_017, 30_000_000, 20_000_000, 77]):
            path = place.file("web", f"{i}.npy")
            numpy.lib.format.open_memmap(path, "w+", "<u2", (tokens,))
        with open(place.file("code", "a.bin"), "wb") as f:
            f.truncate(100_000_000)
        data = [{"name": "web", "path": "web", "weight": 0.7, "piece": PIECE},
                {"name": "code", "path": "code", "weight": 0.3, "piece": PIECE}]  # fmt: skip
        about = {"seed": 5, "seq_len": SEQ_LEN}
        place.config(
            streams={
                name: {**about, "datasets": [{**dataset, **keys} for dataset in data]}
                for name, keys in STREAMS.items()
            }
        )
        yield place


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


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("first, count", [(0, 5000), (1500, 100)])
def test_cost_counts_what_plan_lists(scene, stream, first, count):
    windows = plan(scene, stream, "--from", str(first), "--count", str(count))
    read = read_pieces(scene, windows)
    found = cost(scene, stream, "--from", str(first), "--for", str(count * SEQ_LEN))
    for name in ("web", "code"):
        n = sum(w["dataset"] == name for w in windows)
        window, piece = found[name, "window"], found[name, "piece"]
        assert (window["gets"], window["bytes"]) == (n, n * 2 * WINDOW)
        assert window["exact"] and window["read_per_used"] == 1 and window["cache_bytes"] == 0
        assert (piece["gets"], piece["bytes"]) == read[name]
    for mode in ("window", "piece"):
        for key in ("gets", "bytes"):
            assert found[None, mode][key] == sum(found[d, mode][key] for d in ("web", "code"))


def test_nodes_rate_and_prices(scene):
    tokens = 100_000 * SEQ_LEN
    one = cost(scene, "global", "--for", tokens)
    more = "--nodes 8 --rate 1e6 --get 0.4 --egress 2".split()
    many = cost(scene, "global", "--for", tokens, *more)
    sizes = [os.path.getsize(scene.file("web", f"{i}.npy")) for i in range(3)] + [100_000_000]
    every = sum(-(-size // PIECE) for size in sizes)  # no window is in 3.npy
    assert (one[None, "piece"]["gets"], many[None, "piece"]["gets"]) == (every, 8 * every)
    assert many[None, "window"]["gets"] == one[None, "window"]["gets"] == 100_000
    for c in many.values():
        assert c["gets_per_second"] == pytest.approx(c["gets"] * 1e6 / tokens)
        assert c["dollars"] == pytest.approx(c["gets"] / 1000 * 0.4 + c["bytes"] / 1e9 * 2)
    for wrong in ("--cost --count 4", "--cost --step 1", "--from 0 --for 1"):
        command = [TOKCTL, "plan", "-c", scene.file("tokend.yaml"), "global", *wrong.split()]
        assert run(*command)[0] == 2, wrong
