"""Exchanges a few numbers between the processes of a job, over a gloo group.

For jax.distributed, integrations/jax.py does the same.
"""

import json
import sys
import weakref
from collections import deque

from . import phrases

PATIENCE_S = 1800.0  # gloo's default

# weak references to torch.distributed's group of all, and to the two that of_all() made
_own = None

# gloo's thread releases a collective a little after wait() returns. The last owner needs Python's
# lock to free the tensors, and a thread that waits for this lock while the process ends aborts. So
# we own the newest collectives until Python ends.
_kept = deque(maxlen=16)


def _distributed():
    distributed = sys.modules.get("torch.distributed")  # if not imported, then not initialised
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def processes():
    """The number of processes of torch.distributed; 1 without it."""
    distributed = _distributed()
    return distributed.get_world_size() if distributed else 1


def of_all(patience=PATIENCE_S):
    """Returns a gloo group of all processes, or jax.distributed's; None if there is only one. All
    of them call this. All loaders of a process share the group.

    Raises Error if the others do not come within @patience seconds.
    """
    global _own
    distributed = _distributed()
    if distributed is None:
        return _of_jax()
    if distributed.get_world_size() == 1:
        return None
    everyone = distributed.group.WORLD
    made = _own[1]() if _own is not None and _own[0]() is everyone else None
    if made is None:
        from . import meeting

        meeting.meet(None, patience)
        made, second = distributed.new_group(backend="gloo"), distributed.new_group(backend="gloo")
        _own = weakref.ref(everyone), weakref.ref(made), weakref.ref(second)
    return made


def _of_jax():
    if "jax._src.distributed" not in sys.modules:
        return None
    from .integrations import jax

    return jax.group()


def over(group):
    """Returns @group as a Group; None if there is no other process in it. TypeError if @group is
    not a group that contains this process.
    """
    if group is None or hasattr(group, "launch"):  # jax.distributed's
        return group
    if not hasattr(group, "allreduce"):  # new_group() returns a number outside of the group
        what = "a torch.distributed process group that contains this process"
        raise TypeError(phrases.is_not("group", group, what))
    return None if group.size() == 1 else Group(group)


def _signed(number):
    return number - (1 << 64) if number >> 63 else number


class Group:
    def __init__(self, group):
        import torch
        import torch.distributed as distributed

        self._distributed, self._torch, self._group = distributed, torch, group
        self.size, self.index = group.size(), group.rank()
        # A process that gives up waiting for launch() is out of step with the others in that
        # group, so it is used for nothing else.
        self._launches = _own[2]() if _own is not None and _own[1]() is group else group
        self._everyone = (
            weakref.ref(distributed.group.WORLD) if distributed.is_initialized() else None
        )
        self._greatest = distributed.AllreduceOptions()
        self._greatest.reduceOp = distributed.ReduceOp.MAX

    def gone(self):
        """Has torch.distributed been ended or initialised anew since?"""
        if self._everyone is None:
            return False
        return (
            not self._distributed.is_initialized()
            or self._distributed.group.WORLD is not self._everyone()
        )

    def meet(self, patience):
        """Waits until all processes have called this; Error after @patience seconds."""
        from . import meeting

        meeting.meet(self._group, patience)

    # ---- without waiting ----

    def launch(self, *numbers):
        """Begins an all-reduce of the greatest of each of the numbers."""
        # a new tensor: the previous all-reduce may not be complete
        self._numbers = self._torch.tensor(numbers, dtype=self._torch.int64)
        return self._keep(self._launches.allreduce([self._numbers], self._greatest))

    @staticmethod
    def _keep(work):
        _kept.append(work)
        return work

    def greatest(self):
        """The result of launch(), once it is complete."""
        return self._numbers.tolist()

    # ---- with waiting ----

    def gather(self, numbers):
        """Returns the list of numbers (0 to 2^64 - 1) of every process, by index in the group."""
        torch = self._torch
        mine = torch.tensor([_signed(number) for number in numbers], dtype=torch.int64)
        all_of_them = [torch.empty_like(mine) for _ in range(self.size)]
        self._keep(self._group.allgather([all_of_them], [mine])).wait()
        return [[number % (1 << 64) for number in theirs.tolist()] for theirs in all_of_them]

    def _broadcast(self, tensor, source):
        options = self._distributed.BroadcastOptions()
        options.rootRank = source
        self._keep(self._group.broadcast([tensor], options)).wait()

    def share(self, value, source):
        """Sends @value (JSON) of the process with index @source to all, and returns it."""
        torch = self._torch
        mine = json.dumps(value).encode() if self.index == source else b""
        length = torch.tensor([len(mine)], dtype=torch.int64)
        self._broadcast(length, source)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if mine:
            data[:] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        self._broadcast(data, source)
        return json.loads(data.numpy().tobytes())
