"""Finds callers that take the loader for a dataset: torch's DataLoader, a Trainer.

DataLoader and Trainer ask for the length first. Their own errors do not name the mistake, so
__len__ looks at its caller.
"""

from __future__ import annotations

import sys
from typing import Any

from ._tokend import ArgumentError

PLACE = (
    "tokend.Loader: replaces a DataLoader, and is not a dataset for one; iterate over the loader "
    "itself, or with transformers' Trainer use tokend.integrations.transformers.TokendTrainer"
)
NO_DATASET = (
    "tokend.Loader: has no dataset, because it replaces a DataLoader; it resumes at its state, so "
    "do not skip batches"
)
LIGHTNING = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
ENDLESS = 1 << 40  # batches


def is_lightning() -> bool:
    """Called by __len__: does Lightning ask?

    From a loader without a length, Lightning takes one batch ahead and saves a state after that
    batch, so a resume would lose it. It also counts batches from before a resume into the length,
    whatever the world was then. So Lightning gets ENDLESS, a length that no run reaches, unless the
    stream is finite and at its beginning.
    """
    return sys._getframe(2).f_globals.get("__name__", "").startswith(LIGHTNING)


def check_who_asks(loader: Any) -> None:
    """Called by __len__: raises if a DataLoader's sampler or a Trainer asks."""
    asks = sys._getframe(2)
    if asks.f_globals.get("__name__", "").startswith("torch.utils.data"):
        raise TypeError(PLACE)
    if asks.f_code.co_name != "has_length" or asks.f_back is None:
        return
    trainer = asks.f_back.f_locals.get("self")
    if any(getattr(trainer, name, None) is loader for name in ("train_dataset", "eval_dataset")):
        raise ArgumentError(PLACE)  # has_length() catches a TypeError
