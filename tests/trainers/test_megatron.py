#!/usr/bin/env python3
"""megatron.core's schedules, two stages of two chunks each: tensor-parallel 2, then data-parallel 2, then tensor-parallel again."""

import contextlib
import glob
import io
import os
import types

import numpy
import torch
from harness import HERE, Job
from tokend.megatron import TokendIterator

EOS = 5
FINITE = {
    "finite": {
        "seed": 1,
        "seq_len": 32,
        "epochs": 1,
        "datasets": [{"name": "held-out", "path": "held-out.bin"}],
    }
}


class Megatron(Job):
    def step_rows(self, world, passes):
        return 8

    def train(self, tp, steps, saved=None, **more):
        there = saved and (
            lambda: bool(
                glob.glob(os.path.join(self.work, "checkpoint", f"{saved:08}", "metadata.json"))
            )
        )
        # traced.py notes, megatron_run.py stands in for the GPU
        self.start(
            4,
            "mcore.py",
            steps,
            tp,
            2,
            2,
            launcher=os.path.join(HERE, "megatron_run.py"),
            until=there,
            **more,
        )
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

with Megatron("mcore.py", check=job.check) as job:  # most processes read nothing, and leave, too
    job.train(2, 1000, hold=7, then=job.edit_and_drain)
    step = job.drained()
    job.train(1, step + 3)
    job.prove(steps=step + 3, resumed=[step])


def batches(job):
    """What is in them, against the tokens themselves."""
    check, seq = job.check, job.seq_len
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
    check.ok("documents: cu_seqlens, max_seqlen, position_ids", not wrong, wrong)
    check.ok(
        "there are documents to see", (batch["cu_seqlens"] < seq).sum() > 4, batch["cu_seqlens"]
    )

    held_out = numpy.fromfile(job.file("held-out.bin"), "<u2")
    rows = sorted(held_out[at : at + seq + 1].tolist() for at in range(0, 7 * seq, seq))
    taken = list(TokendIterator("finite", 4, attention_mask=True, **keys))
    tokens, labels, counts = (
        torch.cat([b[k] for b in taken]) for k in ("tokens", "labels", "loss_mask")
    )
    got = sorted(tokens[i].tolist() + labels[i, -1:].tolist() for i in range(7))
    check.ok("tokens and labels", got == rows and (tokens[:7, 1:] == labels[:7, :-1]).all(), got)
    check.ok(
        "padding counts for nothing",
        counts[:7].all() and not counts[7:].any() and not labels[7:].any(),
        counts,
    )
    check.equal("its type and shape", (counts.dtype, *counts.shape), (torch.float32, 8, seq))
    mask = taken[0]["attention_mask"]
    check.ok(
        "attention_mask",
        mask.shape == (4, 1, seq, seq) and mask[3, 0, 5].tolist() == [at > 5 for at in range(seq)],
        mask,
    )

    args = types.SimpleNamespace(
        micro_batch_size=4,
        seq_length=seq,
        iteration=2,
        consumed_train_samples=16,
        create_attention_mask_in_dataloader=False,
        dataloader_save=job.file("saves[1]"),
    )
    begins(
        check,
        "from the samples consumed",
        args,
        keys,
        16,
        f"{args.dataloader_save} holds no cursor",
    )
    iteration = "iter_0000002", "mp_rank_00_000", "train_dataloader_dprank000.pt"
    skipped = TokendIterator("train", 4, start=20, **keys).save_state()
    torch.save({"dataloader_state_dict": skipped}, job.file("saves[1]", *iteration))
    begins(
        check,
        "from what --dataloader-save kept",
        args,
        keys,
        20,
        f"the cursor in {job.file('saves[1]', *iteration)}",
    )
    args.iteration = 4
    refused(
        check,
        "cursors of other iterations alone",
        args,
        keys,
        "iteration, 4",
        "load an iteration that has one",
    )
    args.iteration, args.consumed_train_samples = 2, 24
    refused(
        check, "a cursor behind the checkpoint", args, keys, "is at sample 20", "has consumed 24"
    )
    args.consumed_train_samples = 16
    args.seq_length = seq + 1
    refused(check, "another seq_length", args, keys, "seq_length", str(seq + 1), "train")


def begins(check, what, args, keys, position, why):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        iterators = [TokendIterator.from_args("train", args, **keys) for _ in range(2)]
    check.equal(what, [iterator.loader.position for iterator in iterators], [position] * 2)
    check.has(
        f"{what}: says so",
        said.getvalue(),
        f"tokend: stream 'train' begins at sample {position}: ",
        why,
    )
    check.equal(f"{what}: once", said.getvalue().count("\n"), 1)


def refused(check, what, args, keys, *said):
    try:
        check.ok(
            f"{what}: refused",
            False,
            TokendIterator.from_args("train", args, **keys).loader.position,
        )
    except ValueError as error:
        check.has(f"{what}: refused", str(error), *said)


with Job(None, check=job.check, eos=EOS, documents=True, vocab=64, streams=FINITE) as job:
    batches(job)
job.check.exit()
