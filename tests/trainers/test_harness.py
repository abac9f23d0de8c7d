"""The harness detects trainers that lose rows, repeat rows, or read the same rows on all ranks."""

import pytest

from harness import Job

SAVE = "dcp.save("
WRONG = {
    "a batch taken ahead of the checkpoint is lost": (SAVE, "next(data)\n        " + SAVE),
    "a cursor older than the model repeats rows": (
        "loss.backward()",
        "step == 5 or data.commit()\n    loss.backward()",
    ),
    "all ranks read the first one's rows": (
        "micro_batch=2, mesh=mesh)",
        "micro_batch=2, rank=0, world=2, run=f'rank{dist.get_rank()}', group=False)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_trainer_is_detected(name):
    old, new = WRONG[name]
    with Job("train_ddp.py") as job:
        job.edit("torch.compile(model)", "model")
        job.edit("data.control()", "None")  # it needs a group of all ranks
        job.edit(old, new)
        resumed = [] if "rank=0" in new else [5]
        for _ in resumed:
            job.start(1, hold=6)
        job.start(1 if resumed else 2)
        with pytest.raises(AssertionError, match="15 steps, worlds"):
            job.prove(steps=15, resumed=resumed)
