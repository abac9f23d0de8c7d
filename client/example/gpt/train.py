"""A small GPT, trained with plain DDP. Comments that begin with "tokend:" explain the loader.

    torchrun --nproc-per-node N train.py --socket S --checkpoints DIR --record PREFIX --until STEP

It resumes from the newest checkpoint in DIR, also if another number of ranks wrote it.
"""

import argparse
import gc
import json
import os
import pathlib
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from tokend import Loader

GLOBAL_BATCH = 16  # rows per step, over all ranks


class GPT(nn.Module):
    def __init__(self, vocabulary=50257, length=128, width=128, heads=4, layers=2):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        # GPT-2 numbers its tokens roughly by frequency, so rare ones can have a narrower output
        # layer. It is still a distribution over all tokens, at a tenth of the arithmetic.
        self.output = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, cutoffs=[1000, 8000])
        for embedding in (self.token, self.place):
            nn.init.normal_(embedding.weight, std=0.02)
        self.register_buffer(
            "causal", nn.Transformer.generate_square_subsequent_mask(length), persistent=False
        )

    def forward(self, input_ids, labels):
        x = self.layers(self.token(input_ids) + self.place.weight, mask=self.causal, is_causal=True)
        real = labels >= 0  # padding at the end of a finite stream is -100
        return self.output(x[real], labels[real]).loss


class Training:
    """Model, optimizer and step as one entry of a checkpoint."""

    def __init__(self, model):
        self.model, self.step = model, 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]

    def learn(self, batch):
        for group in self.optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (self.step + 1) / 30)
        self.optimizer.zero_grad()
        loss = self.model(batch["input_ids"], batch["labels"])
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()


@torch.no_grad()
def validate(model, socket, rank, world):
    """The summed loss over this rank's tokens of the validation set, and their number."""
    # tokend: another stream of the same daemon. It is finite, so the loop ends.
    loader = Loader("valid", micro_batch=GLOBAL_BATCH // world, socket=socket)
    loss, tokens = 0.0, 0
    for batch in loader:
        if real := int((batch["labels"] >= 0).sum()):
            loss += real * model(batch["input_ids"], batch["labels"]).item()
            tokens += real
    loader.close()
    return {"loss": loss, "tokens": tokens}


def newest(checkpoints):
    done = sorted(checkpoints.glob("step-*/.metadata"))  # DCP writes this file last
    return done[-1].parent if done else None


def train(arguments):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    # In a batch without rare tokens, their part of the output layer has no gradient.
    training = Training(DistributedDataParallel(GPT(), find_unused_parameters=True))

    # tokend: the loader is part of the checkpoint, and adds a few hundred bytes. With record=, it
    # also notes each row that it takes, for the proof at the end.
    loader = Loader(
        "train",
        micro_batch=GLOBAL_BATCH // world,
        socket=arguments.socket,
        slots=arguments.slots,
        run="gpt",
        record=f"{os.path.dirname(arguments.record)}/rows",
    )
    state = {"training": training, "loader": loader}
    if checkpoint := newest(arguments.checkpoints):
        dcp.load(state, checkpoint_id=checkpoint)

    record = open(f"{arguments.record}-{rank}.jsonl", "w", buffering=1)
    record.write(json.dumps({"start": training.step, "world": world, "pid": os.getpid()}) + "\n")

    began = time.perf_counter()
    for batch in loader:  # tokend: needs no workers, sampler or set_epoch()
        waited = time.perf_counter() - began
        loss = training.learn(batch)
        facts = {"step": training.step - 1, "loss": loss, "rows": len(batch["position"])}
        facts |= {"waited": waited, "took": time.perf_counter() - began, "at": time.time()}
        record.write(json.dumps(facts) + "\n")

        if training.step % arguments.every == 0 or training.step == arguments.until:
            dcp.save(state, checkpoint_id=arguments.checkpoints / f"step-{training.step:06d}")
            if rank == 0:
                for old in sorted(arguments.checkpoints.iterdir())[:-2]:
                    shutil.rmtree(old)
        if training.step == arguments.until:
            break
        began = time.perf_counter()

    valid = validate(training.model.module, arguments.socket, rank, world)
    record.write(json.dumps({"valid": valid}) + "\n")
    loader.close()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--socket")
    arguments.add_argument(
        "--slots", type=int, default=0, help="batches in the ring; default: tokend's"
    )
    arguments.add_argument("--checkpoints", type=pathlib.Path)
    arguments.add_argument("--record", help="prefix of the files in which ranks record their rows")
    arguments.add_argument("--until", type=int)
    arguments.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    arguments = arguments.parse_args()

    dist.init_process_group("gloo")
    train(arguments)
    gc.collect()  # frees DDP, which keeps the process group alive
    # joins gloo's threads: otherwise a process that exits right after a gather may abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
