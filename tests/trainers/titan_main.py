"""Runs the example on a stand-in for torchtitan's main branch of August 2026, which is in no
package: the classes that adapter and example use, and the loops of trainer and validator.
"""

import io
import os
import sys
import types
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

VOCAB, SEQ, ROWS, EOS = 64, 32, 2, 1
TOKENS, STEPS = int(os.environ.get("TOKENS", ROWS * SEQ)), int(os.environ.get("STEPS", 1000))
SAVES = Path("outputs/checkpoint")


class Configurable:
    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[type]

        def build(self, **parts):
            return self._owner(config=replace(self), **parts)

    def __init_subclass__(cls):
        cls.Config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    @abstractmethod
    def __iter__(self): ...

    @abstractmethod  # there it does nothing; here an adapter without it fails
    def close(self): ...


class CheckpointManager(Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        enable: bool = False
        interval: int = 500
        last_save_model_only: bool = True
        load_only: bool = False

    def __init__(self, config, **states):
        self.interval, self.states = config.interval, states

    def load(self):
        saved = [path.parent for path in SAVES.glob("*/.metadata")]  # DCP writes it last
        if saved:
            dcp.load(self.states, checkpoint_id=max(saved, key=lambda path: int(path.name[5:])))

    def save(self, step, last_step=False):
        if last_step or step % self.interval == 0:
            dcp.save(self.states, checkpoint_id=SAVES / f"step-{step}")


class Trainer(Stateful, Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        dataloader: BaseDataLoader.Config = field(default_factory=BaseDataLoader.Config)
        checkpoint: CheckpointManager.Config = field(default_factory=CheckpointManager.Config)

    def __init__(self, config):
        torch.manual_seed(0)
        self.config, self.step = config, 0
        self.model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 8), torch.nn.Linear(8, VOCAB))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.dataloader = self.build(config.dataloader)
        self.checkpointer = config.checkpoint.build(dataloader=self.dataloader, train_state=self)

    def build(self, config):
        return config.build(
            dp_world_size=dist.get_world_size(),
            dp_rank=dist.get_rank(),
            tokenizer=None,
            max_context_length=SEQ,
            num_tokens_per_batch=TOKENS,
        )

    def train(self):
        self.checkpointer.load()
        batches = iter(self.dataloader)
        while self.should_continue_training():
            self.step += 1
            inputs, labels = next(batches)
            check(labels, **inputs)
            logits = self.model(inputs["input"].view(ROWS, SEQ)).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.checkpointer.save(self.step)

    def should_continue_training(self):
        return self.step < STEPS

    def validate(self):
        valid = replace(self.config.dataloader, stream="finite", documents=True, record=None)
        counted = torch.zeros(1)
        with closing(self.build(replace(valid, repeat=False))) as batches:
            for inputs, labels in batches:
                check(labels, **inputs, eos=EOS)
                counted += (labels != -100).sum()
                dist.all_reduce(torch.zeros(1))  # hangs if ranks have different numbers of batches
        dist.all_reduce(counted)
        print(f"validated {int(counted)} labels", flush=True)

    def close(self):
        self.dataloader.close()

    def state_dict(self):
        out = io.BytesIO()
        torch.save([self.step, self.model.state_dict(), self.optimizer.state_dict()], out)
        return {"saved": out.getvalue()}

    def load_state_dict(self, state):
        self.step, model, optimizer = torch.load(io.BytesIO(state["saved"]))
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def check(labels, input, positions, eos=None):
    """The batch is flat, labels are shifted, positions begin at 0 in each row and after @eos."""
    shapes = {(part.dtype, *part.shape) for part in (input, positions, labels)}
    assert shapes == {(torch.int64, TOKENS)}, shapes
    rows, following = input.view(-1, SEQ), labels.view(-1, SEQ)
    real = following[:, 0] != -100  # the others are padding
    assert (following[real, :-1] == rows[real, 1:]).all(), (input, labels)
    begins = torch.zeros_like(rows, dtype=torch.bool)
    begins[:, 0] = True
    begins[:, 1:] |= rows[:, :-1] == eos
    places = torch.arange(SEQ).expand_as(rows)
    want = places - torch.where(begins, places, 0).cummax(1).values
    assert (positions.view(-1, SEQ)[real] == want[real]).all(), (positions, want)


def provide(name, **members):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(members)


provide("torchtitan")  # hides an installed one
provide("torchtitan.components")
provide("torchtitan.components.data.loader", BaseDataLoader=BaseDataLoader)
provide("torchtitan.trainer", Trainer=Trainer)
provide("torchtitan.models.llama3.config_registry", llama3_debugmodel=Trainer.Config)
sys.path.insert(0, os.getcwd())  # the example
from titan import llama3  # noqa: E402

dist.init_process_group("gloo")
config = llama3()
config.dataloader.record = sys.argv[sys.argv.index("--dataloader.record") + 1]
trainer = config.build()
trainer.train()
trainer.validate()
trainer.close()
dist.destroy_process_group()
