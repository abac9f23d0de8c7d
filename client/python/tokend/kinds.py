"""The types of batches for type checkers: by framework, and by the loader's arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Required, TypedDict
elif sys.version_info >= (3, 11):
    from typing import TypedDict
else:

    class TypedDict(dict):
        """Python 3.10 has none that is generic, and running code needs only the names."""

        def __init_subclass__(cls, total=True):
            pass


Array = TypeVar("Array")  # torch.Tensor, or numpy.ndarray


class Rows(TypedDict, Generic[Array]):
    """The keys of every batch."""

    position: Array  # int64 [b]
    dataset: Array  # int64 [b]


class Requestable(TypedDict, Generic[Array]):
    """The keys on request: documents=True, loss_mask=True, … See Loader."""

    position_ids: Array  # int64 [b, seq]
    cu_seqlens: Array  # int32 [n + 1]
    max_seqlen: int
    loss_mask: Array  # float32 [b, seq]
    attention_mask: Array  # int64 [b, seq]
    shift_labels: Array  # int64 or int32 [b, seq]
    epoch: Array  # int64 [b]; so are window, shard, offset
    window: Array
    shard: Array
    offset: Array


class Batch(Rows[Array], Generic[Array]):
    """A micro-batch: input_ids, labels, position and dataset. See Loader for shapes and dtypes."""

    input_ids: Array  # int64 or int32 [b, seq]
    labels: Array  # int64 or int32 [b, seq]


class RequestedBatch(Batch[Array], Requestable[Array], Generic[Array]):
    """A micro-batch with keys on request. It has only those that the loader was asked for."""


class TokensBatch(Rows[Array], Requestable[Array], Generic[Array]):
    """A micro-batch with tokens=True. It has only those further keys that were asked for."""

    tokens: Array  # int64 or int32 [b, seq + extra]
    padding: Array  # bool [b]


class ViewBatch(Rows[Array], Requestable[Array], Generic[Array]):
    """A micro-batch with view=True. It has only those further keys that were asked for."""

    tokens: Array  # uint16 or uint32 [b, seq + extra]


class Options(TypedDict, total=False):
    """The arguments of a Loader that do not change the type of its batches."""

    socket: str | os.PathLike[str] | None
    config: str | os.PathLike[str] | None
    run: str | None
    rank: int | None
    world: int | None
    mesh: Any
    peer: int
    slots: int
    start: Any
    deadline: float | None
    max_wait: float | None
    dtype: Any
    device: Any
    group: Any
    agree: bool
    cp: Any
    transform: Callable[..., Any] | None
    workers: int
    hold: int | None
    record: str | os.PathLike[str] | None
    prefetched: int
    strict: bool | None


class RequestOptions(Options, total=False):
    """The arguments of a Loader that add keys to its batches."""

    documents: bool
    loss_mask: bool
    attention_mask: bool
    shift_labels: bool
    provenance: bool


class AsksDocuments(Options, total=False):
    documents: Required[Literal[True]]
    loss_mask: bool
    attention_mask: Literal[False]
    shift_labels: bool
    provenance: bool


class AsksLossMask(Options, total=False):
    loss_mask: Required[Literal[True]]
    documents: bool
    attention_mask: bool
    shift_labels: bool
    provenance: bool


class AsksAttentionMask(Options, total=False):
    attention_mask: Required[Literal[True]]
    documents: Literal[False]
    loss_mask: bool
    shift_labels: bool
    provenance: bool


class AsksShiftLabels(Options, total=False):
    shift_labels: Required[Literal[True]]
    documents: bool
    loss_mask: bool
    attention_mask: bool
    provenance: bool


class AsksProvenance(Options, total=False):
    provenance: Required[Literal[True]]
    documents: bool
    loss_mask: bool
    attention_mask: bool
    shift_labels: bool


if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import TypeVar as TypeVarWithDefault

    Tensor = torch.Tensor
    NDArray = numpy.ndarray[Any, Any]
    B = TypeVarWithDefault("B", covariant=True, default=Batch[Any])
