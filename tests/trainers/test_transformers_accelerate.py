"""A loop with accelerate resumes exactly, and no setting of accelerate loses rows silently."""

import os
import sys

import pytest
import torch
from accelerate import Accelerator
from tokend import ArgumentError, Loader
from torch.utils.data import DataLoader, IterableDataset

from harness import HERE, Job

CONFIGURATIONS = [
    {"dispatch_batches": dispatch, "split_batches": split, "even_batches": even}
    | ({"use_stateful_dataloader": True} if stateful else {})
    for dispatch in (None, True, False)
    for split in (False, True)
    for even in (True, False)
    for stateful in (False, True)
]
FINITE = {
    "seed": 1,
    "seq_len": 32,
    "samples": 10,
    "datasets": [{"name": "w", "path": "shards/web"}],
}
IN_EACH_PROCESS = f"""
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from tokend import ArgumentError, Loader
from torch.utils.data import DataLoader, IterableDataset

accelerator = Accelerator(cpu=True)
data = Loader("train", 2)
class Around(IterableDataset):
    def __iter__(self):
        return iter(data)

taken = []
for configuration in {CONFIGURATIONS}:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(**configuration))
    for _, batch in zip(range(2), accelerator.prepare(data)):
        taken += batch["position"].tolist()
print("TAKEN", accelerator.process_index, taken, flush=True)
accelerator = Accelerator()
try:
    next(iter(accelerator.prepare(DataLoader(Around(), batch_size=None))))
except ArgumentError as error:
    print("REFUSED", accelerator.process_index, "deals out" in str(error), flush=True)
accelerator.end_training()
"""

HELD_WITHIN_A_SAVE = """max_steps, step = 15, 0
from events import hold
state_of = data.state_dict
data.state_dict = lambda: state_of() if step < 10 else hold(11)"""


@pytest.fixture
def job():
    with Job(None, streams={"finite": FINITE}) as job:
        yield job


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
            assert f"REFUSED {rank} True" in text, (rank, text)


def test_a_batch_that_accelerates_dataloader_takes_ahead_is_not_lost(job):
    class Around(IterableDataset):
        def __iter__(self):
            return iter(data)

    def first(**more):
        loader = Loader("finite", 2, socket=job.daemon.socket, **more)
        return loader, accelerator.prepare(DataLoader(Around(), batch_size=None))

    accelerator = Accelerator(cpu=True)
    data, batches = first()
    for number, batch in enumerate(batches, 1):
        assert batch["position"][0] == 2 * (number - 1)
        if number < 5:
            with pytest.raises(ArgumentError, match="has taken a batch that is not trained on"):
                data.state_dict()
        else:
            assert data.state_dict() == {"cursor": bytes(data.cursor)}, "the last batch"
    data.close()
    data, batches = first(prefetched=1)
    next(iter(batches))
    assert data.state_dict() and data.position == 2
    data.close()
    data, batches = first()
    data.commit()
    next(iter(batches))
    assert data.state_dict() and data.position == 0
    data.close()


def test_accumulated_gradients_are_not_lost(job, tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Embedding(2048, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    with Loader("finite", 2, socket=job.daemon.socket) as data:
        accelerator.register_for_checkpointing(data)
        with pytest.warns(UserWarning, match="set samples: in its config to a multiple of 4"):
            for number, batch in enumerate(data, 1):
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["input_ids"]).sum())
                    optimizer.step()
                    optimizer.zero_grad()
                if number % 2:
                    with pytest.raises(ArgumentError, match="save only if accelerator.sync_grad"):
                        accelerator.save_state(tmp_path / "within")
                else:
                    accelerator.save_state(tmp_path / f"{number}")
        accelerator.load_state(tmp_path / "2")
        assert data.position == 4 and accelerator.step == 2
        accelerator.gradient_accumulation_steps = 4
        accelerator.load_state(tmp_path / "2")
        assert accelerator.step == 0, "the first step has 4 batches"
        accelerator.sync_gradients = True


def test_skip_first_batches_is_refused(job):
    with Loader("finite", 2, socket=job.daemon.socket) as data:
        with pytest.raises(AttributeError, match="resumes at its state"):
            Accelerator(cpu=True).skip_first_batches(data, 2)
        assert not hasattr(data, "dataset")
