"""A DDP trainer: 100 steps, then a checkpoint. Started again, on any number of ranks, it resumes.

torchrun --nproc-per-node 2 trainer.py [CONFIG]
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tokend import Loader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Embedding(50257, 64), torch.nn.Linear(64, 50257))
)
optimizer = torch.optim.AdamW(model.parameters())
data = Loader("train", micro_batch=2, config=sys.argv[1] if len(sys.argv) > 1 else None)

if os.path.exists("checkpoint/.metadata"):
    # not without a checkpoint: get_state_dict() makes a step of zeros, which the optimizer counts
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments, "data": data}, checkpoint_id="checkpoint")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
for step, batch in zip(range(int(os.environ.get("STEPS", 100))), data):
    logits = model(batch["input_ids"])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(
        f"rank {dist.get_rank()} step {step} samples {batch['position'].tolist()} loss "
        f"{loss.item():.3f}",
        flush=True,
    )
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments, "data": data}, checkpoint_id="checkpoint")
del model, optimizer  # DDP keeps the process group alive
gc.collect()
# joins gloo's threads: otherwise a process that exits right after a save may abort
dist.destroy_process_group()
