"""The helpers that adapters share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tokend import Loader, Request

NO_CURSOR = "the checkpoint has no tokend cursor, because another dataloader wrote it"


def restart(loader: Loader) -> None:
    """A training begins, or the loader was put elsewhere. From now on the loader's state is that of
    its last commit(). Batches that were taken, but not trained on, come again.
    """
    if loader.taken != loader.position:
        loader.seek(loader.cursor)
    loader.commit()


def carry_out(loader: Any, save: Callable[[Request], str]) -> bool:
    """Carries out operators' requests (tokctl mix, skip, checkpoint, drain, rescale). All processes
    call it after each step. @save saves the model, and returns where. True: the job is to leave.
    """
    request = loader.control()
    if request:
        request.done(save(request))
    return bool(loader.should_stop)


def check_seq_len(loader: Loader, setting: str, seq_len: int) -> None:
    """Closes the loader and raises ValueError if its stream's seq_len is another one."""
    if loader.seq_len != seq_len:
        stream, found = loader.stream, loader.seq_len
        loader.close()
        raise ValueError(
            f"{setting}: {seq_len} is not the seq_len of stream {stream!r}, {found}; make the two "
            "equal"
        )


def shifted(batch: Any) -> Any:
    """The labels of a batch, with or without shift_labels=True."""
    return batch.get("shift_labels", batch["labels"])


def positions(batch: Any) -> torch.Tensor:
    """position_ids, also of a loader without documents."""
    if (found := batch.get("position_ids")) is not None:
        return found
    rows, seq_len = batch["input_ids"].shape
    return torch.arange(seq_len, device=batch["input_ids"].device).repeat(rows, 1)
