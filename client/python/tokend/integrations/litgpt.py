"""litgpt: `litgpt pretrain … --data tokend.integrations.litgpt.TokendData`. Made for litgpt 0.5.

The cursor is stored in litgpt's own checkpoint, so `--resume auto` continues exactly after the
model's last step, on any number of devices. litgpt itself counts micro-batches of one device: after
a resume on another number it would end early or late, so its count is converted.

litgpt has no hook after a step. So batches are committed, and operators' requests (tokctl) carried
out, when it asks for the next batch: its step, validation and save are done then.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from litgpt.data import DataModule
from torch.utils.data import DataLoader, IterableDataset

from tokend import Loader, callers, phrases


class Unsampled(IterableDataset):
    """In place of a dataset. For other kinds Fabric makes another DataLoader, with a sampler."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Batches(DataLoader):
    """A loader as a DataLoader, because Fabric accepts nothing else. Yields int64 [rows,
    seq_len + 1], without padding rows: they would be trained on. On some ranks the last batch of a
    finite stream may have 0 rows; litgpt's loss is 0 then.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__(Unsampled(), batch_size=None)
        self.loader, self._width = loader, loader.seq_len + 1

    def __len__(self) -> int:
        return len(self.loader)

    def _rows(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        tokens = batch["tokens"][:, : self._width]
        return tokens[~batch["padding"]] if batch["padding"].any() else tokens


class TrainBatches(Batches):
    """The batches to train on. The state is that of the last optimizer step, because litgpt takes a
    batch before it finds that it is done. Training ends where a finite stream ends.

    Raises:
        ValueError: the checkpoint has no tokend cursor, or the caller is not litgpt's fit().
    """

    def __init__(self, loader: Loader, micro_batch: int) -> None:
        super().__init__(loader)
        self._per_iter = loader.world * micro_batch  # rows of all ranks
        self._per_step = 0  # set by the first call of fit()
        self._trained = 0  # rows of all ranks, in all starts
        self._resumed = self._over = False
        self._state: dict[str, Any] | None = None  # litgpt's
        self._stepped = 0
        # for each batch: the optimizer's steps before it, and the position after it
        self._handed: deque[tuple[int, int]] = deque()
        loader.commit()  # for a checkpoint before the first step

    def __iter__(self) -> Iterator[torch.Tensor]:
        while not self._over:  # litgpt begins another pass when one ends
            fit = self.fit()
            self._settle()
            self._control(fit)
            batch = None if self.loader.should_stop else next(self.loader, None)
            if batch is None:
                self._over = True
                if self._handed:
                    warnings.warn(phrases.step_left_open(self._per_step), stacklevel=2)
                return
            self._handed.append((self._stepped, self.loader.taken))
            yield self._rows(batch)

    def fit(self) -> FrameType:
        """Returns the frame of litgpt's fit(), which has what a save needs. At the first call
        converts its iter_num.
        """
        for frame in callers.frames():
            if frame.f_code.co_name == "fit" and "save_checkpoint" in frame.f_globals:
                break
        else:
            raise ValueError(
                "TokendData: the caller is not fit() of litgpt.pretrain, whose steps it follows; "
                "in your own loop iterate over a tokend.Loader"
            )
        if self._state is None:
            self._begin(frame.f_locals)
        return frame

    def _begin(self, fit: dict[str, Any]) -> None:
        self._state = state = fit["state"]
        self._stepped = state["step_count"]
        if self._stepped > 0 and not self._resumed:
            raise ValueError(f"TokendData: {phrases.NO_CURSOR}; pass start=POSITION")
        passes = fit["train"].gradient_accumulation_iters(fit["devices"], fit["num_nodes"])
        self._per_step = self._per_iter * passes
        iters = self._trained // self._per_step * passes
        if iters != state["iter_num"]:
            fit["fabric"].print(
                f"tokend: {self._trained} samples are trained on, {self._per_iter} an iteration: "
                f"continues from iter_num {iters}, not {state['iter_num']}"
            )
            state["iter_num"] = iters

    def _settle(self) -> None:
        """Commits the batches that the optimizer has stepped on."""
        if self._state is None:
            return
        while self._handed and self._handed[0][0] < self._state["step_count"]:
            self.loader.commit(self._handed.popleft()[1])
            self._trained += self._per_iter

    def _control(self, fit: FrameType) -> None:
        if self._state["step_count"] == self._stepped:
            return  # gradients are being accumulated
        self._stepped = self._state["step_count"]
        request = self.loader.control()
        if request is not None and request.save:
            here = fit.f_locals
            path = here["out_dir"] / f"step-{self._stepped:08d}" / "lit_model.pth"
            fit.f_globals["save_checkpoint"](
                here["fabric"], self._state, here["tokenizer_dir"], path
            )
            request.done(f"step {self._stepped} in {path.parent}")

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        return {**self.loader.state_dict(), "trained": self._trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or "trained" not in state:
            raise ValueError(f"TokendData: {phrases.NO_CURSOR}; pass start=POSITION")
        self._trained, self._resumed = state["trained"], True
        self.loader.load_state_dict({"cursor": state["cursor"]})
        self.loader.commit()


class ValidBatches(Batches):
    """The batches to validate on: each pass begins at position 0."""

    def __init__(self, loader: Loader, train: TrainBatches) -> None:
        super().__init__(loader)
        self._train = train

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._train.fit()  # litgpt validates first, and then reads iter_num
        self.loader.reset()
        for batch in self.loader:
            yield self._rows(batch)


class TokendData(DataModule):
    """A stream to train on and a finite stream to validate on, which litgpt always does.

    stream  name of the training stream in the daemon's config
    valid   name of the validation stream
    start   where to begin without a checkpoint: "begin", a position, or the tag of a checkpoint of
            the daemon
    Others: of tokend.Loader, for both.

    litgpt reports the validation loss of rank 0's rows.

    Raises:
        ValueError: a stream's seq_len is not the model's max_seq_length.
        As tokend.Loader, when litgpt asks for the dataloaders.
    """

    def __init__(
        self,
        stream: str = "train",
        valid: str = "valid",
        socket: str | None = None,
        config: str | None = None,
        run: str | None = None,
        start: str = "begin",
        record: str | None = None,
    ) -> None:
        super().__init__()
        self._stream, self._valid = stream, valid
        self._start: Any = int(start) if start.isdigit() else start
        options = {"socket": socket, "config": config, "run": run, "record": record}
        self._options = {name: value for name, value in options.items() if value is not None}

    def connect(
        self,
        tokenizer: Any = None,
        batch_size: int = 1,
        max_seq_length: int | None = None,
        **_: Any,
    ) -> None:
        self._micro, self._seq_len = batch_size, max_seq_length

    def _loader(self, stream: str, start: Any) -> Loader:
        loader = Loader(stream, self._micro, tokens=True, start=start, **self._options)
        if self._seq_len not in (None, loader.seq_len):
            loader.close()
            raise ValueError(
                phrases.seq_len_differs(
                    "train.max_seq_length", self._seq_len, stream, loader.seq_len
                )
            )
        return loader

    def train_dataloader(self) -> TrainBatches:
        self._train = TrainBatches(self._loader(self._stream, self._start), self._micro)
        return self._train

    def val_dataloader(self) -> ValidBatches:
        return ValidBatches(self._loader(self._valid, "begin"), self._train)
