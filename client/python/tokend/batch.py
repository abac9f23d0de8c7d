"""Batches: dicts of new arrays, torch's or NumPy's, that the extension fills from the ring."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

from . import phrases
from .cursor import Cursor
from .device import Cuda, Feed
from .errors import ArgumentError

DOCUMENTS, LOSS_MASK = 1, 2  # bits of tokend_annotations()
IGNORE = -100  # a label that losses ignore
FIELDS = ("position", "dataset", "epoch", "window", "shard", "offset")  # in the extension's order
SLICED = ("input_ids", "labels", "position_ids", "loss_mask")
TORCH_AT_LEAST = (2, 2)  # public DeviceMesh
BYTES = {"int32": 4, "int64": 8}
AHEAD = 1 << 16  # inputs of the batches whose arrays are made together


class Batch(TypedDict):
    """A micro-batch: a dict of torch.Tensor, or of numpy.ndarray with framework="numpy". It has
    only those keys that the loader was asked for. b is micro_batch, s is seq_len:

      input_ids     int64 or dtype [b, s]
      labels        int64 or dtype [b, s]: the next tokens, already shifted; -100 in padding rows,
                    where the stream's loss mask has 0, and where the window ends
      position      int64 [b]: number of each row in the run; -1 in padding rows, which follow the
                    end of a finite stream
      dataset       int64 [b]: index in `datasets`; -1 in padding rows
    With documents=True:
      position_ids  int64 [b, s]: from 0 in each document and each row
      cu_seqlens    int32 [n + 1]: starts of the batch's n documents in input_ids.flatten(), then
                    its length
      max_seqlen    int: length of the longest document
    With loss_mask=True:
      loss_mask     float32 [b, s]: 0 where labels, or shift_labels if asked for, are -100,
                    otherwise 1
    With shift_labels=True:
      shift_labels  int64 or dtype [b, s]: what labels are without it. Models that take these lose
                    no label; others lose the last of each row
      labels        the same, one place later: a row begins with -100
    With provenance=True, int64 [b], -1 in padding rows:
      epoch         of the row's dataset
      window        its number in the dataset
      shard         number of its shard in the dataset's sorted list
      offset        number of its first token in the shard

    With documents, the last label of a document is the first token of the next. With cp, [b, s]
    becomes [b, s / size] and position_ids are added; cu_seqlens and max_seqlen describe full rows.
    "zigzag" gives chunks rank and 2·size − 1 − rank of 2·size. With device="cuda", all with an s,
    and cu_seqlens, are on the GPU, in order with its current stream: see tokend.device.
    Each batch has arrays of its own, contiguous, that are never overwritten.
    """

    input_ids: Any
    labels: Any
    position: Any
    dataset: Any
    # on request; a type checker takes them for always there
    position_ids: Any
    cu_seqlens: Any
    max_seqlen: int
    loss_mask: Any
    shift_labels: Any
    epoch: Any
    window: Any
    shard: Any
    offset: Any


def unshifted(labels: Any, module: Any) -> Any:
    """Labels for models that shift them: a row's last one has no place. @module: torch or numpy."""
    made = module.roll(labels, 1, 1)
    made[:, 0] = IGNORE
    return made


# ---- frameworks ----


class Framework:
    """torch or NumPy: makes the arrays that the extension fills."""

    def __init__(self, module: Any) -> None:
        self.module, self.name = module, module.__name__
        self.address: Callable[[Any], int] = lambda array: array.__array_interface__["data"][0]
        self.cpu = {}
        self.normal: Callable[[], Any] = contextlib.nullcontext
        if self.name == "torch":
            self.address = module.Tensor.data_ptr
            # a later batch may not be for inference
            self.normal = functools.partial(module.inference_mode, False)
            self.cpu = {"device": module.device("cpu")}  # whatever the program's default device

    def maker(self, shape: tuple[int, ...], dtype: str, pinned: bool = False) -> Callable[[], Any]:
        """Returns a function that makes arrays in the CPU's memory. It holds one, untouched."""
        kind, more = getattr(self.module, dtype), {"pin_memory": True} if pinned else {}
        like = self.module.empty(shape, dtype=kind, **self.cpu)
        return functools.partial(self.module.empty_like, like, **more)  # faster than empty()


def _torch() -> Any:
    import torch

    parts = str(torch.__version__).split("+")[0].split(".")[:2]
    if tuple(int(part) for part in parts if part.isdigit()) < TORCH_AT_LEAST:
        least = ".".join(map(str, TORCH_AT_LEAST))
        raise ImportError(f"torch: {torch.__version__} is older than {least}; pip install -U torch")
    return torch


def framework(name: str | None) -> Framework:
    """The framework @name; None: torch if it is installed, otherwise NumPy."""
    if name not in (None, "torch", "numpy"):
        raise ValueError(phrases.is_not("framework", name, "'torch' or 'numpy'"))
    for module in (name,) if name else ("torch", "numpy"):
        try:
            return Framework(_torch() if module == "torch" else __import__(module))
        except ModuleNotFoundError as error:
            if error.name != module:  # it is installed, but broken: report it
                raise
    missing = f"{name} is not" if name else "neither torch nor numpy is"
    raise ImportError(f"framework: {missing} installed; pip install {name or 'torch'}")


# ---- what a loader was asked for ----


class Wanted(NamedTuple):
    make: Framework
    types: dict[str, str]  # of input_ids and labels
    documents: bool
    loss_mask: bool
    shift_labels: bool
    provenance: bool
    cp: tuple[int, int, str] | None  # rank, size, kind
    device: Any  # a CUDA device, or None


def types(dtype: Any) -> dict[str, str]:
    """dtype=: a type for input_ids, or a mapping from a batch's keys to types."""
    asked = dtype if isinstance(dtype, Mapping) else {"input_ids": dtype}
    made = {"input_ids": "int64", "labels": "int64"}
    for key, kind in asked.items():
        if key not in made:
            raise ArgumentError(phrases.is_not("dtype", key, "a key for input_ids, labels"))
        name = getattr(kind, "__name__", str(kind).split(".")[-1])
        if kind is not None and name not in ("int64", "int32"):
            raise ArgumentError(
                f"dtype: {kind} cannot hold all tokens (unsigned, of 16 or 32 bits), or embeddings "
                "do not take it; pass int64 or int32"
            )
        made[key] = made[key] if kind is None else name
    return made


def cp_slice(cp: Any, of_mesh: tuple[int, int] | None) -> tuple[int, int, str] | None:
    """cp= as (rank, size, kind) of this process. @of_mesh: its rank and size in the dim cp."""
    if cp is None:
        return None
    kind = cp[2] if isinstance(cp, (tuple, list)) and len(cp) == 3 else cp
    if kind not in ("zigzag", "contiguous"):
        what = "'zigzag', 'contiguous', or (rank, size, one of these)"
        raise ArgumentError(phrases.is_not("cp", cp, what))
    if isinstance(cp, str) and of_mesh is None:
        raise ArgumentError(
            f"cp: {cp!r} needs a mesh with a dim cp, and only one; or pass cp=(rank, size, {cp!r})"
        )
    rank, size = of_mesh if isinstance(cp, str) else cp[:2]  # type: ignore[misc]
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size):
        raise ArgumentError(
            f"cp: rank {rank!r} is not below size {size!r}; pass (rank, size, kind)"
        )
    if of_mesh and size <= of_mesh[1] and (rank, size) != of_mesh:  # more: of other dims, too
        raise ArgumentError(
            f"cp: (rank, size) is {(rank, size)}, and {of_mesh} in the mesh; pass cp={kind!r}"
        )
    return rank, size, kind


def chunks(seq: int, cp: tuple[int, int, str]) -> list[slice]:
    """Returns this rank's parts of a row's @seq inputs; none of them if it has the whole row."""
    rank, size, kind = cp
    if size == 1:
        return []
    parts = 2 * size if kind == "zigzag" else size
    if seq % parts:
        raise ArgumentError(
            f"cp: seq_len {seq} is not a multiple of {parts} chunks ({kind}, {size} ranks); "
            "choose another seq_len"
        )
    each = seq // parts
    mine = (rank, parts - 1 - rank) if kind == "zigzag" else (rank,)
    return [slice(i * each, (i + 1) * each) for i in mine]


# ---- making them ----


class Batches:
    """Makes batches.

    A signal's handler may raise wherever Python calls a function. So look() may be called again,
    and the batch is taken last, before next() returns it.

    The tokens come from the extension; from a feed, which copies them to a GPU; or from @workers.
    @transform: a transform.Transform, or None.
    """

    def __init__(self, client: Any, wanted: Wanted, transform: Any, workers: Any) -> None:
        self._client, self.wanted = client, wanted
        self._transform, self._workers = transform, workers
        self.feed: Feed | None = None
        if wanted.device is not None and transform is None:
            self.feed = Feed(client, Cuda(wanted.make.module, wanted.device), wanted.types)
        self._shown = FIELDS if wanted.provenance else FIELDS[:2]
        self._fields = self._shown if transform is None else FIELDS
        self.begin()

    def begin(self) -> None:
        """Adapts to the shape of the batches, after an attach or a move; and when a restarted
        daemon's config differs. If it fails, look() tries again.
        """
        shape, wanted, make = self._client.shape(), self.wanted, self.wanted.make
        self.micro, self.seq, window = shape["rows"], shape["seq_len"], shape["window_tokens"]
        self.end = Cursor(self._client.cursor).end  # of the stream
        self._cut = chunks(self.seq, wanted.cp) if wanted.cp else None
        for asked, bit, keys in (
            (wanted.documents, DOCUMENTS, "documents: true and eos"),
            (wanted.loss_mask, LOSS_MASK, "loss_mask: true"),
        ):
            if asked and not shape["annotations"] & bit:
                key = keys.partition(":")[0]
                raise ArgumentError(
                    f"{key}: the stream has none; set {keys} in the daemon's config, or omit {key}="
                )
        # a transform gets all tokens of a window, as int64, and the origin of each row
        ids, labels = wanted.types["input_ids"], wanted.types["labels"]
        kind, width = (ids, self.seq) if self._transform is None else ("int64", window)
        self._layout = BYTES[kind], width, BYTES[labels]
        # On a device labels are the tokens that follow, unless they depend on more: on a loss
        # mask, or on the window's end. Those the extension writes.
        masked = shape["annotations"] & LOSS_MASK
        self._writes_labels = self.feed is None or masked or window <= self.seq
        # pinned, if it is copied to a device: otherwise the copy could wait for the step
        pinned, rows = wanted.device is not None, (self.micro, self.seq)
        new = lambda asked, shape, kind: make.maker(shape, kind, pinned) if asked else None
        self._makers = [
            new(self.feed is None, (self.micro, width), kind),
            new(self._writes_labels, rows, labels),
            new(wanted.documents, rows, "int64"),
            new(wanted.documents, (self.micro * self.seq + 1,), "int32"),
            *[make.maker((self.micro,), "int64")] * len(self._fields),
        ]
        if self._transform is not None:
            self._new_ids = make.maker(rows, ids, pinned)
        if self._workers is not None:
            self._workers.begin()
        self._ahead: list[tuple[list[Any], tuple[int, ...]]] = []
        self._version = shape["version"]  # last: a handler may raise, or seek

    def _arrays(self) -> tuple[list[Any], tuple[int, ...]]:
        """New arrays of one batch: tokens, labels, position_ids, cu_seqlens and fields; and the
        arguments of look_into() with their places.
        """
        version = self._version  # first: another thread may begin() anew
        arrays, address = [new() if new else None for new in self._makers], self.wanted.make.address
        tokens, labels, *rest = [0 if array is None else address(array) for array in arrays]
        token_bytes, width, label_bytes = self._layout
        return arrays, (version, tokens, token_bytes, width, labels, label_bytes, *rest)

    def look(self) -> tuple[Any, int, int] | None:
        """The next batch, not yet taken, its handle, and its rows without padding. None at the
        end.
        """
        wanted = self.wanted
        try:
            arrays, into = self._ahead.pop()
        except IndexError:  # after a training step the first calls into torch take 100 µs
            more = min(3, AHEAD // (self.micro * self.seq))
            with wanted.make.normal():
                (arrays, into), *ahead = [self._arrays() for _ in range(1 + more)]
            self._ahead += ahead
        tokens, labels, ids, starts, *fields = arrays
        if self.feed is not None:
            parts = 1 if self._writes_labels else 2
            look = functools.partial(self._client.look_into, *into)
            tokens, found = self.feed.next(look, self.seq, parts)
        elif self._workers is not None:
            found = self._workers.look(tokens, fields, into)
        else:
            found = self._client.look_into(*into)
        if found is None:
            return None
        if not found:
            self.begin()
            return self.look()
        if self._transform is not None and self._workers is None:
            self._transform.apply(self._client, tokens, fields)
        valid, handle, documents, longest = found
        batch = self._tokens_and_labels(tokens, labels, valid)
        batch.update(zip(self._shown, fields, strict=False))
        if wanted.documents:
            batch["position_ids"], batch["max_seqlen"] = self._there(ids), longest
            batch["cu_seqlens"] = self._there(starts[: documents + 1])
        if self._cut is not None:
            self._share(batch)
        if wanted.shift_labels:  # after the slice: another chunk may follow an input
            batch["shift_labels"] = batch["labels"]
            batch["labels"] = unshifted(batch["labels"], wanted.make.module)
        return batch, handle, valid

    def _there(self, array: Any) -> Any:
        """On the device, if there is one. The copy is queued, and not waited for."""
        device = self.wanted.device
        return array if device is None else array.to(device, non_blocking=True)

    def _tokens_and_labels(self, tokens: Any, labels: Any, valid: int) -> dict[str, Any]:
        """Contiguous input_ids and labels, of which none is a view of another."""
        wanted, module = self.wanted, self.wanted.make.module
        if self._transform is not None:
            tokens = self._transformed(tokens, labels)
        elif self.feed is not None:
            tokens, *following = tokens.unbind()
            if labels is None:
                labels = following[0].to(getattr(module, wanted.types["labels"]))
                labels[valid:] = IGNORE
        batch = {"input_ids": self._there(tokens), "labels": self._there(labels)}
        if wanted.loss_mask:
            mask = module.empty_like(batch["labels"], dtype=module.float32)
            mask[:] = batch["labels"] != IGNORE
            batch["loss_mask"] = mask
        return batch

    def _transformed(self, tokens: Any, labels: Any) -> Any:
        """Returns input_ids, and puts the transformed tokens into @labels, except where there is
        no label.
        """
        following = tokens[:, 1 : self.seq + 1]
        part = labels[:, : following.shape[1]]
        part[:] = self.wanted.make.module.where(part == IGNORE, part, following)
        input_ids = self._new_ids()
        input_ids[:] = tokens[:, : self.seq]
        return input_ids

    def _share(self, batch: dict[str, Any]) -> None:
        """Leaves the slice of this context-parallel rank."""
        make = self.wanted.make
        if "position_ids" not in batch:
            count = make.module.arange(self.seq, **make.cpu)
            batch["position_ids"] = self._there(make.module.tile(count, (self.micro, 1)))
        for name in SLICED:
            if name in batch and self._cut:
                parts = [batch[name][:, part] for part in self._cut]
                batch[name] = make.module.concatenate(parts, 1)
