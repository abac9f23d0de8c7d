"""OLMo-core with FSDP and accumulation resumes exactly; each step has 8 rows in every world."""

import glob
import os

import ep_mesh
from harness import Job


class Olmo(Job):
    def step_rows(self, world, passes):
        return 8

    def steps(self, start):
        """OLMo's first checkpoint makes an empty optimizer step before training."""
        return {step and step - 1: rows for step, rows in super().steps(start).items()}

    def saved(self, step):
        return lambda: bool(
            glob.glob(os.path.join(self.work, "checkpoints", f"step{step}", ".metadata.json"))
        )


def test_resumed_on_other_worlds_and_edited():
    with Olmo("olmo.py", discards=True) as job:
        job.start(1, 100, hold=7, until=job.saved(5))
        # OLMo also saves at the step of the operator's save
        job.edit("save_interval=5", "save_interval=1")
        job.start(2, 1000, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.start(1, step + 3)
        job.prove(steps=step + 3, resumed=[5, step])


def test_a_finite_stream_is_one_epoch():
    """The schedule's length counts batches from before a resume, too."""
    with Olmo("olmo.py", discards=True, samples=80) as job:
        job.edit("Duration.steps(int(sys.argv[1]))", "Duration.epochs(1)")
        job.start(1, hold=7, until=job.saved(5))
        job.start(2)
        job.prove(steps=10, resumed=[5])


IMPORT = "from tokend import Loader"
IMPORTS = """from olmo_core.nn.attention.ring import UlyssesContextParallelStyle
from olmo_core.train.train_module import (
    TransformerContextParallelConfig,
    TransformerTensorParallelConfig,
)
"""
MICRO = "    rank_microbatch_size"
TENSOR = "tp_config=TransformerTensorParallelConfig(degree=2)"
CONTEXT = "cp_config=TransformerContextParallelConfig(degree=2, uly=UlyssesContextParallelStyle())"


def test_parallel_peers_get_the_same_rows():
    with Olmo("olmo.py", copies=2, discards=True) as job:
        job.edit(IMPORT, f"{IMPORTS}{IMPORT}")
        # On four processes, with two data shards, OLMo fails with gloo in its dry run, before it
        # reads data.
        job.edit(MICRO, f"    {CONTEXT},\n{MICRO}")
        job.start(2, 100, hold=7, until=job.saved(5))
        job.edit(CONTEXT, TENSOR)
        job.start(2, 100, hold=7, until=job.saved(10))
        job.start(4, 12)
        for start, layout in zip(job.starts, ("CP 2", "TP 2", "TP 2×DP 2"), strict=True):
            start.layout = layout
        job.prove(steps=12, resumed=[5, 10])


def test_expert_parallel_ranks_are_data_ranks():
    with Job(None) as meshes:
        ep_mesh.prove(meshes, "olmo")
