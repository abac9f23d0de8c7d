"""The old name of tokend.integrations.olmo."""

from .integrations.olmo import TokendCallback, TokendDataLoader

__all__ = ["TokendCallback", "TokendDataLoader"]
