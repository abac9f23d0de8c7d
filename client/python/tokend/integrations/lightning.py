"""Lightning: `trainer.fit(module, TokendData("train", micro_batch=8))`.

The cursor is stored in Lightning's own checkpoint, as the state of this LightningDataModule.

A Loader itself, in fit() or as a module's train_dataloader(), loses rows at a resume: Lightning
takes a batch ahead of its steps from what has no length, and counts lengths from the run's start.
"""

import warnings

from lightning.pytorch import Callback, LightningDataModule

from ..loader import Loader
from ..throughput import Throughput
from .shared import NO_CURSOR, carry_out, restart

ENDLESS = 1 << 40


class Batches:
    """A loader as Lightning's train_dataloader. It has an endless length, so that no batch is taken
    ahead. So validate every N steps: Trainer(val_check_interval=N, check_val_every_n_epoch=None).
    Training ends with max_steps, or with a finite stream.

    Raises:
        ValueError: the checkpoint has no tokend cursor, or a schedule asks for a length that only
            max_steps would give.
    """

    def __init__(self, loader, trainer, state):
        self.loader, self.trainer = loader, trainer
        self._throughput, self._logged = Throughput(loader), 0
        self._step, self._begun = 0, False
        self.restart(state)

    def __len__(self):
        if self.trainer.max_steps == -1 and not self.trainer.optimizers:
            raise ValueError(
                "TokendData: a schedule asks for the number of batches; pass Trainer(max_steps=N)"
            )
        return ENDLESS

    def __iter__(self):
        if self.trainer.overfit_batches:  # the same ones in each epoch
            self.loader.seek(position=0)  # reset() would warn of another pass
            restart(self.loader)
        return self

    def __next__(self):
        if self.trainer.global_step > 0 and not self._begun:
            raise ValueError(
                f"TokendData: {NO_CURSOR}; load its weights alone, and pass start=POSITION"
            )
        self._begun = True
        self.settle()
        batch = next(self.loader, None)
        if batch is None:
            self.trainer.should_stop = True  # a finite stream is one epoch
            if self.loader.taken != self.loader.position:
                rows = self.loader.micro_batch * self.trainer.accumulate_grad_batches
                warnings.warn(
                    "tokend: the stream has ended in the middle of a gradient accumulation, so no "
                    "optimizer step contains its last batches; set samples: in its config to a "
                    f"multiple of {self.loader.world * rows}, the rows of a step",
                    stacklevel=2,
                )
            raise StopIteration
        return batch

    def settle(self):
        """Commits the batches that the optimizer has stepped on, and logs the throughput."""
        step = self.trainer.global_step
        if step != self._step:  # it contains all batches: none is taken ahead
            self._step = step
            self.loader.commit()
        if step - self._logged >= self.trainer.log_every_n_steps:
            self._logged, numbers = step, self._throughput()
            for logger in self.trainer.loggers:
                logger.log_metrics(numbers, step=step)

    def state_dict(self):
        """Nothing: TokendData's has the cursor. Lightning warns of loaders without these two."""
        return {}

    def load_state_dict(self, state):
        pass

    def restart(self, state):
        if state is not None:
            self.loader.load_state_dict(state)
            self._begun = True
        restart(self.loader)


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
    options      of tokend.Loader, for both; start and record only for the training stream

    Raises what tokend.Loader raises, when Lightning asks for the dataloaders.
    """

    def __init__(self, stream, micro_batch, *, valid=None, **options):
        super().__init__()
        self._stream, self._valid, self._micro, self._options = stream, valid, micro_batch, options
        self._state = self._train_batches = self._valid_batches = None

    def _loader(self, stream, **options):
        options = {**self._options, **options}
        # torch.distributed is initialised now: rank and world come from it, or from
        # ModelParallelStrategy's mesh
        if not options.keys() & {"mesh", "rank", "world"}:
            # None: all processes are data ranks
            options["mesh"] = self.trainer.lightning_module.device_mesh
        return Loader(stream, self._micro, **options)

    def setup(self, stage):
        # another fit(), after the last step of the one before; a drained job is still to leave
        if self._train_batches is not None and not self._train_batches.loader.should_stop:
            self._train_batches.restart(self.state_dict())

    def train_dataloader(self):
        if self._train_batches is None:
            self._train_batches = Batches(self._loader(self._stream), self.trainer, self._state)
        self._train_batches.trainer = self.trainer
        return self._train_batches

    def val_dataloader(self):
        if self._valid and self._valid_batches is None:
            self._valid_batches = Validation(self._loader(self._valid, start="begin", record=None))
        return self._valid_batches or []

    def state_dict(self):
        """The state of the optimizer's last step, not of the last batch taken."""
        if self._train_batches is None:
            if self._state is not None or self.trainer is None:
                return self._state or {}
            self.train_dataloader()  # a Tuner saves before it trains, and then goes back
        self._train_batches.settle()
        return self._train_batches.loader.state_dict()

    def load_state_dict(self, state):
        """Called by Lightning before it asks for the dataloaders, or between two fits."""
        self._state = state
        if self._train_batches is not None:
            self._train_batches.restart(state)


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

        def save(request):
            trainer.save_checkpoint(self._path)
            return f"step {self._step} in {self._path}"

        trainer.should_stop |= carry_out(batches.loader, save)
