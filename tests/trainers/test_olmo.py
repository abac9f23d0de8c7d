#!/usr/bin/env python3
"""OLMo-core: FSDP, gradient accumulation, its own checkpoints; a step has the same 8 rows in every world."""

import glob
import os

import ep_mesh
from harness import Job


class Olmo(Job):
    def step_rows(self, world, passes):
        return 8

    def steps(self, start):
        """OLMo's first checkpoint makes the optimizer step once, with nothing, before the first step of training."""
        return {step and step - 1: rows for step, rows in super().steps(start).items()}

    def saved(self, step):
        return lambda: bool(glob.glob(os.path.join(self.work, "checkpoints", f"step{step}", ".metadata.json")))


with Olmo("olmo.py", discards=True) as job:
    job.start(1, 100, hold=7, until=job.saved(5))
    job.start(2, 100, hold=7, until=job.saved(10))
    job.start(1, 15)
    job.prove(steps=15, resumed=[5, 10])
with Job(None, check=job.check) as meshes:
    ep_mesh.prove(meshes, "olmo")
job.check.exit()
