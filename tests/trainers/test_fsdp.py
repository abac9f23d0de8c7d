"""FSDP2 and HSDP (2 × 2) with compiled blocks and DCP resume exactly."""

from harness import Job


def test_resumed_on_other_worlds():
    with Job("train_fsdp.py") as job:
        job.start(1, hold=7)
        job.start(4, 2, hold=7)  # two replicas, each sharded over two
        job.start(2)
        job.prove(steps=15, resumed=[5, 10])
