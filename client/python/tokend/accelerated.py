"""Finds what accelerate does with a loader: it deals batches out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ._tokend import ArgumentError

DEALT = (
    "tokend.Loader: accelerate's DataLoader deals out the batches of rank 0's loader, or every "
    "n-th batch of each, so rows are lost; make a loader in each process, iterate over it, and do "
    "not pass a DataLoader around it to prepare()"
)
DEALS = ("DataLoaderDispatcher", "IterableDatasetShard")


def _dataloaders() -> Iterator[Any]:
    """accelerate's dataloaders among the callers. The user's dataset may call in between."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            yield frame.f_locals.get("self")
        frame = frame.f_back


def check_who_iterates() -> None:
    """Called for each pass, and again for its first batch: torchdata's StatefulDataLoader makes
    the pass before accelerate has its number of processes.

    Raises:
        ArgumentError: batches would be dealt out to several ranks.
    """
    for found in _dataloaders():
        kind, state = type(found).__name__, getattr(found, "state", found)
        if kind in DEALS and getattr(state, "num_processes", 1) > 1:
            raise ArgumentError(DEALT)
