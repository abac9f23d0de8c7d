"""nanoGPT's train.py: its loop, and its model.py next to it.

torchrun --nproc-per-node 2 train_nanogpt.py. Started again, on any number of processes that divides
gradient_accumulation_steps, it resumes.
"""

import os

import torch
import torch.distributed as dist
from model import GPT, GPTConfig
from tokend import Loader
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 5
gradient_accumulation_steps = 4  # of all processes together
batch_size, block_size, vocab_size = 2, 32, 2048  # tokend: block_size is the stream's seq_len
learning_rate, max_iters, grad_clip = 6e-4, 14, 1.0

dist.init_process_group("gloo")
ddp_rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
master_process = ddp_rank == 0
assert gradient_accumulation_steps % ddp_world_size == 0
gradient_accumulation_steps //= ddp_world_size
torch.manual_seed(1337 + ddp_rank)
os.makedirs(out_dir, exist_ok=True)
model = GPT(GPTConfig(block_size, vocab_size, n_layer=2, n_head=2, n_embd=64))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num, start = 0, "begin"  # tokend: start
ckpt_path = os.path.join(out_dir, "ckpt.pt")
if os.path.exists(ckpt_path):  # init_from = "resume"
    checkpoint = torch.load(ckpt_path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    start = checkpoint["data"]  # tokend
raw_model, model = model, DDP(model)
train = Loader("train", batch_size, start=start)  # tokend
train.commit()  # tokend: from now on the state is that of the last commit
if master_process:  # tokend: rank and world are not the job's, because one process evaluates
    valid = Loader("valid", batch_size, rank=0, world=1)  # tokend


def tensors(batch):
    # tokend: padding has label -100, and nanoGPT's model ignores -1
    return batch["input_ids"], batch["labels"].clamp(min=-1)


@torch.no_grad()
def estimate_loss():  # tokend: not of "train", because the run would lose the rows taken here
    model.eval()
    total = rows = 0  # tokend
    for batch in valid:  # tokend: the whole stream; the next pass begins at its beginning
        count = (batch["position"] >= 0).sum().item()  # tokend: not the padding of the last batch
        total += count * model(*tensors(batch))[1].item()  # tokend
        rows += count  # tokend
    model.train()
    return total / rows  # tokend


X, Y = tensors(next(train))  # fetch the very first batch
while True:
    request = train.control()  # tokend: from tokctl
    save = request is not None and request.save  # tokend
    if (iter_num % eval_interval == 0 or save) and master_process:  # tokend: save
        print(f"step {iter_num}: val loss {estimate_loss():.6f}", flush=True)
        if iter_num > 0:
            checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint |= {"iter_num": iter_num, "data": train.state_dict()}  # tokend: data
            torch.save(checkpoint, ckpt_path + ".tmp")
            os.replace(ckpt_path + ".tmp", ckpt_path)
    if request:  # tokend
        dist.barrier()  # tokend: the master process has saved
        request.done(f"{ckpt_path}, step {iter_num}")  # tokend
    if train.should_stop:  # tokend
        break  # tokend
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        trained = train.taken  # tokend: at a save, one batch more was taken
        X, Y = tensors(next(train))  # prefetch the next batch during the forward pass on the GPU
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    train.commit(trained)  # tokend
    iter_num += 1
    if iter_num > max_iters:
        break
dist.destroy_process_group()
