"""Finds what accelerate does with a loader: it deals batches out, takes one ahead, accumulates.

accelerate does not ask the loader, so these checks look at its frames among the callers, and at its
GradientState. accelerate is not imported here.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from . import callers, phrases
from ._tokend import ArgumentError

DEALT = (
    "tokend.Loader: accelerate's DataLoader deals out the batches of rank 0's loader, or every "
    "n-th batch of each, so rows are lost; make a loader in each process, iterate over it, and do "
    "not pass a DataLoader around it to prepare()"
)
TAKEN_AHEAD = (
    "state_dict: accelerate's DataLoader has taken a batch that is not trained on, so a resume "
    "would lose it; iterate over the loader itself, which prepare() returns as it is, or pass "
    "prefetched=1"
)
WITHIN_A_STEP = (
    "state_dict: accelerate has accumulated gradients that no checkpoint contains, so a resume "
    "would lose their batches; save only if accelerator.sync_gradients"
)
AHEAD = ("DataLoaderShard", "DataLoaderDispatcher")
DEALS = ("DataLoaderDispatcher", "IterableDatasetShard")


def check_who_iterates() -> bool:
    """Called for each pass, and again for its first batch: torchdata's StatefulDataLoader makes
    the pass before accelerate has its number of processes.

    Returns whether the caller takes a batch ahead.

    Raises:
        ArgumentError: batches would be dealt out to several ranks.
    """
    ahead = False
    for frame in callers.frames("accelerate.data_loader"):
        found = frame.f_locals.get("self")
        kind, state = type(found).__name__, getattr(found, "state", found)
        if kind in DEALS and getattr(state, "num_processes", 1) > 1:
            raise ArgumentError(DEALT)
        ahead = ahead or kind in AHEAD
    return ahead


def _accumulates() -> Any:
    """accelerate's GradientState if the last backward was not followed by an optimizer step."""
    module = sys.modules.get("accelerate.state")
    make = getattr(module, "GradientState", None)  # one object for all
    state = None if make is None else make()
    return None if state is None or state.sync_gradients else state


def check_who_saves(ahead: bool, ended: bool) -> None:
    """Called by state_dict() of a loader without commits.

    Args:
        ahead: what check_who_iterates() returned.
        ended: the stream has ended. The step that it left open stays so.

    Raises:
        ArgumentError: the state would lose batches.
    """
    # a StatefulDataLoader's state is asked for before the next batch is taken
    if ahead and next(callers.frames("accelerate.data_loader"), None) is None:
        raise ArgumentError(TAKEN_AHEAD)
    if not ended and _accumulates() is not None:
        raise ArgumentError(WITHIN_A_STEP)


def begin_a_step() -> None:
    """Called by load_state_dict(). Accelerator.load_state() restores the number of batches, which
    decides when a step ends, in the processes that were there at the save. With another
    gradient_accumulation_steps the first step would be too short, or end at another batch in a new
    process. A loader's state is between two steps, so the number begins at 0.
    """
    for frame in callers.frames("accelerate.accelerator"):
        accelerator = frame.f_locals.get("self")
        if getattr(accelerator, "step", 0) % getattr(accelerator, "gradient_accumulation_steps", 1):
            accelerator.step = 0


def warn_of_an_open_step(rows: int) -> None:
    """Called at a stream's end. @rows: those of a batch on all ranks. Evaluation is exempt."""
    state = _accumulates()
    if state is None or not sys.modules["torch"].is_grad_enabled():
        return
    text = phrases.step_left_open(rows * state.num_steps)
    warnings.warn(text, stacklevel=callers.users_level())
