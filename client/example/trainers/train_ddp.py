"""DDP with torch.compile, or FSDP2 and HSDP; a DCP checkpoint every 5 steps.

torchrun --nproc-per-node 4 train_ddp.py [REPLICAS]. REPLICAS: FSDP2, or HSDP if it is more than 1.
Started again, on any number of processes and replicas, it resumes.
"""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tokend import Loader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))
mesh, replicas = None, int(sys.argv[1]) if len(sys.argv) > 1 else 0
if replicas:
    shape = replicas, dist.get_world_size() // replicas
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
    fully_shard(model, mesh=mesh)
    forward = model
else:
    model = DistributedDataParallel(model)
    forward = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
# ranks come from the names of the mesh's dims, without a mesh from torch.distributed
data = Loader("train", micro_batch=2, mesh=mesh)  # tokend

saved = sorted(Path("checkpoint").glob("*/.metadata"))  # DCP writes it last
done = int(saved[-1].parent.name) if saved else 0
if saved:
    # not without a checkpoint: get_state_dict() makes a step of zeros, which the optimizer counts
    weights, moments = get_state_dict(model, optimizer)
    everything = {"model": weights, "optimizer": moments, "data": data}  # tokend: data
    dcp.load(everything, checkpoint_id=saved[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
for step, batch in zip(range(done + 1, 16), data):
    logits = forward(batch["input_ids"])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    request = data.control()  # tokend: from tokctl
    if step % 5 == 0 or (request and request.save):  # tokend
        weights, moments = get_state_dict(model, optimizer)
        everything = {"model": weights, "optimizer": moments, "data": data}  # tokend: data
        dcp.save(everything, checkpoint_id=f"checkpoint/{step:08}")
        if request:  # tokend
            request.done(f"checkpoint of step {step}")  # tokend
    if data.should_stop:  # tokend
        break  # tokend
del model, forward, optimizer  # DDP and FSDP keep process groups alive
gc.collect()
dist.destroy_process_group()
