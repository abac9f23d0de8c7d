"""A loop with accelerate resumes exactly, and no setting of accelerate loses rows silently."""

import itertools
import os
import sys

from harness import HERE, Job

KEYS = "dispatch_batches", "split_batches", "even_batches", "use_stateful_dataloader"
CONFIGURATIONS = [
    dict(zip(KEYS, (dispatch, *others), strict=True))
    for dispatch in (None, True, False)
    for others in itertools.product((False, True), repeat=3)
]
IN_EACH_PROCESS = f"""
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from tokend import Loader

accelerator = Accelerator(cpu=True)
data = Loader("train", 2)
taken = []
for configuration in {CONFIGURATIONS}:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(**configuration))
    for _, batch in zip(range(2), accelerator.prepare(data)):
        taken += batch["position"].tolist()
print("TAKEN", accelerator.process_index, taken, flush=True)
accelerator.end_training()
"""

HELD_WITHIN_A_SAVE = """max_steps, step = 15, 0
from events import hold
state_of = data.state_dict
data.state_dict = lambda: state_of() if step < 10 else hold(11)"""


def test_save_state_and_load_state_resume_on_other_worlds():
    with Job("train_accelerate.py", accumulate=2) as job:
        job.edit("max_steps, step = 15, 0", HELD_WITHIN_A_SAVE)
        job.start(1, hold=11)  # the checkpoint of step 10 has a part of its files
        job.edit(HELD_WITHIN_A_SAVE, "max_steps, step = 1000, 0")
        job.start(2, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.edit("max_steps, step = 1000", f"max_steps, step = {step + 3}")
        job.start(1)
        job.prove(steps=step + 3, resumed=[5, step])


def test_prepare_returns_the_loader_as_it_is_in_every_configuration():
    with Job(None) as job:
        open(os.path.join(job.work, "each.py"), "w").write(IN_EACH_PROCESS)
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
        launch += ["--num_processes", "2", "--main_process_port", "0"]
        text = job.start(2, command=[*launch, os.path.join(HERE, "traced.py"), "each.py"])
        batches = 2 * len(CONFIGURATIONS)
        for rank in (0, 1):
            mine = [4 * batch + 2 * rank + row for batch in range(batches) for row in (0, 1)]
            assert f"TAKEN {rank} {mine}" in text, (rank, text)
