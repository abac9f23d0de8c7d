#!/usr/bin/env python3
"""transformers' Trainer refuses a loader that is given to it as its dataset, with the message that says what to do."""

import torch
from harness import Job
from tokend import ArgumentError, Loader
from transformers import Trainer, TrainingArguments

PLACE = "tokend.Loader: takes the place of a DataLoader, and is not a dataset"

with Job(None) as job:
    for steps in (-1, 5):
        arguments = TrainingArguments(
            output_dir=job.file("out"), report_to=[], use_cpu=True, max_steps=steps
        )
        with Loader("train", 2, socket=job.daemon.socket, run="dataset") as data:
            said = "nothing"
            try:
                Trainer(model=torch.nn.Linear(1, 1), args=arguments, train_dataset=data).train()
            except ArgumentError as error:
                said = str(error)
            job.check.has(f"max_steps={steps}", said, PLACE)
            job.check.equal("  no batch was taken", data.position, 0)
job.check.exit()
