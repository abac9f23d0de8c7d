"""Waits until every process of a group has come: to make its loader, or to seek.

If a process does not come, torch.distributed.new_group() and the first collective block for gloo's
30 minutes, and their error does not name it. So each process first announces itself in the default
store, and looks there for the others.
"""

from __future__ import annotations

import sys
import time
import warnings
import zlib
from typing import Any

from . import callers
from ._tokend import Error

WARN_S = 5.0
LONGEST_PAUSE_S = 0.25  # between two looks at the store
NAMED = 8  # ranks in a message
REMEDY = (
    "make loaders, seek and load states in all processes together; "
    "for a loader of this process alone pass rank=0, world=1"
)


def _default_store() -> Any:
    """Returns torch.distributed's store; None if torch does not give it, or if the store cannot
    look for a key without waiting.
    """
    module = sys.modules.get("torch.distributed.distributed_c10d")
    ask = getattr(module, "_get_default_store", None)
    store = ask() if ask is not None else None
    return store if hasattr(store, "check") else None


def _ranks(distributed: Any, group: Any) -> list[int]:
    if group is None:
        return list(range(distributed.get_world_size()))
    try:
        return sorted(distributed.get_process_group_ranks(group))
    except (KeyError, RuntimeError, ValueError):  # not made by torch.distributed
        return []


class _Meeting:
    """The n-th meeting of these processes in this store. One may make a loader while another one
    seeks.

    A meeting that fails is withdrawn, so that the next one has the same number everywhere.
    """

    def __init__(self, store: Any, ranks: list[int], mine: int) -> None:
        self._store, self._ranks, self._mine = store, ranks, mine
        self._prefix = f"tokend/{len(ranks)}.{zlib.crc32(repr(ranks).encode()):08x}"
        self._number = store.add(f"{self._prefix}/{mine}", 1)
        store.set(self._key(mine), b"")

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{self._number}/{rank}"

    def complete(self) -> bool:
        return bool(self._store.check([self._key(rank) for rank in self._ranks]))

    def missing(self) -> str:
        """Names the ranks that have not come."""
        missing = [rank for rank in self._ranks if not self._store.check([self._key(rank)])]
        named = ", ".join(map(str, missing[:NAMED])) + (
            f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        )
        return f"rank{'s' if len(missing) != 1 else ''} {named} of {len(self._ranks)}"

    def end(self) -> None:
        """Deletes this process's key of the previous meeting: all have come, so all have left
        that one.
        """
        self._store.delete_key(f"{self._prefix}/{self._number - 1}/{self._mine}")

    def withdraw(self) -> None:
        self._store.delete_key(self._key(self._mine))
        self._store.add(f"{self._prefix}/{self._mine}", -1)


def meet(group: Any, seconds: float) -> None:
    """Called by each process of @group; None: of torch.distributed. After 5 s warns which ranks are
    missing; after @seconds raises Error.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    store, ranks = _default_store(), _ranks(distributed, group)
    if store is not None and len(ranks) > 1:
        meet_in(store, ranks, distributed.get_rank(), seconds)


def meet_in(store: Any, ranks: list[int], mine: int, seconds: float) -> None:
    """As meet(). @store: has torch's add(), set(), check() and delete_key()."""
    meeting = _Meeting(store, ranks, mine)
    try:
        _wait(meeting, seconds)
    except BaseException:
        meeting.withdraw()
        raise
    meeting.end()


def _wait(meeting: _Meeting, seconds: float) -> None:
    begin, pause, warned = time.monotonic(), 0.001, False
    while not meeting.complete():
        waited = time.monotonic() - begin
        if waited >= seconds:
            raise Error(
                f"tokend.Loader: {meeting.missing()} did not come within {seconds:g} s; {REMEDY}"
            )
        if waited >= WARN_S and not warned:
            warned = True
            text = f"tokend.Loader: has waited {WARN_S:g} s for {meeting.missing()}; {REMEDY}"
            warnings.warn(text, RuntimeWarning, stacklevel=callers.users_level())
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, 1.5 * pause)
