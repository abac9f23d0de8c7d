"""The extension, which only this package uses."""

from typing import Any

version: str

def __getattr__(name: str) -> Any: ...
