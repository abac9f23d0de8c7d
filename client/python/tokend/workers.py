"""Processes that transform rows ahead of the trainer, in the same order as one process would.

Worker j of n is an ordinary session with rank j·world + r of n·world (order.md, 6). Its m-th batch
is the trainer's (m·n + j)-th, so the trainer takes one from each in turn. A worker writes its batch
to a slot in shared memory and reports it on a socket. The trainer copies it and frees the slot.

The trainer's own session takes the same batches, without copying tokens. It keeps the position,
requests, records and provenance, and each worker's batch must be at its position.

A worker ends when its socket is closed, which also the trainer's death does. Workers are started as
programs, not forked. They import the trainer's main module only if the transform is defined there.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import weakref
from collections import deque
from typing import Any

from . import _tokend, phrases
from .cursor import SEEK, edited
from .transform import Transform, WorkerError, needs_numpy

SLOTS = 4  # batches that a worker may be ahead
NO_BATCH = -1
READY = struct.Struct("<cQQq")  # "R", generation, slot, position of row 0
FREE = struct.Struct("<cQQ")  # "F", generation, slot
PATIENCE_S = 3.0  # for a worker to end by itself
PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # as -P, which came with Python 3.11
    "import json; sys.path[:] = json.loads(sys.argv[3]); "
    "from tokend.workers import main; main()"
)
MESSAGE_BYTES = 256 * 1024  # at most; a cursor has at most 96 KiB

_is_worker = False


# ---- the trainer's side ----


def _preparation(transform: Any) -> tuple[bytes, dict]:
    """Returns the pickled transform, and what a worker needs to unpickle it."""
    try:
        pickled = pickle.dumps(transform)
    except Exception as error:
        raise _tokend.ArgumentError(
            f"transform: {transform!r} cannot be sent to worker processes ({error}); define it at "
            "the top level of a module, or pass workers=0"
        ) from None
    needs: dict[str, Any] = {"sys_argv": sys.argv}
    # __mp_main__: the main module of a process that multiprocessing has spawned
    if b"__main__" in pickled or b"__mp_main__" in pickled:
        from multiprocessing import spawn

        given = spawn.get_preparation_data("tokend")
        main = {
            name: given[name]
            for name in ("init_main_from_name", "init_main_from_path")
            if name in given
        }
        if not main or not os.path.isfile(main.get("init_main_from_path", __file__)):  # "<stdin>"
            raise _tokend.ArgumentError(
                f"transform: {transform!r} is not in a file, so workers cannot import it; move it "
                "to a module, or pass workers=0"
            )
        needs.update(main)
    return pickled, needs


class _Worker:
    """A worker process. @task: bytes that it reads from the shared memory at its start."""

    def __init__(self, number: int, of: int, task: bytes) -> None:
        self.what = f"worker {number} of {of}"
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.memory = os.memfd_create("tokend-worker")
        self.map: mmap.mmap | None = None
        try:
            with open(self.memory, "wb", closefd=False) as file:
                file.write(task)
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    PROGRAM,
                    str(theirs.fileno()),
                    str(self.memory),
                    json.dumps(sys.path),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.memory),
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        except OSError as error:
            self.connection.close()
            os.close(self.memory)
            raise WorkerError(
                f"workers: {self.what} cannot be started: {error}; pass fewer workers"
            ) from None
        finally:
            theirs.close()

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed by the next read
            self.connection.send(message)

    def resize(self, n: int) -> None:
        if os.fstat(self.memory).st_size < n:
            os.ftruncate(self.memory, n)
        if self.map is None or len(self.map) < n:
            self.map = mmap.mmap(self.memory, n)

    def limit(self, seconds: float | None) -> None:
        """A wait for its next message then ends with a BlockingIOError."""
        if seconds is not None:
            whole, part = divmod(max(1, round(seconds * 1e6)), 1_000_000)
            self.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, part)
            )

    def ended(self) -> WorkerError:
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        how = (
            "closed its connection"
            if code is None
            else f"ended with status {code} (its message is on stderr)"
        )
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return WorkerError(
            f"workers: {self.what} (pid {self.process.pid}) {how}; {phrases.FROM_STATE}"
        )


def _closed() -> _tokend.Error:
    return _tokend.Error(phrases.CLOSED)


def _end(owner: int, workers: list[_Worker]) -> None:
    """Ends all workers; kills those that do not end by themselves."""
    ours = os.getpid() == owner
    for worker in workers:
        with contextlib.suppress(OSError):
            if ours:  # in a forked child the connection belongs to the parent
                worker.connection.shutdown(socket.SHUT_RDWR)  # wakes another thread that waits
            worker.connection.close()
        with contextlib.suppress(OSError):
            os.close(worker.memory)
        worker.map = None
    if ours:
        for end in (lambda process: None, subprocess.Popen.terminate, subprocess.Popen.kill):
            for worker in workers:
                end(worker.process)
            give_up = time.monotonic() + PATIENCE_S
            for worker in workers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, give_up - time.monotonic()))
    workers.clear()


class Workers:
    """The source of batches transformed by @n processes. @session: arguments of their
    _tokend.Client, without rank, world and start.
    """

    def __init__(
        self,
        client: Any,
        n: int,
        transform: Any,
        seed: int,
        session: dict,
        greatest: int,
        max_wait: float | None,
    ) -> None:
        if _is_worker:
            raise WorkerError(
                "workers: this process is a worker itself; put the program's code under if "
                '__name__ == "__main__":'
            )
        self._numpy, self._client, self._n = needs_numpy(), client, n
        self._generation = self._next = 0
        self._failed: Exception | None = None
        self._max_wait = max_wait
        self.waited_s = 0.0
        session = {**session, "connect_ms": session["deadline_ms"]}
        task = pickle.dumps((*_preparation(transform), seed, session, greatest))
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._workers)
        try:
            for j in range(n):
                self._workers.append(_Worker(j, n, task))
                self._workers[j].limit(max_wait)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        self._begin(self._client.shape()["batches_in_all"])

    def _begin(self, left: int | None) -> None:
        client, shape = self._client, self._client.shape()
        self._micro, self._window = shape["rows"], shape["window_tokens"]
        self._amid = True  # a call has begun and has not ended
        self._left, self._next = left, 0
        self._begun = self._after = client.taken()  # _after: the position after the last look()
        self._step = self._micro * shape["world"]
        self._bytes = 8 * self._micro * self._window
        self._generation += 1
        if self._workers:  # they are alive
            self._failed = None
        cursor = edited(SEEK, client.cursor(), client.taken())
        for j, worker in enumerate(self._workers):
            worker.resize(SLOTS * self._bytes)
            rank, world = j * shape["world"] + shape["rank"], self._n * shape["world"]
            worker.send(
                b"S"
                + pickle.dumps((self._generation, cursor, rank, world, self._micro, self._window))
            )
        self._amid = False

    def _receive(self, worker: _Worker) -> tuple[int, int]:
        """Waits for the next batch of @worker. Returns (slot, position)."""
        while True:
            try:
                message = worker.connection.recv(MESSAGE_BYTES)
            except BlockingIOError:
                self._amid = False  # no message is lost
                raise _tokend.WaitError(
                    f"max_wait: {worker.what} made no batch within {self._max_wait:g} s, so "
                    "storage or its transform is slow; see tokctl status, and call next() again"
                ) from None
            except ConnectionResetError:  # it died with unread messages; its own are still there
                continue
            except OSError:
                if self._finalizer.alive:  # of a signal's handler, for example its TimeoutError
                    raise
                message = b""  # closed by another thread
            if not message:
                self._failed = worker.ended() if self._finalizer.alive else _closed()
                self.close()
                raise self._failed from None
            if message[:1] == b"R":
                _, generation, slot, position = READY.unpack(message)
                if generation == self._generation:
                    return slot, position
            else:
                generation, error = pickle.loads(message[1:])
                if generation == self._generation:
                    self._failed = error
                    raise error

    def look(self, tokens: Any, fields: list[Any], into: list[int]) -> tuple | None:
        client = self._client
        here = client.taken()  # raises in a forked child, or if the loader is closed
        if self._failed is not None:
            raise self._failed
        # after Ctrl-C a worker's message may have been lost, or its batch was not taken
        if self._amid or here != self._after:
            taken = -(-(here - self._begun) // self._step)
            self._begin(None if self._left is None else self._left - taken)
        nothing = [0, *into[1:]]  # without tokens: the worker has them
        if self._left is not None and self._next >= self._left:
            return client.look_into(*nothing)
        if not self._finalizer.alive:
            raise _closed()
        self._amid = True
        worker = self._workers[self._next % self._n]
        begin = time.perf_counter()
        slot, position = self._receive(worker)
        self.waited_s += time.perf_counter() - begin
        found = client.look_into(*nothing)
        here = NO_BATCH if found is None else int(fields[0][0])
        if position != here:
            raise _tokend.ProtocolError(
                f"workers: {worker.what} is at position {position} instead of {here}; report "
                f"this, and {phrases.SEEK}"
            )
        if worker.map is None:
            raise _closed()
        made = self._numpy.frombuffer(
            worker.map, self._numpy.int64, tokens.size, slot * self._bytes
        )
        tokens[:] = made.reshape(tokens.shape)
        worker.send(FREE.pack(b"F", self._generation, slot))
        self._next += 1
        if found is not None:
            self._after = found[1]
        self._amid = False
        return found

    def close(self) -> None:
        self._finalizer()


# ---- the worker's side ----


class _Session:
    """A worker's loop: writes batches to free slots, and follows the trainer's seeks."""

    def __init__(self, connection: socket.socket, memory: int) -> None:
        import select
        from multiprocessing import spawn

        self._numpy, self._connection, self._memory = needs_numpy(), connection, memory
        self._ready = select.poll()
        self._ready.register(connection.fileno(), select.POLLIN)
        with open(memory, "rb", closefd=False) as file:
            file.seek(0)
            pickled, needs, seed, self._arguments, greatest = pickle.load(file)
        spawn.prepare(needs)
        self._transform = Transform(pickle.loads(pickled), seed, greatest)
        self._client: Any = None
        self._generation = 0
        self._free: deque[int] = deque()
        self._goes = False

    def _packet(self) -> bytes:
        packet = self._connection.recv(MESSAGE_BYTES)
        if not packet:
            raise EOFError
        return packet

    def run(self) -> None:
        while True:
            while not (self._goes and self._free) or self._ready.poll(0):
                self._handle(self._packet())
            try:
                self._make(self._free.popleft())
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._goes = False
        self._connection.send(b"E" + pickle.dumps((self._generation, _portable(error))))

    def _handle(self, packet: bytes) -> None:
        if packet[:1] == b"F":
            _, generation, slot = FREE.unpack(packet)
            if generation == self._generation:
                self._free.append(slot)
            return
        self._generation, cursor, rank, world, micro, window = pickle.loads(packet[1:])
        try:
            self._seek(cursor, rank, world, micro, window)
        except Exception as error:
            self._fail(error)

    def _seek(self, cursor: bytes, rank: int, world: int, micro: int, window: int) -> None:
        numpy = self._numpy
        if self._client is None:
            self._client = _tokend.Client(
                micro_batch=micro,
                rank=rank,
                world=world,
                cursor=cursor,
                helper=True,
                **self._arguments,
            )
        else:
            self._client.seek(cursor, rank, world, micro)
        self._names = self._client.datasets()
        self._fields = numpy.empty((6, micro), numpy.int64)
        self._slots = numpy.frombuffer(
            mmap.mmap(self._memory, SLOTS * 8 * micro * window), numpy.int64
        ).reshape(SLOTS, micro, window)
        self._free = deque(range(SLOTS))
        self._goes = True

    def _make(self, slot: int) -> None:
        rows = self._slots[slot]
        if self._client.next_into(rows.ctypes.data, self._fields.ctypes.data, 8, 6) is None:
            self._goes = False  # the trainer knows the stream's length
            return
        self._transform.apply(rows, self._fields.tolist(), self._names)
        self._connection.send(READY.pack(b"R", self._generation, slot, int(self._fields[0, 0])))


def _portable(error: Exception) -> Exception:
    """Returns the error as it can be pickled, with its traceback as a note. Python 3.10 has no
    notes, so stderr gets it.
    """
    if sys.version_info >= (3, 11):
        error.add_note("".join(traceback.format_exception(error)))
    else:
        traceback.print_exception(error)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return _tokend.Error(f"workers: {type(error).__name__}: {error}")
    return error


def _leave_with(parent: int) -> None:
    """Ends this process when @parent ends, also while it waits for a daemon or runs a transform."""
    import threading

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    global _is_worker
    _is_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it, and closes our socket
    _leave_with(os.getppid())
    session = _Session(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    with contextlib.suppress(EOFError, ConnectionError):
        session.run()
    os._exit(0)
