"""The old name of tokend.integrations.transformers."""

from .integrations.transformers import (
    Batches,
    TokendCallback,
    TokendCursor,
    TokendFeed,
    TokendTrainer,
)

__all__ = ["Batches", "TokendCallback", "TokendCursor", "TokendFeed", "TokendTrainer"]
