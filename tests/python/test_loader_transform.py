"""Transforms in the trainer's process and in workers give the same rows at the same positions."""

import re
import subprocess
import sys

import numpy
import pytest
import torch
import transforms
from loading import make
from transforming import SEQ, check, children

import tokend
from lib import REPO, child_environment, wait_until


def test_keys_are_those_of_the_order():
    """order.md has vectors of derive() only for other tags, so its definition is repeated here."""
    mask = 2**64 - 1

    def mix(x):
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & mask
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    golden = 0x9E3779B97F4A7C15
    h = mix(42 + golden)
    for value in (7, 123456):
        h = mix((h ^ value) + golden & mask)
    assert tokend._tokend.derive(42, 7, 123456) == h


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_transform_is_a_function_of_the_row_alone(daemon, workers):
    with make(daemon, transform=transforms.shuffle, workers=workers) as loader:
        check(daemon, loader, transforms.shuffle, 30)
        state = loader.state_dict()
        assert loader.position == loader.taken == 120
        assert len(children()) == workers
    wait_until(lambda: not children(), "the end of the workers")
    with make(
        daemon,
        transform=transforms.shuffle,
        workers=workers,
        start=state["cursor"],
        rank=1,
        world=3,
        micro=5,
    ) as loader:
        check(daemon, loader, transforms.shuffle, 10, start=120, rank=1, world=3, micro=5)


@pytest.mark.parametrize("workers", [0, 2])
def test_state_seek_and_mixes_with_a_transform(daemon, workers):
    with make(daemon, transform=transforms.in_place, workers=workers) as loader:
        fresh = loader.state_dict()
        check(daemon, loader, transforms.in_place, 5)
        loader.load_state_dict(fresh)
        check(daemon, loader, transforms.in_place, 3)
        loader.seek(position=4099)
        check(daemon, loader, transforms.in_place, 3, start=4099)
        loader.seek(position=0, rank=2, world=3, micro_batch=7)
        check(daemon, loader, transforms.in_place, 5, rank=2, world=3, micro=7)
        assert loader.set_mix({"code": 1}) == 1024
        check(
            daemon,
            loader,
            transforms.in_place,
            60,
            start=105,
            rank=2,
            world=3,
            micro=7,
            cursor=loader.state_dict()["cursor"],
        )


def test_batches_have_the_new_shape_after_an_interrupted_seek(daemon, monkeypatch):
    with make(daemon, transform=transforms.shuffle) as loader:
        next(loader)

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(loader._source, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loader.seek(position=0, micro_batch=16)
        assert next(loader)["input_ids"].shape == (16, SEQ)  # and no more was written to its memory
        assert loader.taken == 16


def test_commit_with_workers(daemon):
    with make(daemon, transform=transforms.in_place, workers=2) as loader:
        nexts = []
        for _ in range(5):
            next(loader)
            nexts.append(loader.taken)
        loader.commit(nexts[1])
        assert loader.position == 8
        loader.seek(micro_batch=2)  # taken batches stay taken
        check(daemon, loader, transforms.in_place, 3, start=20, micro=2)
        assert loader.position == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_a_finite_stream(daemon, workers):
    seen = []
    for rank in range(3):
        with make(
            daemon,
            "finite",
            micro=5,
            rank=rank,
            world=3,
            transform=transforms.in_place,
            workers=workers,
        ) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == 32
            assert next(loader, None) is None
        for batch in batches:
            padding = batch["position"] == -1
            assert (batch["input_ids"][padding] == 0).all()
            assert (batch["labels"][padding] == -100).all()
            seen += batch["input_ids"][:, 0][~padding].tolist()
    assert sorted(seen) == list(range(468))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_with_other_options(daemon, workers):
    """int32, provenance, loss mask and slice, combined."""
    more = {"dtype": torch.int32, "provenance": True, "loss_mask": True, "cp": (1, 2, "contiguous")}
    with (
        make(daemon, transform=transforms.in_place, workers=workers, **more) as loader,
        make(daemon, provenance=True) as plain,
    ):
        for _ in range(4):
            batch, whole = next(loader), next(plain)
            assert batch["input_ids"].dtype == torch.int32
            assert batch["labels"].dtype == torch.int64
            assert torch.equal(batch["input_ids"].long(), whole["input_ids"][:, 32:])
            assert torch.equal(batch["labels"], whole["labels"][:, 32:])
            assert batch["loss_mask"].eq(1).all()
            for name in ("epoch", "window", "shard", "offset", "dataset"):
                assert torch.equal(batch[name], whole[name])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_exits_ends_neither_trainer_nor_worker(daemon, workers):
    with make(daemon, transform=transforms.exits_at_42, workers=workers) as loader:
        check(daemon, loader, lambda tokens, position, rng: tokens, 10)
        with pytest.raises(
            tokend.TransformError, match=r"^transform: SystemExit: 3 \(position 42, dataset "
        ):
            next(loader)
        assert loader.position == 40


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises_names_the_row_and_stops(daemon, workers):
    row = daemon.plan("train", 42, 1)[0]
    shard = {"web": ["a.bin", "b.bin"], "code": ["code.bin"]}[row["dataset"]].index(row["shard"])
    with make(daemon, transform=transforms.raises_at_42, workers=workers) as loader:
        check(daemon, loader, lambda tokens, position, rng: tokens, 10)
        place = (
            f"position 42, dataset {row['dataset']}, shard {shard} of its sorted list, offset "
            f"{row['offset']}"
        )
        for _ in range(3):
            with pytest.raises(tokend.TransformError) as error:
                next(loader)
            assert str(error.value) == (
                f"transform: KeyError: 'no such thing' ({place}); the cursor is before this batch"
            )
            assert (error.value.position, error.value.offset) == (42, row["offset"])
            assert loader.position == loader.taken == 40
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == 40
        loader.seek(position=44)
        check(daemon, loader, lambda tokens, position, rng: tokens, 3, start=44)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (transforms.shortens, r"returned shape \[64\] instead of \[65\]"),
        (transforms.nothing, "returned None instead of the row"),
        (transforms.halves, "returned float64 instead of integers"),
        (transforms.negates, "returned a token outside of 0 … 9223372036854775807"),
    ],
)
def test_a_result_that_is_not_a_row_is_refused(daemon, function, text):
    with (
        make(daemon, transform=function) as loader,
        pytest.raises(tokend.TransformError, match=text),
    ):
        next(loader)


def test_a_token_that_the_dtype_cannot_hold_is_refused(daemon):
    with make(daemon, transform=transforms.grows, dtype=torch.int32) as loader:
        with pytest.raises(tokend.TransformError, match="outside of 0 … 2147483647"):
            next(loader)


def test_impossible_arguments_are_refused(daemon):
    def local(tokens, position, rng):
        return tokens

    with pytest.raises(ValueError, match="workers: 2 without a transform; pass transform="):
        make(daemon, workers=2)
    for workers in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"workers: {workers} is not a number of processes"):
            make(daemon, workers=workers, transform=transforms.in_place)
    with pytest.raises(
        tokend.ArgumentError,
        match="transform: .* cannot be sent to worker processes .* top level of a module",
    ):
        make(daemon, workers=2, transform=local)
    with pytest.raises(TypeError, match="transform: 3 is not a function"):
        make(daemon, transform=3)
    assert not children()


# ---- the worked example ----


def test_fill_in_the_middle(daemon):
    sys.path.insert(0, str(REPO / "client" / "example"))
    try:
        import fim
    finally:
        sys.path.pop(0)
    rng = numpy.random.default_rng(3)
    tokens = rng.integers(1, 50000, 600)
    tokens[[99, 100, 350]] = fim.EOS
    cut = 0
    for seed in range(20):
        made = fim.fim(tokens.copy(), 0, numpy.random.default_rng(seed))
        assert len(made) == len(tokens)
        assert (numpy.flatnonzero(made == fim.EOS) == numpy.flatnonzero(tokens == fim.EOS)).all()
        for begin, end in ((0, 99), (101, 350), (351, 600)):
            old, new = tokens[begin:end].tolist(), made[begin:end].tolist()
            if fim.PRE in new:
                suf, mid = new.index(fim.SUF), new.index(fim.MID)
                assert new[0] == fim.PRE
                assert new[1:suf] + new[mid + 1 :] + new[suf + 1 : mid] == old[:-3]
                cut += 1
            else:
                assert new == old
    assert 15 < cut < 45


def test_a_batch_whose_transform_was_interrupted_comes_again(daemon, monkeypatch):
    monkeypatch.setattr(transforms.interrupted_at_8, "was", False)
    with make(daemon, transform=transforms.interrupted_at_8, micro=7) as loader:
        next(loader)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert loader.position == loader.taken == 7
        assert next(loader)["position"].tolist() == list(range(7, 14))


def test_an_interruption_with_uncommitted_batches_keeps_them(daemon, monkeypatch):
    monkeypatch.setattr(transforms.interrupted_at_8, "was", False)
    with make(daemon, transform=transforms.interrupted_at_8, micro=7) as loader:
        loader.commit()
        next(loader)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert (loader.position, loader.taken) == (0, 7)
        assert next(loader)["position"].tolist() == list(range(7, 14))
        loader.commit(7)
        assert loader.position == 7


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_of_a_transform_is_one_line(daemon, workers):
    with make(daemon, transform=transforms.two_lines, workers=workers) as loader:
        with pytest.raises(tokend.TransformError) as caught:
            next(loader)
        assert re.fullmatch(
            r"transform: RuntimeError: one two \(position 0, dataset web, .*", str(caught.value)
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_within_a_finite_stream_does_not_move_its_end(daemon, workers):
    text = daemon.config.read_text()
    daemon.config.write_text(
        text
        + text[text.index("  train:") : text.index("  finite:")].replace(
            "train:", "short:\n    samples: 2000"
        )
    )
    daemon.stop()
    daemon.start()
    with make(daemon, "short", transform=transforms.in_place, workers=workers) as loader:
        for _ in range(7):
            next(loader)
        loader.set_mix({"web": 0.4, "code": 0.6})
        taken = [row for batch in loader for row in batch["position"].tolist()]
        assert taken == list(range(28, 2000))


def examples(daemon, *command):
    config = daemon.config.read_text()
    daemon.config.write_text(
        config.replace("    seed: 42\n", "    seed: 42\n    eos: 0\n    documents: true\n")
    )
    environment = child_environment(XDG_RUNTIME_DIR=str(daemon.directory), OMP_NUM_THREADS="1")
    daemon.stop()
    daemon.start()
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [0, 2])
def test_the_fim_example_runs(daemon, workers):
    said = examples(
        daemon, REPO / "client/example/fim.py", daemon.config, str(workers)
    ).splitlines()
    assert [line.split(" documents")[0] for line in said] == [
        f"samples {[4 * i + j for j in range(4)]}" for i in range(3)
    ]
    assert any("special [0, 0, 0]" not in line for line in said)
