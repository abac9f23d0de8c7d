"""Errors and warnings, which the extension raises, too, and phrases that recur in their texts."""

from __future__ import annotations

import os
import sys
import warnings

HERE = os.path.dirname(__file__) + os.sep


class Error(Exception):
    """Base class of all errors of tokend."""


class ArgumentError(Error, ValueError):
    """An invalid value. Nothing was changed."""


class ConnectError(Error, ConnectionError):
    """No daemon answered at the socket within the deadline."""


class DataError(Error):
    """The stream stopped: a shard is unreadable, truncated or replaced."""


class DisagreementError(Error):
    """The processes of a job are not at one cursor, or their ranks do not fit together."""


class RefusedError(Error):
    """The daemon refused. The message begins with the option or config key."""


class ResourceError(Error, MemoryError):
    """Out of memory or file descriptors."""


class TransformError(Error):
    """A transform raised an exception, or did not return a row. The cursor is before the batch."""


class WaitError(Error, TimeoutError):
    """No batch came within deadline."""


def warn(text: str) -> None:
    """Warns at the line of the user's code that called this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"tokend: {text}", RuntimeWarning, stacklevel=level)


def is_not(name: str, value: object, what: str) -> str:
    """@name: the argument; @what: what its value should have been."""
    return f"{name}: {value!r:.200} is not {what}"


def few(ranks: list[int]) -> str:
    """The first eight."""
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
