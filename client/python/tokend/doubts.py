"""Warnings of loops that would train on wrong rows, or lose some. Each is given once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import phrases

if TYPE_CHECKING:
    from .loader import Loader


UNCOMMITTED = 64  # batches; loops that take some ahead have fewer


class Doubts:
    """The facts that a loader knows about its loop. @gradients: None if they are not known."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._modes: set[bool | None] = set()  # of batches since the last seek: with gradients?
        self._repeats = False  # this is another pass with gradients
        self._handled = 0  # the exception that was handled when the last batch was asked for
        self._held = False  # the loop has that batch
        self._saved = -1, 0  # position and `taken` of the last state after a commit()

    def warn(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            phrases.warn(text)

    def sought(self, again: bool) -> None:
        """After a seek, or (@again) at the beginning of another pass."""
        self._repeats, self._modes, self._held = again and True in self._modes, set(), False

    def is_left(self, gradients: bool | None) -> bool:
        """Whether an evaluation has left its pass, and begins the next."""
        return gradients is False and self._modes == {False}

    def look(self, stream: str, gradients: bool | None) -> None:
        """A batch is asked for, so the step of the one before is complete."""
        self._held, self._handled = False, id(sys.exc_info()[1])
        if gradients is None or gradients in self._modes:
            return
        if (not gradients) in self._modes:
            self.warn(
                "modes",
                f"batches of stream {stream!r} are taken with gradients and under no_grad(); the "
                "state counts all as trained on, so the run loses the rows of the evaluation; "
                "evaluate with another Loader, of a finite stream or with another run=; if this "
                "one is for evaluation only, take all its batches under no_grad()",
            )
        elif gradients and self._repeats:
            self.warn(
                "again",
                f"another pass over stream {stream!r} with gradients has the rows of the first in "
                "the same order; to train on epochs that are each shuffled anew, set epochs: to "
                "their number in its config; evaluate under torch.no_grad()",
            )

    def found(self, loader: Loader, gradients: bool | None, valid: int) -> None:
        """It is there. @valid: its rows without padding."""
        self._held = True
        self._modes.add(gradients)
        if valid == 0 and gradients:
            rows = loader.micro_batch * loader.world
            self.warn(
                "padding",
                f"the last batch of stream {loader.stream!r} is padding only on rank {loader.rank} "
                f"of {loader.world}, so the mean of its losses is NaN; divide the sum of losses, "
                'cross_entropy(…, reduction="sum"), by the number of labels other than -100 on all '
                "ranks; or leave that batch out on all ranks, with samples: "
                f"{loader.taken // rows * rows} in the config",
            )

    def saved(self, loader: Loader, commits: bool) -> None:
        """The state is asked for. @commits: it is that of the last commit()."""
        if commits:
            self._committed(loader)
            return
        # an exception since the last batch may have ended its step
        error = sys.exc_info()[1]
        ends = error is None or isinstance(error, (StopIteration, GeneratorExit))
        if self._held and not ends and id(error) != self._handled:
            self.warn(
                "save",
                f"state_dict() is called while {type(error).__name__} is handled, and counts the "
                f"batch taken last, up to position {loader.taken}, as trained on; if its "
                "step was not complete, a resume loses these rows; save after a step, or call "
                "commit() after each step: the state is then that of the last complete step",
            )

    def _committed(self, loader: Loader) -> None:
        """Two states are equal, and many batches were taken in between."""
        (at, taken), self._saved = self._saved, (loader.position, loader.taken)
        batches = (loader.taken - taken) // (loader.micro_batch * loader.world)
        if at == loader.position and batches >= UNCOMMITTED:
            self.warn(
                "commit",
                f"the state is again that of position {at}, because commit() was not called for "
                f"the {batches} batches since; a resume repeats their rows; call it after each "
                "step",
            )
