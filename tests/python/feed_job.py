"""A trainer with a Feed, on the fake libcuda.so.1. test_device.py runs it, with LD_LIBRARY_PATH.

feed_job.py SOCKET SCENARIO; prints one JSON object: the positions of the rows handed out, and the
results of its checks.
"""

import ctypes as c
import json
import math
import sys
import warnings

import torch
from tokend import _tokend, device

ENOUGH = 12


class Fake:
    """Replaces device.Cuda. torch has no tensors on the fake GPU, so they are in its "device
    memory", and work on the side stream is queued there as calls.
    """

    number, int64, int32, int16 = 0, torch.int64, torch.int32, torch.int16

    def __init__(self, ordered=True):
        self.cu = c.CDLL("libcuda.so.1")
        self.ordered, self.calls, self.handed_over, self.full = ordered, [], 0, False
        self.caller_captures = self.broken = False
        context, stream = c.c_void_p(), c.c_void_p()
        assert self.cu.cuInit(0) == 0 and self.cu.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
        assert self.cu.cuCtxSetCurrent(context) == 0
        assert self.cu.cuStreamCreate(c.byref(stream), 1) == 0
        self.stream = stream.value

    def empty(self, shape, dtype):
        if self.full:
            raise torch.OutOfMemoryError("no memory")
        at, size = c.c_uint64(), math.prod(shape) * dtype.itemsize
        assert self.cu.cuMemAlloc_v2(c.byref(at), c.c_size_t(size)) == 0
        return torch.frombuffer((c.c_char * size).from_address(at.value), dtype=dtype).view(shape)

    def run(self, work):
        if self.broken:
            raise RuntimeError("no kernel")
        if not self.ordered:
            work()  # wrong on purpose: the copy is not complete yet
            return True
        call = c.CFUNCTYPE(None, c.c_void_p)(lambda _: work())
        self.calls.append(call)
        assert self.cu.cuLaunchHostFunc(c.c_void_p(self.stream), call, None) == 0
        return True

    def capturing(self):
        return self.caller_captures

    def hand_over(self, tensor, event):
        self.handed_over += 1

    def finish(self):
        assert self.cu.cuStreamSynchronize(c.c_void_p(self.stream)) == 0


class Trainer:
    def __init__(
        self, path, stream="train", micro=4, slots=4, dtype=None, ordered=True, labels=None, **start
    ):
        start |= {"socket": path, "slots": slots, "deadline_ms": 20000}
        self.client = _tokend.Client(stream, micro, **start)
        self.gpu = Fake(ordered)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            of = (self.client, self.client.shape(), "cuda", dtype, self.gpu)
            self.feed = device.Feed(*of, labels=labels)
        self.warned = [str(w.message) for w in caught]
        self.batches, self.ahead = [], 0

    def look(self):
        shape = self.client.shape()
        self.small = torch.empty((2, shape["rows"]), dtype=torch.int64)
        return self.client.look_into(0, self.small.data_ptr())

    def step(self):
        handed = self.feed.next(self.look)
        if handed is None:
            return False
        tokens, (valid, after, *_) = handed
        self.client.takes = self.feed.takes(after)
        assert self.client.taken() == self.client.position() == after, "that of this batch"
        self.ahead += self.client.copied()
        self.batches.append((tokens, self.small[0].clone(), valid))
        return True

    def steps(self, count=ENOUGH):
        for _ in range(count):
            assert self.step()

    def seek(self, cursor=None, rank=0, world=1, micro=4):
        self.client.seek(cursor, rank, world, micro)
        self.feed.begin(self.client.shape())

    def end(self, **more):
        self.gpu.finish()
        pinned = self.client.shape()["pinned_bytes"]
        rows = [
            {"position": int(position), "tokens": row.tolist()}
            for tokens, positions, valid in self.batches
            for row, position in list(zip(tokens, positions, strict=True))[:valid]
        ]
        kinds = sorted({str(tokens.dtype) for tokens, _, _ in self.batches})
        self.client.close()
        report = {"rows": rows, "dtypes": kinds, "warned": self.warned, "pinned": pinned, **more}
        report |= {"ahead": self.ahead, "faults": self.gpu.cu.fakeFaults()}
        print(json.dumps({**report, "registered": self.gpu.cu.fakeRegistered()}))


def plain(path, **keys):
    t = Trainer(path, **keys)
    t.steps()
    t.end()


def wide(path):
    plain(path, stream="wide")


def disordered(path):
    plain(path, ordered=False)


def narrow(path):
    t = Trainer(path, dtype=torch.int32)
    t.steps()
    refused = []
    for types in ({"dtype": torch.int32}, {"labels": torch.int32}):
        try:
            Trainer(path, "wide", **types)
        except _tokend.ArgumentError as error:
            refused.append(str(error))
    t.end(refused=refused)


def late(path):
    """The GPU does nothing for a while: a wait for it would never end."""
    t = Trainer(path, slots=8)
    t.steps(2)
    t.gpu.cu.fakeHold(1)
    t.steps(4)
    pending = t.gpu.cu.fakePending()
    t.gpu.cu.fakeHold(0)
    t.steps(6)
    t.end(pending=pending)


def capture(path):
    """Another thread captures a graph, in the mode that forbids calls in all threads. Here empty()
    allocates, as torch would.
    """
    t = Trainer(path)
    t.steps(1)
    other = c.c_void_p()
    assert t.gpu.cu.cuStreamCreate(c.byref(other), 1) == 0
    t.gpu.cu.fakeCapture(other, 1)
    t.steps(5)
    t.seek(micro=2)  # another shape
    t.steps(3)
    spoiled = t.gpu.cu.fakeCaptureSpoiled()
    mode = c.c_int(0)
    t.gpu.cu.cuThreadExchangeStreamCaptureMode(c.byref(mode))
    at = c.c_uint64()
    refused = t.gpu.cu.cuMemAlloc_v2(c.byref(at), c.c_size_t(64))
    t.gpu.cu.fakeCapture(other, 0)
    t.end(spoiled=spoiled, mode=mode.value, refused=refused)


def full(path):
    """The device has no memory left for a while. Nothing is lost, whenever that begins."""
    t = Trainer(path)
    raised = []

    def fails(count, error):
        for _ in range(count):
            try:
                t.step()
            except error as why:
                raised.append(str(why))

    for _ in range(3):
        t.steps(2)
        t.gpu.full = True
        fails(2, torch.OutOfMemoryError)
        t.gpu.full = False
    t.gpu.broken = True
    fails(3, RuntimeError)
    t.gpu.broken = False
    t.gpu.caller_captures = True
    fails(1, _tokend.Error)
    t.gpu.caller_captures = False
    t.steps(3)
    t.end(raised=raised)


def elsewhere(path):
    """A seek and a mix drop the batch copied ahead; another micro-batch changes the shape."""
    t = Trainer(path)
    t.steps(3)
    t.seek(_tokend.cursor_seek(t.client.cursor(), 1000))
    t.steps(2)
    acts_from = t.client.set_mix(["web", "code"], [0.5, 0.5])
    t.feed.begin(t.client.shape())
    t.steps(2)
    t.seek(micro=2)
    t.steps(3)
    t.end(acts_from=acts_from)


def finite(path):
    t = Trainer(path, "finite")
    while t.step():
        pass
    t.end(batches=t.client.shape()["batches_in_all"])


def told(path):
    """The daemon learns whether the ring is registered."""
    t = Trainer(path)
    t.steps(3)
    print("look", flush=True)
    sys.stdin.readline()
    t.end()


def refused(path):
    """Rings that cannot be registered, one after the other."""

    class Counted:
        pins = 0

        def __init__(self, client):
            self._client = client

        def __getattr__(self, name):
            return getattr(self._client, name)

        def pin(self, device):
            self.pins += 1
            self._client.pin(device)

    t = Trainer(path)
    t.feed._client = Counted(t.client)
    for _ in range(4):
        t.steps(3)
        t.seek()
    t.end(pins=t.feed._client.pins)


def restart(path):
    t = Trainer(path)
    t.steps(3)
    print("killme", flush=True)
    sys.stdin.readline()
    t.steps(9)
    t.end(reattached=t.client.shape()["reattached"])


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
