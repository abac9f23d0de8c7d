"""input_ids and labels are contiguous and independent, however they are made; tokens=True gives
unsplit windows.
"""

import json
import os
import subprocess
import sys

import numpy
import pytest
import tokend
import torch
import transforms
from lib import BIN, child_environment
from loading import make

SEQ = 64
NAMES = ["input_ids", "labels", "position", "dataset"]
KINDS = [
    {},
    {"framework": "numpy"},
    {"dtype": "int32"},
    {"dtype": {"input_ids": "int32", "labels": "int32"}},
    {"dtype": {"labels": "int32"}, "framework": "numpy"},
    {"loss_mask": True, "provenance": True},
    {"cp": (1, 2, "zigzag")},
    {"cp": (1, 2, "contiguous"), "loss_mask": True},
    {"cp": (0, 2, "contiguous"), "framework": "numpy"},
    {"transform": transforms.in_place},
    {"transform": transforms.in_place, "framework": "numpy"},
    {"transform": transforms.in_place, "workers": 2},
    {"transform": transforms.in_place, "dtype": "int32"},
    {"transform": transforms.in_place, "dtype": {"labels": "int32"}},
]


def rows_of(daemon, stream, start, count, window=SEQ + 1):
    return numpy.stack([daemon.tokens(row, window) for row in daemon.plan(stream, start, count)])


def is_contiguous(array):
    return array.is_contiguous() if isinstance(array, torch.Tensor) else array.flags.c_contiguous


@pytest.mark.parametrize("stream", ["train", "whole", "wide", "ahead"])
@pytest.mark.parametrize("more", KINDS, ids=str)
def test_every_tensor_is_contiguous_and_its_own(daemon, more, stream):
    if stream == "wide" and more.get("dtype"):
        return  # its tokens do not fit
    for micro in (1, 4):
        with make(daemon, stream, micro, **more) as loader:
            batch = next(loader)
            assert all(is_contiguous(array) for array in batch.values())
            inputs = numpy.array(batch["input_ids"])
            batch["labels"].reshape(-1)[:] = 7  # targets.view(-1): a copy would not be written to
            assert (numpy.asarray(batch["labels"]) == 7).all()
            assert numpy.array_equal(numpy.asarray(batch["input_ids"]), inputs)


def test_flattening_is_a_view(daemon):
    """nanoGPT and llm.c flatten their targets with view(-1)."""
    with make(daemon) as loader:
        batch = next(loader)
        assert batch["labels"].view(-1).data_ptr() == batch["labels"].data_ptr()
        assert (
            batch["input_ids"].view(-1).tolist()
            == rows_of(daemon, "train", 0, 4)[:, :-1].ravel().tolist()
        )


@pytest.mark.parametrize(
    "stream,window", [("train", SEQ + 1), ("ahead", SEQ + 3), ("wide", SEQ + 1)]
)
@pytest.mark.parametrize("more", [{}, {"framework": "numpy"}, {"provenance": True}], ids=str)
def test_tokens_are_whole_windows(daemon, more, stream, window):
    with make(daemon, stream, tokens=True, **more) as loader:
        for start in (0, 4):
            batch = next(loader)
            assert (
                list(batch)[:4] == ["tokens", "padding", "position", "dataset"]
                and "labels" not in batch
            )
            assert batch["tokens"].shape == (4, window) and is_contiguous(batch["tokens"])
            assert str(batch["tokens"].dtype).endswith("int64") and str(
                batch["padding"].dtype
            ).endswith("bool")
            assert numpy.array_equal(
                numpy.asarray(batch["tokens"]), rows_of(daemon, stream, start, 4, window)
            )
            assert batch["padding"].shape == (4,) and not batch["padding"].any()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"framework": "numpy"},
        {"dtype": "int32"},
        {"transform": transforms.in_place, "workers": 2},
    ],
    ids=str,
)
def test_padding_is_true_in_padding_rows(daemon, more):
    rows = padded = 0
    with make(daemon, "finite", 5, tokens=True, **more) as loader:
        for batch in loader:
            padding = numpy.asarray(batch["padding"])
            assert numpy.array_equal(padding, numpy.asarray(batch["position"]) == -1)
            assert (numpy.asarray(batch["tokens"])[padding] == 0).all()
            rows, padded = rows + len(padding), padded + int(padding.sum())
    assert rows - padded == 468 and padded == 2


def test_tokens_with_a_loss_mask_in_int32_through_a_transform(daemon):
    with (
        make(daemon, tokens=True, transform=transforms.in_place) as loader,
        make(daemon, transform=transforms.in_place) as plain,
    ):
        batch, both = next(loader), next(plain)
        assert torch.equal(batch["tokens"][:, :-1], both["input_ids"]) and torch.equal(
            batch["tokens"][:, 1:], both["labels"]
        )
    with make(daemon, tokens=True, dtype="int32", loss_mask=True) as loader, make(daemon) as plain:
        batch, both = next(loader), next(plain)
        assert batch["tokens"].dtype == torch.int32
        assert torch.equal(batch["tokens"][:, 1:].long(), both["labels"])
        assert batch["loss_mask"].shape == both["labels"].shape and batch["loss_mask"].all()


@pytest.mark.parametrize(
    "stream,more,error,text",
    [
        ("whole", {}, tokend.ArgumentError, r"tokens: .* \(extra: 0\); set extra: 1"),
        ("train", {"view": True, "hold": 1}, ValueError, "tokens, view: .*; pass one of them"),
        ("train", {"cp": (0, 2, "zigzag")}, ValueError, "tokens, cp: .*; pass one of them"),
        ("train", {"attention_mask": True}, ValueError, "tokens, attention_mask: .*; pass one"),
        ("train", {"shift_labels": True}, ValueError, "tokens, shift_labels: .*; pass one"),
    ],
)
def test_tokens_are_refused_where_they_lack_the_labels(daemon, stream, more, error, text):
    with pytest.raises(error, match=text):
        make(daemon, stream, tokens=True, **more)


def test_tokens_of_a_stream_with_a_loss_mask_need_loss_mask(daemon):
    allowed = {}
    for name in ("web/a.bin", "web/b.bin", "code.bin"):
        allowed[name] = (
            numpy.random.default_rng(len(name))
            .integers(0, 2, len(daemon.shards[name]))
            .astype(numpy.uint8)
        )
        path = daemon.directory / "masks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        allowed[name].tofile(path)
    config = daemon.config.read_text().replace(
        "    seed: 42\n", "    seed: 42\n    loss_mask: true\n"
    )
    config = config.replace("path: web,", "path: web, label_mask: masks/web,").replace(
        "weight: 0.3,", "weight: 0.3, label_mask: masks,"
    )
    daemon.config.write_text(config)
    daemon.kill()
    daemon.start()
    with pytest.raises(
        tokend.ArgumentError, match="tokens: the stream has a loss mask, .* loss_mask=True"
    ):
        make(daemon, tokens=True)
    with make(daemon, tokens=True, loss_mask=True) as loader, make(daemon) as plain:
        batch, both = next(loader), next(plain)
        assert (
            numpy.array_equal(batch["loss_mask"].numpy() == 0, both["labels"].numpy() == -100)
            and not batch["loss_mask"].all()
        )
        assert is_contiguous(both["labels"])


DEVICE = """
import json, sys

sys.path.insert(0, sys.argv[2])
import feed_job, tokend, torch
from tokend import device

gpu = feed_job.Fake()
gpu.hand_over = lambda tensor, event: gpu.finish()  # the fake has no stream of the caller's
device.Cuda, device.named = lambda name: gpu, lambda name: torch.device("cpu")
out = []
for stream, more in (
    ("train", {}),
    ("train", {"dtype": "int32"}),
    ("train", {"dtype": {"labels": "int32"}, "attention_mask": True}),
    ("whole", {"dtype": {"input_ids": "int32", "labels": "int32"}}),
    ("train", {"tokens": True}),
):
    with tokend.Loader(
        stream, 4, socket=sys.argv[1], rank=0, world=1, slots=4, device="cuda", **more
    ) as loader:
        # torch pins memory only where there is a GPU
        loader._batches._empty = loader._batches.make.empty
        for _ in range(3):
            batch = next(loader)
        gpu.finish()
        contiguous = [name for name, value in batch.items() if value.is_contiguous()]
        out.append(
            [
                {name: value.tolist() for name, value in batch.items()},
                contiguous,
                [str(v.dtype) for v in batch.values()],
            ]
        )
print(json.dumps(out))
"""


def test_batches_on_a_device_are_contiguous(daemon):
    """A real loader on the fake libcuda.so.1: no evidence of how a GPU behaves."""
    environment = child_environment(LD_LIBRARY_PATH=str(BIN.parent / "check" / "fake"))
    command = [sys.executable, "-c", DEVICE, daemon.socket, os.path.dirname(__file__)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    plain, narrow, labels, whole, tokens = json.loads(done.stdout)
    rows = rows_of(daemon, "train", 8, 4)
    for (batch, contiguous, kinds), asked in (
        (plain, ["int64", "int64"]),
        (narrow, ["int32", "int64"]),
        (labels, ["int64", "int32"]),
    ):
        assert contiguous == list(batch)
        assert [name for name in batch if name != "attention_mask"] == NAMES
        assert kinds[:2] == [f"torch.{kind}" for kind in asked]
        assert numpy.array_equal(batch["input_ids"], rows[:, :-1]) and numpy.array_equal(
            batch["labels"], rows[:, 1:]
        )
    assert labels[0]["attention_mask"] == [[1] * SEQ] * 4
    assert whole[2][:2] == ["torch.int32", "torch.int32"]
    assert whole[1] == list(whole[0]) and numpy.array_equal(
        whole[0]["input_ids"], rows_of(daemon, "whole", 8, 4, SEQ)
    )
    assert {row[-1] for row in whole[0]["labels"]} == {-100}
    assert tokens[1] == ["tokens", "padding", "position", "dataset"] and numpy.array_equal(
        tokens[0]["tokens"], rows
    )
    assert tokens[0]["padding"] == [False] * 4
