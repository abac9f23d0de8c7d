"""A loader is no dataset. Who gives it to a DataLoader or to a Trainer as one is told so, in one line.

Both ask for its length first, and what they make of the answer does not name the mistake. So the one who asks is looked at.
"""

from __future__ import annotations

import sys
from typing import Any

from ._tokend import ArgumentError

PLACE = (
    "tokend.Loader: takes the place of a DataLoader, and is not a dataset for one: iterate over the loader itself; with transformers' "
    "Trainer use tokend.transformers.TokendTrainer"
)


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
