"""Checks a loader's arguments, and turns them into what the client takes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, Any

from . import _tokend, job, phrases

if TYPE_CHECKING:
    from .arrays import Torch
    from .batch import Slice
    from .numpy_arrays import Numpy

    Place = tuple[int, int, int, tuple[int, int] | None]  # as mesh.Place


def check(asked: Any) -> None:
    """@asked: the arguments of Loader."""
    check_names(asked.stream, asked.run)
    check_seconds("deadline", asked.deadline)
    check_seconds("max_wait", asked.max_wait)
    check_workers(asked.workers, asked.transform)
    check_prefetched(asked.prefetched)
    check_view(
        asked.view,
        asked.hold,
        dtype=asked.dtype,
        loss_mask=asked.loss_mask,
        attention_mask=asked.attention_mask,
        shift_labels=bool(asked.shift_labels),
        cp=asked.cp,
        transform=asked.transform,
        device=is_cuda(asked.device),
    )
    check_tokens(asked.tokens, asked.view, asked.attention_mask, bool(asked.shift_labels), asked.cp)
    check_attention_mask(asked.attention_mask, asked.documents)


def micro_batch(value: Any) -> int:
    """Any integer, also one of NumPy or a torch tensor."""
    most = _tokend.MICRO_BATCH
    try:
        number = index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(phrases.is_not("micro_batch", value, f"an integer from 1 to {most}"))
    if not 1 <= number <= most:
        raise _tokend.ArgumentError(f"micro_batch: {number}; must be 1 to {most}")
    return number


def check_names(stream: Any, run: Any) -> None:
    for what, name in (("stream", stream), ("run", run)):
        if not isinstance(name, str) and (what == "stream" or name is not None):
            raise TypeError(phrases.is_not(what, name, "a string"))


DEADLINE_S = 300.0
# how long a first attach without deadline= waits if nobody listens: the daemon may be started
# together with its trainers
NOBODY_S = 5.0


def check_seconds(what: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or not 0 < value * 1000 < 1 << 32:
        most = (1 << 32) // 1000
        raise ValueError(
            phrases.is_not(what, value, f"a number of seconds above 0 and below {most}")
        )


def unchecked_deadline(deadline: Any) -> float:
    """deadline=, or the default if it is impossible: check() reports that later, when the
    other processes have come.
    """
    try:
        check_seconds("deadline", deadline)
    except ValueError:
        return DEADLINE_S
    return DEADLINE_S if deadline is None else float(deadline)


def strict(asked: Any, run: str | None) -> bool:
    """Whether a second process of this rank is refused. @run: the name passed, or None."""
    if asked is None:
        return run is not None and job.launched() is not None
    if asked and run is None:
        raise ValueError(
            "strict: needs a named run, because all jobs without a name share run 'default'; pass "
            "run=NAME"
        )
    return bool(asked)


def reach(socket: Any, config: Any, deadline: float | None) -> dict[str, Any]:
    """The client's arguments that say which daemon it attaches to, and how long it looks for it."""
    wait = {"deadline_ms": milliseconds(deadline or DEADLINE_S)}
    if config is None:
        path = {"socket": os.fsdecode(socket)} if socket else {}
        return {**path, "connect_ms": milliseconds(deadline or NOBODY_S), **wait}
    if socket is not None:
        raise ValueError(f"socket, config: {phrases.PASS_ONE}")
    if not isinstance(config, (str, bytes, os.PathLike)):
        raise TypeError(phrases.is_not("config", config, "the path of a config file"))
    return {"config": config, **wait}


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def place(mesh: Any, rank: int | None, world: int | None, peer: int) -> Place:
    if mesh is None:
        return (*job.coordinate(rank, world), peer, None)
    if not (rank is None and world is None and peer == 0):
        raise ValueError("mesh, rank, world, peer: the mesh has all of them; pass mesh= alone")
    from . import mesh as meshes

    return meshes.place(mesh)


def _is_cursor(value: Any) -> bool:
    from .cursor import Cursor

    return isinstance(value, (Cursor, bytes, bytearray, memoryview))


def where(start: Any) -> dict[str, Any]:
    """start= as arguments of the client."""
    if isinstance(start, str):
        return {} if start == "begin" else {"tag": start}
    if _is_cursor(start):
        return {"cursor": bytes(start)}
    if isinstance(start, Mapping):
        return {"cursor": cursor_of(start, "start", "pass start=SAMPLES IT CONSUMED")}
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        what = "'begin', a position, the tag of a checkpoint, a cursor or a state_dict()"
        raise TypeError(phrases.kind_is_not("start", start, what))
    return {"position": start}


def cursor_bytes(cursor: Any) -> bytes:
    """The bytes of seek()'s cursor."""
    if _is_cursor(cursor):
        return bytes(cursor)
    raise TypeError(
        f"{phrases.kind_is_not('cursor', cursor, 'a Cursor or its bytes')}; pass a position as "
        "seek(position=N), a state to load_state_dict()"
    )


def cursor_of(
    state: Any, what: str = "state", instead: str = "seek(position=SAMPLES IT CONSUMED)"
) -> bytes:
    """The bytes in a state of state_dict(). @what, @instead: for an error."""
    cursor = state.get("cursor") if isinstance(state, Mapping) else None
    if _is_cursor(cursor):
        return bytes(cursor)  # type: ignore[arg-type]
    has = (
        f"its keys are {sorted(map(str, state))}"
        if isinstance(state, Mapping)
        else f"it is a {type(state).__name__}"
    )
    if cursor is not None:
        has = f"its cursor is a {type(cursor).__name__}"
    raise _tokend.ArgumentError(
        f"{what}: not from a tokend.Loader's state_dict(), it has no cursor of bytes: {has}; to "
        f"continue after another loader, {instead}"
    )


def cp_slice(cp: Any, place: Place, meshed: bool) -> Slice | None:
    """cp= as the slice of this process. @meshed: @place comes from a mesh."""
    if cp is None:
        return None
    of_mesh = place[3]
    kind = cp[2] if isinstance(cp, (tuple, list)) and len(cp) == 3 else cp
    if kind not in ("zigzag", "contiguous"):
        what = "'zigzag', 'contiguous', or (rank, size, one of these)"
        raise _tokend.ArgumentError(phrases.is_not("cp", cp, what))
    if isinstance(cp, str) and of_mesh is None:
        why = "a dim cp in the mesh" if meshed else "a mesh with a dim cp"
        raise _tokend.ArgumentError(f"cp: {cp!r} needs {why}; or pass cp=(rank, size, {cp!r})")
    rank, size = of_mesh if isinstance(cp, str) else cp[:2]  # type: ignore[misc]
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size):
        raise _tokend.ArgumentError(
            f"cp: rank {rank!r} is not below size {size!r}; pass (rank, size, kind)"
        )
    if size == 1:
        return None
    return {"rank": rank, "size": size, "kind": kind}


def cuda(device: Any, make: Torch | Numpy) -> Any:
    """The device, if it is not the CPU."""
    if not is_cuda(device):
        return None
    if make.name != "torch":
        raise ValueError(f"device: {device} needs torch; pass framework='torch'")
    from .device import named

    return named(device)


def is_cuda(device: Any) -> bool:
    name = "cpu" if device is None else str(device)
    kind = name.split(":")[0]  # accelerate's is cpu:0
    if kind not in ("cpu", "cuda"):
        raise _tokend.ArgumentError(
            f"{phrases.is_not('device', name, phrases.DEVICES)}; move batches elsewhere with .to()"
        )
    return kind != "cpu"


def check_workers(workers: int, transform: Any) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(phrases.is_not("workers", workers, "a number of processes ≥ 0"))
    if workers and transform is None:
        raise ValueError(f"workers: {workers} without a transform; pass transform=, or workers=0")


def check_prefetched(n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        what = "a number of batches ≥ 0, those that the loop holds untrained when it saves"
        raise _tokend.ArgumentError(phrases.is_not("prefetched", n, what))


def check_view(view: bool, hold: int | None, **asked: Any) -> None:
    """@asked: arguments that need copies."""
    if not view:
        if hold is not None:
            raise ValueError(
                f"hold: {hold} without view=True; omit it, copies may be held as long as you like"
            )
        return
    if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
        raise ValueError(
            f"{phrases.is_not('hold', hold, 'a number of batches ≥ 1')}; with view=True pass how "
            "many batches the trainer holds at once, with those that autograd keeps"
        )
    wrong = [name for name, value in asked.items() if value not in (None, False)]
    if wrong:
        raise ValueError(
            f"view: tokens are lent as stored, without {', '.join(wrong)}; omit view= or these"
        )


def check_attention_mask(attention_mask: bool, documents: bool) -> None:
    if attention_mask and documents:
        raise ValueError(
            "documents, attention_mask: with a mask, transformers' models ignore position_ids and "
            f"attend across documents; {phrases.PASS_ONE}"
        )


def check_tokens(
    tokens: bool, view: bool, attention_mask: bool, shift_labels: bool, cp: Any
) -> None:
    why = {
        "view": (view, "a view has tokens already"),
        "attention_mask": (attention_mask, "padding says the same of a whole window"),
        "shift_labels": (shift_labels, "tokens have no labels"),
        "cp": (cp, "a slice needs input_ids and labels"),
    }
    for name, (asked, reason) in why.items():
        if tokens and asked not in (None, False):
            raise ValueError(f"tokens, {name}: {reason}; {phrases.PASS_ONE}")


def record_path(directory: Any, run: str, rank: int, peer: int) -> str:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise _tokend.ArgumentError(
            f"record: {directory}: {error.strerror}; pass a directory that you can write to"
        ) from None
    return os.path.join(directory, f"{run}.{rank}-{peer}.{os.getpid()}-{time.time_ns()}.record")
