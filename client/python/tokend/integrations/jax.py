"""jax.distributed: exchanges a few numbers between the processes of a job, without torch.

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

from .. import meeting
from .._tokend import Error

PATIENCE_S = 1800.0  # that of gloo
SLICE_MS = 500  # between two looks for signals such as Ctrl-C

_made: Group | None = None


def _state() -> Any:
    """The state of jax.distributed, if it is initialised and has a store."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return state if hasattr(getattr(state, "client", None), "key_value_dir_get") else None


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


class Store:
    """The store as torch's, for meeting.py."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.delete_key = client.key_value_delete

    def add(self, key: str, n: int) -> int:
        return int(self._client.key_value_increment(key, n))

    def set(self, key: str, value: bytes) -> None:
        self._client.key_value_set(key, value.decode(), True)

    def check(self, keys: list[str]) -> bool:
        """@keys: all of one directory."""
        there = {key for key, _ in self._client.key_value_dir_get(keys[0].rpartition("/")[0])}
        return there.issuperset(keys)


class Exchange:
    """Each process sets a value; process 0 collects them and publishes the list.

    If every process asked for every value, the replies would grow with the square of their number.
    """

    def __init__(self, client: Any, index: int, size: int, at: str, value: Any) -> None:
        self._client, self._index, self._at = client, index, at
        self._each = [f"{at}/each/{i}" for i in range(size)]
        self._all: list[Any] | None = None
        client.key_value_set(self._each[index], json.dumps(value))

    def is_completed(self) -> bool:
        return self._look(1)

    def wait(self) -> list[Any]:
        """Returns the values of all, by index."""
        give_up = time.monotonic() + PATIENCE_S
        while not self._look(SLICE_MS):
            if time.monotonic() >= give_up:
                raise Error(
                    f"tokend.Loader: not every process of jax.distributed ({len(self._each)}) came "
                    f"within {PATIENCE_S:g} s; {meeting.REMEDY}"
                )
        return self._all or []

    def _look(self, wait_ms: int) -> bool:
        if self._all is None:
            if self._index == 0:
                self._collect(wait_ms)
            else:
                self._all = json.loads(self._get(f"{self._at}/all", wait_ms) or "null")
        return self._all is not None

    def _collect(self, wait_ms: int) -> None:
        there = dict(self._client.key_value_dir_get(f"{self._at}/each"))
        missing = next((key for key in self._each if key not in there), None)
        if missing is not None:
            self._get(missing, wait_ms)  # the next look may find more
            return
        text = f"[{','.join(there[key] for key in self._each)}]"
        self._client.key_value_set(f"{self._at}/all", text)
        self._all = json.loads(text)

    def _get(self, key: str, wait_ms: int) -> str | None:
        try:
            return self._client.blocking_key_value_get(key, wait_ms)  # type: ignore[no-any-return]
        except RuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise
            return None


class Group:
    """All processes of jax.distributed, with the methods of tokend.group.Group."""

    def __init__(self, client: Any, index: int, size: int) -> None:
        self._client, self.index, self.size = client, index, size
        # A process that gives up waiting for launch() is out of step with the others in those.
        self._begun = {"launch": 0, "gather": 0}
        self._launched: Exchange | None = None

    def gone(self) -> bool:
        """Has jax.distributed been ended or initialised anew since?"""
        state = _state()
        return state is None or state.client is not self._client

    def meet(self, patience: float) -> None:
        """Waits until all processes have called this; Error after @patience seconds."""
        meeting.meet_in(Store(self._client), list(range(self.size)), self.index, patience)

    def _begin(self, kind: str, value: Any) -> Exchange:
        n = self._begun[kind] = self._begun[kind] + 1
        if self.index == 0 and n > 2:  # all have come to n - 1, so all have left n - 2
            self._client.key_value_delete(f"tokend/{kind}/{n - 2}")
        return Exchange(self._client, self.index, self.size, f"tokend/{kind}/{n}", value)

    def launch(self, *numbers: int) -> Exchange:
        """Begins an all-reduce of the greatest of each of the numbers."""
        self._launched = self._begin("launch", numbers)
        return self._launched

    def greatest(self) -> list[int]:
        """The result of launch(), once it is complete."""
        values = self._launched.wait() if self._launched else []
        return [max(column) for column in zip(*values, strict=True)]

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Returns the list of numbers of every process, by index."""
        return self._begin("gather", [int(number) for number in numbers]).wait()

    def share(self, value: Any, source: int) -> Any:
        """Sends @value (JSON) of the process with index @source to all, and returns it."""
        return self._begin("gather", value if self.index == source else None).wait()[source]
