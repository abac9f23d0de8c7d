"""Lightning: `trainer.fit(module, TokendData("train", micro_batch=8))`.

The cursor is stored in Lightning's own checkpoint. A module that makes its loaders itself returns
`Batches(Loader("train", 8), self.trainer)` from train_dataloader(); under ModelParallelStrategy
it makes `Loader("train", 8, mesh=self.device_mesh)`.
"""

import warnings
from collections import deque

from lightning.pytorch import Callback, LightningDataModule

from .. import phrases
from ..loader import Loader
from ..throughput import Throughput

ENDLESS = 1 << 40


class Batches:
    """A loader as Lightning's train_dataloader.

    Its state is that of the optimizer's last step, not of the last batch taken. It has an endless
    length, because Lightning takes one batch ahead from a loader without length. So validate every
    N steps: Trainer(val_check_interval=N, check_val_every_n_epoch=None). Training ends with
    max_steps, or with a finite stream. A schedule that asks for its length
    (estimated_stepping_batches) gets max_steps or that of the whole finite stream.

    Raises:
        ValueError: the checkpoint has no tokend cursor, or a schedule asks for its length, and
            neither max_steps nor the stream's end gives one.
    """

    def __init__(self, loader, trainer):
        self.loader, self.trainer = loader, trainer
        self.throughput = Throughput(loader)
        # for each batch: the optimizer's steps before it, and the position after it
        self._handed = deque()
        self._begun = False
        self._logged = 0
        loader.commit()  # for a checkpoint before the first step

    def __len__(self):
        trainer, end = self.trainer, self.loader.cursor.end
        if trainer.optimizers or trainer.max_steps != -1:
            return ENDLESS
        # configure_optimizers() asks
        if end is None or trainer.max_epochs != 1:
            why = "has no end" if end is None else "is one epoch"
            raise ValueError(
                f"TokendData: a schedule asks for its length, and stream {self.loader.stream!r} "
                f"{why}; pass Trainer(max_steps=N)" + (" or max_epochs=1" if end else "")
            )
        trainer.fit_loop._combined_loader = None  # for the training Lightning asks again
        return -(-end // (self.loader.world * self.loader.batch_size))

    def __iter__(self):
        return self

    def __next__(self):
        if not self._begun:
            self.trainer.fit_loop._load_combined_loader_states()  # as LateState
        if self.trainer.global_step > 0 and not self._begun:
            raise ValueError(
                f"TokendData: {phrases.NO_CURSOR}; load its weights alone, and pass start=POSITION"
            )
        self._begun = True
        self.settle()
        batch = next(self.loader, None)
        if batch is None:
            self.trainer.should_stop = True  # a finite stream is one epoch
            if self._handed:
                step = self.loader.batch_size * self.trainer.accumulate_grad_batches
                warnings.warn(phrases.step_left_open(step * self.loader.world), stacklevel=2)
            raise StopIteration
        self._handed.append((self.trainer.global_step, self.loader.taken))
        return batch

    def settle(self):
        """Commits the batches that the optimizer has stepped on, and logs the throughput."""
        step = self.trainer.global_step
        while self._handed and self._handed[0][0] < step:
            self.loader.commit(self._handed.popleft()[1])
        if step - self._logged >= self.trainer.log_every_n_steps:
            self._logged, numbers = step, self.throughput()
            for logger in self.trainer.loggers:
                logger.log_metrics(numbers, step=step)

    def state_dict(self):
        self.settle()
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)
        self.loader.commit()
        self._handed.clear()
        self._begun = True


class LateState(Callback):
    """Loads the loaders' states of a checkpoint. Lightning forgets them if a schedule's length was
    asked for before: the loaders were set up then. Lightning finds this callback by the package's
    entry point, so a plain Loader resumes, too.
    """

    def on_train_start(self, trainer, module):
        loop = trainer.fit_loop
        if any(isinstance(x, (Loader, Batches)) for x in loop._combined_loader.flattened):
            loop._load_combined_loader_states()  # once


class Validation:
    """A loader of a finite stream as Lightning's val_dataloader: each pass begins at position 0."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.loader.reset()
        return iter(self.loader)


class TokendData(LightningDataModule):
    """A stream to train on and, with valid=, a finite stream to validate on.

    stream       name of the training stream in the daemon's config
    micro_batch  rows per batch, for both
    valid        name of the validation stream, or None
    options      of tokend.Loader, for both; start only for the training stream

    Raises what tokend.Loader raises, when Lightning asks for the dataloaders.
    """

    def __init__(self, stream, micro_batch, *, valid=None, **options):
        super().__init__()
        self._stream, self._valid, self._micro, self._options = stream, valid, micro_batch, options
        self._train_batches = self._valid_batches = None

    def _loader(self, stream, **options):
        options = {**self._options, **options}
        # torch.distributed is initialised now: rank and world come from it, or from
        # ModelParallelStrategy's mesh
        if not options.keys() & {"mesh", "rank", "world"}:
            # None: all processes are data ranks
            options["mesh"] = self.trainer.lightning_module.device_mesh
        return Loader(stream, self._micro, **options)

    def train_dataloader(self):
        if self._train_batches is None:
            self._train_batches = Batches(self._loader(self._stream), self.trainer)
        self._train_batches.trainer = self.trainer
        return self._train_batches

    def val_dataloader(self):
        if self._valid is None:
            return []
        if self._valid_batches is None:
            self._valid_batches = Validation(self._loader(self._valid, start="begin"))
        return self._valid_batches


class TokendCallback(Callback):
    """Carries out operators' requests (tokctl mix, skip, checkpoint, drain, rescale) after each
    step.

    path  the checkpoint for requests that save: fit()'s ckpt_path of the next run

    Raises what tokend.Loader.control() raises.
    """

    def __init__(self, path):
        self._path, self._step = path, 0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step == self._step:
            return  # gradients are being accumulated
        self._step = trainer.global_step
        batches = trainer.train_dataloader
        batches.settle()
        request = batches.loader.control()
        if request is not None and request.save:
            trainer.save_checkpoint(self._path)
            request.done(f"step {self._step} in {self._path}")
        if batches.loader.should_stop:
            trainer.should_stop = True
