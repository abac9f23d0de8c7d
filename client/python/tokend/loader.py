"""The loader: an iterator of batches whose whole state is one cursor."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _tokend, arguments, parallel, phrases
from . import batch as batches
from . import device as devices
from . import group as groups
from . import transform as transforms
from .batch import Batch, Batches, Wanted
from .cursor import SEEK, Cursor, cursor_of, edited, integer, named_weights
from .doubts import Doubts
from .errors import ArgumentError, Error
from .requests import Control, Request

COUNTERS = ("batches", "tokens", "waited_s", "reattached", "lost_wakes")
SAME: Any = "same"  # seek(group=): not given


class Loader:
    """Iterates over the micro-batches of one stream, for one data-parallel rank.

    >>> with Loader("train", micro_batch=4) as loader:
    ...     for step, batch in zip(range(10), loader):
    ...         input_ids, labels = batch["input_ids"], batch["labels"]
    ...     state = loader.state_dict()  # store it in the model's checkpoint
    >>> with Loader("train", micro_batch=2, rank=1, world=3, start=state) as resumed:
    ...     next(resumed)["position"].tolist()  # the rows' numbers in the run
    [42, 43]

    Which data
      stream       name of the stream in the daemon's config
      micro_batch  rows per batch, 1 to 65536
      socket       the daemon's. Default: $TOKEND_SOCKET, this user's daemon's, or the node's
      config       a config file, instead of socket: a private daemon is started for it
      start        first sample: "begin" (default), a position, a cursor, a state_dict(), or the
                   tag of a checkpoint ("TAG" or "RUN/TAG")
    Which process of the job: see tokend.parallel
      rank, world  data-parallel rank and number of ranks. Default: the mesh's or the launcher's
      mesh         a DeviceMesh or JAX's Mesh: gives rank, world and peer
      peer         number of this process among those that read the same rows; from 0
      run          name of the job. Default: the launcher's, otherwise "default". In a named run
                   under a launcher a second process for this rank and peer waits for the first's
                   end, up to `deadline`; otherwise, and with group=False, both are warned
      group        a gloo group of all processes that read this stream. They make loaders, seek,
                   load states and reset together, and compare cursors and ranks. Default: one
                   made here, if torch.distributed gives the ranks. False: none
    Contents of a batch: see tokend.Batch
      framework    "torch" or "numpy". Default: torch if it is installed
      dtype        int64 (default) or int32, of input_ids; by key {"input_ids": …, "labels": …}
      documents, loss_mask, shift_labels, provenance    True: add these keys
      cp           "zigzag" or "contiguous": give only this context-parallel rank's slice of each
                   row, by the mesh's dim cp; otherwise (rank, size, kind), with rank= and world=
      device       "cpu" (default) or "cuda[:N]": see tokend.device
      transform    f(tokens, position, rng), a pure function of one row: see tokend.transform
      workers      number of processes that run it ahead of the trainer; 0 (default): this one
    State and robustness
      record       a directory: each process records there what it takes, 16 bytes a row, from the
                   first commit() on what is committed, for `tokctl verify`
      deadline     seconds to wait for a daemon and, in the constructor, for the group (default:
                   300; 5 if nobody listens at first), and for a batch (default: math.inf)
      slots        batches to read ahead. 0 (default): the daemon chooses

    `for batch in loader` ends where a finite stream ends, and the next `for` begins again at
    position 0, in the same order, as does another Loader. A `for` that was left is continued by the
    next, but that of a finite stream begins again if all its batches were taken under
    torch.no_grad(): call reset() before. One thread takes batches; others may call state_dict().

    The constructor raises ValueError (mostly ArgumentError), TypeError or ImportError: an argument
    is impossible; ConnectError: no daemon answers; RefusedError: the daemon refuses; ResourceError:
    no memory or file descriptors are left; DisagreementError, on all: the processes of the group do
    not fit; Error: some of them did not come, or the private daemon did not start.
    """

    def __init__(
        self,
        stream: str,
        micro_batch: int,
        *,
        socket: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        start: Any = "begin",
        rank: int | None = None,
        world: int | None = None,
        mesh: Any = None,
        peer: int = 0,
        run: str | None = None,
        group: Any = None,
        framework: str | None = None,
        dtype: Any = None,
        documents: bool = False,
        loss_mask: bool = False,
        shift_labels: bool = False,
        provenance: bool = False,
        cp: Any = None,
        device: Any = None,
        transform: Callable[..., Any] | None = None,
        workers: int = 0,
        record: str | os.PathLike[str] | None = None,
        deadline: float | None = None,
        slots: int = 0,
    ) -> None:
        if rank is None:
            parallel.refuse_workers()
        self._stream = stream
        self._client: Any = None
        self._workers: Any = None
        # as compared with that of the other processes
        self._place = {"rank": 0, "peer": peer, "world": 1, "micro_batch": 0}
        self._inside = 0.0  # seconds in next()
        self._ended = False  # next() has raised StopIteration
        self._commits = False  # commit() was called
        self._doubts, self._thread = Doubts(), threading.get_ident()
        self._pass: weakref.ref[_Pass] | None = None  # the last one that took a batch
        # a deadline that is impossible is reported when the others have come
        usable = isinstance(deadline, (int, float)) and deadline > 0
        self._patience: Any = deadline if usable else arguments.DEADLINE_S
        self._may_meet = group is None and rank is None and world is None
        try:
            together = groups.of_all(self._patience) if self._may_meet else groups.over(group)
            with self._agreed(together, self._patience):
                if not usable and deadline is not None:
                    what = "a number of seconds above 0"
                    raise ValueError(phrases.is_not("deadline", deadline, what))
                wait = None if deadline in (None, math.inf) else deadline
                make, types = batches.framework(framework), batches.types(dtype)
                there = devices.cuda(device, make)
                at = parallel.locate(mesh, rank, world, peer)
                part = batches.cp_slice(cp, at.cp)
                parallel.check_slices(at, part, rank is not None)
                self._place = {
                    "rank": at.rank,
                    "peer": integer("peer", at.peer, arguments.MOST_32),
                    "world": at.world,
                    "micro_batch": arguments.micro_batch(micro_batch),
                }
                groups.compare(together, self._place)
                name = arguments.text("run", run) if run else parallel.token()
                session = {
                    "stream": arguments.text("stream", stream),
                    "run": name,
                    "peer": self._place["peer"],
                    "slots": integer("slots", slots, arguments.MOST_32),
                    **arguments.reach(socket, config, deadline),
                }
                self._client = _tokend.Client(
                    micro_batch=self.micro_batch,
                    rank=self.rank,
                    world=self.world,
                    # a second process of this rank is refused: it is a mistake, or left over
                    strict=group is not False and bool(name) and parallel.launched() is not None,
                    max_wait_ms=0 if wait is None else arguments.milliseconds(wait),
                    **arguments.where(start),
                    **session,
                )
                made = None
                if transform is not None:
                    seed = self.cursor.to_dict()["seed"]
                    made = transforms.Transform(transform, seed, types)
                    if workers:
                        from .workers import Workers  # imports torch

                        self._workers = Workers(self._client, workers, made, session, wait)
                elif workers:
                    raise ValueError(f"workers: {workers} without a transform; pass transform=")
                wanted = Wanted(
                    make, types, documents, loss_mask, shift_labels, provenance, part, there
                )
                self._batches = Batches(self._client, wanted, made, self._workers)
                if record is not None:
                    path = arguments.record_path(record, self.run, self.rank, at.peer)
                    self._client.record(path)
        except BaseException:
            self.close()
            raise
        self._control = Control(self._client, together)
        self._pass_begin = self.taken  # where the last pass began, or the last seek went
        self._everyone: Callable[[], Any] = lambda: self  # at the last check; there was none
        self._made = parallel.Made(rank is not None, at, stream, self.run)

    # ---- the other processes of the job ----

    @contextlib.contextmanager
    def _agreed(self, together: Any, patience: float = groups.PATIENCE_S) -> Iterator[None]:
        """A block that all processes of the group run, and then compare. A process that fails
        reports to the others before it raises.
        """
        if together is None or together.gone():
            yield
            return
        together.meet(patience)
        try:
            yield
        except groups.DisagreementError:  # raised by all
            raise
        except Exception as error:
            # the others raise it; here the cause is raised
            with contextlib.suppress(groups.DisagreementError):
                groups.compare(together, self._place, error=error)
            raise
        groups.compare(together, self._place, self._client)

    def _check_made(self) -> None:
        """A group may have been initialised since the loader was made, or since the last check."""
        former = self._control.group
        lost = self._may_meet and (former is None or former.gone())
        if self._made.check(self.rank, self.world) and lost:
            together = groups.of_all(self._patience)
            with self._agreed(together, self._patience):
                groups.compare(together, self._place)  # the others may be making their loaders
            if together is not former:
                self._control.begin(together)
        now = groups.everyone()
        # the loader does not keep a group alive
        self._everyone = (lambda: now) if isinstance(now, int | None) else weakref.ref(now)

    # ---- batches ----

    def __iter__(self) -> Iterator[Batch]:
        """A pass from here to the stream's end; after the last batch, one from position 0."""
        return _Pass(self)

    def __next__(self) -> Batch:
        """Returns the next batch. Waits if none is ready. Raises StopIteration at the end.

        DataError: a shard cannot be read; ConnectError: a lost daemon did not come back;
        RefusedError: its config no longer fits. Then seek() continues. WaitError: no batch came
        within `deadline`; ArgumentError: a token does not fit dtype, the record cannot be written,
        or a torch.distributed or jax.distributed initialised since does not fit; TransformError;
        Error: of workers. Then the next call tries the same batch again: no batch is lost.
        """
        while True:
            batch, handle = self._look()
            try:
                # an assignment: a signal's handler that raises before it loses nothing
                self._client.takes = handle, self._batches.feed is not None
            except LookupError:  # another thread was faster, or a handler moved the loader
                continue
            return batch  # type: ignore[no-any-return]

    def _look(self) -> tuple[Any, int]:
        """The next batch, not yet taken, and its handle."""
        begin = time.perf_counter()
        if groups.everyone() is not self._everyone():
            self._check_made()
        gradients = self._gradients()
        self._doubts.look(self._stream, gradients)
        found = self._batches.look()
        self._inside += time.perf_counter() - begin
        if found is None:
            self._ended = True
            raise StopIteration
        batch, handle, valid = found
        self._doubts.found(self, gradients, valid)
        return batch, handle

    def _is_over(self) -> bool:
        """Whether the next `for` begins at position 0, because every batch was taken."""
        end = self._batches.end
        return self._ended or (end is not None and self._pass_begin < end <= self.taken)

    def _is_left(self) -> bool:
        """Whether it does because an evaluation has left its pass."""
        return self._batches.end is not None and self._doubts.is_left(self._gradients())

    def _gradients(self) -> bool | None:
        """Whether torch records gradients. None: unknown, because NumPy's batches may train another
        framework, or a thread that takes batches for the one that made the loader has a mode of its
        own. no_grad() counts in any thread.
        """
        records = getattr(sys.modules.get("torch"), "is_grad_enabled", None)  # if it is imported
        if records is not None and not records():
            return False
        of_torch = self._batches.wanted.make.name == "torch"
        return True if of_torch and threading.get_ident() == self._thread else None

    def _begin_again(self) -> None:
        """Begins another pass, for its first batch. No other process is asked, because all of them
        come here at the same step.
        """
        self._control.finish()
        self._move(None, edited(SEEK, self._client.cursor, 0), self._place, True)

    def _count(self, what: str, begin: int | None) -> int:
        """The batches of this rank from @begin, or from where the next `for` begins, to the end.
        @what: was asked, for an error.
        """
        end = self._batches.end
        if end is None:
            raise TypeError(
                f"{what}: the stream has no end; set epochs: or samples: in its config; a Loader "
                "replaces a DataLoader, and is not a dataset for one"
            )
        if begin is None:
            begin = 0 if self._is_over() or self._is_left() else self.taken
        return -(-(end - begin) // (self.world * self.micro_batch))

    def __len__(self) -> int:
        """How many batches `for batch in loader` gives: within the loop, from where it began;
        outside, from where the next begins. TypeError if the stream has no end.
        """
        within = self._pass is not None and self._pass() is not None and not self._ended
        return self._count("len", self._pass_begin if within else None)

    @property
    def batches_per_pass(self) -> int:
        """How many batches of this rank a pass from position 0 has; TypeError if it has no end."""
        return self._count("batches_per_pass", 0)

    def __bool__(self) -> bool:
        return True  # bool() would otherwise call len()

    # ---- state ----

    def state_dict(self) -> dict[str, bytes]:
        """Returns {"cursor": bytes}, equal on all ranks after the same step. It counts the batch
        taken last, or up to the last commit(): call it after a step, not where a step has raised,
        and not in a signal's handler.
        """
        self._doubts.saved(self, self._commits)
        return {"cursor": self._client.cursor}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to where state_dict() was called, on any rank of any world, as seek() does."""
        with self._moving() as together:
            self._move(together, cursor_of(state_dict), self._place)

    def reset(self, state: Mapping[str, Any] | None = None) -> None:
        """Begins again at a state_dict(); by default another pass at position 0: in a record, the
        batches taken before stay valid. After seek(position=0) they are void.
        """
        with self._moving() as together:
            again = state is None
            cursor = edited(SEEK, self._client.cursor, 0) if again else cursor_of(state)
            self._move(together, cursor, self._place, again)

    def commit(self, next: int | None = None) -> None:
        """Says that all batches up to a former value of `taken`, by default all, are trained on.
        From the first call on, the state is that of the committed position: for loops that take
        batches ahead of their step. They call it before the first batch, too.
        """
        self._commits = True
        self._client.commit(self.taken if next is None else integer("next", next))

    def checkpoint(self, tag: str) -> str:
        """Has the daemon store a copy of the cursor, for Loader(start=tag); returns its path.
        Raises RefusedError: it could not write it; ConnectError: no daemon answers.
        """
        return self._client.checkpoint(tag)  # type: ignore[no-any-return]

    # ---- seeks and mixes ----

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
        """Continues at another cursor or position, as another rank, or with other batches. The
        rest stays; but if world changes, the group is none, because the loader cannot know
        which processes stay. `group`: the processes that make this move and belong together from
        then on; None: none. All of them call this together.

        Raises ArgumentError: the position is outside of the stream; RefusedError: the cursor
        belongs to another stream. The loader is then where it was. DisagreementError: another
        process could not move, or goes elsewhere; ConnectError: seek again, in all of them.
        """
        with self._moving(world, group) as together:
            place = dict(self._place)
            for name, value in (("rank", rank), ("world", world)):
                if value is not None:
                    place[name] = integer(name, value)
            if micro_batch is not None:
                place["micro_batch"] = arguments.micro_batch(micro_batch)
            self._move(together, arguments.target(self._client.cursor, cursor, position), place)

    @contextlib.contextmanager
    def _moving(self, world: int | None = None, group: Any = SAME) -> Iterator[Any]:
        """A move of all processes of the group that then is the loader's. Gives it as a Group."""
        self._control.finish()  # its answer has the position before the seek
        together = self._control.group
        if group is not SAME:
            together = groups.over(group)
        elif world is not None and world != self.world:
            together = None
        with self._agreed(together):
            yield together
        if together is not self._control.group or self._control.stopping:
            self._control.begin(together)

    def _move(
        self, together: Any, cursor: bytes | None, place: dict[str, int], again: bool = False
    ) -> None:
        """Moves this process, after all in @together have compared their places. @cursor None: it
        stays, and batches that are taken but not trained on stay uncommitted. @again: it is the
        beginning of another pass.
        """
        groups.compare(together, place)  # the others may be making their loaders
        # even if the others fail, this process is there
        self._client.seek(cursor, place["rank"], place["world"], place["micro_batch"], again)
        self._place = place
        self._ended, self._pass_begin = False, self.taken
        self._doubts.sought(again)

    def set_mix(self, weights: Mapping[str, float]) -> int:
        """Sets new weights by dataset name, otherwise 0; returns the position from which they act,
        the next multiple of 1024. All ranks make the same call at the same step. Raises
        ArgumentError: an unknown dataset, an impossible weight, or a stream with epochs;
        DisagreementError: another process could not, or its shards differ. The mix then stays.
        """
        try:
            with self._agreed(self._control.group):
                return self._client.set_mix(named_weights(weights))  # type: ignore[no-any-return]
        except groups.DisagreementError:
            self._client.undo()
            raise

    # ---- where it is ----

    @property
    def run(self) -> str:
        """The run's name, also if the launcher gave it."""
        return self._client.shape()["run"]  # type: ignore[no-any-return]

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def micro_batch(self) -> int:
        return self._place["micro_batch"]

    batch_size = micro_batch  # PyTorch's name

    @property
    def seq_len(self) -> int:
        """The stream's seq_len: the inputs of a row. With cp a batch has a part of them."""
        return self._batches.seq

    @property
    def rank(self) -> int:
        return self._place["rank"]

    @property
    def world(self) -> int:
        return self._place["world"]

    @property
    def cursor(self) -> Cursor:
        """The state as a Cursor, to look at and to edit."""
        return Cursor(self._client.cursor)

    @property
    def position(self) -> int:
        """The first sample of the run that no rank has taken yet (committed, after commit())."""
        return self._client.position  # type: ignore[no-any-return]

    @property
    def taken(self) -> int:
        """The position after the last batch taken, over all ranks: an argument for commit()."""
        return self._client.taken  # type: ignore[no-any-return]

    @property
    def fingerprint(self) -> int:
        """A number that is equal on all ranks at the same step of one job."""
        return self._client.fingerprint  # type: ignore[no-any-return]

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, by the index in batches."""
        return self.cursor.datasets

    @property
    def mix(self) -> dict[str, float]:
        """The mix in force at this position: each dataset's share, from 0 to 1, with 9 digits."""
        weights = self.cursor.segments[0]["weights"]
        return {name: float(f"{share:.9g}") for name, share in weights.items()}

    # ---- for operators and loggers ----

    def control(self) -> Request | None:
        """Carries out an operator's request (tokctl mix, skip, checkpoint, drain, rescale).

        All processes of the job call it after every step. About once a second, or every 64 steps,
        they look for a request together, by an all-reduce of 32 bytes. Returns a Request, or None.
        If it is true, save the model, then call its done(), in all processes. ArgumentError: the
        job has several processes, and the loader has no group of them.
        """
        processes = max(self.world, groups.processes())
        if self._control.group is None and processes > 1:
            raise ArgumentError(
                f"control: rank {self.rank} of {self.world} in a job of {processes} processes has "
                "no group of them; pass group=, a gloo group of all processes that read this "
                "stream (in JAX as in tokend's example train_jax.py)"
            )
        return self._control.step()

    @property
    def should_stop(self) -> bool:
        """True from the control() that returns a drain or rescale to a seek(): leave the loop."""
        return self._control.stopping

    def stats(self) -> dict[str, float]:
        """Counters of this process since the loader was made: batches and tokens taken (a row
        counts with its whole window); next_s, seconds in next(), of which waited_s for the daemon
        or workers; reattached, how often the daemon was lost and found; lost_wakes, 0 but for bugs
        of tokend; pinned_bytes, of the ring registered with CUDA. See tokend.throughput.
        """
        shape = self._client.shape()
        stats = {name: shape[name] for name in COUNTERS}
        if self._workers is not None:
            stats["waited_s"] += self._workers.waited_s
        pinned = self._batches.feed.pinned_bytes if self._batches.feed else 0
        return {**stats, "next_s": self._inside, "pinned_bytes": pinned}

    # ---- the rest ----

    def close(self) -> None:
        """Detaches from the daemon and ends the workers. Batches stay valid; most calls raise
        Error. A request without its done() is reported as failed.
        """
        if self._workers is not None:
            self._workers.close()
        if self._client is None:
            return
        if hasattr(self, "_control"):
            self._control.finish(sys.exc_info()[1])
        self._client.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "Loader: a session cannot be copied or pickled; make a loader in the process that "
            "reads, and pass it the state_dict()"
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            cursor, seq_len = self.cursor, self._client.shape()["seq_len"]
        except (AttributeError, Error):
            return "<tokend.Loader, not attached>"
        place = f"rank {self.rank} of {self.world}"
        return f"<tokend.Loader {self.micro_batch} × {seq_len}, {place}; {cursor!r}>"


class _Pass:
    """The iterator of `for batch in loader`: the loader's batches until the stream ends.

    It is not a generator, which an error of next() would end for good; nor the loader itself, which
    `yield from` would close. After the end, a new pass goes to position 0 when its first batch is
    taken: until then the state is that of the end.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._begin: int | None = None  # the position, once it has begun
        self._ended = False

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Batch:
        loader = self._loader
        if self._ended:
            raise StopIteration
        if self._begin is None:
            if loader._is_over():
                loader._begin_again()
            elif loader._is_left():
                loader._doubts.warn(
                    "left",
                    f"a pass over stream {loader.stream!r} was left at position {loader.taken}; "
                    "under no_grad() the next `for` begins again at position 0; call reset() "
                    "before it, or go on with next(loader)",
                )
                loader._begin_again()
            self._begin = loader._pass_begin = loader.taken
            loader._pass = weakref.ref(self)
        try:
            while True:  # as Loader.__next__(), whose return a handler could interrupt
                batch, handle = loader._look()
                try:
                    loader._client.takes = handle, loader._batches.feed is not None
                except LookupError:
                    continue
                return batch  # type: ignore[no-any-return]
        except StopIteration:
            self._ended = True
            if loader.taken == self._begin:
                phrases.warn(
                    "this pass has no batches, because it began at the stream's end, position "
                    f"{loader.taken}; the next pass begins again at position 0"
                )
            raise
