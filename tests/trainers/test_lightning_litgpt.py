"""litgpt's pretrain resumes exactly from its own checkpoints, on other numbers of devices."""

import glob
import json
import os
import shutil

from harness import EXAMPLES, HERE, SKIPPED, Job
from lib import rows_at

# 5 samples: with 2 rows on each of 2 ranks, the last batch of rank 1 has padding rows only
VALID = {"seed": 1, "seq_len": 32, "samples": 5}
VALID["datasets"] = [{"name": "web", "path": "shards/web"}]


class Litgpt(Job):
    """The global batch stays the same on any number of devices."""

    def __enter__(self):
        super().__enter__()
        shutil.copy(os.path.join(EXAMPLES, "litgpt_data.py"), self.work)
        return self

    def train(self, world, iterations, **more):
        """@iterations: of a device, as litgpt counts them, those of earlier starts included."""
        # it would compile for 20 s
        command = ["pretrain", "--config", self.example, "--devices", world]
        command += ["--train.max_tokens", iterations * world * 2 * self.seq_len]
        more |= {"launcher": os.path.join(HERE, "litgpt_run.py"), "TORCHDYNAMO_DISABLE": 1}
        return self.start(world, *command, **more)

    def edit_the_mix_and_skip(self, _):
        self.ask("mix train --json web=0.4 code=0.6", f"skip train --json --samples {SKIPPED}")

    def step_rows(self, world, passes):
        return 8


def test_resumed_on_other_worlds():
    """On one device a step has 4 iterations, on two it has 2."""
    with Litgpt("train_litgpt.yaml", streams={"valid": VALID}) as job:
        job.train(1, 1000, hold=7)
        job.edit("save_interval: 5", "save_interval: 101")
        job.train(2, 20 + 2 * 502, hold=7, then=job.edit_the_mix_and_skip)
        said, _ = job.asked.communicate()
        assert job.asked.returncode == 0, said
        edits = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        job.edits = [(line["from"], line["acts_from"]) for line in edits if "acts_from" in line]
        job.train(1, 1020 + 4 * 2)
        job.prove(steps=507, resumed=[5, 505])
        (path,) = glob.glob(os.path.join(job.work, "out", "logs", "csv", "version_1", "*.csv"))
        with open(path) as file:
            names, *lines = [line.strip().split(",") for line in file]
        losses = [line[names.index("val_loss")] for line in lines]
        assert any(losses), "validation loss is logged"
        assert all(7 < float(loss) < 9 for loss in losses if loss), losses


def test_a_finite_stream_gives_each_row_once():
    """The last batch of rank 1 has no rows. litgpt begins another pass, until it is done."""
    with Litgpt("train_litgpt.yaml", streams={"valid": VALID}, samples=37) as job:
        job.train(2, 10)
        trained = [row for rows in job.steps(job.starts[0]).values() for row in rows]
        order = rows_at(job.yaml, "train", 0, 37)[:, : job.seq_len].tolist()
        assert sorted(trained) == sorted(order), "each row once, and no padding"
