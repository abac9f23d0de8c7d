"""A loader passed to transformers' Trainer as its dataset raises an error that says what to do. For
an endless stream, the Trainer first asks for max_steps itself.
"""

import pytest
import torch
from tokend import Loader
from transformers import Trainer, TrainingArguments

from harness import VALID, Job

PLACE = "tokend\\.Loader: replaces a DataLoader, and is not a dataset"


def test_a_loader_is_not_a_dataset():
    with Job(None, streams={"valid": VALID}) as job:
        for stream, steps, error, text in (
            ("train", -1, ValueError, "max_steps"),
            ("train", 5, TypeError, PLACE),
            ("valid", -1, TypeError, PLACE),
            ("valid", 5, TypeError, PLACE),
        ):
            arguments = TrainingArguments(
                output_dir=job.file("out"), report_to=[], use_cpu=True, max_steps=steps
            )
            with Loader(stream, 2, socket=job.daemon.socket, run="dataset") as data:
                with pytest.raises(error, match=text):
                    Trainer(model=torch.nn.Linear(1, 1), args=arguments, train_dataset=data).train()
                assert data.position == 0, "  no batch was taken"
