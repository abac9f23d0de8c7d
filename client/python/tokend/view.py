"""Batches without a copy, Loader(view=True, hold=N): each tensor is a slot of the ring itself.

>>> with Loader("train", micro_batch=4, view=True, hold=1) as loader:
...     batch = next(loader)
...     input_ids = batch["tokens"][:, :-1].long()  # a copy: widen where you need it
...     tuple(input_ids.shape), batch["tokens"].dtype
((4, 64), torch.uint16)

A batch has tokens [micro_batch, seq_len + extra], as stored: uint16 or uint32, the width of the
stream's widest dataset. torch's embedding takes neither. The width changes in mid-run if a wider
dataset is added to the config and the daemon restarts.

A ring is filled in order, so an old batch blocks the newer slots. When the next batch is taken, any
of the last `hold` may still be held, but none older. A batch is held by everything that shares its
memory (slices, .numpy()) and by autograd (an embedding saves its ids until backward).
A slot goes back to the daemon when the last tensor over it is gone, in any thread.

Never write to these tensors. In a forked child, access to one crashes: the memory is not there.
"""

from __future__ import annotations

from typing import Any

CPU = (1, 0)  # in DLPack


class Lent:
    """A DLPack capsule for NumPy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU
