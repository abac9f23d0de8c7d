"""Warnings in the trainer: tokens that are never served, and weights that have no effect. Refusals
of a run under an edited config say what to do.
"""

import contextlib
import warnings

import pytest
from lib import Daemon

import tokend

WEB = {"name": "web", "path": "web", "weight": 0.7}
CODE = {"name": "code", "path": "code", "weight": 0.3}


@contextlib.contextmanager
def serving(place, *datasets, start="begin", steps=1, **stream):
    """A loader after some steps, and what it was warned of."""
    train = {"seed": 1, "seq_len": 64, "vocab": 50000, "datasets": datasets, **stream}
    daemon = Daemon(place, place.config(streams={"train": train}))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            keys = {"socket": daemon.socket, "framework": "numpy", "start": start}
            with tokend.Loader("train", 4, **keys) as loader:
                for _ in range(steps):
                    next(loader)
                yield loader, said
    finally:
        daemon.stop()


@pytest.fixture
def shards(place):
    place.shard("web/0.bin", 20_000)
    place.shard("code/0.bin", 9_000)
    place.shard("many/long.bin", 3_000)
    for i in range(30):
        place.shard(f"many/{i}.bin", 60, seed=i)
    return place


# ---- tokens that are never served ----


@pytest.mark.parametrize(
    "path, stream, warned",
    [
        ("many", {}, "38.6 % of its 4800 tokens are never served: 30 of its 31 shards are shorter"),
        ("many", {"epochs": 1}, "never served"),
        ("many", {"seq_len": 59}, None),
        ("web", {"seq_len": 18_000}, "10.0 % of its 20000 tokens are never served: the end"),
        ("code", {"seq_len": 5_000}, "44.4 % of its 9000 tokens are never served"),
        ("web", {}, None),
        ("web", {"stride": 6_400}, None),
    ],
)
def test_a_dataset_that_loses_tokens_is_named(shards, path, stream, warned):
    with serving(shards, {"name": "d", "path": path}, **stream) as (_, said):
        texts = [str(w.message) for w in said]
    assert len(texts) == (warned is not None), texts
    assert not warned or warned in texts[0]


def test_what_slides_is_served_in_another_epoch(shards):
    """Except for shards shorter than a window."""
    with serving(shards, {"name": "d", "path": "code", "slide": True}, seq_len=5_000) as (_, said):
        assert not said
    with serving(shards, {"name": "d", "path": "many", "slide": True}) as (_, said):
        assert "never served" in str(said[0].message)


# ---- a run under an edited config ----


def states(shards, steps=3, **stream):
    with serving(shards, WEB, CODE, steps=steps, **stream) as (loader, _):
        return loader.state_dict()


def resumed(shards, state, *datasets, **stream):
    """The texts of the warnings at a resume, then at a load and at seeks."""
    with serving(shards, *datasets, start=state["cursor"], **stream) as (loader, said):
        loader.seek(position=1028)
        loader.load_state_dict(state)
        next(loader)
        at_start = [str(w.message) for w in said]
    with serving(shards, *datasets, **stream) as (loader, said):
        loader.load_state_dict(state)
        loader.seek(position=1028)
        assert [str(w.message) for w in said] == at_start
    return at_start


def test_edited_weights_have_no_effect_and_that_is_said_once(shards):
    state = states(shards)
    (text,) = resumed(shards, state, {**WEB, "weight": 1}, {**CODE, "weight": 9})
    assert "web=0.7 code=0.3" in text and "tokctl mix train --run default web=0.1 code=0.9" in text
    (text,) = resumed(shards, state, WEB, CODE, {"name": "new", "path": "web", "weight": 1})
    assert "new=0.5" in text
    assert resumed(shards, state, CODE, WEB) == []
    assert resumed(shards, state, {**WEB, "weight": 7}, {**CODE, "weight": 3}) == []


def test_a_mix_that_was_changed_on_purpose_is_not_doubted(shards):
    """By a program or a schedule: before it acts, and afterwards."""
    with serving(shards, WEB, CODE) as (loader, _):
        loader.set_mix({"web": 1, "code": 1})
        pending = loader.state_dict()
        for _ in range(300):
            next(loader)
        acting = loader.state_dict()
    assert resumed(shards, pending, WEB, CODE) == []
    assert resumed(shards, pending, {**WEB, "weight": 1}, {**CODE, "weight": 1}) == []
    assert resumed(shards, acting, WEB, CODE) == []
    assert resumed(shards, acting, {**WEB, "weight": 1}, {**CODE, "weight": 9}) == []
    schedule = [{"at": 1024, "weights": {"web": 1, "code": 1}}]
    for steps in (3, 300):
        state = states(shards, steps=steps, schedule=schedule)
        assert resumed(shards, state, WEB, CODE, schedule=schedule) == []


def test_refusals_are_words(shards):
    state = states(shards)
    for datasets, said in (
        ([{**WEB, "shuffle": "block"}, CODE], "shuffle: the cursor has global, the stream has bl"),
        ([{**WEB, "slide": True}, CODE], "slide: the cursor has false, the stream has true"),
    ):
        with (
            pytest.raises(tokend.RefusedError, match=said),
            serving(shards, *datasets, start=state["cursor"]),
        ):
            pass


def test_more_epochs_are_another_run(shards):
    """The refusal says what to do instead."""
    web = {"name": "web", "path": "web"}
    with serving(shards, web, epochs=1) as (loader, _):
        state = loader.state_dict()
    with (
        pytest.raises(tokend.RefusedError, match="epochs: 1.* has 2.*another seed"),
        serving(shards, web, epochs=2, start=state["cursor"]),
    ):
        pass
