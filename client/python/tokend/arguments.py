"""A loader's arguments, as what they mean; what cannot be is one line."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from . import _tokend
from .batch import Slice
from .cursor import Cursor
from .mesh import Place


def where(start: Any) -> dict[str, Any]:
    """start= as the arguments of a session."""
    if isinstance(start, (Cursor, bytes, bytearray, memoryview)):
        return {"cursor": bytes(start)}
    if isinstance(start, str):
        return {} if start == "begin" else {"tag": start}
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        raise TypeError(f"start: {start!r}, must be 'begin', a position, the tag of a checkpoint, or a cursor")
    return {"position": start}


def cursor_of(state: Any) -> bytes:
    """The bytes in what state_dict() gave."""
    cursor = state.get("cursor") if isinstance(state, Mapping) else None
    if isinstance(cursor, (Cursor, bytes, bytearray, memoryview)):
        return bytes(cursor)
    has = f"its keys are {sorted(map(str, state))}" if isinstance(state, Mapping) else f"it is a {type(state).__name__}"
    if cursor is not None:
        has = f"that is a {type(cursor).__name__}"
    raise _tokend.ArgumentError(
        f"state: must have a 'cursor' of bytes, {has}: it is not from a tokend.Loader's state_dict(); to go on from another "
        "loader's place, seek(position=SAMPLES IT CONSUMED)"
    )


def cp_slice(cp: Any, place: Place | None) -> Slice | None:
    """cp= as the slice of this process."""
    if cp is None:
        return None
    given = (*place.cp, cp) if isinstance(cp, str) and place is not None and place.cp is not None else cp
    if isinstance(given, str):
        why = "a mesh with a dim cp" if place is None else "that dim in the mesh"
        raise _tokend.ArgumentError(f"cp: {cp!r} needs {why}; or give cp=(rank, size, {cp!r})")
    if not isinstance(given, tuple) or len(given) != 3 or given[2] not in ("zigzag", "contiguous"):
        raise _tokend.ArgumentError(f"cp: {cp!r}, must be 'zigzag', 'contiguous', or (rank, size, one of these)")
    rank, size, kind = given
    if not 0 <= rank < size:
        raise _tokend.ArgumentError(f"cp: rank {rank} is not below size {size}")
    return Slice(rank=rank, size=size, kind=kind) if size > 1 else None  # type: ignore[typeddict-item]


def is_cuda(device: Any) -> bool:
    name = "cpu" if device is None else str(device)
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise _tokend.ArgumentError(f"device: {name!r}, must be 'cpu', 'cuda' or 'cuda:N'; move batches elsewhere with .to()")
    return name != "cpu"


def check_workers(workers: int, transform: Any) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers: {workers!r}, must be a number of processes, or 0")
    if workers and transform is None:
        raise ValueError(f"workers: {workers} of them have nothing to do without transform=; batches need none")


def check_view(view: bool, hold: int | None, dtype: Any, loss_mask: bool, cp: Any, transform: Any, cuda: bool) -> None:
    if not view:
        if hold is not None:
            raise ValueError(f"hold: {hold} is of use with view=True only; copies may be held as long as you like")
        return
    if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
        raise ValueError(
            f"hold: {hold}, must be how many batches this trainer holds at once, 1 or more, counting what autograd keeps: view=True lends "
            "it the ring's own slots"
        )
    asked = {"dtype": dtype, "loss_mask": loss_mask, "cp": cp, "transform": transform, "device": cuda}
    wrong = [name for name, value in asked.items() if value not in (None, False)]
    if wrong:
        raise ValueError(f"view: tokens are lent as they are stored, so {', '.join(wrong)} cannot be had with it")


def record_path(directory: Any, run: str, rank: int, peer: int) -> str:
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, f"{run}.{rank}-{peer}.{os.getpid()}-{time.time_ns()}.record")
