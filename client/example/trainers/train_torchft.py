"""torchft: replica groups that join and leave at any step.

Start torchft_lighthouse --min_replicas 1 --bind 0.0.0.0:29510, set
TORCHFT_LIGHTHOUSE=http://HOST:29510 for all groups, and start each group i with
REPLICA_GROUP_ID=i torchrun train_torchft.py STEPS. After `tokctl drain`, a new job resumes from
saved.pt, with any number of groups.
"""

import os
import sys
from datetime import timedelta

import torch
from tokend.integrations.torchft import TokendReplica
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))
adam = torch.optim.AdamW(net.parameters())
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
    min_replica_size=1,
    load_state_dict=None,
    state_dict=None,
    replica_id=f"group-{os.environ['REPLICA_GROUP_ID']}-",
    timeout=timedelta(seconds=20),
)
model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, adam)
data = TokendReplica(manager, "train", micro_batch=2, operated=True)
parts = {"model": net, "optimizer": adam, "data": data}  # tokend: data
for name, part in parts.items():
    manager.register_state_dict_fn(name, part.load_state_dict, part.state_dict)
if os.path.exists("saved.pt"):  # a group that joins a running job then recovers from another one
    saved = torch.load("saved.pt")
    manager.load_state_dict(saved["torchft"])  # before the data, which notes the step
    for name, part in parts.items():
        part.load_state_dict(saved[name])

while manager.current_step() < int(sys.argv[1]) and not data.should_stop:  # tokend
    optimizer.zero_grad()  # starts the quorum, which decides the groups and ranks of this step
    for batch in data.take(1):  # tokend
        logits = model(batch["input_ids"])
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten()
        ).backward()
    optimizer.step()  # if all groups agree; otherwise the rows are served again
    request = data.control()  # tokend: from tokctl
    if request and request.save:  # tokend
        if manager.participating_rank() == 0:  # one group writes
            saved = {name: part.state_dict() for name, part in parts.items()}
            torch.save(saved | {"torchft": manager.state_dict()}, "saved.pt")
        request.done(f"saved step {manager.current_step()}")  # tokend
manager.shutdown()
