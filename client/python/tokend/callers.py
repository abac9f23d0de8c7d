"""Looks at the frames that called this package."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any


def frames(module: str | None = None) -> Iterator[FrameType]:
    """The frames among the callers, the nearest first; with @module only those of its code. The
    user's code may be in between.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if module is None or frame.f_globals.get("__name__") == module:
            yield frame
        frame = frame.f_back


def is_signal_handler() -> bool:
    """Is a signal's handler among the callers? Python passes it the frame that it interrupts."""
    handlers = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # of a functools.partial
        handler = getattr(handler, "__func__", handler)  # of a method
        handlers.add(getattr(handler, "__code__", None))
    for frame in frames():
        if frame.f_code in handlers:
            for value in frame.f_locals.values():
                if frame.f_back in (value if isinstance(value, tuple) else (value,)):
                    return True
    return False


def users_level() -> int:
    """Returns the stacklevel of the caller outside of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__package__")):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(package: str | None) -> bool:
    return package == __package__ or (package or "").startswith(f"{__package__}.")
