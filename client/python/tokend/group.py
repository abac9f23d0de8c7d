"""The processes of a job: they wait for each other, exchange values, and compare their places.

A group has `size`, `index`, meet(), gather(), greatest() and gone(). Group is that of
torch.distributed; without it pass an object with these members, as tokend's example for JAX does.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
import weakref
import zlib
from collections import deque
from typing import Any

from . import phrases
from ._tokend import cursor_show
from .errors import Error

PATIENCE_S = 1800.0  # gloo's default
WARN_S, LATE_S = 5.0, 60.0  # for those that do not come; in a collective: one may be saving
LONGEST_PAUSE_S = 0.25  # between two looks at the store
REMEDY = (
    "make loaders, seek, load states and set mixes in all processes together; "
    "for a loader of this process alone pass group=False, rank=0, world=1"
)

# the Group that of_all() made, while torch.distributed's group of all exists
_own: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()

# gloo's thread releases a collective a little after wait() returns. The last owner needs Python's
# lock to free the tensors, and a thread that waits for this lock while the process ends aborts. So
# we own the newest collectives until Python ends.
_kept: deque[Any] = deque(maxlen=16)


class DisagreementError(Error):
    """The processes of a job are not at one cursor, or their ranks do not fit together."""


def torch_distributed() -> Any:
    """Returns torch.distributed if it is initialised, otherwise None."""
    distributed: Any = sys.modules.get("torch.distributed")  # if not imported, then not initialised
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def everyone() -> Any:
    """The group of all processes of torch.distributed, or the number of jax.distributed's; None
    without them. It is another one once they are initialised anew. Called for each batch.
    """
    try:
        world = sys.modules["torch.distributed"].group.WORLD
    except (KeyError, AttributeError):  # not imported, or not in this build
        world = None
    if world is None and "jax._src.distributed" in sys.modules:
        state = getattr(sys.modules["jax._src.distributed"], "global_state", None)
        return getattr(state, "num_processes", None)
    return world


def processes() -> int:
    """The number of processes of torch.distributed; 1 without it."""
    distributed = torch_distributed()
    return distributed.get_world_size() if distributed else 1


def of_all(patience: float = PATIENCE_S) -> Any:
    """Returns a Group of all processes of torch.distributed, with gloo; None if there is only one.
    All of them call this. All loaders of a process share the group.

    Raises Error if the others do not come within @patience seconds.
    """
    distributed = torch_distributed()
    if distributed is None or distributed.get_world_size() == 1:
        return None
    everyone = distributed.group.WORLD
    if everyone not in _own:
        _meet(distributed, None, patience)  # new_group() would block, and name nobody
        _own[everyone] = Group(distributed.new_group(backend="gloo"))
    return _own[everyone]


def over(group: Any) -> Any:
    """Returns @group as a Group; None if it is None or False. TypeError if @group is not a group
    that contains this process.
    """
    if group is None or group is False:
        return None
    if hasattr(group, "greatest"):  # not torch's
        return group
    if not hasattr(group, "allreduce"):  # new_group() returns a number outside of the group
        what = "a torch.distributed process group that contains this process"
        raise TypeError(phrases.is_not("group", group, what))
    return Group(group)


class Group:
    def __init__(self, group: Any) -> None:
        import torch
        import torch.distributed as distributed

        self._distributed, self._torch, self._group = distributed, torch, group
        self.size: int = group.size()
        self.index: int = group.rank()
        self._everyone = (
            weakref.ref(distributed.group.WORLD) if distributed.is_initialized() else None
        )

    def gone(self) -> bool:
        """Has torch.distributed been ended or initialised anew since?"""
        if self._everyone is None:
            return False
        return (
            not self._distributed.is_initialized()
            or self._distributed.group.WORLD is not self._everyone()
        )

    def meet(self, patience: float) -> None:
        """Waits until all processes have called this; Error after @patience seconds."""
        if torch_distributed() is not None:
            _meet(self._distributed, self._group, patience)

    def gather(self, value: Any) -> list[Any]:
        """Returns the value (JSON) of every process, by index in the group."""
        torch = self._torch
        mine = bytearray(json.dumps(value).encode())
        longest = self.greatest(len(mine))[0]
        padded = torch.frombuffer(mine.ljust(longest), dtype=torch.uint8)
        every = [torch.empty_like(padded) for _ in range(self.size)]
        self._wait(self._group.allgather([every], [padded]))
        return [json.loads(bytes(theirs.tolist())) for theirs in every]

    def greatest(self, *numbers: int) -> list[int]:
        """The greatest of each of the numbers over all processes."""
        reduced = self._torch.tensor(numbers, dtype=self._torch.int64, device="cpu")
        self._wait(self._group.allreduce([reduced], self._distributed.ReduceOp.MAX))
        return reduced.tolist()  # type: ignore[no-any-return]

    @staticmethod
    def _wait(work: Any) -> None:
        _kept.append(work)
        try:
            work.wait(datetime.timedelta(seconds=LATE_S))
        except RuntimeError:
            if not work.is_completed():
                phrases.warn(
                    f"group: has waited {LATE_S:g} s for another process, which is late, as one "
                    "that saves or evaluates alone, or did not call the same; call control() "
                    f"equally often in all processes; {REMEDY}"
                )
            work.wait()  # raises, if it has failed


# ---- waiting for each other ----


def _meet(distributed: Any, group: Any, seconds: float) -> None:
    """Waits until all processes of @group (None: of torch.distributed) have called this equally
    often. After 5 s warns which are missing; after @seconds raises Error, and has then not called
    it.

    If a process does not come, new_group() and the first collective block for gloo's 30 minutes,
    and their error does not name it.
    """
    # the store is not public; without it, new_group() and the first collective wait by themselves
    ask = getattr(distributed.distributed_c10d, "_get_default_store", None)
    try:
        ranks = sorted(distributed.get_process_group_ranks(group or distributed.group.WORLD))
    except (KeyError, RuntimeError, ValueError):  # not made by torch.distributed
        return
    if ask is None or len(ranks) == 1:
        return
    store, mine = ask(), distributed.get_rank()
    prefix = f"tokend/{len(ranks)}.{zlib.crc32(repr(ranks).encode()):08x}"
    number = store.add(f"{prefix}/{mine}", 1)
    store.add(f"{prefix}/all/{number}", 1)
    begin, pause, warned = time.monotonic(), 0.001, False
    try:
        while store.add(f"{prefix}/all/{number}", 0) < len(ranks):
            waited = time.monotonic() - begin
            if waited >= (seconds if warned else min(seconds, WARN_S)):
                late = [rank for rank in ranks if store.add(f"{prefix}/{rank}", 0) < number]
                who = f"rank {phrases.few(late)} of {len(ranks)}"
                if waited >= seconds:
                    raise Error(f"group: {who} did not come within {seconds:g} s; {REMEDY}")
                phrases.warn(f"group: has waited {WARN_S:g} s for {who}; {REMEDY}")
                warned = True
            time.sleep(pause)
            pause = min(LONGEST_PAUSE_S, 1.5 * pause)
    except BaseException:
        store.add(f"{prefix}/all/{number}", -1)
        store.add(f"{prefix}/{mine}", -1)
        raise


# ---- comparing places ----


def compare(group: Any, place: dict[str, Any], client: Any = None, error: Any = None) -> None:
    """Called by all processes of @group: before they attach, because two processes with one rank
    and peer would wait for each other; and once each has attached (@client) or failed (@error).
    Raises the same DisagreementError on all if they do not fit.
    """
    if group is None or group.gone():
        return
    row = {**place, "host": os.uname().nodename, "pid": os.getpid()}
    if error is not None:
        row["error"] = str(error)
    elif client is not None:
        row |= {"contents": client.contents, "cursor": client.cursor.hex()}
    rows = group.gather(row)
    found = _fault(rows)
    if found is None:
        return
    i, j, why = found
    named = [f"host {row['host']}, pid {row['pid']}" for row in rows]
    for k, row in enumerate(rows):
        if "error" not in row:
            named[k] = f"rank {row['rank']}, {named[k]}"
    why = why.replace("{}", f"process {j} ({named[j]})")
    raise DisagreementError(f"agreement: process {i} of {group.size} ({named[i]}): {why}")


def _fault(rows: list[dict[str, Any]]) -> tuple[int, int, str] | None:
    """Returns (index, other, why) of the first process that does not fit; {} in why stands for the
    other one.
    """
    for i, row in enumerate(rows):
        if "error" in row:
            return i, 0, f"failed: {row['error']}"
    for name in ("world", "micro_batch", "cursor", "contents"):
        for i, row in enumerate(rows):
            here, first = row.get(name), rows[0].get(name)
            if here == first:
                continue
            if name == "cursor":
                why = "load the same state in all; their daemons need the same config and shards"
                return i, 0, f"its cursor is not that of {{}}: {differences(here, first)}; {why}"
            if name == "contents":
                why = "shards: names and lengths are those at {}, but the tokens, or eos, vocab, "
                return i, 0, why + "documents or masks, are not"
            return i, 0, f"{name}: {here} differs from {first} at {{}}"
    seen: dict[tuple[int, int], int] = {}
    for i, row in enumerate(rows):
        place = row["rank"], row["peer"]
        if place in seen:
            why = f"rank: rank {place[0]}, peer {place[1]} is also that of {{}}; "
            return i, seen[place], why + "pass each process its own rank or peer"
        seen[place] = i
    world, ranks = rows[0]["world"], [rank for rank, _ in seen]
    for rank in range(min(world, len(rows) + 1)):
        n = ranks.count(rank)
        if n != ranks.count(0) or n == 0:
            why = (
                f"world: is {world}, but {n} of the group's {len(rows)} processes read as rank "
                f"{rank} and {ranks.count(0)} as rank 0; every rank needs the same number of "
                "processes"
            )
            return 0, 0, why
    return None


def differences(here: str, there: str) -> str:
    """The fields of two cursors (hexadecimal) that differ."""
    flat = []
    for cursor in here, there:
        shown = json.loads(cursor_show(bytes.fromhex(cursor)))
        for dataset in shown.pop("datasets"):
            name = dataset.pop("name")
            shown |= {f"dataset {name}: {field}": value for field, value in dataset.items()}
        flat.append({name: json.dumps(value) for name, value in shown.items()})
    one, two = flat
    lines = [
        f"{name}: {one.get(name, 'absent')} instead of {two.get(name, 'absent')}"
        for name in {**one, **two}
        if one.get(name) != two.get(name)
    ]
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more
