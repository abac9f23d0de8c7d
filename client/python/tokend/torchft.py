"""The old name of tokend.integrations.torchft."""

from .integrations.torchft import TokendReplica

__all__ = ["TokendReplica"]
