"""nanoGPT's loop, which takes a batch before it has trained on the last one, resumes exactly."""

import os
import re
import shutil

from harness import HERE, VALID, Job


class NanoGPT(Job):
    def step_rows(self, world, passes):
        return 4 * self.micro_batch  # gradient_accumulation_steps are of all processes together


def test_the_batch_that_is_taken_but_not_trained_on_is_not_lost():
    with NanoGPT("train_nanogpt.py", streams={"valid": VALID}) as job:
        shutil.copy(os.path.join(HERE, "nanogpt_model.py"), os.path.join(job.work, "model.py"))
        first = job.start(1, hold=7)
        job.edit("max_iters, grad_clip = 6e-4, 14", "max_iters, grad_clip = 6e-4, 1000")
        second = job.start(2, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.edit("6e-4, 1000", f"6e-4, {step + 2}")
        job.edit("eval_interval = 5", "eval_interval = 1")  # also at the step of the drain
        third = job.start(1)
        job.prove(steps=step + 3, resumed=[5, step])
        losses = [
            dict(re.findall(r"step (\d+): val loss (\S+)", text)) for text in (first, second, third)
        ]
        # equal weights have equal losses: each evaluation begins at the beginning
        assert losses[0]["5"] == losses[1]["5"] and losses[1][str(step)] == losses[2][str(step)]
