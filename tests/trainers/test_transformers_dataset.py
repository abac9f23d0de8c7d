"""A loader passed to transformers' Trainer as its dataset raises an error that says what to do."""

import pytest
import torch
from tokend import ArgumentError, Loader
from transformers import Trainer, TrainingArguments

from harness import Job

PLACE = "tokend\\.Loader: replaces a DataLoader, and is not a dataset"


def test_a_loader_is_not_a_dataset():
    with Job(None) as job:
        for steps in (-1, 5):
            arguments = TrainingArguments(
                output_dir=job.file("out"), report_to=[], use_cpu=True, max_steps=steps
            )
            with Loader("train", 2, socket=job.daemon.socket, run="dataset") as data:
                with pytest.raises(ArgumentError, match=PLACE):
                    Trainer(model=torch.nn.Linear(1, 1), args=arguments, train_dataset=data).train()
                assert data.position == 0, "  no batch was taken"
