"""A loader is no dataset. Who gives it to a DataLoader or to a Trainer as one is told so, in one
line.

Both ask for its length first, and what they make of the answer does not name the mistake. So the
one who asks is looked at.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ._tokend import ArgumentError

PLACE = (
    "tokend.Loader: takes the place of a DataLoader, and is not a dataset for one: iterate over "
    "the loader itself; with transformers' "
    "Trainer use tokend.transformers.TokendTrainer"
)


ACCELERATE = (
    "tokend.Loader: accelerate's DataLoader deals out the batches of rank 0's loader, or every "
    "n-th batch of each, so rows are lost: give "
    "prepare() no DataLoader around this loader, and iterate over the loader itself, which each "
    "process makes for its own rank"
)
LIGHTNING = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
ENDLESS = 1 << 40  # batches


def is_lightning() -> bool:
    """Called by __len__: is it Lightning that asks? From a loader without a length it takes one
    batch ahead, and saves a state with that batch behind it, so a resume would lose it. And it
    counts the batches before a resume into the length, in whatever world they were taken. So
    Lightning is told a length that no run reaches, unless the stream is finite and at its
    beginning.
    """
    return sys._getframe(2).f_globals.get("__name__", "").startswith(LIGHTNING)


def check_who_iterates() -> None:
    """Called once a pass. A dataset of the user's may lie between the loader and accelerate."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            deals = frame.f_locals.get("self")
            state = getattr(deals, "state", deals)
            if (
                type(deals).__name__ in ("DataLoaderDispatcher", "IterableDatasetShard")
                and getattr(state, "num_processes", 1) > 1
            ):
                raise ArgumentError(ACCELERATE)
        frame = frame.f_back


def check_who_asks(loader: Any) -> None:
    """Called by __len__, which a DataLoader's sampler or a Trainer may have called."""
    asks = sys._getframe(2)
    if asks.f_globals.get("__name__", "").startswith("torch.utils.data"):
        raise TypeError(PLACE)
    if asks.f_code.co_name != "has_length" or asks.f_back is None:
        return
    trainer = asks.f_back.f_locals.get("self")
    if any(getattr(trainer, name, None) is loader for name in ("train_dataset", "eval_dataset")):
        raise ArgumentError(PLACE)  # a TypeError would say to has_length() that there is none
