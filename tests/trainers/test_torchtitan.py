"""torchtitan with FSDP, tensor and pipeline parallelism resumes exactly from its own checkpoints.
titan_run.py replaces the accelerator.
"""

import os

import ep_mesh
import pytest
import torch
from tokend.integrations.torchtitan import TokendDataLoader

from harness import HERE, VALID, Job
from lib import has

EOS = 1


class Titan(Job):
    def train(self, world, *arguments, saved=None, **more):
        until = saved and (
            lambda: os.path.exists(
                os.path.join(self.work, "outputs", "checkpoint", f"step-{saved}", ".metadata")
            )
        )
        record = os.path.join(self.records, "train")
        tiny = "--module titan_tiny --config tiny --dataloader.record".split()
        arguments = [*tiny, record, *arguments]
        return self.start(
            world, *arguments, launcher=os.path.join(HERE, "titan_run.py"), until=until, **more
        )


class Pipeline(Titan):
    """Two stages; only the first one gets tokens."""

    def step_rows(self, world, passes):
        return world // 2 * 2

    def steps(self, start):
        """A stage runs its first micro-batch twice, to find its shapes."""
        steps = super().steps(start)
        first = min(filter(None, steps), default=None)
        return {
            step: [list(row) for row in set(map(tuple, rows))] if step == first else rows
            for step, rows in steps.items()
        }


PIPELINE = """--parallelism.pipeline_parallel_degree 2
    --parallelism.pipeline_parallel_schedule 1F1B""".split()
VARIANTS = {
    "tensor-parallel": (Titan, {"copies": 2}, ("--parallelism.tensor_parallel_degree", 2)),
    "pipeline": (Pipeline, {"micro_batch": 1, "accumulate": 2}, PIPELINE),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_parallel_peers_get_the_same_rows(variant):
    kind, keys, options = VARIANTS[variant]
    with kind("titan.py", **keys) as job:
        job.train(4, *options, hold=7, saved=5)
        job.train(2, *options)
        job.prove(steps=15, resumed=[5])


def test_resumed_on_other_worlds_and_edited():
    with Titan("titan.py", streams={"finite": VALID}) as job:
        job.train(1, hold=7, saved=5)
        # torchtitan also saves at the step of the operator's save
        job.train(
            2, "--training.steps", 1000, "--checkpoint.interval", 1, hold=7, then=job.edit_and_drain
        )
        step = job.drained()
        text = job.train(3, "--training.steps", step + 10, VALIDATE=1)
        job.prove(steps=step + 10, resumed=[5, step])
        fifth = [at for at in range(step + 1, step + 11) if at % 5 == 0]
        # each validation on three ranks reads the finite stream from its beginning
        assert [text.count(f"validate step: {at}") for at in fifth] == [3, 3]
        refused = job.train(1, "--checkpoint.last_save_model_only", fails=True)
        assert has(refused, "last_save_model_only True", "operators")


def test_the_main_branch_gets_flat_batches():
    """Its arguments are others. No package has it yet, so only the batches are compared."""
    finite = {"finite": VALID | {"documents": True, "eos": EOS}}
    with Job(None, vocab=64, streams=finite) as job:

        def build(run, **sizes):
            more = {"socket": job.daemon.socket, "run": run, "documents": True}
            config = TokendDataLoader.Config(stream="finite", **more)
            return config.build(dp_world_size=1, dp_rank=0, tokenizer=None, **sizes)

        with pytest.raises(ValueError, match="per_dp_rank.*80.*max_context_length, 32; set 96"):
            build("refused", max_context_length=32, num_tokens_per_batch=80)
        flat = build("flat", max_context_length=32, num_tokens_per_batch=64)
        rows = build("rows", seq_len=32, local_batch_size=2)
        counted = 0
        for (inputs, labels), (want, right) in zip(flat, rows, strict=True):
            assert torch.equal(labels, right.flatten())
            assert all(torch.equal(inputs[name], want[name].flatten()) for name in inputs)
            counted += int((labels != -100).sum())
            begins = torch.zeros_like(want["input"], dtype=torch.bool)
            begins[:, 0] = True
            begins[:, 1:] |= want["input"][:, :-1] == EOS
            at = torch.arange(32).expand_as(begins)
            within = at - torch.where(begins, at, 0).cummax(1).values
            real = right[:, 0] != -100
            assert torch.equal(want["positions"][real], within[real])
        assert counted == 7 * 32
        flat.close(), rows.close()


def test_expert_parallel_ranks_are_data_ranks():
    with Job(None) as meshes:
        ep_mesh.prove(meshes, "torchtitan")
