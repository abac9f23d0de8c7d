#!/usr/bin/env python3
"""megatron.core's schedules, two stages of two chunks each: tensor-parallel 2, then data-parallel 2, then tensor-parallel again."""

import glob
import os

from harness import HERE, Job



class Megatron(Job):
    def step_rows(self, world, passes):
        return 8

    def train(self, tp, steps, saved=None, **more):
        there = saved and (lambda: bool(glob.glob(os.path.join(self.work, "checkpoint", f"{saved:08}", "metadata.json"))))
        # traced.py notes, megatron_run.py stands in for the GPU
        self.start(4, "mcore.py", steps, tp, 2, 2, launcher=os.path.join(HERE, "megatron_run.py"), until=there, **more)
        self.starts[-1].tp = tp

    def steps(self, start):
        """Tensor-parallel peers are called with what their first one read."""
        steps = super().steps(start)
        return {step: once(rows, start.tp) for step, rows in steps.items()}


def once(rows, copies):
    """Of rows that are there @copies times, each once; all of them, if that is not so."""
    return sorted(rows)[::copies] if all(rows.count(row) == copies for row in rows) else rows


with Megatron("mcore.py") as job:
    job.train(2, 100, hold=7, saved=5)
    job.train(1, 100, hold=7, saved=10)
    job.train(2, 15)
    job.prove(steps=15, resumed=[5, 10])
job.check.exit()
