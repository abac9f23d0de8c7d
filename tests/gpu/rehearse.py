#!/usr/bin/env python3
"""Runs check.py without a GPU, to find mistakes in the checks.

torch.cuda is replaced by functions over torch's CPU and the fake libcuda.so.1 (fake_cuda.c). The
output proves nothing about GPUs.

rehearse.py [PATTERN…], with LD_LIBRARY_PATH=build/gcc/check/fake and FAKE_CUDA_ANY_MEMORY=1. Exit
status as check.py's.
"""

import contextlib
import ctypes as c
import sys
import time
from types import SimpleNamespace

import torch

CU = c.CDLL("libcuda.so.1")
CU.fakeIsRegistered.argtypes = [c.c_void_p]


def call(name, *args):
    error = getattr(CU, name)(*args)
    if error:
        raise RuntimeError(f"{name}: {error}")


def enter_context():
    """Makes the device's context current in any thread, as the CUDA runtime does."""
    current = c.c_void_p()
    call("cuCtxGetCurrent", c.byref(current))
    if not current:
        call("cuCtxSetCurrent", CONTEXT)


call("cuInit", 0)
CONTEXT = c.c_void_p()
call("cuDevicePrimaryCtxRetain", c.byref(CONTEXT), 0)
enter_context()


class Event:
    def __init__(self, enable_timing=False):
        self.at = None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        torch.cuda.synchronize()

    def elapsed_time(self, end):
        return max(end.at - self.at, 1e-7) * 1e3


class Stream:
    def __init__(self, device=None, priority=0):
        enter_context()
        handle = c.c_void_p()
        call("cuStreamCreate", c.byref(handle), 1)
        self.cuda_stream = handle.value

    def record_event(self):
        event = Event()
        event.record()
        return event

    def wait_event(self, event):
        assert isinstance(event, Event)


@contextlib.contextmanager
def stream(of):
    """Work inside is done at once, so earlier work of the stream is done first."""
    call("cuStreamSynchronize", c.c_void_p(of.cuda_stream))
    yield


@contextlib.contextmanager
def graph(graph, pool=None, stream=None, capture_error_mode="global"):
    enter_context()
    CU.fakeCapture(c.c_void_p(stream.cuda_stream), 1)
    yield
    CU.fakeCapture(c.c_void_p(stream.cuda_stream), 0)
    if CU.fakeCaptureSpoiled():
        raise RuntimeError("the capture was invalidated")


def synchronize(device=None):
    enter_context()
    call("cuCtxSynchronize")


def allocates(make):
    """Wraps a function of torch: allocates from the driver for device or pinned tensors, as torch
    may, and makes the tensor on the CPU.
    """

    def made(*args, device=None, pin_memory=False, **kwargs):
        if device is not None or pin_memory:
            enter_context()
            at = c.c_uint64()
            call("cuMemAlloc_v2", c.byref(at), c.c_size_t(64))
            call("cuMemFree_v2", at)
        return make(*args, **kwargs)

    return made


def to(tensor, where, *args, **kwargs):
    if isinstance(where, (str, torch.device)):
        kwargs.pop("non_blocking", None)
        return tensor.clone()
    return MOVE(tensor, where, *args, **kwargs)


MOVE = torch.Tensor.to
for name in ("empty", "empty_like", "ones", "randint"):
    setattr(torch, name, allocates(getattr(torch, name)))
torch.Tensor.to = to
torch.Tensor.cuda = lambda tensor, *_: tensor
torch.Tensor.record_stream = lambda tensor, stream: None
torch.Tensor.is_pinned = lambda tensor: bool(CU.fakeIsRegistered(tensor.data_ptr()))
torch.Tensor.is_cuda = True
torch.compile = lambda step, **_: step
cudart = SimpleNamespace(
    cudaHostRegister=lambda at, size, flags: 0, cudaHostUnregister=lambda at: 0
)
made_up = {
    "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
    "get_device_name": lambda device: "nothing",
    "current_stream": lambda device=None: SimpleNamespace(wait_event=lambda event: None),
    "is_current_stream_capturing": lambda: False,
    "synchronize": synchronize, "_sleep": lambda cycles: None, "cudart": lambda: cudart,
    "CUDAGraph": object, "graph": graph,
    "stream": stream, "Stream": Stream, "Event": Event,
}  # fmt: skip
for name, value in made_up.items():
    assert hasattr(torch.cuda, name), f"torch.cuda has no {name}"
    setattr(torch.cuda, name, value)

import check  # noqa: E402
from check import check_processes, check_training  # noqa: E402

check_processes.VICTIM, check_processes.LEAVER = (
    code.replace("import torch", "import rehearse, torch")
    for code in (check_processes.VICTIM, check_processes.LEAVER)
)
check_training.model = lambda torch, width=0, layers=0: torch.nn.Sequential(
    torch.nn.Embedding(65536, 2), torch.nn.Linear(2, 8)
)
check_training.loss_of = lambda torch, net, tokens: net(tokens[:, :64]).square().mean()

if __name__ == "__main__":
    sys.exit(check.main())
