"""Warnings in the trainer: tokens that are never served, weights that have no effect, loops that
lose rows. Refusals of a run under an edited config say what to do.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokend
import torch
from lib import Daemon
from loading import WINDOWS, make, positions, warned

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
        ({"path": "many", "slide": True}, {}, "never served"),
        ({"path": "many"}, {"seq_len": 59}, None),
        ({"path": "code"}, {"seq_len": 5_000}, "44.4 % of its 9000 tokens are never served"),
        ({"path": "code", "slide": True}, {"seq_len": 5_000}, None),  # it is in another epoch
        ({"path": "web"}, {"stride": 6_400}, None),
    ],
)
def test_a_dataset_that_loses_tokens_is_named(shards, dataset, stream, text):
    with serving(shards, {"name": "d", **dataset}, **stream) as daemon:
        texts = warned(lambda: taken(daemon))
    assert len(texts) == (text is not None), texts
    assert not text or text in texts[0]


# ---- a run under an edited config ----


def resumed(shards, state, *datasets, **stream):
    """The warnings at a resume, which are those at a load, too."""
    with serving(shards, *datasets, **stream) as daemon:
        texts = warned(lambda: taken(daemon, start=state))
        with make(daemon, framework="numpy") as loader:
            assert warned(lambda: loader.load_state_dict(state)) == texts
    return texts


def test_edited_mixes_and_limits_have_no_effect_and_that_is_said_once(shards):
    with serving(shards, WEB, CODE) as daemon:
        state = taken(daemon, 3)
    (text,) = resumed(shards, state, {**WEB, "weight": 1}, {**CODE, "weight": 9})
    assert "web=0.7 code=0.3" in text and "tokctl mix train --run default web=0.1 code=0.9" in text
    assert resumed(shards, state, CODE, WEB) == []
    assert resumed(shards, state, {**WEB, "weight": 7}, {**CODE, "weight": 3}) == []
    (text,) = resumed(shards, state, WEB, {**CODE, "max_epochs": 100})
    assert "keeps the max_epochs of dataset code that it began with" in text
    schedule = [{"at": 2048, "weights": {"web": 1}}]
    (text,) = resumed(shards, state, WEB, CODE, schedule=schedule)
    assert "keeps the one mix that it began with; the config's schedule" in text


def test_a_mix_that_was_changed_on_purpose_is_not_doubted(shards):
    """By a program or a schedule: before it acts, and afterwards."""
    schedule = [{"at": 1024, "weights": {"web": 1, "code": 1}}]
    for mix, key in ((schedule[0]["weights"], {}), (None, {"schedule": schedule})):
        with serving(shards, WEB, CODE, **key) as daemon:
            states = [taken(daemon, steps, mix) for steps in (1, 300)]
        for state in states:
            assert resumed(shards, state, WEB, CODE, **key) == []
    assert resumed(shards, state, {**WEB, "weight": 1}, {**CODE, "weight": 1}, **key) == []


def test_a_refusal_says_what_to_do(shards):
    web = {"name": "web", "path": "web"}
    with serving(shards, web, epochs=1) as daemon:
        state = taken(daemon)
    for dataset, epochs, text in (
        ({**web, "shuffle": "block"}, 1, "shuffle: the cursor has global, the stream has bl"),
        (web, 2, "epochs: 1.* has 2.*another seed"),
    ):
        with serving(shards, dataset, epochs=epochs) as daemon:
            with pytest.raises(tokend.RefusedError, match=text):
                make(daemon, start=state)


# ---- loops that train on wrong rows, or lose some ----

LOST = "the run loses the rows of the evaluation"


def test_an_evaluation_with_the_training_loader_is_named(served):
    with make(served) as loader:

        def steps(n):
            for _ in range(n):
                with torch.no_grad():
                    next(loader)
                next(loader)

        (text,) = warned(lambda: steps(3))
        assert LOST in text
    for how in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with make(served) as loader, how():
            assert warned(lambda: [next(loader) for _ in range(3)]) == []


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_an_evaluation_that_was_left_begins_again(served, framework):
    """As Lightning's sanity check leaves it, and whichever thread evaluates."""
    with make(served, "finite", 5, framework=framework) as loader, torch.no_grad():
        whole = len(loader)
        for _ in zip(range(2), loader):
            pass
        assert len(loader) == whole
        (text,) = warned(lambda: positions(loader))
        assert "left at position 10" in text and "begins again at position 0" in text
        assert len(loader) == whole
        next(iter(loader))
        assert warned(lambda: positions(loader)) == [], "once"
        assert loader.taken == WINDOWS
        with ThreadPoolExecutor(1) as other:
            some = torch.no_grad()(lambda: positions(batch for _, batch in zip(range(2), loader)))
            assert [other.submit(some).result() for _ in range(2)] == [[*range(10)]] * 2
            next(iter(loader))  # a batch whose mode is unknown: the pass may be one of training
            other.submit(next, loader).result()
            assert other.submit(some).result()[0] == 10


def test_another_pass_with_gradients_is_named(served):
    with make(served, "finite", 5) as loader:
        assert warned(lambda: positions(loader)) == []
        (text,) = warned(lambda: [positions(loader) for _ in range(2)])
        assert "in the same order" in text and "set epochs:" in text
    with make(served, "finite", 5) as loader, torch.no_grad(), ThreadPoolExecutor(1) as other:
        assert warned(lambda: [positions(loader) for _ in range(2)]) == []
        ahead = lambda: other.submit(positions, loader).result()  # a thread has its own mode
        assert warned(lambda: [ahead() for _ in range(2)]) == []


def test_a_batch_of_padding_under_gradients_is_named(served):
    whole = WINDOWS // 5
    assert WINDOWS % 5 in range(1, 5), "two ranks, of which the second has padding only"
    with make(served, "finite", 5, rank=1, world=2, start=whole * 5) as loader:
        (text,) = warned(lambda: next(loader))
        assert "padding only" in text and f"samples: {whole // 2 * 10} in the config" in text


def test_a_state_saved_while_an_exception_is_handled(served):
    """Its step may not be complete: unless commits say which are."""
    for commits in (False, True):
        with make(served) as loader:
            for _ in range(2):
                next(loader)
                if commits:
                    loader.commit()
            assert warned(loader.state_dict) == []
            try:
                raise KeyError("a step")
            except KeyError:
                texts = warned(lambda: [loader.state_dict() for _ in range(2)])
            assert len(texts) == (not commits)
            assert commits or "a resume loses these rows" in texts[0]


def test_a_commit_that_is_forgotten(served):
    with make(served) as loader:
        loader.commit()
        assert warned(loader.state_dict) == []
        for _ in range(70):
            next(loader)
        (text,) = warned(loader.state_dict)
        assert "again that of position 0" in text and "the 70 batches since" in text
