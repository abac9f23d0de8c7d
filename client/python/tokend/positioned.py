"""Where a loader is in its run, and every way to be elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import _tokend, arguments, same_place
from . import group as groups
from .cursor import Cursor, named_weights

SAME: Any = object()  # seek()'s group unless another one is named


class Positioned:
    """What a Loader inherits: its state, its position, commit() and seek()."""

    _client: Any
    _control: Any
    _ahead: Any
    _batches: Any
    _rank: int
    _world: int
    _peer: int
    _micro: int
    _alone: bool
    _asks: Callable[..., bool]
    _begun: Callable[[bytes | None], None]
    _in_agreement: Callable[..., None]
    _measure: Callable[[], None]
    _measured: Callable[[], Any]

    # ---- where we are ----

    def state_dict(self) -> dict[str, bytes]:
        """{"cursor": bytes}: before the first batch, too, and from any thread."""
        return {"cursor": self._client.cursor()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from what state_dict() gave, on any rank of any world; with a group all its
        processes do so together.

        ArgumentError if it is no loader's state, RefusedError if it is of another stream (names the
        field).
        """
        self._go(lambda: arguments.cursor_of(state_dict))

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        """How many data-parallel ranks there are."""
        return self._world

    @property
    def cursor(self) -> Cursor:
        """The same as a Cursor, to look at and to edit."""
        return Cursor(self._client.cursor())

    def fresh(self) -> Cursor:
        """The Cursor at the stream's beginning, with all datasets that the daemon's config has
        now.
        """
        return Cursor(self._client.stream())

    @property
    def position(self) -> int:
        """The first sample of the run that no rank has taken (or committed) yet."""
        return self._client.position()

    @property
    def taken(self) -> int:
        """The position behind the last batch taken, over all ranks: what commit() takes."""
        return self._measured().taken

    @property
    def fingerprint(self) -> int:
        """A number that is equal on all ranks at one step, or they are not of one job."""
        return self._client.fingerprint()

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, by the index in batches."""
        return self._client.datasets()

    def commit(self, next: int | None = None) -> None:
        """For trainers that fetch ahead: all batches up to the one behind which `taken` was @next
        have been trained on.

        Default: all that were taken. From the first call on, the state is that of the committed
        place.
        """
        if self._ahead is not None:
            raise _tokend.ArgumentError(
                f"commit: prefetched={self._ahead.n} commits by itself: make the loader without "
                "one of them"
            )
        self._client.commit(self.taken if next is None else next)

    def checkpoint(self, tag: str) -> str:
        """Has the daemon write the cursor durably under @tag; returns where. RefusedError: it could
        not, e.g. the disk is full.
        """
        if not isinstance(tag, str):
            raise TypeError(f"tag: {tag!r}, must be a text")
        return self._client.checkpoint(tag)

    # ---- going elsewhere ----

    def seek(
        self,
        cursor: Cursor | bytes | None = None,
        *,
        position: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        group: Any = SAME,
    ) -> None:
        """Goes on from another cursor or position (default: from here), as another rank, or with
        other batches.

        With a group all its processes do so together, and are compared as when they attached.
        group: the processes that go on; default those of before, but none where the world becomes
        another, as nobody can know who stays.
        """

        def to() -> bytes | None:
            if cursor is not None and position is not None:
                raise ValueError("cursor, position: give one of them")
            if position is not None:
                return _tokend.cursor_seek(self._client.cursor(), position)
            return None if cursor is None else arguments.cursor_bytes(cursor)

        self._go(to, rank, world, micro_batch, group)

    def _go(
        self,
        to: Callable[[], bytes | None],
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        group: Any = SAME,
    ) -> None:
        """@to is called where what it raises is told to the others."""
        rank = self._rank if rank is None else rank
        world = self._world if world is None else world
        micro_batch = self._micro if micro_batch is None else micro_batch
        self._control.finish()  # it speaks of the place that we leave
        control, alone = self._control, self._alone
        if group is not SAME:
            control, alone = control.over(groups.over(group)), group is not None or world == 1
        elif world != self._world:
            control, alone = control.over(None), max(world, groups.processes()) == 1

        def go() -> None:
            going, former = to(), self._batches
            if self._asks(control.group):  # one may seek while another makes its loader
                same_place.check_places(control.group, rank, world, self._peer, micro_batch)
            # from here on batches may be of another shape, and no longer fit into the former one's
            # memory
            self._batches = None
            try:
                self._client.seek(going, rank, world, micro_batch)
            except _tokend.Error:
                self._batches = former
                raise
            self._rank, self._world, self._micro = rank, world, micro_batch
            self._begun(going)
            self._measure()  # before the others are asked: whatever they say, this is where we are

        self._in_agreement(control.group, go)
        self._control, self._alone = control, alone

    def set_mix(self, weights: Mapping[str, float]) -> int:
        """New weights by dataset name, the same call on all ranks; returns the position from which
        they act.
        """
        weights = named_weights(weights)
        acts_from = self._client.set_mix(list(weights), list(weights.values()))
        self._measure()
        return acts_from
