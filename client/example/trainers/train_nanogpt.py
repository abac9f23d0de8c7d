"""nanoGPT's train.py, with its loop and a smaller model.

torchrun --nproc-per-node 2 train_nanogpt.py, or python train_nanogpt.py. Started again, on any
number of processes that divides gradient_accumulation_steps, it resumes.
"""

import os

import torch
from tokend import Loader
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 5
gradient_accumulation_steps = 4  # of all processes together
batch_size, block_size, vocab_size = 2, 32, 2048  # tokend: block_size is the stream's seq_len
n_layer, n_head, n_embd = 2, 2, 64
learning_rate, max_iters, grad_clip = 6e-4, 14, 1.0


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(n_embd), torch.nn.LayerNorm(n_embd)
        self.c_attn = torch.nn.Linear(n_embd, 3 * n_embd)
        self.c_fc, self.c_proj = (
            torch.nn.Linear(n_embd, 4 * n_embd),
            torch.nn.Linear(4 * n_embd, n_embd),
        )

    def forward(self, x):
        heads = self.c_attn(self.ln_1(x)).unflatten(2, (3, n_head, -1)).transpose(1, 3)
        y = F.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(vocab_size, n_embd)
        self.wpe = torch.nn.Embedding(block_size, n_embd)
        self.h = torch.nn.Sequential(*(Block() for _ in range(n_layer)))
        self.lm_head = torch.nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        logits = self.lm_head(self.h(self.wte(idx) + self.wpe.weight[: idx.size(1)]))
        loss = F.cross_entropy(
            logits.view(-1, logits.size(-1)),
            targets.view(-1),
            ignore_index=-100,  # tokend: not -1
        )
        return logits, loss


ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group("gloo")
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process, ddp_rank, ddp_world_size = True, 0, 1
torch.manual_seed(1337 + ddp_rank)
os.makedirs(out_dir, exist_ok=True)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num, start = 0, "begin"  # tokend: start
ckpt_path = os.path.join(out_dir, "ckpt.pt")
if os.path.exists(ckpt_path):  # init_from = "resume"
    checkpoint = torch.load(ckpt_path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    start = checkpoint["data"]  # tokend
raw_model = model
if ddp:
    model = DDP(model)
train = Loader("train", batch_size, start=start)  # tokend
train.commit()  # tokend: from now on the state is that of the last commit
if master_process:  # tokend: rank and world are not the job's, because one process evaluates
    valid = Loader("valid", batch_size, rank=0, world=1)  # tokend


def get_batch():
    batch = next(train)  # tokend
    return batch["input_ids"], batch["labels"]  # tokend


@torch.no_grad()
def estimate_loss():  # tokend: not of "train", because the run would lose the rows taken here
    model.eval()
    total = rows = 0  # tokend
    for batch in valid:  # tokend: the whole stream; the next pass begins at its beginning
        count = (batch["position"] >= 0).sum().item()  # tokend: not the padding of the last batch
        total += count * model(batch["input_ids"], batch["labels"])[1].item()  # tokend
        rows += count  # tokend
    model.train()
    return total / rows  # tokend


X, Y = get_batch()  # fetch the very first batch
while True:
    request = train.control()  # tokend: from tokctl
    save = request is not None and request.save  # tokend
    if (iter_num % eval_interval == 0 or save) and master_process:  # tokend: save
        print(f"step {iter_num}: val loss {estimate_loss():.6f}", flush=True)
        if iter_num > 0:
            checkpoint = {
                "model": raw_model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": iter_num,
                "data": train.state_dict(),  # tokend
            }
            torch.save(checkpoint, ckpt_path + ".tmp")
            os.replace(ckpt_path + ".tmp", ckpt_path)
    if request:  # tokend
        if ddp:  # tokend
            barrier()  # tokend: the master process has saved
        request.done(f"{ckpt_path}, step {iter_num}")  # tokend
    if train.should_stop:  # tokend
        break  # tokend
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        trained = train.taken  # tokend: at a save, one batch more was taken
        X, Y = get_batch()  # prefetch the next batch during the forward pass on the GPU
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    train.commit(trained)  # tokend
    iter_num += 1
    if iter_num > max_iters:
        break
if ddp:
    destroy_process_group()
