"""Attention within documents, in a mix of packed and plain rows; DDP, a checkpoint every 5 steps.

torchrun --nproc-per-node 2 train_documents.py. Started again, on any number of processes, it
resumes. The stream has `documents: true` and `loss_mask: true`, as tokctl pack --fit prints them.
"""

import os

import torch
import torch.distributed as dist
from tokend import Loader
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = torch.nn.Embedding(2048, 64), torch.nn.Embedding(32, 64)
        self.project, self.output = torch.nn.Linear(64, 3 * 64), torch.nn.Linear(64, 2048)

    def forward(self, input_ids, position_ids, cu_seqlens):
        x = (self.token(input_ids) + self.place(position_ids)).flatten(0, 1)  # rows in a line
        query, key, value = self.project(x).unflatten(1, (3, 4, -1)).permute(1, 2, 0, 3)
        # on GPUs: varlen_attn() of torch.nn.attention.varlen, with window_size=(-1, 0)
        at = torch.arange(len(x))
        document = torch.bucketize(at, cu_seqlens, right=True)
        mask = (document[:, None] == document) & (at[:, None] >= at)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(x + heads.transpose(0, 1).flatten(1))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters())
data = Loader("train", micro_batch=2, documents=True)  # tokend
parts, done = {"model": model, "optimizer": optimizer, "data": data}, 0  # tokend: data
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    done = saved["step"]
    for name, part in parts.items():
        part.load_state_dict(saved[name])
for step, batch in zip(range(done + 1, 16), data):
    logits = model(batch["input_ids"], batch["position_ids"], batch["cu_seqlens"])
    labels = batch["labels"].flatten()  # tokend: -100 in the padding of packed rows
    count = (labels >= 0).sum()
    dist.all_reduce(count)  # DDP divides by the processes, whose rows have unequal padding
    loss = F.cross_entropy(logits, labels, reduction="sum") * dist.get_world_size() / count
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f} of {count} tokens", flush=True)
    if step % 5 == 0 and dist.get_rank() == 0:
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save(saved | {"step": step}, "saved.tmp")
        os.replace("saved.tmp", "saved.pt")
del model, parts  # DDP keeps the process group alive
dist.destroy_process_group()
