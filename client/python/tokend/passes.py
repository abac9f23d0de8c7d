"""Passes over a loader, and commits for loops that take batches ahead of their step."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from . import callers

if TYPE_CHECKING:
    from .batch import Batches
    from .loader import Loader

# These give each model the labels that it wants.
ADAPTERS = {
    f"tokend.integrations.{name}"
    for name in ("transformers", "composer", "megatron", "olmo", "torchtitan")
}


def accelerate_takes_ahead() -> bool:
    """As accelerated.check_who_iterates()."""
    if "accelerate" not in sys.modules:
        return False
    from . import accelerated

    return accelerated.check_who_iterates()


class Pass:
    """The iterator of `for batch in loader`: the loader's batches until the stream ends.

    It has no close(), because `yield from loader` would call it when a generator is left early, and
    so close the loader. After the end, a new pass goes to position 0 when its first batch is taken:
    until then the state is that of the end. No other process is asked, because all of them come
    here at the same step.
    """

    __slots__ = ("__weakref__", "_begun_at", "_loader", "_number")

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._number: int | None = None  # this pass's number; None before its first batch
        self._begun_at = 0

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._number != loader._passes:
            if self._number is not None:
                raise StopIteration  # this pass has ended, and another one has begun
            self._begin()
        try:
            while True:  # as Loader.__next__()
                batch, takes = loader._look()
                try:
                    loader._client.takes = takes
                except LookupError:
                    continue
                return batch
        except StopIteration:
            loader._dealt_ahead = False
            if "accelerate" in sys.modules:
                from . import accelerated

                accelerated.warn_of_an_open_step(loader._micro * loader._world)
            if loader.taken == self._begun_at:
                self._warn()
            raise

    def _begin(self) -> None:
        loader = self._loader
        if "composer" in sys.modules:
            from . import composed

            composed.check_who_iterates(loader)
        loader._dealt_ahead = accelerate_takes_ahead()
        if is_over(loader):
            loader._begin_again()
        elif is_left(loader):
            _warn_once(
                loader,
                "left",
                f"a pass over stream {loader.stream!r} was left at position {loader.taken}; under "
                "no_grad() the next `for` begins again at position 0; call reset() before it, or "
                "go on with next(loader)",
            )
            loader._begin_again()
        self._number, self._begun_at = loader._passes, loader.taken
        loader._pass, loader._pass_begin = weakref.ref(self), self._begun_at

    def is_last(self) -> bool:
        """Whether no other pass has begun since."""
        return self._number == self._loader._passes

    def _warn(self) -> None:
        self._begun_at = -1  # once
        warnings.warn(
            "tokend: this pass has no batches, because it began at the stream's end, position "
            f"{self._loader.taken}; the next pass begins again at position 0",
            stacklevel=3,
        )


def is_over(loader: Loader) -> bool:
    """Whether the next `for` begins at position 0, because every batch was taken."""
    batches = loader._measured()
    end = batches.end
    return loader._ended or (end is not None and batches.begin < end <= batches.taken)


def is_left(loader: Loader) -> bool:
    """Whether the next `for` begins at position 0, because an evaluation left its pass: all batches
    since the last seek were taken under no_grad(), as this one.
    """
    if loader._modes != 1 or loader._has_gradients():
        return False
    return loader._measured().end is not None


def _warn_once(loader: Loader, what: str, text: str) -> None:
    if what not in loader._said:
        loader._said |= {what}
        warnings.warn(f"tokend: {text}", RuntimeWarning, stacklevel=callers.users_level())


def warn_of_modes(loader: Loader, mode: int) -> None:
    """Called before the first batch of a @mode since the last seek, if there were others, or if
    the pass before was one with gradients.
    """
    if loader._modes:
        _warn_once(
            loader,
            "modes",
            f"batches of stream {loader.stream!r} are taken with gradients and under no_grad(); "
            "the state counts all as trained on, so the run loses the rows of the evaluation; "
            "evaluate with another Loader, of a finite stream or with another run=",
        )
    elif mode > 1 and any(d["shuffle"] != "none" for d in loader.cursor.to_dict()["datasets"]):
        _warn_once(
            loader,
            "again",
            f"a second pass over stream {loader.stream!r} with gradients has the rows of the first "
            "in the same order; to train on epochs that are each shuffled anew, set epochs: to "
            "their number in its config; evaluate under torch.no_grad()",
        )


def warn_of_labels(loader: Loader) -> None:
    """Called before a batch with gradients in a process that has transformers' models. They shift
    labels themselves.
    """
    if loader._labels_meant or not loader._measured().has_labels or sys.modules.keys() & ADAPTERS:
        return
    loader._labels_meant = True
    model = sys.modules["transformers.modeling_utils"].PreTrainedModel
    if any(issubclass(type(x), model) and x.training for x in gc.get_objects()):
        _warn_once(
            loader,
            "labels",
            f"labels of stream {loader.stream!r} are shifted already, and the transformers model "
            "that trains here shifts them once more: model(**batch) would learn the token after "
            "next; pass Loader(shift_labels=True), or False if the model gets no labels",
        )


def warn_of_padding(loader: Loader) -> None:
    """Called for a batch of padding only."""
    batches, gradients = loader._measured(), loader._make.has_gradients
    if gradients is None or not gradients() or not batches.has_labels:
        return
    rows = loader._micro * loader._world
    _warn_once(
        loader,
        "padding",
        f"the last batch of stream {loader.stream!r} is padding only on rank {loader._rank} of "
        f"{loader._world}, so the mean of its losses is NaN; divide the sum of losses, "
        'cross_entropy(…, reduction="sum"), by the number of labels other than -100 on all ranks; '
        "or leave that batch out on all ranks, with samples: "
        f"{loader.taken // rows * rows} in the config",
    )


def warn_of_a_save(loader: Loader) -> None:
    """Called by state_dict() of a loader without commits. The step of the batch taken last may not
    be complete if an exception was raised since, or in a signal's handler.
    """
    taken, error = loader.taken, sys.exc_info()[1]
    if taken == loader._before:  # next() was called again, so that step is complete
        return
    if error is not None and id(error) != loader._handled:
        where = f"while {type(error).__name__} is handled"
    elif callers.is_signal_handler():
        where = "in a signal's handler"
    else:
        return
    if isinstance(error, (StopIteration, GeneratorExit)):
        return
    _warn_once(
        loader,
        "save",
        f"state_dict() is called {where}, and the state counts the batch taken last, up to "
        f"position {taken}, as trained on; if its step was not complete, a resume loses these "
        "rows; save after a step (a handler sets a flag), or call commit() after each step: the "
        "state is then that of the last complete step",
    )


class Prefetched:
    """Commits for a loop that always holds @n batches that it has not trained on yet."""

    def __init__(self, n: int, client: Any) -> None:
        self.n, self._client = n, client
        self.begin()

    def warn_of_a_load(self) -> None:
        if self._nexts:
            warnings.warn(
                "load_state_dict: the loop has taken a batch of another position before, and must "
                "drop it; load the state before the first batch, or pass start=",
                stacklevel=callers.users_level(),
            )

    def begin(self) -> None:
        """Nothing has been taken since the seek."""
        self._nexts: list[int] = []  # the position after each of the last looks
        self._client.commit(self._client.taken())

    def look(self, batches: Batches) -> Any:
        """Returns what batches.look() returns. Each call, also one at the end, means that the loop
        has trained on one more of the batches that it holds, unless the call before failed.
        """
        found, taken, nexts = batches.look(), self._client.taken(), self._nexts
        if nexts and nexts[-1] != taken:  # that batch was not taken
            nexts = nexts[:-1]
        if len(nexts) >= self.n:
            self._client.commit(nexts[-self.n])
        self._nexts = [*nexts[-self.n :], found[2][0] if found else taken]
        return found
