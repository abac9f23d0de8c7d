"""OLMo-core with FSDP and accumulation resumes exactly; each step has 8 rows in every world."""

import glob
import os

import ep_mesh
import pytest
import torch
from olmo_core.data.utils import get_document_lengths
from tokend.integrations.olmo import TokendDataLoader

from harness import VALID, Job

EOS = 5


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


IMPORT = "from tokend.integrations.olmo import"
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


def batches(job):
    """Compares batches with OLMo's own functions."""
    seq = job.seq_len
    keys = {"sequence_length": seq, "global_batch_size": 4 * seq, "socket": job.daemon.socket}
    data = TokendDataLoader("train", documents=True, **keys)
    batch, _ = (batch for _, batch in zip(range(2), data))
    want = [get_document_lengths(row, EOS).tolist() for row in batch["input_ids"]]
    got = [[n for n in row if n] for row in batch["doc_lens"].tolist()]
    assert got == want, "doc_lens"
    assert batch["max_doc_lens"] == [max(row) for row in want], "max_doc_lens"
    assert len(want[0]) > 1, ("the rows contain several documents", want)
    mock = data.get_mock_batch()
    assert {name: len(part) for name, part in mock.items()} == dict.fromkeys(batch, 4)
    assert data.loader.position == 8, "a mock batch takes no rows"
    data.global_batch_size = 8 * seq  # as BatchSizeScheduler does
    data.reshuffle(1)
    assert [len(batch["input_ids"]) for _, batch in zip(range(2), data)] == [8, 8]
    assert data.loader.position == 24, "a larger batch loses no rows"

    finite = TokendDataLoader("finite", **keys)
    finite.reshuffle(1)
    assert len(finite) == 2, "a finite stream has a length"
    taken = [(batch["labels"], len(finite)) for batch in finite]
    assert [length for _, length in taken] == [2, 2] and len(finite) == 2, "while it is read, too"
    labels = torch.cat([labels for labels, _ in taken])
    assert (labels[7:] == -100).all() and (labels[:7] >= 0).all(), ("padding has no labels", labels)
    with pytest.raises(ValueError, match="finite"):
        finite.reshuffle(2)
    for name, value in ("sequence_length", seq // 2), ("global_batch_size", 50):
        with pytest.raises(ValueError, match=name):
            TokendDataLoader("train", **{**keys, name: value})


def test_batches_are_as_olmo_expects_them():
    with Job(None, eos=EOS, documents=True, vocab=64, streams={"finite": VALID}) as job:
        batches(job)


def test_expert_parallel_ranks_are_data_ranks():
    with Job(None) as meshes:
        ep_mesh.prove(meshes, "olmo")
