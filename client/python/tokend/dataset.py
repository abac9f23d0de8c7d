"""What a loader says to callers that take it for a dataset: torch's DataLoader, a Trainer."""

from __future__ import annotations

import sys

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
