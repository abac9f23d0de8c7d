"""Processes that transform batches ahead of the trainer, in the order in which they are taken.

A second session of the trainer's process, which gets no requests, reads ahead; the processes of an
executor transform what it has read. The trainer's own session takes the same batches, without
copying tokens: it keeps the position, requests, records and provenance.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from . import _tokend
from .arguments import milliseconds
from .batch import FIELDS
from .cursor import SEEK, Cursor, edited
from .transform import Transform

AHEAD = 4  # batches for each process
LOOK_S = 0.1  # between two looks whether to end

_transform: Transform  # in a worker


def _begin_worker(transform: Transform, ended: Any) -> None:
    """Called first in each worker. It ends when @ended is set, and with the trainer, also while the
    function hangs.
    """
    global _transform
    _transform = transform
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and not ended.value:
            time.sleep(LOOK_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _apply(tokens: Any, fields: list[list[int]], names: list[str]) -> Any:
    _transform.apply(tokens, fields, names)
    return tokens


class Workers:
    """The source of batches transformed by @n processes, as transform.InProcess. @session: the
    arguments of their _tokend.Client, without rank, world and start. @patience: seconds that a
    batch may take, or None.
    """

    def __init__(
        self,
        client: Any,
        n: int,
        transform: Transform,
        session: dict[str, Any],
        patience: float | None,
    ) -> None:
        self._client, self._n, self._transform = client, n, transform
        self._session = {**session, "connect_ms": session["deadline_ms"]}
        self._patience = patience
        self._reader: Any = None
        self.waited_s = 0.0

    def begin(self) -> None:
        """Called after an attach or a seek. Starts other processes, because the former ones hold
        copies of the sessions' sockets.
        """
        client, shape = self._client, self._client.shape()
        self.close()
        self._ended = multiprocessing.Value("b", lock=False)
        self._processes = ProcessPoolExecutor(
            self._n, initializer=_begin_worker, initargs=(self._transform, self._ended)
        )
        self._names = Cursor(client.cursor).datasets
        self._shape = shape["rows"], shape["window_tokens"]
        # what was read, by the position after it
        self._read: deque[tuple[int, Future[Any]]] = deque()
        self._amid = False  # a batch is taken from the reader, and not yet in the deque
        place = {name: shape[name] for name in ("rank", "world", "socket", "config")}
        self._reader = _tokend.Client(
            **{**self._session, **place},
            micro_batch=shape["rows"],
            cursor=edited(SEEK, client.cursor, client.taken),
            max_wait_ms=milliseconds(self._patience) if self._patience else 0,
            helper=True,
        )
        self._read_ahead()

    def _read_ahead(self) -> None:
        """Waits only if nothing was read."""
        reader, numpy, (rows, window) = self._reader, self._transform.numpy, self._shape
        while len(self._read) < AHEAD * self._n:
            if self._read and reader.slot() is None:
                return
            tokens = numpy.empty((rows, window), numpy.int64)
            fields = numpy.empty((len(FIELDS), rows), numpy.int64)
            places = [field.ctypes.data for field in fields]
            try:
                found = reader.look_into(tokens.ctypes.data, 8, window, 0, 8, 0, 0, *places)
            except _tokend.Error:
                if self._read:  # what was read comes first
                    return
                raise
            if found is None:
                return
            work = self._processes.submit(_apply, tokens, fields.tolist(), self._names)
            self._amid = True
            reader.take(found[1])
            self._read.append((found[1], work))
            self._amid = False

    def look(self, tokens: Any, fields: Any, into: tuple[int, ...]) -> Any:
        """As transform.InProcess.look()."""
        if self._amid:
            self.begin()
        found = self._client.look_into(0, *into[1:])
        if found is None:
            return None
        begin, after = time.perf_counter(), found[1]
        while self._read and self._read[0][0] < after:  # that batch was taken
            self._read.popleft()
        try:
            self._read_ahead()
            at, work = self._read[0] if self._read else (0, Future())
            if at != after:
                raise _tokend.Error(
                    f"workers: they are at position {at} instead of {after}; report this, and seek "
                    "to continue"
                )
            made = self._result(work)
        except (BrokenProcessPool, CancelledError) as error:
            self._client.shape()  # raises if another thread has closed the loader
            raise _tokend.Error(
                "workers: a process ended, perhaps killed for its memory; make a new loader and "
                "load its last state, or seek()"
            ) from error
        finally:
            self.waited_s += time.perf_counter() - begin
        self._transform.numpy.asarray(tokens)[:] = made
        return found

    def _result(self, work: Future[Any]) -> Any:
        try:
            return work.result(self._patience)
        except TimeoutError:
            raise _tokend.WaitError(
                f"deadline: the workers made no batch within {self._patience:g} s, so "
                "the transform is slow; call next() again"
            ) from None

    def close(self) -> None:
        if self._reader is not None:
            self._processes.shutdown(wait=False, cancel_futures=True)
            self._ended.value = 1
            self._reader.close()
