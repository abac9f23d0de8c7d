"""Token batches for training loops, from a tokend daemon.

>>> import tokend
>>> with tokend.Loader("train", micro_batch=4) as loader:
...     batch = next(loader)
>>> sorted(batch)
['dataset', 'input_ids', 'labels', 'position']

  Loader   iterates over micro-batches; its arguments are described there
  Batch    the type of a batch, for type checkers
  Cursor   the state of a run, as a value
  Request  an operator's request, returned by Loader.control()
  Error    the base of all errors

Modules with more: tokend.parallel (ranks and meshes), tokend.transform, tokend.device (GPU),
tokend.throughput (metrics), tokend.integrations (adapters). Programs: python -m tokend --help.
"""

from ._tokend import version as __version__
from .batch import Batch
from .cursor import Cursor
from .errors import (
    ArgumentError,
    ConnectError,
    DataError,
    Error,
    RefusedError,
    ResourceError,
    WaitError,
)
from .group import DisagreementError
from .loader import Loader
from .requests import Request
from .transform import TransformError

__all__ = [
    "ArgumentError",
    "Batch",
    "ConnectError",
    "Cursor",
    "DataError",
    "DisagreementError",
    "Error",
    "Loader",
    "RefusedError",
    "Request",
    "ResourceError",
    "TransformError",
    "WaitError",
    "__version__",
]
