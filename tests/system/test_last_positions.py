"""Positions around 2^63 and the last ones before 2^64: served, saved, resumed, planned, looked up
and verified as any others. After them an endless stream ends, and edits beyond are refused.
"""

import json
import os

import numpy
import pytest
import tokend

from lib import TOKCTL, Daemon, datasets, rank_rows, rows_at, run, status, wait_for

WORLD, MICRO, LAST = 2, 3, (1 << 64) - 1  # the last position; padding rows have this number
STARTS = {"2^63": (1 << 63) - 20, "2^64": LAST - 64}


@pytest.fixture
def daemon(place):
    for name in ("web", "code"):
        place.shard(f"{name}/a.bin", 50_000)
    about = {"seed": 5, "seq_len": 64, "datasets": datasets("web", "code", slide=True)}
    return Daemon(place, place.config(streams={"train": about}))


def ctl(*arguments):
    code, out, err = run(TOKCTL, *arguments)
    assert code == 0, (arguments, err)
    return out


def loaders(daemon, start, records, world=WORLD):
    return [
        tokend.Loader(
            "train", MICRO, socket=daemon.socket, run="far", rank=rank, world=world, start=start,
            record=records, framework="numpy",
        )
        for rank in range(world)
    ]  # fmt: skip


def take(loaders, batches):
    """Batches of all ranks: rows and positions; closes the loaders. Returns the state, too."""
    parts = [[next(loader) for _ in range(batches)] for loader in loaders]
    states = [loader.state_dict()["cursor"] for loader in loaders]
    assert len(set(states)) == 1, "equal steps give equal cursors"
    for loader in loaders:
        loader.close()
    whole = lambda b: numpy.concatenate((b["input_ids"], b["labels"][:, -1:]), 1)
    rows = [numpy.concatenate([whole(b) for b in part]) for part in parts]
    positions = [numpy.concatenate([b["position"] for b in part]).view("u8") for part in parts]
    return rows, positions, states[0]


@pytest.mark.parametrize("where", STARTS)
def test_far_positions_are_like_any_others(daemon, place, where):
    begin, records, step = STARTS[where], place.file("records", ""), WORLD * MICRO
    want = rows_at(daemon.config, "train", begin, 8 * step)
    rows, positions, cursor = take(loaders(daemon, begin, records), 4)
    more, others, cursor = take(loaders(daemon, cursor, records), 4)
    for rank in range(WORLD):
        got = numpy.concatenate([rows[rank], more[rank]])
        assert numpy.array_equal(got, rank_rows(want, rank, WORLD, MICRO).reshape(got.shape))
        first = begin + rank * MICRO
        assert int(positions[rank][0]) == first and int(others[rank][0]) == first + 4 * step
    assert tokend.Cursor(cursor).position == begin + 8 * step
    out = ctl("verify", "train", records, "-c", daemon.config, "--json")
    said = json.loads(out)
    assert (said["from"], said["to"], said["samples"]) == (begin, begin + 8 * step, 8 * step)
    assert said["repeated"] == said["lost"] == said["altered"] == 0
    place_of = ["--rank", 0, "--world", 1, "--micro", 1, "--batches", 40]
    out = ctl("cat", "train", "--socket", daemon.socket, "--start", begin, *place_of)
    assert out == want[:40].tobytes(), "tokctl cat"
    planned = ctl("plan", "train", "-c", daemon.config, "--from", begin, "--count", 3, "--json")
    for at in map(json.loads, planned.splitlines()):
        where = ["--dataset", at["dataset"], "--shard", at["shard"], "--offset", at["offset"]]
        found = ctl("when", "train", "-c", daemon.config, *where, "--epoch", at["epoch"], "--json")
        assert at["position"] in [json.loads(line)["position"] for line in found.splitlines()]


def test_an_endless_stream_ends_after_the_last_position(daemon, place):
    records = place.file("records", "")
    (loader,) = loaders(daemon, LAST - 7, records, world=1)
    with pytest.raises(tokend.ArgumentError):
        loader.set_mix({"web": 1.0})  # no block of 1024 is left
    with pytest.raises(tokend.ArgumentError):
        loader.cursor.skip(8)
    valid = [int((batch["position"] != -1).sum()) for batch in loader]
    assert valid == [3, 3, 1], "7 samples, then the end"
    at = lambda: status(daemon.socket)[0][0]["position"]
    assert wait_for(lambda: at() == LAST), "a status does not count beyond it"
    assert loader.position == LAST
    state = loader.state_dict()
    loader.close()
    (loader,) = loaders(daemon, state["cursor"], os.path.join(records, "more"), world=1)
    with pytest.raises(StopIteration):
        next(loader)
    loader.close()
