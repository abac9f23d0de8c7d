"""Lightning resumes exactly on other worlds, with validation and during accumulation."""

import os
from pathlib import Path

import torch

from harness import VALID, Job
from lib import has


def test_resumed_on_other_worlds_and_edited():
    with Job("train_lightning.py", accumulate=2, streams={"valid": VALID}) as job:
        job.start(1, hold=7)
        job.prove_edited()
        logs = Path(job.work).glob("lightning_logs/*/metrics.csv")
        logged = "".join(path.read_text() for path in logs)
        assert has(logged, "tokend/tokens_per_second", "tokend/wait_share", "valid")


SAVE = """class Save(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index == 4:
            trainer.save_checkpoint("checkpoints/last.ckpt")


class Module"""


def test_saved_in_the_middle_of_an_accumulation_and_a_finite_stream_ends():
    """Saved after one of two forward passes: Lightning drops its gradients and resumes with the
    second pass only. On two processes, both end with the stream.
    """
    with Job("train_lightning.py", accumulate=2, streams={"valid": VALID}, samples=46) as job:
        job.edit("max_steps=15", "max_steps=100")
        job.edit("class Module", SAVE)
        job.edit("callbacks=[saves", "callbacks=[Save()")
        job.start(1, hold=4)
        text = job.start(2)
        assert has(text, "ended in the middle of a gradient accumulation", "a multiple of 8")
        job.prove(steps=7, resumed=[2], short={3: 1})
        last = os.path.join(job.work, "checkpoints", "last.ckpt")
        saved = torch.load(last)
        del saved["TokendData"]
        torch.save(saved, last)
        assert has(job.start(1, fails=True), "the checkpoint has no tokend cursor")


# ModelParallelStrategy: tensor-parallel processes, which read the same rows, and FSDP2.
PARALLEL = """    def configure_model(self):
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        split = {"1": ColwiseParallel(output_layouts=Replicate())}
        parallelize_module(self.model, self.device_mesh["tensor_parallel"], split)
        fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step"""


def test_tensor_parallel_peers_get_the_same_rows():
    with Job("train_lightning.py", accumulate=2, copies=2, streams={"valid": VALID}) as job:
        job.edit(
            'strategy="ddp"',
            'strategy=ModelParallelStrategy(int(os.environ["WORLD_SIZE"]) // 2, 2)',
        )
        job.edit(
            "import torch\n",
            "import torch\nfrom lightning.pytorch.strategies import ModelParallelStrategy\n",
        )
        job.edit("    def training_step", PARALLEL)
        job.start(2, hold=7)
        job.start(4)
        job.prove(steps=15, resumed=[5])
