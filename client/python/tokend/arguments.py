"""Checks a Loader's arguments, and turns them into those of the extension's Client."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from . import phrases
from .cursor import SEEK, cursor_of, edited, integer, is_cursor
from .errors import ArgumentError

DEADLINE_S = 300.0
# how long a first attach without deadline= waits if nobody listens: the daemon may be started
# together with its trainers
NOBODY_S = 5.0
MOST_32 = (1 << 32) - 1
MICRO_BATCH = 1 << 16  # rows, at most


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(phrases.is_not(name, value, "a string"))
    return value


def micro_batch(value: Any) -> int:
    return integer("micro_batch", value, MICRO_BATCH, 1)


def milliseconds(seconds: float) -> int:
    return max(1, round(min(1000 * seconds, MOST_32)))


def reach(socket: Any, config: Any, deadline: float | None) -> dict[str, Any]:
    """The client's arguments that say which daemon it attaches to, and how long it looks for it."""
    wait = {"deadline_ms": milliseconds(deadline or DEADLINE_S)}
    if config is None:
        return {"socket": socket or None, "connect_ms": milliseconds(deadline or NOBODY_S), **wait}
    if socket is not None:
        raise ValueError("socket, config: pass one of them")
    if not isinstance(config, (str, bytes, os.PathLike)):
        raise TypeError(phrases.is_not("config", config, "the path of a config file"))
    return {"config": config, **wait}


def where(start: Any) -> dict[str, Any]:
    """start= as arguments of the client."""
    if isinstance(start, str):
        return {} if start == "begin" else {"tag": start}
    if is_cursor(start):
        return {"cursor": bytes(start)}
    if isinstance(start, Mapping):
        return {"cursor": cursor_of(start, "start", "pass start=SAMPLES IT CONSUMED")}
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        what = "'begin', a position, the tag of a checkpoint, a cursor or a state_dict()"
        raise TypeError(phrases.kind_is_not("start", start, what))
    return {"position": integer("start", start)}


def target(now: bytes, cursor: Any, position: int | None) -> bytes | None:
    """The cursor to which seek() goes from @now; None: it stays."""
    if cursor is not None and position is not None:
        raise ValueError("cursor, position: pass one of them")
    if position is not None:
        return edited(SEEK, now, position)
    if cursor is None or is_cursor(cursor):
        return None if cursor is None else bytes(cursor)
    raise TypeError(
        f"cursor: a {type(cursor).__name__} is not a Cursor or its bytes; pass a position as "
        "seek(position=N), a state to load_state_dict()"
    )


def record_path(directory: Any, run: str, rank: int, peer: int) -> bytes:
    """The file of this process in record=."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"record: {directory}: {error.strerror}; pass a directory that you can write to"
        ) from None
    name = f"{run}.{rank}-{peer}.{os.getpid()}-{time.time_ns()}.record"
    return os.fsencode(os.path.join(directory, name))
