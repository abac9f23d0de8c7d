"""The loader: an iterator of batches whose whole state is one cursor."""

import contextlib
import os
import sys
import time
import zlib
from socket import gethostname

from . import _tokend, agreement, job, private
from . import group as groups
from .control import Control
from .cursor import Cursor

IGNORE = -100  # a label that losses leave out
SAME = object()  # seek()'s group unless another one is named
SOCKET = "/run/tokend/tokend.sock"
ROWS_AHEAD = 32  # batches whose small tensors are made at once: most of a small tensor's cost is the call


class _Torch:
    def __init__(self):
        import torch

        self.empty, self.int64, self.int32 = torch.empty, torch.int64, torch.int32

    def new(self, *shape):
        return self.empty(shape, dtype=self.int64)

    def rows(self, n, width):
        return list(self.new(n, width).unbind(0))

    @staticmethod
    def address(array):
        return array.data_ptr()

    @staticmethod
    def copy(array):
        return array.clone()


class _Numpy:
    def __init__(self):
        import numpy

        self.empty, self.int64, self.int32 = numpy.empty, numpy.int64, numpy.int32

    def new(self, *shape):
        return self.empty(shape, dtype=self.int64)

    def rows(self, n, width):
        return list(self.new(n, width))

    @staticmethod
    def address(array):
        return array.__array_interface__["data"][0]

    @staticmethod
    def copy(array):
        return array.copy()


def _framework(name):
    if name not in (None, "torch", "numpy"):
        raise ValueError(f"framework: {name!r}, must be 'torch' or 'numpy'")
    if name != "numpy":
        try:
            return _Torch()
        except ImportError:
            if name == "torch":
                raise
    return _Numpy()


def _where(start):
    """start= as the arguments of a session."""
    if isinstance(start, (Cursor, bytes, bytearray, memoryview)):
        return {"cursor": bytes(start)}
    if isinstance(start, str):
        return {} if start == "begin" else {"tag": start}
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        raise TypeError(f"start: {start!r}, must be 'begin', a position, the tag of a checkpoint, or a cursor")
    return {"position": start}


def _record_path(directory, run, rank, peer):
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, f"{run}.{rank}-{peer}.{os.getpid()}-{time.time_ns()}.record")


class Loader:
    """Micro-batches of one stream for one data-parallel rank.

    stream       its name in the daemon's config
    micro_batch  rows of a batch
    socket       where the daemon listens; default $TOKEND_SOCKET, else /run/tokend/tokend.sock
    config       instead: a config file; a daemon is started for it if none serves it yet
    run          names the job; default the launcher's token (torchrun, Slurm), else "default"
    rank, world  default from torch.distributed, torchrun's or Slurm's environment, else a job of one
    peer         number among the tensor-, pipeline- and context-parallel processes of this rank
    slots        batches of read-ahead; 0: the daemon's choice
    start        "begin", a position, the tag of a checkpoint ("TAG" or "RUN/TAG"), or a cursor
    deadline     seconds to look for a daemon that was lost
    framework    "torch" or "numpy"; default torch if it is installed
    group        a torch.distributed group of the CPU (gloo) that holds every process of the job that reads this stream: all
                 data ranks, and the tensor-, pipeline- and context-parallel peers of each. Default: if rank and world
                 come from torch.distributed, a group of all its processes, made here; else none
    agree        compare over the group, here and at every seek, that all begin at one cursor and every rank is there equally
                 often; else DisagreementError on all. This makes the constructor and seek() calls that all processes make
                 together. False: for jobs whose ranks attach at different times; then a group must be named if wanted
    documents    add to each batch what attention over packed documents asks for; the stream must have `documents: true`
    record       a directory: what is taken is recorded there, a file a process, 16 bytes a row; `tokctl verify` proves from
                 these files that nothing was repeated, lost or altered

    Iterating gives dicts: input_ids and labels, int64 [micro_batch, seq_len], labels being the tokens that follow
    (-100 where there are none); position and dataset, int64 [micro_batch], the number of each row in the whole run and
    the index of its dataset in `datasets`; both are -1 for the padding rows behind the end of a finite stream, whose
    labels are -100. input_ids and labels are views of one tensor, new for each batch.

    With documents=True also position_ids, int64 [micro_batch, seq_len], which begin again at 0 with each document and each
    row; cu_seqlens, int32 [n + 1], where the n documents of the batch begin in input_ids.flatten(), and its length; and
    max_seqlen, the length of the longest, an int. Labels are as ever: the last of a document is the next one's first token.

    state_dict() and load_state_dict() make it a Stateful of torch.distributed.checkpoint: the state is the same bytes on
    all ranks, and any number of ranks can go on from it.
    """

    def __init__(self, stream, micro_batch, *, socket=None, config=None, run=None, rank=None, world=None, peer=0, slots=0,
                 start="begin", deadline=300.0, framework=None, group=None, agree=True, documents=False,
                 record=None):
        if socket is not None and config is not None:
            raise ValueError("socket, config: give one of them")
        self._client = self._control = None
        self._make = _framework(framework)
        if group is None and agree and rank is None and world is None:
            group = groups.of_all()
        self._rank, self._world = job.coordinate(rank, world)
        self._micro, self._peer, self._agree, self._documents = micro_batch, peer, agree, documents
        run = run or job.token()
        where = _where(start)
        together = self._among(group)

        def attach(socket):
            self._client = _tokend.Client(
                stream, micro_batch, socket=socket and str(socket), run=run, rank=self._rank, world=self._world,
                peer=peer, slots=slots, deadline_ms=max(1, round(deadline * 1000)), **where,
            )
            self._socket = socket or os.environ.get("TOKEND_SOCKET") or SOCKET

        def begin():
            if config is None:
                attach(socket)
            else:
                try:
                    attach(private.socket_for(config, deadline))
                except _tokend.ConnectError:  # it was just about to leave
                    attach(private.socket_for(config, deadline))
            if documents:
                self._client.need_documents()
            if record is not None:
                self._client.record(_record_path(record, run or "default", self._rank, peer))

        try:
            self._in_agreement(together, begin)
        except BaseException:
            self.close()
            raise
        daemon = zlib.crc32(f"{gethostname()} {os.path.realpath(self._socket)}".encode(errors="surrogateescape"))
        self._control = Control(self._client, together, daemon)
        self._alone = group is not None or max(self._world, groups.processes()) == 1  # if there is no `together`
        self._measure()

    # ---- the others of the job ----

    @staticmethod
    def _among(given):
        """The processes to talk to, or None: this one is alone, or knows of no others."""
        return None if given is None or given.size() == 1 else groups.Group(given)

    def _in_agreement(self, together, go):
        """go() on all processes, and then a look whether they fit. One that fails says so to the others first."""
        asked = together is not None and self._agree and not together.gone()
        try:
            go()
        except Exception as error:
            if asked:
                with contextlib.suppress(agreement.DisagreementError):  # that is for the others
                    agreement.check(together, None, self._peer, error)
            raise
        if asked:
            agreement.check(together, self._client, self._peer)

    def _measure(self):
        self.taken = self._client.taken()  # the position behind the last batch taken
        shape = self._client.shape()
        self._seq = shape["seq_len"]
        self._window = shape["window_tokens"]
        self._length = shape["batches_in_all"]
        self._rows = []
        self._next_into = self._client.next_into

    # ---- batches ----

    def __iter__(self):
        return self

    def __next__(self):
        make, micro, seq = self._make, self._micro, self._seq
        if not self._rows:
            self._rows = make.rows(2 * ROWS_AHEAD, micro)
        position, dataset = self._rows.pop(), self._rows.pop()
        tokens = make.new(micro, self._window)
        if self._documents:
            ids, starts = make.new(micro, seq), make.empty(micro * seq + 1, dtype=make.int32)
            taken = self._next_into(
                make.address(tokens), make.address(position), make.address(dataset), make.address(ids), make.address(starts)
            )
        else:
            taken = self._next_into(make.address(tokens), make.address(position), make.address(dataset))
        if taken is None:
            raise StopIteration
        self.taken = taken[1]
        if taken[0] == micro and self._window > seq:
            labels = tokens[:, 1:seq + 1]
        else:
            labels = self._labels(tokens, taken[0])
        batch = {"input_ids": tokens[:, :seq], "labels": labels, "position": position, "dataset": dataset}
        if self._documents:
            batch.update(position_ids=ids, cu_seqlens=starts[:taken[2] + 1], max_seqlen=taken[3])
        return batch

    def _labels(self, tokens, valid):
        """Labels that are no plain view: behind some there is no token, or there are padding rows."""
        labels = self._make.copy(tokens[:, :self._seq])
        following = tokens[:, 1:self._seq + 1]
        labels[:, :following.shape[1]] = following
        labels[:, following.shape[1]:] = IGNORE
        labels[valid:] = IGNORE
        return labels

    def __len__(self):
        """Batches this rank gets in all from where it attached or last seeked; only finite streams have a length."""
        if self._length is None:
            raise TypeError("this stream has no end, so its loader has no length")
        return self._length

    def __bool__(self):
        return True

    # ---- where we are ----

    def state_dict(self):
        return {"cursor": self._client.cursor()}

    def load_state_dict(self, state):
        self.seek(state["cursor"])

    @property
    def rank(self):
        return self._rank

    @property
    def world(self):
        """How many data-parallel ranks there are."""
        return self._world

    @property
    def cursor(self):
        """The same as a Cursor, to look at and to edit."""
        return Cursor(self._client.cursor())

    def fresh(self):
        """The Cursor at the stream's beginning, with all datasets that the daemon's config has now."""
        return Cursor(self._client.stream())

    @property
    def position(self):
        """The first sample of the run that no rank has taken (or committed) yet."""
        return self._client.position()

    @property
    def fingerprint(self):
        """A number that is equal on all ranks at one step, or they are not of one job."""
        return self._client.fingerprint()

    @property
    def datasets(self):
        """Names of the datasets, by the index in batches."""
        return self._client.datasets()

    def commit(self, next=None):
        """For trainers that fetch ahead: all batches up to the one behind which `taken` was @next have been trained on.

        Default: all that were taken. From the first call on, the state is that of the committed place.
        """
        self._client.commit(self.taken if next is None else next)

    def checkpoint(self, tag):
        """Has the daemon write the cursor durably under @tag; returns where."""
        return self._client.checkpoint(tag)

    # ---- going elsewhere ----

    def seek(self, cursor=None, *, position=None, rank=None, world=None, micro_batch=None, group=SAME):
        """Goes on from another cursor or position (default: from here), as another rank, or with other batches.

        With a group all its processes do so together, and are compared as when they attached. group: the processes that go
        on; default those of before, but none where the world becomes another, as nobody can know who stays.
        """
        if cursor is not None and position is not None:
            raise ValueError("cursor, position: give one of them")
        if position is not None:
            cursor = _tokend.cursor_seek(self._client.cursor(), position)
        elif cursor is not None:
            cursor = bytes(cursor)
        rank = self._rank if rank is None else rank
        world = self._world if world is None else world
        micro_batch = self._micro if micro_batch is None else micro_batch
        self._control.finish()  # it speaks of the place that we leave
        control, alone = self._control, self._alone
        if group is not SAME:
            control, alone = control.over(self._among(group)), group is not None or world == 1
        elif world != self._world:
            control, alone = control.over(None), max(world, groups.processes()) == 1

        def go():
            self._client.seek(cursor, rank, world, micro_batch)
            self._rank, self._world, self._micro = rank, world, micro_batch
            self._measure()  # before the others are asked: whatever they say, this is where we are

        self._in_agreement(control.group, go)
        self._control, self._alone = control, alone

    def set_mix(self, weights):
        """New weights by dataset name, the same call on all ranks; returns the position from which they act."""
        weights = dict(weights)
        acts_from = self._client.set_mix(list(weights), [float(weight) for weight in weights.values()])
        self._measure()
        return acts_from

    # ---- an operator's word ----

    def control(self):
        """Carries out what an operator asked for with tokctl (mix, skip, checkpoint, drain, rescale); None, or a Request.

        Called after every step by every process of the job. The processes look at each other about once a second (if steps
        take less, at least every 16 steps), by an all-reduce of 16 bytes that nobody waits for.

            for batch in loader:
                train(batch)
                request = loader.control()
                if request and request.save:
                    save(model, loader), request.done()
                if loader.should_stop: break

        A request that fails changes nothing on any rank: it is returned with `error`, and training goes on. Without
        done(), the next control() or close() takes the request for done. Where there are several processes the loader must
        know their group; one that never calls control() leaves the others without, not stuck.
        """
        if self._control.group is None and not self._alone:
            raise _tokend.ArgumentError(
                f"control: rank {self._rank} of {self._world} in a job of {max(self._world, groups.processes())} processes, and the "
                "loader was given no group of them: pass group=, a gloo group of all that read this stream"
            )
        request = self._control.step()
        if request is not None:
            self._measure()
        return request

    @property
    def should_stop(self):
        """An operator asked this job to leave (drain, rescale), and control() has returned that."""
        return self._control.stopping

    # ---- the rest ----

    def stats(self):
        shape = self._client.shape()
        return {name: shape[name] for name in ("batches", "tokens", "waited_s", "reattached", "lost_wakes")}

    def close(self):
        if self._client is None:
            return
        if self._control is not None:
            self._control.finish(sys.exc_info()[1])
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"<tokend.Loader rank {self._rank} of {self._world}, micro_batch {self._micro}>"
