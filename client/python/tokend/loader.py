"""The loader: an iterator of batches whose whole state is one cursor."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _tokend, arguments, parallel, phrases
from . import batch as batches
from . import device as devices
from . import group as groups
from . import transform as transforms
from ._tokend import ArgumentError, Error
from .batch import Batch, Batches, Wanted
from .control import Control, Request
from .cursor import SEEK, Cursor, cursor_of, edited, integer, is_cursor, named_weights

ENDLESS = "the stream has no end; set epochs: or samples: in its config"
COUNTERS = ("batches", "tokens", "waited_s", "reattached", "lost_wakes")
MOST_32 = (1 << 32) - 1
SAME: Any = object()  # seek(group=): not given


class Loader:
    """Iterates over the micro-batches of one stream, for one data-parallel rank.

    >>> loader = Loader("train", micro_batch=4)
    >>> for step, batch in zip(range(10), loader):
    ...     input_ids, labels = batch["input_ids"], batch["labels"]
    >>> tuple(input_ids.shape), input_ids.dtype
    ((4, 64), torch.int64)
    >>> batch["position"].tolist()  # the rows' numbers in the run
    [36, 37, 38, 39]

    Labels are shifted: label i is the token after input i. Hugging Face models shift labels once
    more, and model(input_ids, labels=labels) would learn the token after next: pass
    shift_labels=True, and call model(**batch).

    The state is one cursor: the same bytes on every rank. It resumes on any number of ranks.

    >>> state = loader.state_dict()  # store it in the model's checkpoint
    >>> loader.close()
    >>> with Loader("train", micro_batch=2, rank=1, world=3) as resumed:
    ...     resumed.load_state_dict(state)
    ...     next(resumed)["position"].tolist()
    [42, 43]

    All arguments but stream and micro_batch are keywords.

    Which data
      stream       name of the stream in the daemon's config
      micro_batch  rows per batch, 1 to 65536
      socket       socket of the daemon. Default: $TOKEND_SOCKET; otherwise the socket of a daemon
                   that this user runs without root ($XDG_RUNTIME_DIR/tokend/tokend.sock or
                   /tmp/tokend-UID/tokend.sock); otherwise /run/tokend/tokend.sock
      config       a config file, instead of socket. If no daemon serves it, a private daemon is
                   started, and started again whenever it is lost
      start        first sample: "begin" (default), a position, the tag of a checkpoint ("TAG" or
                   "RUN/TAG"), a cursor, or a state_dict()

    Which process of the job (parallelism)
      rank, world  data-parallel rank and number of ranks: both or neither. Default: the first of
                   these that has both: mesh, torch.distributed, jax.distributed, the environment
                   of torchrun, Open MPI, PMI, srun. Otherwise rank 0 of 1
      mesh         a DeviceMesh or JAX's Mesh that contains this process. Its data dims (dp, fsdp,
                   replicate, shard, ep, …) give rank and world. Ranks of its other dims (tp, cp,
                   pp, …) get the same rows. Replaces rank, world and peer. See tokend.parallel
      peer         number of this process among the tensor-, pipeline- and context-parallel
                   processes of its rank; from 0
      run          name of the job. Default: the launcher's (torchrun, Slurm), otherwise "default".
                   In a named run under a launcher, another process that reads for this rank and
                   peer is waited for, up to `deadline`, then a RefusedError names both. Without
                   a name both get the same samples, with a warning
      group        a gloo group of all processes that read this stream: every data rank with its
                   peers. Default: a group of all processes, made here, if rank and world come
                   from mesh, torch.distributed or jax.distributed; otherwise none. The processes
                   of the group compare their cursors and ranks, here and at every seek. If they do
                   not fit, all raise a DisagreementError. So all make the loader, seek and load a
                   state together: the constructor waits for them up to `deadline`, a seek 30
                   minutes. After 5 s a warning names the missing ranks. False: no group, for ranks
                   that attach at different times, and for a loader of one process

    Contents of a batch
      framework    "torch" or "numpy". Default: torch if it is installed
      dtype        of input_ids: int64 (default) or int32. By key: {"input_ids": …, "labels": …},
                   also of labels. A token that does not fit is an ArgumentError that names it
      documents    add position_ids, cu_seqlens, max_seqlen; the stream needs `documents: true`
      loss_mask    add loss_mask; the stream needs `loss_mask: true`
      shift_labels  for Hugging Face models, which shift labels themselves: labels are then what
                   they shift, and shift_labels are what labels are otherwise
      provenance   add epoch, window, shard, offset
      cp           "zigzag" or "contiguous": give only this context-parallel rank's slice of each
                   row, by the mesh's dim cp; without a mesh (rank, size, kind). Zigzag: chunks
                   rank and 2·size − 1 − rank of 2·size
      device       "cpu" (default) or "cuda[:N]": input_ids, labels, loss_mask, position_ids and
                   cu_seqlens are made there. See tokend.device

    Transforms
      transform    a pure function of one row: f(tokens, position, rng) → a row of the same
                   length. See tokend.transform
      workers      number of processes that run it ahead of the trainer, in the same order;
                   0 (default): this process. They are the workers of a torch DataLoader. The
                   daemon reads for each as for a rank

    State and robustness
      record       a directory: each process records there what it takes, 16 bytes a row.
                   `tokctl verify` proves from it that nothing was repeated, lost or altered. From
                   the first commit() on, committed batches are recorded. If it cannot be written,
                   next() raises an ArgumentError, and may be called again
      deadline     seconds to wait: for a daemon at the first attach, for a lost one, for one that
                   is starting, silent, or short of memory or connections; and for a batch, while
                   storage or an object store does not answer. math.inf: no limit. Default: 300
                   for a daemon, but a first attach waits for 5 s while nobody listens; no limit
                   for a batch. Warns after 2, 10 and 60 s
      slots        batches to read ahead. 0 (default): the daemon chooses

    A batch is a dict of arrays: see tokend.Batch.

    `for batch in loader` ends where a finite stream ends. When its last batch was taken, the next
    `for` begins again at position 0, in the same order: to train on several epochs, each shuffled
    anew, set `epochs:` in the config. A `for` that was left is continued by the next: call reset()
    to begin again. If a state saved at the end is loaded, the first `for` has no batches, and
    warns.

    One thread takes batches. Others may call state_dict() meanwhile.

    Raises:
        ValueError, TypeError: an argument is impossible. Most are ArgumentError, a ValueError.
        ImportError: neither torch nor numpy is installed, or torch is too old.
        ConnectError: no daemon answers in time. It is a ConnectionError.
        RefusedError: the daemon refuses: no such stream or tag, a cursor of another stream, no
            memory for the ring, a rank that is taken. Names the field.
        DisagreementError: the processes of the group are not at one cursor, or their ranks do not
            fit. All of them raise it.
        ResourceError: no memory or file descriptors are left. It is a MemoryError.

    All errors of tokend are tokend.Error. Each is one line: what is wrong, and what to do. After
    close() and in a forked child calls raise Error: make a loader there.
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
            there = devices.cuda(device, make.name)
            types = batches.types(dtype)
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
            if self._compares(together):
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
            # for the workers, even if the file is edited meanwhile
            session |= {"socket": self._client.socket, "config": self._client.config}
            node, path = os.uname().nodename, os.path.realpath(session["socket"])
            self._daemon = zlib.crc32(f"{node} {path}".encode(errors="surrogateescape")) | 1 << 32
            wanted = Wanted(
                make, types, documents, loss_mask, shift_labels, provenance, part, there
            )
            if transform is not None:
                seed = self.cursor.to_dict()["seed"]
                made = transforms.Transform(transform, seed, transforms.greatest(types))
                if workers:
                    self._source = _workers()(self._client, workers, made, session, wait)
                else:
                    self._source = transforms.InProcess(self._client, made)
            elif there is not None:
                self._feed = devices.Feed(self._client, there, types)
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
        self._control = Control(self._client, together, self._daemon)
        # used by control() if there is no group
        self._alone = group not in (None, False) or max(self.world, groups.processes()) == 1
        assumed = mesh is None and rank is None
        self._made: parallel.Made | None  # until the first batch
        self._made = parallel.Made(assumed, stream, self.run, self.rank, self.world)

    # ---- the other processes of the job ----

    @staticmethod
    def _compares(together: Any) -> bool:
        return together is not None and not together.gone()

    def _agreed(
        self, together: Any, go: Callable[[], None], patience: float = groups.PATIENCE_S
    ) -> None:
        """Calls go() on all processes, then compares them. A process that fails reports to the
        others before it raises.
        """
        if not self._compares(together):
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
        if not self._may_meet or self._control.group is not None:
            return
        together = groups.over(groups.of_all(self._patience))
        self._agreed(together, lambda: None, self._patience)
        self._control.begin(together)

    # ---- batches ----

    def __iter__(self) -> Iterator[Batch]:
        """Returns a pass from here to the stream's end, if it has one. After the last batch, the
        first batch of a new pass is that of position 0.
        """
        return _Pass(self)

    def __next__(self) -> Batch:
        """Returns the next batch, a dict: see Loader. Waits if none is ready.

        Raises:
            StopIteration: a finite stream ends.
            DataError: a shard is unreadable, truncated or changed. Names shard and token.
            ConnectError: a lost daemon did not come back within `deadline`. Names the position.
            RefusedError: a restarted daemon's config no longer fits the cursor.
            WaitError: no batch came within `deadline`. It is a TimeoutError. Names what it waited
                for. next() may be called again, without a seek().
            ArgumentError: a token does not fit dtype, or the record cannot be written.
            TransformError: a transform failed. The cursor is before the batch.

        After an error state_dict() still works. Batches follow again after a seek().
        """
        while True:
            batch, takes = self._look()
            try:
                self._client.takes = takes  # no signal's handler runs between this and the return
            except LookupError:  # another thread was faster
                continue
            return batch  # type: ignore[no-any-return]

    def _look(self) -> tuple[Any, tuple[Any, ...]]:
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
        cursor = edited(SEEK, self._client.cursor, 0)
        self._go_alone(cursor, self._place, True)

    def __len__(self) -> int:
        """Returns how many batches of this rank `for batch in loader` gives.

        Within the loop the number stays the same. Outside, it counts from where the next `for`
        begins to the stream's end.

        >>> with Loader("finite", micro_batch=8) as validation:
        ...     len(validation), sum(1 for batch in validation)
        (59, 59)

        Raises:
            TypeError: the stream has no end.
        """
        end = self._batches.end
        if end is None:
            raise TypeError(
                f"len: {ENDLESS}; a Loader replaces a DataLoader, and is not a dataset for one"
            )
        current = self._pass and self._pass()
        if current is not None and not self._ended:
            begin = self._pass_begin
        else:
            begin = 0 if self._is_over() else self.taken
        return -(-(end - begin) // (self.world * self.micro_batch))

    @property
    def batches_per_pass(self) -> int:
        """How many batches of this rank a pass from position 0 has: what len() is before the first.
        After a resume a schedule takes its number of steps from here.

        Raises:
            TypeError: the stream has no end.
        """
        end = self._batches.end
        if end is None:
            raise TypeError(f"batches_per_pass: {ENDLESS}")
        return -(-end // (self.world * self.micro_batch))

    def __bool__(self) -> bool:
        """True, because bool() would otherwise call len()."""
        return True

    # ---- state ----

    def state_dict(self) -> dict[str, bytes]:
        """Returns {"cursor": bytes}, equal on all ranks after the same step.

        It counts the batch taken last, or up to the last commit(). So call it after a step: not in
        a signal's handler, and not where a step has raised. May be called from any thread, also
        before the first batch and after an error of next().

        Raises:
            Error: the loader is closed.
        """
        return {"cursor": self._client.cursor}

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
        self._go(lambda: cursor_of(state_dict))

    def reset(self, state: Mapping[str, Any] | None = None) -> None:
        """Begins again at position 0, or at a state_dict(), like the nodes of torchdata.

        For a loop that reads only a part of a finite stream, for example to validate. `for` over a
        whole stream needs no reset. With a group all its processes call this together: see seek().

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
            self._go(lambda: edited(SEEK, self._client.cursor, 0), again=True)

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
            ArgumentError: `taken` never had this value since the last commit, or the record cannot
                be written.
        """
        self._client.commit(self.taken if next is None else integer("next", next))

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
                return edited(SEEK, self._client.cursor, position)
            if cursor is None or is_cursor(cursor):
                return None if cursor is None else bytes(cursor)
            raise TypeError(
                f"{phrases.kind_is_not('cursor', cursor, 'a Cursor or its bytes')}; pass a "
                "position as seek(position=N), a state to load_state_dict()"
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
            if self._compares(together):  # the others may be making their loaders
                groups.compare(together, place)
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

        Raises:
            TypeError: weights is not a dict of numbers by name.
            ArgumentError: an unknown dataset, an impossible weight, or a stream with epochs.
            Error: more mixes have begun since the last commit than a cursor can hold.
            ConnectError: no daemon answers within `deadline`.
        """
        weights = named_weights(weights)
        acts_from: int = self._client.set_mix(weights)
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
        return self._client.datasets  # type: ignore[no-any-return]

    @property
    def mix(self) -> dict[str, float]:
        """The mix in force at this position: each dataset's share, from 0 to 1, with 9 digits.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.mix
        {'web': 0.7, 'code': 0.3}
        """
        weights = self.cursor.segments[0]["weights"]
        return {name: float(f"{share:.9g}") for name, share in weights.items()}

    # ---- for operators and loggers ----

    def control(self) -> Request | None:
        """Carries out an operator's request (tokctl mix, skip, checkpoint, drain, rescale).

        Every process of the job calls it after every step. About once a second, and at least every
        64 steps, the processes look for a request together, by an all-reduce of 32 bytes, in which
        each waits for the others.

        >>> loader = Loader("train", micro_batch=4)
        >>> for step, batch in zip(range(100), loader):
        ...     request = loader.control()
        ...     if request:
        ...         torch.save(loader.state_dict(), "checkpoint.pt")
        ...         request.done()
        ...     if loader.should_stop:
        ...         break
        >>> loader.close()

        Returns:
            A Request, or None. It is true only if it asks for a save: save the model, then call
            done(), in all processes. If the loop goes on or ends without done(), the request is
            reported as failed. Mix and skip are already carried out, on all ranks at the same step.
            A request that failed has changed nothing on any rank; its `error` says why.

        Raises:
            ArgumentError: the job has several processes, and the loader has no group of them.
            Error: the loader is closed.
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
        if request is not None:
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
        """Counters of this process since the loader was made.

        Returns:
            batches, tokens  taken so far; a row counts with its whole window
            waited_s         seconds that next() waited for the daemon or for workers
            next_s           seconds spent in next(): waiting, copying, transforms
            reattached       how often the daemon was lost and found again
            lost_wakes       wake-ups that never came; more than 0 is a bug of tokend
            pinned_bytes     bytes of the ring registered with CUDA. With device="cuda", 0
                             means that copies are slower

        Raises:
            Error: the loader is closed.

        tokend.throughput.Throughput turns them into rates for a logger.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     batch = next(loader)
        ...     loader.stats()["tokens"]
        260
        """
        shape = self._client.shape()
        stats = {name: shape[name] for name in COUNTERS}
        if self._source is not None:
            stats["waited_s"] += self._source.waited_s
        pinned = 0 if self._feed is None else self._feed.pinned_bytes
        return {**stats, "pinned_bytes": pinned, "next_s": self._inside}

    # ---- the rest ----

    def close(self) -> None:
        """Detaches from the daemon and ends the workers. Batches stay valid.

        A request that asked for a save, without done(), is reported as failed. Raises nothing; a
        second call does nothing.
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

    def _record_path(self, directory: Any) -> str:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise ArgumentError(
                f"record: {directory}: {error.strerror}; pass a directory that you can write to"
            ) from None
        name = f"{self.run}.{self.rank}-{self._place['peer']}.{os.getpid()}-{time.time_ns()}.record"
        return os.path.join(directory, name)


def _workers() -> Any:
    """The class Workers, which imports torch."""
    try:
        from .workers import Workers
    except ModuleNotFoundError:
        raise ImportError(
            f"workers: torch is not installed; {phrases.install('torch')}, or pass workers=0"
        ) from None
    return Workers


class _Pass:
    """The iterator of `for batch in loader`: the loader's batches until the stream ends.

    It is not a generator: `yield from loader` would close that when it is left early. After the
    end, a new pass goes to position 0 when its first batch is taken: until then the state is that
    of the end.
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
