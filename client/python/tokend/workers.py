"""Processes that transform rows ahead of the trainer, in the same order as one process would.

They are the workers of a torch DataLoader. Each of n workers reads in a session that gets no
requests, as rank j·world + r of n·world: such a rank takes every n-th of the trainer's batches, and
the DataLoader asks the workers in turn. After a seek, a mix or a skip other workers are started.

The trainer's own session takes the same batches, without copying tokens. It keeps the position,
requests, records and provenance, and each worker's batch must be at its position.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from . import _tokend
from .batch import FIELDS
from .cursor import SEEK, edited
from .errors import Error, WaitError
from .transform import Transform

AHEAD = 4  # batches of a worker
LOOK_S = 0.1  # between two looks whether to end


# ---- a worker ----


class Rows(IterableDataset):  # type: ignore[type-arg]
    """The batches of a worker: (position, tokens) of each, or (None, error) at last. @place: the
    trainer's arguments of _tokend.Client. @ended: a shared tensor, not 0 when workers are to end.
    """

    def __init__(self, place: dict[str, Any], transform: Transform, window: int, ended: Any):
        self._place, self._transform, self._window, self.ended = place, transform, window, ended

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        info: Any = get_worker_info()
        place, n = self._place, info.num_workers
        rank, world = info.id * place["world"] + place["rank"], n * place["world"]
        try:
            client = _tokend.Client(**{**place, "rank": rank, "world": world}, helper=True)
            while (made := self._next(client)) is not None:
                yield made
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)  # pickle drops its cause
            yield None, error

    def _next(self, client: Any) -> tuple[Any, Any] | None:
        rows = self._place["micro_batch"]
        tokens = torch.empty((rows, self._window), dtype=torch.int64)
        fields = torch.empty((len(FIELDS), rows), dtype=torch.int64)
        places = tokens.data_ptr(), 8, 0, 8, 0, 0, fields.data_ptr()
        found = client.look_into(rows, self._window, *places)
        if found is None:
            return None
        client.takes = found[1], False
        positions = fields[0].tolist()
        self._transform.apply(tokens, positions)
        return positions[0], tokens


def _begin_worker(_: int) -> None:
    """Called first in each worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it
    info: Any = get_worker_info()
    parent, ended = os.getppid(), info.dataset.ended

    def watch() -> None:
        """Ends with the trainer, also while this process waits for a daemon or transforms."""
        while os.getppid() == parent and not int(ended[0]):
            time.sleep(LOOK_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


# ---- the trainer's side ----


class Workers:
    """The rows as transformed by @n processes. @arguments: those of their _tokend.Client, without
    rank, world and start. @patience: seconds that a batch may take, or None.
    """

    def __init__(
        self,
        client: Any,
        n: int,
        transform: Transform,
        arguments: dict[str, Any],
        patience: float | None,
    ) -> None:
        self._client, self._n, self._transform, self._patience = client, n, transform, patience
        self._arguments = {**arguments, "connect_ms": arguments["deadline_ms"]}
        self._ended = torch.zeros(1, dtype=torch.int64)
        self._results: Any = None  # the DataLoader's iterator, which has the processes
        self._held: tuple[int, int, Any] | None = None  # `taken`, and a result at it
        self.waited_s = 0.0

    def begin(self) -> None:
        """Called after an attach or a seek."""
        self.close()
        status = self._client.status()
        place = {
            **self._arguments,
            **{name: status[name] for name in ("rank", "world", "socket", "config")},
            "micro_batch": status["rows"],
            "cursor": edited(SEEK, self._client.cursor, status["taken"]),
        }
        self._ended = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._results = iter(
            DataLoader(
                Rows(place, self._transform, status["window_tokens"], self._ended),
                batch_size=None,
                num_workers=self._n,
                prefetch_factor=AHEAD,
                timeout=self._patience or 0,
                worker_init_fn=_begin_worker,
            )
        )

    def look(self, tokens: Any, fields: Any, into: tuple[int, ...]) -> Any:
        """look_into(*into), with the transformed rows in @tokens, int64 [b, window], and their
        origin in @fields. It may be called again for the same batch.
        """
        here = self._client.status()["taken"]  # raises in a forked child, or if it is closed
        if self._results is None:  # an error, or an interrupted call: a result may be lost
            self.begin()
        held = self._held
        if held is None or here != held[0]:  # that batch was taken
            results, self._results = self._results, None
            held = self._held = here, *self._next(results)
            self._results = results
        found = self._client.look_into(*into[:2], 0, *into[3:])
        if found is None:
            return None
        _, position, made = held
        if position != int(fields[0][0]):
            raise Error(
                f"workers: a worker is at position {position} instead of {int(fields[0][0])}; "
                "report this, and seek to continue"
            )
        tokens[:] = made if isinstance(tokens, torch.Tensor) else made.numpy()
        return found

    def _next(self, results: Any) -> tuple[int, Any]:
        """The next result; (-1, None) at the stream's end."""
        begin = time.perf_counter()
        try:
            position, made = next(results, (-1, None))
        except RuntimeError as error:
            self._client.status()  # raises if another thread has closed the loader
            text = str(error).partition("\n")[0]
            if "timed out" in text:
                self._results = results  # none is lost
                raise WaitError(
                    f"deadline: the workers made no batch within {self._patience:g} s, so storage "
                    "or the transform is slow; see tokctl status, and call next() again"
                ) from None
            self.close()
            raise Error(
                f"workers: {text}; call next() again, which starts new ones, or make a new loader "
                "from its last state"
            ) from error
        finally:
            self.waited_s += time.perf_counter() - begin
        if isinstance(made, Exception):
            raise made
        return position, made

    def close(self) -> None:
        """Ends the processes. Another thread may call it."""
        self._ended[0] = 1
        self._results = self._held = None
