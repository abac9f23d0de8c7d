"""Batches on a GPU: the next one is copied while the step runs.

The ring is registered with the driver (client/lib/pin.h). A whole slot is copied as stored, 2 or 4
bytes a token, on a stream of its own, and widened on the device. The slot goes back to the daemon
after the event that follows its copy.

A batch that is copied ahead is not taken yet: cursor, commit(), seek() and control() ignore it, and
a seek drops it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from . import phrases
from ._tokend import ArgumentError, Error

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


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


def named(device: Any) -> Any:
    """The torch.device with its number. "cuda" is the device that is current now."""
    import torch

    if not torch.cuda.is_available():
        raise ArgumentError(
            f"device: {device}, but torch {torch.__version__} sees no GPU; pass 'cpu', or install "
            "a torch with CUDA"
        )
    try:
        number = torch.device(device).index
    except RuntimeError:
        raise ArgumentError(phrases.is_not("device", device, phrases.DEVICES)) from None
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
        self.device = named(device)
        self.number: int = self.device.index
        # Torch hands out the same 32 streams of a priority again and again. Programs hardly use
        # this priority, so no graph is captured on our stream, and our copies wait for no other
        # work.
        self.side = torch.cuda.Stream(self.device, priority=-1)
        self.stream: int = self.side.cuda_stream
        self.int64, self.int32, self.int16 = torch.int64, torch.int32, torch.int16

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory allocated on the side stream."""
        with self.torch.cuda.stream(self.side):
            return self.torch.empty(shape, dtype=dtype, device=self.device)

    def run(self, work: Callable[[], None]) -> Any:
        """Queues work() on the side stream. Returns the event that follows it."""
        with self.torch.cuda.stream(self.side):
            work()
            return self.side.record_event()

    def capturing(self) -> bool:
        """Is the caller's stream being captured into a graph?"""
        return self.torch.cuda.is_current_stream_capturing()

    def hand_over(self, tensor: Any, event: Any) -> None:
        """Passes @tensor to the caller's stream, which waits for @event on the device."""
        current = self.torch.cuda.current_stream(self.device)
        current.wait_event(event)
        # the side stream reuses its memory only after current is done with it
        tensor.record_stream(current)


class Feed:
    """Takes batches from a _tokend.Client and copies them to the device.

    next() raises Error while the caller's stream is being captured into a graph. Captures on other
    streams are not disturbed.
    """

    def __init__(
        self,
        client: Any,
        shape: dict[str, Any],
        device: Any,
        dtype: Any = None,
        gpu: Any = None,
        split: bool = False,
        labels: Any = None,
    ) -> None:
        """Registers the ring with the driver. If that fails, a RuntimeWarning says why, once, and
        copies are slower.

        Args:
            shape: the client's shape().
            dtype: torch.int64 (default), or torch.int32 for tokens of 2 bytes.
            split: next() returns [2, b, seq_len]: contiguous input_ids and the tokens that follow.
                It returns [1, b, seq_len], input_ids only, if those do not give the labels: the
                stream has a loss mask or extra: 0. False: it returns windows, [b, window].
            labels: the type that the caller gives to the labels; as dtype.

        Raises:
            ArgumentError: no such device, or a dtype that cannot hold the tokens.
        """
        self._client, self._gpu, self._split = client, gpu or Cuda(device), split
        self._dtype, self._labels = dtype or self._gpu.int64, labels or self._gpu.int64
        self._shape: tuple[int, int, int, int, int] | None = None
        # the slot as stored in the ring; copies and widenings alternate on the side stream
        self._stored: Any = None
        self._seen: Any = None  # the parts of it that are widened
        self._wide: Any = None  # the batch at position _wide_at
        self._wide_at: int | None = None
        self._event: Any = None  # follows the widening
        self._warned = False
        self.begin(shape)
        self._pin()

    def begin(self, shape: dict[str, Any]) -> None:
        """Called when the client's shape may have changed: after a seek, or when a restarted daemon
        serves the stream in another width.
        """
        self._wide_at = None
        rows, window, seq = shape["rows"], shape["window_tokens"], shape["seq_len"]
        parts = 0 if not self._split else 1 if shape["masked"] or window <= seq else 2
        wanted = rows, window, shape["token_bytes"], seq, parts
        if wanted == self._shape:
            return
        if wanted[2] == 4 and self._gpu.int32 in (self._dtype, self._labels):
            raise ArgumentError(
                f"dtype: {self._gpu.int32} cannot hold every token of 4 bytes, and tokens are not "
                "checked on a GPU; pass int64"
            )
        with relaxed():
            self._stored = self._gpu.empty(
                wanted[:2], self._gpu.int16 if wanted[2] == 2 else self._gpu.int32
            )
        self._shape, self._mask = wanted, (1 << 8 * wanted[2]) - 1
        self._bytes = rows * window * wanted[2]
        self._seen = (
            self._stored.as_strided((parts, rows, seq), (1, window, 1)) if parts else self._stored
        )

    def _pin(self) -> None:
        try:
            self._client.pin(self._gpu.number)
        except Error as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"tokend: {error}", RuntimeWarning, stacklevel=4)

    def _widen(self, position: int) -> None:
        self._wide_at = None
        self._wide = wide = self._gpu.empty(tuple(self._seen.shape), self._dtype)
        seen, mask = self._seen, self._mask

        def work() -> None:
            wide.copy_(seen)  # tokens are unsigned, torch's 16 and 32 bits are signed
            wide.bitwise_and_(mask)

        self._event = self._gpu.run(work)
        self._wide_at = position

    def takes(self, after: int) -> tuple[int, ...]:
        """What to set the client's `takes` to; @after: the position after the batch of next()."""
        return after, self._stored.data_ptr(), self._bytes, self._gpu.stream

    def _send(self) -> bool:
        """Queues the copy of the next batch; False at the end."""
        self._wide_at = None
        while True:
            _, *to = self.takes(0)
            copied = self._client.copy_next(*to, True)
            if copied is not None:
                return copied  # type: ignore[no-any-return]
            self.begin(self._client.shape())  # a restarted daemon serves it in another width

    def next(self, look: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Returns (tokens, result of look()), or None at the end. Until the batch is taken, it
        returns the same one.

        tokens: int64 or dtype, [b, window] or split, on the device, new for each batch, in order
        with the caller's current stream. @look calls the client's look_into(0, …), with addresses
        for what stays in the CPU's memory, and none for tokens. Raises what the client raises.
        """
        with relaxed():
            return self._next(look)

    def _next(self, look: Callable[[], Any]) -> tuple[Any, Any] | None:
        if self._gpu.capturing():
            raise Error(
                "next: this stream is being captured into a graph; take the batch before the "
                "capture, and copy it to a tensor that the graph reads"
            )
        if not self._client.copied():  # at the beginning, after a seek, or if the daemon was late
            if not self._warned and self._client.shape()["pinned_bytes"] == 0:
                self._pin()  # a new ring that is not registered: warns
            if not self._send():
                return None
        position = self._client.taken()
        if self._wide_at != position:
            self._widen(position)
        looked = look()
        if looked is None:
            return None
        self._gpu.hand_over(self._wide, self._event)
        return self._wide, looked
