#!/usr/bin/env python3
"""megatron.core's schedules, two stages of two chunks each: tensor-parallel 2, then data-parallel 2, then tensor-parallel again."""

import glob
import os

from harness import HERE, Job

TP = []  # of each start


class Megatron(Job):
    def step_rows(self, world):
        return 8

    def events(self, noted):
        """Tensor-parallel peers are called with what their first one read."""
        tp = TP[[at for _, at in self.starts].index(noted)]
        return [process for process in super().events(noted) if process and process[0]["rank"] % tp == 0]

    def train(self, tp, steps, saved=None, **more):
        TP.append(tp)
        there = saved and (lambda: bool(glob.glob(os.path.join(self.work, "checkpoint", f"{saved:08}", "metadata.json"))))
        # traced.py notes, megatron_run.py stands in for the GPU
        return self.start(4, "mcore.py", steps, tp, 2, 2, launcher=os.path.join(HERE, "megatron_run.py"), until=there, **more)


with Megatron("mcore.py") as job:
    job.train(2, 100, hold=7, saved=5)
    job.train(1, 100, hold=7, saved=10)
    job.train(2, 15)
    job.prove(steps=15, resumed=[5, 10])
job.check.exit()
