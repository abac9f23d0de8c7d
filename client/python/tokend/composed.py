"""Finds composer's Trainer where it drops batches of a loader."""

from __future__ import annotations

from types import FrameType
from typing import Any

from . import callers
from ._tokend import ArgumentError

DROPS = (
    "tokend.Loader: composer would drop batches: one of each evaluation, and on resume and in a "
    "second fit() as many as the epoch had; pass TokendData and TokendCallback of "
    "tokend.integrations.composer"
)


def check_who_iterates(loader: Any) -> None:
    """Called when a pass takes its first batch. Between @loader and composer there may be an object
    of the user.
    """
    if any(_drops(loader, frame) for frame in callers.frames("composer.trainer.trainer")):
        raise ArgumentError(DROPS)


def _drops(loader: Any, frame: FrameType) -> bool:
    trainer: Any = frame.f_locals.get("self")
    called, state = frame.f_code.co_name, getattr(trainer, "state", None)
    if called == "_spin_dataloaders_to_cur_epoch":
        return frame.f_locals.get("dataloader") is loader
    if called != "_iter_dataloader" or state is None:
        return False
    if state.dataloader is not state.train_dataloader:
        return state.dataloader is loader  # len() batches are taken, and the next pass is empty
    return (
        trainer.spin_dataloaders
        and "train" not in state.dataset_resumption
        and not hasattr(getattr(state.dataloader, "dataset", None), "load_state_dict")
    )
