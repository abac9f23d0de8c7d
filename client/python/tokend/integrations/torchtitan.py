"""torchtitan: TokendDataLoader.Config is put where Trainer.Config.dataloader is. Made for
torchtitan 0.3.

    replace(config, dataloader=TokendDataLoader.Config(stream="train"))

torchtitan names the data rank, seq_len and rows, and keeps the state in its checkpoint: tensor-,
context- and pipeline-parallel processes of one data rank get the same rows. Its last checkpoint
holds the model alone, no loader, unless `checkpoint.last_save_model_only` is False. It counts
tokens and measures the time spent in next() itself (tps, time_metrics/data_loading). An operator's
tokctl reaches a TokendTrainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.trainer import Trainer

from tokend import Loader, peers


class TokendDataLoader(BaseDataLoader):
    """Yields ({"input": …, "positions": …}, labels), all int64 [rows, seq_len]; labels are shifted,
    -100 where there is none.

    Positions begin at 0 with each row and, with documents=True, with each document: by them
    torchtitan's flex and varlen attention stay within documents, and its context parallelism knows
    what it cut.

    `loader` is the Loader. ValueError if the stream's seq_len is not training.seq_len.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        stream: str = "train"
        """Name of the stream in the daemon's config."""

        socket: str | None = None
        """Where the daemon listens; default as in Loader."""

        config: str | None = None
        """Instead: a config file, whose daemon is started if none is there."""

        run: str | None = None
        """Name of the job; default the launcher's."""

        start: str = "begin"
        """Where to begin without a checkpoint: "begin", a position, or the tag of a checkpoint of
        the daemon.
        """

        documents: bool = False
        """Positions within documents; the stream must have `documents: true`."""

        record: str | None = None
        """A directory: what is taken is recorded there, for `tokctl verify`."""

        infinite: bool = True
        """Set by torchtitan's validator; a stream is finite if its config says so."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        self._documents = config.documents
        start = int(config.start) if config.start.isdigit() else config.start
        peer, group = peers.among_all(dp_rank)
        self.loader = Loader(
            config.stream,
            local_batch_size,
            socket=config.socket,
            config=config.config,
            run=config.run,
            rank=dp_rank,
            world=dp_world_size,
            peer=peer,
            group=group,
            start=start,
            documents=config.documents,
            record=config.record,
            framework="torch",
        )
        rows = self.loader.cursor.to_dict()["seq_len"]
        if rows != seq_len:
            self.loader.close()
            raise ValueError(
                f"training.seq_len: is {seq_len}, that of stream {config.stream!r} is {rows}: make "
                "them equal"
            )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            tokens = batch["input_ids"]
            positions = (
                batch["position_ids"]
                if self._documents
                else torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
            )
            yield {"input": tokens, "positions": positions}, batch["labels"]

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)


class TokendTrainer(Trainer):
    """A Trainer that carries out between its steps what an operator asks for with tokctl: mix,
    skip, checkpoint, drain, rescale.

    It is built from its own Config: TokendTrainer.Config(…) where a Trainer.Config(…) is written,
    or TokendTrainer.Config.of(config). What is saved then is what torchtitan saves last: ValueError
    if that is nothing, or the model alone.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        @classmethod
        def of(cls, config: Trainer.Config) -> TokendTrainer.Config:
            """The same configuration, of this trainer."""
            return cls(**{part.name: getattr(config, part.name) for part in fields(config)})

    def __init__(self, config: Config) -> None:
        keeps = config.checkpoint
        if not keeps.enable or keeps.load_only or keeps.last_save_model_only:
            raise ValueError(
                f"TokendTrainer: checkpoint.enable is {keeps.enable}, load_only {keeps.load_only}, "
                "last_save_model_only "
                f"{keeps.last_save_model_only}: must be True, False, False, as an operator may ask "
                "for a checkpoint to go on from"
            )
        super().__init__(config)

    def should_continue_training(self) -> bool:
        """Asked between any two steps, by all processes."""
        loader = self.dataloader.loader
        request = loader.control()
        if request is not None and request.save:
            self.checkpointer.save(self.step, last_step=True)
            request.done(f"step {self.step}")
        return super().should_continue_training() and not loader.should_stop
