"""Loops that take batches ahead of their step lose them in a restart, unless they use one of the
remedies.
"""

import contextlib
import json
import resource
import signal
import subprocess
import sys
import warnings

import pytest
import tokend
import torch
from lib import BIN, child_environment

MICRO = 2

# The loop of nanoGPT's train.py fetches the next batch during a step, and saves the checkpoint
# first.
TRAINER = """
import json, os, signal, sys, tokend

socket, records, save, trained, way = sys.argv[1:]
loader = tokend.Loader(
    "train",
    2,
    socket=socket,
    rank=0,
    world=1,
    record=records,
    framework="numpy",
    prefetched=int(way == "prefetched"),
)
if os.path.exists(save):
    checkpoint = json.load(open(save))
    if way == "seek":
        loader.seek(position=checkpoint["consumed"])
    else:
        loader.load_state_dict({"cursor": bytes.fromhex(checkpoint["cursor"])})
else:
    checkpoint = {"consumed": 0}
if way == "commit":
    loader.commit()
consumed, log = checkpoint["consumed"], open(trained, "a")
if way != "drop":
    batch, taken = next(loader), loader.taken
for step in range(100):
    if step % 5 == 0 and step:
        state = {"cursor": loader.state_dict()["cursor"].hex(), "consumed": consumed}
        json.dump(state, open(save + ".new", "w"))
        os.replace(save + ".new", save)
        if step == 10:
            log.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    if way == "drop":
        batch = next(loader)
    print(*batch["position"].tolist(), file=log)  # the step
    consumed += len(batch["position"])
    if way == "commit":
        loader.commit(taken)
    if way != "drop":
        batch, taken = next(loader), loader.taken
"""


@pytest.mark.parametrize("way", ["naive", "prefetched", "commit", "seek", "drop"])
def test_the_remedies_lose_nothing_in_a_loop_that_fetches_one_batch_ahead(daemon, way):
    records, save, trained = (daemon.directory / name for name in ("records", "save", "trained"))
    for _ in range(4):
        command = [sys.executable, "-c", TRAINER, daemon.socket, records, save, trained, way]
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
    rows = [int(position) for position in trained.read_text().split()]
    lost = sorted(set(range(max(rows) + 1)) - set(rows))
    assert len(rows) == len(set(rows)) == 4 * 10 * MICRO
    assert len(lost) == (3 * MICRO if way == "naive" else 0), lost
    command = [BIN / "tokctl", "verify", "-c", daemon.config, "train", records, "--json"]
    (verdict,) = map(
        json.loads,
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines(),
    )
    assert (
        verdict["lost"] == verdict["repeated"] == verdict["altered"] == 0
    )  # the batches taken, trained on or not
    assert verdict["void"] == (
        3 * MICRO if way == "seek" else 0
    )  # uncommitted batches are not recorded
    committed = way in ("prefetched", "commit")
    assert verdict["to"] == max(rows) + 1 if committed or way == "drop" else max(rows) + 1 + MICRO


def make(daemon, stream="train", **more):
    return tokend.Loader(stream, MICRO, socket=daemon.socket, rank=0, world=1, **more)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_state_is_that_of_n_batches_before(daemon, n):
    with make(daemon, prefetched=n) as loader:
        for taken in range(12):
            assert loader.position == MICRO * max(0, taken - n) == loader.cursor.position
            assert loader.taken == MICRO * taken
            next(loader)
        loader.seek(position=1000)
        for taken in range(12):
            assert loader.position == 1000 + MICRO * max(0, taken - n)
            next(loader)
        loader.seek(micro_batch=3)  # seek to here: held batches stay held
        assert loader.position == 1000 + MICRO * (12 - n)
        next(loader)
        assert loader.position == 1000 + MICRO * (13 - n)


def test_the_end_counts_as_a_batch(daemon):
    with make(daemon, "finite", start=460, prefetched=2) as loader:
        assert len(list(loader)) == 4
        assert loader.position == 466  # the last but one is trained on now
        assert next(loader, None) is None
        assert loader.position == 468
        next(iter(loader))  # another pass
        assert loader.position == 0 and loader.taken == 2


def test_held_batches_survive_a_mix(daemon):
    with make(daemon, prefetched=1) as loader:
        for _ in range(3):
            next(loader)
        loader.set_mix({"web": 1})
        assert loader.position == 4 and loader.taken == 6
        next(loader)
        assert loader.position == 6


@contextlib.contextmanager
def full(records):
    """The record's file must not grow."""
    (file,) = records.iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_refused(loader, records, position, times=2):
    """The call that could not commit, and its repetitions."""
    with full(records):
        for _ in range(times):
            with pytest.raises(
                tokend.ArgumentError,
                match=r"record: .*: File too large; nothing was committed; .* call again",
            ):
                next(loader)
            assert loader.position == position


@pytest.mark.parametrize("n", [1, 2])
def test_a_record_that_cannot_be_written_loses_no_batch(daemon, n):
    records = daemon.directory / "records"
    with make(daemon, "finite", start=448, prefetched=n, record=records) as loader:
        got = [next(loader)["position"].tolist() for _ in range(4)]
        is_refused(loader, records, 456 - MICRO * n)
        got += [next(loader)["position"].tolist() for _ in range(6)]
        assert got == [[position, position + 1] for position in range(448, 468, MICRO)]
        assert loader.position == 468 - MICRO * n
        is_refused(loader, records, 468 - MICRO * n)  # at the end, too
        for ends in range(1, 3):
            assert next(loader, None) is None
            assert loader.position == 468 - MICRO * max(0, n - ends)
    command = [
        BIN / "tokctl",
        "verify",
        "-c",
        daemon.config,
        "finite",
        records,
        "--from",
        448,
        "--json",
    ]
    (verdict,) = map(
        json.loads,
        subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=True
        ).stdout.splitlines(),
    )
    assert (
        verdict["lost"] == verdict["repeated"] == verdict["altered"] == 0 and verdict["to"] == 468
    )


def test_a_full_disk_ends_the_loop_and_loses_no_batch(daemon):
    """No batch is trained on without a record."""
    records, taken = daemon.directory / "records", []
    with make(daemon, record=records) as loader:
        taken += next(loader)["position"].tolist()
        with full(records), pytest.raises(tokend.ArgumentError, match="nothing was taken; make"):
            for batch in loader:
                taken += batch["position"].tolist()
        state = loader.state_dict()
        taken += next(loader)["position"].tolist()
    assert taken == [0, 1, 2, 3]
    with make(daemon, start=state, record=records) as loader:
        assert next(loader)["position"].tolist() == [2, 3]
    command = [BIN / "tokctl", "verify", "-c", daemon.config, "train", records, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    verdict = json.loads(done.stdout)
    assert verdict["lost"] == verdict["repeated"] == 0 and verdict["to"] == 4


def test_a_seek_elsewhere_drops_what_could_not_be_recorded(daemon):
    records = daemon.directory / "records"
    with make(daemon, prefetched=1, record=records) as loader:
        for _ in range(3):
            next(loader)
        is_refused(loader, records, 4, times=1)
        loader.seek(position=1000)
        assert [next(loader)["position"].tolist() for _ in range(2)] == [[1000, 1001], [1002, 1003]]
        is_refused(loader, records, 1002, times=1)
        loader.seek(micro_batch=3)  # seek to here
        assert [next(loader)["position"].tolist() for _ in range(2)] == [
            [1004, 1005, 1006],
            [1007, 1008, 1009],
        ]
        assert loader.position == 1007


def test_prefetched_excludes_commit(daemon):
    with make(daemon, prefetched=1) as loader:
        next(loader)
        with pytest.raises(
            tokend.ArgumentError, match=r"commit: the loader commits by itself \(prefetched=1\)"
        ):
            loader.commit()
    for wrong in (-1, True, 1.5, "1"):
        with pytest.raises(tokend.ArgumentError, match="prefetched: .* is not a number of batches"):
            make(daemon, prefetched=wrong)


def test_a_state_that_is_loaded_after_the_first_batch_warns(daemon):
    with make(daemon, prefetched=1) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.load_state_dict(loader.state_dict())
        next(loader)
        with pytest.warns(UserWarning, match="taken a batch of another position before") as warned:
            loader.load_state_dict({"cursor": bytes(loader.cursor)})
        assert [warning.filename for warning in warned] == [__file__]


def test_a_state_that_is_loaded_after_the_end_does_not_warn(daemon):
    with make(daemon, "finite", prefetched=1) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        state = loader.state_dict()
        for _ in range(2):
            assert sum(1 for _ in loader) > 1
            loader.reset(state)


def test_evaluation_on_the_training_stream_warns(daemon):
    def takes(**more):
        with make(daemon, **more) as loader, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(loader)
            with torch.no_grad():
                for _ in zip(range(3), loader):
                    pass
            next(loader)
            assert {warning.filename for warning in caught} <= {__file__}
            return [str(warning.message) for warning in caught]

    for stream in ("train", "finite"):
        (warned,) = takes(stream=stream)
        assert "evaluate with another Loader" in warned
    assert takes(framework="numpy") == []
    with torch.no_grad():
        assert takes() == [], "never with gradients"


def test_evaluation_before_the_first_step_warns(daemon):
    with make(daemon) as loader, pytest.warns(RuntimeWarning, match="another Loader") as caught:
        for _ in range(2):
            with torch.no_grad():
                next(loader)
            next(loader)
    assert [warning.filename for warning in caught] == [__file__]
