"""megatron_run.py PROGRAM ARGUMENTS…: runs an unmodified Megatron program without a GPU, with
torch.cuda replaced by the CPU.
"""

import collections
import os
import runpy
import sys
import types

import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch.overrides import TorchFunctionMode

torch.compile = lambda f=None, **_: f if f else (lambda g: g)


def here(place):
    if isinstance(place, torch.device) or (isinstance(place, str) and place.startswith("cuda")):
        return torch.device("cpu")
    return place


class Cpu(TorchFunctionMode):
    def __torch_function__(self, function, types_, arguments=(), named=None):
        named = dict(named or {})
        if named.get("device") is not None:
            named["device"] = "cpu"
        return function(*[here(a) for a in arguments], **named)


class Stream:
    """A stream, event or device whose methods do nothing."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: 0.0


cuda = torch.cuda
for name in (
    "set_device synchronize empty_cache reset_peak_memory_stats manual_seed manual_seed_all "
    "set_rng_state _lazy_init init "
    "reset_max_memory_allocated _lazy_call memory_snapshot"
).split():
    setattr(cuda, name, lambda *_, **__: None)
for name in (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved mem_get_info".split()
):
    setattr(cuda, name, lambda *_, **__: 0)
cuda.is_available = lambda: True
cuda.current_device, cuda.device_count = lambda: torch.device("cpu"), lambda: 8
cuda.is_current_stream_capturing = lambda: False
cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
cuda.random.set_rng_state = lambda *_, **__: None
cuda.memory_stats = lambda *_, **__: collections.defaultdict(int)
cuda.get_device_properties = lambda *_: types.SimpleNamespace(
    major=9, minor=0, multi_processor_count=1, total_memory=1 << 34, name="cpu"
)
cuda.get_device_capability, cuda.get_device_name = lambda *_: (9, 0), lambda *_: "cpu"
cuda.Stream = cuda.Event = Stream
cuda.stream = cuda.current_stream = cuda.default_stream = cuda.device = lambda *_: Stream()
for name, dtype in {
    "Float": torch.float32,
    "Long": torch.int64,
    "Int": torch.int32,
    "Byte": torch.uint8,
    "Double": torch.float64,
    "Half": torch.half,
    "BFloat16": torch.bfloat16,
}.items():
    setattr(cuda, f"{name}Tensor", lambda values=(), dtype=dtype: torch.tensor(values, dtype=dtype))
torch.Tensor.cuda = lambda tensor, *_, **__: tensor
torch.nn.Module.cuda = lambda module, *_, **__: module

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    with Cpu():
        runpy.run_path(sys.argv[0], run_name="__main__")
