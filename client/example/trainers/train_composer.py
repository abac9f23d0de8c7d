"""Composer's Trainer.

composer -n 2 train_composer.py, or NODE_RANK=0 torchrun --nproc-per-node 2 train_composer.py.
Started again, on any number of processes, it resumes. Two settings lose rows if they are left out:
spin_dataloaders=False, because the loader is at its cursor already, and the callback.
"""

import torch
from composer import Callback, Trainer
from composer.models import ComposerModel
from composer.utils import dist
from tokend import Loader


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))

    def forward(self, batch):
        return self.model(batch["input_ids"])

    def loss(self, logits, batch):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


class Tokend(Callback):
    """Stores the cursor in composer's checkpoints, and carries out tokctl's requests."""

    def state_dict(self):
        return data.state_dict()

    def load_state_dict(self, state):
        data.load_state_dict(state)

    def batch_end(self, state, logger):
        request = data.control()
        if request:
            trainer.save_checkpoint_to_save_folder()
            request.done(f"step {state.timestamp.batch.value} in checkpoints")
        if data.should_stop:
            state.stop_training()


dist.initialize_dist("cpu")  # tokend: before the loader, whose rank and world come from there
data = Loader("train", micro_batch=4)  # tokend: rows of each process
model = Model()
trainer = Trainer(
    model=model,
    optimizers=torch.optim.AdamW(model.parameters()),
    device="cpu",
    run_name="tiny",
    seed=0,
    max_duration="15ba",
    train_dataloader=data,  # tokend
    device_train_microbatch_size=2,
    save_folder="checkpoints",
    save_interval="5ba",
    autoresume=True,
    spin_dataloaders=False,  # tokend: composer would drop batches at a resume
    callbacks=[Tokend()],  # tokend
    progress_bar=False,
)
trainer.fit()
trainer.close()  # leaves the process group
