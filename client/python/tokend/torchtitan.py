"""The old name of tokend.integrations.torchtitan."""

from .integrations.torchtitan import TokendDataLoader, TokendTrainer

__all__ = ["TokendDataLoader", "TokendTrainer"]
