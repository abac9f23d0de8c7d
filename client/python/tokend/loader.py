"""The loader: an iterator of batches whose whole state is one cursor."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _tokend, arguments, parallel, phrases
from . import batch as batches
from . import device as devices
from . import group as groups
from . import transform as transforms
from ._tokend import ArgumentError, Error
from .batch import Batch, Batches, Wanted
from .control import SAVES, Control, Request
from .cursor import SEEK, Cursor, cursor_of, edited, integer, is_cursor, named_weights

COUNTERS = ("batches", "tokens", "waited_s", "reattached", "lost_wakes")
MOST_32 = (1 << 32) - 1
SAME: Any = object()  # seek(group=): not given


class Loader:
    """Iterates over the micro-batches of one stream, for one data-parallel rank.

    >>> loader = Loader("train", micro_batch=4)
    >>> for step, batch in zip(range(10), loader):
    ...     input_ids, labels = batch["input_ids"], batch["labels"]
    >>> batch["position"].tolist()  # the rows' numbers in the run
    [36, 37, 38, 39]
    >>> state = loader.state_dict()  # store it in the model's checkpoint
    >>> loader.close()
    >>> with Loader("train", micro_batch=2, rank=1, world=3) as resumed:
    ...     resumed.load_state_dict(state)
    ...     next(resumed)["position"].tolist()
    [42, 43]

    A batch is a dict of arrays: see tokend.Batch. Labels are shifted: label i is the token after
    input i. For Hugging Face models, which shift labels once more, pass shift_labels=True.

    Which data
      stream       name of the stream in the daemon's config
      micro_batch  rows per batch, 1 to 65536
      socket       socket of the daemon. Default: $TOKEND_SOCKET; otherwise that of a daemon which
                   this user runs without root; otherwise /run/tokend/tokend.sock
      config       a config file, instead of socket: a private daemon is started for it
      start        first sample: "begin" (default), a position, the tag of a checkpoint ("TAG" or
                   "RUN/TAG"), a cursor, or a state_dict()

    Which process of the job: see tokend.parallel
      rank, world  data-parallel rank and number of ranks: both or neither. Default: the mesh's or
                   the launcher's
      mesh         a DeviceMesh or JAX's Mesh: gives rank, world and peer
      peer         number of this process among those that read the same rows; from 0
      run          name of the job. Default: the launcher's, otherwise "default". In a named run
                   under a launcher, another process that reads for this rank and peer is waited
                   for, up to `deadline`. Otherwise, and with group=False, both get the same
                   samples, with a warning
      group        a gloo group of all processes that read this stream. Default: one made here, if
                   mesh, torch.distributed or jax.distributed gives the ranks. Its processes make
                   loaders, seek, load states and reset together, and compare cursors and ranks.
                   False: none, for a loader of one process, or ranks that attach by themselves

    Contents of a batch: see tokend.Batch
      framework    "torch" or "numpy". Default: torch if it is installed
      dtype        int64 (default) or int32, of input_ids; by key {"input_ids": …, "labels": …}
      documents, loss_mask, shift_labels, provenance    True: add these keys
      cp           "zigzag" or "contiguous": give only this context-parallel rank's slice of each
                   row, by the mesh's dim cp; without a mesh (rank, size, kind)
      device       "cpu" (default) or "cuda[:N]": see tokend.device
      transform    f(tokens, position, rng), a pure function of one row: see tokend.transform
      workers      number of processes that run it ahead of the trainer; 0 (default): this one

    State and robustness
      record       a directory: each process records there what it takes, 16 bytes a row, from the
                   first commit() on what is committed. `tokctl verify` proves from it that nothing
                   was repeated, lost or altered
      deadline     seconds to wait for a daemon (default: 300; for the first attach 5 while nobody
                   listens), for a batch (default: no limit), and in the constructor for the group
                   (default: 300; in a seek it has 1800). math.inf: no limit
      slots        batches to read ahead. 0 (default): the daemon chooses

    `for batch in loader` ends where a finite stream ends, and the next `for` begins again at
    position 0, in the same order. A `for` that was left is continued by the next: call reset() to
    begin again. One thread takes batches; others may call state_dict() meanwhile.

    Errors are of one line: what is wrong, and what to do. The constructor raises ValueError (mostly
    ArgumentError), TypeError or ImportError: an argument is impossible; ConnectError: no daemon
    answers; RefusedError: the daemon refuses; DisagreementError: the processes of the group do not
    fit, raised by all of them; ResourceError: no memory or file descriptors are left; Error: others
    of the group did not come, or the private daemon did not start.
    """

    _client: Any = None
    _source: Any = None  # transform.InProcess or workers.Workers
    _feed: Any = None  # device.Feed
    _batches: Batches

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
        # as compared with that of the other processes
        self._place = {"rank": 0, "peer": peer, "world": 1, "micro_batch": 0}
        self._inside = 0.0  # seconds in next()
        self._ended = False  # next() has raised StopIteration
        self._pass: weakref.ref[_Pass] | None = None  # the last one that took a batch
        self._pass_begin = 0  # the position where it began, or that of the last seek
        self._said_padding = False

        def attach() -> None:
            """Everything that can fail in this process alone. The others wait for its result."""
            arguments.check_seconds(deadline)
            if workers and transform is None:
                raise ValueError(f"workers: {workers} without a transform; pass transform=")
            make = batches.framework(framework)
            there, types = devices.cuda(device, make), batches.types(dtype)
            if mesh is None:
                at = parallel.Place(*parallel.coordinate(rank, world), peer, None)
            elif rank is not None or world is not None or peer != 0:
                raise ValueError("mesh, rank, world, peer: the mesh has them; pass mesh= alone")
            else:
                at = parallel.place(mesh)
            part = batches.cp_slice(cp, at.cp)
            self._place = {
                "rank": at.rank,
                "peer": integer("peer", at.peer, MOST_32),
                "world": at.world,
                "micro_batch": arguments.micro_batch(micro_batch),
            }
            groups.compare(together, self._place)
            name = run or parallel.token()
            wait = None if deadline in (None, math.inf) else deadline
            session = {
                "stream": stream,
                "run": name,
                "peer": self._place["peer"],
                "slots": integer("slots", slots, MOST_32),
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
            if transform is not None:
                # for the workers, even if the file is edited meanwhile
                session |= {"socket": self._client.socket, "config": self._client.config}
                seed = self.cursor.to_dict()["seed"]
                made = transforms.Transform(transform, seed, transforms.greatest(types))
                if workers:
                    try:
                        from .workers import Workers  # imports torch
                    except ModuleNotFoundError as error:
                        if error.name != "torch":
                            raise
                        raise ImportError(
                            "workers: torch is not installed; pip install torch, or pass workers=0"
                        ) from None
                    self._source = Workers(self._client, workers, made, session, wait)
                else:
                    self._source = transforms.InProcess(self._client, made)
            elif there is not None:
                self._feed = devices.Feed(self._client, there, types)
            wanted = Wanted(
                make, types, documents, loss_mask, shift_labels, provenance, part, there
            )
            self._batches = Batches(self._client, wanted, self._source, self._feed)
            if record is not None:
                self._client.record(self._record_path(record))

        # a deadline that is impossible is reported by attach(), when the others have come
        usable = isinstance(deadline, (int, float)) and deadline > 0
        self._patience: Any = deadline if usable else arguments.DEADLINE_S
        self._may_meet = group is None and rank is None and world is None
        try:
            together = groups.over(groups.of_all(self._patience) if self._may_meet else group)
            self._agreed(together, attach, self._patience)
        except BaseException:
            self.close()
            raise
        self._control = Control(self._client, together)
        # used by control() if there is no group
        self._alone = group not in (None, False) or max(self.world, groups.processes()) == 1
        assumed = mesh is None and rank is None
        self._made: parallel.Made | None  # until the first batch
        self._made = parallel.Made(assumed, stream, self.run, self.rank, self.world)

    def _record_path(self, directory: Any) -> str:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise ArgumentError(
                f"record: {directory}: {error.strerror}; pass a directory that you can write to"
            ) from None
        name = f"{self.run}.{self.rank}-{self._place['peer']}.{os.getpid()}-{time.time_ns()}.record"
        return os.path.join(directory, name)

    # ---- the other processes of the job ----

    def _agreed(
        self, together: Any, go: Callable[[], None], patience: float = groups.PATIENCE_S
    ) -> None:
        """Calls go() on all processes, then compares them. A process that fails reports to the
        others before it raises.
        """
        if together is None or together.gone():
            go()
            return
        together.meet(patience)
        try:
            go()
        except groups.DisagreementError:  # raised by all
            raise
        except Exception as error:
            # the others raise it; here the cause is raised
            with contextlib.suppress(groups.DisagreementError):
                groups.compare(together, self._place, error=error)
            raise
        groups.compare(together, self._place, self._client)

    def _meet_late(self) -> None:
        """Before the first batch: a group that was initialised since the loader was made."""
        if self._may_meet and self._control.group is None:
            together = groups.over(groups.of_all(self._patience))
            self._agreed(together, lambda: None, self._patience)
            self._control.begin(together)

    # ---- batches ----

    def __iter__(self) -> Iterator[Batch]:
        """A pass from here to the stream's end; after the last batch, one from position 0.

        A pass that begins at the end, after a state saved there was loaded, has no batches: warns.
        """
        return _Pass(self)

    def __next__(self) -> Batch:
        """Returns the next batch. Waits if none is ready.

        Raises StopIteration at the end; DataError: a shard cannot be read; ConnectError: a lost
        daemon did not come back; RefusedError: its config no longer fits; WaitError: no batch came
        within `deadline`; ArgumentError: a token does not fit dtype, or the record cannot be
        written; TransformError; before the first batch DisagreementError or ArgumentError: the
        loader does not fit torch.distributed or jax.distributed, initialised since it was made.

        state_dict() still works. After a DataError, ConnectError or RefusedError, and after an
        error of workers, batches follow after a seek(); otherwise next() may be called again.
        """
        while True:
            batch, takes = self._look()
            try:
                self._client.takes = takes  # no signal's handler runs between this and the return
            except LookupError:  # another thread was faster
                continue
            return batch  # type: ignore[no-any-return]

    def _look(self) -> tuple[Any, tuple[int, bool]]:
        """The next batch, and what the caller then sets _client.takes to."""
        begin = time.perf_counter()
        if (made := self._made) is not None:  # another thread may be faster
            if made.check(self.rank, self.world):
                self._meet_late()
            self._made = None
        found = self._batches.look()
        self._inside += time.perf_counter() - begin
        if found is None:
            self._ended = True
            raise StopIteration
        batch, valid, takes = found
        if valid == 0 and not self._said_padding and self._batches.wanted.make.has_gradients():
            self._warn_of_padding()
        return batch, takes

    def _warn_of_padding(self) -> None:
        self._said_padding = True
        rows = self.micro_batch * self.world
        phrases.warn(
            f"the last batch of stream {self._stream!r} is padding only on rank {self.rank} of "
            f"{self.world}, so the mean of its losses is NaN; divide the sum of losses, "
            'cross_entropy(…, reduction="sum"), by the number of labels other than -100 on all '
            "ranks; or leave that batch out on all ranks, with samples: "
            f"{self.taken // rows * rows} in the config"
        )

    def _is_over(self) -> bool:
        """Whether the next `for` begins at position 0, because every batch was taken."""
        first, end = self._batches.first, self._batches.end
        return self._ended or (end is not None and first < end <= self.taken)

    def _begin_again(self) -> None:
        """Begins another pass, for its first batch. No other process is asked, because all of them
        come here at the same step.
        """
        self._control.finish()
        self._go_alone(edited(SEEK, self._client.cursor, 0), self._place, True)

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
            begin = 0 if self._is_over() else self.taken
        return -(-(end - begin) // (self.world * self.micro_batch))

    def __len__(self) -> int:
        """How many batches `for batch in loader` gives: within the loop, from where it began;
        outside, from where the next begins. TypeError if the stream has no end.
        """
        within = self._pass is not None and self._pass() is not None and not self._ended
        return self._count("len", self._pass_begin if within else None)

    @property
    def batches_per_pass(self) -> int:
        """How many batches of this rank a pass from position 0 has, for schedules. TypeError if the
        stream has no end.
        """
        return self._count("batches_per_pass", 0)

    def __bool__(self) -> bool:
        """True, because bool() would otherwise call len()."""
        return True

    # ---- state ----

    def state_dict(self) -> dict[str, bytes]:
        """Returns {"cursor": bytes}, equal on all ranks after the same step.

        It counts the batch taken last, or up to the last commit(). So call it after a step: not in
        a signal's handler, and not where a step has raised.
        """
        return {"cursor": self._client.cursor}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to where state_dict() was called, on any rank of any world.

        Raises ArgumentError: this is no such state; and what seek() raises.
        """
        self._go(lambda: cursor_of(state_dict))

    def reset(self, state: Mapping[str, Any] | None = None) -> None:
        """Begins again at position 0, or at a state_dict(), like the nodes of torchdata.

        At position 0 another pass begins: in a record, the batches taken before stay valid. After
        seek(position=0) they are void, as if they had never been trained on.
        """
        if state is not None:
            self.load_state_dict(state)
        else:
            self._go(lambda: edited(SEEK, self._client.cursor, 0), again=True)

    def commit(self, next: int | None = None) -> None:
        """Says that all batches up to a former value of `taken`, by default all, are trained on.

        From the first call on, the state is that of the committed position. For loops that take
        batches ahead of their step.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.commit()              # nothing is trained on yet
        ...     first, taken = next(loader), loader.taken
        ...     second = next(loader)        # taken ahead
        ...     loader.commit(taken)         # the step trained on the first
        ...     loader.position
        4
        """
        self._client.commit(self.taken if next is None else integer("next", next))

    def checkpoint(self, tag: str) -> str:
        """Has the daemon write the cursor durably; returns the path.

        Loader(start=tag) begins there. This is a second copy: your model's checkpoint has its own.
        Raises RefusedError: the daemon could not write it; ConnectError: no daemon answers.
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
        """Continues at another cursor or position, as another rank, or with other batches.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.seek(position=1000, micro_batch=2)
        ...     next(loader)["position"].tolist()
        [1000, 1001]

        The default of each argument is what it was. But if world changes, the group is none,
        because the loader cannot know which processes stay. With a group all its processes call
        this together, and are compared as in the constructor.

        Raises ArgumentError: the position is outside of the stream; RefusedError: the cursor
        belongs to another stream. The loader is then where it was. DisagreementError, ConnectError.
        """

        def to() -> bytes | None:
            if cursor is not None and position is not None:
                raise ValueError("cursor, position: pass one of them")
            if position is not None:
                return edited(SEEK, self._client.cursor, position)
            if cursor is None or is_cursor(cursor):
                return None if cursor is None else bytes(cursor)
            raise TypeError(
                f"cursor: a {type(cursor).__name__} is not a Cursor or its bytes; pass a position "
                "as seek(position=N), a state to load_state_dict()"
            )

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
        self._control.finish()  # its answer has the position before the seek
        together, alone = self._control.group, self._alone
        if group is not SAME:
            together = groups.over(group)
            alone = group not in (None, False) or world == 1
        elif world is not None and world != self.world:
            together, alone = None, max(world, groups.processes()) == 1

        def go() -> None:
            cursor, place = to(), dict(self._place)
            for name, value in (("rank", rank), ("world", world)):
                if value is not None:
                    place[name] = integer(name, value)
            if micro_batch is not None:
                place["micro_batch"] = arguments.micro_batch(micro_batch)
            groups.compare(together, place)  # the others may be making their loaders
            # even if the others fail, this process is there
            self._go_alone(cursor, place, again)

        self._agreed(together, go)
        if together is not self._control.group or self._control.stopping:
            self._control.begin(together)
        self._alone = alone

    def _go_alone(self, cursor: bytes | None, place: dict[str, int], again: bool) -> None:
        """Without asking other processes. @cursor None: stays here, and batches that are taken but
        not trained on stay uncommitted.
        """
        before, self._batches.stale = self._batches.stale, True
        try:
            to = place["rank"], place["world"], place["micro_batch"]
            self._client.seek(cursor, *to, again)
        except Error:
            self._batches.stale = before
            raise
        self._place = place
        self._ended, self._pass_begin = False, self.taken
        self._batches.begin()

    def set_mix(self, weights: Mapping[str, float]) -> int:
        """Sets new weights by dataset name; returns the position from which they act.

        All ranks make the same call at the same step. Datasets that are not named get weight 0.
        The position is the next multiple of 1024 samples. A pending mix is replaced.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     batch = next(loader)
        ...     loader.set_mix({"web": 0.5, "code": 0.5})
        1024

        Raises ArgumentError: an unknown dataset, an impossible weight, or a stream with epochs.
        """
        acts_from: int = self._client.set_mix(named_weights(weights))
        self._batches.begin()
        return acts_from

    # ---- where it is ----

    @property
    def run(self) -> str:
        """The run's name, also if the launcher gave it."""
        return self._client.run  # type: ignore[no-any-return]

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._stream

    @property
    def micro_batch(self) -> int:
        """The rows of a batch."""
        return self._place["micro_batch"]

    @property
    def batch_size(self) -> int:
        """The same, by PyTorch's name."""
        return self.micro_batch

    @property
    def seq_len(self) -> int:
        """The stream's seq_len: the inputs of a row. With cp a batch has a part of them."""
        return self._batches.seq

    @property
    def rank(self) -> int:
        """This process's data-parallel rank."""
        return self._place["rank"]

    @property
    def world(self) -> int:
        """The number of data-parallel ranks."""
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

        Every process of the job calls it after every step. About once a second, and at least every
        64 steps, the processes look for a request together, by an all-reduce of 32 bytes.

        Returns a Request, or None. It is true only if it asks for a save: save the model, then call
        done(), in all processes; without done() it is reported as failed. Mix and skip are already
        carried out, on all ranks at the same step. A request that failed has changed nothing.

        Raises ArgumentError: the job has several processes, and the loader has no group of them.
        """
        if self._control.group is None and not self._alone:
            self._client.shape()  # raises if the loader is closed, or in a forked child
            raise ArgumentError(
                f"control: rank {self.rank} of {self.world} in a job of "
                f"{max(self.world, groups.processes())} processes has no group of them; pass "
                "group=, a gloo group of all processes that read this stream (in JAX "
                "tokend.integrations.jax.group())"
            )
        request = self._control.step()
        if request is not None and request.kind not in SAVES:
            self._batches.begin()
        return request

    @property
    def should_stop(self) -> bool:
        """True once control() has returned a drain or a rescale: the job is to leave.

        A seek() makes it False again. Where processes act together, a loop that goes on for 64
        steps gets a warning, and requests again.
        """
        return self._control.stopping

    def stats(self) -> dict[str, float]:
        """Counters of this process since the loader was made. tokend.throughput makes rates.

        batches, tokens  taken so far; a row counts with its whole window
        waited_s         seconds that next() waited for the daemon or for workers
        next_s           seconds spent in next(): waiting, copying, transforms
        reattached       how often the daemon was lost and found again
        lost_wakes       wake-ups that never came; more than 0 is a bug of tokend
        pinned_bytes     bytes of the ring registered with CUDA; 0 with device="cuda": copies are
                         slower
        """
        shape = self._client.shape()
        stats = {name: shape[name] for name in COUNTERS}
        if self._source is not None:
            stats["waited_s"] += self._source.waited_s
        pinned = 0 if self._feed is None else self._feed.pinned_bytes
        return {**stats, "next_s": self._inside, "pinned_bytes": pinned}

    # ---- the rest ----

    def close(self) -> None:
        """Detaches from the daemon and ends the workers. Batches stay valid.

        Calls that need the daemon or the cursor then raise Error. A request that asked for a save,
        without done(), is reported as failed.
        """
        if self._source is not None:
            self._source.close()
        if self._client is None:
            return
        if hasattr(self, "_control"):
            self._control.finish(sys.exc_info()[1])
        self._client.close()

    def __reduce__(self) -> Any:
        """Raises TypeError: a loader cannot be copied or pickled."""
        raise TypeError(
            "Loader: a session of this process cannot be copied or pickled; make a loader in the "
            "process that reads, and pass it the state_dict()"
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
        self._begun = self._ended = False
        self._begin = 0

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Batch:
        loader = self._loader
        if self._ended:
            raise StopIteration
        if not self._begun:
            if loader._is_over():
                loader._begin_again()
            self._begin = loader._pass_begin = loader.taken
            loader._pass, self._begun = weakref.ref(self), True
        try:
            while True:  # as Loader.__next__()
                batch, takes = loader._look()
                try:
                    loader._client.takes = takes
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
