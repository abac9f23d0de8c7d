"""A plain Loader in Lightning's fit() resumes from a save every 5 steps, without losing or
repeating a row.
"""

import json
import os
import sys

import harness  # noqa: F401  checks that the wheel is used

from lib import Daemon, datasets, run


TRAIN = """
import json, os, sys
import lightning as L, tokend, torch
from lightning.pytorch.callbacks import ModelCheckpoint

socket, stream, out, steps, accumulate = sys.argv[1:]


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(65536, 4)

    def training_step(self, batch, index):
        with open(out, "a") as file:
            print(json.dumps(batch["position"].tolist()), file=file)
        return self.embedding(batch["input_ids"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


saves = ModelCheckpoint(out + ".saved", "last", every_n_train_steps=5, enable_version_counter=False)
ends = {"max_epochs": 1} if steps == "all" else {"max_steps": int(steps)}
trainer = L.Trainer(
    accelerator="cpu",
    devices=1,
    logger=False,
    callbacks=[saves],
    enable_progress_bar=False,
    enable_model_summary=False,
    accumulate_grad_batches=int(accumulate),
    **ends,
)
saved = out + ".saved/last.ckpt"
loader = tokend.Loader(stream, 4, socket=socket, rank=0, world=1)
trainer.fit(Module(), loader, ckpt_path=saved if os.path.exists(saved) else None)
"""


VALIDATE = """
import sys
import lightning as L, tokend, torch


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding, self.checked = torch.nn.Embedding(65536, 4), []

    def training_step(self, batch, index):
        return self.embedding(batch["input_ids"]).square().mean()

    def on_validation_epoch_start(self):
        self.checked.append(0)

    def validation_step(self, batch, index):
        self.checked[-1] += (batch["position"] >= 0).sum().item()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loaders = [tokend.Loader("finite", 4, socket=sys.argv[1], run=name) for name in "tv"]
module = Module()
trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, max_epochs=2,
    enable_checkpointing=False, val_check_interval=0.5, enable_progress_bar=False)
trainer.fit(module, *loaders)
print(trainer.global_step, *module.checked)
"""


def test_a_plain_loader_validates_whole_passes(place):
    """Also after the sanity check, which takes two batches, and in every epoch."""
    place.shard("web/a.bin", 1_300)
    finite = {"seed": 1, "seq_len": 32, "epochs": 1, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"finite": finite}))
    code, out, err = run(sys.executable, "-c", VALIDATE, daemon.socket, timeout=200)
    assert code == 0, err
    assert out.split()[-6:] == [b"20", b"8", *[b"40"] * 4], out
    assert daemon.stop() == 0, "exit 0"


SCHEDULED = """
import json, os, sys
import lightning as L, tokend, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tokend.integrations.lightning import Batches, TokendData

socket, how, stream, out, stop, ends = sys.argv[1:]


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding, self.seen, self.steps = torch.nn.Embedding(65536, 4), [], None

    def training_step(self, batch, index):
        self.seen += [p for p in batch["position"].tolist() if p >= 0]
        if len(self.seen) == 4 * int(stop):
            self.trainer.should_stop = True
        return self.embedding(batch["input_ids"]).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.steps = self.trainer.estimated_stepping_batches
        assert self.steps == self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Own(Module):
    def train_dataloader(self):
        return Batches(tokend.Loader(stream, 4, socket=socket, run=how), self.trainer)


saves = ModelCheckpoint(out, "last", every_n_train_steps=7, enable_version_counter=False)
trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, callbacks=[saves], min_epochs=0,
    enable_progress_bar=False, enable_model_summary=False, **json.loads(ends))
saved = out + "/last.ckpt"
data, module = None, Own() if how == "own" else Module()
if how == "data":
    data = TokendData(stream, 4, socket=socket, run=how)
elif how == "plain":
    data = tokend.Loader(stream, 4, socket=socket, run=how)
trainer.fit(module, data, ckpt_path=saved if os.path.exists(saved) else None)
print(json.dumps([module.steps, module.seen]))
"""


def test_a_schedule_that_asks_for_its_length_loses_no_state(place):
    """Lightning sets the loaders up for it, before it loads their states."""
    place.shard("web/a.bin", 2_570)
    train = {"seed": 1, "seq_len": 32, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": train, "finite": {**train, "epochs": 1}}))

    def start(how, stream, ends, stop=0, out=None):
        out = place.file(out or f"{how}-{stream}")
        arguments = (daemon.socket, how, stream, out, stop, json.dumps(ends))
        code, said, err = run(sys.executable, "-c", SCHEDULED, *arguments, timeout=200)
        return json.loads(said.splitlines()[-1]) if code == 0 else err

    for how in ("plain", "data", "own"):
        steps, seen = start(how, "finite", {"max_epochs": 1}, stop=9)
        assert (steps, len(seen)) == (20, 36)
        resumed = start(how, "finite", {"max_epochs": 1})
        assert resumed == [20, list(range(28, 80))], how
    for stop in (9, 0):
        steps, seen = start("data", "train", {"max_steps": 12, "max_epochs": 1}, stop=stop)
        assert (steps, seen) == (12, list(range(0, 36) if stop else range(28, 48)))
    for stream, ends in (("train", {"max_epochs": 1}), ("finite", {"max_epochs": 2})):
        assert "pass Trainer(max_steps=N)" in start("data", stream, ends, out="refused")
    assert daemon.stop() == 0, "exit 0"


def test_a_plain_loader_resumes_exactly(place):
    place.shard("web/a.bin", 10_000)
    train = {"seed": 1, "seq_len": 32, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": train, "finite": {**train, "epochs": 1}}))
    # stream, accumulated batches, last step of each start, batches before the save that the next
    # start resumes from
    runs = (("train", 2, (7, 12), [10]), ("finite", 1, (7, 22, "all"), [5, 20]))
    for stream, accumulate, starts, saves in runs:
        out, rows = place.file(f"{stream}-{accumulate}"), []
        for number, steps in enumerate(starts):
            code, _, err = run(
                sys.executable,
                "-c",
                TRAIN,
                daemon.socket,
                stream,
                out,
                steps,
                accumulate,
                timeout=200,
            )
            assert (code, err if code else "") == (0, ""), (
                f"{stream}, {accumulate} batches a step, up to {steps}"
            )
            with open(out) as file:
                rows += [
                    position for line in file for position in json.loads(line) if position >= 0
                ]
            os.unlink(out)
            if number < len(saves):
                assert len(rows) > 4 * saves[number], (
                    "  some steps were made after the save",
                    len(rows),
                )
                del rows[4 * saves[number] :]
        end = 312 if stream == "finite" else 4 * accumulate * starts[-1]
        assert rows == list(range(end)), "  each row once, in order"
    assert daemon.stop() == 0, "exit 0"
