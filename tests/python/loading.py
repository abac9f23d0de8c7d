"""Helpers of the tests of Loader."""

import numpy

import tokend

SEQ = 64


def make(daemon, stream="train", micro=4, **more):
    if more.get("loss_mask"):
        daemon.carry_loss_masks()
    return tokend.Loader(stream, micro, socket=daemon.socket, **{"rank": 0, "world": 1, **more})


def check(daemon, batch, rows, names, window=SEQ + 1):
    """The batch is exactly these rows of the plan."""
    assert batch["position"].tolist() == [row["position"] for row in rows]
    assert [names[d] for d in batch["dataset"].tolist()] == [row["dataset"] for row in rows]
    expected = numpy.stack([daemon.tokens(row, window) for row in rows])
    assert numpy.array_equal(numpy.asarray(batch["input_ids"]), expected[:, :SEQ])
    assert numpy.array_equal(numpy.asarray(batch["labels"]), expected[:, 1 : SEQ + 1])


def check_run(
    daemon, loader, batches, stream="train", start=0, rank=0, world=1, micro=4, cursor=None
):
    """Takes batches; they are this rank's share of the plan from position start on."""
    plan = daemon.plan(stream, start, batches * world * micro, cursor)
    names = loader.datasets
    for step in range(batches):
        at = (step * world + rank) * micro
        check(daemon, next(loader), plan[at : at + micro], names)
