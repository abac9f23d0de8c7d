"""`tokctl cost`: nodes, rate and prices. objects/test_cache.py compares its GETs and bytes
with those of a daemon.
"""

import json

import pytest

from lib import TOKCTL, datasets, run

PIECE, SEQ_LEN = 1 << 20, 2048
SIZES = {"web": 118_000_034, "code": 100_000_000}


def costs(place, mix, *more):
    config = place.config(streams={"train": {"seed": 5, "seq_len": SEQ_LEN, "datasets": mix}})
    code, out, err = run(TOKCTL, "cost", "-c", config, "train", "--json", *more)
    assert code == 0, err
    return {(c["dataset"], c["mode"]): c for c in map(json.loads, out.splitlines())}


def test_nodes_rate_and_prices(place):
    """The shards are holes."""
    for name, size in SIZES.items():
        with open(place.file(name, "a.bin"), "wb") as f:
            f.truncate(size)
    mix = datasets("web", weight=0.7, piece=PIECE) + datasets("code", weight=0.3, piece=PIECE)
    tokens = 100_000 * SEQ_LEN
    more = "--nodes 8 --rate 1e6 --get 0.4 --egress 2".split()
    many = costs(place, mix, "--for", tokens, *more)
    every = sum(-(-size // PIECE) for size in SIZES.values())
    assert many[None, "piece"]["gets"] == 8 * every
    assert many[None, "window"]["gets"] == 100_000
    for c in many.values():
        assert c["gets_per_second"] == pytest.approx(c["gets"] * 1e6 / tokens)
        assert c["dollars"] == pytest.approx(c["gets"] / 1000 * 0.4 + c["bytes"] / 1e9 * 2)
    for name in SIZES:
        window = many[name, "window"]
        assert window["bytes"] == window["gets"] * 2 * (SEQ_LEN + 1)


@pytest.mark.parametrize("manifest", [{}, {"manifest": "m.jsonl"}])
def test_pieces_in_order_are_exact(place, manifest):
    """Windows in order share blocks of 64 KiB, so these are estimates."""
    place.shard("web/a.bin", 4 * PIECE)
    run(TOKCTL, "manifest", place.file("web"), place.file("m.jsonl"))
    web = datasets("web", shuffle="none", piece=PIECE, **manifest)
    exact = [(c["exact"], c["gets"]) for c in costs(place, web, "--for", 1e9).values()]
    assert exact == [(False, 30518), (True, 8)]


def test_each_small_block_fetches_a_piece(place):
    """A block is 16 windows of a piece's 256, and the cache holds some groups of them."""
    with open(place.file("web", "a.bin"), "wb") as f:
        f.truncate(SIZES["web"])
    web = datasets("web", shuffle="block", block=16, group=4, piece=PIECE)
    piece = costs(place, web, "--for", 16_000 * SEQ_LEN)["web", "piece"]
    assert 1000 <= piece["gets"] <= 1200 and not piece["exact"], piece
