"""Warnings in the trainer: tokens that are never served, and weights that have no effect. Refusals
of a run under an edited config say what to do.
"""

import contextlib
import warnings

import pytest
import tokend
from lib import Daemon
from loading import make

WEB = {"name": "web", "path": "web", "weight": 0.7}
CODE = {"name": "code", "path": "code", "weight": 0.3}


@pytest.fixture(scope="module")
def shards(shared):
    shared.shard("web/0.bin", 20_000)
    shared.shard("code/0.bin", 9_000)
    shared.shard("many/long.bin", 3_000)
    for i in range(30):
        shared.shard(f"many/{i}.bin", 60, seed=i)
    return shared


@contextlib.contextmanager
def serving(place, *datasets, **stream):
    train = {"seed": 1, "seq_len": 64, "vocab": 50000, "datasets": datasets, **stream}
    daemon = Daemon(place, place.config(streams={"train": train}))
    try:
        yield daemon
    finally:
        daemon.stop()


def texts_of(act):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in said]


def taken(daemon, steps=1, mix=None, **more):
    """The state after some steps."""
    with make(daemon, framework="numpy", **more) as loader:
        if mix:
            loader.set_mix(mix)
        for _ in range(steps):
            next(loader)
        return loader.state_dict()


@pytest.mark.parametrize(
    ("dataset", "stream", "text"),
    [
        ({"path": "many"}, {}, "38.6 % of its 4800 tokens are never served: 30 of its 31 shards"),
        ({"path": "many"}, {"epochs": 1}, "never served"),
        ({"path": "many", "slide": True}, {}, "never served"),
        ({"path": "many"}, {"seq_len": 59}, None),
        ({"path": "web"}, {"seq_len": 18_000}, "10.0 % of its 20000 tokens are never served"),
        ({"path": "code"}, {"seq_len": 5_000}, "44.4 % of its 9000 tokens are never served"),
        ({"path": "code", "slide": True}, {"seq_len": 5_000}, None),  # it is in another epoch
        ({"path": "web"}, {}, None),
        ({"path": "web"}, {"stride": 6_400}, None),
    ],
)
def test_a_dataset_that_loses_tokens_is_named(shards, dataset, stream, text):
    with serving(shards, {"name": "d", **dataset}, **stream) as daemon:
        texts = texts_of(lambda: taken(daemon))
    assert len(texts) == (text is not None), texts
    assert not text or text in texts[0]


# ---- a run under an edited config ----


def resumed(shards, state, *datasets, **stream):
    """The warnings at a resume, which are those at a load, too."""

    def load():
        with make(daemon, framework="numpy") as loader:
            loader.load_state_dict(state)
            loader.seek(position=1028)

    with serving(shards, *datasets, **stream) as daemon:
        texts = texts_of(lambda: taken(daemon, start=state))
        assert texts_of(load) == texts
    return texts


def test_edited_weights_have_no_effect_and_that_is_said_once(shards):
    with serving(shards, WEB, CODE) as daemon:
        state = taken(daemon, 3)
    (text,) = resumed(shards, state, {**WEB, "weight": 1}, {**CODE, "weight": 9})
    assert "web=0.7 code=0.3" in text and "tokctl mix train --run default web=0.1 code=0.9" in text
    (text,) = resumed(shards, state, WEB, CODE, {"name": "new", "path": "web", "weight": 1})
    assert "new=0.5" in text
    assert resumed(shards, state, CODE, WEB) == []
    assert resumed(shards, state, {**WEB, "weight": 7}, {**CODE, "weight": 3}) == []


def test_a_mix_that_was_changed_on_purpose_is_not_doubted(shards):
    """By a program or a schedule: before it acts, and afterwards."""
    schedule = [{"at": 1024, "weights": {"web": 1, "code": 1}}]
    with serving(shards, WEB, CODE) as daemon:
        states = [taken(daemon, steps, schedule[0]["weights"]) for steps in (1, 300)]
    for state, weight in zip(states, (1, 9), strict=True):
        assert resumed(shards, state, WEB, CODE) == []
        assert resumed(shards, state, {**WEB, "weight": 1}, {**CODE, "weight": weight}) == []
    with serving(shards, WEB, CODE, schedule=schedule) as daemon:
        states = [taken(daemon, steps) for steps in (3, 300)]
    for state in states:
        assert resumed(shards, state, WEB, CODE, schedule=schedule) == []


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"shuffle": "block"}, "shuffle: the cursor has global, the stream has bl"),
        ({}, {"slide": True}, "slide: the cursor has false, the stream has true"),
        ({"epochs": 1}, {"epochs": 2}, "epochs: 1.* has 2.*another seed"),
    ],
)
def test_a_refusal_says_what_to_do(shards, before, after, text):
    web = {"name": "web", "path": "web"}
    keys = [{"epochs": each["epochs"]} if "epochs" in each else {} for each in (before, after)]
    with serving(shards, web, **keys[0]) as daemon:
        state = taken(daemon)
    changed = web if keys[1] else {**web, **after}
    with serving(shards, changed, **keys[1]) as daemon:
        with pytest.raises(tokend.RefusedError, match=text):
            make(daemon, start=state)
