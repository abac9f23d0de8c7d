"""Before a loader's first batch: checks that its rank and world fit the launcher. Before its
second: imports what it may need later.

Two mistakes would otherwise repeat or lose rows without a word. A loader that is made before
torch.distributed or jax.distributed is initialised reads every row, in every process. And in JAX a
process has several devices, so a world of devices has ranks that no process reads.
"""

from __future__ import annotations

import sys

from . import job
from ._tokend import ArgumentError


class First:
    """The place that a loader was made with. @assumed: nobody passed rank, world or mesh."""

    _ranks: dict[tuple[str, str, int], set[int]] = {}  # that this process's loaders have

    def __init__(self, assumed: bool, stream: str, run: str, rank: int, world: int) -> None:
        self._assumed, self._place = assumed, (rank, world)
        self._mine = self._ranks.setdefault((stream, run, world), set())
        self._mine.add(rank)

    def check(self, rank: int, world: int) -> Later:
        """@rank, @world: those of now, after seeks. Raises ArgumentError."""
        found = job.launched()
        if found is None or (rank, world) != self._place:
            return Later()
        if self._assumed and world == 1 < found.world:
            raise ArgumentError(
                f"rank, world: the loader was made before {found.launcher} was initialised, so it "
                f"is rank 0 of 1 instead of {found.rank} of {found.world}; make it after, or pass "
                "rank=0, world=1 if this process alone reads the stream"
            )
        if found.launcher.startswith("jax") and len(self._mine) * found.world < world:
            raise ArgumentError(
                f"world: is {world}, but JAX has {found.world} processes, and this one reads only "
                f"{len(self._mine)} of the ranks, so rows are lost; omit rank= and world=, or pass "
                "jax.process_index() and jax.process_count()"
            )
        return Later()


class Later:
    """Modules that a first batch does not need. Later calls import nothing: the package could be
    replaced while the job runs, or the process have no descriptors left.
    """

    def check(self, rank: int, world: int) -> None:
        from . import callers, control, cursor, dataset, passes, same_place  # noqa: F401

        if "accelerate" in sys.modules:
            from . import accelerated  # noqa: F401
