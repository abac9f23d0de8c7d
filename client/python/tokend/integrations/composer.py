"""Composer: `Trainer(train_dataloader=TokendData("train", micro_batch=8),
callbacks=[TokendCallback()])`.

The cursor is in composer's own checkpoint, as the state of TokendCallback. A job continues exactly
after its last step, on any number of processes, and composer replays nothing. `ba` counts steps,
`sp` and `tok` count the rows and tokens of all processes, without padding. With micro_batch
unchanged, more processes make larger steps.
"""

import torch
from composer import Callback, DataSpec
from composer.callbacks import CheckpointSaver
from composer.utils import checkpoint, dist

from .. import phrases
from ..batch import shifted, unshifted
from ..loader import Loader
from ..throughput import Throughput

DOCUMENTS = ("cu_seqlens", "max_seqlen")  # of a whole batch, not of a row


class Batches:
    """A stream as composer's dataloader. Its Loader is made when it is first needed, because
    Trainer() initializes torch.distributed.

    To train on, a pass begins where the loader is. To evaluate or predict, it begins at position 0.
    A model that shifts labels itself (shift_labels of composer's HuggingFaceModel and of MPT) gets
    labels that are not shifted; then the last label of a row has no place.

    Raises:
        ValueError: the Trainer has no TokendCallback, which says what this dataloader is for.
    """

    def __init__(self, stream, micro_batch, options):
        self.batch_size = micro_batch  # composer's default device_train_microbatch_size
        self._stream, self._options = stream, options
        self._loader = self._pass = None
        self._model_shifts = False

    @property
    def loader(self):
        if self._loader is None:
            self._loader = Loader(self._stream, self.batch_size, **self._options)
        return self._loader

    def __len__(self):
        """The batches of a whole pass, of which a resumed one has fewer."""
        end = self.loader.cursor.end
        if end is None:
            raise TypeError(f"stream {self._stream!r} has no end")
        return -(-end // (self.loader.world * self.batch_size))

    def __iter__(self):
        if self._pass is None:
            raise ValueError(
                "TokendData: this Trainer has no TokendCallback, which stores the cursor in its "
                "checkpoints; pass callbacks=[TokendCallback()]"
            )
        return self._pass()

    def evaluate(self, state):
        """The next pass begins at position 0. @state: composer's State."""
        self.loader.reset()
        self._serve(state, lambda: iter(self._next, None))

    def train(self, state):
        self._serve(state, lambda: self._rest_of_epoch(state))

    def _serve(self, state, begin):
        model = state.model.module if state.is_model_ddp else state.model
        self._model_shifts = getattr(model, "shift_labels", False)
        self._pass = begin

    def _next(self):
        batch = next(self.loader, None)
        if batch is not None and self._model_shifts:
            batch["labels"] = unshifted(shifted(batch), torch)
        return batch

    def _rest_of_epoch(self, state):
        loader, done = self.loader, int(state.timestamp.batch_in_epoch)
        end, limit = loader.cursor.end, state.dataloader_len
        # composer stops after dataloader_len batches, so it may not have seen the stream's end
        if not done and end is not None and loader.taken >= end:
            loader.reset()
            loader.commit()
        # train_subset_num_batches: composer counts a resumed epoch's batches from 0
        left = None if limit is None or (end and int(limit) == len(self)) else int(limit) - done
        while left is None or left > 0:
            batch = self._next()
            if batch is None:
                return
            yield batch
            left = left and left - 1

    def close(self):
        if self._loader is not None:
            self._loader.close()


class TokendData(DataSpec):
    """A stream as train_dataloader, eval_dataloader or an Evaluator's dataloader.

    stream       name of the stream in the daemon's config
    micro_batch  rows per batch and process; composer splits it by device_train_microbatch_size
    options      of tokend.Loader. With tensor parallelism pass mesh=, or rank=, world= and peer=

    Raises what tokend.Loader raises, when composer first asks for length or batches.
    """

    def __init__(self, stream, micro_batch, **options):
        super().__init__(
            Batches(stream, micro_batch, options),
            split_batch=split,
            get_num_samples_in_batch=samples,
            get_num_tokens_in_batch=tokens,
        )


def samples(batch):
    """The number of rows, without padding."""
    return int((batch["position"] >= 0).sum())


def tokens(batch):
    """The numbers of tokens as composer wants them, without padding."""
    return {
        "total": samples(batch) * batch["labels"].shape[1],
        "loss_generating": int((batch["labels"] != -100).sum()),
    }


def split(batch, rows):
    """Divides a batch into parts of @rows rows, with their documents."""
    all_rows, seq_len = batch["labels"].shape
    per_row = {name: value for name, value in batch.items() if name not in DOCUMENTS}
    parts = []
    for begin in range(0, all_rows, rows):
        end = min(begin + rows, all_rows)
        part = {name: value[begin:end] for name, value in per_row.items()}
        if "cu_seqlens" in batch:
            starts, first = batch["cu_seqlens"], begin * seq_len
            inside = starts[(starts >= first) & (starts <= end * seq_len)] - first
            part |= {"cu_seqlens": inside, "max_seqlen": int(inside.diff().max())}
        parts.append(part)
    return parts


class TokendCallback(Callback):
    """Stores the cursor in composer's checkpoints and loads it, and carries out operators' requests
    (tokctl mix, skip, checkpoint, drain, rescale) after each step. Requests that save do so in
    save_folder; without one, like Trainer.save_checkpoint(). Logs the throughput of each step.

    Raises what tokend.Loader.control() raises, and:
        TypeError: the train_dataloader is not a TokendData.
        ValueError: the checkpoint has no tokend cursor, the loader's world is not the number of
            data-parallel ranks, or one TokendData is for training and for evaluation.
    """

    def __init__(self):
        self._batches = self._cursor = self._state = self._asked = None
        self._handed = None  # the steps before the batch taken last, and the position after it

    # ---- the cursor ----

    def fit_start(self, state, logger):
        batches = state.train_dataloader
        if not isinstance(batches, Batches):
            raise TypeError(
                f"TokendCallback: the train_dataloader is a {type(batches).__name__}, and its "
                'position would not be in the checkpoint; pass train_dataloader=TokendData("…", …)'
            )
        self._state = state
        # Otherwise composer drops batches: it replays those of the epoch, takes one of each past
        # epoch, and the first one of each evaluation dataloader.
        state.dataset_resumption["train"] = True
        evaluated = state.dataset_resumption.setdefault("eval", {})
        for evaluator in state.evaluators:
            if isinstance(evaluator.dataloader.dataloader, Batches):
                evaluated[evaluator.label] = True
        if batches is not self._batches:
            self._begin(batches, state)
            return
        self._settle()
        if self._handed is not None:  # the last fit() ended within a step, by an exception
            self._handed = None
            batches.loader.load_state_dict(batches.loader.state_dict())
            batches.loader.commit()

    def _begin(self, batches, state):
        loader = batches.loader
        ranks = dist.get_world_size()
        if state.tp_config is not None:
            ranks //= state.tp_config.tensor_parallel_degree
        if loader.world != ranks:
            raise ValueError(
                f"TokendData: the loader's world, {loader.world}, is not the number of composer's "
                f"data-parallel ranks, {ranks}; pass mesh=, or rank=, world= and peer="
            )
        if self._cursor is None and state.timestamp.batch > 0 and self._batches is None:
            raise ValueError(
                f"TokendCallback: {phrases.NO_CURSOR}; load its weights alone "
                "(load_weights_only=True), and pass TokendData(start=POSITION)"
            )
        if self._cursor is not None:
            loader.seek(self._cursor)
        loader.commit()  # for a checkpoint within the first step
        batches.train(state)
        self._batches, self._handed, self._cursor = batches, None, None
        self._throughput = Throughput(loader)

    def after_dataloader(self, state, logger):
        self._handed = int(state.timestamp.batch), self._batches.loader.taken

    def _settle(self):
        """Commits the last batch if composer has counted its step. A checkpoint may be saved within
        a step, or before it is this callback's turn.
        """
        if self._handed is not None and self._state.timestamp.batch > self._handed[0]:
            self._batches.loader.commit(self._handed[1])
            self._handed = None

    def state_dict(self):
        if self._batches is None:
            return {"cursor": self._cursor or b""}
        self._settle()
        return self._batches.loader.state_dict()

    def load_state_dict(self, state):
        self._cursor, self._batches = state["cursor"] or None, None

    # ---- evaluation ----

    def eval_start(self, state, logger):
        if not isinstance(state.dataloader, Batches):
            return
        if state.dataloader is state.train_dataloader:
            raise ValueError(
                "TokendData: an evaluation would move the position of the training; pass another "
                "TokendData to it"
            )
        state.dataloader.evaluate(state)

    predict_start = eval_start

    # ---- requests ----

    def batch_end(self, state, logger):
        self._settle()
        loader = self._batches.loader
        logger.log_metrics(self._throughput())
        request = loader.control()
        if request is not None and request.save:
            self._asked = request

    def batch_checkpoint(self, state, logger):
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.done(f"step {int(state.timestamp.batch)} in {self._save(state, logger)}")
        if self._batches.loader.should_stop:
            state.stop_training()

    @staticmethod
    def _save(state, logger):
        """Saves a checkpoint. Returns its folder."""
        savers = [
            callback
            for callback in state.callbacks
            if isinstance(callback, CheckpointSaver) and not callback.weights_only
        ]
        for saver in savers:
            if saver.last_checkpoint_batch != state.timestamp.batch:
                # what Trainer.save_checkpoint_to_save_folder() calls
                saver._save_checkpoint(state, logger)
        if savers:
            return savers[0].folder
        checkpoint.save_checkpoint(state)
        return "the working directory"

    def close(self, state, logger):
        loaders = [evaluator.dataloader.dataloader for evaluator in state.evaluators]
        for batches in [self._batches, *loaders]:
            if isinstance(batches, Batches):
                batches.close()
