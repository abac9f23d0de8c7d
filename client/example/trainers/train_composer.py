"""Composer's Trainer, with an evaluation.

composer -n 2 train_composer.py, or NODE_RANK=0 torchrun --nproc-per-node 2 train_composer.py.
Started again, on any number of processes, it resumes.
"""

import torch
from composer import Trainer
from composer.metrics.nlp import LanguageCrossEntropy
from composer.models import ComposerModel
from tokend.integrations.composer import TokendCallback, TokendData


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))
        self.metric = LanguageCrossEntropy()

    def forward(self, batch):
        return self.model(batch["input_ids"])

    def loss(self, logits, batch):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def get_metrics(self, is_train=False):
        return {} if is_train else {"loss": self.metric}

    def update_metric(self, batch, logits, metric):
        # it sums over all batches, so a rank's last batch may be all padding (labels of -100)
        metric.update(logits.flatten(0, 1), batch["labels"].flatten())


model = Model()
trainer = Trainer(
    model=model,
    optimizers=torch.optim.AdamW(model.parameters()),
    device="cpu",
    run_name="tiny",
    seed=0,
    max_duration="15ba",
    train_dataloader=TokendData("train", micro_batch=4),  # tokend: rows of each process
    device_train_microbatch_size=2,
    eval_dataloader=TokendData("valid", micro_batch=2),  # tokend
    eval_interval="5ba",
    save_folder="checkpoints",
    save_interval="5ba",
    autoresume=True,
    callbacks=[TokendCallback()],  # tokend: the cursor's state, and tokctl's requests
    progress_bar=False,
    log_to_console=True,
    console_log_interval="5ba",
)
trainer.fit()
trainer.close()  # leaves the process group
