"""torchft: `data = TokendReplica(manager, "train", micro_batch=4)`, and `for batch in
data.take(1):` behind optimizer.zero_grad().

Replica groups come and go at any step. The rows of a step are dealt out among those that take part
in it; a step that is not committed gives its rows back to the next one, and a group that heals
begins where the others are. Nothing of torchft is imported here.
"""

from .. import job
from ..cursor import Cursor
from ..loader import Loader


class TokendReplica:
    """One replica group's batches of a stream. Every group, and every data rank in it, makes one;
    state_dict and load_state_dict go into the Manager's.

    manager      torchft.Manager
    rank, ranks  of this process among the data ranks within its replica group; default
                 torch.distributed's or torchrun's
    options      those of tokend.Loader

    The cursor is kept by the steps that torchft has committed, not by the loader: so state_dict()
    may be called from torchft's threads.
    """

    def __init__(self, manager, stream, micro_batch, *, rank=None, ranks=None, **options):
        self._manager, self._micro, self._options = manager, micro_batch, options
        self._rank, self._ranks = job.coordinate(rank, ranks)
        # The groups attach at different times, so nothing is compared among them; which rank it is
        # each step says. Until then all groups are the same ranks of one group, and must not wait
        # for each other's end.
        options = {"strict": False, **options}
        self.loader = Loader(
            stream, micro_batch, rank=self._rank, world=self._ranks, agree=False, **options
        )
        # Where a step begins, which one, and how many rows of all groups it takes with it once it
        # is committed.
        self._at = self.loader.cursor, manager.current_step(), 0

    def _committed(self):
        """The cursor behind the last committed step. Changes nothing: torchft asks from another
        thread.
        """
        cursor, step, rows = self._at
        if self._manager.current_step() <= step or rows == 0:
            return cursor
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
        cursor = self._committed()
        world = max(1, replicas) * self._ranks
        if replica is None:
            taken = [self._zeros(cursor) for _ in range(batches)]
        else:
            rank = replica * self._ranks + self._rank
            if (self.loader.rank, self.loader.world, self.loader.taken) != (
                rank,
                world,
                cursor.position,
            ):
                self.loader.seek(bytes(cursor), rank=rank, world=world)
            taken = [batch for _, batch in zip(range(batches), self.loader, strict=False)]
        self._at = (
            cursor,
            self._manager.current_step(),
            batches * self._micro * world if replicas else 0,
        )
        return taken

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
        _, step, rows = self._at
        now = self._manager.current_step()
        self._at = Cursor(state["cursor"]), now, rows if now == step else 0
