"""The package's exceptions, and what the extension says with them."""

from __future__ import annotations

from . import phrases


class Error(Exception):
    """Base class of all errors of tokend."""


class ArgumentError(Error, ValueError):
    """An invalid value. Nothing was changed."""


class ConnectError(Error, ConnectionError):
    """No daemon answered at the socket within the deadline."""


class RefusedError(Error):
    """The daemon refused. The message begins with the option or config key."""


class DataError(Error):
    """The stream stopped: a shard is unreadable, truncated or replaced."""


class ResourceError(Error, MemoryError):
    """Out of memory or file descriptors."""


class WaitError(Error, TimeoutError):
    """No batch came within deadline."""


KINDS = {  # by enum tokend_error
    -1: ArgumentError,
    -2: ConnectError,
    -3: RefusedError,
    -4: DataError,
    -6: ResourceError,
    -11: WaitError,
}
for kind in Error, *KINDS.values():
    kind.__module__ = "tokend"  # as users import them


def of(why: str, code: int) -> Error:
    """The exception for @code, an enum tokend_error or 0."""
    kind = KINDS.get(code, Error)
    # the library's max_wait is Loader's deadline
    return kind(why.replace("max_wait", "deadline", 1) if kind is WaitError else why)


def warn(line: str, _: int) -> None:
    phrases.warn(line)
