"""The part of a Loader that knows its position: state, commit(), seek() and set_mix()."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import tokend

from . import _tokend, arguments, phrases
from . import group as groups
from .cursor import SEEK, edited

SAME: Any = object()  # seek(group=): not given


class Positioned:
    """A Loader inherits this."""

    _client: Any
    _control: Any
    _ahead: Any
    _batches: Any
    _ended: bool
    _modes: int
    _dealt_ahead: bool
    _rank: int
    _world: int
    _peer: int
    _micro: int
    _alone: bool
    _passes: int
    _pass_begin: int
    _before: int
    _session: dict[str, Any]
    _asks: Callable[..., bool]
    _in_agreement: Callable[..., None]
    _measure: Callable[[], None]
    _measured: Callable[[], Any]
    _commits = False  # commit() was called

    # ---- state and position ----

    def state_dict(self) -> dict[str, bytes]:
        """Returns {"cursor": bytes}, equal on all ranks after the same step.

        May be called from any thread, also before the first batch and after an error of next().
        It counts the batch taken last. So if it is called in a signal's handler, or while an
        exception is handled that a step raised, it warns once. After commit() it does not.

        Raises:
            Error: the loader is closed.
            ArgumentError: accelerate's DataLoader has taken a batch ahead, or accelerate is in the
                middle of a gradient accumulation: a resume would lose batches. Not after commit().
        """
        if not self._commits and "accelerate" in sys.modules:
            from . import accelerated

            accelerated.check_who_saves(self._dealt_ahead and self._ahead is None, self._ended)
        if not (self._commits or self._ahead):
            from .passes import warn_of_a_save

            warn_of_a_save(self)
        return {"cursor": self._client.cursor()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to where state_dict() was called, on any rank of any world.

        With a group all its processes call this together: see seek().

        >>> with Loader("train", micro_batch=4) as loader:
        ...     batch, state = next(loader), loader.state_dict()
        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.load_state_dict(state)
        ...     loader.position
        4

        Raises:
            ArgumentError: this is not the state of a Loader.
            RefusedError: it belongs to another stream. Names the field that differs.
            DisagreementError: the processes of the group loaded different states.
        """
        if self._ahead is not None and not self._ended:  # after the end the loop holds nothing
            self._ahead.warn_of_a_load()
        if "accelerate" in sys.modules:
            from . import accelerated

            accelerated.begin_a_step()
        self._go(lambda: arguments.cursor_of(state_dict))

    def reset(self, state: Mapping[str, Any] | None = None) -> None:
        """Begins again at position 0, or at a state_dict(), like the nodes of torchdata.

        For a loop that reads only a part of a finite stream, for example to validate. `for` over a
        whole stream needs no reset; with gradients, one in progress continues there. With a group
        all its processes call this together: see seek().

        >>> with Loader("finite", micro_batch=8) as validation:
        ...     for _ in range(2):
        ...         validation.reset()
        ...         next(validation)["position"].tolist()[:3]
        [0, 1, 2]
        [0, 1, 2]

        At position 0 another pass begins: in a record, the batches taken before stay valid. After
        seek(position=0) they are void, as if they had never been trained on.

        Raises: what load_state_dict() raises.
        """
        if state is not None:
            self.load_state_dict(state)
        else:
            self._go(self._beginning, again=True)

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._session["stream"]  # type: ignore[no-any-return]

    @property
    def run(self) -> str:
        """The run's name, also if the launcher gave it."""
        return self._client.run()

    @property
    def micro_batch(self) -> int:
        """The rows of a batch."""
        return self._micro

    @property
    def batch_size(self) -> int:
        """The same, by PyTorch's name."""
        return self._micro

    @property
    def seq_len(self) -> int:
        """The stream's seq_len: the inputs of a row. With cp a batch has a part of them."""
        return self._measured().seq  # type: ignore[no-any-return]

    @property
    def rank(self) -> int:
        """This process's data-parallel rank."""
        return self._rank

    @property
    def world(self) -> int:
        """The number of data-parallel ranks."""
        return self._world

    @property
    def cursor(self) -> tokend.Cursor:
        """The state as a Cursor, to look at and to edit."""
        from .cursor import Cursor

        return Cursor(self._client.cursor())

    def fresh(self) -> tokend.Cursor:
        """Returns the Cursor of position 0, with all datasets of the daemon's config.

        Raises:
            ConnectError: no daemon answers.
        """
        from .cursor import Cursor

        return Cursor(self._client.stream())

    @property
    def position(self) -> int:
        """The first sample of the run that no rank has taken yet (committed, after commit())."""
        return self._client.position()

    @property
    def taken(self) -> int:
        """The position after the last batch taken, over all ranks: an argument for commit()."""
        return self._client.taken()

    @property
    def fingerprint(self) -> int:
        """A number that is equal on all ranks at the same step of one job."""
        return self._client.fingerprint()

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, by the index in batches."""
        return self._client.datasets()

    @property
    def mix(self) -> dict[str, float]:
        """The mix in force at this position: each dataset's share, from 0 to 1, with 9 digits.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.mix
        {'web': 0.7, 'code': 0.3}
        """
        weights = self.cursor.segments[0]["weights"]
        return {name: float(f"{share:.9g}") for name, share in weights.items()}

    def commit(self, next: int | None = None) -> None:
        """Says that all batches up to a value of `taken` have been trained on.

        From the first call on, the state is that of the committed position. For loops that take
        batches ahead of their step.

        >>> loader = Loader("train", micro_batch=4)
        >>> loader.commit()              # nothing is trained on yet
        >>> first, taken = next(loader), loader.taken
        >>> second = next(loader)        # taken ahead
        >>> loader.commit(taken)         # the step trained on the first
        >>> loader.position
        4
        >>> loader.close()

        Args:
            next: what `taken` was after the last batch that was trained on. Default: all batches
                taken.

        Raises:
            ArgumentError: `taken` never had this value since the last commit, the loader has
                prefetched=, or the record cannot be written.
        """
        if self._ahead is not None:
            raise _tokend.ArgumentError(
                f"commit: the loader commits by itself (prefetched={self._ahead.n}); "
                "omit prefetched= or commit()"
            )
        self._client.commit(self.taken if next is None else next)
        self._commits = True

    def checkpoint(self, tag: str) -> str:
        """Has the daemon write the cursor durably; returns the path of the file.

        Loader(start=tag) begins there. This is a second copy: your model's checkpoint has its own.

        Args:
            tag: a name of 1 to 64 bytes, without '/', control characters or a leading dot

        Raises:
            TypeError, ArgumentError: this is not a tag.
            RefusedError: the daemon could not write it, for example because the disk is full. A
                former checkpoint of this tag is still valid.
            ConnectError: no daemon answers within `deadline`.
        """
        if not isinstance(tag, str):
            raise TypeError(phrases.is_not("tag", tag, "a string"))
        return self._client.checkpoint(tag)

    # ---- seeks and mixes ----

    def seek(
        self,
        cursor: tokend.Cursor | bytes | None = None,
        *,
        position: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        group: Any = SAME,
    ) -> None:
        """Continues at another cursor or position, as another rank, or with other batches.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.seek(position=1000, micro_batch=2)
        ...     next(loader)["position"].tolist()
        [1000, 1001]

        With a group all its processes call this together. They are compared as in the constructor.

        Args:
            cursor, position: where to continue. Default: here.
            rank, world, micro_batch: Default: those of before.
            group: the processes that continue. Default: those of before; none if world changes,
                because the loader cannot know which processes stay.

        Raises:
            ValueError, TypeError: an argument is impossible, or the position is outside of the
                stream. ArgumentError is a ValueError.
            RefusedError: the cursor belongs to another stream. Names the field that differs.
            DisagreementError: the processes of the group are not at one cursor.
            ConnectError: no daemon answers within `deadline`.

        After an ArgumentError or a RefusedError the loader is where it was.
        """

        def to() -> bytes | None:
            if cursor is not None and position is not None:
                raise ValueError(f"cursor, position: {phrases.PASS_ONE}")
            if position is not None:
                return edited(SEEK, self._client.cursor(), position)
            return None if cursor is None else arguments.cursor_bytes(cursor)

        self._go(to, rank, world, micro_batch, group)

    def _go(
        self,
        to: Callable[[], bytes | None],
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        group: Any = SAME,
        again: bool = False,
    ) -> None:
        """@to gives the cursor. Its errors reach all processes of the group. @again: it is the
        beginning of another pass.
        """
        rank = self._rank if rank is None else rank
        world = self._world if world is None else world
        micro_batch = self._micro if micro_batch is None else arguments.micro_batch(micro_batch)
        self._control.finish()  # its answer has the position before the seek
        control, alone = self._control, self._alone
        if group is not SAME:
            control, alone = control.over(groups.over(group)), group is not None or world == 1
        elif world != self._world:
            control, alone = control.over(None), max(world, groups.processes()) == 1
        elif control.stopping:  # it goes on after a drain or rescale, and takes requests again
            control = control.over(control.group)

        def go() -> None:
            going = to()
            if self._asks(control.group):  # the others may be making their loaders
                from . import same_place

                same_place.check_places(control.group, rank, world, self._peer, micro_batch)
            # even if the others fail, this process is there
            self._go_alone(going, rank, world, micro_batch, again)

        self._in_agreement(control.group, go)
        self._control, self._alone = control, alone

    def _go_alone(
        self, cursor: bytes | None, rank: int, world: int, micro_batch: int, again: bool
    ) -> None:
        """Without asking other processes. @cursor None: stays here, and batches that are taken but
        not trained on stay uncommitted.
        """
        former, self._batches = self._batches, None  # batches may have another shape now
        taken = former is not None and former.taken > former.begin
        try:
            self._client.seek(cursor, rank, world, micro_batch, again)
        except _tokend.Error:
            self._batches = former
            raise
        self._rank, self._world, self._micro = rank, world, micro_batch
        self._ended = False
        self._repeats, self._modes = again and taken and self._modes > 1, 0
        self._before = self._client.taken()
        if self._ahead is not None and cursor is not None:
            self._ahead.begin()
        self._measure()
        self._pass_begin = self.taken

    def _beginning(self) -> bytes:
        """The cursor of position 0, for another pass. The batches that the loop holds count as
        trained on.
        """
        if self._ahead is not None:
            self._client.commit(self._client.taken())
        return edited(SEEK, self._client.cursor(), 0)

    def _begin_again(self) -> None:
        """Begins another pass, for its first batch: each process for itself."""
        if "_control" in vars(self):  # it is made at its first use
            self._control.finish()
        self._go_alone(self._beginning(), self._rank, self._world, self._micro, True)
        self._passes += 1

    def set_mix(self, weights: Mapping[str, float]) -> int:
        """Sets new weights by dataset name; returns the position from which they act.

        All ranks make the same call at the same step. Datasets that are not named get weight 0.
        The position is the next multiple of 1024 samples. A pending mix is replaced.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     batch = next(loader)
        ...     loader.set_mix({"web": 0.5, "code": 0.5})
        1024

        Raises:
            TypeError: weights is not a dict of numbers by name.
            ArgumentError: an unknown dataset, an impossible weight, or a stream with epochs.
            NotNowError: more mixes have begun since the last commit than a cursor can hold.
            ConnectError: no daemon answers within `deadline`.
        """
        from .cursor import named_weights

        weights = named_weights(weights)
        acts_from = self._client.set_mix(list(weights), list(weights.values()))
        self._measure()
        return acts_from
