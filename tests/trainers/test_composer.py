"""Composer resumes exactly on other worlds, also from a save within a step; it evaluates all rows
each time, and what would lose rows is rejected.
"""

import json
import math
import os
import re

import composer_run  # noqa: F401  first: without it composer cannot be imported
# isort: split

import pytest
import torch
from composer import Callback, Trainer
from composer.metrics.nlp import LanguageCrossEntropy
from composer.models import ComposerModel, HuggingFaceModel
from tokend import Loader
from tokend.integrations.composer import TokendCallback, TokendData, split
from transformers import LlamaConfig, LlamaForCausalLM

from harness import HERE, VALID, Job
from lib import TOKCTL, run

# torchrun sets no NODE_RANK, which composer needs
HOW = {"launcher": os.path.join(HERE, "composer_run.py"), "NODE_RANK": 0}
# processes write to the log at the same time, so another line may follow at once
LOSS = r"metrics/eval/loss: (nan|\d+\.\d*)"
HELD_OUT = [[0, 1], [2, 3], [4, 5], [6, -1]]


def test_resumed_on_other_worlds():
    with Job("train_composer.py", accumulate=2, streams={"valid": VALID}) as job:
        texts = [job.start(1, hold=7, **HOW)]
        job.edit('"15ba"', '"1000ba"')
        texts.append(job.start(2, hold=7, then=job.edit_and_drain, **HOW))
        step = job.drained()
        job.edit('"1000ba"', f'"{step + 3}ba"')
        texts.append(job.start(1, **HOW))
        job.prove(steps=step + 3, resumed=[5, step])
        for text in texts:
            losses = [float(loss) for loss in re.findall(LOSS, text)]
            assert losses and all(map(math.isfinite, losses)), "the held-out rows, without padding"


class Model(ComposerModel):
    """Notes the positions of the rows that it was called with, in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(2048, 8), torch.nn.Linear(8, 2048))
        self.trained, self.evaluated = [], []

    def forward(self, batch):
        (self.trained if self.training else self.evaluated).append(batch["position"].tolist())
        return self.model(batch["input_ids"])

    def loss(self, logits, batch):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def update_metric(self, batch, outputs, metric):
        pass


class Trainers:
    """Makes Trainers in this process, of one stream each."""

    def __init__(self, job):
        self.job, self.number = job, 0

    def data(self, stream, micro_batch, kind=TokendData, **more):
        self.number += 1  # a run of its own
        more |= {"socket": self.job.daemon.socket, "run": f"r{self.number}"}
        return kind(stream, micro_batch, **more)

    def trainer(self, data, *callbacks, **more):
        self.model = Model()
        given = {"model": self.model, "optimizers": torch.optim.AdamW(self.model.parameters())}
        given |= {"train_dataloader": data, "callbacks": list(callbacks)}
        return Trainer(device="cpu", progress_bar=False, **{**given, **more})


@pytest.fixture
def trainers():
    with Job(None, streams={"valid": VALID}) as job:
        yield Trainers(job)


def rows(first, last, micro_batch):
    return [list(range(row, row + micro_batch)) for row in range(first, last, micro_batch)]


def test_nothing_is_dropped_or_trained_twice(trainers, directory):
    """A second fit(), evaluations, a save within a step, and epochs of train_subset_num_batches."""
    within = str(directory / "within.pt")

    class SaveWithin(Callback):
        def before_train_batch(self, state, logger):
            if state.timestamp.batch == 2:
                trainer.save_checkpoint(within)

    callbacks = SaveWithin(), TokendCallback()
    more = {"eval_dataloader": trainers.data("valid", 2), "eval_interval": "1ba"}
    trainer = trainers.trainer(trainers.data("train", 4), *callbacks, **more)
    trainer.fit(duration="3ba")
    trainer.fit(duration="2ba")
    assert trainers.model.trained == rows(0, 20, 4)
    assert trainers.model.evaluated == 5 * HELD_OUT
    assert (trainer.state.timestamp.batch, trainer.state.timestamp.sample) == (5, 20)

    epochs = {"max_duration": "2ep", "train_subset_num_batches": 4}
    more = {"load_path": within, "device_train_microbatch_size": 1}
    trainer = trainers.trainer(trainers.data("train", 2), TokendCallback(), **epochs, **more)
    trainer.fit()
    assert trainers.model.trained == rows(8, 20, 1), "2 steps of the first epoch, 4 of the second"


def test_a_batch_of_a_failed_step_is_served_again(trainers):
    class Fails(Callback):
        def before_train_batch(self, state, logger):
            if state.timestamp.batch == 2 and not trainers.model.failed:
                trainers.model.failed = True
                raise KeyboardInterrupt

    trainer = trainers.trainer(trainers.data("train", 4), TokendCallback(), Fails())
    trainers.model.failed = False
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(duration="4ba")
    trainer.fit(duration="2ba")
    assert trainers.model.trained == rows(0, 16, 4)


def test_a_finite_stream_is_an_epoch(trainers, directory):
    more = {"save_folder": str(directory), "save_interval": "1ba", "run_name": "finite"}
    more |= {"eval_dataloader": trainers.data("valid", 2), "eval_interval": "1ep"}
    data = trainers.data("valid", 2, record=str(directory / "records"))
    trainer = trainers.trainer(data, TokendCallback(), max_duration="2ep", **more)
    trainer.fit()
    assert trainers.model.trained == 2 * HELD_OUT
    _, out, _ = run(
        *(TOKCTL, "verify", "-c", trainers.job.yaml, "valid", directory / "records", "--json")
    )
    passes = [json.loads(line) for line in out.splitlines()]
    assert [(said["samples"], said["void"]) for said in passes] == [(7, 0), (7, 0)]
    assert trainer.state.timestamp.sample == 14
    for batch, left in ((1, HELD_OUT[1:] + HELD_OUT), (4, HELD_OUT), (6, HELD_OUT[2:])):
        path = next(map(str, directory.glob(f"ep*-ba{batch}-rank0.pt")))
        trainer = trainers.trainer(
            trainers.data("valid", 2), TokendCallback(), max_duration="2ep", load_path=path
        )
        trainer.fit()
        assert trainers.model.trained == left, f"resumed after step {batch}"


def test_documents_are_divided_with_their_rows(directory):
    with Job(None, eos=3, documents=True) as job:
        more = {"socket": job.daemon.socket, "documents": True}
        with (
            Loader("train", 4, run="a", **more) as whole,
            Loader("train", 2, run="b", **more) as two,
        ):
            for _ in range(20):
                for part in split(next(whole), 2):
                    expected = next(two)
                    assert part.keys() == expected.keys()
                    for name, value in part.items():
                        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[name]))


def test_labels_are_shifted_once(trainers):
    """Composer's HuggingFaceModel shifts labels itself."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "vocab_size": 2048}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    model = HuggingFaceModel(llama, use_logits=True, metrics=[LanguageCrossEntropy()])
    more = {"eval_dataloader": trainers.data("valid", 8), "max_duration": "1ba"}
    more |= {"optimizers": torch.optim.SGD(model.parameters(), lr=0.0)}
    trainer = trainers.trainer(trainers.data("train", 2), TokendCallback(), model=model, **more)
    trainer.fit()
    trainer.eval()
    said = [trainer.state.total_loss_dict["loss/train/total"]]
    said.append(float(trainer.state.eval_metrics["eval"]["LanguageCrossEntropy"].compute()))
    for loss, stream, rows in zip(said, ("train", "valid"), (2, 8), strict=True):
        batch = next(trainers.data(stream, rows, Loader))
        with torch.no_grad():
            logits = llama(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, batch["labels"][:, :-1].flatten())
        assert math.isclose(loss, expected, rel_tol=1e-5), stream


def test_what_would_lose_rows_is_rejected(trainers, directory):
    with pytest.raises(ValueError, match="no TokendCallback"):
        trainers.trainer(trainers.data("train", 2), max_duration="2ba").fit()
    bare = trainers.data("train", 2, Loader)
    more = {"device_train_microbatch_size": 2, "max_duration": "2ba", "spin_dataloaders": False}
    with pytest.raises(TypeError, match="would not be in the checkpoint"):
        trainers.trainer(bare, TokendCallback(), **more).fit()
    trainers.trainer(bare, save_folder=str(directory), run_name="plain", **more).fit()
    load = {"max_duration": "4ba", "load_path": str(directory / "ep0-ba2-rank0.pt")}
    with pytest.raises(ValueError, match="the checkpoint has no tokend cursor"):
        trainers.trainer(trainers.data("train", 2), TokendCallback(), **load).fit()
    data = trainers.data("train", 2, rank=0, world=2)
    with pytest.raises(ValueError, match="the number of composer's data-parallel ranks, 1"):
        trainers.trainer(data, TokendCallback(), max_duration="2ba").fit()
    data = trainers.data("valid", 2)
    trainer = trainers.trainer(data, TokendCallback(), eval_dataloader=data, eval_interval="1ba")
    with pytest.raises(ValueError, match="an evaluation would move the position"):
        trainer.fit(duration="2ba")


def test_composer_may_not_drop_batches_of_a_loader(trainers):
    bare, held_out = trainers.data("train", 2, Loader), trainers.data("valid", 2, Loader)
    more = {"device_train_microbatch_size": 2, "max_duration": "2ba"}
    for data in bare, (batch for batch in bare):
        with pytest.raises(ValueError, match="composer would drop batches"):
            trainers.trainer(data, **more).fit()
    with pytest.raises(ValueError, match="composer would drop batches"):
        trainers.trainer(bare, eval_dataloader=held_out, **more).fit()
    with pytest.raises(ValueError, match="composer would drop batches"):
        trainers.trainer(bare, eval_dataloader=held_out, **more).eval()
    assert bare.taken == held_out.taken == 0
    trainers.trainer(bare, spin_dataloaders=False, **more).fit()
    assert trainers.model.trained == rows(0, 4, 2), "spin_dataloaders=False: composer drops none"
