"""OLMo-core with FSDP.

torchrun --nproc-per-node 2 olmo.py STEPS. Started again, on any number of processes, it resumes. An
endless stream is an epoch without end, so the duration is in steps or tokens; a finite stream is
one epoch.
"""

import sys

import torch
from olmo_core.data.data_loader import DataLoaderBase
from olmo_core.distributed.utils import get_rank, get_world_size
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import (
    Duration,
    TrainerConfig,
    prepare_training_environment,
    teardown_training_environment,
)
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from tokend import Loader

SEQ = 32


class TokendDataLoader(DataLoaderBase):
    """A tokend.Loader as OLMo's: global_batch_size stays the same when the world changes."""

    def __init__(self, stream, *, mesh, **sizes):
        super().__init__(work_dir=".", **sizes)
        self.loader = Loader(stream, self._rows(), mesh=mesh)

    def _rows(self):
        rows, rest = divmod(self.rank_batch_size, SEQ)
        if rest:
            raise ValueError(f"global_batch_size: {self.global_batch_size} is not whole rows")
        return rows

    @property
    def total_batches(self):
        """Those before a resume were perhaps of another size, so they are not computed."""
        cursor = self.loader.cursor
        if cursor.end is None:
            return None
        left = max(0, cursor.end - cursor.position)
        return self.batches_processed + -(-left // (self._rows() * self.dp_world_size))

    def state_dict(self):
        processed = {"epoch": self._epoch, "batches_processed": self.batches_processed}
        return {**self.loader.state_dict(), **processed}

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)
        self._epoch, self.batches_processed = state["epoch"], state["batches_processed"]

    def reshuffle(self, epoch=None, **_):
        """The stream has its own epochs, and the loader is at its cursor."""
        self._epoch = epoch or self._epoch or 1
        if self._epoch > 1:
            raise ValueError("a stream is one epoch: set more epochs: in its config")

    def _iter_batches(self):
        self.loader.seek(micro_batch=self._rows())  # global_batch_size may have changed
        while (batch := next(self.loader, None)) is not None:
            yield {"input_ids": batch["input_ids"], "labels": batch["labels"]}

    def get_mock_batch(self):
        zeros = torch.zeros(self._rows(), SEQ, dtype=torch.int64)
        return {"input_ids": zeros, "labels": zeros.clone()}

    def global_num_tokens_in_batch(self, batch):
        return self.global_batch_size


class Tokend(Callback):
    """Carries out tokctl's requests after each step."""

    def post_step(self):
        request = data.loader.control()
        if request:
            saves.post_train()  # saves this step, unless that is done already
            request.done(f"step {self.step} in {self.trainer.save_folder}")
        if data.loader.should_stop and not self.trainer.is_canceled:
            self.trainer.cancel_run("an operator asked for it", no_sync=True)


prepare_training_environment(seed=0, backend="gloo", shared_filesystem=True)
model = TransformerConfig.llama_like(d_model=64, vocab_size=2048, n_layers=2, n_heads=4).build()
module = TransformerTrainModuleConfig(
    rank_microbatch_size=2 * SEQ,
    max_sequence_length=SEQ,
    optim=AdamWConfig(lr=1e-3),
    dp_config=TransformerDataParallelConfig(name="fsdp") if get_world_size() > 1 else None,
).build(model)
data = TokendDataLoader(
    "train",
    mesh=module.world_mesh,  # tensor- and context-parallel processes get the same rows
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
    callbacks={"checkpointer": saves, "tokend": Tokend()},
).build(module, data).fit()
teardown_training_environment()
