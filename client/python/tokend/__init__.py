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
)
from ._tokend import version as __version__
from .same_place import DisagreementError
from .control import Request
from .cursor import Cursor
from .kinds import Batch, RequestedBatch, TokensBatch, ViewBatch
from .loader import Loader
from .transform import TransformError, WorkerError

TokendError = Error

__all__ = [
    "ArgumentError",
    "Batch",
    "ConnectError",
    "Cursor",
    "DataError",
    "DisagreementError",
    "Error",
    "ForkedError",
    "HeldError",
    "Loader",
    "NotNowError",
    "ProtocolError",
    "RefusedError",
    "Request",
    "RequestedBatch",
    "ResourceError",
    "TokendError",
    "TokensBatch",
    "TransformError",
    "ViewBatch",
    "WorkerError",
    "__version__",
]
