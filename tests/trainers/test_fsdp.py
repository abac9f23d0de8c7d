"""FSDP2 and HSDP (2 × 2) resume exactly, saved by DCP."""

from harness import Job


def test_resumed_on_other_worlds_and_edited():
    with Job("train_ddp.py") as job:
        job.start(1, 1, hold=7)
        job.start(4, 2, hold=7)  # two replicas, each sharded over two
        job.starts[-1].layout = "2×2"
        job.edit("1, 16)", "1, 1000)")
        job.start(2, 1, hold=2, then=job.edit_and_drain)
        job.prove(steps=job.drained(), resumed=[5, 10])
