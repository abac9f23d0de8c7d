"""Tokens for trainers, from a tokend daemon: see Loader."""

from ._tokend import (
    ArgumentError,
    ConnectError,
    DataError,
    Error,
    ForkedError,
    HeldError,
    NotNowError,
    ProtocolError,
    RefusedError,
    ResourceError,
    cursor_position,
    cursor_seek,
)
from ._tokend import version as __version__
from .loader import Loader

TokendError = Error

__all__ = [
    "ArgumentError",
    "ConnectError",
    "DataError",
    "Error",
    "ForkedError",
    "HeldError",
    "Loader",
    "NotNowError",
    "ProtocolError",
    "RefusedError",
    "ResourceError",
    "TokendError",
    "__version__",
    "cursor_position",
    "cursor_seek",
]
