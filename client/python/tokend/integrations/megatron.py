"""Megatron-LM: TokendIterator is what a datasets provider returns under `--dataloader-type
external`. Made for Megatron core 0.16 to 0.20.

    def provider(num_samples, vp_stage=None):
        return TokendIterator.from_args("train", get_args()), None, None

    provider.is_distributed = True  # it is called everywhere; who reads, attaches

Tensor-parallel rank 0 of the first and the last pipeline stage reads, each for itself, and so does
each context-parallel rank: all of one data rank get the same rows. Each model chunk (virtual
pipeline stage) has an iterator, so a cursor, of its own. With TP > 1 say
`--no-create-attention-mask-in-dataloader`, unless the mask is asked for, as from_args() does. Keep
--train-samples over a restart. Megatron itself cannot save iterators by `--dataloader-save` where
there is more than one chunk: leave that out then.
"""

from __future__ import annotations

import functools
import glob
import os
from typing import Any

import torch

from tokend import Cursor, Loader, Request
from tokend import group as groups
from tokend.control import Bystander, Control

IGNORE = -100


def _kept(directory: str, iteration: str) -> list[str]:
    """The files of that iteration that hold a cursor. All data ranks' are the same."""
    return glob.glob(
        os.path.join(
            glob.escape(directory),
            f"iter_{iteration}",
            "mp_rank_00*",
            "train_dataloader_dprank000.pt",
        )
    )


@functools.cache  # a process with several model chunks asks for each
def _say(line: str) -> None:
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        print(line, flush=True)


def _begin(stream: str, args: Any) -> bytes | int:
    """Where Megatron's checkpoint is, and why; ValueError if what it saved contradicts itself."""
    consumed, directory, iteration = (
        args.consumed_train_samples,
        getattr(args, "dataloader_save", None),
        f"{args.iteration:07d}",
    )
    where, why = consumed, "Megatron's consumed_train_samples"
    kept = _kept(directory, iteration) if directory and args.iteration else []
    if kept:
        where, why = (
            torch.load(kept[0], weights_only=True)["dataloader_state_dict"]["cursor"],
            f"the cursor in {kept[0]}",
        )
        if Cursor(where).position < consumed:
            raise ValueError(
                f"dataloader_save: the cursor in {kept[0]} is at sample {Cursor(where).position}, "
                "but the checkpoint of iteration "
                f"{args.iteration} has consumed {consumed}: they are not of one run; name its "
                "directory, or leave --dataloader-save out"
            )
    elif directory and args.iteration:
        if others := _kept(directory, "*"):
            raise ValueError(
                f"dataloader_save: of the checkpoint's iteration, {args.iteration}, {directory} "
                "holds no cursor, of others it does "
                f"({others[0]}): load an iteration that has one, or name an empty directory to go "
                "on from the samples consumed"
            )
        why += f", as {directory} holds no cursor: right if no mix was changed and nothing skipped"
    _say(
        f"tokend: stream {stream!r} begins at sample {Cursor(where).position if kept else where}: "
        f"{why}"
    )
    return where


def _document_starts(starts: torch.Tensor, rows: int, seq_len: int) -> torch.Tensor:
    """int32 [rows, seq_len + 1]: where documents begin in each row, then seq_len."""
    row = starts[:-1] // seq_len
    count = torch.bincount(row, minlength=rows)
    padded = torch.full((rows, seq_len + 1), seq_len, dtype=torch.int32)
    padded[torch.arange(seq_len + 1) < count[:, None]] = starts[:-1] - (row * seq_len).to(
        torch.int32
    )
    return padded


class TokendIterator:
    """Whole micro-batches: dicts of tokens, labels and position_ids, int64 [micro_batch, seq_len],
    and loss_mask, float32, the same shape.

    stream          its name in the daemon's config
    micro_batch     rows
    rank, world     the data-parallel ones; default from megatron.core.parallel_state
    start           "begin", the samples consumed so far, a cursor, or what save_state() returned
    seq_len         what the stream's must be; ValueError at the first batch if it is not
    attention_mask  add attention_mask, bool [micro_batch, 1, seq_len, seq_len], True where a token
                    must not look
    documents       position_ids begin again with each document, and there are cu_seqlens, int32
                    [micro_batch, seq_len + 1], each row's own, padded with seq_len, and max_seqlen,
                    int32 [micro_batch]; the stream must have `documents: true`. Instead of
                    attention_mask
    options         of tokend.Loader: socket, config, run, record, …

    Labels are shifted; where there is none, or none that counts, loss_mask is 0 and the label 0.
    Padding behind the end of a finite stream has loss_mask 0.

    A process attaches when it asks for its first batch: most processes of a job never do.
    """

    def __init__(
        self,
        stream: str,
        micro_batch: int,
        *,
        rank: int | None = None,
        world: int | None = None,
        start: Any = "begin",
        seq_len: int | None = None,
        attention_mask: bool = False,
        documents: bool = False,
        **options: Any,
    ) -> None:
        if attention_mask and documents:
            raise ValueError("attention_mask, documents: ask for one of them")
        self._peer = 0
        if rank is None:
            from megatron.core import parallel_state as groups

            rank, world = groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()
            stage = (
                groups.get_pipeline_model_parallel_rank() * groups.get_context_parallel_world_size()
            )
            self._peer = stage + groups.get_context_parallel_rank()
        self._stream, self._micro, self._rank, self._world, self._options = (
            stream,
            micro_batch,
            rank,
            world,
            options,
        )
        self._start = start["cursor"] if isinstance(start, dict) else start
        self._seq, self._mask, self._documents = seq_len, attention_mask, documents
        self._loader: Loader | None = None

    @classmethod
    def from_args(cls, stream: str, args: Any, **options: Any) -> TokendIterator:
        """As Megatron's arguments say, where its checkpoint is: args.consumed_train_samples, or the
        cursor in args.dataloader_save.

        The samples consumed are enough for a run whose mix was not changed and that skipped
        nothing; --dataloader-save keeps those, too. Rank 0 prints where it begins, and why.
        ValueError if the directory holds cursors, but none of the checkpoint's iteration, or one
        that is behind the samples consumed.
        """
        documents = getattr(args, "dataloader_inter_document_masking", False)
        mask = args.create_attention_mask_in_dataloader and not documents
        return cls(
            stream,
            args.micro_batch_size,
            start=_begin(stream, args),
            seq_len=args.seq_length,
            documents=documents,
            attention_mask=mask,
            **options,
        )

    @property
    def loader(self) -> Loader:
        """The Loader; attaches if this process has not."""
        if self._loader is None:
            loader = Loader(
                self._stream,
                self._micro,
                rank=self._rank,
                world=self._world,
                peer=self._peer,
                start=self._start,
                documents=self._documents,
                framework="torch",
                **self._options,
            )
            seq_len = loader.cursor.to_dict()["seq_len"]
            if self._seq not in (None, seq_len):
                loader.close()
                raise ValueError(
                    f"seq_length: is {self._seq}, that of stream {self._stream!r} is {seq_len}: "
                    "make them equal"
                )
            self._loader = loader
        return self._loader

    def save_state(self) -> dict[str, bytes]:
        """Where the order is, the same on all data ranks, for any number of them."""
        return self.loader.state_dict()

    def __iter__(self) -> TokendIterator:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        taken = next(self.loader)
        tokens, labels = taken["input_ids"], taken["labels"]
        rows, seq_len = tokens.shape
        batch = {
            "tokens": tokens.contiguous(),
            "labels": labels.clamp(min=0),
            "loss_mask": (labels != IGNORE).float(),
            "position_ids": taken["position_ids"]
            if self._documents
            else torch.arange(seq_len).repeat(rows, 1),
        }
        if self._documents:
            starts = _document_starts(taken["cu_seqlens"], rows, seq_len)
            batch |= {"cu_seqlens": starts, "max_seqlen": starts.diff().amax(1)}
        if self._mask:
            batch["attention_mask"] = torch.ones(rows, 1, seq_len, seq_len, dtype=torch.bool).triu(
                1
            )
        return batch


class TokendControl:
    """Carries out what an operator asks for with tokctl (mix, skip, checkpoint, drain, rescale).

        control = TokendControl(iterators)
        for step in …:
            train(data_iterator=iterators, …)
            optimizer.step()
            request = control()
            if request and request.save:
                save(…), request.done()
            if control.should_stop:
                break

    All processes of the job make one, and all call it after every step, outside of the pipeline
    schedule: those that read nothing save and stop with the others. A process reads through one of
    its iterators at most.
    """

    def __init__(self, iterators: TokendIterator | list[TokendIterator]) -> None:
        self._iterators = iterators if isinstance(iterators, list) else [iterators]
        together = groups.over(groups.of_all())
        self._control = Control(Bystander(), together, Bystander.DAEMON)

    def __call__(self) -> Request | None:
        """As tokend.Loader.control()."""
        control = self._control
        loader = next((i._loader for i in self._iterators if i._loader is not None), None)
        if loader is not None and control.client is not loader._client:
            control.client, control.daemon = loader._client, loader._control.daemon
        request = control.step()
        if request is not None and loader is not None:
            loader._measure()
        return request

    @property
    def should_stop(self) -> bool:
        """An operator asked this job to leave (drain, rescale), and the call has returned that."""
        return self._control.stopping
