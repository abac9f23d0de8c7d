"""Batches on a GPU, copied there one ahead so that the step never waits.

The ring is registered with the driver (client/lib/pin.h); the whole slot goes to the device as it
lies there, 2 or 4 bytes a token, on a stream of its own, is widened there, and goes back to the
daemon when the event behind its copy has passed. A batch that was copied ahead is not taken:
cursor, commit(), seek() and control() know nothing of it, and after a seek it is dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ._tokend import ArgumentError, Error

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@functools.cache
def _exchange() -> Any:
    """The driver's call for it, made with the interpreter's lock held: it is shorter than giving
    that away.
    """
    try:
        return ctypes.PyDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # no driver, or one of before graphs
        return None


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """What torch does for us in here (it allocates, makes and asks events) may be done while
    another thread captures a graph, which otherwise is refused, and spoils that graph.
    """
    exchange, mode = _exchange(), ctypes.c_int(RELAXED)
    changed = exchange is not None and exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if changed:
            exchange(ctypes.byref(mode))


def named(device: Any) -> Any:
    """The torch.device, with its number: "cuda" is the current one, now, whatever becomes current
    later.
    """
    import torch

    if not torch.cuda.is_available():
        raise ArgumentError(
            f"device: {device}, but torch {torch.__version__} sees no GPU: say 'cpu', or install "
            "another torch"
        )
    try:
        number = torch.device(device).index
    except RuntimeError:
        raise ArgumentError(f"device: {device!r}, must be 'cuda' or 'cuda:N'") from None
    number = torch.cuda.current_device() if number is None else number
    if number >= torch.cuda.device_count():
        raise ArgumentError(f"device: {device}, there are {torch.cuda.device_count()}")
    return torch.device("cuda", number)


class Cuda:
    """The few things that Feed asks of torch.cuda."""

    def __init__(self, device: Any) -> None:
        import torch

        self.torch: Any = torch
        self.device = named(device)
        self.number: int = self.device.index
        # Torch hands the same 32 streams of a priority out again and again; those of this one are
        # hardly anybody's, so that no graph is captured on ours, and nobody's work keeps our copies
        # waiting.
        self.side = torch.cuda.Stream(self.device, priority=-1)
        self.stream: int = self.side.cuda_stream
        self.int64, self.int32, self.int16 = torch.int64, torch.int32, torch.int16

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory of the side stream's."""
        with self.torch.cuda.stream(self.side):
            return self.torch.empty(shape, dtype=dtype, device=self.device)

    def run(self, work: Callable[[], None]) -> Any:
        """Queues what work() does on the side stream. An event behind it."""
        with self.torch.cuda.stream(self.side):
            work()
            return self.side.record_event()

    def capturing(self) -> bool:
        """The caller's stream, into a graph."""
        return self.torch.cuda.is_current_stream_capturing()

    def hand_over(self, tensor: Any, event: Any) -> None:
        """To the caller's stream, which waits on the device; this thread does not."""
        current = self.torch.cuda.current_stream(self.device)
        current.wait_event(event)
        # its memory is not the side stream's again before current is done with it
        tensor.record_stream(current)


class Feed:
    """Takes batches from a client (_tokend.Client) and has them on the device. It lives as long as
    the client.

    next() is an Error while the caller's stream is being captured into a graph; captures elsewhere
    do not mind it.
    """

    def __init__(
        self,
        client: Any,
        shape: dict[str, Any],
        device: Any,
        dtype: Any = None,
        gpu: Any = None,
        split: bool = False,
    ) -> None:
        """shape: the client's; dtype: torch.int64, or torch.int32 for tokens of 2 bytes. Where the
        ring cannot be registered, a RuntimeWarning says why, once, and copies are slower.
        ArgumentError: no such device, a dtype that cannot hold tokens.

        split: next() gives [2, b, seq_len], contiguous input_ids and the tokens that follow each,
        or [1, b, seq_len] where those do not tell the labels: a stream with a loss mask, or extra:
        0. Otherwise it gives the windows, [b, window].
        """
        self._client, self._gpu, self._split = client, gpu or Cuda(device), split
        self._dtype = self._gpu.int64 if dtype is None else dtype
        self._shape: tuple[int, int, int, int, int] | None = None
        self._seen: Any = None  # the parts of it that are widened
        # the slot as it is in the ring; copies and widenings take turns at it on the side stream
        self._stored: Any = None
        self._wide: Any = (
            None  # of the batch that comes next, if the client says that it was copied
        )
        # for the next one to be copied: what can fail for want of memory is done before the copy
        self._spare: Any = None
        self._event: Any = None  # behind its widening
        self._warned = False
        self.begin(shape)
        self._pin()

    def begin(self, shape: dict[str, Any]) -> None:
        """Whenever the client's shape may have become another: after a seek, or where a restarted
        daemon serves the stream in another width."""
        rows, window, seq = shape["rows"], shape["window_tokens"], shape["seq_len"]
        parts = 0 if not self._split else 1 if shape["masked"] or window <= seq else 2
        wanted = rows, window, shape["token_bytes"], seq, parts
        if wanted == self._shape:
            return
        if wanted[2] == 4 and self._dtype != self._gpu.int64:
            raise ArgumentError(
                f"dtype: {self._dtype} cannot hold every token of 4 bytes, which nobody checks "
                "there: take int64"
            )
        with relaxed():
            self._stored = self._gpu.empty(
                wanted[:2], self._gpu.int16 if wanted[2] == 2 else self._gpu.int32
            )
        self._shape, self._mask, self._spare = wanted, (1 << 8 * wanted[2]) - 1, None
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

    def _widen(self) -> None:
        seen, wide, mask = self._seen, self._wide, self._mask

        def work() -> None:
            wide.copy_(seen)  # stored as unsigned: torch's 16 and 32 bits are signed everywhere
            wide.bitwise_and_(mask)

        self._event = self._gpu.run(work)

    def _copy_next(self, wait: bool) -> bool | None:
        """None: the slot does not have as many bytes as self._stored."""
        return self._client.copy_next(self._stored.data_ptr(), self._bytes, self._gpu.stream, wait)

    def _send(self, wait: bool) -> None:
        """Queues copy and widening of the batch that comes next, if there is one."""
        if self._spare is None:
            self._spare = self._gpu.empty(tuple(self._seen.shape), self._dtype)
        copied = self._copy_next(wait)
        if copied is None:  # a restarted daemon serves the stream in another width
            self.begin(self._client.shape())
            self._spare = self._gpu.empty(tuple(self._seen.shape), self._dtype)
            copied = self._copy_next(wait)
        if not copied:
            return
        self._wide, self._spare, self._event = self._spare, None, None
        self._widen()

    def next(self, take: Callable[[], Any]) -> tuple[Any, Any] | None:
        """(tokens, what take() returned), or None at the end.

        tokens: int64 (or dtype), [b, window] or split, on the device, new for each batch, in order
        with the caller's current stream. take: a call of the client's next_into(0, …), with places
        for all that is small and stays with the CPU, none for tokens. Errors are the client's.
        """
        with relaxed():
            return self._next(take)

    def _next(self, take: Callable[[], Any]) -> tuple[Any, Any] | None:
        if self._gpu.capturing():
            raise Error(
                "next: this stream is being captured into a graph: take the batch before, and copy "
                "it to a tensor that the graph reads"
            )
        if (
            not self._client.copied()
        ):  # at the beginning, after a seek, or where the daemon was late
            if not self._warned and self._client.shape()["pinned_bytes"] == 0:
                self._pin()  # another ring than before, which was refused: says why
            self._send(True)
        elif self._event is None:
            self._widen()  # what failed when it was copied
        taken = take()
        if taken is None:
            return None
        tokens, self._wide = self._wide, None
        self._gpu.hand_over(tokens, self._event)
        with contextlib.suppress(
            Exception
        ):  # this batch is taken, so it is handed out: what went wrong is the next one's to raise
            self._send(False)
        return tokens, taken
