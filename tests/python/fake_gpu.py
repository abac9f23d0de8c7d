"""A trainer on the stand-in for CUDA: test_device.py runs it, with LD_LIBRARY_PATH.

fake_gpu.py SOCKET SCENARIO prints one JSON object: the rows of the batches, and what was seen.
torch has no tensors on the fake GPU, so they are in its "device memory", and work on the loader's
stream is queued there as calls.
"""

import contextlib
import ctypes as c
import json
import math
import sys
import warnings

import tokend
import torch
from tokend import batch as batches
from tokend import device

ENOUGH = 12


class Event:
    def __init__(self, cu, stream):
        self.cu, self.at = cu, c.c_void_p()
        assert cu.cudaEventCreateWithFlags(c.byref(self.at), 2) == 0
        assert cu.cudaEventRecord(self.at, stream) == 0

    def query(self):
        return self.cu.cudaEventQuery(self.at) == 0

    def synchronize(self):
        assert self.cu.cudaEventSynchronize(self.at) == 0


class Runtime:
    """torch's cudart."""

    def __init__(self, cu):
        self.cu = cu

    def cudaHostRegister(self, base, size, flags):
        error = self.cu.cudaHostRegister(c.c_void_p(base), c.c_size_t(size), flags)
        self.cu.cudaGetLastError()
        return error

    def cudaHostUnregister(self, base):
        assert self.cu.cudaHostUnregister(c.c_void_p(base)) == 0

    def cudaGetErrorString(self, error):
        return "out of memory"


class Fake(device.Cuda):
    def __init__(self, _torch, _device):
        self.cu, self.torch, self.device = c.CDLL("libcuda.so.1"), torch, torch.device("cpu")
        self.runtime, self.side, self._pieces = Runtime(self.cu), self, []
        self.calls, self.full, self.broken = [], None, False
        self.stream = c.c_void_p()
        assert self.cu.cudaStreamCreateWithFlags(c.byref(self.stream), 1) == 0

    def synchronize(self):
        assert self.cu.cudaStreamSynchronize(self.stream) == 0

    def empty(self, shape, dtype):
        if self.full:
            self.full()
        at, size = c.c_void_p(), math.prod(shape) * dtype.itemsize
        assert self.cu.cudaMalloc(c.byref(at), c.c_size_t(size)) == 0
        return torch.frombuffer((c.c_char * size).from_address(at.value), dtype=dtype).view(shape)

    def fetch(self, slot, shape, dtype, mask):
        stored = self.empty(slot.shape, slot.dtype)
        pointers = c.c_void_p(stored.data_ptr()), c.c_void_p(slot.data_ptr())
        assert self.cu.cudaMemcpyAsync(*pointers, c.c_size_t(slot.nbytes), 1, self.stream) == 0
        copied, wide = Event(self.cu, self.stream), self.empty(shape, dtype)
        if self.broken:
            raise RuntimeError("no kernel")
        seen = stored.as_strided(shape, (1, slot.shape[1], 1))
        work = lambda _: wide.copy_(seen).bitwise_and_(mask) is None
        self.calls.append(c.CFUNCTYPE(None, c.c_void_p)(work))
        assert self.cu.cudaLaunchHostFunc(self.stream, self.calls[-1], None) == 0
        if self.waits:
            self.synchronize()
        return wide, copied

    waits = False  # as the caller's stream does, on which torch would make the labels


class Trainer:
    capturing = False

    def __init__(self, socket, stream="train", **more):
        self.gpu, self.batches, self.seen = Fake(None, None), [], {}
        batches.Cuda, device.cuda = lambda *_: self.gpu, lambda *_: torch.device("cpu")
        torch.cuda.is_current_stream_capturing = lambda: self.capturing
        torch.cuda.device = lambda _: contextlib.nullcontext()
        more = {"micro_batch": 4, "slots": 4, "device": "cuda", **more}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.loader = tokend.Loader(stream, socket=socket, rank=0, world=1, **more)
        self.warned = [str(w.message) for w in caught if "registered" in str(w.message)]

    def steps(self, count=ENOUGH):
        for _, batch in zip(range(count), self.loader, strict=False):
            self.batches.append(batch)

    def end(self, **seen):
        self.gpu.synchronize()
        self.loader.close()
        rows = [
            dict(zip(("position", "input_ids", "labels"), row, strict=True))
            for batch in self.batches
            for row in zip(
                *(batch[name].tolist() for name in ("position", "input_ids", "labels")), strict=True
            )
        ]
        dtypes = sorted({str(batch["input_ids"].dtype) for batch in self.batches})
        faults = self.gpu.cu.fakeFaults(), self.gpu.cu.fakeRegistered()
        assert faults == (0, 0)
        return {"rows": rows, "dtypes": dtypes, "warned": self.warned, **seen}


def rows(socket, waits=True, **more):
    trainer = Trainer(socket, **more)
    trainer.gpu.waits = waits
    trainer.steps()
    return trainer.end()


def kinds(socket):
    return [
        rows(socket, waits=False),
        rows(socket, dtype="int32", provenance=True),
        rows(socket, stream="wide"),
        rows(socket, stream="whole"),
        rows(socket, stream="finite", start=448),
    ]


def small(socket):
    """All slots are being copied."""
    trainer = Trainer(socket, slots=2)
    trainer.steps()
    return trainer.end()


def late(socket):
    """The GPU does nothing for a while: a wait for it would never end."""
    trainer = Trainer(socket, slots=8)
    trainer.gpu.cu.fakeHold(1)
    trainer.steps(4)
    pending = trainer.gpu.cu.fakePending()
    trainer.gpu.cu.fakeHold(0)
    return trainer.end(pending=pending)


def full(socket):
    """The device has no memory left for a while, or a signal's handler moves. Nothing is lost."""
    trainer, raised = Trainer(socket), []
    gpu, loader = trainer.gpu, trainer.loader

    def no_memory():
        raise torch.OutOfMemoryError("no memory")

    moves = [("full", does) for does in (no_memory, loader.reset, loader.close)]
    for _ in range(3):
        trainer.steps(2)
        for name, value in (*moves, ("broken", True), ("capturing", True)):
            where = trainer if name == "capturing" else gpu
            setattr(where, name, value)
            try:
                trainer.steps(1)
            except (RuntimeError, tokend.Error) as error:
                raised.append(str(error))
            setattr(where, name, False)
    trainer.steps(3)
    return trainer.end(raised=raised)


def elsewhere(socket):
    """A seek and a mix while slots are copied; another micro-batch changes the shape."""
    trainer = Trainer(socket, run="elsewhere")
    trainer.steps(3)
    trainer.loader.seek(position=1000)
    trainer.steps(2)
    trainer.loader.set_mix({"web": 1, "code": 1})
    cursor = trainer.loader.state_dict()["cursor"].hex()
    trainer.steps(2)
    trainer.loader.seek(micro_batch=2)
    trainer.steps(3)
    return trainer.end(cursor=cursor)


def refused(socket):
    """Rings that cannot be registered, one after the other."""
    trainer = Trainer(socket)
    for _ in range(2):
        trainer.steps(3)
        trainer.loader.seek()
    trainer.steps(6)
    return trainer.end(pinned=trainer.loader.stats()["pinned_bytes"])


def dropped(socket):
    """A loader that nobody closes ends its session, and its ring is unregistered."""
    trainer = Trainer(socket)
    trainer.steps(3)
    trainer.batches, trainer.loader = [], None
    return {"registered": trainer.gpu.cu.fakeRegistered()}


def restart(socket, steps=9, **more):
    trainer = Trainer(socket, **more)
    trainer.steps(3)
    print("look", flush=True)
    sys.stdin.readline()
    trainer.steps(steps)
    if steps > 9:  # too many rows to print
        trainer.batches = []
    stats = trainer.loader.stats()
    return trainer.end(reattached=stats["reattached"], batches=stats["batches"])


def smaller(socket):
    """Before, the ring had 7 slots. All slots are being copied."""
    return restart(socket, steps=17, micro_batch=4096, slots=0)


if __name__ == "__main__":
    like = torch.empty_like  # torch pins memory only where there is a GPU
    torch.empty_like = lambda *array, pin_memory=False, **more: like(*array, **more)
    print(json.dumps(globals()[sys.argv[2]](sys.argv[1])))
