"""litgpt's pretrain resumes exactly from its own checkpoints, on other numbers of devices."""

import glob
import os
import types

import pytest
import torch
from tokend import Cursor, Loader
from tokend.integrations.litgpt import TokendData, ValidBatches

from harness import HERE, SKIPPED, Job, all_taken
from lib import rows_at

# 5 samples: with 2 rows on each of 2 ranks, the last batch of rank 1 has padding rows only
VALID = {
    "seed": 1,
    "seq_len": 32,
    "samples": 5,
    "datasets": [{"name": "web", "path": "shards/web"}],
}


class Litgpt(Job):
    """The global batch stays the same on any number of devices."""

    def train(self, world, steps, *arguments, **more):
        # litgpt ends after a number of tokens, and would compile for 20 s
        command = ["pretrain", "--config", self.example, "--devices", world]
        command += ["--train.max_tokens", steps * 8 * self.seq_len]
        more |= {"launcher": os.path.join(HERE, "litgpt_run.py"), "TORCHDYNAMO_DISABLE": 1}
        return self.start(world, *command, *arguments, **more)

    def step_rows(self, world, passes):
        return 8


def test_resumed_on_other_worlds():
    with Litgpt("train_litgpt.yaml", streams={"valid": VALID}) as job:
        job.train(1, 1000, hold=7)
        job.train(2, 1000, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.train(1, step + 2)
        total = job.prove(steps=step + 2, resumed=[5, step])
        # litgpt takes one more batch before it ends, and does not train on it
        final = torch.load(os.path.join(job.work, "out", "final", "lit_model.pth"))
        saved = final["train_dataloader"]
        assert Cursor(saved["cursor"]).position == total + SKIPPED, "the end's checkpoint"
        assert saved["trained"] == total, "without the skipped samples"
        (path,) = glob.glob(os.path.join(job.work, "out", "logs", "csv", "version_1", "*.csv"))
        with open(path) as file:
            names, *lines = [line.strip().split(",") for line in file]
        losses = [line[names.index("val_loss")] for line in lines]
        assert any(losses), "validation loss is logged"
        assert all(7 < float(loss) < 9 for loss in losses if loss), losses


def test_a_finite_stream_ends_the_training():
    """The last batch of rank 1 has no rows."""
    with Litgpt("train_litgpt.yaml", streams={"valid": VALID}, samples=37) as job:
        job.train(2, 1000)
        trained = [row for rows in job.steps(job.starts[0]).values() for row in rows]
        order = rows_at(job.yaml, "train", 0, 37)[:, : job.seq_len].tolist()
        assert sorted(trained) == sorted(order), "each row once, and no padding"
        assert job.verify(37) == all_taken(37), "tokctl verify"


def test_padding_rows_are_left_out():
    with Job(None, streams={"valid": VALID}) as job:
        passes = []
        for rank in (0, 1):
            place = {"socket": job.daemon.socket, "rank": rank, "world": 2}
            with Loader("valid", 2, tokens=True, **place) as loader:
                batches = ValidBatches(loader, types.SimpleNamespace(fit=lambda: None))
                passes += [[batch.tolist() for batch in batches] for _ in range(2)]
        rows = rows_at(job.yaml, "valid", 0, 5).tolist()
        assert passes == [[rows[:2], rows[4:]]] * 2 + [[rows[2:4], []]] * 2, "each row once a pass"


def fit(train_dataloader):
    """Has the names of litgpt's fit() that the adapter reads. No step is made."""
    state = {"step_count": 0, "iter_num": 0}
    train = types.SimpleNamespace(gradient_accumulation_iters=lambda devices, nodes: 4)
    devices = num_nodes = 1
    return len(list(train_dataloader)), state, train, devices, num_nodes


save_checkpoint = None  # the adapter knows litgpt's module by it


def test_a_stream_that_ends_within_a_step_warns():
    with Job(None, streams={"valid": VALID}) as job:
        data = TokendData("valid", socket=job.daemon.socket)
        data.connect(batch_size=2, max_seq_length=32)
        with pytest.warns(UserWarning, match="set samples: in its config to a multiple of 8"):
            assert fit(data.train_dataloader())[0] == 3


def test_refusals():
    with Job(None, streams={"valid": VALID}) as job:
        data = TokendData(socket=job.daemon.socket)
        data.connect(batch_size=2, max_seq_length=16)
        with pytest.raises(
            ValueError, match="train.max_seq_length: 16 is not the seq_len of stream"
        ):
            data.train_dataloader()
        data.connect(batch_size=2, max_seq_length=32)
        batches = data.train_dataloader()
        with pytest.raises(ValueError, match="the checkpoint has no tokend cursor"):
            batches.load_state_dict({"num_samples_yielded": 40})
        with pytest.raises(ValueError, match="the caller is not fit"):
            next(iter(batches))
        assert batches.loader.position == 0, "no row is taken"
        batches.loader.close()
