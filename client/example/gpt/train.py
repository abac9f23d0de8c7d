"""A small GPT, trained with plain DDP. Comments that begin with "tokend:" explain the loader.

    torchrun --nproc-per-node N train.py STEPS [SLOTS]

It resumes from checkpoint.pt, also if another number of ranks wrote it. SLOTS: batches in the ring.
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tokend import Loader
from tokend.throughput import Throughput

GLOBAL_BATCH = 16  # rows per step, over all ranks
LENGTH, VOCABULARY, WIDTH = 128, 50257, 128


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        last = nn.LayerNorm(WIDTH)
        self.layers = nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False)
        # GPT-2 numbers its tokens roughly by frequency, so rare ones can have a narrower output
        # layer. It is still a distribution over all tokens, at a tenth of the arithmetic.
        self.output = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, cutoffs=[1000, 8000])
        for embedding in (self.token, self.place):
            nn.init.normal_(embedding.weight, std=0.02)
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, input_ids, labels):
        x = self.layers(self.token(input_ids) + self.place.weight, mask=self.causal, is_causal=True)
        return self.output(x.flatten(0, 1), labels.flatten()).loss


def train(until, slots=0):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    # In a batch without rare tokens, their part of the output layer has no gradient.
    model = DistributedDataParallel(GPT(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    # tokend: with record=, the loader notes each row that it takes, for the proof at the end.
    loader = Loader("train", GLOBAL_BATCH // world, slots=slots, run="gpt", record="records")
    # tokend: the loader is part of the checkpoint, and adds a few hundred bytes.
    parts, done = {"model": model, "optimizer": optimizer, "loader": loader}, 0
    if os.path.exists("checkpoint.pt"):
        saved = torch.load("checkpoint.pt")
        done = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    throughput = Throughput(loader)
    # tokend: needs no workers, sampler or set_epoch()
    for step, batch in zip(range(done + 1, until + 1), loader):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 30)
        loss = model(batch["input_ids"], batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            rates = throughput()  # tokend: since the last step
            speed = f"{rates['tokend/tokens_per_second']:,.0f} tokens/s"
            share = f"waiting for data {100 * rates['tokend/data_share']:.2f} %"
            print(f"step {step} loss {mean.item():.3f}  {speed}  {share}", flush=True)
        if rank == 0 and (step % 40 == 0 or step == until):
            saved = {name: part.state_dict() for name, part in parts.items()}
            torch.save(saved | {"step": step}, "checkpoint.part")
            os.replace("checkpoint.part", "checkpoint.pt")
    loader.close()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(*map(int, sys.argv[1:]))
    gc.collect()  # frees DDP, which keeps the process group alive
    # joins gloo's threads: otherwise a process that exits right after a gather may abort
    dist.destroy_process_group()
