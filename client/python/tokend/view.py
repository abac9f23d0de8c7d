"""Batches lent without a copy: a tensor that is the slot itself. Loader(view=True, hold=N).

For trainers that know how long they hold batches: when the next one is taken, of the last `hold`
ones any may be held still, and none older, for a ring is filled in its order. That counts what
autograd keeps (an embedding saves its ids until backward), and what shares the memory, such as
slices and .numpy(). The slot goes back to the daemon when the last tensor over it is gone, in
whichever thread. Tokens are uint16 or uint32, the width of the stream's widest dataset. It becomes
another one in mid-run if a wider dataset is added to the config and the daemon restarts. torch's
embedding does not take these types: widen tokens where you need them. Do not write to them. A
forked child does not have the memory: to look at one there is a crash.
"""

from __future__ import annotations

from typing import Any

CPU = (1, 0)  # DLPack's name of it


class Lent:
    """A capsule, as NumPy asks for it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU
