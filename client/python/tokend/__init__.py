"""Token batches for training loops, from a tokend daemon.

>>> import tokend
>>> with tokend.Loader("train", micro_batch=4) as loader:
...     batch = next(loader)
>>> sorted(batch)
['dataset', 'input_ids', 'labels', 'position']

  Loader       iterates over micro-batches; its arguments are described there
  Cursor       the state of a run, as a value
  Request      an operator's request, returned by Loader.control()
  Error        the base of all errors
  Batch, RequestedBatch, TokensBatch, ViewBatch
               types of batches, for type checkers

Modules with more: tokend.mesh (parallelism), tokend.transform, tokend.device (GPU), tokend.view,
tokend.throughput (metrics), tokend.integrations (adapters), tokend.tokenize and tokend.show
(programs).
"""

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
