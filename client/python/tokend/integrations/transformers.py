"""Hugging Face transformers: `TokendTrainer(model, args, data=Loader("train", …))` in the place of
`Trainer(model, args, train_dataset=…)`.

The cursor lies in the checkpoint's trainer_state.json, so
trainer.train(resume_from_checkpoint=True) goes on exactly where the model is, in any world. For a
subclass of Trainer that is one's own: `class Mine(TokendFeed, TheirTrainer)`.
"""

from collections import deque

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from ..throughput import Throughput


class Batches:
    """A loader as a Trainer's dataloader: batches as models of transformers take them. It has no
    length: max_steps says when to stop.
    """

    def __init__(self, loader, rows, shifted):
        self.loader, self._rows, self._shifted = loader, rows, shifted
        self.over = False  # the run is at its max_steps, which a Trainer notices behind a step only
        # the position behind each batch that was handed out and is not committed
        self._taken = deque()

    def __iter__(self):
        for batch in () if self.over else self.loader:
            rows = len(batch["input_ids"])
            if rows != self._rows:
                raise ValueError(
                    f"TokendTrainer: the loader's micro_batch is {rows}, but "
                    f"per_device_train_batch_size is {self._rows}: "
                    "give both the same number"
                )
            self._taken.append(self.loader.taken)
            yield self._made(batch)

    def _made(self, batch):
        inputs, targets = batch["input_ids"], batch["labels"]
        # Models shift labels themselves, and lose the last one; those that take the shift from us
        # lose none.
        labels = inputs.clone()
        labels[:, 1:] = targets[:, :-1]
        made = {"input_ids": inputs, "labels": labels}
        if self._shifted:
            made["shift_labels"] = targets.contiguous()  # losses view it flat
        if "position_ids" in batch:
            made["position_ids"] = batch["position_ids"]
        return made

    def commit(self, batches):
        """So many more have been trained on."""
        for _ in range(min(batches, len(self._taken))):
            self.loader.commit(self._taken.popleft())

    def begin(self, cursor):
        """From a cursor, or from where the loader is."""
        self._taken.clear()
        if cursor is not None:
            self.loader.seek(cursor)
        self.loader.commit()  # for a checkpoint that is made before the first step ends

    def cursor(self):
        return self.loader.state_dict()["cursor"]


class TokendCursor(TrainerCallback, ExportableState):
    """Carries the cursor between a checkpoint's trainer_state.json and the loader. Its class's name
    is the key there.
    """

    def __init__(self):
        self.cursor = self._batches = None

    def state(self):
        if self._batches is not None:
            self.cursor = self._batches.cursor().hex()
        return {"args": {}, "attributes": {"cursor": self.cursor}}

    def on_train_begin(self, args, state, control, train_dataloader=None, **_):
        if not isinstance(train_dataloader, Batches):
            other = type(train_dataloader).__name__
            raise TypeError(
                f"TokendTrainer: training would read from a {other} around the loader or in its "
                "place: "
                "get_train_dataloader() must be TokendFeed's, and sequence parallelism by "
                "deepspeed is not supported"
            )
        self._batches = train_dataloader
        self._batches.over = state.global_step >= state.max_steps
        found = state.stateful_callbacks.get(type(self).__name__)
        if found is None and state.global_step > 0:
            raise ValueError(
                "TokendTrainer: the checkpoint has no cursor of tokend, as another dataloader was "
                "in use when it was written: "
                "load its weights alone (from_pretrained) and begin with Loader(start=POSITION)"
            )
        cursor = found["attributes"]["cursor"] if found else None
        self._batches.begin(bytes.fromhex(cursor) if cursor else None)
        if found is None:
            # the Trainer only fills what is there
            state.stateful_callbacks[type(self).__name__] = self.state()

    def on_optimizer_step(self, args, state, control, **_):
        # Not when a step ends: what saves then may have been asked first.
        self._batches.commit(args.gradient_accumulation_steps)


class TokendCallback(TrainerCallback):
    """Carries out what an operator asks for with tokctl (mix, skip, checkpoint, drain, rescale):
    callbacks=[TokendCallback()].
    """

    def __init__(self):
        self._asked = None

    def on_step_end(self, args, state, control, train_dataloader=None, **_):
        loader = train_dataloader.loader
        request = loader.control()
        if request is not None and request.save:
            self._asked, control.should_save = request, True
        control.should_training_stop |= loader.should_stop

    def on_save(self, args, state, control, **_):
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.done(f"step {state.global_step} in {args.output_dir}")


class TokendFeed:
    """What makes a Trainer read from a tokend.Loader; give it as data=. It sets ignore_data_skip:
    there is nothing to skip.
    """

    def __init__(self, *arguments, data, **named):
        super().__init__(*arguments, **named)
        self.data = data
        self.args.ignore_data_skip = True
        self.add_callback(TokendCursor())

    def get_train_dataloader(self):
        args = self.args
        if self._train_batch_size != args.per_device_train_batch_size:
            raise ValueError(
                "TokendTrainer: one process with several devices (DataParallel): start one a "
                "device, with torchrun"
            )
        ranks = args.world_size // (self.get_tp_size() * self.get_cp_size() * self.get_sp_size())
        if self.data.world != ranks:
            raise ValueError(
                f"TokendTrainer: the loader is of a world of {self.data.world}, the Trainer has "
                f"{ranks} data-parallel ranks: "
                "make the Loader behind TrainingArguments(), which begin torch.distributed, or "
                "pass it rank= and world="
            )
        self._throughput = Throughput(self.data)
        return Batches(self.data, args.per_device_train_batch_size, self.model_accepts_loss_kwargs)

    def log(self, logs, *arguments, **named):
        if "loss" in logs:
            logs.update(self._throughput())
        super().log(logs, *arguments, **named)


class TokendTrainer(TokendFeed, Trainer):
    """transformers.Trainer that reads from a tokend.Loader: TokendTrainer(model, args,
    data=loader).
    """
