"""Lightning, with a validation stream.

torchrun --nproc-per-node 2 train_lightning.py. Started again, on any number of processes, it
resumes.
"""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tokend.integrations.lightning import TokendCallback, TokendData


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(
            self.model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten()
        )

    def validation_step(self, batch, _):
        # Lightning's mean would be NaN: the last batch of a rank may be all padding. So weight each
        # batch's loss by its labels.
        labels = batch["labels"].flatten()
        count = int((labels != -100).sum())
        logits = self.model(batch["input_ids"]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / max(count, 1)
        self.log("valid", loss, batch_size=count, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


L.seed_everything(0)
last = "checkpoints/last.ckpt"
saves = ModelCheckpoint("checkpoints", every_n_train_steps=5, save_last=True)
trainer = L.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["WORLD_SIZE"]),
    max_steps=15,
    accumulate_grad_batches=2,
    callbacks=[saves, TokendCallback(last)],
    logger=CSVLogger("."),
    log_every_n_steps=5,
    val_check_interval=10,
    check_val_every_n_epoch=None,
)
trainer.fit(
    Module(),
    TokendData("train", micro_batch=2, valid="valid"),
    ckpt_path=last if os.path.exists(last) else None,
)
torch.distributed.destroy_process_group()
