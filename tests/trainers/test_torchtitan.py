#!/usr/bin/env python3
"""torchtitan: FSDP with its own checkpoints, where only its launcher knows that there is no accelerator."""

import os

from harness import HERE, Job


class Titan(Job):
    def train(self, world, *arguments, saved=None, **more):
        until = saved and (lambda: os.path.exists(os.path.join(self.work, "outputs", "checkpoint", f"step-{saved}", ".metadata")))
        arguments = ["--module", "titan_tiny", "--config", "tiny", "--dataloader.record", self.records, *arguments]
        return self.start(world, *arguments, launcher=os.path.join(HERE, "titan_run.py"), until=until, **more)


with Titan("titan.py") as job:
    job.train(1, hold=7, saved=5)
    job.train(2, hold=7, saved=10)
    job.train(1)
    job.prove(steps=15, resumed=[5, 10])
job.check.exit()
