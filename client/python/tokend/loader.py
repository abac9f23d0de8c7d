"""The loader: an iterator of batches whose whole state is one cursor."""

from . import _tokend, job, private

IGNORE = -100  # a label that losses leave out
ROWS_AHEAD = 32  # batches whose small tensors are made at once: most of a small tensor's cost is the call


class _Torch:
    def __init__(self):
        import torch

        self.empty, self.int64 = torch.empty, torch.int64

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

        self.empty, self.int64 = numpy.empty, numpy.int64

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
    if isinstance(start, (bytes, bytearray, memoryview)):
        return {"cursor": bytes(start)}
    if isinstance(start, str):
        return {} if start == "begin" else {"tag": start}
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        raise TypeError(f"start: {start!r}, must be 'begin', a position, the tag of a checkpoint, or a cursor's bytes")
    return {"position": start}


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
    start        "begin", a position, the tag of a checkpoint ("TAG" or "RUN/TAG"), or a cursor's bytes
    deadline     seconds to look for a daemon that was lost
    framework    "torch" or "numpy"; default torch if it is installed

    Iterating gives dicts: input_ids and labels, int64 [micro_batch, seq_len], labels being the tokens that follow
    (-100 where there are none); position and dataset, int64 [micro_batch], the number of each row in the whole run and
    the index of its dataset in `datasets`; both are -1 for the padding rows behind the end of a finite stream, whose
    labels are -100. input_ids and labels are views of one tensor, new for each batch.

    state_dict() and load_state_dict() make it a Stateful of torch.distributed.checkpoint: the state is the same bytes on
    all ranks, and any number of ranks can go on from it.
    """

    def __init__(self, stream, micro_batch, *, socket=None, config=None, run=None, rank=None, world=None, peer=0, slots=0,
                 start="begin", deadline=300.0, framework=None):
        if socket is not None and config is not None:
            raise ValueError("socket, config: give one of them")
        self._client = None
        self._make = _framework(framework)
        self._rank, self._world = job.coordinate(rank, world)
        self._micro = micro_batch
        where = _where(start)

        def attach(socket):
            return _tokend.Client(
                stream, micro_batch, socket=socket and str(socket), run=run or job.token(), rank=self._rank, world=self._world,
                peer=peer, slots=slots, deadline_ms=max(1, round(deadline * 1000)), **where,
            )

        if config is None:
            self._client = attach(socket)
        else:
            try:
                self._client = attach(private.socket_for(config, deadline))
            except _tokend.ConnectError:  # it was just about to leave
                self._client = attach(private.socket_for(config, deadline))
        self._measure()

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
        taken = self._next_into(make.address(tokens), make.address(position), make.address(dataset))
        if taken is None:
            raise StopIteration
        self.taken = taken[1]
        if taken[0] == micro and self._window > seq:
            labels = tokens[:, 1:seq + 1]
        else:
            labels = self._labels(tokens, taken[0])
        return {"input_ids": tokens[:, :seq], "labels": labels, "position": position, "dataset": dataset}

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

    def seek(self, cursor=None, *, position=None, rank=None, world=None, micro_batch=None):
        """Goes on from another cursor or position (default: from here), as another rank, or with other batches."""
        if cursor is not None and position is not None:
            raise ValueError("cursor, position: give one of them")
        if position is not None:
            cursor = _tokend.cursor_seek(self._client.cursor(), position)
        rank = self._rank if rank is None else rank
        world = self._world if world is None else world
        micro_batch = self._micro if micro_batch is None else micro_batch
        self._client.seek(cursor, rank, world, micro_batch)
        self._rank, self._world, self._micro = rank, world, micro_batch
        self._measure()

    def set_mix(self, weights):
        """New weights by dataset name, the same call on all ranks; returns the position from which they act."""
        acts_from = self._client.set_mix(list(weights), [float(weight) for weight in weights.values()])
        self._measure()
        return acts_from

    # ---- the rest ----

    def stats(self):
        shape = self._client.shape()
        return {name: shape[name] for name in ("batches", "tokens", "waited_s", "reattached", "lost_wakes")}

    def close(self):
        if self._client is not None:
            self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"<tokend.Loader rank {self._rank} of {self._world}, micro_batch {self._micro}>"
