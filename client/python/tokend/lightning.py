"""The old name of tokend.integrations.lightning."""

from .integrations.lightning import Batches, TokendCallback, TokendData, Validation

__all__ = ["Batches", "TokendCallback", "TokendData", "Validation"]
