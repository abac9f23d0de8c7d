"""What a trainer's own logger is given: tokens, and how much of the time went to waiting for them."""

import time


class Throughput:
    """Of one loader, between two calls: for adapters, or for `wandb.log({**losses, **throughput()})` in one's own loop.

    Called, it gives the numbers since the last call (since it was made), a dict of floats:

      tokend/tokens             of all data ranks, since the loader attached or last changed its world
      tokend/tokens_per_second  of all data ranks
      tokend/wait_seconds       that this process waited for data
      tokend/wait_share         the same, of the time that went by: 0 is a trainer that never waits
    """

    def __init__(self, loader):
        self._loader = loader
        self._last = self._now()

    def _now(self):
        stats = self._loader.stats()
        return time.monotonic(), stats["tokens"], stats["waited_s"]

    def __call__(self):
        then, self._last = self._last, self._now()
        seconds, tokens, waited = (now - before for now, before in zip(self._last, then, strict=True))
        world = self._loader.world
        return {
            "tokend/tokens": float(self._last[1] * world),
            "tokend/tokens_per_second": max(0, tokens) * world / max(seconds, 1e-9),
            "tokend/wait_seconds": max(0.0, waited),
            "tokend/wait_share": min(1.0, max(0.0, waited) / max(seconds, 1e-9)),
        }
