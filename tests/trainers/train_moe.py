"""A mixture of experts with expert parallelism, FSDP2 and a DCP checkpoint every 5 steps.

torchrun --nproc-per-node 4 train_moe.py [EP]. EP processes divide the experts and exchange tokens.
Started again, on any number of processes and another EP, it resumes.
"""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tokend import Loader
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

EXPERTS, CHOSEN, DIM = 8, 2, 64


class Experts(nn.Module):
    def __init__(self, ep):
        super().__init__()
        self.up = nn.Parameter(
            distribute_tensor(torch.randn(EXPERTS, DIM, 128) / 8, ep, [Shard(0)])
        )
        self.down = nn.Parameter(
            distribute_tensor(torch.randn(EXPERTS, 128, DIM) / 11, ep, [Shard(0)])
        )

    def forward(self, tokens, counts):
        experts = zip(tokens.split(counts), self.up.to_local(), self.down.to_local(), strict=True)
        return torch.cat([silu(part @ up) @ down for part, up, down in experts])


class Moe(nn.Module):
    def __init__(self, ep):
        super().__init__()
        self.router, self.experts = nn.Linear(DIM, EXPERTS, bias=False), Experts(ep)
        self.ep, self.group = ep.size(), ep.get_group()

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOSEN)
        order = chosen.flatten().argsort(stable=True)  # copies of tokens, by expert
        counts = chosen.flatten().bincount(minlength=EXPERTS)
        coming = torch.empty_like(counts)  # from each process, for each expert here
        dist.all_to_all_single(coming, counts, group=self.group)
        send = counts.view(self.ep, -1).sum(1).tolist()
        receive = coming.view(self.ep, -1).sum(1).tolist()
        here = all_to_all_single_autograd(tokens[order // CHOSEN], receive, send, self.group)
        expert = torch.arange(EXPERTS // self.ep).repeat(self.ep).repeat_interleave(coming)
        sort = expert.argsort(stable=True)
        done = self.experts(here[sort], coming.view(self.ep, -1).sum(0).tolist())[sort.argsort()]
        back = all_to_all_single_autograd(done, send, receive, self.group)
        back = back * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // CHOSEN, back).view_as(x)


class Block(nn.Module):
    def __init__(self, ep):
        super().__init__()
        self.before, self.after = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.out, self.moe = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), Moe(ep)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        heads = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.moe(self.after(x))


def build(mesh):
    torch.manual_seed(0)
    blocks = [Block(mesh["ep"]) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(2048, DIM), *blocks, nn.Linear(DIM, 2048))
    for block in blocks:
        fully_shard(block.moe.experts, mesh=mesh["data_share"])
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # foreach=False: experts and other weights are on different meshes
    experts = [weight for block in blocks for weight in block.moe.experts.parameters()]
    return model, experts, torch.optim.AdamW(model.parameters(), foreach=False)


dist.init_process_group("gloo")
ep = int(sys.argv[1]) if len(sys.argv) > 1 else 1
mesh = init_device_mesh(
    "cpu", (dist.get_world_size() // ep, ep), mesh_dim_names=("data_share", "ep")
)
model, experts, optimizer = build(mesh)
data = Loader("train", micro_batch=2, mesh=mesh)  # tokend: each process reads rows of its own

saved = sorted(Path("checkpoint").glob("*/.metadata"))  # DCP writes it last
done = int(saved[-1].parent.name) if saved else 0
if saved:
    # not without a checkpoint: get_state_dict() makes a step of zeros, which the optimizer counts
    weights, moments = get_state_dict(model, optimizer)
    everything = {"model": weights, "optimizer": moments, "data": data}  # tokend: data
    dcp.load(everything, checkpoint_id=saved[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
max_steps = 15
for step, batch in zip(range(done + 1, max_steps + 1), data):
    logits = model(batch["input_ids"])
    loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    for weight in experts:
        weight.grad /= ep  # FSDP has averaged over "data_share", and tokens came from "ep" too
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
del model, experts, optimizer  # FSDP keeps the process groups alive
gc.collect()
# joins gloo's threads: otherwise a process that exits right after a save may abort
dist.destroy_process_group()
