"""Processes that transform rows ahead of the trainer, in the same order as one process would.

They are the workers of a torch DataLoader. Each of n workers reads in a session that gets no
requests, as rank j·world + r of n·world: such a rank takes every n-th of the trainer's batches, and
the DataLoader asks the workers in turn. After a seek, a mix or a skip other workers are started.

The trainer's own session takes the same batches, without copying tokens. It keeps the position,
requests, records and provenance, and each worker's batch must be at its position.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from . import _tokend
from .batch import FIELDS
from .cursor import SEEK, edited
from .errors import ArgumentError, Error, WaitError
from .transform import Transform

AHEAD = 4  # batches of a worker
LOOK_S = 0.1  # between two looks at whether to end, or whether a worker has
# Slurm and terminals send these to all processes of a job: the trainer handles them, and may save
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


# ---- a worker ----


class Rows(IterableDataset):  # type: ignore[type-arg]
    """The batches of a worker: (position, tokens) of each, or (None, error) at last. @place: the
    trainer's arguments of _tokend.Client. @ended: in shared memory, not 0 when workers are to end.
    """

    def __init__(self, place: dict[str, Any], transform: Transform, window: int, ended: Any):
        self._place, self._transform, self._window, self._ended = place, transform, window, ended

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for number in SIGNALS:  # not a mask: a spawned worker has NumPy's threads
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=self._watch, daemon=True).start()
        info: Any = get_worker_info()
        place, n, rows = self._place, info.num_workers, self._place["micro_batch"]
        rank, world = info.id * place["world"] + place["rank"], n * place["world"]
        try:
            client = _tokend.Client(**{**place, "rank": rank, "world": world}, helper=True)
            while True:
                try:  # while a batch is sent, a failure would only be printed
                    tokens = torch.empty((rows, self._window), dtype=torch.int64).share_memory_()
                except RuntimeError as error:
                    raise Error(f"workers: {error}; enlarge /dev/shm, or pass fewer") from error
                fields = [torch.empty(rows, dtype=torch.int64) for _ in FIELDS]
                places = [field.data_ptr() for field in fields]
                into = tokens.data_ptr(), 8, self._window, 0, 8, 0, 0, *places
                found = client.look_into(client.shape()["version"], *into)
                if found is None:
                    return
                if not found:  # a new daemon
                    continue
                self._transform.apply(client, tokens, fields)
                client.takes = found[1], False
                yield int(fields[0][0]), tokens
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)  # pickle drops its cause
            yield None, error

    def _watch(self) -> None:
        """Ends with the trainer, also while this process waits for a daemon or transforms."""
        # a trainer that has ended already is not the parent, and other workers may hide its end
        trainer: Any = multiprocessing.parent_process()
        parent = os.getppid()
        while trainer.is_alive() and os.getppid() == parent and not self._ended.value:
            time.sleep(LOOK_S)
        os._exit(0)


# ---- the trainer's side ----


class Workers:
    """Batches transformed by @n processes. @arguments: those of their _tokend.Client, without rank,
    world and start. @patience: seconds that a batch may take, or None.
    """

    def __init__(
        self,
        client: Any,
        n: int,
        transform: Transform,
        arguments: dict[str, Any],
        patience: float | None,
    ) -> None:
        # without a choice, the first is the default; to ask for that would choose it for good
        first = multiprocessing.get_all_start_methods()[0]
        method = multiprocessing.get_start_method(allow_none=True) or first
        try:
            if method != "fork":
                pickle.dumps(transform)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                f"transform: {error}, so it cannot be passed to workers, which Python starts by "
                f"{method}; pass a function of a module, or workers=0, or first call "
                "multiprocessing.set_start_method('fork')"
            ) from None
        self._client, self._n, self._transform, self._patience = client, n, transform, patience
        self._arguments = {**arguments, "connect_ms": arguments["deadline_ms"]}
        self._ended = multiprocessing.RawValue("b")
        # the DataLoader's iterator, which has the processes; None: begin() makes one
        self._results: Any = None
        self._closed = False
        self.waited_s = 0.0

    def begin(self) -> None:
        """Called after an attach or a move."""
        client, shape = self._client, self._client.shape()
        self._end_workers()
        self._held: tuple[Any, Any] = None, None  # the last result taken from the DataLoader
        place = {
            **self._arguments,
            **{name: shape[name] for name in ("rank", "world", "socket", "config")},
            "micro_batch": shape["rows"],
            "cursor": edited(SEEK, client.cursor, client.taken),
        }
        self._ended = multiprocessing.RawValue("b")
        loader = DataLoader(
            Rows(place, self._transform, shape["window_tokens"], self._ended),
            batch_size=None,
            num_workers=self._n,
            prefetch_factor=AHEAD,
            timeout=LOOK_S,
            generator=torch.Generator("cpu"),  # the trainer's random numbers stay as they are
        )
        # In the main thread torch installs a handler that raises wherever the trainer is when a
        # worker ends. Another thread must not fork: nobody would release the locks of this one.
        former = signal.getsignal(signal.SIGCHLD)
        try:
            with torch.inference_mode(False), torch.device("cpu"):  # forked workers inherit these
                self._results = iter(loader)
        finally:
            if former not in (None, signal.getsignal(signal.SIGCHLD)):  # None: one of C
                signal.signal(signal.SIGCHLD, former)
        # Python's exit sends SIGTERM and waits; before that it calls this
        Finalize(self._results, setattr, (self._ended, "value", 1), exitpriority=0)

    def look(self, tokens: Any, fields: Any, into: tuple[int, ...]) -> Any:
        """look_into(*into), with the transformed rows in @tokens, int64 [b, window], and their
        origin in @fields. It may be called again for the same batch.
        """
        found = self._client.look_into(into[0], 0, *into[2:])
        if not found:
            return found
        here = int(fields[0][0])
        if here != self._held[0]:  # the batch before was taken
            if self._results is None:
                self.begin()
            # if this call raises, a result may be lost, and the next one starts others
            results, self._results = self._results, None
            held = self._next(results)
            if self._results is not None:  # a handler called next() meanwhile, and began others
                return False
            self._held, self._results = held, results
        position, made = self._held
        if position != here:
            raise Error(
                f"workers: a worker is at position {position} instead of {here}; report this, and "
                "seek to continue"
            )
        torch.as_tensor(tokens, device="cpu")[:] = made  # whatever the default device
        return found

    def _next(self, results: Iterator[Any]) -> tuple[Any, Any]:
        """The next result; (None, None) at the stream's end."""
        begin = time.perf_counter()
        try:
            while (found := self._try(results)) is None:
                if self._patience is not None and time.perf_counter() - begin >= self._patience:
                    if self._results is None:
                        self._results = results  # none is lost
                    raise WaitError(
                        f"deadline: the workers made no batch within {self._patience:g} s, so "
                        "storage or the transform is slow; see tokctl status, and call next() again"
                    )
        finally:
            self.waited_s += time.perf_counter() - begin
        if isinstance(found[1], Exception):
            raise found[1]
        return found

    def _try(self, results: Iterator[Any]) -> Any:
        """The next result, or None if there is none after LOOK_S."""
        try:
            return next(results, (None, None))
        except (RuntimeError, ConnectionError, EOFError) as error:
            text = str(error).partition("\n")[0]
            if self._closed:
                raise Error("closed: this loader was closed; make a new one") from None
            if not isinstance(error, RuntimeError):
                text = "one ended while it sent a batch"
            elif "timed out" in text:
                return None
            self._end_workers()
            raise Error(f"workers: {text}; call next() again to start others") from error

    def _end_workers(self) -> None:
        self._ended.value = 1
        self._results = None

    def close(self) -> None:
        self._closed = True
        self._end_workers()
