"""The proof can fail: a trainer that loses rows, one that repeats some, and one whose ranks read
the same must all be found out.
"""

import pytest

from harness import Job

SAVE = "dcp.save(\n"
WRONG = {
    "a batch taken ahead of the checkpoint is lost": (SAVE, "next(data)\n        " + SAVE),
    "a checkpoint behind the model repeats rows": (
        "loss.backward()",
        "step == 5 or data.commit()\n    loss.backward()",
    ),
    "ranks that all read the first one's rows": (
        "micro_batch=2)",
        "micro_batch=2, rank=0, world=dist.get_world_size(), strict=False)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_out(name):
    old, new = WRONG[name]
    with Job("train_ddp.py") as job:
        job.edit("torch.compile(model)", "model")
        job.edit(old, new)
        job.start(2, hold=6)
        job.start(1)
        with pytest.raises(AssertionError, match="15 steps, worlds"):
            job.prove(steps=15, resumed=[5])
