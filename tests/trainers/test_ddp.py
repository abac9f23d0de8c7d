"""DistributedDataParallel with torch.compile and DCP resumes exactly; losses.py adds up."""

import json
import os
import shutil

from harness import EXAMPLES, Job

# The losses by dataset, averaged over the rows, must be the whole loss.
LOSSES = """
    from losses import by_dataset

    parts = by_dataset(logits, batch, data.datasets)
    rows = torch.bincount(batch["dataset"], minlength=2).double()
    whole = loss.detach().double()
    dist.all_reduce(rows), dist.all_reduce(whole)
    mean = sum(part * rows[data.datasets.index(name)].item() for name, part in parts.items())
    mean /= rows.sum().item()
    if dist.get_rank() == 0:
        import json

        seen = [sorted(parts), mean, whole.item() / dist.get_world_size()]
        print("LOSSES", json.dumps(seen), flush=True)
    loss.backward()"""


def test_ddp_resumes_on_other_worlds_and_losses_by_dataset_add_up():
    with Job("train_ddp.py") as job:
        shutil.copy(os.path.join(EXAMPLES, "losses.py"), job.work)
        job.start(1, hold=7)
        job.edit("\n    loss.backward()", LOSSES)
        text = job.start(2, hold=7)
        job.start(1)
        job.prove(steps=15, resumed=[5, 10])
        said = [
            json.loads(line.split("LOSSES ", 1)[1])
            for line in text.splitlines()
            if "LOSSES " in line
        ]
        assert len(said) > 4 and all(abs(mean - whole) < 1e-4 for _, mean, whole in said)
        assert {name for names, _, _ in said for name in names} == {"web", "code"}
