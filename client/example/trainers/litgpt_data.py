"""litgpt's data module, for train_litgpt.yaml: a tokend.Loader as the DataLoader that Fabric wants.

Its state is saved after whole steps. The checkpoint in final/ is one batch further, because litgpt
takes a batch before it finds that it is done: do not resume from it. litgpt counts the iterations
of a device: after a resume on another number of devices, set --train.max_tokens and the learning
rate's schedule for the rest yourself. It has no loss mask: use streams without one. It has no hook
after a step: tokctl mix and skip work, other requests are reported as failed.
"""

import torch
from litgpt.data import DataModule
from tokend import Loader
from torch.utils.data import DataLoader, IterableDataset


class NoRows(IterableDataset):
    """Fabric adds a sampler to other kinds."""

    def __iter__(self):
        return iter(())


class Batches(DataLoader):
    def __init__(self, loader, operated=False):
        super().__init__(NoRows(), batch_size=None)
        self.tokend, self.operated = loader, operated

    def __len__(self):
        return len(self.tokend)

    def __iter__(self):
        """Yields [rows, seq_len + 1], without padding rows."""
        for batch in self.tokend:
            rows = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], 1)
            yield rows[batch["position"] >= 0]
            if self.operated:
                self.tokend.control()

    def state_dict(self):
        return self.tokend.state_dict()

    def load_state_dict(self, state):
        self.tokend.load_state_dict(state)


class TokendData(DataModule):
    def __init__(self, stream: str = "train", valid: str = "valid"):
        super().__init__()
        self.stream, self.valid = stream, valid

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        self.micro_batch = batch_size

    def train_dataloader(self):
        return Batches(Loader(self.stream, self.micro_batch), operated=True)

    def val_dataloader(self):
        return Batches(Loader(self.valid, self.micro_batch))
