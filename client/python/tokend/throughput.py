"""Metrics for a trainer's logger: tokens, and the share of time spent waiting for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loader import Loader


class Throughput:
    """Rates of one loader since the last call.

    >>> from tokend.throughput import Throughput
    >>> with Loader("train", micro_batch=4) as loader:
    ...     throughput = Throughput(loader)
    ...     for step, batch in zip(range(10), loader):
    ...         pass
    ...     metrics = throughput()  # wandb.log({**losses, **throughput()})
    >>> metrics["tokend/tokens"]
    2600.0

    A call returns a dict of floats. All but the first are since the last call:

      tokend/tokens             of all data ranks, since the loader was made
      tokend/tokens_per_second  of all data ranks
      tokend/wait_seconds       this process's wait for data
      tokend/wait_share         the same as a share of the time: 0 for a trainer that never waits
      tokend/data_share         share of the time spent in next(): waiting, copying, transforms
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
