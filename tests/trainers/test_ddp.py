#!/usr/bin/env python3
"""DistributedDataParallel with torch.compile and DCP, plain torch."""

from harness import Job

with Job("train_ddp.py") as job:
    job.start(1, hold=7)
    job.start(2, hold=7)
    job.start(1)
    job.prove(steps=15, resumed=[5, 10])
job.check.exit()
