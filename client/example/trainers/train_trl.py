"""TRL's SFTTrainer, which reads from a stream. Its loss mask decides which tokens count.

torchrun --nproc-per-node 2 train_trl.py. Started again, on any number of processes, it resumes.
"""

import os

import torch
from datasets import Dataset
from tokend import Loader
from tokend.integrations.transformers import TokendFeed
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer


class TokendSFT(TokendFeed, SFTTrainer):
    """Settings that prepare a dataset (packing, …, max_length) do nothing."""

    def __init__(self, *arguments, **named):
        # it must have a row, and is not read
        unread = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
        super().__init__(*arguments, train_dataset=unread, **named)

    def compute_loss(self, model, inputs, *arguments, **named):
        if "position_ids" not in inputs:  # SFTTrainer counts tokens by it
            inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        return super().compute_loss(model, inputs, *arguments, **named)

    models_loss = compute_loss


args = SFTConfig(
    "checkpoints",
    max_steps=15,
    save_steps=5,
    per_device_train_batch_size=2,
    logging_steps=5,
    report_to=[],
    use_cpu=True,
)
config = LlamaConfig(vocab_size=2048, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<eos>": 0}, "<eos>")), eos_token="<eos>"
)
# rank and world come from torch.distributed
data = Loader("train", micro_batch=args.per_device_train_batch_size)  # tokend
trainer = TokendSFT(
    LlamaForCausalLM(config),
    args,
    data=data,  # tokend: instead of train_dataset
    processing_class=tokenizer,
)
trainer.train(
    resume_from_checkpoint=os.path.isdir(args.output_dir) and get_last_checkpoint(args.output_dir)
)
# DDP keeps the process group alive
(trainer.model_wrapped,) = trainer.accelerator.free_memory(trainer.model_wrapped)
trainer.accelerator.end_training()
