"""The part of a Loader that checks its arguments, attaches, and adapts to the batches' shape."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _tokend, arguments, arrays, job
from . import group as groups
from .batch import Batches, Wanted
from .first import First, Later, check_worker

if TYPE_CHECKING:
    from .batch import Source
    from .control import Control


class Attached:
    """A Loader inherits this."""

    _client: Any = None
    _source: Any = None  # batch.Source, of transforms
    _feed: Any = None
    _ahead: Any = None  # passes.Prefetched
    _first: First | Later | None = None  # until the second batch
    _ended = False  # next() has raised StopIteration
    _modes = 0  # of the batches since the last seek; 1: under no_grad(), 2: with gradients
    _repeats = False  # the last pass was one with gradients
    _labels_meant = False  # shift_labels was passed, or its absence was looked at
    _said: frozenset[str] = frozenset()  # warnings that are given once
    _passes = 0  # how often it began again at position 0
    _pass: weakref.ref[Any] | None = None  # the last pass that took a batch
    _pass_begin = 0  # its position then, or that of the last seek
    _dealt_ahead = False  # accelerate's DataLoader has taken a batch ahead
    _inside = 0.0  # seconds in next()
    _before = 0  # the position when next() was called last
    _handled = 0  # id() of the exception that was handled then
    _batches: Batches | None = None

    def _open(self, asked: Any) -> None:
        """@asked: the arguments of Loader."""
        if asked.rank is None:
            check_worker()
        self._agree = asked.agree
        self._rank, self._world, self._peer = 0, 1, asked.peer
        self._patience = patience = arguments.unchecked_deadline(asked.deadline)
        group = asked.group
        if group is None and asked.agree and asked.rank is None and asked.world is None:
            group = groups.of_all(patience)
        together = groups.over(group)
        self._in_agreement(together, lambda: self._begin(asked, together), patience)
        self._together = together
        path = os.path.realpath(self._session["socket"])
        self._daemon = zlib.crc32(f"{os.uname().nodename} {path}".encode(errors="surrogateescape"))
        # used by control() if there is no `together`
        self._alone = group is not None or max(self._world, groups.processes()) == 1
        assumed = asked.mesh is None and asked.rank is None
        self._first = First(assumed, asked.stream, self._client.run(), self._rank, self._world)

    def _meet_late(self) -> None:
        """Before the first batch: a group that was initialised since the loader was made."""
        group = groups.of_all(self._patience) if self._agree and self._together is None else None
        if group is None:
            return
        from . import same_place

        together = groups.over(group)
        self._in_agreement(
            together,
            lambda: same_place.check_places(
                together, self._rank, self._world, self._peer, self._micro
            ),
            self._patience,
        )
        self._together = together
        if "_control" in vars(self):
            self._control = self._control.over(together)

    @functools.cached_property
    def _control(self) -> Control:
        from .control import Control

        return Control(self._client, self._together, self._daemon | 1 << 32)

    def _begin(self, asked: Any, together: groups.Group | None) -> None:
        """Everything that can fail in this process alone. The others wait for its result."""
        arguments.check(asked)
        self._make = arrays.framework(asked.framework)
        self._has_gradients = self._make.has_gradients
        self._labels_meant = asked.shift_labels is not None
        there = arguments.cuda(asked.device, self._make)
        types = arrays.types(self._make, asked.dtype, asked.tokens)
        place = arguments.place(asked.mesh, asked.rank, asked.world, asked.peer)
        self._rank, self._world, self._peer = place[:3]
        share = arguments.cp_slice(asked.cp, place, asked.mesh is not None)
        self._micro = arguments.micro_batch(asked.micro_batch)
        if self._asks(together):
            from . import same_place

            same_place.check_places(together, self._rank, self._world, self._peer, self._micro)
        self._attach(asked)
        if asked.view:
            self._client.lend(asked.hold)
        if asked.documents:
            self._client.need_documents()
        if asked.record is not None:
            self._client.record(
                arguments.record_path(asked.record, self._client.run(), self._rank, self._peer)
            )
        self._wanted = Wanted(asked, share, types, there)
        if asked.prefetched:
            from .passes import Prefetched

            self._ahead = Prefetched(asked.prefetched, self._client)
        if asked.transform is not None:
            self._source = self._transforms(asked)
        self._measure()

    def _attach(self, asked: Any) -> None:
        run = asked.run or job.token()
        self._session = {
            "stream": asked.stream,
            **arguments.reach(asked.socket, asked.config, asked.deadline),
            "run": run,
            "peer": self._peer,
            "slots": asked.slots,
        }
        self._client = _tokend.Client(
            micro_batch=self._micro,
            rank=self._rank,
            world=self._world,
            strict=arguments.strict(asked.strict, run),
            max_wait_ms=asked.max_wait and arguments.milliseconds(asked.max_wait),
            **arguments.where(asked.start),
            **self._session,
        )
        # for the workers, even if the file is edited meanwhile
        self._session |= {"socket": self._client.socket(), "config": self._client.config()}

    def _transforms(self, asked: Any) -> Source:
        from . import transform as transforms
        from .cursor import Cursor

        seed = Cursor(self._client.cursor()).seed
        greatest = transforms.greatest(self._wanted.types)
        if not asked.workers:
            return transforms.InProcess(
                self._client, transforms.Transform(asked.transform, seed, greatest)
            )
        from .workers import Workers

        return Workers(
            self._client,
            asked.workers,
            asked.transform,
            seed,
            self._session,
            greatest,
            asked.max_wait,
        )

    # ---- the other processes of the job ----

    def _asks(self, together: groups.Group | None) -> bool:
        return together is not None and self._agree and not together.gone()

    def _in_agreement(
        self,
        together: groups.Group | None,
        go: Callable[[], None],
        patience: float = groups.PATIENCE_S,
    ) -> None:
        """Calls go() on all processes, then compares them. A process that fails reports to the
        others before it raises.
        """
        if not self._asks(together):
            go()
            return
        from . import same_place

        together.meet(patience)  # type: ignore[union-attr]
        try:
            go()
        except same_place.DisagreementError:  # raised by all
            raise
        except Exception as error:
            # the others raise it; here the cause is raised
            with contextlib.suppress(same_place.DisagreementError):
                same_place.check(together, None, self._peer, error)
            raise
        same_place.check(together, self._client, self._peer)

    def _measure(self) -> None:
        """Adapts to the shape of the batches, which an attach or a seek may change."""
        if self._source is not None:
            self._source.begin()
        if self._wanted.device is not None and self._source is None:
            self._feed_device()
        self._batches = Batches(self._client, self._make, self._wanted, self._source, self._feed)

    def _measured(self) -> Batches:
        if self._batches is None:  # a seek succeeded, and _measure() after it did not
            self._measure()
        return self._batches  # type: ignore[return-value]

    def _feed_device(self) -> None:
        if self._feed is not None:
            self._feed.begin(self._client.shape())
            return
        from .device import Feed

        split, types = not self._wanted.tokens, self._wanted.types
        self._feed = Feed(
            self._client,
            self._client.shape(),
            self._wanted.device,
            types.tokens,
            split=split,
            labels=types.labels,
        )
