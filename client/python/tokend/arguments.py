"""A loader's arguments, as what they mean; what cannot be is one line."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from . import _tokend, job
from . import mesh as meshes
from .arrays import Numpy, Torch
from .batch import Slice
from .cursor import Cursor


def socket(path: Any) -> str:
    return os.fsdecode(path) if path else _tokend.default_socket()


def check_names(stream: Any, run: Any) -> None:
    for what, name in (("stream", stream), ("run", run)):
        if not isinstance(name, str) and (what == "stream" or name is not None):
            raise TypeError(f"{what}: {name!r}, must be a text")


# how long a first attach waits where nobody listens: a daemon that is started together with its
# trainers
NOBODY_S = 5.0


def patience(deadline: float) -> int:
    """Milliseconds to wait for somebody to listen at the socket."""
    return max(1, round(min(deadline, NOBODY_S) * 1000))


def check_deadline(deadline: Any) -> None:
    if not isinstance(deadline, (int, float)) or not 0 < deadline * 1000 < 1 << 32:
        raise ValueError(
            f"deadline: {deadline!r}, must be seconds, more than 0 and less than "
            f"{(1 << 32) // 1000}"
        )


def unchecked_deadline(deadline: Any) -> float:
    """deadline= where it is not checked yet: a wrong one is told to the others once they are
    here.
    """
    try:
        check_deadline(deadline)
    except ValueError:
        return 300.0
    return float(deadline)


def strict(asked: Any, run: str | None) -> bool:
    """Whether a second process that reads for this rank is refused. @run: its name, or None."""
    if asked is None:
        return run is not None and job.launched() is not None
    if asked and run is None:
        raise ValueError("strict: needs run=NAME: jobs without a name are all of run 'default'")
    return bool(asked)


def check_config(config: Any, socket: Any) -> None:
    if socket is not None:
        raise ValueError("socket, config: give one of them")
    if not isinstance(config, (str, bytes, os.PathLike)):
        raise TypeError(f"config: {config!r}, must be the path of a config file")


def place(mesh: Any, rank: int | None, world: int | None, peer: int) -> meshes.Place:
    if mesh is None:
        return meshes.Place(*job.coordinate(rank, world), peer, None)
    if not (rank is None and world is None and peer == 0):
        raise ValueError("mesh, rank, world, peer: a mesh says them all")
    return meshes.place(mesh)


def where(start: Any) -> dict[str, Any]:
    """start= as the arguments of a session."""
    if isinstance(start, (Cursor, bytes, bytearray, memoryview)):
        return {"cursor": bytes(start)}
    if isinstance(start, str):
        return {} if start == "begin" else {"tag": start}
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        raise TypeError(
            f"start: a {type(start).__name__}, must be 'begin', a position, the tag of a "
            "checkpoint, or a cursor; what state_dict() gave "
            "is load_state_dict()'s to take"
        )
    return {"position": start}


def cursor_bytes(cursor: Any) -> bytes:
    """Of seek()'s."""
    if isinstance(cursor, (Cursor, bytes, bytearray, memoryview)):
        return bytes(cursor)
    raise TypeError(
        f"cursor: a {type(cursor).__name__}, must be a Cursor or its bytes; a position is "
        "seek(position=N)'s to take, a state "
        "load_state_dict()'s"
    )


def cursor_of(state: Any) -> bytes:
    """The bytes in what state_dict() gave."""
    cursor = state.get("cursor") if isinstance(state, Mapping) else None
    if isinstance(cursor, (Cursor, bytes, bytearray, memoryview)):
        return bytes(cursor)
    has = (
        f"its keys are {sorted(map(str, state))}"
        if isinstance(state, Mapping)
        else f"it is a {type(state).__name__}"
    )
    if cursor is not None:
        has = f"that is a {type(cursor).__name__}"
    raise _tokend.ArgumentError(
        f"state: must have a 'cursor' of bytes, {has}: it is not from a tokend.Loader's "
        "state_dict(); to go on from another "
        "loader's place, seek(position=SAMPLES IT CONSUMED)"
    )


def cp_slice(cp: Any, place: meshes.Place, meshed: bool) -> Slice | None:
    """cp= as the slice of this process. @meshed: the place is of a mesh."""
    if cp is None:
        return None
    kind = cp[2] if isinstance(cp, (tuple, list)) and len(cp) == 3 else cp
    if kind not in ("zigzag", "contiguous"):
        raise _tokend.ArgumentError(
            f"cp: {cp!r}, must be 'zigzag', 'contiguous', or (rank, size, one of these)"
        )
    if isinstance(cp, str) and place.cp is None:
        why = "that dim in the mesh" if meshed else "a mesh with a dim cp"
        raise _tokend.ArgumentError(f"cp: {cp!r} needs {why}; or give cp=(rank, size, {cp!r})")
    rank, size = place.cp if isinstance(cp, str) else cp[:2]  # type: ignore[misc]
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size):
        raise _tokend.ArgumentError(f"cp: rank {rank!r} is not below size {size!r}")
    if size == 1:
        return None
    return Slice(rank=rank, size=size, kind=kind)  # type: ignore[typeddict-item]


def cuda(device: Any, make: Torch | Numpy) -> Any:
    """The device, if it is not the CPU."""
    if not is_cuda(device):
        return None
    if make.name != "torch":
        raise ValueError(f"device: {device} needs framework='torch'")
    from .device import named

    return named(device)


def is_cuda(device: Any) -> bool:
    name = "cpu" if device is None else str(device)
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise _tokend.ArgumentError(
            f"device: {name!r}, must be 'cpu', 'cuda' or 'cuda:N'; move batches elsewhere with "
            ".to()"
        )
    return name != "cpu"


def check_workers(workers: int, transform: Any) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers: {workers!r}, must be a number of processes, or 0")
    if workers and transform is None:
        raise ValueError(
            f"workers: {workers} of them have nothing to do without transform=; batches need none"
        )


def check_view(
    view: bool, hold: int | None, dtype: Any, loss_mask: bool, cp: Any, transform: Any, cuda: bool
) -> None:
    if not view:
        if hold is not None:
            raise ValueError(
                f"hold: {hold} is of use with view=True only; copies may be held as long as you "
                "like"
            )
        return
    if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
        raise ValueError(
            f"hold: {hold}, must be how many batches this trainer holds at once, 1 or more, "
            "counting what autograd keeps: view=True lends "
            "it the ring's own slots"
        )
    asked = {
        "dtype": dtype,
        "loss_mask": loss_mask,
        "cp": cp,
        "transform": transform,
        "device": cuda,
    }
    wrong = [name for name, value in asked.items() if value not in (None, False)]
    if wrong:
        raise ValueError(
            f"view: tokens are lent as they are stored, so {', '.join(wrong)} cannot be had with it"
        )


def check_tokens(tokens: bool, view: bool, cp: Any) -> None:
    asked = [name for name, value in (("view", view), ("cp", cp)) if value not in (None, False)]
    if tokens and asked:
        why = "a view lends tokens already" if view else "a slice is one of input_ids and labels"
        raise ValueError(f"tokens, {asked[0]}: give one of them: {why}")


def record_path(directory: Any, run: str, rank: int, peer: int) -> str:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise _tokend.ArgumentError(
            f"record: {directory}: {error.strerror}: name a directory that can be written to"
        ) from None
    return os.path.join(directory, f"{run}.{rank}-{peer}.{os.getpid()}-{time.time_ns()}.record")
