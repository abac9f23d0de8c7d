"""Passes over a loader, and what the loader counts as done in a loop that fetches ahead."""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from ._tokend import ArgumentError

if TYPE_CHECKING:
    from .batch import Batches
    from .loader import Loader


class Pass:
    """What iter(loader) returns: the loader's batches until the stream ends.

    It has no close(): `yield from loader` calls that of its iterator when the generator is left
    early, and would close the loader. A pass that begins after this process saw the end begins
    again at position 0, but only when its first batch is taken: until then the state is that of the
    end. No other process is asked: all of them come here at the same step.
    """

    __slots__ = ("_begun_at", "_loader", "_number")

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._number: int | None = (
            None  # of the loader's pass that this one is; None before its first batch
        )
        self._begun_at = 0

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._number != loader._passes:
            if self._number is not None:
                raise StopIteration  # another one has begun since this one ended
            self._begin()
        try:
            return next(loader)
        except StopIteration:
            if loader.taken == self._begun_at:
                self._warn()
            raise

    def _begin(self) -> None:
        loader = self._loader
        if loader._ended:
            loader._begin_again()
        self._number, self._begun_at = loader._passes, loader.taken

    def _warn(self) -> None:
        self._begun_at = -1  # once
        warnings.warn(
            "tokend: this pass has no batches: the loader was at the stream's end, position "
            f"{self._loader.taken}, when it began; "
            "the next pass begins again at position 0",
            stacklevel=3,
        )


class Prefetched:
    """Commits for a loop that always holds @n batches which it has taken and not trained on yet."""

    def __init__(self, n: int, client: Any) -> None:
        self.n, self._client = n, client
        self._nexts: deque[int] = deque(maxlen=n + 1)  # the position after each of the last takes
        self._kept: list[Any] = []  # what was taken last, until its caller has it
        self.begin()

    def begin(self) -> None:
        """Nothing is taken yet at this place."""
        self._nexts.clear()
        self._kept.clear()
        self._client.commit(self._client.taken())

    def take(self, batches: Batches) -> Any:
        """A batch, or None for the end, which is where the loop trains on another one of those that
        it holds.

        If the commit fails, as the record cannot be written, the batch is kept: the next call
        commits again, and returns it.
        """
        if not self._kept:
            self._kept.append(batches.take())
            self._nexts.append(batches.taken)
        if len(self._nexts) > self.n:
            self._client.commit(self._nexts[0])
        return self._kept.pop()


def prefetched(n: Any, client: Any) -> Prefetched | None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ArgumentError(
            f"prefetched: {n!r}, must be the number of batches that the loop holds untrained when "
            "it saves, or 0"
        )
    return Prefetched(n, client) if n else None
