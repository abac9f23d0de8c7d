#!/usr/bin/env python3
"""torchtitan: FSDP with its own checkpoints, where only its launcher knows that there is no accelerator."""

import os

import ep_mesh
from harness import HERE, Checks, Job


class Titan(Job):
    def train(self, world, *arguments, saved=None, **more):
        until = saved and (
            lambda: os.path.exists(
                os.path.join(self.work, "outputs", "checkpoint", f"step-{saved}", ".metadata")
            )
        )
        arguments = [
            "--module",
            "titan_tiny",
            "--config",
            "tiny",
            "--dataloader.record",
            os.path.join(self.records, "train"),
            *arguments,
        ]
        return self.start(
            world, *arguments, launcher=os.path.join(HERE, "titan_run.py"), until=until, **more
        )


class Pipeline(Titan):
    """Two stages; only the first is called with tokens."""

    def step_rows(self, world, passes):
        return world // 2 * 2

    def steps(self, start):
        """A stage learns its shapes from its first micro-batch, by one call more."""
        steps = super().steps(start)
        first = min(filter(None, steps), default=None)
        return {
            step: [list(row) for row in set(map(tuple, rows))] if step == first else rows
            for step, rows in steps.items()
        }


PIPELINE = (
    "--parallelism.pipeline_parallel_degree",
    2,
    "--parallelism.pipeline_parallel_schedule",
    "1F1B",
)
check = Checks()
FINITE = {
    "finite": {
        "seed": 1,
        "seq_len": 32,
        "epochs": 1,
        "datasets": [{"name": "held-out", "path": "held-out.bin"}],
    }
}
for job, options in (
    (Titan("titan.py", check=check, streams=FINITE), ()),
    (Titan("titan.py", check=check, copies=2), ("--parallelism.tensor_parallel_degree", 2)),
    (Pipeline("titan.py", check=check, micro_batch=1, accumulate=2), PIPELINE),
):
    with job:
        least = 2 if options else 1
        print("===", *(options or ["FSDP"]), flush=True)
        job.train(least, *options, hold=7, saved=5)
        job.train(2 * least, *options, hold=7, saved=10)
        validates = {} if options else {"VALIDATE": 1}
        text = job.train(least, *options, **validates)
        if validates:
            check.ok(
                "validation over a finite stream, begun anew each time",
                text.count("validate step: 15") == 1,
                text[-3000:],
            )
        job.prove(steps=15, resumed=[5, 10])
with Titan("titan.py", check=check) as job:
    # What an operator has saved torchtitan saves, too.
    job.train(
        2, "--training.steps", 1000, "--checkpoint.interval", 1, hold=7, then=job.edit_and_drain
    )
    step = job.drained()
    job.train(1, "--training.steps", step + 3)
    job.prove(steps=step + 3, resumed=[step])
    refused = job.train(1, "--checkpoint.last_save_model_only", fails=True)
    check.has(
        "a last checkpoint of the model alone", refused, "last_save_model_only True", "an operator"
    )
with Job(None, check=check) as meshes:
    ep_mesh.prove(meshes, "torchtitan")
check.exit()
