"""DistributedDataParallel with torch.compile and DCP resumes exactly."""

from harness import Job


def test_ddp_resumes_on_other_worlds():
    with Job("train_ddp.py") as job:
        job.start(1, hold=7)
        job.start(2, hold=7)
        job.start(1)
        job.prove(steps=15, resumed=[5, 10])
