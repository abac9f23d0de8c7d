"""What a trainer's own logger is given: tokens, and how much of the time went to waiting for
them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loader import Loader


class Throughput:
    """Of one loader, between two calls: for adapters, or for `wandb.log({**losses,
    **throughput()})` in one's own loop.

    Called, it gives the numbers since the last call (since it was made), a dict of floats:

      tokend/tokens             of all data ranks, in all
      tokend/tokens_per_second  of all data ranks
      tokend/wait_seconds       that this process waited for data
      tokend/wait_share         the same, of the time that went by: 0 is a trainer that never waits
      tokend/data_share         of the time that went by, what was spent in next(): waiting,
                                copying, transforms
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._last = self._now()
        self._tokens = self._last[1] * loader.world

    def _now(self) -> tuple[float, float, float, float]:
        stats = self._loader.stats()
        return time.monotonic(), stats["tokens"], stats["waited_s"], stats["next_s"]

    def __call__(self) -> dict[str, float]:
        then, self._last = self._last, self._now()
        seconds, tokens, waited, inside = (
            now - before for now, before in zip(self._last, then, strict=True)
        )
        tokens *= self._loader.world
        self._tokens += tokens
        seconds = max(seconds, 1e-9)
        return {
            "tokend/tokens": float(self._tokens),
            "tokend/tokens_per_second": tokens / seconds,
            "tokend/wait_seconds": waited,
            "tokend/wait_share": min(1.0, waited / seconds),
            "tokend/data_share": min(1.0, inside / seconds),
        }
