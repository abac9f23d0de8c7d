"""OLMo-core with FSDP.

torchrun --nproc-per-node 2 olmo.py STEPS. Started again, on any number of processes, it resumes.
"""

import sys

from olmo_core.distributed.utils import get_rank, get_world_size
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import (
    Duration,
    TrainerConfig,
    prepare_training_environment,
    teardown_training_environment,
)
from olmo_core.train.callbacks import CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from tokend.integrations.olmo import TokendCallback, TokendDataLoader

SEQ = 32
prepare_training_environment(seed=0, backend="gloo", shared_filesystem=True)
model = TransformerConfig.llama_like(d_model=64, vocab_size=2048, n_layers=2, n_heads=4).build(
    init_device="cpu"
)
module = TransformerTrainModuleConfig(
    rank_microbatch_size=2 * SEQ,
    max_sequence_length=SEQ,
    optim=AdamWConfig(lr=1e-3),
    dp_config=TransformerDataParallelConfig(name="fsdp") if get_world_size() > 1 else None,
).build(model)
data = TokendDataLoader(
    "train",
    sequence_length=SEQ,
    global_batch_size=8 * SEQ,
    dp_world_size=get_world_size(module.dp_process_group),
    dp_rank=get_rank(module.dp_process_group),
)
# not save_async: each rank logs the end of an asynchronous save at its own step, and ranks that
# reduce different metrics hang
saves = CheckpointerCallback(save_interval=5, ephemeral_save_interval=None, save_async=False)
TrainerConfig(
    save_folder="checkpoints",
    save_overwrite=True,
    max_duration=Duration.steps(int(sys.argv[1])),
    metrics_collect_interval=1,
    device="cpu",
    callbacks={"checkpointer": saves, "tokend": TokendCallback()},
).build(module, data).fit()
teardown_training_environment()
