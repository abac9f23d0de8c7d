"""Runs an unmodified litgpt without GPUs. FSDP, its choice for several devices, needs an
accelerator, so DDP replaces it.
"""

import os
import sys

import lightning.fabric.strategies
from lightning.fabric.strategies import DDPStrategy


class OnCpu:
    def __new__(cls, **_):
        return DDPStrategy()


lightning.fabric.strategies.FSDPStrategy = OnCpu
sys.path.insert(0, os.getcwd())  # the example
from litgpt.__main__ import main  # noqa: E402

main()
