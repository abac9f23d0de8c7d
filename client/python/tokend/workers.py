"""Processes that transform rows ahead of the trainer, in the same order as one process would.

They are the workers of a torch DataLoader. Its task number m is the m-th batch since the last seek.
One of n workers makes it in an ordinary session, as rank j·world + r of n·world, with j = m mod n:
such a rank takes every n-th of the trainer's batches. The DataLoader returns the results in the
order of the tasks. A seek begins another generation; older tasks are skipped.

The trainer's own session takes the same batches, without copying tokens. It keeps the position,
requests, records and provenance, and each worker's batch must be at its position.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _tokend, phrases
from .batch import FIELDS
from .cursor import SEEK, edited
from .transform import Transform

AHEAD = 4  # batches of a worker
CLOSED = -1  # in place of the newest generation: workers end
LOOK_S = 0.1  # between two looks whether to end


class Task(NamedTuple):
    generation: int
    number: int  # of the batch, since the seek
    cursor: bytes
    position: int  # of batch 0
    rank: int
    world: int
    micro: int
    window: int


# ---- a worker ----


class Session:
    """The DataLoader's dataset: makes the batch of a task. @newest: a shared tensor of one number,
    the newest generation.
    """

    def __init__(self, arguments: dict[str, Any], transform: Transform, newest: Any) -> None:
        self._arguments, self._transform, self.newest = arguments, transform, newest
        self._client: Any = None
        self._next = (0, 0)  # generation and number of its next batch

    def __getitem__(self, task: Task) -> tuple[int, Any, Any]:
        """Returns the generation, the batch's position, and its tokens or an error."""
        if task.generation != int(self.newest[0]):
            return task.generation, None, None
        try:
            return (task.generation, *self._make(task))
        except Exception as error:
            self._next = (0, 0)
            return task.generation, None, _portable(error)

    def _make(self, task: Task) -> tuple[Any, Any]:
        import torch
        from torch.utils.data import get_worker_info

        info: Any = get_worker_info()
        if self._next != (task.generation, task.number):
            self._seek(task, info.num_workers)
        self._next = task.generation, task.number + info.num_workers
        tokens = torch.empty((task.micro, task.window), dtype=torch.int64)
        fields = [torch.empty(task.micro, dtype=torch.int64) for _ in FIELDS]
        places = [field.data_ptr() for field in fields]
        found = self._client.look_into(tokens.data_ptr(), 8, task.window, 0, 8, 0, 0, *places)
        if found is None:  # the trainer knows the stream's length
            return None, None
        self._client.takes = (found[1],)
        rows = [field.tolist() for field in fields]
        self._transform.apply(tokens.numpy(), rows, self._client.datasets)
        return rows[0][0], tokens

    def _seek(self, task: Task, n: int) -> None:
        turn, j = divmod(task.number, n)
        position = task.position + turn * n * task.world * task.micro
        cursor = edited(SEEK, task.cursor, position)
        rank, world = j * task.world + task.rank, n * task.world
        if self._client is None:
            place = {"rank": rank, "world": world, "micro_batch": task.micro, "cursor": cursor}
            self._client = _tokend.Client(helper=True, **place, **self._arguments)
        else:
            self._client.seek(cursor, rank, world, task.micro)


def _begin_worker(_: int) -> None:
    """Called first in each worker."""
    from torch.utils.data import get_worker_info

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it
    info: Any = get_worker_info()
    parent, newest = os.getppid(), info.dataset.newest

    def watch() -> None:
        """Ends with the trainer, also while this process waits for a daemon or transforms."""
        while os.getppid() == parent and int(newest[0]) != CLOSED:
            time.sleep(LOOK_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _portable(error: Exception) -> Exception:
    """The error as it can be pickled. Its traceback goes to stderr."""
    traceback.print_exception(error, file=sys.stderr)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return _tokend.Error(f"workers: {type(error).__name__}: {error}")
    return error


# ---- the trainer's side ----


class Workers:
    """The source of batches transformed by @n processes, as transform.InProcess. @arguments: those
    of their _tokend.Client, without rank, world and start. @patience: seconds that a batch may
    take, or None.
    """

    def __init__(
        self,
        client: Any,
        n: int,
        transform: Transform,
        arguments: dict[str, Any],
        patience: float | None,
    ) -> None:
        try:
            import torch
        except ModuleNotFoundError:
            raise ImportError(
                f"workers: torch is not installed; {phrases.install('torch')}, or pass workers=0"
            ) from None
        arguments = {**arguments, "connect_ms": arguments["deadline_ms"]}
        self._newest = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._data = torch.utils.data.DataLoader(
            Session(arguments, transform, self._newest),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self,  # type: ignore[arg-type]
            num_workers=n,
            prefetch_factor=AHEAD,
            timeout=patience or 0,
            worker_init_fn=_begin_worker,
        )
        self._numpy, self._client, self._patience = transform.numpy, client, patience
        self._results: Any = None  # the DataLoader's iterator, which has the processes
        self.waited_s = 0.0

    def __iter__(self) -> Iterator[Task]:
        """The tasks, for the DataLoader."""
        while True:
            task = self._task
            self._task = task._replace(number=task.number + 1)
            yield task

    def begin(self) -> None:
        """Called after an attach or a seek."""
        client, shape = self._client, self._client.shape()
        if self._amid:  # a call was interrupted, and the DataLoader may have lost a result
            self._results = None
        self._newest += 1
        self._at = client.taken  # when a result was taken from the DataLoader
        place = shape["rank"], shape["world"], shape["rows"], shape["window_tokens"]
        self._task = Task(int(self._newest[0]), 0, client.cursor, self._at, *place)
        self._failed: Exception | None = None
        self._held: tuple[Any, Any] | None = None  # position and tokens of a result
        if self._results is None:
            self._results = iter(self._data)
        self._amid = False

    _amid = False

    def look(self, tokens: Any, fields: Any, into: list[int]) -> Any:
        """As transform.InProcess.look()."""
        client = self._client
        here = client.taken  # raises in a forked child, or if the loader is closed
        if self._amid:
            self.begin()
        if self._failed is not None:
            raise self._failed
        if self._held is None or here != self._at:  # that batch was taken
            self._amid = True
            result = self._next()
            self._held, self._at = result, here
            self._amid = False
        found = client.look_into(0, *into[1:])
        if found is None:
            return None
        position, made = self._held
        if position != int(fields[0][0]):
            raise _tokend.Error(
                f"workers: a worker is at position {position} instead of {int(fields[0][0])}; "
                "report this, and seek to continue"
            )
        self._numpy.asarray(tokens)[:] = made.numpy()
        return found

    def _next(self) -> tuple[Any, Any]:
        """The next result of this generation."""
        begin, generation = time.perf_counter(), None
        try:
            while generation != self._task.generation:
                generation, position, made = next(self._results)
        except RuntimeError as error:
            text = str(error).partition("\n")[0]
            if int(self._newest[0]) == CLOSED:
                raise _tokend.Error(phrases.CLOSED) from None
            if "timed out" in text:  # no result is lost
                self._amid = False
                raise _tokend.WaitError(
                    f"deadline: the workers made no batch within {self._patience:g} s, so storage "
                    "or the transform is slow; see tokctl status, and call next() again"
                ) from None
            self._failed = _tokend.Error(
                f"workers: {text}; make a new loader and load its last state, or seek()"
            )
            raise self._failed from error
        finally:
            self.waited_s += time.perf_counter() - begin
        if isinstance(made, Exception):
            self._amid, self._failed = False, made
            raise made
        return position, made

    def close(self) -> None:
        self._newest[0] = CLOSED
        self._results = None
