"""OLMo-core: a TokendDataLoader for TrainerConfig.build(train_module, data_loader). Made for
OLMo-core 3.0.

    data_loader = TokendDataLoader("train", sequence_length=2048, global_batch_size=512 * 2048,
        dp_world_size=get_world_size(train_module.dp_process_group),
        dp_rank=get_rank(train_module.dp_process_group))

Tensor-, context- and pipeline-parallel processes of one data rank get the same rows. OLMo's
SpeedMonitor logs tokens per second, the seconds spent in next() and their share of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from olmo_core.data.data_loader import DataLoaderBase
from olmo_core.train.callbacks import Callback, CheckpointerCallback

from tokend import Loader, peers, phrases
from tokend.batch import shifted


def _document_lengths(starts: torch.Tensor, rows: int, seq_len: int) -> torch.Tensor:
    """Returns int32 [rows, documents]: the documents' lengths by row, padded with zeros."""
    row = starts[:-1] // seq_len
    count = torch.bincount(row, minlength=rows)
    lengths = torch.zeros(rows, int(count.max()), dtype=torch.int32)
    lengths[torch.arange(lengths.shape[1]) < count[:, None]] = starts.diff()
    return lengths


class TokendDataLoader(DataLoaderBase):
    """A data loader of OLMo-core. `loader` is its tokend.Loader.

    Batches are dicts of input_ids and labels, int64 [rows, sequence_length]; labels are shifted,
    -100 where there is none.

    stream             name of the stream in the daemon's config
    sequence_length    its seq_len
    global_batch_size  tokens per step over all ranks: a multiple of dp_world_size ·
                       sequence_length. OLMo keeps it when the world changes, and may change it in
                       the run (BatchSizeScheduler)
    documents          add doc_lens, int32 [rows, documents], and max_doc_lens, [int]; the stream
                       needs `documents: true`
    options            of tokend.Loader: socket, config, run, start, record, …

    An endless stream is one epoch without end: pass max_duration in steps or tokens. A finite
    stream is one epoch too, whatever its `epochs:`.

    Raises:
        ValueError: the sizes do not fit, or a second epoch begins.
        As tokend.Loader.
    """

    def __init__(
        self,
        stream: str,
        *,
        sequence_length: int,
        global_batch_size: int,
        dp_world_size: int = 1,
        dp_rank: int = 0,
        documents: bool = False,
        work_dir: str = ".",
        fs_local_rank: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            work_dir=work_dir,
            global_batch_size=global_batch_size,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
            fs_local_rank=fs_local_rank,
        )
        self._stream, self._seq, self._documents = stream, sequence_length, documents
        self._rows = self._rank_rows()
        peer, group = peers.among_all(dp_rank)
        self.loader = Loader(
            stream,
            self._rows,
            rank=dp_rank,
            world=dp_world_size,
            peer=peer,
            group=group,
            documents=documents,
            framework="torch",
            **options,
        )
        self.loader._said |= {"padding"}  # OLMo-core divides by the labels of all ranks
        seq_len = self.loader.cursor.to_dict()["seq_len"]
        if seq_len != sequence_length:
            self.loader.close()
            raise ValueError(
                phrases.seq_len_differs("sequence_length", sequence_length, stream, seq_len)
            )

    def _rank_rows(self) -> int:
        rows, rest = divmod(self.global_batch_size, self.dp_world_size * self._seq)
        if rest or not rows:
            raise ValueError(
                f"global_batch_size: {self.global_batch_size} tokens is not a multiple of "
                f"dp_world_size · sequence_length, {self.dp_world_size} · {self._seq}; pass one"
            )
        return rows

    @property
    def total_batches(self) -> int | None:
        cursor = self.loader.cursor
        if cursor.end is None:
            return None
        left = max(0, cursor.end - cursor.position)
        return self.batches_processed + -(-left // (self._rows * self.dp_world_size))

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.loader.state_dict(),
            "epoch": self._epoch,
            "batches_processed": self.batches_processed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)
        self._epoch = state_dict["epoch"]
        self.batches_processed = state_dict["batches_processed"]

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Does nothing: the stream has its own epochs, and the loader is at its cursor."""
        self._epoch = self._epoch or 1 if epoch is None else epoch
        if self._epoch > 1:
            raise ValueError(
                f"epoch {self._epoch}: stream {self._stream!r} has ended at sample "
                f"{self.loader.position}, and OLMo takes it for one epoch; pass "
                "Duration.epochs(1), or set more `epochs:` or `samples:` in the stream's config"
            )

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        while True:
            if self._rank_rows() != self._rows:  # global_batch_size has changed
                self._rows = self._rank_rows()
                self.loader.seek(micro_batch=self._rows)
            try:
                taken = next(self.loader)
            except StopIteration:
                return
            batch = {"input_ids": taken["input_ids"], "labels": shifted(taken)}
            if self._documents:
                lengths = _document_lengths(taken["cu_seqlens"], self._rows, self._seq)
                batch |= {"doc_lens": lengths, "max_doc_lens": lengths.amax(1).tolist()}
            yield batch

    def get_mock_batch(self) -> dict[str, Any]:
        """Returns zeros in the shape of a batch, and takes nothing."""
        zeros = torch.zeros(self._rank_rows(), self._seq, dtype=torch.int64)
        batch: dict[str, Any] = {"input_ids": zeros, "labels": zeros.clone()}
        if self._documents:
            whole = torch.full((len(zeros), 1), self._seq, dtype=torch.int32)
            batch |= {"doc_lens": whole, "max_doc_lens": [self._seq] * len(zeros)}
        return batch

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        return self.global_batch_size


@dataclass
class TokendCallback(Callback):
    """Carries out operators' requests (tokctl mix, skip, checkpoint, drain, rescale) after each
    step. Raises what tokend.Loader.control() raises.
    """

    def post_step(self) -> None:
        loader = self.trainer.data_loader.loader
        request = loader.control()
        if request is not None and request.save:
            self._save()
            name = self.trainer.checkpointer.checkpoint_dirname(self.step)
            request.done(f"{self.trainer.save_folder}/{name}")
        if loader.should_stop and not self.trainer.is_canceled:
            self.trainer.cancel_run("an operator asked for it", no_sync=True)

    def _save(self) -> None:
        """Saves this step, unless OLMo is saving it already in the background."""
        saves = next(
            (
                c
                for c in self.trainer.callbacks.values()
                if isinstance(c, CheckpointerCallback) and c.enabled
            ),
            None,
        )
        if saves is None:
            self.trainer.save_checkpoint()
        else:
            # saves unless this step is saved or about to be, and waits until it is
            saves.post_train()
