"""Loader(start=N) continues after another loader, which had consumed N samples."""

import subprocess

import numpy
import pytest
from lib import BIN

import tokend

CONSUMED = 1_234  # not a multiple of the rows of a step


def test_start_is_the_number_of_samples_consumed(daemon):
    ranks = [
        tokend.Loader(
            "train",
            4,
            socket=daemon.socket,
            rank=rank,
            world=2,
            start=CONSUMED,
            agree=False,
            framework="numpy",
        )
        for rank in range(2)
    ]
    for step in range(50):
        plan = daemon.plan("train", CONSUMED + step * 8, 8)
        for rank, loader in enumerate(ranks):
            batch = next(loader)
            assert batch["position"].tolist() == [
                CONSUMED + step * 8 + rank * 4 + i for i in range(4)
            ]
            rows = numpy.stack([daemon.tokens(row, 64) for row in plan[rank * 4 : rank * 4 + 4]])
            assert numpy.array_equal(batch["input_ids"], rows)
    assert {loader.position for loader in ranks} == {CONSUMED + 50 * 8}
    assert (
        len({loader.state_dict()["cursor"] for loader in ranks}) == 1
    )  # from here on it is a run like any other
    for loader in ranks:
        loader.close()


def test_a_trainer_in_c_takes_the_same_start(daemon):
    arguments = [
        "train",
        "--rank",
        "0",
        "--world",
        "1",
        "--micro",
        "4",
        "--batches",
        "3",
        "--start",
        str(CONSUMED),
    ]
    done = subprocess.run(
        [BIN / "tokctl", "cat", *arguments, "--socket", daemon.socket],
        capture_output=True,
        check=True,
    )
    rows = numpy.frombuffer(done.stdout, numpy.uint16).reshape(12, 65)
    assert numpy.array_equal(
        rows, numpy.stack([daemon.tokens(row, 65) for row in daemon.plan("train", CONSUMED, 12)])
    )


def test_a_start_after_the_end_is_refused(daemon):
    with pytest.raises(tokend.RefusedError, match="position"):
        tokend.Loader("finite", 4, socket=daemon.socket, rank=0, world=1, start=10**9)
