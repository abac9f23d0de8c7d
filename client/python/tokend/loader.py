"""The loader: an iterator of batches whose whole state is one cursor."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from socket import gethostname
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Unpack, overload

from . import _tokend, arguments, arrays, dataset, job, private, same_place
from . import group as groups
from .batch import Batches, Source, Wanted
from .control import Control, Request
from .cursor import Cursor
from .kinds import B, Batch, Options, RequestedBatch, RequestOptions, TokensBatch, ViewBatch
from .passes import Pass, Prefetched, prefetched as holding
from .positioned import Positioned

if TYPE_CHECKING:
    from .kinds import NDArray, Tensor

Torch = Literal["torch"]
Numpy = Literal["numpy"]
Yes = Literal[True]


class Loader(Positioned, Generic[B]):
    """Micro-batches of one stream for one data-parallel rank: an endless iterator (or one with an
    end) of dicts.

    stream       its name in the daemon's config
    micro_batch  rows of a batch
    socket       where the daemon listens; default $TOKEND_SOCKET, else the socket of a daemon that
                 this user started without root ($XDG_RUNTIME_DIR/tokend/tokend.sock or
                 /tmp/tokend-UID/tokend.sock), else /run/tokend/tokend.sock
    config       instead: a config file; a private daemon is started for it if none serves it, also
                 in mid-run
    run          names the job; default the launcher's token (torchrun, Slurm), else "default"
    rank, world  default from mesh, torch.distributed, jax.distributed, or the environment of
                 torchrun, Open MPI, PMI or Slurm's srun, the first that tells both; otherwise a job
                 of one. See tokend.job
    mesh         a DeviceMesh that this process is in: its data dims (dp…, fsdp, replicate, shard,
                 ep…) say which rank this is, the others (tp, cp, pp, …) who reads the same; nothing
                 else has to be said of parallelism. See tokend.mesh
    peer         number among the tensor-, pipeline- and context-parallel processes of this rank; a
                 mesh knows it
    slots        batches of read-ahead; 0: the daemon's choice
    start        "begin", a position, the tag of a checkpoint ("TAG" or "RUN/TAG"), or a cursor
    deadline     seconds to look for a daemon that was lost, and to wait for one that is starting,
                 or that refuses for now because others hold its memory or connections; warns after
                 2, 10 and 60 s. Where nobody listens at all, the constructor waits for 5 s
    framework    "torch" or "numpy"; default torch if it is installed
    dtype        of input_ids: int64 (default) or int32. A token that does not fit is an
                 ArgumentError that names it
    device       "cpu", or "cuda[:N]": input_ids, labels, loss_mask, position_ids and cu_seqlens are
                 made there (tokend.device); what says where rows are from stays in the CPU's memory
    group        a torch.distributed group of the CPU (gloo) that holds every process of the job
                 that reads this stream: all data ranks, and the tensor-, pipeline- and
                 context-parallel peers of each. Default: if rank and world come from a mesh or
                 torch.distributed, a group of all its processes, made here; else none
    agree        compare over the group, here and at every seek, that all begin at one cursor and
                 every rank is there equally often; else DisagreementError on all. This makes the
                 constructor and seek() calls that all processes make together. The constructor
                 waits up to `deadline` for all of them, seek() and load_state_dict() 30 minutes;
                 after 5 s a warning names the ranks that are missing. False: for jobs whose ranks
                 attach at different times; then a group must be named if wanted
    documents    add what attention over packed documents asks for; the stream must have `documents:
                 true`
    loss_mask    add loss_mask
    provenance   add epoch, window, shard and offset
    cp           "zigzag" or "contiguous": only this context-parallel rank's slice of each row, by
                 the mesh's dim cp; without a mesh (rank, size, kind). Zigzag: of 2·size chunks,
                 those numbered rank and 2·size − 1 − rank
    transform    a pure function of one row, f(tokens, position, rng) → row of the same length: see
                 tokend.transform
    workers      so many processes that transform ahead of the trainer, in the very same order; 0:
                 in this one. The function is then sent there, so it is one of a module's top level.
                 The daemon reads for them as for other ranks, and for this process too, which keeps
                 the place
    view         batches are lent without a copy, for experts: see tokend.view. A batch then has
                 tokens, uint16 or uint32 as wide as the stream's widest dataset (a restarted daemon
                 may have a wider one in its config), [micro_batch, seq_len + extra], instead of
                 input_ids and labels, with provenance and documents if wanted; a forked child that
                 looks at one crashes, as it does not have the memory
    hold         with view: of the last so many batches any may be held when the next one is taken,
                 and none older, which is a HeldError that names the depth needed; so is a ring that
                 is not deeper than that, here and at a seek
    tokens       unsplit windows: a batch then has tokens, int64 (or dtype) [micro_batch, seq_len +
                 extra], and padding, bool [micro_batch], True in padding rows, instead of input_ids
                 and labels. Refused where the stream has extra: 0; a stream with a loss mask needs
                 loss_mask=True too
    prefetched   for a loop that takes batches ahead of its step: how many it holds that it has not
                 trained on when it saves. The state is then that of the batch before the last so
                 many taken; commit() is refused. 1 for nanoGPT's loop
    record       a directory: what is taken is recorded there, a file a process, 16 bytes a row;
                 `tokctl verify` proves from these files that nothing was repeated, lost or altered.
                 What was committed counts, from the first commit() on
    strict       True: if another process reads for this stream, run, world, rank and peer, wait for
                 its end up to `deadline`, then raise a RefusedError that names both pids. False:
                 both take the same samples and warn. Default: True under a launcher if the run has
                 a name, otherwise False

    A batch: input_ids, int64 (or dtype) [micro_batch, seq_len], and labels, int64 of the same
    shape: the tokens that follow, or -100 where there are none, where the stream's loss mask has
    0, and in padding rows; position and dataset, int64 [micro_batch], the number of each row in
    the whole run and the index of its dataset in `datasets`, both -1 for the padding rows after
    the end of a finite stream. All tensors are contiguous and new for each batch; none is a view
    of another.

    documents=True: position_ids, int64 [micro_batch, seq_len], which begin again at 0 with each
    document and each row; cu_seqlens, int32 [n + 1], where the n documents of the batch begin in
    input_ids.flatten(), and its length; and max_seqlen, the length of the longest, an int. Labels
    are as ever: the last of a document is the next one's first token. loss_mask=True: loss_mask,
    float32 [micro_batch, seq_len], 0 where the label is -100, else 1. provenance=True: epoch,
    window, shard (in its dataset's sorted list) and offset (of the first token in the shard), int64
    [micro_batch], -1 in padding rows. cp=: input_ids, labels, loss_mask and position_ids (0, 1, …
    of the row if there are no documents) are this rank's slice, [micro_batch, seq_len / size];
    cu_seqlens and max_seqlen stay those of the full rows.

    state_dict() and load_state_dict() make it a Stateful of torch.distributed.checkpoint: the state
    is the same bytes on all ranks, and any number of ranks can go on from it. One thread takes
    batches; others may ask for the state meanwhile.

    `for batch in loader` ends where a finite stream ends; the next `for` begins again at position
    0. A state saved at the end is loaded as the end: the first `for` then has no batches, and
    warns.

    Errors are tokend.Error's, each one line that names what is wrong and what to do: ArgumentError
    (a ValueError), ConnectError (a ConnectionError), RefusedError, DataError, DisagreementError,
    TransformError, WorkerError, ForkedError in a forked child, which makes a loader of its own.
    """

    # What kind of batch it gives, for type checkers: the more special first. Where the arguments
    # are not literals, any.

    # fmt: off
    @overload
    def __init__(
        self: Loader[TokensBatch[NDArray]], stream: str, micro_batch: int, *,
        framework: Numpy, tokens: Yes,
        **options: Unpack[RequestOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[TokensBatch[Tensor]], stream: str, micro_batch: int, *,
        framework: Torch | None = None, tokens: Yes,
        **options: Unpack[RequestOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[ViewBatch[NDArray]], stream: str, micro_batch: int, *,
        framework: Numpy, view: Yes,
        **options: Unpack[RequestOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[ViewBatch[Tensor]], stream: str, micro_batch: int, *,
        framework: Torch | None = None, view: Yes,
        **options: Unpack[RequestOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
        framework: Numpy, documents: Yes, loss_mask: bool = False, provenance: bool = False,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
        framework: Torch | None = None, documents: Yes,
        loss_mask: bool = False, provenance: bool = False,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
        framework: Numpy, loss_mask: Yes, documents: bool = False, provenance: bool = False,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
        framework: Torch | None = None, loss_mask: Yes,
        documents: bool = False, provenance: bool = False,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[NDArray]], stream: str, micro_batch: int, *,
        framework: Numpy, provenance: Yes, documents: bool = False, loss_mask: bool = False,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[Tensor]], stream: str, micro_batch: int, *,
        framework: Torch | None = None, provenance: Yes,
        documents: bool = False, loss_mask: bool = False,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[Batch[NDArray]], stream: str, micro_batch: int, *,
        framework: Numpy,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[Batch[Tensor]], stream: str, micro_batch: int, *,
        framework: Torch | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[RequestedBatch[Any]], stream: str, micro_batch: int, *,
        framework: str | None = None, documents: bool = False, loss_mask: bool = False,
        provenance: bool = False, tokens: bool = False, view: bool = False,
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
        deadline: float = 300.0,
        framework: str | None = None,
        dtype: Any = None,
        device: Any = None,
        group: Any = None,
        agree: bool = True,
        documents: bool = False,
        loss_mask: bool = False,
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
        self._client: Any = None
        self._control: Any = None
        self._source: Source | None = None
        self._feed: Any = None
        self._ahead: Prefetched | None = None
        self._ended = False  # next() has said so, here
        self._passes = 0  # that began again at position 0
        self._agree = agree
        self._rank, self._world, self._peer = 0, 1, peer
        patience = arguments.unchecked_deadline(deadline)
        if group is None and agree and rank is None and world is None:
            group = groups.of_all(patience)
        together = groups.over(group)

        def attach(socket: Any, **reach: Any) -> None:
            """@reach: how the daemon of a config is reached; workers reach it so, too."""
            self._session = {
                "stream": stream,
                "socket": arguments.socket(socket),
                "run": run,
                "peer": self._peer,
                "slots": slots,
            }
            self._session |= {"deadline_ms": max(1, round(deadline * 1000)), **reach}
            self._client = _tokend.Client(
                micro_batch=micro_batch,
                rank=self._rank,
                world=self._world,
                strict=arguments.strict(strict, run),
                **arguments.where(start),
                **self._session,
            )

        def begin() -> None:
            """Whatever may be wrong in this process alone is found in here: the others are waiting
            to be told.
            """
            nonlocal run
            arguments.check_names(stream, run)
            arguments.check_deadline(deadline)
            arguments.check_workers(workers, transform)
            arguments.check_view(
                view, hold, dtype, loss_mask, cp, transform, arguments.is_cuda(device)
            )
            arguments.check_tokens(tokens, view, cp)
            run = run or job.token()
            self._make = arrays.framework(framework)
            there = arguments.cuda(device, self._make)
            token_type = arrays.token_type(self._make, dtype)
            place = arguments.place(mesh, rank, world, peer)
            self._rank, self._world, self._peer = place[:3]
            share = arguments.cp_slice(cp, place, mesh is not None)
            self._micro = micro_batch
            if self._asks(together):
                same_place.check_places(together, self._rank, self._world, self._peer, micro_batch)
            if config is None:
                attach(socket, connect_ms=arguments.patience(deadline))
            else:
                arguments.check_config(config, socket)
                private.attach(config, deadline, attach)
            if view:
                self._client.lend(hold)
            if documents:
                self._client.need_documents()
            if record is not None:
                self._client.record(
                    arguments.record_path(record, self._client.run(), self._rank, self._peer)
                )
            self._wanted = Wanted(
                documents, provenance, loss_mask, share, *token_type, there, view, tokens
            )
            self._ahead = holding(prefetched, self._client)
            if transform is not None:
                self._source = self._transforms(transform, workers)
            self._measure()

        try:
            self._in_agreement(together, begin, patience)
        except BaseException:
            self.close()
            raise
        daemon = zlib.crc32(
            f"{gethostname()} {os.path.realpath(self._session['socket'])}".encode(
                errors="surrogateescape"
            )
        )
        self._control = Control(self._client, together, daemon | 1 << 32)
        # if there is no `together`
        self._alone = group is not None or max(self._world, groups.processes()) == 1
        self._inside = 0.0  # seconds in next(), in all

    def _transforms(self, transform: Callable[..., Any], workers: int) -> Source:
        from . import transform as transforms

        seed, greatest = (
            Cursor(self._client.cursor()).seed,
            transforms.greatest(self._wanted.token_bytes),
        )
        if not workers:
            return transforms.InProcess(
                self._client, transforms.Transform(transform, seed, greatest)
            )
        from .workers import Workers

        return Workers(self._client, workers, transform, seed, self._session, greatest)

    # ---- the others of the job ----

    def _asks(self, together: groups.Group | None) -> bool:
        return together is not None and self._agree and not together.gone()

    def _in_agreement(
        self,
        together: groups.Group | None,
        go: Callable[[], None],
        patience: float = groups.PATIENCE_S,
    ) -> None:
        """go() on all processes, and then a look whether they fit. One that fails says so to the
        others first.
        """
        asked = self._asks(together)
        if asked:
            together.meet(patience)  # type: ignore[union-attr]
        try:
            go()
        except same_place.DisagreementError:  # all know already
            raise
        except Exception as error:
            if asked:
                with contextlib.suppress(same_place.DisagreementError):  # that is for the others
                    same_place.check(together, None, self._peer, error)
            raise
        if asked:
            same_place.check(together, self._client, self._peer)

    def _measure(self) -> None:
        """After an attach or a seek: what may be another shape, at another place."""
        if self._source is not None:
            self._source.begin()
        if self._wanted.device is not None and self._source is None:
            self._feed_device()
        self._batches: Batches | None = Batches(
            self._client, self._make, self._wanted, self._source, self._feed
        )

    def _measured(self) -> Batches:
        if self._batches is None:  # what came after a seek was interrupted, or failed
            self._measure()
        return self._batches  # type: ignore[return-value]

    def _feed_device(self) -> None:
        if self._feed is not None:
            self._feed.begin(self._client.shape())
            return
        from .device import Feed

        split = not self._wanted.tokens
        self._feed = Feed(
            self._client, self._client.shape(), self._wanted.device, self._wanted.dtype, split=split
        )

    # ---- batches ----

    def __iter__(self) -> Iterator[B]:
        """A pass from here to the stream's end, if it has one. After next() has said that the end
        is reached, a new pass begins again at position 0, with its first batch.
        """
        dataset.check_who_iterates()
        return Pass(self)

    def __next__(self) -> B:
        begin = perf_counter()
        batches = self._batches or self._measured()
        batch = batches.take() if self._ahead is None else self._ahead.take(batches)
        self._inside += perf_counter() - begin
        if batch is None:
            self._ended = True
            raise StopIteration
        return batch  # type: ignore[no-any-return]

    def _begin_again(self) -> None:
        """At position 0. Each process does so for itself, when it asks for the first batch of
        another pass.
        """
        self._control.finish()
        self._batches = None
        if self._ahead is not None:
            # of the pass that ended nothing can be asked for any more
            self._client.commit(self._client.taken())
        beginning = _tokend.cursor_seek(self._client.cursor(), 0)
        self._client.seek(beginning, self._rank, self._world, self._micro, True)
        self._begun(beginning)
        self._passes += 1
        self._measure()

    def _begun(self, cursor: bytes | None) -> None:
        """The client has gone to @cursor. None: to where it was, so what is taken and not trained
        on yet stays so.
        """
        self._ended = False
        if self._ahead is not None and cursor is not None:
            self._ahead.begin()

    def __len__(self) -> int:
        """Batches this rank gets in all from where it attached or last seeked; only finite streams
        have a length.
        """
        dataset.check_who_asks(self)
        batches = self._measured()
        if dataset.is_lightning() and (batches.length is None or batches.begin > 0):
            return dataset.ENDLESS
        if batches.length is None:
            raise TypeError("this stream has no end, so its loader has no length")
        return batches.length

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(dataset.PLACE)

    def __bool__(self) -> bool:
        return True

    # ---- an operator's word ----

    def control(self) -> Request | None:
        """Carries out what an operator asked for with tokctl (mix, skip, checkpoint, drain,
        rescale); None, or a Request.

        Called after every step by every process of the job. The processes look at each other about
        once a second, and at least every 64 steps, by an all-reduce of 16 bytes that nobody waits
        for.

            for batch in loader:
                train(batch)
                request = loader.control()
                if request and request.save:
                    save(model, loader), request.done()
                if loader.should_stop: break

        A request that fails changes nothing on any rank: it is returned with `error`, and training
        goes on. Without done(), the next control() or close() takes the request for done. Where
        there are several processes the loader must know their group; one that never calls control()
        leaves the others without, not stuck.
        """
        if self._control.group is None and not self._alone:
            self._client.position()  # closed, or in a forked child: that comes first
            raise _tokend.ArgumentError(
                f"control: rank {self._rank} of {self._world} in a job of "
                f"{max(self._world, groups.processes())} processes, and the "
                "loader was given no group of them: pass group=, a gloo group of all that read "
                "this stream"
            )
        request = self._control.step()
        if request is not None:
            self._measure()
        return request

    @property
    def should_stop(self) -> bool:
        """An operator asked this job to leave (drain, rescale), and control() has returned that."""
        return self._control.stopping

    # ---- the rest ----

    def stats(self) -> dict[str, float]:
        """Numbers of this process since the loader was made; Throughput makes shares and rates of
        them for a logger.

        batches, tokens  taken in all by this process; a row counts with all of its window
        waited_s         seconds that next() waited for the daemon or for workers, in all
        next_s           seconds inside next(), in all: waiting, copying, transforms
        reattached       times the daemon was lost and found; lost_wakes: 0 in a sound system
        pinned_bytes     of the ring, registered with a GPU's driver: with device="cuda", 0 means
                         that copies are slower
        """
        shape = self._client.shape()
        stats = {
            name: shape[name]
            for name in (
                "batches",
                "tokens",
                "waited_s",
                "reattached",
                "lost_wakes",
                "pinned_bytes",
            )
        }
        if self._source is not None:
            stats["waited_s"] += self._source.waited_s
        return {**stats, "next_s": self._inside}

    def close(self) -> None:
        """Gives everything back; batches stay. Workers end. What an operator asked for last is
        taken for done.
        """
        if self._source is not None:
            self._source.close()
        if self._client is None:
            return
        if self._control is not None:
            self._control.finish(sys.exc_info()[1])
        self._client.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "Loader: is a session of this process, which cannot be copied or pickled: make one in "
            "the process that "
            "reads; state_dict() can be"
        )

    def __enter__(self) -> Loader[B]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tokend.Loader rank {self._rank} of {self._world}, micro_batch {self._micro}>"
