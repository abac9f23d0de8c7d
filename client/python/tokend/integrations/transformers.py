"""Hugging Face transformers: `TokendTrainer(model, args, data=Loader("train", …))` instead of
`Trainer(model, args, train_dataset=…)`.

The cursor is stored in the checkpoint's trainer_state.json, so
trainer.train(resume_from_checkpoint=True) continues exactly after the model's last step, in any
world. For your own subclass of Trainer: `class Mine(TokendFeed, TheirTrainer)`.
"""

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from ..batch import unshifted
from ..throughput import Throughput
from .shared import NO_CURSOR, restart, shifted


class Batches:
    """A loader as a Trainer's dataloader, with batches as transformers' models take them.

    It has no length: max_steps ends the training. A finite stream is an epoch.
    """

    def __init__(self, loader, shifts, flash):
        self.loader, self._shifts, self._flash = loader, shifts, flash
        self._state = None

    def __iter__(self):
        # less than a step at an epoch's end: a Trainer keeps the gradients for the next step
        self.loader.commit()
        for batch in () if self._is_over() else self.loader:
            targets = shifted(batch)
            made = {"input_ids": batch["input_ids"], "labels": unshifted(targets, torch)}
            if self._shifts:
                made["shift_labels"] = targets.contiguous()  # losses flatten it with view()
            if "position_ids" in batch:
                # a mask would hide from the model that documents end where these restart
                made["position_ids"] = batch["position_ids"]
            # of several rows flash attention ignores position_ids
            if self._flash and "cu_seqlens" in batch and len(targets) > 1:
                made |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), batch["cu_seqlens"])
                made |= dict.fromkeys(("max_length_q", "max_length_k"), batch["max_seqlen"])
            yield made

    def _is_over(self):
        """Whether the run is at max_steps, which a Trainer notices only after a step."""
        return self._state.global_step >= self._state.max_steps

    def begin(self, state, cursor):
        """Begins at @cursor; None: where the loader is. @state: the Trainer's."""
        self._state = state
        if cursor is not None:
            self.loader.seek(bytes.fromhex(cursor))
        restart(self.loader)
        end = self.loader.cursor.end
        if not self._is_over() and end is not None and self.loader.taken >= end:
            self.loader.reset()  # a Trainer would end at an epoch without batches


class TokendCursor(TrainerCallback, ExportableState):
    """Stores the cursor in a checkpoint's trainer_state.json, and loads it. The key is this class's
    name. Carries out operators' requests (tokctl mix, skip, checkpoint, drain, rescale) after each
    step.

    Raises what tokend.Loader.control() raises, and:
        TypeError: the Trainer reads from another dataloader.
        ValueError: the checkpoint has no tokend cursor.
    """

    def __init__(self):
        self.cursor = self._batches = self._asked = None

    def state(self):
        if self._batches is not None:
            self.cursor = self._batches.loader.state_dict()["cursor"].hex()
        return {"args": {}, "attributes": {"cursor": self.cursor}}

    def on_train_begin(self, args, state, control, train_dataloader=None, **_):
        if not isinstance(train_dataloader, Batches):
            other = type(train_dataloader).__name__
            raise TypeError(
                f"TokendTrainer: training would read from a {other}, around the loader or instead "
                "of it; keep TokendFeed's get_train_dataloader(), and turn deepspeed's sequence "
                "parallelism off"
            )
        found = state.stateful_callbacks.get(type(self).__name__)
        if found is None:
            raise ValueError(
                f"TokendTrainer: {NO_CURSOR}; load its weights alone (from_pretrained), "
                "and pass Loader(start=POSITION)"
            )
        self._batches = train_dataloader
        self._batches.begin(state, found["attributes"]["cursor"])

    def on_optimizer_step(self, args, state, control, **_):
        # Not at the end of the step: another callback may save before it is this one's turn.
        self._batches.loader.commit()  # a Trainer takes the batches of one step at a time

    def on_step_end(self, args, state, control, **_):
        loader = self._batches.loader
        request = loader.control()
        if request:
            self._asked, control.should_save = request, True
        control.should_training_stop |= loader.should_stop

    def on_save(self, args, state, control, **_):
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.done(f"step {state.global_step} in {args.output_dir}")


class TokendFeed:
    """Mixin that makes a Trainer read from a tokend.Loader, passed as data=.

    It sets ignore_data_skip, because the loader resumes at its cursor. Models with a shift_labels
    argument lose no label. Another loss than the model's own (label smoothing, compute_loss_func,
    an overridden compute_loss) shifts labels itself, so it loses the last one of each row.

    Raises:
        ValueError: the loader's world and micro_batch are not the Trainer's.
    """

    models_loss = Trainer.compute_loss  # returns the loss that the model computes

    def __init__(self, *arguments, data, **named):
        super().__init__(*arguments, **named)
        self.data = data
        self.args.ignore_data_skip = True
        self.add_callback(TokendCursor())

    def get_train_dataloader(self):
        args, rows = self.args, self._train_batch_size  # of a process, on all its devices
        ranks = self.get_total_train_batch_size(args) // args.gradient_accumulation_steps // rows
        if (self.data.world, self.data.micro_batch) != (ranks, rows):
            raise ValueError(
                f"TokendTrainer: the loader's world and micro_batch, {self.data.world} and "
                f"{self.data.micro_batch}, are not the Trainer's data-parallel ranks and batch "
                f"size, {ranks} and {rows}; make the Loader after TrainingArguments(), which "
                "initialise torch.distributed, or pass rank= and world="
            )
        self._throughput = Throughput(self.data)
        # a Trainer divides by the number of shift_labels, if a batch has any
        shifts = (
            self.model_accepts_loss_kwargs
            and self.label_smoother is None
            and self.compute_loss_func is None
            and type(self).compute_loss is type(self).models_loss
        )
        attention = getattr(getattr(self.model, "config", None), "_attn_implementation", None)
        # torch's DataParallel would split cu_seqlens among the GPUs
        return Batches(self.data, shifts, "flash" in (attention or "") and args.n_gpu < 2)

    def log(self, logs, *arguments, **named):
        if "loss" in logs:
            logs.update(self._throughput())
        super().log(logs, *arguments, **named)


class TokendTrainer(TokendFeed, Trainer):
    """A transformers.Trainer that reads from a tokend.Loader: TokendTrainer(model, args,
    data=loader). Raises what TokendFeed raises.
    """
