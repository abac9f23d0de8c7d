"""jax.distributed: exchanges a few values between the processes of a job, without torch.

A Loader whose rank and world come from jax.distributed uses this by itself: its processes compare
their cursors when they attach, and control() works. If you pass rank= and world=, because several
processes read the same rows, pass a group too:

    loader = Loader("train", 8, rank=…, world=…, peer=…, group=tokend.integrations.jax.group())

The exchanges use the key-value store of jax.distributed, and not the devices, so they neither wait
for a step nor compile anything. JAX has no public name for that store; orbax uses it, too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from .. import group as groups
from .._tokend import Error

SLICE_MS = 500  # between two looks for signals such as Ctrl-C

_made: Group | None = None


def _state() -> Any:
    """The state of jax.distributed, if it is initialised and has a store."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return state if hasattr(getattr(state, "client", None), "key_value_increment") else None


def group() -> Group | None:
    """Returns the group of all processes of jax.distributed; None if there is only one, or if
    jax.distributed is not initialised. All loaders of a process share it.
    """
    global _made
    state = _state()
    if state is None or state.num_processes == 1:
        return None
    if _made is None or _made.gone():
        _made = Group(state.client, state.process_id, state.num_processes)
    return _made


class Group:
    """All processes of jax.distributed, with the methods of tokend.group.Group."""

    def __init__(self, client: Any, index: int, size: int) -> None:
        self._client, self.index, self.size = client, index, size
        self._gathered = 0

    def gone(self) -> bool:
        """Has jax.distributed been ended or initialised anew since?"""
        state = _state()
        return state is None or state.client is not self._client

    def meet(self, patience: float) -> None:
        """Waits until all processes have called this; Error after @patience seconds."""
        groups.meet_in(self, list(range(self.size)), self.index, patience)

    def add(self, key: str, n: int) -> int:
        """As a store of torch."""
        return int(self._client.key_value_increment(key, n))

    def gather(self, value: Any) -> list[Any]:
        """Returns the value (JSON) of every process, by index. Process 0 collects and publishes
        them: if every process asked for every value, the replies would grow with the square of
        their number.
        """
        n = self._gathered = self._gathered + 1
        at = f"tokend/gather/{n}"
        self._client.key_value_set(f"{at}/{self.index}", json.dumps(value))
        if self.index == 0:
            if n > 2:  # all have come to n - 1, so all have left n - 2
                self._client.key_value_delete(f"tokend/gather/{n - 2}")
            each = [self._get(f"{at}/{i}") for i in range(self.size)]
            self._client.key_value_set(f"{at}/all", f"[{','.join(each)}]")
        return json.loads(self._get(f"{at}/all"))  # type: ignore[no-any-return]

    def greatest(self, *numbers: int) -> list[int]:
        """The greatest of each of the numbers over all processes."""
        return [max(column) for column in zip(*self.gather(numbers), strict=True)]

    def _get(self, key: str) -> str:
        give_up = time.monotonic() + groups.PATIENCE_S
        while time.monotonic() < give_up:
            try:
                return str(self._client.blocking_key_value_get(key, SLICE_MS))
            except RuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise
        raise Error(
            f"group: not every process of jax.distributed ({self.size}) came within "
            f"{groups.PATIENCE_S:g} s; {groups.REMEDY}"
        )
