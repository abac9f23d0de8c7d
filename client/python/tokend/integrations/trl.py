"""TRL: `TokendSFT(model, args, data=Loader("train", …))` instead of `SFTTrainer(model, args,
train_dataset=…)`. Made for TRL 1.16.

The rest is as in tokend.integrations.transformers. The stream's loss mask decides which tokens
count for the loss: labels are -100 where it is 0.
"""

import torch
from datasets import Dataset
from trl import SFTTrainer

from .transformers import TokendCallback, TokendFeed

__all__ = ["TokendCallback", "TokendSFT"]

PREPARED = ("packing", "padding_free", "completion_only_loss", "assistant_only_loss")


class TokendSFT(TokendFeed, SFTTrainer):
    """An SFTTrainer that reads from a tokend.Loader. Other arguments are SFTTrainer's.

    eval_dataset is prepared and read as before.

    Raises:
        ValueError: args ask for a preparation of the dataset that would have no effect.
        As TokendFeed.
    """

    def __init__(self, model, args, *, data, **named):
        for name in PREPARED:
            if getattr(args, name, None):
                raise ValueError(
                    f"TokendSFT: {name}: prepares a dataset, and the stream's shards are prepared "
                    "already; unset it, and set loss_mask: or documents: in the daemon's config"
                )
        longest, seq_len = getattr(args, "max_length", None), data.seq_len
        if longest is not None and seq_len > longest:
            raise ValueError(
                f"TokendSFT: max_length: {longest} is less than the stream's seq_len, {seq_len}, "
                "and no row is truncated; set it to None"
            )
        # it must have a row, and is not read
        unread = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
        super().__init__(model, args, data=data, train_dataset=unread, **named)

    def compute_loss(self, model, inputs, *arguments, **named):
        """SFTTrainer counts the tokens in attention_mask, otherwise those in one row of
        position_ids.
        """
        if "position_ids" not in inputs:
            inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        elif "attention_mask" not in inputs and self.model.training:
            rows, seq_len = inputs["input_ids"].shape
            others = (rows - 1) * seq_len * self.accelerator.num_processes
            self._total_train_tokens += others // self.get_tp_size()
        return super().compute_loss(model, inputs, *arguments, **named)

    models_loss = compute_loss
