"""Composer resumes exactly on other worlds, and evaluates all rows each time."""

import math
import os
import re

from harness import HERE, VALID, Job

# torchrun sets no NODE_RANK, which composer needs
HOW = {"launcher": os.path.join(HERE, "composer_run.py"), "NODE_RANK": 0}
# processes write to the log at the same time, so another line may follow at once
LOSS = r"metrics/eval/loss: (nan|\d+\.\d*)"


def test_resumed_on_other_worlds():
    with Job("train_composer.py", accumulate=2, streams={"valid": VALID}) as job:
        texts = [job.start(1, hold=7, **HOW)]
        job.edit('"15ba"', '"1000ba"')
        texts.append(job.start(2, hold=7, then=job.edit_and_drain, **HOW))
        step = job.drained()
        job.edit('"1000ba"', f'"{step + 3}ba"')
        texts.append(job.start(1, **HOW))
        job.prove(steps=step + 3, resumed=[5, step])
        for text in texts:
            losses = [float(loss) for loss in re.findall(LOSS, text)]
            assert losses and all(map(math.isfinite, losses)), "the held-out rows, without padding"
