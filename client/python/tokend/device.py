"""Batches on a GPU.

The ring is registered with torch's CUDA runtime. A whole slot is copied as stored, 2 or 4 bytes a
token, on a stream of its own, and widened there: while the GPU still works on the step before. The
slot goes back to the daemon when the event that follows its copy has passed.

While another thread captures a CUDA graph, take no batch, or capture in mode "thread_local": torch
may allocate memory here.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from . import phrases
from .errors import ArgumentError, Error

PORTABLE = 1  # cudaHostRegisterPortable
PIECE = 1 << 30  # registered at once; no slot crosses a multiple of it


def cuda(device: Any, make: Any) -> Any:
    """device= as torch's, with its number ("cuda" is the current one); None if it is the CPU.
    @make: batch.Framework.
    """
    name = "cpu" if device is None else str(device)
    kind, _, number = name.partition(":")  # accelerate's is cpu:0
    if kind not in ("cpu", "cuda") or not (number or "0").isdigit():
        what = "'cpu', 'cuda' or 'cuda:N'; move batches elsewhere with .to()"
        raise ArgumentError(phrases.is_not("device", name, what))
    if kind == "cpu":
        return None
    if make.name != "torch":
        raise ValueError(f"device: {device} needs torch; pass framework='torch'")
    torch = make.module
    if not torch.cuda.is_available():
        raise ArgumentError(
            f"device: {device}, but torch {torch.__version__} sees no GPU; pass 'cpu', or install "
            "a torch with CUDA"
        )
    index = int(number) if number else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        devices = torch.cuda.device_count()
        raise ArgumentError(f"device: {device} does not exist; pass a number below {devices}")
    return torch.device("cuda", index)


class Cuda:
    """The calls of torch.cuda for a Feed. It does not refer to the client, which refers to gone():
    a loader that is dropped detaches.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device
        self.runtime: Any = torch.cuda.cudart()
        # Torch hands out the same 32 streams of a priority again and again. Programs hardly use
        # this priority, so no graph is captured on our stream, and our copies wait for no other
        # work.
        self.side: Any = torch.cuda.Stream(device, priority=-1)
        self._pieces: list[int] = []  # addresses that are registered

    def register(self, base: int, size: int) -> str:
        """Registers a ring: all of it, or nothing. Returns "", or why it cannot be registered."""
        for at in range(base, base + size, PIECE):
            with self.torch.cuda.device(self.device):
                error = self.runtime.cudaHostRegister(at, min(PIECE, base + size - at), PORTABLE)
            if int(error) != 0:
                self.gone(base, size)
                # the runtime remembers the error, and the next kernel would raise it
                with contextlib.suppress(RuntimeError):
                    self.torch.ones(1, device=self.device)
                return str(self.runtime.cudaGetErrorString(error))
            self._pieces.append(at)
        return ""

    def gone(self, base: int, size: int) -> None:
        """The client unmaps a ring after this."""
        self.side.synchronize()
        for at in [at for at in self._pieces if base <= at < base + size]:
            self.runtime.cudaHostUnregister(at)
            self._pieces.remove(at)

    def fetch(self, slot: Any, shape: tuple[int, ...], dtype: Any, mask: int) -> tuple[Any, Any]:
        """Queues on the side stream the copy of @slot [b, window], and its widening to @shape
        (1 or 2, b, s): input_ids, and the tokens that follow. Returns the tensor, for the caller's
        current stream, which waits for it on the device; and the event after the copy.
        """
        with self.torch.cuda.stream(self.side):
            stored = slot.to(self.device, non_blocking=True)
            copied = self.side.record_event()
            # tokens are unsigned, torch's 16 and 32 bits are signed
            wide = stored.as_strided(shape, (1, slot.shape[1], 1)).to(dtype).bitwise_and_(mask)
        current = self.torch.cuda.current_stream(self.device)
        current.wait_stream(self.side)
        wide.record_stream(current)  # its memory is reused only after current is done with it
        return wide, copied


class Feed:
    """Copies the batches of a _tokend.Client to the device. @types: "int64" or "int32", of
    input_ids and labels. If a ring cannot be registered, a RuntimeWarning says why, once, and
    copies are slower.
    """

    def __init__(self, client: Any, gpu: Cuda, types: dict[str, str]) -> None:
        self._client, self._gpu, self._types = client, gpu, types
        self._copies: dict[int, Any] = {}  # handles of batches, and the events after their copies
        self._warned = False
        self.pinned_bytes = 0  # of the current ring
        self._register()

    def _register(self) -> None:
        """Registers the ring if it is a new one."""
        ring = self._client.memory(self._gpu.gone)
        if ring is None:
            return
        self._slots = self._client.shape()["slots"]
        why = self._gpu.register(*ring)
        self.pinned_bytes = 0 if why else ring[1]
        if why and not self._warned:
            self._warned = True
            phrases.warn(
                f"the ring of {ring[1]} bytes cannot be registered with CUDA: {why}; copies are "
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

    def next(self, look: Callable[[], Any], seq: int, parts: int) -> tuple[Any, Any]:
        """Returns (tokens, result of look()); (None, that) if it is None or False. Until the batch
        is taken, it returns the same one.

        tokens: new ones on the device, [parts, b, seq], in order with the caller's current stream:
        input_ids and, if @parts is 2, the tokens that follow. @look calls the client's
        look_into(0, …), with addresses for what stays in the CPU's memory.
        """
        torch = self._gpu.torch
        if torch.cuda.is_current_stream_capturing():
            raise Error(
                "next: this stream is being captured into a graph; take the batch before the "
                "capture, and copy it to a tensor that the graph reads"
            )
        while True:
            self._release()
            looked = look()
            if not looked:
                return None, looked
            self._register()
            try:
                self._client.copies = True  # a signal's handler may not unmap the ring
                slot = self._client.slot()
                if slot is not None:  # otherwise another thread took the batch that look() saw
                    return self._copy(slot, (parts, slot[1], seq)), looked
            finally:
                self._client.copies = False

    def _copy(self, slot: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        torch = self._gpu.torch
        address, rows, window, width, handle = slot
        if width == 4 and "int32" in self._types.values():
            raise ArgumentError(
                "dtype: int32 cannot hold every token of 4 bytes, and tokens are not checked on a "
                "GPU; pass int64"
            )
        memory = (ctypes.c_char * (rows * window * width)).from_address(address)
        kind = torch.int16 if width == 2 else torch.int32
        stored = torch.frombuffer(memory, dtype=kind).view(rows, window)
        dtype, mask = getattr(torch, self._types["input_ids"]), (1 << 8 * width) - 1
        self._copies.pop(handle, None)
        tokens, self._copies[handle] = self._gpu.fetch(stored, shape, dtype, mask)
        return tokens
