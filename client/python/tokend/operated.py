"""The part of a Loader that operators and loggers use: control(), should_stop and stats()."""

from __future__ import annotations

from typing import Any

import tokend

from . import _tokend
from . import group as groups

COUNTERS = ("batches", "tokens", "waited_s", "reattached", "lost_wakes")


class Operated:
    """A Loader inherits this."""

    _client: Any
    _control: Any
    _source: Any
    _rank: int
    _world: int
    _alone: bool
    _inside: float
    _measure: Any

    def control(self) -> tokend.Request | None:
        """Carries out an operator's request (tokctl mix, skip, checkpoint, drain, rescale).

        Every process of the job calls it after every step. About once a second, and at least every
        64 steps, the processes look for a request together, by an all-reduce of 32 bytes that
        nobody waits for.

        >>> loader = Loader("train", micro_batch=4)
        >>> for step, batch in zip(range(100), loader):
        ...     request = loader.control()
        ...     if request:
        ...         torch.save(loader.state_dict(), "checkpoint.pt")
        ...         request.done()
        ...     if loader.should_stop:
        ...         break
        >>> loader.close()

        Returns:
            A Request, or None. It is true only if it asks for a save: save the model, then call
            done(), in all processes. If the loop goes on or ends without done(), the request is
            reported as failed. Mix and skip are already carried out, on all ranks at the same step.
            A request that failed has changed nothing on any rank; its `error` says why.

        Raises:
            ArgumentError: the job has several processes, and the loader has no group of them.
            Error: the loader is closed.

        A process that never calls control() keeps the others from requests, not from training.
        """
        if self._control.group is None and not self._alone:
            self._client.position()  # raises if the loader is closed, or in a forked child
            raise _tokend.ArgumentError(
                f"control: rank {self._rank} of {self._world} in a job of "
                f"{max(self._world, groups.processes())} processes has no group of them; pass "
                "group=, a gloo group of all processes that read this stream (in JAX "
                "tokend.integrations.jax.group())"
            )
        request = self._control.step()
        if request is not None:
            self._measure()
        return request

    @property
    def should_stop(self) -> bool:
        """True once control() has returned a drain or a rescale: the job is to leave.

        A seek() makes it False again. Where processes act together, a loop that goes on for 64
        steps gets a warning, and requests again.
        """
        return "_control" in vars(self) and self._control.stopping

    def stats(self) -> dict[str, float]:
        """Counters of this process since the loader was made.

        Returns:
            batches, tokens  taken so far; a row counts with its whole window
            waited_s         seconds that next() waited for the daemon or for workers
            next_s           seconds spent in next(): waiting, copying, transforms
            reattached       how often the daemon was lost and found again
            lost_wakes       wake-ups that never came; more than 0 is a bug of tokend
            pinned_bytes     bytes of the ring registered with CUDA. With device="cuda", 0
                             means that copies are slower

        Raises:
            Error: the loader is closed.

        tokend.throughput.Throughput turns them into rates for a logger.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     batch = next(loader)
        ...     loader.stats()["tokens"]
        260
        """
        shape = self._client.shape()
        stats = {name: shape[name] for name in COUNTERS}
        if self._source is not None:
            stats["waited_s"] += self._source.waited_s
        pinned = 0 if self._feed is None else self._feed.pinned_bytes
        return {**stats, "pinned_bytes": pinned, "next_s": self._inside}
