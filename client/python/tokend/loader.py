"""The loader: an iterator of batches whose whole state is one cursor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ._tokend import Error
from .attached import Attached
from .operated import Operated
from .positioned import Positioned

# Modules that a first batch does not need are imported where they are used: an import takes about
# 0.2 ms, and a trainer waits for its first batch.
if TYPE_CHECKING:
    from typing import Literal, overload

    from typing_extensions import Unpack

    from .kinds import (
        AsksAttentionMask,
        AsksDocuments,
        AsksLossMask,
        AsksProvenance,
        AsksShiftLabels,
        B,
        Batch,
        NDArray,
        Options,
        RequestedBatch,
        RequestOptions,
        Tensor,
        TokensBatch,
        ViewBatch,
    )

    Torch = Literal["torch"]
    Numpy = Literal["numpy"]
    Yes = Literal[True]
else:  # the types of batches take longer to define than all of this module
    B = TypeVar("B", covariant=True)

ENDLESS = "the stream has no end; set epochs: or samples: in its config"

# Errors that say all in one line. Others are bugs, and keep their traceback.
FOR_USERS = (Error, ValueError, TypeError, ImportError, Warning)


class Loader(Attached, Operated, Positioned, Generic[B]):
    """Iterates over the micro-batches of one stream, for one data-parallel rank.

    >>> loader = Loader("train", micro_batch=4)
    >>> for step, batch in zip(range(10), loader):
    ...     input_ids, labels = batch["input_ids"], batch["labels"]
    >>> tuple(input_ids.shape), input_ids.dtype
    ((4, 64), torch.int64)
    >>> batch["position"].tolist()  # the rows' numbers in the run
    [36, 37, 38, 39]

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
                   pp, …) get the same rows. Replaces rank, world and peer. See tokend.mesh
      peer         number of this process among the tensor-, pipeline- and context-parallel
                   processes of its rank; from 0
      run          name of the job. Default: the launcher's (torchrun, Slurm), otherwise "default"
      group        a gloo group of all processes that read this stream: every data rank with its
                   peers. Default: a group of all processes, made here, if rank and world come
                   from mesh, torch.distributed or jax.distributed; otherwise none
      agree        True (default): the processes of the group compare their cursors and ranks, here
                   and at every seek. If they do not fit, all raise a DisagreementError. So all
                   make the loader, seek and load a state together: the constructor waits for them
                   up to `deadline`, a seek 30 minutes. After 5 s a warning names the missing ranks.
                   False: for ranks that attach at different times; there is no default group then

    Contents of a batch
      framework    "torch" or "numpy". Default: torch if it is installed
      dtype        of input_ids and tokens: int64 (default) or int32. By key: {"input_ids": …,
                   "labels": …}, also of labels. A token that does not fit is an ArgumentError
                   that names it
      documents    add position_ids, cu_seqlens, max_seqlen; the stream needs `documents: true`
      loss_mask    add loss_mask; the stream needs `loss_mask: true`
      attention_mask  add attention_mask. Not with documents: transformers' models ignore their
                   position_ids if they get a mask, and attend across documents
      shift_labels  for Hugging Face models, which shift labels themselves: model(**batch). Their
                   labels are then in labels, and those below in shift_labels. If it is not given,
                   and such a model trains in this process, the first batch warns; pass False if
                   the model gets no labels
      provenance   add epoch, window, shard, offset
      tokens       give unsplit windows: tokens and padding instead of input_ids and labels. The
                   stream needs extra ≥ 1. If it has a loss mask, pass loss_mask=True too
      cp           "zigzag" or "contiguous": give only this context-parallel rank's slice of each
                   row, by the mesh's dim cp; without a mesh (rank, size, kind). Zigzag: chunks
                   rank and 2·size − 1 − rank of 2·size

    GPU and views
      device       "cpu" (default) or "cuda[:N]": input_ids, labels, tokens, padding, loss_mask,
                   attention_mask, position_ids and cu_seqlens are made there. See tokend.device
      view         lend batches without a copy, for experts. A batch has tokens, as stored, instead
                   of input_ids and labels. See tokend.view
      hold         with view: how many batches, counted from the last, may be held when the next
                   one is taken. Holding an older one is a HeldError. The ring must be deeper

    Transforms
      transform    a pure function of one row: f(tokens, position, rng) → a row of the same
                   length. See tokend.transform
      workers      number of processes that run it ahead of the trainer, in the same order;
                   0 (default): this process. A worker imports the function, so define it at the
                   top level of a module. The daemon reads for each worker as for a rank

    State and checkpoints
      prefetched   number of batches that your loop holds untrained when it saves. The state is
                   that of the batch before them; commit() is then refused. Default: 0
      record       a directory: each process records there what it takes, 16 bytes a row.
                   `tokctl verify` proves from it that nothing was repeated, lost or altered. From
                   the first commit() on, committed batches are recorded. If it cannot be written,
                   next() raises an ArgumentError, and may be called again

    Robustness
      deadline     seconds to wait for a daemon: for the first attach, for a lost one, and for one
                   that is starting, silent, or short of memory or connections. Default: 300; a
                   first attach waits for 5 s while nobody listens. Warns after 2, 10 and 60 s, as
                   it does of batches that take so long
      max_wait     seconds that next() waits for a batch while storage or an object store does
                   not answer; then it raises a WaitError that names it. The cursor is that of
                   the last batch taken, and next() may be called again. Default: no limit
      slots        batches to read ahead. 0 (default): the daemon chooses
      strict       True: if another process reads for this stream, run, world, rank and peer, wait
                   up to `deadline` for its end, then raise a RefusedError with both pids. False:
                   both get the same samples, with a warning. Default: True for a named run under
                   a launcher, otherwise False

    A batch is a dict. b is micro_batch, s is seq_len:
      input_ids     int64 or dtype [b, s]
      labels        int64 or dtype [b, s]: the next tokens, already shifted, so Hugging Face models
                    need shift_labels=True; -100 in padding rows, where the stream's loss mask has
                    0, and where the window ends
      position      int64 [b]: number of each row in the run; -1 in padding rows, which follow the
                    end of a finite stream
      dataset       int64 [b]: index in `datasets`; -1 in padding rows
    With documents=True:
      position_ids  int64 [b, s]: from 0 in each document and each row
      cu_seqlens    int32 [n + 1]: starts of the batch's n documents in input_ids.flatten(), then
                    its length
      max_seqlen    int: length of the longest document
    With loss_mask=True:
      loss_mask     float32 [b, s]: 0 where the label is -100, otherwise 1
    With attention_mask=True:
      attention_mask  int64 [b, s]: 1, and 0 in padding rows
    With shift_labels=True:
      shift_labels  int64 or dtype [b, s]: what labels are without it. Models that take these lose
                    no label; others lose the last of each row
      labels        the same, one place later: a row begins with -100
    With provenance=True, int64 [b], -1 in padding rows:
      epoch         of the row's dataset
      window        its number in the dataset
      shard         number of its shard in the dataset's sorted list
      offset        number of its first token in the shard
    With tokens=True or view=True, instead of input_ids and labels:
      tokens        int64 or dtype [b, s + extra]; with view uint16 or uint32
      padding       bool [b]: True in padding rows; not with view

    With documents, the last label of a document is the first token of the next. With cp, [b, s]
    becomes [b, s / size] and position_ids are added; cu_seqlens and max_seqlen describe full rows.
    Each batch has tensors of its own, contiguous, and none is a view of another.

    `for batch in loader` ends where a finite stream ends. When its last batch was taken, the next
    `for` begins again at position 0, in the same order: to train on several epochs, each shuffled
    anew, set `epochs:` in the config. If a state saved at the end is loaded, the first `for` has
    no batches, and warns.

    One thread takes batches. Others may call state_dict() meanwhile.

    Raises:
        ValueError, TypeError: an argument is impossible. Most are ArgumentError, a ValueError.
        ImportError: neither torch nor numpy is installed, or torch is too old.
        ConnectError: no daemon answers in time. It is a ConnectionError.
        RefusedError: the daemon refuses: no such stream or tag, a cursor of another stream, no
            memory for the ring, a rank that is taken (strict). Names the field.
        DisagreementError: the processes of the group are not at one cursor, or their ranks do not
            fit. All of them raise it.
        HeldError: the ring is not deeper than hold.
        WorkerError: a worker cannot be started.
        ResourceError: no memory or file descriptors are left. It is a MemoryError.
        ProtocolError: the peer at the socket is not a tokend of this version.

    All errors of tokend are tokend.Error. Each is one line: what is wrong, and what to do. After
    close(), calls raise Error; in a forked child they raise ForkedError: make a loader there.
    """

    # The kind of batch, for type checkers: the most special first. If the arguments are not
    # literals, the last one.

    if TYPE_CHECKING:
        # fmt: off
        @overload
        def __init__(
            self: Loader[TokensBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, tokens: Yes, **options: Unpack[RequestOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[TokensBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, tokens: Yes, **options: Unpack[RequestOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[ViewBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, view: Yes, **options: Unpack[RequestOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[ViewBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, view: Yes, **options: Unpack[RequestOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, **options: Unpack[AsksDocuments],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, **options: Unpack[AsksDocuments],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, **options: Unpack[AsksLossMask],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, **options: Unpack[AsksLossMask],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, **options: Unpack[AsksAttentionMask],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, **options: Unpack[AsksAttentionMask],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, **options: Unpack[AsksShiftLabels],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, **options: Unpack[AsksShiftLabels],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, **options: Unpack[AsksProvenance],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, **options: Unpack[AsksProvenance],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[Batch[NDArray]], stream: str, micro_batch: int, *,
            framework: Numpy, **options: Unpack[Options],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[Batch[Tensor]], stream: str, micro_batch: int, *,
            framework: Torch | None = None, **options: Unpack[Options],
        ) -> None: ...
        @overload
        def __init__(
            self: Loader[RequestedBatch[Any]], stream: str, micro_batch: int, *,
            framework: str | None = None, documents: bool = False, loss_mask: bool = False,
            attention_mask: bool = False, shift_labels: bool = False, provenance: bool = False,
            tokens: bool = False, view: bool = False,
            **options: Unpack[Options],
        ) -> None: ...
        # fmt: on

    def __init__(
        self,
        stream: str,
        micro_batch: int,
        *,
        socket: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        run: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        mesh: Any = None,
        peer: int = 0,
        slots: int = 0,
        start: Any = "begin",
        deadline: float | None = None,
        max_wait: float | None = None,
        framework: str | None = None,
        dtype: Any = None,
        device: Any = None,
        group: Any = None,
        agree: bool = True,
        documents: bool = False,
        loss_mask: bool = False,
        attention_mask: bool = False,
        shift_labels: bool | None = None,
        provenance: bool = False,
        cp: Any = None,
        transform: Callable[..., Any] | None = None,
        workers: int = 0,
        view: bool = False,
        hold: int | None = None,
        record: str | os.PathLike[str] | None = None,
        tokens: bool = False,
        prefetched: int = 0,
        strict: bool | None = None,
    ) -> None:
        asked = SimpleNamespace(**locals())
        try:
            self._open(asked)
        except FOR_USERS as error:  # without the frames of this package
            self.close()
            raise error.with_traceback(None) from error.__cause__
        except BaseException:
            self.close()
            raise

    # ---- batches ----

    def __iter__(self) -> Iterator[B]:
        """Returns a pass from here to the stream's end, if it has one.

        After the last batch, the first batch of a new pass is that of position 0. So it is under
        no_grad() if an evaluation left a finite stream in mid-pass; this warns once.

        Raises:
            ArgumentError: accelerate would deal this loader's batches out to several ranks. In the
                first next(): composer would drop some of them.
        """
        from .passes import Pass, accelerate_takes_ahead

        accelerate_takes_ahead()
        return Pass(self)

    def __next__(self) -> B:
        """Returns the next batch, a dict: see Loader. Waits if none is ready.

        Raises:
            StopIteration: a finite stream ends.
            DataError: a shard is unreadable, truncated or changed. Names shard and token.
            ConnectError: a lost daemon did not come back within `deadline`. Names the position.
            RefusedError: a restarted daemon's config no longer fits the cursor.
            WaitError: no batch came within `max_wait`. It is a TimeoutError. Names what it waited
                for. next() may be called again, without a seek().
            ArgumentError: a token does not fit dtype, or the record cannot be written.
            TransformError, WorkerError: a transform failed, or a worker died. The cursor is before
                the batch.
            HeldError: with view, an older batch than `hold` allows is still held.
            ProtocolError: the daemon broke the protocol.

        After an error state_dict() still works. Batches follow again after a seek().
        """
        while True:
            batch, takes = self._look()
            try:
                self._client.takes = takes  # no signal's handler runs between this and the return
            except LookupError:  # another thread was faster
                continue
            return batch  # type: ignore[no-any-return]

    def _look(self) -> tuple[Any, tuple[int, ...]]:
        """The next batch, and what the caller then sets _client.takes to."""
        begin = perf_counter()
        if (first := self._first) is not None:  # another thread may be faster
            self._first = first.check(self)
        if self._has_gradients is not None:
            mode = 1 << self._has_gradients()
            if not self._modes & mode:
                if self._modes or self._repeats:
                    from .passes import warn_of_modes

                    warn_of_modes(self, mode)
                if mode > 1 and "transformers.modeling_utils" in sys.modules:
                    from .passes import warn_of_labels

                    warn_of_labels(self)
                self._modes |= mode
        self._before, self._handled = self._client.taken(), id(sys.exc_info()[1])
        batches = self._batches or self._measured()
        found = batches.look() if self._ahead is None else self._ahead.look(batches)
        self._inside += perf_counter() - begin
        if found is None:
            self._ended = True
            raise StopIteration
        batch, valid, takes = found
        if valid == 0:
            from .passes import warn_of_padding

            warn_of_padding(self)
        return batch, takes

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
        from . import dataset, passes

        batches = self._measured()
        if dataset.is_lightning() and (batches.end is None or batches.begin > 0):
            return dataset.ENDLESS
        if batches.end is None:
            raise TypeError(f"len: {ENDLESS}; {dataset.PLACE}")
        current = self._pass and self._pass()
        if current and current.is_last() and not self._ended:
            begin = self._pass_begin
        else:
            begin = 0 if passes.is_over(self) or passes.is_left(self) else batches.taken
        return -(-(batches.end - begin) // (self._world * self._micro))

    @property
    def batches_per_pass(self) -> int:
        """How many batches of this rank a pass from position 0 has: what len() is before the first.
        After a resume a schedule takes its number of steps from here.

        Raises:
            TypeError: the stream has no end.
        """
        end = self._measured().end
        if end is None:
            raise TypeError(f"batches_per_pass: {ENDLESS}")
        return -(-end // (self._world * self._micro))

    def __getitem__(self, index: object) -> NoReturn:
        """Raises TypeError: a loader is not a dataset."""
        from . import dataset

        raise TypeError(dataset.PLACE)

    @property
    def dataset(self) -> NoReturn:
        """Raises AttributeError, as accelerate's skip_first_batches() asks for it."""
        from . import dataset

        raise AttributeError(dataset.NO_DATASET)

    def __bool__(self) -> bool:
        """True, because bool() would otherwise call len()."""
        return True

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
        if "_control" in vars(self):  # it is made at its first use
            self._control.finish(sys.exc_info()[1])
        self._client.close()

    def __reduce__(self) -> Any:
        """Raises TypeError: a loader cannot be copied or pickled."""
        raise TypeError(
            "Loader: a session of this process cannot be copied or pickled; make a loader in the "
            "process that reads, and pass it the state_dict()"
        )

    def __enter__(self) -> Loader[B]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        from .cursor import Cursor

        try:
            cursor = Cursor(self._client.cursor())
            seq_len = self._client.shape()["seq_len"]
        except (AttributeError, Error):
            return "<tokend.Loader, not attached>"
        place = f"rank {self._rank} of {self._world}"
        return f"<tokend.Loader {self._micro} × {seq_len}, {place}; {cursor}>"
