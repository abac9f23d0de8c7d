"""A config of torchtitan.

torchrun --nproc-per-node 8 -m torchtitan.train --module titan --config llama3. Started again, on
any number of processes, it resumes.
"""

from dataclasses import replace

from tokend.integrations.torchtitan import TokendDataLoader, TokendTrainer
from torchtitan.models.llama3.config_registry import llama3_debugmodel


def llama3():
    config = llama3_debugmodel()
    config = replace(
        config,
        dataloader=TokendDataLoader.Config(stream="train"),
        # False: the last checkpoint contains the loader's state too
        checkpoint=replace(config.checkpoint, enable=True, interval=5, last_save_model_only=False),
    )
    return TokendTrainer.Config.of(config)  # carries out tokctl's requests
