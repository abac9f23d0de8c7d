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
tokend.throughput (metrics), tokend.integrations (adapters). Programs: python -m tokend --help.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    from . import oldest  # noqa: F401  comes first
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
    WaitError,
)
from ._tokend import version as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .control import Request
    from .cursor import Cursor
    from .kinds import Batch, RequestedBatch, TokensBatch, ViewBatch
    from .loader import Loader
    from .same_place import DisagreementError
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
    "WaitError",
    "WorkerError",
    "__version__",
]

# The modules of names that are imported when they are used first, so that `import tokend` is fast.
_HOMES = {
    "Batch": "kinds",
    "Cursor": "cursor",
    "DisagreementError": "same_place",
    "Loader": "loader",
    "Request": "control",
    "RequestedBatch": "kinds",
    "TokensBatch": "kinds",
    "TransformError": "transform",
    "ViewBatch": "kinds",
    "WorkerError": "transform",
}
_MODULES = (
    "control",
    "cursor",
    "dataset",
    "device",
    "integrations",
    "kinds",
    "loader",
    "mesh",
    "throughput",
    "transform",
    "view",
)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module("." + name, __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("." + _HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
