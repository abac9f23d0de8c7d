"""Batches lent without a copy: a tensor that is the slot itself.

For trainers that know how long they hold batches: when the next one is taken, of the last `hold` ones any may be held still,
and none older, for a ring is filled in its order. That counts what autograd keeps (an embedding saves its ids until backward),
and what shares the memory, such as slices and .numpy(). The slot goes back to the daemon when the last tensor over it is gone,
in whichever thread. Tokens are as they are stored: uint16 or uint32, which torch's embedding does not take: widen them where you need them.
"""

from __future__ import annotations

from typing import Any

CPU = (1, 0)  # DLPack's name of it


class _Lent:
    """A capsule, as NumPy asks for it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def begin(client: Any, hold: int) -> None:
    """From now on the client lends. HeldError, naming the slots needed, if its ring is not deeper than @hold; next_into() says
    that again after a seek, and raises HeldError, naming the hold needed, where an older batch is held when the next one is taken."""
    client.lend(hold)


def tensor(client: Any) -> Any:
    """The batch that the client's next_into(0, …) took, as a torch tensor, uint16 or uint32 [b, window]. Do not write to it."""
    import torch

    return torch.from_dlpack(client.view())


def array(client: Any) -> Any:
    """The same as a NumPy array, read-only."""
    import numpy

    return numpy.from_dlpack(_Lent(client.view()))
