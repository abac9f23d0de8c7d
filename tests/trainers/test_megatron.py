"""megatron.core with two stages of two chunks resumes exactly, with tensor parallelism and with
data parallelism; TokendIterator returns Megatron's batches.
"""

import contextlib
import io
import os
import types

import numpy
import pytest
import torch
from tokend.integrations.megatron import TokendIterator

from harness import HERE, VALID, Job
from lib import has

EOS = 5


class Megatron(Job):
    def step_rows(self, world, passes):
        return 8

    def train(self, tp, steps, saved=None, **more):
        metadata = os.path.join(self.work, "checkpoint", f"{saved or 0:08}", "metadata.json")
        more |= {"until": saved and (lambda: os.path.exists(metadata))}
        # traced.py logs, megatron_run.py replaces the GPU
        launcher = os.path.join(HERE, "megatron_run.py")
        self.start(4, "mcore.py", steps, tp, launcher=launcher, **more)
        self.starts[-1].tp = tp

    def steps(self, start):
        """Tensor-parallel peers get the rows that their first one read."""
        steps = super().steps(start)
        return {step: once(rows, start.tp) for step, rows in steps.items()}


def once(rows, copies):
    """Each row once if all occur @copies times; otherwise all rows."""
    return sorted(rows)[::copies] if all(rows.count(row) == copies for row in rows) else rows


def test_resumed_on_other_worlds_and_edited():
    with Megatron("mcore.py") as job:
        job.train(2, 100, hold=7, saved=5)  # half of the processes read nothing, and exit too
        job.train(1, 1000, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.train(2, step + 3)
        job.prove(steps=step + 3, resumed=[5, step])


def batches(job):
    """Compares batches with the tokens of the shards."""
    seq = job.seq_len
    keys = {"rank": 0, "world": 1, "socket": job.daemon.socket}
    batch = next(TokendIterator("train", 4, documents=True, seq_len=seq, **keys))
    wrong = []
    for tokens, positions, starts, longest in zip(
        *(batch[k].tolist() for k in ("tokens", "position_ids", "cu_seqlens", "max_seqlen"))
    ):
        begin = [0, *(i + 1 for i, token in enumerate(tokens[:-1]) if token == EOS)]
        want = begin + [seq] * (seq + 1 - len(begin))
        lengths = [b - a for a, b in zip(begin, [*begin[1:], seq])]
        if (
            starts != want
            or longest != max(lengths)
            or positions != [i for n in lengths for i in range(n)]
        ):
            wrong.append((tokens, starts, longest, positions))
    assert not wrong, ("documents: cu_seqlens, max_seqlen, position_ids", wrong)
    assert (batch["cu_seqlens"] < seq).sum() > 4, "the rows contain several documents"

    held_out = numpy.fromfile(job.file("held-out.bin"), "<u2")
    rows = sorted(held_out[at : at + seq + 1].tolist() for at in range(0, 7 * seq, seq))
    taken = list(TokendIterator("finite", 4, **keys))
    tokens, labels, counts = (
        torch.cat([b[k] for b in taken]) for k in ("tokens", "labels", "loss_mask")
    )
    got = sorted(tokens[i].tolist() + labels[i, -1:].tolist() for i in range(7))
    assert got == rows and (tokens[:7, 1:] == labels[:7, :-1]).all(), ("tokens and labels", got)
    assert counts[:7].all() and not counts[7:].any() and not labels[7:].any()
    assert (counts.dtype, *counts.shape) == (torch.float32, 8, seq)

    args = types.SimpleNamespace(
        micro_batch_size=4, seq_length=seq, iteration=2, consumed_train_samples=16,
        create_attention_mask_in_dataloader=False, dataloader_save=job.file("saves[1]"),
    )  # fmt: skip
    begins("from the samples consumed", args, keys, 16, f"{args.dataloader_save} has no cursor")
    iteration = "iter_0000002", "mp_rank_00_000", "train_dataloader_dprank000.pt"
    skipped = TokendIterator("train", 4, start=20, **keys).save_state()
    torch.save({"dataloader_state_dict": skipped}, job.file("saves[1]", *iteration))
    saved = job.file("saves[1]", *iteration)
    begins("from the cursor of --dataloader-save", args, keys, 20, f"the cursor in {saved}")
    args.iteration = 4
    refused("cursors of other iterations", args, keys, "none of iteration 4", "load a checkpoint")
    args.iteration, args.consumed_train_samples = 2, 24
    refused("a cursor before the samples consumed", args, keys, "at sample 20", "has consumed 24")
    args.consumed_train_samples = 16
    args.seq_length = seq + 1
    refused("another seq_length", args, keys, "seq_length", str(seq + 1), "train")
    other = job.file("saves[1]", iteration[0], "mp_rank_00", iteration[2])  # of a former layout
    torch.save({"dataloader_state_dict": TokendIterator("train", 4, **keys).save_state()}, other)
    refused("unequal cursors", args, keys, saved, other, "are not equal")
    args.create_attention_mask_in_dataloader = True
    refused("a mask", args, keys, "--no-create-attention-mask-in-dataloader")
    args.create_attention_mask_in_dataloader, args.eod_mask_loss = False, True
    refused("a loss mask by EOD", args, keys, "eod_mask_loss: TokendIterator does not")


def begins(what, args, keys, position, why):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        iterators = [TokendIterator.from_args("train", args, **keys) for _ in range(2)]
    assert [iterator.loader.position for iterator in iterators] == [position] * 2, what
    assert has(said.getvalue(), f"tokend: stream 'train' begins at sample {position}: ", why)
    assert said.getvalue().count("\n") == 1, f"{what}: once"


def refused(what, args, keys, *said):
    with pytest.raises(ValueError) as error:
        _ = TokendIterator.from_args("train", args, **keys).loader
    assert has(str(error.value), *said), f"{what}: refused"


def test_batches_are_as_megatron_expects_them():
    with Job(None, eos=EOS, documents=True, vocab=64, streams={"finite": VALID}) as job:
        batches(job)
