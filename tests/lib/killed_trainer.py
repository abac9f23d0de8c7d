"""One rank of a small DDP job whose losses depend on every sample.

The model is trained with AdamW in float32, in one thread, so the same samples in the same order
give the same bits. One sample that is repeated, lost, altered or moved changes every later loss.

A Plan is what all ranks and the test share; Board is memory that they share.
"""

import ctypes
import dataclasses
import datetime
import importlib
import mmap
import os
import time

import numpy
import torch
import torch.distributed as distributed
from tokend import requests
from torch.nn import functional

from .elastic_trainer import Trainer

VOCAB, WIDTH = 251, 16  # a prime: any changed bit of a token changes its remainder
# what a rank appends after each step
STEP = numpy.dtype([("step", "<u8"), ("position", "<u8"), ("life", "<u4"), ("loss", "<u4")])


class Board(ctypes.Structure):
    """Two numbers. made() puts them into memory that the test and all ranks share."""

    _fields_ = [("until", ctypes.c_int64), ("pause_us", ctypes.c_int64)]

    @classmethod
    def made(cls):
        return cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))


@dataclasses.dataclass
class Plan:
    """A job: where its files are, and how it reads."""

    socket: str
    checkpoint: str
    losses: str  # directory
    records: str
    board: Board
    world: int = 4
    micro: int = 2
    mixes: tuple = ()  # (step, acts_from, weights): set by the trainers themselves


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # In the order in which gradients are ready, and none ready at once (no bias). DDP sorts its
        # bucket so after a job's first step; the order decides the rounding of the all-reduce.
        self.out = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        self.inner = torch.nn.Embedding(VOCAB, WIDTH)

    def forward(self, batch):
        logits = self.out(torch.tanh(self.inner(batch["input_ids"] % VOCAB)))
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten() % VOCAB)


class Trained(Trainer):
    def __init__(self, plan, rank, life, listener):
        """@listener: for the job's store, which rank 0 serves."""
        self.plan, self.life = plan, life
        keys = {"master_listen_fd": listener.fileno()} if rank == 0 else {}
        keys["timeout"] = datetime.timedelta(seconds=60)
        port = listener.getsockname()[1]
        store = distributed.TCPStore("127.0.0.1", port, plan.world, rank == 0, **keys)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=plan.world)
        torch.manual_seed(1)
        self.model = torch.nn.parallel.DistributedDataParallel(Model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.003)
        keys = {"socket": plan.socket, "run": "kills", "record": plan.records}
        keys["slots"] = 4  # a ring that lasts for a few steps: a killed daemon is missed soon
        super().__init__(plan.checkpoint, plan.micro, **keys)
        self.losses = os.open(f"{plan.losses}/{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def state(self):
        parts = {"model": self.model.module, "optimizer": self.optimizer}
        return {**super().state(), **{name: part.state_dict() for name, part in parts.items()}}

    def restore(self, saved):
        self.model.module.load_state_dict(saved.pop("model"))
        self.optimizer.load_state_dict(saved.pop("optimizer"))
        super().restore(saved)

    def train(self, batch):
        loss = self.model(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        entry = numpy.zeros(1, STEP)
        entry["step"], entry["life"] = self.step, self.life
        entry["position"] = int(batch["position"][0])
        entry["loss"] = loss.detach().numpy().view("<u4")
        os.write(self.losses, entry.tobytes())

    def carry_out(self, request):
        if request.kind == "mix" and not request.error:
            self.mixes.append((self.step, request.acts_from, request.args["weights"]))
        super().carry_out(request)

    def control(self):
        super().control()
        for step, acts_from, weights in self.plan.mixes:
            if step == self.step:
                acts = self.loader.set_mix(weights)
                assert acts == acts_from, ("the same mix acts from the same position", acts)
                self.mixes.append((step, acts_from, weights))

    def ends(self):
        time.sleep(self.plan.board.pause_us / 1e6)
        return self.step >= self.plan.board.until or super().ends()


def warm_up():
    """Imports what torch imports late, in the process from which the ranks are forked."""
    torch.set_num_threads(1)
    model = Model()
    torch.optim.AdamW(model.parameters()).step()
    importlib.import_module("torch._dynamo")


def main(plan, rank, life, listener):
    torch.set_num_threads(1)
    requests.EVERY_S = 0.1  # requests meet more steps and more kills
    trainer = Trained(plan, rank, life, listener)
    trainer.run()
    trainer.save()
    stats = trainer.loader.stats()
    assert stats["lost_wakes"] == 0, ("a wake-up was lost", stats)
    trainer.leave()
