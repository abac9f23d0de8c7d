"""The parts of a batch on request, and the errors of requests that do not fit the stream."""

import json
import os
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
import transforms
from loading import SEQ, make

import tokend
from lib import BIN, TOKCTL, child_environment, run
from tokend.torchft import TokendReplica


def rows_of(daemon, stream, start, count, window=SEQ + 1):
    return numpy.stack([daemon.tokens(row, window) for row in daemon.plan(stream, start, count)])


# ---- parts of a batch ----


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", torch.device("cpu", 0)])
def test_each_name_of_the_cpu_needs_no_gpu(daemon, device):
    with make(daemon, device=device) as loader:
        assert next(loader)["input_ids"].device.type == "cpu"


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_provenance_is_that_of_the_plan(daemon, framework):
    shards = {"web": ["a.bin", "b.bin"], "code": ["code.bin"]}
    with make(daemon, provenance=True, framework=framework) as loader:
        for step in range(200):
            batch = next(loader)
            plan = daemon.plan("train", 4 * step, 4) if step % 40 == 0 else []
            for i, row in enumerate(plan):
                assert {
                    name: int(batch[name][i]) for name in ("position", "epoch", "window", "offset")
                } == {name: row[name] for name in ("position", "epoch", "window", "offset")}
                assert shards[row["dataset"]][int(batch["shard"][i])] == row["shard"]
                assert loader.datasets[int(batch["dataset"][i])] == row["dataset"]
    with make(daemon, "finite", micro=469, provenance=True, framework=framework) as loader:
        last = next(loader)
        for name in ("position", "dataset", "epoch", "window", "shard", "offset"):
            assert int(last[name][468]) == -1
            assert int(last[name][:468].min()) >= 0


@pytest.mark.parametrize(
    "more", [{}, {"provenance": True}, {"dtype": "int32"}, {"cp": (0, 2, "zigzag")}]
)
def test_batches_are_in_the_cpus_memory_whatever_the_default_device(daemon, more):
    with make(daemon, **more) as loader:
        expected = next(loader)
    with make(daemon, **more) as loader, torch.device("meta"):
        batch = next(loader)
    assert batch.keys() == expected.keys()
    for name in batch:
        assert batch[name].device.type == "cpu"
        assert torch.equal(batch[name], expected[name])


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_window_with_more_than_one_extra_token(daemon, framework):
    with make(daemon, "ahead", framework=framework) as loader:
        batch, rows = next(loader), rows_of(daemon, "ahead", 0, 4, SEQ + 3)
    assert numpy.array_equal(batch["input_ids"], rows[:, :SEQ])
    assert numpy.array_equal(batch["labels"], rows[:, 1 : SEQ + 1])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"dtype": "int32"},
        {"dtype": {"input_ids": "int32", "labels": "int32"}},
        {"tokens": True},
        {"loss_mask": True},
        {"attention_mask": True},
    ],
    ids=str,
)
def test_numpy_batches_begin_at_a_cache_line(daemon, more):
    """JAX takes arrays that begin at 64 bytes without a copy."""
    with make(daemon, framework="numpy", **more) as loader:
        kept = [next(loader) for _ in range(8)]
    names = ["tokens"] if "tokens" in more else ["input_ids", "labels"]
    names += ["attention_mask"] if "attention_mask" in more else []
    at = [batch[name].__array_interface__["data"][0] % 64 for batch in kept for name in names]
    assert set(at) == {0}


def test_batches_may_be_written_to(daemon):
    with make(daemon) as loader:
        batch, rows = next(loader), rows_of(daemon, "train", 0, 4)
        batch["labels"][:, -1] = -100
        batch["position"] += 1
    rows[:, -1] = -100
    assert numpy.array_equal(batch["labels"], rows[:, 1:])
    assert numpy.array_equal(batch["input_ids"], rows[:, :-1])
    assert batch["position"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("stream", "window"), [("train", SEQ + 1), ("whole", SEQ), ("finite", SEQ + 1)]
)
def test_the_loss_mask_is_where_labels_are(daemon, stream, window, framework):
    with make(
        daemon,
        stream,
        micro=5,
        loss_mask=True,
        framework=framework,
        start=465 if stream == "finite" else 0,
    ) as loader:
        batch = next(loader)
        assert str(batch["loss_mask"].dtype).endswith("float32")
        labels, mask = numpy.asarray(batch["labels"]), numpy.asarray(batch["loss_mask"])
        assert mask.shape == labels.shape == (5, SEQ)
        assert numpy.array_equal(mask, (labels != -100).astype(numpy.float32))
        ignored = {"train": 0, "whole": 5, "finite": 2 * SEQ}[stream]
        assert int((mask == 0).sum()) == ignored
        valid = 3 if stream == "finite" else 5
        expected = rows_of(daemon, stream, 465 if stream == "finite" else 0, valid, window)[:, 1:]
        assert numpy.array_equal(labels[:valid, : window - 1], expected)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_int32(daemon, framework):
    dtype = {"torch": torch.int32, "numpy": numpy.int32}[framework]
    for asked in (dtype, "int32"):
        with make(daemon, dtype=asked, framework=framework) as loader:
            for step in range(40):
                batch = next(loader)
                assert batch["input_ids"].dtype == dtype
                assert str(batch["labels"].dtype).endswith("int64")  # as losses need it
                if step == 39:
                    expected = rows_of(daemon, "train", 4 * step, 4)
                    assert numpy.array_equal(numpy.asarray(batch["input_ids"]), expected[:, :-1])
                    assert numpy.array_equal(numpy.asarray(batch["labels"]), expected[:, 1:])
    if framework == "torch":
        torch.nn.functional.embedding(batch["input_ids"], torch.zeros(65536, 1))


def test_int32_refuses_a_token_that_it_cannot_hold_by_name(daemon):
    """The wide shard uses all 32 bits of its tokens."""
    row = daemon.plan("wide", 0, 1)[0]
    tokens = daemon.tokens(row, SEQ + 1)
    first = int(numpy.flatnonzero(tokens > 2**31 - 1)[0])
    with make(daemon, "wide", micro=1, dtype=torch.int32) as loader:
        for _ in range(2):
            with pytest.raises(tokend.ArgumentError) as error:
                next(loader)
            place = f"position 0, dataset wide, shard 0, offset {row['offset'] + first}"
            assert (
                str(error.value)
                == f"dtype: token {tokens[first]} does not fit into int32 ({place}); use int64"
            )
            assert loader.position == loader.taken == 0  # the batch was not taken


@pytest.mark.parametrize(
    "dtype", [torch.int16, torch.uint8, torch.uint16, torch.float32, numpy.int16, "int8"]
)
def test_a_dtype_that_cannot_hold_the_vocabulary_is_refused(daemon, dtype):
    with pytest.raises(
        tokend.ArgumentError, match="dtype: .* cannot hold all tokens .*; pass int64 or int32"
    ):
        make(daemon, dtype=dtype)


def sliced(rows, rank, size, kind):
    parts = numpy.split(rows, 2 * size if kind == "zigzag" else size, axis=1)
    return (
        numpy.concatenate((parts[rank], parts[2 * size - 1 - rank]), 1)
        if kind == "zigzag"
        else parts[rank]
    )


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("kind", ["zigzag", "contiguous"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_context_parallel_slice(daemon, kind, size, framework):
    expected = rows_of(daemon, "train", 0, 4)
    for rank in range(size):
        with make(daemon, cp=(rank, size, kind), loss_mask=True, framework=framework) as loader:
            batch = {name: numpy.asarray(value) for name, value in next(loader).items()}
        assert numpy.array_equal(batch["input_ids"], sliced(expected[:, :-1], rank, size, kind))
        assert numpy.array_equal(batch["labels"], sliced(expected[:, 1:], rank, size, kind))
        assert batch["loss_mask"].shape == (4, SEQ // size)
        if size > 1:
            assert numpy.array_equal(
                batch["position_ids"],
                sliced(numpy.tile(numpy.arange(SEQ), (4, 1)), rank, size, kind),
            )


@pytest.mark.parametrize(
    ("cp", "text"),
    [
        ((0, 3, "zigzag"), "cp: seq_len 64 is not a multiple of 6 chunks .zigzag, 3 ranks."),
        ((0, 128, "contiguous"), "is not a multiple of 128 chunks"),
        ((2, 2, "zigzag"), "cp: rank 2 is not below size 2"),
        ((0, 2, "zag"), "cp: .* is not 'zigzag', 'contiguous', or"),
        ("zigzag", "cp: 'zigzag' needs a mesh with a dim cp; or pass cp=.rank, size, 'zigzag'."),
        (3, "cp: 3 is not"),
    ],
)
def test_an_impossible_slice_is_refused(daemon, cp, text):
    with pytest.raises(tokend.ArgumentError, match=text):
        make(daemon, cp=cp)


def test_documents_stay_those_of_the_full_row(daemon):
    daemon.kill()
    daemon.config.write_text(
        daemon.config.read_text().replace(
            "    seed: 42\n", "    seed: 42\n    eos: 7\n    documents: true\n"
        )
    )
    for name in ("web/a.bin", "web/b.bin", "code.bin"):
        daemon.shards[name][::19] = 7
        daemon.shards[name].tofile(daemon.directory / name)
    daemon.start()
    with (
        make(daemon, documents=True) as whole,
        make(daemon, documents=True, cp=(1, 2, "zigzag"), dtype="int32") as part,
    ):
        for _ in range(3):
            a, b = next(whole), next(part)
            assert torch.equal(a["cu_seqlens"], b["cu_seqlens"])
            assert a["max_seqlen"] == b["max_seqlen"] <= 19
            for name in ("input_ids", "labels", "position_ids"):
                assert numpy.array_equal(sliced(a[name].numpy(), 1, 2, "zigzag"), b[name].numpy())


DEVICE = """
import json, sys

sys.path.insert(0, sys.argv[2])
import feed_job, tokend, torch
from tokend import device

gpu = feed_job.Fake()
device.Cuda, device.named = lambda name: gpu, lambda name: name
out = []
with tokend.Loader(
    "train",
    4,
    socket=sys.argv[1],
    rank=0,
    world=1,
    slots=4,
    device="cuda",
    provenance=True,
) as loader:
    for step, batch in zip(range(8), loader):
        gpu.finish()
        out.append({name: value.tolist() for name, value in batch.items()})
        assert loader.position == loader.taken == 4 * step + 4
        if step == 3:
            loader.seek(position=1000)
            assert loader.position == 1000
            break
    batch = next(loader)
    gpu.finish()
    out.append({name: value.tolist() for name, value in batch.items()})
print(json.dumps(out))
"""


def test_batches_on_a_device_are_those_of_the_cpu(daemon):
    """A real loader on the fake libcuda.so.1: no evidence of how a GPU behaves."""
    fake = BIN.parent / "check" / "fake"
    command = [sys.executable, "-c", DEVICE, daemon.socket, os.path.dirname(__file__)]
    environment = child_environment(LD_LIBRARY_PATH=str(fake))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    for batch, start in zip(json.loads(done.stdout), (0, 4, 8, 12, 1000), strict=True):
        rows = rows_of(daemon, "train", start, 4)
        assert batch["position"] == list(range(start, start + 4))
        assert numpy.array_equal(batch["input_ids"], rows[:, :-1])
        assert numpy.array_equal(batch["labels"], rows[:, 1:])
        assert min(batch["offset"]) >= 0


@pytest.fixture
def masks(daemon):
    """The train stream with a loss mask; returns the masks by shard name."""
    masks = {}
    for name in ("web/a.bin", "web/b.bin", "code.bin"):
        masks[name] = (
            numpy.random.default_rng(len(name))
            .integers(0, 2, len(daemon.shards[name]))
            .astype(numpy.uint8)
        )
        path = daemon.directory / "masks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        masks[name].tofile(path)
    config = daemon.config.read_text()
    config = config.replace("    seed: 42\n", "    seed: 42\n    loss_mask: true\n")
    config = config.replace("path: web,", "path: web, label_mask: masks/web,")
    daemon.config.write_text(config.replace("weight: 0.3,", "weight: 0.3, label_mask: masks,"))
    daemon.kill()
    daemon.start()
    return masks


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"framework": "numpy"},
        {"dtype": "int32"},
        {"transform": transforms.in_place},
        {"transform": transforms.in_place, "workers": 2, "framework": "numpy"},
        {"transform": transforms.in_place, "dtype": "int32"},
        {"cp": (1, 2, "zigzag")},
    ],
)
def test_the_loss_mask_of_a_stream(daemon, masks, more):
    with make(daemon, loss_mask=True, **more) as loader, make(daemon, **more) as without:
        for step in range(5):
            batch, plan = next(loader), daemon.plan("train", 4 * step, 4)
            tokens, allowed = (
                rows_of(daemon, "train", 4 * step, 4),
                numpy.stack([masked(masks, row) for row in plan]),
            )
            if "transform" in more:
                tokens[:, 0] = [row["position"] for row in plan]
            labels = numpy.where(allowed[:, 1:] == 1, tokens[:, 1:], -100)
            inputs, mask = tokens[:, :-1], (allowed[:, 1:] == 1).astype(numpy.float32)
            if "cp" in more:
                inputs, labels, mask = (
                    sliced(array, *more["cp"]) for array in (inputs, labels, mask)
                )
            assert numpy.array_equal(numpy.asarray(batch["input_ids"]), inputs)
            assert numpy.array_equal(numpy.asarray(batch["labels"]), labels)
            assert numpy.array_equal(numpy.asarray(batch["loss_mask"]), mask)
            assert numpy.array_equal(
                numpy.asarray(next(without)["labels"]), labels
            )  # the labels have it, with loss_mask=True or without


def masked(masks, row):
    name = row["shard"] if row["shard"] in masks else f"{row['dataset']}/{row['shard']}"
    return masks[name][row["offset"] : row["offset"] + SEQ + 1]


# ---- state, and threads ----


def test_several_loaders_in_one_process(daemon):
    """Train, valid, and a second pipeline stage's: each has its own position."""
    with (
        make(daemon) as train,
        make(daemon, "finite", micro=10) as valid,
        make(daemon, peer=1) as stage,
    ):
        for step in range(20):
            a, b = next(train), next(stage)
            assert torch.equal(a["input_ids"], b["input_ids"])
            if step == 10:
                assert len(list(valid)) == len(valid) == 47
        assert train.state_dict() == stage.state_dict() != valid.state_dict()


def test_another_thread_gets_the_state_while_batches_are_taken(daemon):
    with make(daemon, slots=8) as loader:
        stop, places, errors = threading.Event(), [], []

        def peer():
            while not stop.is_set():
                try:
                    places.append(tokend.Cursor(loader.state_dict()["cursor"]).position)
                except Exception as error:
                    errors.append(error)

        thread = threading.Thread(target=peer)
        thread.start()
        for _ in range(400):
            next(loader)
            time.sleep(0.0002)  # a thread that waits for the interpreter's lock gets it
        stop.set()
        thread.join()
        assert not errors
        assert places == sorted(places)
        assert set(places) <= set(range(0, 1601, 4))
        assert len(set(places)) > 5


class Spare:
    """torchft's manager in a group that takes no part in a step; TokendReplica asks for no more."""

    def __init__(self, rank=None):
        self.rank, self.groups, self.step = rank, 1, 0

    def participating_rank(self):
        return self.rank

    def num_participants(self):
        return self.groups

    def current_step(self):
        return self.step


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"documents": True, "loss_mask": True, "provenance": True, "dtype": "int32"},
        {"cp": (1, 2, "zigzag"), "loss_mask": True},
        {"cp": (0, 2, "contiguous"), "documents": True},
        {"attention_mask": True, "dtype": {"labels": "int32"}},
        {"shift_labels": True, "cp": (1, 2, "contiguous")},
        {"tokens": True, "dtype": {"tokens": "int32"}},
    ],
)
def test_batches_of_a_spare_group_have_the_usual_shapes(daemon, options):
    daemon.config.write_text(
        daemon.config.read_text().replace(
            "seed: 42\n", "seed: 42\n    eos: 0\n    documents: true\n"
        )
    )
    daemon.stop()
    daemon.start()
    if "loss_mask" in options:
        daemon.carry_loss_masks()

    def shapes(rank):
        replica = TokendReplica(
            Spare(rank), "train", 4, rank=0, ranks=1, socket=daemon.socket, **options
        )
        (batch,) = replica.take()
        assert (batch["position"] == -1).all() == (rank is None)
        documents = batch.pop("cu_seqlens", None), batch.pop("max_seqlen", None)
        kinds = [getattr(value, "dtype", type(value)) for value in documents]
        return kinds, {name: (value.dtype, value.shape) for name, value in batch.items()}

    assert shapes(None) == shapes(0)


def test_a_group_that_heals_records_nothing(daemon, tmp_path):
    """Before and after a step that it takes part in."""
    ways = {"rank": 0, "ranks": 1, "socket": daemon.socket, "run": "ft", "record": str(tmp_path)}
    managers = [Spare(0), Spare()]
    groups = [TokendReplica(manager, "train", 4, **ways) for manager in managers]
    for step, second in enumerate([None, None, 1, 1, None, 1]):
        managers[1].rank = second
        for manager, group in zip(managers, groups, strict=True):
            manager.step, manager.groups = step, 1 + (second is not None)
            group.take()
    for group in groups:
        group.loader.close()
    code, out, err = run(TOKCTL, "verify", "train", tmp_path, "-c", daemon.config)
    assert code == 0 and b"OK: every sample from 0 to 35 once\n" in out, (out, err)
