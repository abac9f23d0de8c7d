"""dtype= by key: labels of 32 bits, equal to those of 64 bits wherever they come from."""

import numpy
import pytest
import tokend
import transforms
from loading import SEQ, make

NARROW = {"labels": "int32"}
BOTH = {"input_ids": "int32", "labels": "int32"}


def kinds(batch):
    return tuple(str(batch[name].dtype).split(".")[-1] for name in ("input_ids", "labels"))


def equal(batch, other):
    assert list(batch) == list(other)
    for name in batch:
        assert numpy.array_equal(numpy.asarray(batch[name]), numpy.asarray(other[name])), name


@pytest.mark.parametrize("stream", ["train", "whole", "ahead", "finite"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"framework": "numpy"},
        {"loss_mask": True, "provenance": True},
        {"cp": (1, 2, "zigzag")},
        {"transform": transforms.in_place},
        {"transform": transforms.shuffle, "workers": 2, "framework": "numpy"},
    ],
    ids=str,
)
def test_labels_of_32_bits_are_those_of_64(daemon, more, stream):
    """The streams without a last label and with padding rows have labels of -100."""
    for dtype, expected in ((NARROW, ("int64", "int32")), (BOTH, ("int32", "int32"))):
        with make(daemon, stream, 5, dtype=dtype, **more) as narrow:
            if stream == "finite":
                narrow.seek(position=463)
            with make(daemon, stream, 5, start=narrow.cursor, **more) as wide:
                for _ in range(1 if stream == "finite" else 3):
                    batch, other = next(narrow), next(wide)
                    assert kinds(batch) == expected and kinds(other) == ("int64", "int64")
                    equal(batch, other)
        ignored = {"train": 0, "ahead": 0, "whole": 5, "finite": 0}[stream]
        if "cp" not in more:
            assert (numpy.asarray(batch["labels"]) == -100).sum() == ignored


def test_padding_rows_and_masked_labels_stay_ignored(daemon):
    masks = daemon.directory / "masks"
    masks.mkdir()
    rng = numpy.random.default_rng(3)
    for name in ("a", "b"):
        tokens = daemon.shards[f"web/{name}.bin"]
        rng.integers(0, 2, len(tokens), dtype=numpy.uint8).tofile(masks / f"{name}.bin")
    text = daemon.config.read_text().replace("path: web,", "path: web, label_mask: masks,")
    daemon.config.write_text(text.replace("seed: 42\n", "seed: 42\n    loss_mask: true\n"))
    daemon.stop()
    daemon.start()
    for more in ({}, {"transform": transforms.in_place}):
        with make(daemon, dtype=BOTH, **more) as narrow, make(daemon, **more) as wide:
            batch = next(narrow)
            equal(batch, next(wide))
            assert 0 < (batch["labels"] == -100).sum() < batch["labels"].numel()
    with make(daemon, "finite", 5, dtype=BOTH) as narrow, make(daemon, "finite", 5) as wide:
        for batch in narrow:
            equal(batch, next(wide))
        assert (batch["labels"] == -100).sum() == 2 * SEQ


def test_a_label_that_does_not_fit_is_named_and_nothing_is_lost(daemon):
    row = daemon.plan("wide", 0, 1)[0]
    tokens = daemon.tokens(row, SEQ + 1)
    first = 1 + int(numpy.flatnonzero(tokens[1:] >= 2**31)[0])
    with make(daemon, "wide", 1, dtype=NARROW) as loader:
        for _ in range(2):
            with pytest.raises(tokend.ArgumentError, match=f"dtype: token {tokens[first]} does"):
                next(loader)
            assert loader.position == 0


@pytest.mark.parametrize(
    "dtype,more,text",
    [
        ({"label": "int32"}, {}, "dtype: 'label' is not a key for input_ids, labels"),
        ({"tokens": "int32"}, {}, "dtype: 'tokens' is not a key for"),
        (NARROW, {"tokens": True}, "dtype: 'labels' is not a key for tokens"),
        ({"labels": "uint16"}, {}, "dtype of labels: uint16 cannot hold all tokens"),
    ],
)
def test_an_impossible_dtype_is_refused(daemon, dtype, more, text):
    with pytest.raises(tokend.ArgumentError, match=text):
        make(daemon, dtype=dtype, **more)


def test_tokens_by_key(daemon):
    with make(daemon, tokens=True, dtype={"tokens": "int32"}) as loader:
        assert str(next(loader)["tokens"].dtype) == "torch.int32"
