"""Lightning: `trainer.fit(module, TokendData("train", micro_batch=8))`. The cursor lies in
Lightning's own checkpoint.

A module that makes its loaders itself returns `Batches(Loader("train", 8), self.trainer)` from
train_dataloader(); under ModelParallelStrategy `Loader("train", 8, mesh=self.device_mesh)`.
"""

from collections import deque

from lightning.pytorch import Callback, LightningDataModule

from ..loader import Loader
from ..throughput import Throughput

ENDLESS = 1 << 40


class Batches:
    """A loader as Lightning's train_dataloader: its state is that of the last step of the
    optimizer, not of the last batch taken.

    It says that it has a length, as from what has none Lightning takes one batch ahead. So
    validation is to be asked for by steps: Trainer(val_check_interval=N,
    check_val_every_n_epoch=None); the end of training by max_steps, or it is that of a finite
    stream.
    """

    def __init__(self, loader, trainer):
        self.loader, self.trainer = loader, trainer
        self.throughput = Throughput(loader)
        # for each batch: the steps made before it, and the position behind it
        self._handed = deque()
        self._begun = False
        self._logged = 0
        loader.commit()  # for a checkpoint that is made before the first step

    def __len__(self):
        return ENDLESS

    def __iter__(self):
        return self

    def __next__(self):
        if self.trainer.global_step > 0 and not self._begun:
            raise ValueError(
                "TokendData: the checkpoint has no cursor of tokend, as another dataloader was in "
                "use when it was written: "
                "load its weights alone and begin with start=POSITION"
            )
        self._begun = True
        self.settle()
        batch = next(self.loader, None)
        if batch is None:
            self.trainer.should_stop = True  # a finite stream: there is no other epoch
            raise StopIteration
        self._handed.append((self.trainer.global_step, self.loader.taken))
        return batch

    def settle(self):
        """Commits what the optimizer has stepped on, and tells the loggers how fast that was."""
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


class Validation:
    """A loader of a finite stream, from its beginning each time."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.loader.seek(position=0)
        return iter(self.loader)


class TokendData(LightningDataModule):
    """A stream to train on, and a finite one to validate with; the other arguments are those of
    tokend.Loader, for both; start is the training's.
    """

    def __init__(self, stream, micro_batch, *, valid=None, **options):
        super().__init__()
        self._stream, self._valid, self._micro, self._options = stream, valid, micro_batch, options
        self._train_batches = self._valid_batches = None

    # The processes of the job are there now, so ranks and world come from torch.distributed, or
    # from ModelParallelStrategy's mesh.

    def _loader(self, stream, **options):
        options = {**self._options, **options}
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
    """Carries out what an operator asks for with tokctl (mix, skip, checkpoint, drain, rescale),
    behind each step.

    path  where what is asked to be saved is saved: say what fit() is given as ckpt_path
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
