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
import tokend
import torch
import torch.distributed as distributed
from tokend import control
from torch.nn import functional

VOCAB, WIDTH = 251, 16  # a prime: any changed bit of a token changes its remainder
CHECKPOINT_EVERY = 8
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


class Trainer:
    def __init__(self, plan, rank, life, listener):
        """@listener: for the job's store, which rank 0 serves."""
        self.plan, self.rank, self.life = plan, rank, life
        keys = {"timeout": datetime.timedelta(seconds=60)}
        if rank == 0:
            keys["master_listen_fd"] = listener.fileno()
        port = listener.getsockname()[1]
        store = distributed.TCPStore("127.0.0.1", port, plan.world, rank == 0, **keys)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=plan.world)
        torch.manual_seed(1)
        self.model = torch.nn.parallel.DistributedDataParallel(Model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.003)
        self.step, self.mixes, start = 0, [], "begin"
        if os.path.exists(plan.checkpoint):
            saved = torch.load(plan.checkpoint)
            self.model.module.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.mixes, start = saved["step"], saved["mixes"], saved["data"]["cursor"]
        keys = {"record": plan.records, "start": start, "deadline": 60}
        keys["slots"] = 4  # a ring that lasts for a few steps: a killed daemon is missed soon
        self.loader = tokend.Loader("train", plan.micro, socket=plan.socket, run="kills", **keys)
        self.losses = os.open(f"{plan.losses}/{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def save(self):
        """Rank 0 replaces the checkpoint; a kill leaves the old one or the new one."""
        if self.rank:
            return
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "mixes": self.mixes,
            "data": self.loader.state_dict(),
        }
        torch.save(state, f"{self.plan.checkpoint}.new")
        os.replace(f"{self.plan.checkpoint}.new", self.plan.checkpoint)

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
        self.step += 1

    def change(self, request):
        """Notes an operator's mix, and saves if the operator asks for it."""
        if request.kind == "mix" and not request.error:
            self.mixes.append((self.step, request.acts_from, request.args["weights"]))
        if request.save:
            self.save()
            distributed.barrier()  # now it is saved for all
            request.done()

    def repeat_mixes(self):
        for step, acts_from, weights in self.plan.mixes:
            if step == self.step:
                acts = self.loader.set_mix(weights)
                assert acts == acts_from, ("the same mix acts from the same position", acts)
                self.mixes.append((step, acts_from, weights))

    def run(self):
        board = self.plan.board
        while self.step < board.until and not self.loader.should_stop:
            self.train(next(self.loader))
            request = self.loader.control()
            if request is not None:
                self.change(request)
            self.repeat_mixes()
            if self.step % CHECKPOINT_EVERY == 0:
                distributed.barrier()  # all have noted their losses
                self.save()
            if board.pause_us:
                time.sleep(board.pause_us / 1e6)
        self.save()
        stats = self.loader.stats()
        assert stats["lost_wakes"] == 0, ("a wake-up was lost", stats)
        self.loader.close()
        distributed.barrier()  # all are done with the group
        distributed.destroy_process_group()


def warm_up():
    """Imports what torch imports late, in the process from which the ranks are forked."""
    torch.set_num_threads(1)
    model = Model()
    torch.optim.AdamW(model.parameters()).step()
    importlib.import_module("torch._dynamo")


def main(plan, rank, life, listener):
    torch.set_num_threads(1)
    control.EVERY_S = 0.1  # requests meet more steps and more kills
    Trainer(plan, rank, life, listener).run()
