"""Warnings, and the phrases that recur in messages.

>>> is_not("workers", -1, "a number of processes ≥ 0")
'workers: -1 is not a number of processes ≥ 0'
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

HERE = os.path.dirname(__file__) + os.sep


def warn(text: str) -> None:
    """Warns at the line of the user's code that called this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"tokend: {text}", RuntimeWarning, stacklevel=level)


def is_not(name: str, value: object, what: str) -> str:
    """@name: the argument; @what: what its value should have been."""
    return f"{name}: {value!r} is not {what}"


def kind_is_not(name: str, value: object, what: str) -> str:
    """As is_not(), for values that are too long to show."""
    return f"{name}: a {type(value).__name__} is not {what}"


def few(values: list[Any]) -> str:
    """The first eight."""
    return ", ".join(map(str, values[:8])) + (", …" if len(values) > 8 else "")
