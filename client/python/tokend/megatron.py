"""The old name of tokend.integrations.megatron."""

from .integrations.megatron import TokendControl, TokendIterator

__all__ = ["TokendControl", "TokendIterator"]
