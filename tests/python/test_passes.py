"""Passes over a loader: how one ends, how the next begins, and their records."""

import json
import signal
import subprocess
import sys
import warnings

import pytest
import tokend
import torch
import transforms
from lib import BIN, child_environment

WINDOWS = 468  # of the finite stream


def make(daemon, stream="finite", micro=5, **more):
    return tokend.Loader(stream, micro, socket=daemon.socket, **{"rank": 0, "world": 1, **more})


def positions(batches):
    return [
        position for batch in batches for position in batch["position"].tolist() if position >= 0
    ]


def verify(daemon, records, *more):
    """tokctl verify: (exit status, one object per peer and pass)"""
    command = [
        BIN / "tokctl",
        "verify",
        "-c",
        daemon.config,
        "finite",
        records,
        "--json",
        *map(str, more),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


# ---- leaving a pass ----


def test_a_generator_that_is_left_does_not_close_the_loader(daemon):
    def some():
        yield from loader

    with make(daemon, "train", 4) as loader:
        for _batch in some():
            break
        assert not hasattr(iter(loader), "close")
        assert positions([next(loader)]) == [4, 5, 6, 7]


def test_a_pass_that_was_left_continues(daemon):
    with make(daemon) as loader:
        first = [batch for _, batch in zip(range(3), loader)]
        for batch in loader:
            first.append(batch)
            break
        assert positions(first) == list(range(20))
        assert positions(loader) == list(range(20, WINDOWS))


# ---- beginning again ----


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"framework": "numpy"},
        {"transform": transforms.in_place, "workers": 2},
        {"prefetched": 1},
    ],
    ids=str,
)
def test_the_next_pass_begins_again_at_the_first_position(daemon, more):
    with make(daemon, **more) as loader:
        for _ in range(3):
            assert positions(loader) == list(range(WINDOWS))
        assert len(loader) == -(-WINDOWS // 5)


def test_len_is_what_one_pass_gives(daemon):
    def given():
        """The length, and the batches of the next pass, within which it does not change."""
        length = len(loader)
        return length, sum(len(loader) == length for _ in loader)

    with make(daemon, rank=1, world=3) as loader:
        whole = -(-WINDOWS // 15)
        assert given() == (whole, whole)
        assert given() == (whole, whole), "from the end it begins again"
        for _, _batch in zip(range(3), loader, strict=False):
            assert len(loader) == whole
        assert given() == (whole - 3,) * 2, "the rest of a pass that was left"
        loader.reset()
        next(loader)
        assert given() == (whole - 1,) * 2
        loader.seek(position=400, rank=0, world=1)
        assert given() == (14, 14)
        end = loader.state_dict()
        for _batch in loader:
            loader.seek(position=460)
            assert len(loader) == 2
            break
        state = loader.state_dict()
    with make(daemon, start=state) as loader:
        assert given() == (2, 2)
        assert given() == (94, 94)
    with pytest.warns(UserWarning, match="no batches"), make(daemon, start=end) as loader:
        assert given() == (0, 0)


def test_the_next_pass_begins_with_its_first_batch(daemon):
    with make(daemon) as loader:
        before = iter(loader)
        assert len(list(before)) == 94
        end = loader.state_dict()
        again = iter(loader)
        assert loader.state_dict() == end and loader.position == WINDOWS
        assert next(loader, None) is None  # the loader itself stays at the end
        assert positions([next(again)]) == [0, 1, 2, 3, 4]
        with pytest.raises(StopIteration):
            next(before)  # ended for good
        assert positions(again) == list(range(5, WINDOWS))
        loader.seek(position=460)
        assert positions(loader) == list(range(460, WINDOWS))


def test_after_a_seek_the_next_pass_begins_there(daemon):
    with make(daemon) as loader:
        list(loader)
        later = iter(loader)
        loader.seek(position=450)
        assert positions(later) == list(range(450, WINDOWS))


def test_a_state_saved_at_the_end_has_no_batches_once(daemon):
    with make(daemon) as loader:
        list(loader)
        state = loader.state_dict()
    with make(daemon) as loader:
        loader.load_state_dict(state)
        with pytest.warns(
            UserWarning, match="tokend: this pass has no batches, .* the stream's end, position 468"
        ) as caught:
            assert list(loader) == []
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert positions(loader) == list(range(WINDOWS)), "this is the first with batches"


def test_each_rank_begins_again_by_itself(daemon):
    """Without messages: nobody waits for a late rank."""
    seen = []
    for rank in range(2):
        with make(daemon, rank=rank, world=2) as loader:
            assert len(list(loader)) == 47
            seen += positions(loader)
            assert loader.position == WINDOWS
    assert sorted(seen) == list(range(WINDOWS))


def test_an_endless_stream_has_one_pass(daemon):
    with make(daemon, "train", 4) as loader:
        for start in (0, 8):
            assert positions(batch for _, batch in zip(range(2), loader)) == list(
                range(start, start + 8)
            )


def test_a_pass_ends_with_its_last_batch(daemon):
    """Nobody need take the StopIteration: a loop may count."""
    with make(daemon, start=400) as loader:
        for i, _batch in enumerate(loader, 1):
            assert len(loader) == 14, "within the pass also at its last batch"
            if i == len(loader):
                break
        del _batch
        state = loader.state_dict()
        for _ in range(2):
            batches = iter(loader)
            assert positions(next(batches) for _ in range(len(loader))) == list(range(WINDOWS))
        assert loader.state_dict() == state and len(loader) == 94
    with make(daemon, start=state) as loader, pytest.warns(UserWarning, match="no batches"):
        assert list(loader) == []


def said(daemon, loop, stream="finite", **more):
    """The warnings of @loop, and what it returns."""
    with make(daemon, stream, **more) as loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = loop(loader)
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught], result


def test_a_pass_that_an_evaluation_left_begins_again_and_warns(daemon):
    @torch.no_grad()
    def evaluate(loader):
        counts = []
        for _ in range(3):
            for _, _batch in zip(range(2), loader, strict=False):
                pass
            counts += [len(loader), len(list(loader))]
        return counts

    @torch.no_grad()
    def evaluate_with_reset(loader):
        for _ in range(2):
            loader.reset()
            for _, _batch in zip(range(2), loader, strict=False):
                pass
        loader.seek(position=460)
        return positions(loader)

    (warned,), counts = said(daemon, evaluate)
    assert "call reset() before it" in warned and counts == [94] * 6
    assert said(daemon, evaluate_with_reset) == ([], list(range(460, WINDOWS)))


def test_a_second_pass_with_gradients_warns(daemon):
    def train(loader):
        for _ in range(3):
            list(loader)

    def train_and_reset(loader):
        for _ in range(3):
            next(loader)
            loader.reset()

    def evaluate_between(loader):
        with torch.no_grad():
            list(loader)
        list(loader)
        with torch.no_grad():
            list(loader)

    for loop in (train, train_and_reset):
        (warned,), _ = said(daemon, loop)
        assert "set epochs: to their number" in warned
        assert said(daemon, loop, framework="numpy") == ([], None)
        assert said(daemon, torch.no_grad()(loop)) == ([], None)
    assert said(daemon, evaluate_between) == ([], None)


# ---- the record ----


def test_a_record_separates_the_passes(daemon):
    records = daemon.directory / "records"
    loaders = [make(daemon, rank=rank, world=2, record=records) for rank in range(2)]
    for loader in loaders:
        assert len(list(loader)) == 47
    for loader in loaders:
        assert len(list(loader)) == 47
    for loader in loaders:  # not complete yet
        assert len(positions(batch for _, batch in zip(range(4), loader))) == 20
        loader.close()
    status, passes = verify(daemon, records)
    assert status == 0
    assert [(p["pass"], p["samples"], p["void"], p["from"], p["to"]) for p in passes] == [
        (0, WINDOWS, 0, 0, WINDOWS), (1, WINDOWS, 0, 0, WINDOWS), (2, 40, 0, 0, 40),
    ]  # fmt: skip
    assert passes[0]["sum"] == passes[1]["sum"]
    status, passes = verify(daemon, records, "--from", 100, "--to", 200)
    assert status == 0 and [(p["pass"], p["samples"]) for p in passes] == [(0, 100), (1, 100)]


def test_ranks_may_be_several_passes_apart(daemon):
    """Rank 1 begins after rank 0's last pass: its first pass is not the third."""
    records = daemon.directory / "records"
    for rank in range(2):
        with make(daemon, rank=rank, world=2, record=records) as loader:
            for _ in range(3):
                assert len(list(loader)) == 47
    status, passes = verify(daemon, records)
    assert status == 0
    assert [(p["pass"], p["samples"], p["lost"]) for p in passes] == [
        (0, WINDOWS, 0),
        (1, WINDOWS, 0),
        (2, WINDOWS, 0),
    ]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_record_of_a_loop_that_fetches_ahead(daemon, n):
    records = daemon.directory / "records"
    with make(daemon, record=records, prefetched=n) as loader:
        assert positions(loader) == positions(loader) == list(range(WINDOWS))
        while next(loader, None) is None and loader.position < WINDOWS:
            pass
    status, passes = verify(daemon, records)
    assert status == 0
    assert [(p["pass"], p["samples"], p["lost"]) for p in passes] == [
        (0, WINDOWS, 0),
        (1, WINDOWS, 0),
    ]


def test_a_pass_without_a_batch_is_not_in_the_record(daemon):
    """Its first batch was interrupted, and then the loader was sought elsewhere."""
    records = daemon.directory / "records"
    with make(daemon, record=records) as loader:
        assert positions(loader) == list(range(WINDOWS))
        loader._begin_again()
        loader.seek(position=460)
        assert positions(loader) == list(range(460, WINDOWS))
    status, passes = verify(daemon, records)
    assert status == 0
    assert [(p["pass"], p["samples"], p["void"]) for p in passes] == [(0, WINDOWS, 8)]


TRAINER = """
import os, signal, sys, tokend
socket, records, save, passes, steps = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
loader = tokend.Loader("finite", 5, socket=socket, rank=0, world=1, record=records)
if os.path.exists(save):
    loader.load_state_dict({"cursor": open(save, "rb").read()})
for _ in range(passes):
    for batch in loader:
        pass
for step, batch in enumerate(loader):
    if step == steps:
        open(save, "wb").write(loader.state_dict()["cursor"])
    if step == steps + 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_second_pass_voids_only_unsaved_batches(daemon):
    """Only batches taken after the save are void; the first pass does not change."""
    records, save = daemon.directory / "records", daemon.directory / "cursor"

    def run(passes, steps):
        command = [
            sys.executable,
            "-c",
            TRAINER,
            daemon.socket,
            records,
            save,
            str(passes),
            str(steps),
        ]
        return subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, check=False
        )

    assert run(1, 30).returncode == -signal.SIGKILL
    done = run(0, 1000)
    assert done.returncode == 0, done.stderr
    status, passes = verify(daemon, records)
    assert status == 0
    assert [(p["pass"], p["samples"], p["void"]) for p in passes] == [
        (0, WINDOWS, 0),
        (1, WINDOWS, 15),
    ]


def test_a_row_lost_in_the_second_pass_is_found(daemon):
    records = daemon.directory / "records"
    with make(daemon, record=records) as loader:
        list(loader)
        next(iter(loader))
        cursor = loader.cursor
    with make(daemon, record=records, start=cursor.position + 5) as loader:
        list(loader)
    status, passes = verify(daemon, records)
    assert status == 1 and [(p["pass"], p["lost"]) for p in passes] == [(0, 0), (1, 5)]
