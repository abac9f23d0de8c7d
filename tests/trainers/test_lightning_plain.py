"""TokendData in Lightning's fit() resumes without losing or repeating a row, also within an
accumulation and with a schedule. It validates whole passes.
"""

import json
import sys

import harness  # noqa: F401  checks that the wheel is used
import pytest

from lib import Daemon, datasets, run

PROGRAM = """
import json, os, sys, warnings
import lightning as L, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tokend.integrations.lightning import TokendData

stream, socket, out, every, stop, scheduled, validated, keys, before = json.loads(sys.argv[1])


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(65536, 4)
        self.seen, self.checked, self.steps = [], [], None

    def training_step(self, batch, index):
        self.seen += [p for p in batch["position"].tolist() if p >= 0]
        if len(self.seen) == 4 * stop:
            self.trainer.should_stop = True
        return self.embedding(batch["input_ids"]).square().mean()

    def on_validation_epoch_start(self):
        self.checked.append(0)

    def validation_step(self, batch, index):
        self.checked[-1] += (batch["position"] >= 0).sum().item()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if not scheduled:
            return optimizer
        self.steps = self.trainer.estimated_stepping_batches
        assert self.steps == self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


saves = ModelCheckpoint(out, "last", every_n_train_steps=every, enable_version_counter=False)
trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, callbacks=[saves], min_epochs=0,
    enable_progress_bar=False, enable_model_summary=False, **keys)
saved = out + "/last.ckpt"
valid = {"valid": "finite"} if validated else {}
record = f"{out}/{os.getpid()}"
data = TokendData(stream, 4, socket=socket, run="data", record=record, **valid)
module = Module()
warnings.filterwarnings("error", ".*not resumable")
exec(before)
trainer.fit(module, data, ckpt_path=saved if os.path.exists(saved) else None)
assert len(os.listdir(record)) == 1, "a validation is not recorded"
print(json.dumps([module.steps or trainer.global_step, module.seen, module.checked]))
"""


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 2_570)  # 80 samples
    train = {"seed": 1, "seq_len": 32, "datasets": datasets("web")}
    streams = {"train": train, "finite": {**train, "epochs": 1}}
    return Daemon(shared, shared.config(streams=streams))


@pytest.fixture
def start(daemon, place):
    """Runs the program: [steps, trained positions, validated rows], or its error."""

    def fit(stream, keys, every=7, stop=0, out="", scheduled=False, validated=False, before=""):
        out = place.file(out or stream)
        said = [stream, daemon.socket, out, every, stop, scheduled, validated, keys, before]
        code, text, err = run(sys.executable, "-c", PROGRAM, json.dumps(said), timeout=200)
        return json.loads(text.splitlines()[-1]) if code == 0 else err

    return fit


def test_whole_passes_are_validated(start):
    """Also after the sanity check, which takes two batches."""
    how = {"max_steps": 20, "val_check_interval": 10, "check_val_every_n_epoch": None}
    steps, seen, checked = start("train", how, validated=True)
    assert (steps, seen, checked) == (20, list(range(80)), [8, 80, 80])


def test_a_schedule_that_asks_for_its_length_loses_no_state(start):
    """Lightning sets the loaders up for it, before it loads states of loaders."""
    asks = {"scheduled": True}
    for stop in (9, 0):
        steps, seen, _ = start("train", {"max_steps": 12, "max_epochs": 1}, stop=stop, **asks)
        assert (steps, seen) == (12, list(range(0, 36) if stop else range(28, 48)))
    for stream, ends in (("train", {"max_epochs": 1}), ("finite", {"max_epochs": 2})):
        said = start(stream, ends, out="refused", **asks)
        assert "pass Trainer(max_steps=N)" in said


TUNE = """from lightning.pytorch.tuner import Tuner
Tuner(trainer).lr_find(module, datamodule=data, update_attr=False); module.seen.clear()"""
FIT = "trainer.fit(module, data); module.seen.clear(); stop = 0"
OVERFIT = """import warnings; warnings.filterwarnings("error", ".*in the same order")"""


def test_what_was_taken_and_not_trained_on_comes_again(start):
    """After a tuner, which goes back to the state before it, and in another fit()."""
    steps = {"max_steps": 4, "accumulate_grad_batches": 2}
    assert start("train", steps, out="tune", before=TUNE)[1] == list(range(32))
    assert start("train", steps, stop=5, out="fit", before=FIT)[1] == list(range(16, 32))
    some = {"max_epochs": 3, "overfit_batches": 2}
    assert start("train", some, out="o", before=OVERFIT)[1] == [*range(8)] * 3


def test_resumes_exactly(start):
    # stream, accumulated batches, last step of each start, batches before the save that the next
    # start resumes from
    runs = (("train", 2, (7, 12), [10]), ("finite", 1, (7, 17, "all"), [5, 15]))
    for stream, accumulate, starts, saves in runs:
        rows = []
        for number, steps in enumerate(starts):
            ends = {"max_epochs": 1} if steps == "all" else {"max_steps": steps}
            more = {"accumulate_grad_batches": accumulate, **ends}
            rows += start(stream, more, every=5)[1]
            if number < len(saves):
                assert len(rows) > 4 * saves[number], "some steps were made after the save"
                del rows[4 * saves[number] :]
        end = 80 if stream == "finite" else 4 * accumulate * starts[-1]
        assert rows == list(range(end)), "each row once, in order"
