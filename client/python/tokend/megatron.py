"""The old name of tokend.integrations.megatron."""

from .integrations.megatron import TokendIterator

__all__ = ["TokendIterator"]
