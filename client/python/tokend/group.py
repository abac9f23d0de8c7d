"""The processes of a job, as far as the loader talks to them: a few numbers, over a
torch.distributed group of the CPU.
"""

import json
import sys
import weakref
from collections import deque

from . import meeting

PATIENCE_S = 1800.0  # gloo's own

_own = None  # weak references to torch.distributed's group of all, and to the one we made beside it

# gloo's thread lets go of a collective a little later than wait() returns. Who is the last to needs
# Python's lock, to let go of the tensors' Python halves, and a thread that waits for it in a
# process that ends is made to abort. So it is not the last one: what we began is kept until Python
# is gone, but for so many newer ones.
_kept = deque(maxlen=16)


def _distributed():
    distributed = sys.modules.get("torch.distributed")  # nobody initialised what was not imported
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def processes():
    """How many torch.distributed says this job has."""
    distributed = _distributed()
    return distributed.get_world_size() if distributed else 1


def of_all(patience=PATIENCE_S):
    """A gloo group of all processes, all of which call this; None if this one is alone. All loaders
    of a process share it.

    patience: seconds to wait for the others, then Error.
    """
    global _own
    distributed = _distributed()
    if distributed is None or distributed.get_world_size() == 1:
        return None
    everyone = distributed.group.WORLD
    made = _own[1]() if _own is not None and _own[0]() is everyone else None
    if made is None:
        meeting.meet(None, patience)
        made, beside = distributed.new_group(backend="gloo"), distributed.new_group(backend="gloo")
        _own = weakref.ref(everyone), weakref.ref(made), weakref.ref(beside)
    return made


def over(group):
    """A Group to talk over; None: this process is alone, or knows of no others. TypeError if that
    is no group of its own.
    """
    if group is None:
        return None
    if not hasattr(
        group, "allreduce"
    ):  # new_group() gives a number to processes that are not in it
        raise TypeError(
            f"group: {group!r}, must be a torch.distributed process group that this process is in"
        )
    return None if group.size() == 1 else Group(group)


def _signed(number):
    return number - (1 << 64) if number >> 63 else number


class Group:
    def __init__(self, group):
        import torch
        import torch.distributed as distributed

        self._distributed, self._torch, self._group = distributed, torch, group
        self.size, self.index = group.size(), group.rank()
        # Who gives up what it launched is out of step with the others in that group, so that is one
        # for nothing else.
        self._beside = _own[2]() if _own is not None and _own[1]() is group else group
        self._everyone = (
            weakref.ref(distributed.group.WORLD) if distributed.is_initialized() else None
        )
        self._greatest = distributed.AllreduceOptions()
        self._greatest.reduceOp = distributed.ReduceOp.MAX

    def gone(self):
        """Was torch.distributed ended, or begun anew, since?"""
        if self._everyone is None:
            return False
        return (
            not self._distributed.is_initialized()
            or self._distributed.group.WORLD is not self._everyone()
        )

    def meet(self, patience):
        """Waits until all processes have called this; Error after @patience seconds."""
        meeting.meet(self._group, patience)

    # ---- the one that does not wait ----

    def launch(self, *numbers):
        """Begins to find the greatest of all for each of two numbers."""
        # anew: the one before may still be under way
        self._numbers = self._torch.tensor(numbers, dtype=self._torch.int64)
        return self._keep(self._beside.allreduce([self._numbers], self._greatest))

    @staticmethod
    def _keep(work):
        _kept.append(work)
        return work

    def greatest(self):
        """Of what was launched, once that is complete."""
        return self._numbers.tolist()

    # ---- the others ----

    def gather(self, numbers):
        """Everybody's list of numbers below 2^64, by index in the group."""
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
        """@value of the process with index @source, to all. Lists, dicts, texts and numbers."""
        torch = self._torch
        mine = json.dumps(value).encode() if self.index == source else b""
        length = torch.tensor([len(mine)], dtype=torch.int64)
        self._broadcast(length, source)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if mine:
            data[:] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        self._broadcast(data, source)
        return json.loads(data.numpy().tobytes())
