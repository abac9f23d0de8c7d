"""torchft: replica groups that join and leave at any step.

Start torchft_lighthouse --min_replicas 1 --bind 0.0.0.0:29510, set
TORCHFT_LIGHTHOUSE=http://HOST:29510 for all groups, and start each group i with
REPLICA_GROUP_ID=i torchrun train_torchft.py STEPS. A whole job that is started again resumes from
saved.pt, with any number of groups. tokctl's requests are not carried out: groups come and go.
"""

import os
import sys
from datetime import timedelta

import torch
from tokend import Cursor, Loader
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

MICRO = 2
group = os.environ["REPLICA_GROUP_ID"]
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))
adam = torch.optim.AdamW(net.parameters())
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
    min_replica_size=1,
    load_state_dict=None,
    state_dict=None,
    replica_id=f"group-{group}-",
    timeout=timedelta(seconds=20),
)
model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, adam)


class Rows:
    """The rows of a step are divided among the groups that take part in it. If the step is not
    committed, the next one gets its rows: the cursor follows torchft's count of steps, not the
    loader. So another thread may ask for the state.
    """

    def __init__(self):
        # a run of its own: groups attach as rank 0 of 1, and get their ranks in each step
        self.loader = Loader("train", MICRO, rank=0, world=1, run=f"group-{group}")  # tokend
        self.begun = self.loader.cursor, manager.current_step(), 0  # a step's cursor, number, rows

    def committed(self):
        cursor, step, rows = self.begun
        return cursor.seek(cursor.position + (rows if manager.current_step() > step else 0))

    def next(self):
        """Called after zero_grad(), which begins the quorum. A group that recovers in this step
        gets zeros: torchft ignores its gradients.
        """
        rank, world = manager.participating_rank(), manager.num_participants()
        cursor = self.committed()
        self.begun = cursor, manager.current_step(), MICRO * world
        if rank is None:
            zeros = torch.zeros(MICRO, self.loader.seq_len, dtype=torch.int64)
            return {"input_ids": zeros, "labels": zeros}
        here = self.loader.rank, self.loader.world, self.loader.taken
        if here != (rank, world, cursor.position):
            self.loader.seek(cursor, rank=rank, world=world)
        return next(self.loader)

    def state_dict(self):
        return {"cursor": bytes(self.committed())}

    def load_state_dict(self, state):
        """In a group that recovers: within a step whose rows it has, or before its first."""
        _, step, rows = self.begun
        now = manager.current_step()
        self.begun = Cursor(state["cursor"]), now, rows if now == step else 0


data = Rows()  # tokend
parts = {"model": net, "optimizer": adam, "data": data}  # tokend: data
for name, part in parts.items():
    manager.register_state_dict_fn(name, part.load_state_dict, part.state_dict)
if os.path.exists("saved.pt"):  # a group that joins a running job then recovers from another one
    saved = torch.load("saved.pt")
    manager.load_state_dict(saved["torchft"])  # before the data, which notes the step
    for name, part in parts.items():
        part.load_state_dict(saved[name])

while manager.current_step() < int(sys.argv[1]):
    optimizer.zero_grad()  # starts the quorum, which decides the groups and ranks of this step
    batch = data.next()  # tokend
    logits = model(batch["input_ids"])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
    optimizer.step()  # if all groups agree; otherwise the rows are served again
    if manager.current_step() % 100 == 0 and manager.participating_rank() == 0:  # one group writes
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save(saved | {"torchft": manager.state_dict()}, "saved.pt")
manager.shutdown()
