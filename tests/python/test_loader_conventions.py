"""What training loops expect by convention: reset(), a state as the start, attributes."""

import json
import subprocess
import sys

import numpy
import pytest
import tokend
import transforms
from lib import TOKCTL, child_environment, run
from loading import check_run, make

# ---- a state as the start ----


def test_start_takes_a_state(daemon):
    with make(daemon) as loader:
        check_run(daemon, loader, 3)
        state = loader.state_dict()
    with make(daemon, micro=2, start=state) as loader:
        assert loader.state_dict() == state
        check_run(daemon, loader, 3, start=12, micro=2)


# ---- reset ----


@pytest.mark.parametrize("more", [{}, {"framework": "numpy"}, {"prefetched": 2}], ids=str)
def test_reset_goes_to_the_beginning_or_to_a_state(daemon, more):
    with make(daemon, **more) as loader:
        loader.reset()
        check_run(daemon, loader, 5)
        state = loader.state_dict()
        for _ in range(2):
            loader.reset()
            assert loader.position == loader.taken == 0
            check_run(daemon, loader, 3)
        loader.reset(state)
        check_run(daemon, loader, 2, start=loader.position)
        with pytest.raises(tokend.ArgumentError, match="state: not from a tokend.Loader"):
            loader.reset({"epoch": 3})
        assert loader.taken == loader.cursor.position + 4 * (5 - 3 if "prefetched" in more else 0)


def test_a_for_loop_continues_where_reset_goes(daemon):
    seen = []
    with make(daemon, "finite") as loader:
        for batch in loader:
            seen.append(int(batch["position"][0]))
            if len(seen) == 3:
                loader.reset()
            elif len(seen) == 5:
                break
    assert seen == [0, 4, 8, 0, 4]


def verify(daemon, records):
    code, out, err = run(TOKCTL, "verify", "-c", daemon.config, "finite", records, "--json")
    assert out, err
    return code, [
        [said[key] for key in ("pass", "samples", "void", "lost", "repeated")]
        for said in map(json.loads, out.splitlines())
    ]


@pytest.mark.parametrize("world", [1, 2])
def test_each_reset_begins_a_pass_that_the_record_keeps(daemon, world):
    """The processes run one after the other, as processes may that wait for none of the others."""
    records = daemon.directory / "records"
    for rank in range(world):
        with make(daemon, "finite", rank=rank, world=world, record=records) as loader:
            for steps in (3, 5, 1000):
                loader.reset()
                for _, _batch in zip(range(steps), loader):
                    pass
            loader.reset()
            next(loader)
    step = 4 * world
    passes = [[i, n, 0, 0, 0] for i, n in enumerate((3 * step, 5 * step, 468, step))]
    assert verify(daemon, records) == (0, passes)


def test_the_batches_that_a_loop_holds_stay_valid(daemon):
    records = daemon.directory / "records"
    with make(daemon, "finite", record=records, prefetched=1) as loader:
        for _ in range(2):
            loader.reset()
            for _, _batch in zip(range(3), loader):
                pass
        loader.reset()
        next(loader), next(loader)
    assert verify(daemon, records) == (0, [[0, 12, 0, 0, 0], [1, 12, 0, 0, 0], [2, 4, 0, 0, 0]])


def test_a_seek_to_the_beginning_voids_what_was_taken(daemon):
    """The control of the tests above."""
    records = daemon.directory / "records"
    with make(daemon, "finite", record=records) as loader:
        next(loader)
        loader.seek(position=0)
        next(loader)
    assert verify(daemon, records) == (0, [[0, 4, 4, 0, 0]])


TOGETHER = """
import sys, torch.distributed as dist, tokend
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
with tokend.Loader("finite", 4, socket=sys.argv[3]) as loader:
    state = loader.state_dict()
    for _ in range(2):
        print(*(next(loader)["position"].tolist()[0] for _ in range(2)))
        loader.reset()
    next(loader)
    try:
        loader.reset(state if rank else None if sys.argv[4] == "fits" else loader.state_dict())
    except tokend.DisagreementError:
        print("disagree")
dist.barrier()
"""


@pytest.mark.parametrize("fits", [True, False])
def test_all_processes_reset_together(daemon, fits):
    command = [sys.executable, "-c", TOGETHER]
    more = [daemon.directory / "meet", daemon.socket, "fits" if fits else "differs"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), *map(str, more)],
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(OMP_NUM_THREADS="1"),
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=60)[0].split("\n") for process in processes]
    finally:
        for process in processes:
            process.kill()
    end = [] if fits else ["disagree"]
    assert said == [["0 8", "0 8", *end, ""], ["4 12", "4 12", *end, ""]]


WAYS = [  # of making a batch
    {},
    {"framework": "numpy"},
    {"cp": (1, 2, "zigzag"), "loss_mask": True},
    {"transform": transforms.in_place, "dtype": {"labels": "int32"}},
]

# ---- attention_mask ----


@pytest.mark.parametrize("more", WAYS, ids=str)
def test_the_attention_mask_is_0_in_padding_rows(daemon, more):
    width = 32 if "cp" in more else 64
    with make(daemon, "finite", 5, attention_mask=True, start=460, **more) as loader:
        first, masks = None, []
        for batch in loader:
            mask = batch["attention_mask"]
            assert str(mask.dtype).endswith("int64") and tuple(mask.shape) == (5, width)
            assert numpy.array_equal(
                numpy.asarray(mask),
                numpy.repeat(numpy.asarray(batch["position"])[:, None] >= 0, width, 1),
            )
            masks.append(numpy.asarray(mask))
            first = mask if first is None else first
        assert [int(mask.sum()) for mask in masks] == [5 * width, 3 * width]
        first[:] = 7  # each batch has its own
        assert (numpy.asarray(mask) != 7).all()


def test_an_attention_mask_would_hide_the_documents(daemon):
    """transformers looks at position_ids only if there is no attention_mask."""
    with pytest.raises(ValueError, match="documents, attention_mask: .*; pass one of them"):
        make(daemon, documents=True, attention_mask=True)


# ---- shift_labels ----


@pytest.mark.parametrize("more", WAYS, ids=str)
def test_labels_for_models_that_shift_them(daemon, more):
    with make(daemon, "finite", 5, start=460, **more) as loader:
        batches = [{k: numpy.asarray(v) for k, v in batch.items()} for batch in loader]
    if "cp" in more:  # each rank's part of what the whole row has
        with make(daemon, "finite", 5, start=460) as loader:
            whole = [numpy.asarray(batch["labels"]) for batch in loader]
    with make(daemon, "finite", 5, start=460, shift_labels=True, **more) as loader:
        for i, batch in enumerate(loader):
            for name, wanted in batches[i].items():
                got = numpy.asarray(batch["shift_labels" if name == "labels" else name])
                assert got.dtype == wanted.dtype and numpy.array_equal(got, wanted), name
            shifted = whole[i] if "cp" in more else batches[i]["labels"]
            labels = numpy.full_like(shifted, -100)
            labels[:, 1:] = shifted[:, :-1]
            assert numpy.array_equal(batch["labels"], labels[:, 16:48] if "cp" in more else labels)
    assert i == 1 and (labels[3:] == -100).all()


# ---- attributes ----


def test_attributes(daemon):
    with make(daemon, run="named") as loader:
        assert (loader.stream, loader.run) == ("train", "named")
        assert (loader.batch_size, loader.seq_len) == (4, 64)
        loader.seek(micro_batch=2)
        batch = next(loader)
        assert batch["input_ids"].shape == (loader.batch_size, loader.seq_len) == (2, 64)
        for name in ("stream", "run", "batch_size", "seq_len"):
            with pytest.raises(AttributeError):
                setattr(loader, name, 1)
    with make(daemon, "finite", 3) as loader:
        assert (loader.stream, loader.run, loader.batch_size) == ("finite", "default", 3)


def test_the_run_of_a_launcher_has_its_name(daemon, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with make(daemon) as loader:
        assert loader.run == "job-7"
