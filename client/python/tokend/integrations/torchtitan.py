"""torchtitan: TokendDataLoader.Config replaces Trainer.Config.dataloader. Made for torchtitan 0.3
and its main branch of August 2026.

    replace(config, dataloader=TokendDataLoader.Config(stream="train"))

torchtitan passes data rank, length and number of rows, and stores the state in its checkpoint. A
resume may change the data-parallel degree, and a finite stream gives each rank equally many
batches. Tensor-, context- and pipeline-parallel processes of one data rank get the same rows. The
last checkpoint contains only the model, unless `checkpoint.last_save_model_only` is False.
torchtitan counts tokens and measures the time spent in next() itself (tps,
time_metrics/data_loading). For operators' requests (tokctl) use TokendTrainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.trainer import Trainer

from tokend import Loader

from .shared import carry_out, check_seq_len, positions, shifted

try:
    from torchtitan.components.dataloader import BaseDataLoader  # 0.3
except ModuleNotFoundError:
    from torchtitan.components.data.loader import BaseDataLoader


def among(rank: int) -> dict[str, Any]:
    """Returns the Loader's arguments peer and group: torchtitan tells only the data rank. All
    processes call it together.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return {}
    group = dist.new_group(backend="gloo")
    ranks: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(ranks, rank, group)
    return {"peer": ranks[: dist.get_rank()].count(rank), "group": group}


class TokendDataLoader(BaseDataLoader):
    """A data loader of torchtitan. `loader` is its tokend.Loader.

    Yields ({"input": …, "positions": …}, labels), all int64 [rows, seq_len], for the main branch
    flat [rows * seq_len]; labels are shifted, -100 where there is none. Positions begin at 0 in
    each row and, with documents=True, in each document: torchtitan's flex and varlen attention and
    its context parallelism use them.

    Raises:
        ValueError: the stream's seq_len is not training.seq_len (main: max_context_length), or
            num_tokens_per_microbatch_per_dp_rank is not a multiple of it.
        As tokend.Loader.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        stream: str = "train"  # name of the stream in the daemon's config
        socket: str | None = None  # socket of the daemon; default as for Loader
        config: str | None = None  # instead of socket: a private daemon is started for this file
        run: str | None = None  # name of the job; default the launcher's
        start: str = "begin"  # without a checkpoint: "begin", a position, or a tag of the daemon's
        documents: bool = False  # positions restart with each document; needs `documents: true`
        record: str | None = None  # a directory for records of what is taken, for `tokctl verify`
        infinite: bool = True  # ignored, as repeat: the daemon's config decides
        repeat: bool = True  # torchtitan's validator sets one of them

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int = 0,
        local_batch_size: int = 0,
        max_context_length: int = 0,
        num_tokens_per_batch: int = 0,
        **_: Any,
    ) -> None:
        self._flat = num_tokens_per_batch > 0  # the main branch
        setting = "training.seq_len"
        if self._flat:
            setting, seq_len = "training.max_context_length", max_context_length
            local_batch_size, rest = divmod(num_tokens_per_batch, seq_len)
            if rest:
                raise ValueError(
                    f"training.num_tokens_per_microbatch_per_dp_rank: {num_tokens_per_batch} is "
                    f"not a multiple of {setting}, {seq_len}; set "
                    f"{(local_batch_size + 1) * seq_len}"
                )
        options = ("socket", "config", "run", "documents", "record")
        self.loader = Loader(
            config.stream,
            local_batch_size,
            rank=dp_rank,
            world=dp_world_size,
            start=int(config.start) if config.start.isdigit() else config.start,
            framework="torch",
            **{name: getattr(config, name) for name in options},
            **among(dp_rank),
        )
        check_seq_len(self.loader, setting, seq_len)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            made = batch["input_ids"], positions(batch), shifted(batch)
            tokens, at, labels = (x.flatten() for x in made) if self._flat else made
            yield {"input": tokens, "positions": at}, labels

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Called by the main branch's trainer and validator."""
        self.loader.close()


class TokendTrainer(Trainer):
    """A Trainer that carries out operators' requests (tokctl mix, skip, checkpoint, drain, rescale)
    between its steps.

    Build it from TokendTrainer.Config(…) instead of Trainer.Config(…), or from
    TokendTrainer.Config.of(config). A request that saves writes torchtitan's last checkpoint.

    Raises:
        ValueError: torchtitan's last checkpoint would be nothing, or only the model.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        @classmethod
        def of(cls, config: Trainer.Config) -> TokendTrainer.Config:
            """Returns the same configuration, for this trainer."""
            return cls(**{part.name: getattr(config, part.name) for part in fields(config)})

    def __init__(self, config: Config) -> None:
        keeps = config.checkpoint
        if not keeps.enable or keeps.load_only or keeps.last_save_model_only:
            raise ValueError(
                f"TokendTrainer: checkpoint.enable is {keeps.enable}, load_only {keeps.load_only}, "
                f"last_save_model_only {keeps.last_save_model_only}, so operators cannot request "
                "whole checkpoints; set them to True, False, False"
            )
        super().__init__(config)

    def should_continue_training(self) -> bool:
        """Called by torchtitan between two steps, in all processes."""
        stop = carry_out(self.dataloader.loader, self._save)
        return super().should_continue_training() and not stop

    def _save(self, request: Any) -> str:
        self.checkpointer.save(self.step, last_step=True)
        return f"step {self.step}"
