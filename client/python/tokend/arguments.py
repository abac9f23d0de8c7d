"""Checks a Loader's arguments, and turns them into those of the extension's Client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _tokend, phrases
from .cursor import cursor_of, integer, is_cursor

DEADLINE_S = 300.0
# how long a first attach without deadline= waits if nobody listens: the daemon may be started
# together with its trainers
NOBODY_S = 5.0
MOST_MS = (1 << 32) - 1


def micro_batch(value: Any) -> int:
    return integer("micro_batch", value, _tokend.MICRO_BATCH, 1)


def check_seconds(deadline: Any) -> None:
    if deadline is not None and not (isinstance(deadline, (int, float)) and deadline > 0):
        raise ValueError(phrases.is_not("deadline", deadline, "a number of seconds above 0"))


def milliseconds(seconds: float) -> int:
    return max(1, round(min(1000 * seconds, MOST_MS)))


def reach(socket: Any, config: Any, deadline: float | None) -> dict[str, Any]:
    """The client's arguments that say which daemon it attaches to, and how long it looks for it."""
    wait = {"deadline_ms": milliseconds(deadline or DEADLINE_S)}
    if config is None:
        path = {"socket": os.fsdecode(socket)} if socket else {}
        return {**path, "connect_ms": milliseconds(deadline or NOBODY_S), **wait}
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
