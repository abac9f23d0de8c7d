#!/usr/bin/env python3
"""The proof can fail: a trainer that loses rows, one that repeats some, and one whose ranks read the same must all be found out."""

import contextlib
import io

from harness import Checks, Job

SAVE = 'dcp.save({"model": weights'
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
check = Checks()
for name, (old, new) in WRONG.items():
    heard = io.StringIO()
    with Job("train_ddp.py", check=Checks()) as job:
        job.edit("torch.compile(model)", "model")
        job.edit(old, new)
        job.start(2, hold=6)
        job.start(1)
        with contextlib.redirect_stdout(heard):
            job.prove(steps=15, resumed=[5])
    check.has(name, heard.getvalue(), "FAIL  15 steps")
check.exit()
