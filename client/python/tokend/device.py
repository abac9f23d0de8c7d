"""Batches on a GPU.

The ring is registered with torch's CUDA runtime. A whole slot is copied as stored, 2 or 4 bytes a
token, on a stream of its own, and widened on the device: while the GPU still works on the step
before. The slot goes back to the daemon when the event that follows its copy has passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

from . import phrases
from ._tokend import LOSS_MASK, ArgumentError, Error

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
PORTABLE = 1  # cudaHostRegisterPortable
DEVICES = "'cpu', 'cuda' or 'cuda:N'"
PIECE = 1 << 30  # registered at once; no slot crosses a multiple of it


@functools.cache
def _exchange() -> Any:
    """The driver's function. PyDLL: the call is shorter than releasing the interpreter's lock."""
    try:
        return ctypes.PyDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # no driver, or one older than graphs
        return None


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Lets torch allocate memory and use events in this block while another thread captures a
    graph. Otherwise the driver refuses it and spoils that graph.
    """
    exchange, mode = _exchange(), ctypes.c_int(RELAXED)
    changed = exchange is not None and exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if changed:
            exchange(ctypes.byref(mode))


def cuda(device: Any, make: Any) -> Any:
    """device= as torch's, or None if it is the CPU. @make: batch.Framework."""
    name = "cpu" if device is None else str(device)
    kind = name.split(":")[0]  # accelerate's is cpu:0
    if kind not in ("cpu", "cuda"):
        raise ArgumentError(
            f"{phrases.is_not('device', name, DEVICES)}; move batches elsewhere with .to()"
        )
    if kind == "cpu":
        return None
    if make.name != "torch":
        raise ValueError(f"device: {device} needs torch; pass framework='torch'")
    return named(device, make.module)


def named(device: Any, torch: Any) -> Any:
    """The torch.device with its number. "cuda" is the device that is current now."""
    if not torch.cuda.is_available():
        raise ArgumentError(
            f"device: {device}, but torch {torch.__version__} sees no GPU; pass 'cpu', or install "
            "a torch with CUDA"
        )
    try:
        number = torch.device(device).index
    except RuntimeError:
        raise ArgumentError(phrases.is_not("device", device, DEVICES)) from None
    number = torch.cuda.current_device() if number is None else number
    devices = torch.cuda.device_count()
    if number >= devices:
        raise ArgumentError(f"device: {device} does not exist; pass a number below {devices}")
    return torch.device("cuda", number)


class Cuda:
    """The calls of torch.cuda that Feed needs."""

    def __init__(self, device: Any) -> None:
        import torch

        self.torch: Any = torch
        self.device = named(device, torch)
        # Torch hands out the same 32 streams of a priority again and again. Programs hardly use
        # this priority, so no graph is captured on our stream, and our copies wait for no other
        # work.
        self.side = torch.cuda.Stream(self.device, priority=-1)
        self.int64, self.int32, self.int16 = torch.int64, torch.int32, torch.int16

    def register(self, base: int, size: int) -> str:
        """Returns "", or why memory cannot be registered."""
        cudart = self.torch.cuda.cudart()
        with self.torch.cuda.device(self.device):
            error = cudart.cudaHostRegister(base, size, PORTABLE)
            if int(error) == 0:
                return ""
            # The runtime remembers the error, and the next kernel would raise it.
            with contextlib.suppress(RuntimeError):
                self.torch.ones(1, device=self.device)
            return str(cudart.cudaGetErrorString(error))

    def unregister(self, base: int) -> None:
        self.torch.cuda.cudart().cudaHostUnregister(base)

    def over(self, address: int, size: int, dtype: Any) -> Any:
        """The ring's memory as a tensor."""
        return self.torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory allocated on the side stream."""
        with self.torch.cuda.stream(self.side):
            return self.torch.empty(shape, dtype=dtype, device=self.device)

    def copy(self, to: Any, slot: Any) -> Any:
        """Queues a copy on the side stream. Returns the event that follows it."""
        with self.torch.cuda.stream(self.side):
            to.copy_(slot, non_blocking=True)
            return self.side.record_event()

    def run(self, work: Callable[[], None]) -> Any:
        """Queues work() on the side stream. Returns the event that follows it."""
        with self.torch.cuda.stream(self.side):
            work()
            return self.side.record_event()

    def finish(self) -> None:
        """Waits for the side stream."""
        self.side.synchronize()

    def capturing(self) -> bool:
        """Is the caller's stream being captured into a graph?"""
        return self.torch.cuda.is_current_stream_capturing()

    def hand_over(self, tensor: Any, event: Any) -> None:
        """Passes @tensor to the caller's stream, which waits for @event on the device."""
        current = self.torch.cuda.current_stream(self.device)
        current.wait_event(event)
        # the side stream reuses its memory only after current is done with it
        tensor.record_stream(current)


class Rings:
    """The client's rings that are registered. It does not refer to the client, which refers to it:
    a loader that is dropped detaches.
    """

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._pieces: list[int] = []  # addresses

    def register(self, base: int, size: int) -> str:
        """Registers a ring: all of it, or nothing. Returns "", or why it cannot be registered."""
        for at in range(base, base + size, PIECE):
            why = self._gpu.register(at, min(PIECE, base + size - at))
            if why:
                self._unregister(base, size)
                return why  # type: ignore[no-any-return]
            self._pieces.append(at)
        return ""

    def _unregister(self, base: int, size: int) -> None:
        for at in [at for at in self._pieces if base <= at < base + size]:
            self._gpu.unregister(at)
            self._pieces.remove(at)

    def gone(self, base: int, size: int) -> None:
        """The client unmaps a ring after this."""
        with relaxed():
            self._gpu.finish()
            self._unregister(base, size)


class Feed:
    """Copies the batches of a _tokend.Client to the device.

    next() raises Error while the caller's stream is being captured into a graph. Captures on other
    streams are not disturbed.
    """

    def __init__(self, client: Any, device: Any, types: dict[str, str], gpu: Any = None) -> None:
        """Registers the ring. If that fails, a RuntimeWarning says why, once, and copies are
        slower.

        @types: "int64" or "int32", of input_ids and labels. ArgumentError: no such device, or a
        type that cannot hold the tokens.
        """
        self._client, self._gpu, self._types = client, gpu or Cuda(device), types
        self._shape: tuple[int, ...] = ()
        # the slot as stored in the ring; copies and widenings alternate on the side stream
        self._stored: Any = None
        self._seen: Any = None  # the parts of it that are widened
        self._copies: dict[int, Any] = {}  # handles of batches, and the events after their copies
        self._rings = Rings(self._gpu)
        self._warned = False
        self.pinned_bytes = 0  # of the current ring
        self.begin()
        with relaxed():
            self._register()

    def begin(self) -> None:
        """Called when the client's shape may have changed: after a seek, or when a restarted daemon
        serves the stream in another width.
        """
        shape = self._client.shape()
        rows, window, seq = shape["rows"], shape["window_tokens"], shape["seq_len"]
        width = shape["token_bytes"]
        parts = 1 if shape["annotations"] & LOSS_MASK or window <= seq else 2
        if (rows, window, width, seq, parts) == self._shape:
            return
        if width == 4 and "int32" in self._types.values():
            raise ArgumentError(
                "dtype: int32 cannot hold every token of 4 bytes, and tokens are not checked on a "
                "GPU; pass int64"
            )
        kind = self._gpu.int16 if width == 2 else self._gpu.int32
        with relaxed():
            self._stored = self._gpu.empty((rows, window), kind)
        self._shape, self._kind = (rows, window, width, seq, parts), kind
        self._seen = self._stored.as_strided((parts, rows, seq), (1, window, 1))

    def _register(self) -> None:
        """Registers the ring if it is a new one."""
        ring = self._client.memory(self._rings.gone)
        if ring is None:
            return
        self._slots = self._client.shape()["slots"]
        base, size = ring
        why = self._rings.register(base, size)
        self.pinned_bytes = 0 if why else size
        if why and not self._warned:
            self._warned = True
            phrases.warn(
                f"the ring of {size} bytes cannot be registered with CUDA: {why}; copies are "
                "slower; allow this machine or container to pin memory"
            )

    def _release(self) -> None:
        """Releases the slots whose copies have ended, and waits for one if the ring has no others.
        Slots that were copied, but not taken, are not released, and copied again.
        """
        for handle, event in list(self._copies.items()):
            if not event.query():
                if len(self._copies) < self._slots:
                    return
                event.synchronize()
            self._client.release(handle)
            del self._copies[handle]

    def next(self, look: Callable[[], Any]) -> tuple[Any, Any]:
        """Returns (tokens, result of look()), or (None, None) at the end. Until the batch is taken,
        it returns the same one.

        tokens: contiguous input_ids and the tokens that follow, [2, b, seq_len], on the device, new
        for each batch, in order with the caller's current stream; only input_ids, [1, b, seq_len],
        if those do not give the labels: the stream has a loss mask or extra: 0. @look calls the
        client's look_into(0, …), with addresses for what stays in the CPU's memory.
        """
        with relaxed():
            return self._next(look)

    def _next(self, look: Callable[[], Any]) -> tuple[Any, Any]:
        if self._gpu.capturing():
            raise Error(
                "next: this stream is being captured into a graph; take the batch before the "
                "capture, and copy it to a tensor that the graph reads"
            )
        slot = None
        while slot is None:  # another thread may take the batch that look() saw
            self._release()
            looked = look()
            if looked is None:
                return None, None
            self._register()
            slot = self._client.slot()
        address, size, handle = slot
        if size != self._stored.nbytes:  # a restarted daemon serves it in another width
            self.begin()
        wide = self._gpu.empty(
            tuple(self._seen.shape), getattr(self._gpu, self._types["input_ids"])
        )
        stored, seen, mask = self._stored, self._seen, (1 << 8 * self._shape[2]) - 1
        source = self._gpu.over(address, size, self._kind).view(stored.shape)
        self._copies.pop(handle, None)
        self._copies[handle] = self._gpu.copy(stored, source)

        def work() -> None:
            wide.copy_(seen)  # tokens are unsigned, torch's 16 and 32 bits are signed
            wide.bitwise_and_(mask)

        self._gpu.hand_over(wide, self._gpu.run(work))
        return wide, looked
