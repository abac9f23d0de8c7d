"""The helpers that adapters share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from tokend import Loader, Request

NO_CURSOR = "the checkpoint has no tokend cursor, because another dataloader wrote it"


class Handed:
    """The batches that a trainer has taken, and perhaps not trained on. The loader's state is that
    after the last one that it did train on.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._after: deque[tuple[int, int]] = deque()  # (optimizer steps before it, position)
        loader.commit(loader.position)  # for a checkpoint before the first step

    def __len__(self) -> int:
        return len(self._after)

    def add(self, step: int) -> None:
        """Called after each batch. @step: the optimizer's steps that were made before it."""
        self._after.append((step, self.loader.taken))

    def stepped(self, step: float) -> None:
        """The optimizer has made @step steps."""
        while self._after and self._after[0][0] < step:
            self.loader.commit(self._after.popleft()[1])

    def restart(self) -> None:
        """The loader was put elsewhere, or a training begins. Batches that the one before took,
        but did not train on, come again.
        """
        self._after.clear()
        if self.loader.taken != self.loader.position:
            self.loader.seek(self.loader.cursor)
        self.loader.commit()


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
