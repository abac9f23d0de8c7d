"""A Llama of ibm-fms with FSDP2, or HSDP with REPLICAS > 1; compiled blocks, bfloat16, a DCP
checkpoint every 5 steps.

torchrun --nproc-per-node 4 train_fsdp.py [REPLICAS]. Started again, on any number of processes and
replicas, it resumes.
"""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fms.models.llama import LLaMA, LLaMAConfig
from tokend import Loader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 1
mesh = init_device_mesh(
    "cpu",
    (replicas, dist.get_world_size() // replicas),
    mesh_dim_names=("dp_replicate", "dp_shard"),
)
torch.manual_seed(0)
size = LLaMAConfig(
    src_vocab_size=2048, emb_dim=64, nheads=4, kvheads=2, nlayers=2, max_expected_seq_len=32
)
model = LLaMA(size)
model.reset_parameters()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for block in model.base_model.layers:
    block.compile()
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
data = Loader("train", micro_batch=2, mesh=mesh)  # tokend: ranks from the names of its dims

saved = sorted(Path("checkpoint").glob("*/.metadata"))  # DCP writes it last
done = int(saved[-1].parent.name) if saved else 0
if saved:
    # not without a checkpoint: get_state_dict() makes a step of zeros, which the optimizer counts
    weights, moments = get_state_dict(model, optimizer)
    everything = {"model": weights, "optimizer": moments, "data": data}  # tokend: data
    dcp.load(everything, checkpoint_id=saved[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
for step, batch in zip(range(done + 1, 16), data):
    logits = model(batch["input_ids"])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
del model, block, optimizer  # FSDP keeps the process groups alive
gc.collect()
# joins gloo's threads: otherwise a process that exits right after a save may abort
dist.destroy_process_group()
