"""Megatron-LM: a datasets provider returns a TokendIterator, with `--dataloader-type external` and
`--no-create-attention-mask-in-dataloader`. Made for Megatron core 0.16 to 0.20.

    def provider(num_samples, vp_stage=None):
        return TokendIterator.from_args("train", get_args()), None, None

    provider.is_distributed = True  # called in every process; those that read attach

Processes that read: tensor-parallel rank 0 of the first and of the last pipeline stage, and each of
their context-parallel ranks. All processes of one data rank get the same rows. Each model chunk
(virtual pipeline stage) has its own iterator and cursor. Only TokendControl compares configs and
shards of the nodes, after the first step.

Keep --train-samples across restarts. With several model chunks omit `--dataloader-save`: Megatron
cannot save their iterators.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tokend import Cursor, Loader

from ..batch import IGNORE
from .shared import check_seq_len, positions, shifted

REMEDY = (
    "load a checkpoint that has a cursor in this run's directory, or name an empty one to continue "
    "from the samples consumed"
)


@functools.cache  # a process with several model chunks asks for each
def _say(line: str) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(line, flush=True)


def _begin(stream: str, args: Any) -> bytes | int:
    """Returns where to start: the cursor or position of Megatron's checkpoint. Prints which.
    Raises ValueError if they contradict each other.
    """
    consumed, iteration = args.consumed_train_samples, args.iteration
    where, at, why = consumed, consumed, "Megatron's consumed_train_samples"
    directory = iteration and getattr(args, "dataloader_save", None)
    if directory:
        file = "mp_rank_00*/train_dataloader_dprank000.pt"  # all data ranks have the same cursor
        saved = {
            torch.load(path, weights_only=True)["dataloader_state_dict"]["cursor"]: path
            for path in Path(directory).glob(f"iter_{iteration:07d}/{file}")
        }
        if len(saved) > 1:  # Megatron names the directories after the layout
            raise ValueError(
                f"dataloader_save: the cursors in {' and '.join(map(str, saved.values()))} are not "
                "equal, so some are those of a run that was rolled back; remove these"
            )
        if saved:
            ((where, path),) = saved.items()
            at, why = Cursor(where).position, f"the cursor in {path}"
        elif any(Path(directory).glob(f"iter_*/{file}")):
            raise ValueError(
                f"dataloader_save: {directory} has cursors, but none of iteration {iteration}; "
                f"{REMEDY}"
            )
        else:
            why += f" ({directory} has no cursor); right if no mix was changed and nothing skipped"
    if at < consumed:
        raise ValueError(
            f"dataloader_save: {why} is at sample {at}, but the checkpoint of {iteration} steps "
            f"has consumed {consumed}; {REMEDY}"
        )
    _say(f"tokend: stream {stream!r} begins at sample {at}: {why}")
    return where


def _document_starts(position_ids: torch.Tensor) -> torch.Tensor:
    """Returns int32 [rows, seq_len + 1]: the starts of documents in each row, then seq_len."""
    seq_len = position_ids.shape[1]
    at = torch.arange(seq_len, device=position_ids.device)
    starts = torch.where(position_ids == 0, at, seq_len).sort(1).values
    return torch.nn.functional.pad(starts, (0, 1), value=seq_len).int()


class TokendIterator:
    """An iterator of micro-batches for Megatron: dicts.

      tokens, labels, position_ids  int64 [micro_batch, seq_len]; labels are shifted
      loss_mask                     float32 [micro_batch, seq_len]: 0 where there is no label (the
                                    label is 0 there), in masked tokens and in padding rows

    seq_len    the stream's seq_len must be equal, otherwise the first batch is a ValueError
    documents  position_ids restart with each document; add cu_seqlens, int32 [micro_batch,
               seq_len + 1], starts per row, padded with seq_len; and max_seqlen, int32
               [micro_batch]. The stream needs `documents: true`
    options    of tokend.Loader: start, socket, config, run, record, … Without rank= and world=
               they come from megatron.core.parallel_state

    A process attaches when it asks for its first batch: most processes of a job never do. That
    raises what tokend.Loader raises.
    """

    def __init__(
        self,
        stream: str,
        micro_batch: int,
        *,
        seq_len: int | None = None,
        documents: bool = False,
        **options: Any,
    ) -> None:
        if "rank" not in options:
            from megatron.core import parallel_state as groups

            peers = groups.get_context_parallel_world_size()
            peer = groups.get_pipeline_model_parallel_rank() * peers
            options["peer"] = peer + groups.get_context_parallel_rank()
            options["rank"] = groups.get_data_parallel_rank()
            options["world"] = groups.get_data_parallel_world_size()
        options |= {"documents": documents, "framework": "torch"}
        self._make = functools.partial(Loader, stream, micro_batch, **options)
        self._seq, self._documents = seq_len, documents
        self._loader: Loader | None = None

    @classmethod
    def from_args(cls, stream: str, args: Any, **options: Any) -> TokendIterator:
        """Returns an iterator as Megatron's arguments say, at the position of its checkpoint.

        That is the cursor in args.dataloader_save, otherwise args.consumed_train_samples. The
        samples consumed are enough if no mix was changed and nothing was skipped. Rank 0 prints
        where it starts, and why.

        Raises:
            ValueError: the directory has cursors, but none of the checkpoint's iteration, or
                unequal ones; or its cursor is at less than the samples consumed; or the processes
                expect a mask, or positions or a loss mask by EOD tokens.
        """
        if args.create_attention_mask_in_dataloader:
            raise ValueError(
                "create_attention_mask_in_dataloader: batches have no attention_mask, because "
                "attention is causal without one; pass --no-create-attention-mask-in-dataloader"
            )
        documents = getattr(args, "dataloader_inter_document_masking", False)
        resets = () if documents else ("reset_position_ids", "reset_attention_mask")
        for flag in ("eod_mask_loss", *resets):
            if getattr(args, flag, False):
                raise ValueError(
                    f"{flag}: TokendIterator does not do it; omit it, and set loss_mask: true in "
                    "the daemon's config for a loss mask, or for positions by document pass "
                    "--dataloader-inter-document-masking"
                )
        return cls(
            stream,
            args.micro_batch_size,
            start=_begin(stream, args),
            seq_len=args.seq_length,
            documents=documents,
            **options,
        )

    @property
    def loader(self) -> Loader:
        """The Loader. Attaches at the first use. Raises ValueError if seq_len differs."""
        if self._loader is None:
            loader = self._make()
            if self._seq is not None:
                check_seq_len(loader, "seq_length", self._seq)
            self._loader = loader
        return self._loader

    def save_state(self) -> dict[str, bytes]:
        """Returns the loader's state: equal on all data ranks, valid for any number of them."""
        return self.loader.state_dict()

    def __iter__(self) -> TokendIterator:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        taken = next(self.loader)
        tokens, labels = taken["input_ids"], shifted(taken)
        batch = {
            "tokens": tokens.contiguous(),
            "labels": labels.clamp(min=0),
            "loss_mask": (labels != IGNORE).float(),
            "position_ids": positions(taken),
        }
        if self._documents:
            starts = _document_starts(batch["position_ids"])
            batch |= {"cu_seqlens": starts, "max_seqlen": starts.diff().amax(1)}
        return batch


class TokendControl:
    """Carries out operators' requests (tokctl mix, skip, checkpoint, drain, rescale).

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
    schedule. Processes that read nothing save and stop with the others. At most one of a process's
    iterators reads.
    """

    SHARED = ("number", "kind", "args", "acts_from", "error", "save", "stop")

    def __init__(self, iterators: TokendIterator | list[TokendIterator]) -> None:
        self._iterators = iterators if isinstance(iterators, list) else [iterators]
        self._group: Any = None  # of all processes
        self._source = 0  # the first process that reads
        self._loader: Loader | None = None
        self.should_stop = False  # a call has returned a drain or a rescale: the job is to leave

    def _begin(self) -> None:
        """After the first step it is known who reads: these have a group of their own."""
        self._loader = next((i._loader for i in self._iterators if i._loader is not None), None)
        reads = [False] * dist.get_world_size()
        self._group = dist.new_group(backend="gloo")
        dist.all_gather_object(reads, self._loader is not None, self._group)
        ranks = [rank for rank, reader in enumerate(reads) if reader]
        group, self._source = dist.new_group(ranks, backend="gloo"), ranks[0]
        if self._loader is not None:
            self._loader.seek(group=group)

    def __call__(self) -> Any:
        """Returns what tokend.Loader.control() returns, and raises as it does. Processes that read
        nothing get only requests that ask for a save, and those that read report them as done.
        """
        if self._group is None:
            self._begin()
        request, told = None, [None, False]
        if self._loader is not None:
            request = self._loader.control()
            fields = {name: getattr(request, name) for name in self.SHARED} if request else None
            told = [fields, self._loader.should_stop]
        dist.broadcast_object_list(told, self._source, self._group)
        fields, self.should_stop = told
        if self._loader is not None or fields is None:
            return request
        return SimpleNamespace(**fields, done=lambda text="": None)
