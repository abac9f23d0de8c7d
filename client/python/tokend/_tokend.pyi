"""The extension: what only this package uses."""

from typing import Any

from .errors import Error as Error

version: str

def __getattr__(name: str) -> Any: ...
