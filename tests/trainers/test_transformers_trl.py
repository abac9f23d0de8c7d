"""TRL's SFTTrainer resumes exactly from a stream with a loss mask."""

import glob

import numpy

from harness import Job


class Masked(Job):
    """Masks all tokens that are multiples of 3, as if they were a prompt's."""

    def __init__(self, example, **options):
        super().__init__(example, loss_mask=True, datasets=DATASETS, **options)

    def config(self, **options):
        for path in glob.glob(self.file("shards", "*", "*.bin")):
            mask = numpy.fromfile(path, "<u2") % 3 != 0
            mask.astype("u1").tofile(self.file("masks", *path.split("/")[-2:]))
        return super().config(**options)


DATASETS = [
    {"name": name, "path": f"shards/{name}", "label_mask": f"masks/{name}", "weight": weight}
    for name, weight in (("web", 0.7), ("code", 0.3))
]


def test_an_operator_changes_the_mix_skips_and_drains():
    with Masked("train_trl.py") as job:
        job.start(1, hold=7)
        job.edit("max_steps=15", "max_steps=1000")
        job.start(2, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.edit("max_steps=1000", f"max_steps={step + 3}")
        job.start(1)
        job.prove(steps=step + 3, resumed=[5, step])
