"""Runs an unmodified torchtitan without an accelerator.

The CPU is declared to be the accelerator, and torch.cpu gets the functions that torchtitan calls in
an accelerator's module. torchtitan 0.3 also needs two functions that torch 2.13 lacks:
torch.distributed.set_timeout, and a pipeline schedule's step() with micro-batches as arguments.
"""

import inspect
import os
import sys
import types

import torch
import torch._utils
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

torch._utils._get_available_device_type = lambda: "cpu"
missing = {
    "get_device_name": lambda *_: "cpu",
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda *_: None,
    "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=1 << 34),
    "memory_stats": lambda *_: {},
    "max_memory_reserved": lambda *_: 0,
}
for name, call in missing.items():
    if not hasattr(torch.cpu, name):
        setattr(torch.cpu, name, call)
torch.cpu.current_device = lambda: 0  # for barrier(device_ids=); torch.cpu returns "cpu"
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = lambda timeout, group=None: None


def step(
    schedule,
    *,
    arg_mbs=None,
    kwarg_mbs=None,
    target_mbs=None,
    losses=None,
    loss_kwargs=None,
    return_outputs=True,
):
    schedule._stage.has_backward = schedule._has_backward
    schedule._stage.clear_runtime_states()
    schedule._step_microbatches(
        arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs
    )


if "arg_mbs" not in inspect.signature(PipelineScheduleSingle.step).parameters:
    PipelineScheduleSingle.step = step

sys.path.insert(0, os.getcwd())  # the example
from torchtitan.train import main  # noqa: E402

main()
