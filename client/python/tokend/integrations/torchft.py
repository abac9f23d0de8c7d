"""torchft: TokendReplica gives each replica group its batches of a step.

    data = TokendReplica(manager, "train", micro_batch=4)
    for step in …:
        optimizer.zero_grad()
        for batch in data.take(1):
            …
        optimizer.step()

Replica groups join and leave at any step. The rows of a step are divided among the groups that take
part in it. If a step is not committed, the next step gets its rows. A group that heals begins at
the position of the other groups. Nothing of torchft is imported here.
"""

import json

from .. import group as groups
from .. import job
from .._tokend import Error
from ..batch import FIELDS
from ..control import SAVES, Control, Request
from ..cursor import Cursor
from ..loader import Loader


class TokendReplica:
    """One replica group's batches of a stream.

    Every data rank of every group makes one. Add its state_dict and load_state_dict to those of
    the Manager. The cursor follows the steps committed by torchft, not the loader, so torchft's
    threads may call state_dict().

    manager      a torchft.Manager
    stream, micro_batch
                 as for tokend.Loader
    rank, ranks  rank and number of the data ranks within the replica group. Default:
                 torch.distributed's or torchrun's
    operated     True: carry out operators' requests (tokctl mix, skip, checkpoint, drain); see
                 control(). Each step then has one more all-reduce of 8 bytes over the groups, so
                 pass the same in all groups
    options      of tokend.Loader

    Raises what tokend.Loader raises.
    """

    def __init__(
        self, manager, stream, micro_batch, *, rank=None, ranks=None, operated=False, **options
    ):
        self._manager, self._micro = manager, micro_batch
        self._like = None  # a batch of zeros
        self._rank, self._ranks = job.coordinate(rank, ranks)
        # The groups attach at different times, so they are not compared. Each step decides on the
        # rank. Until the first, all groups have the same ranks, and must not wait for each other's
        # end.
        options = {"strict": False, **options}
        self.loader = Loader(
            stream, micro_batch, rank=self._rank, world=self._ranks, agree=False, **options
        )
        # cursor at the beginning of a step, its number, its rows over all groups, and the
        # operator's request in it
        self._at = self.loader.cursor, manager.current_step(), 0, None
        self._operator = _Operator(self.loader, manager, ranks) if operated else None

    def _committed(self):
        """Returns the cursor after the last committed step. Called from any thread, so it changes
        nothing.
        """
        cursor, step, rows, asked = self._at
        if self._manager.current_step() <= step or rows == 0:
            return cursor
        cursor = asked.edit(cursor) if asked else cursor
        to = cursor.position + rows
        return cursor.seek(to if cursor.end is None else min(to, cursor.end))

    def take(self, batches=1):
        """Returns the batches of one step: a list of dicts as tokend.Loader makes them.

        Call it once after each optimizer.zero_grad(), which begins the quorum; it waits for the
        quorum. A group that heals in this step, or is a spare, contributes nothing: its batches are
        zeros with positions -1. At the end of a finite stream the list is shorter.

        Raises what next() of a tokend.Loader raises.
        """
        replica, replicas = self._manager.participating_rank(), self._manager.num_participants()
        cursor = begin = self._committed()
        world = max(1, replicas) * self._ranks
        asked = self._operator.listen(replica is not None) if self._operator else None
        if asked:
            cursor = asked.edit(cursor)
        if replica is None:
            taken = [zeros for _ in range(batches) if (zeros := self._zeros())]
        else:
            rank = replica * self._ranks + self._rank
            loader = self.loader
            here = loader.rank, loader.world, loader.taken
            if asked or here != (rank, world, cursor.position):
                loader.seek(bytes(cursor), rank=rank, world=world)
            taken = [batch for _, batch in zip(range(batches), self.loader, strict=False)]
            self._like = self._like or (taken and self._zeros_like(taken[0]))
        rows = batches * self._micro * world if replicas else 0
        self._at = begin, self._manager.current_step(), rows, asked
        return taken

    def control(self):
        """Returns the tokend.Request that was carried out in this step, or None.

        For operated=True. Call it after each optimizer.step(). A mix or a skip acts from the
        beginning of the step just committed. If the step was not committed, the request comes again
        in the next one. Otherwise as tokend.Loader.control(). Raises nothing.
        """
        cursor, step, _, asked = self._at
        if asked is None or self._manager.current_step() <= step:
            return None
        return self._operator.carried_out(asked, cursor, self._rank == 0)

    @property
    def should_stop(self):
        """True once control() has returned a drain: the job is to leave."""
        return self._operator is not None and self._operator.control.stopping

    def _zeros(self):
        """Returns zeros in the shape of a batch, whatever the loader was asked for. None: the
        stream has ended before the first one.
        """
        if not self._like and (found := self.loader._measured().look()):  # it is not taken
            self._like = self._zeros_like(found[0])
        return self._like and self._zeros_like(self._like)

    def _zeros_like(self, like):
        import torch

        batch = {}
        for name, value in like.items():
            if name in FIELDS:
                batch[name] = torch.full_like(value, -1)
            elif name == "position_ids":
                batch[name] = torch.arange(value.shape[1]).to(value).expand_as(value).clone()
            elif name == "cu_seqlens":
                batch[name] = torch.arange(self._micro + 1).to(value) * (value[-1] // self._micro)
            elif name == "max_seqlen":
                batch[name] = int(like["cu_seqlens"][-1]) // self._micro
            else:
                batch[name] = torch.zeros_like(value)
        return batch

    def state_dict(self):
        return {"cursor": bytes(self._committed())}

    def load_state_dict(self, state):
        """Called in a group that heals: within the step that asked for the state, or before the
        first step that the group takes part in.
        """
        _, step, rows, asked = self._at
        now = self._manager.current_step()
        self._at = (Cursor(state["cursor"]), now, *((rows, asked) if now == step else (0, None)))


class _Asked:
    """A request and its edit of a cursor: the same in all groups."""

    def __init__(self, control, number, kind, args, ours):
        self.number, self.kind, self.ours = number, kind, ours
        self.request = Request(control, number, kind, args, ours, False)

    def edit(self, cursor):
        """Returns the edited cursor; @cursor itself if error() has a reason."""
        return cursor if self.kind in SAVES or self.error(cursor) else self._edited(cursor)

    def _edited(self, cursor):
        args = self.request.args
        if self.kind == "skip":
            return cursor.skip(args["samples"])
        return cursor.mix(args["weights"], args.get("at"))

    def error(self, cursor):
        """Returns why it cannot be carried out at @cursor, or None."""
        if self.kind == "rescale":
            return "rescale: replica groups join and leave by themselves; start or stop one"
        try:
            if self.kind not in SAVES:
                self._edited(cursor)
        except (Error, ValueError) as error:
            return str(error)
        return None


class _Operator:
    """Finds an operator's request and sends it to all replica groups within one step.

    The manager's all-reduce agrees on it, so like the gradients it counts only if the step is
    committed.
    """

    def __init__(self, loader, manager, ranks):
        import torch

        self._torch, self._manager = torch, manager
        self._group = groups.over(groups.of_all()) if ranks != 1 else None
        self.control = Control(loader._client, None, 0)

    def _greatest(self, numbers):
        """Returns the greatest of each number over the data ranks of all groups; None: the step has
        failed.
        """
        torch, manager = self._torch, self._manager
        if self._group is not None:
            columns = zip(*self._group.gather(numbers), strict=True)
            numbers = [max(column) for column in columns]
        on = "cuda" if "nccl" in manager._pg.getBackendName() else "cpu"
        reduced = torch.tensor(numbers, dtype=torch.int64, device=on)
        manager.allreduce(reduced, reduce_op=torch.distributed.ReduceOp.MAX).wait()
        return None if manager.errored() else reduced.tolist()

    def listen(self, takes_part):
        """Called by all groups in a step after its quorum. Returns the request, or None."""
        client, control = self.control.client, self.control
        control.finish()
        client.attend()
        number = client.request_number()
        if number == control._handled:
            number = 0
        found = self._greatest([number if takes_part else 0])
        if not found or not found[0]:
            return None
        fetched = []
        if takes_part and number == found[0]:
            _, kind, args, error = control._fetch(number)
            control._handled = 0  # until it is carried out
            fetched = [] if error else list(json.dumps([kind, args]).encode())
        length = self._greatest([len(fetched)])
        if not length or not length[0]:
            return None
        text = self._greatest(fetched + [0] * (length[0] - len(fetched)))
        if text is None:
            return None
        kind, args = json.loads(bytes(text))
        number = found[0]
        # the daemon announces it to all its sessions before one can fetch it
        return _Asked(control, number, kind, args, client.request_number() == number)

    def carried_out(self, asked, cursor, writes):
        """Called when the step of @asked, which began at @cursor, is committed."""
        request = asked.request
        request._writes = writes
        request.error = asked.error(cursor)
        if request.error is None and asked.kind not in SAVES:
            edited = asked.edit(cursor)
            mixed = edited.segments[-1]["start"]
            request.acts_from = mixed if asked.kind == "mix" else edited.position
        if asked.ours:
            self.control._handled = asked.number
        return self.control._carried_out(request)
