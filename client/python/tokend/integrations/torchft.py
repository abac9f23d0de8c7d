"""torchft: `data = TokendReplica(manager, "train", micro_batch=4)`, and `for batch in
data.take(1):` behind optimizer.zero_grad().

Replica groups come and go at any step. The rows of a step are dealt out among those that take part
in it; a step that is not committed gives its rows back to the next one, and a group that heals
begins where the others are. Nothing of torchft is imported here.
"""

import json

from .. import group as groups
from .. import job
from .._tokend import Error
from ..control import EDITS, Control, Request
from ..cursor import Cursor
from ..loader import Loader


class TokendReplica:
    """One replica group's batches of a stream. Every group, and every data rank in it, makes one;
    state_dict and load_state_dict go into the Manager's.

    manager      torchft.Manager
    rank, ranks  of this process among the data ranks within its replica group; default
                 torch.distributed's or torchrun's
    options      those of tokend.Loader

    operated     True: an operator's requests (tokctl mix, skip, checkpoint, drain) are carried out,
                 see control(). Each step then has one more all-reduce of 8 bytes over the groups,
                 so all groups must say the same

    The cursor is kept by the steps that torchft has committed, not by the loader: so state_dict()
    may be called from torchft's threads.
    """

    def __init__(
        self, manager, stream, micro_batch, *, rank=None, ranks=None, operated=False, **options
    ):
        self._manager, self._micro, self._options = manager, micro_batch, options
        self._rank, self._ranks = job.coordinate(rank, ranks)
        # The groups attach at different times, so nothing is compared among them; which rank it is
        # each step says. Until then all groups are the same ranks of one group, and must not wait
        # for each other's end.
        options = {"strict": False, **options}
        self.loader = Loader(
            stream, micro_batch, rank=self._rank, world=self._ranks, agree=False, **options
        )
        # Where a step begins, which one, and what happens once it is committed: so many rows of all
        # groups are taken, after an operator's edit if there is one.
        self._at = self.loader.cursor, manager.current_step(), 0, None
        self._operator = _Operator(self.loader, manager, ranks) if operated else None

    def _committed(self):
        """The cursor after the last committed step. Changes nothing: torchft asks from another
        thread.
        """
        cursor, step, rows, asked = self._at
        if self._manager.current_step() <= step or rows == 0:
            return cursor
        cursor = asked.edit(cursor) if asked else cursor
        to = cursor.position + rows
        return cursor.seek(to if cursor.end is None else min(to, cursor.end))

    def take(self, batches=1):
        """The batches of one step, a list: call it once behind each optimizer.zero_grad(), which
        begins the quorum; it waits for that.

        Dicts as tokend.Loader makes them. A group that is only healing in this step, or is a spare,
        contributes nothing to it: its batches are zeros, with positions of -1. At the end of a
        finite stream the list is shorter than asked for.
        """
        replica, replicas = self._manager.participating_rank(), self._manager.num_participants()
        cursor = begin = self._committed()
        world = max(1, replicas) * self._ranks
        asked = self._operator.listen(replica is not None) if self._operator else None
        if asked:
            cursor = asked.edit(cursor)
        if replica is None:
            taken = [self._zeros(cursor) for _ in range(batches)]
        else:
            rank = replica * self._ranks + self._rank
            loader = self.loader
            here = loader.rank, loader.world, loader.taken
            if asked or here != (rank, world, cursor.position):
                loader.seek(bytes(cursor), rank=rank, world=world)
            taken = [batch for _, batch in zip(range(batches), self.loader, strict=False)]
        rows = batches * self._micro * world if replicas else 0
        self._at = begin, self._manager.current_step(), rows, asked
        return taken

    def control(self):
        """Call it after each optimizer.step(), with operated=True: a tokend.Request that was
        carried out in this step, or None. As tokend.Loader.control() otherwise.

        A mix or a skip acts from the beginning of the step that was just committed. If the step was
        not committed the request comes again in the next one.
        """
        cursor, step, _, asked = self._at
        if asked is None or self._manager.current_step() <= step:
            return None
        return self._operator.carried_out(asked, cursor, self._rank == 0)

    @property
    def should_stop(self):
        """An operator asked for a drain, and control() has returned that."""
        return self._operator is not None and self._operator.control.stopping

    def _zeros(self, cursor):
        """Of the loader's shapes and dtypes, with nothing in it."""
        import torch

        asked, seq, device = (
            self._options.get,
            cursor.to_dict()["seq_len"],
            self._options.get("device"),
        )
        share = seq // asked("cp")[1] if asked("cp") else seq
        tokens = torch.zeros(self._micro, share, dtype=torch.int64, device=device)
        nowhere = torch.full((self._micro,), -1)
        narrow = str(asked("dtype")).endswith("int32")
        batch = {
            "input_ids": tokens.int() if narrow else tokens,
            "labels": tokens,
            "position": nowhere,
            "dataset": nowhere,
        }
        if asked("documents") or asked("cp"):
            batch["position_ids"] = torch.arange(share, device=device).repeat(self._micro, 1)
        if asked("documents"):
            batch["cu_seqlens"] = torch.arange(
                0, self._micro * seq + 1, seq, dtype=torch.int32, device=device
            )
            batch["max_seqlen"] = seq
        if asked("loss_mask"):
            batch["loss_mask"] = tokens.float()
        if asked("provenance"):
            batch |= dict.fromkeys(("epoch", "window", "shard", "offset"), nowhere)
        return batch

    def state_dict(self):
        return {"cursor": bytes(self._committed())}

    def load_state_dict(self, state):
        """In a group that heals: within the step in which it was asked for, or before the first one
        that it takes part in.
        """
        _, step, rows, asked = self._at
        now = self._manager.current_step()
        self._at = (Cursor(state["cursor"]), now, *((rows, asked) if now == step else (0, None)))


class _Asked:
    """A request, and what it makes of a cursor: the same on all groups."""

    def __init__(self, control, number, kind, args, ours):
        self.number, self.kind, self.ours = number, kind, ours
        self.request = Request(control, number, kind, args, ours, False)

    def edit(self, cursor):
        """@cursor itself if it cannot be carried out, see error()."""
        return cursor if self.kind not in EDITS or self.error(cursor) else self._edited(cursor)

    def _edited(self, cursor):
        args = self.request.args
        if self.kind == "skip":
            return cursor.skip(args["samples"])
        return cursor.mix(args["weights"], args.get("at"))

    def error(self, cursor):
        """Why it cannot be carried out at @cursor, or None."""
        if self.kind == "rescale":
            return "rescale: replica groups come and go by themselves: start or stop one"
        try:
            if self.kind in EDITS:
                self._edited(cursor)
        except (Error, ValueError) as error:
            return str(error)
        return None


class _Operator:
    """Finds an operator's request, and brings it to all replica groups within one step.

    What is agreed on over the manager's own all-reduce counts only if the step is committed, as the
    gradients do.
    """

    def __init__(self, loader, manager, ranks):
        import torch

        self._torch, self._manager = torch, manager
        self._group = groups.over(groups.of_all()) if ranks != 1 else None
        self.control = Control(loader._client, None, 0)

    def _greatest(self, numbers):
        """Of each number, over the data ranks of all groups; None: the step has failed."""
        torch, manager = self._torch, self._manager
        if self._group is not None:
            columns = zip(*self._group.gather(numbers), strict=True)
            numbers = [max(column) for column in columns]
        on = "cuda" if "nccl" in manager._pg.getBackendName() else "cpu"
        told = torch.tensor(numbers, dtype=torch.int64, device=on)
        manager.allreduce(told, reduce_op=torch.distributed.ReduceOp.MAX).wait()
        return None if manager.errored() else told.tolist()

    def listen(self, takes_part):
        """Called by all groups in a step, once its quorum is known: the request, or None."""
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
        # the daemon showed it to all its sessions before it gave it to one
        return _Asked(control, number, kind, args, client.request_number() == number)

    def carried_out(self, asked, cursor, writes):
        """The step of @asked, which began at @cursor, is committed."""
        request = asked.request
        request._writes = writes
        request.error = asked.error(cursor)
        if request.error is None and asked.kind in EDITS:
            edited = asked.edit(cursor)
            mixed = edited.segments[-1]["start"]
            request.acts_from = mixed if asked.kind == "mix" else edited.position
        if asked.ours:
            self.control._handled = asked.number
        return self.control._carried_out(request)
