"""The Trainer of transformers.

torchrun --nproc-per-node 2 train_transformers.py. Started again, on any number of processes, it
resumes.
"""

import os

from tokend import Loader
from tokend.integrations.transformers import TokendTrainer
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

args = TrainingArguments(
    "checkpoints",
    max_steps=15,
    save_steps=5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    logging_steps=5,
    report_to=[],
    use_cpu=True,
)
set_seed(0)
config = LlamaConfig(vocab_size=2048, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
model = LlamaForCausalLM(config)
# rank and world come from torch.distributed
data = Loader("train", micro_batch=args.per_device_train_batch_size)  # tokend
trainer = TokendTrainer(model, args, data=data)  # carries out tokctl's requests, too
trainer.train(
    resume_from_checkpoint=os.path.isdir(args.output_dir) and get_last_checkpoint(args.output_dir)
)
# DDP keeps the process group alive
(trainer.model_wrapped,) = trainer.accelerator.free_memory(trainer.model_wrapped)
trainer.accelerator.end_training()
