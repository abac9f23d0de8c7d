"""Composer resumes exactly on other worlds."""

import os

from harness import HERE, Job

# torchrun sets no NODE_RANK, which composer needs
HOW = {"launcher": os.path.join(HERE, "composer_run.py"), "NODE_RANK": 0}


def test_resumed_on_other_worlds():
    with Job("train_composer.py", accumulate=2) as job:
        job.start(1, hold=7, **HOW)
        job.edit('"15ba"', '"1000ba"')
        job.start(2, hold=7, then=job.edit_and_drain, **HOW)
        step = job.drained()
        job.edit('"1000ba"', f'"{step + 3}ba"')
        job.start(1, **HOW)
        job.prove(steps=step + 3, resumed=[5, step])
