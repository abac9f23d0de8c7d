"""Batches: dicts of new arrays, torch's or NumPy's, that the extension fills from the ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from . import phrases
from ._tokend import DOCUMENTS, LOSS_MASK, ArgumentError
from .cursor import Cursor

IGNORE = -100  # a label that losses ignore
FIELDS = ("position", "dataset", "epoch", "window", "shard", "offset")  # in the extension's order
SLICED = ("input_ids", "labels", "shift_labels", "position_ids", "loss_mask")
TORCH_AT_LEAST = (2, 2)  # public DeviceMesh


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
      loss_mask     float32 [b, s]: 0 where the label is -100, otherwise 1
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
        # in the CPU's memory, whatever the program's default device
        self._cpu = {"device": module.device("cpu")} if self.name == "torch" else {}

    def empty(self, shape: tuple[int, ...], dtype: str, pinned: bool = False) -> Any:
        more = {**self._cpu, "pin_memory": True} if pinned else self._cpu
        return self.module.empty(shape, dtype=getattr(self.module, dtype), **more)

    def count(self, n: int) -> Any:
        return self.module.arange(n, **self._cpu)

    def has_gradients(self) -> bool:
        return self.name == "torch" and self.module.is_grad_enabled()

    def address(self, array: Any) -> int:
        if array is None:
            return 0
        found = array.data_ptr() if self._cpu else array.__array_interface__["data"][0]
        return found  # type: ignore[no-any-return]


def _torch() -> Any:
    import torch

    parts = str(torch.__version__).split("+")[0].split(".")[:2]
    if tuple(int(part) for part in parts if part.isdigit()) < TORCH_AT_LEAST:
        least = ".".join(map(str, TORCH_AT_LEAST))
        raise ImportError(
            f"torch: {torch.__version__} is older than {least}; {phrases.install('-U torch')}"
        )
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
    raise ImportError(f"framework: {missing} installed; {phrases.install(name or 'torch')}")


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
    """cp= as (rank, size, kind) of this process. @of_mesh: its rank and size in a dim cp."""
    if cp is None:
        return None
    kind = cp[2] if isinstance(cp, (tuple, list)) and len(cp) == 3 else cp
    if kind not in ("zigzag", "contiguous"):
        what = "'zigzag', 'contiguous', or (rank, size, one of these)"
        raise ArgumentError(phrases.is_not("cp", cp, what))
    if isinstance(cp, str) and of_mesh is None:
        raise ArgumentError(f"cp: {cp!r} needs a dim cp in a mesh; or pass cp=(rank, size, {cp!r})")
    rank, size = of_mesh if isinstance(cp, str) else cp[:2]  # type: ignore[misc]
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size):
        raise ArgumentError(
            f"cp: rank {rank!r} is not below size {size!r}; pass (rank, size, kind)"
        )
    return None if size == 1 else (rank, size, kind)


def chunks(seq: int, cp: tuple[int, int, str]) -> list[slice]:
    """Returns this rank's parts of a row's @seq inputs."""
    rank, size, kind = cp
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
    and the batch is taken by an assignment, the last thing before next() returns it.

    The tokens come from the extension; from @source, which transforms them; or from @feed, which
    copies them to a GPU.
    """

    def __init__(self, client: Any, wanted: Wanted, source: Any, feed: Any) -> None:
        self._client, self.wanted, self._source, self._feed = client, wanted, source, feed
        self._fields = len(FIELDS) if wanted.provenance or source else 2
        self._shown = FIELDS if wanted.provenance else FIELDS[:2]
        self.begin()

    def begin(self) -> None:
        """Adapts to the shape of the batches, after an attach or a seek; and when a restarted
        daemon's config differs. If it fails, look() tries again.
        """
        self.stale = True
        shape, wanted = self._client.shape(), self.wanted
        self.micro, self.seq, window = shape["rows"], shape["seq_len"], shape["window_tokens"]
        self.first = self._client.taken
        self.end: int | None = None  # of the stream
        if shape["batches_in_all"] is not None:
            self.end = Cursor(self._client.cursor).end
        self._cut = chunks(self.seq, wanted.cp) if wanted.cp else None
        for asked, bit, name, lacks in (
            (
                wanted.documents,
                DOCUMENTS,
                "documents",
                "document starts; set documents: true and eos",
            ),
            (wanted.loss_mask, LOSS_MASK, "loss_mask", "loss mask; set loss_mask: true"),
        ):
            if asked and not shape["annotations"] & bit:
                raise ArgumentError(
                    f"{name}: the stream carries no {lacks} in the daemon's config, or omit {name}="
                )
        # The extension writes labels, unless they are the next tokens on a device. It always
        # writes those that depend on more: on a loss mask, or on the window's end.
        masked = shape["annotations"] & LOSS_MASK
        self._writes_labels = self._feed is None or masked or window <= self.seq
        # tokens of a row: a transform gets all of the window
        self._width = self.seq if self._source is None else window
        self._annotations = shape["annotations"]
        for of in self._source, self._feed:
            if of is not None:
                of.begin()
        self.stale = False

    def look(self) -> tuple[Any, int, tuple[Any, ...]] | None:
        """The next batch, how many of its rows are not padding, and what to set `client.takes` to.
        None at the end.
        """
        if self.stale:
            self.begin()
        wanted, micro, seq = self.wanted, self.micro, self.seq
        tokens = labels = ids = starts = None
        if self._feed is None:
            kind = "int64" if self._source else wanted.types["input_ids"]
            tokens = self._empty((micro, self._width), kind)
        if self._writes_labels:
            labels = self._empty((micro, seq), wanted.types["labels"])
        if wanted.documents:
            ids = self._empty((micro, seq), "int64")
            starts = self._empty((micro * seq + 1,), "int32")
        fields = list(wanted.make.empty((self._fields, micro), "int64"))
        address, types = wanted.make.address, wanted.types
        into = [address(tokens), 4 if tokens is not None and tokens.itemsize == 4 else 8]
        into += [self._width, address(labels), 4 if types["labels"] == "int32" else 8]
        into += [address(ids), address(starts), *map(address, fields)]
        if self._feed is not None:
            tokens, found = self._feed.next(lambda: self._client.look_into(*into))
        elif self._source is not None:
            found = self._source.look(tokens, fields, into)
        else:
            found = self._client.look_into(*into)
        if found is None:
            return None
        valid, after, documents, longest, annotations = found
        if annotations != self._annotations:
            self.begin()
            return self.look()
        batch = self._tokens_and_labels(tokens, labels, valid)
        batch.update(zip(self._shown, fields, strict=False))
        if wanted.documents:
            batch["position_ids"] = self._there(ids)
            batch["cu_seqlens"] = self._there(starts[: documents + 1])
            batch["max_seqlen"] = longest
        if self._cut is not None:
            self._share(batch)
        return batch, valid, (after, self._feed is not None)

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Pinned if it is copied to a device: otherwise the copy could wait for the step."""
        return self.wanted.make.empty(shape, dtype, self.wanted.device is not None)

    def _there(self, array: Any) -> Any:
        """On the device, if there is one."""
        device = self.wanted.device
        return array if device is None else array.to(device, non_blocking=True)

    def _tokens_and_labels(self, tokens: Any, labels: Any, valid: int) -> dict[str, Any]:
        """Contiguous input_ids and labels, of which none is a view of another."""
        wanted, module, seq = self.wanted, self.wanted.make.module, self.seq
        if self._feed is not None:
            input_ids, *following = tokens.unbind()
            if labels is None:
                labels = following[0].to(getattr(module, wanted.types["labels"]))
                labels[valid:] = IGNORE
        elif self._source is not None:
            # the transformed tokens, except where there is no label
            following = tokens[:, 1 : seq + 1]
            part = labels[:, : following.shape[1]]
            part[:] = module.where(part == IGNORE, part, following)
            input_ids = wanted.make.empty((self.micro, seq), wanted.types["input_ids"])
            input_ids[:] = tokens[:, :seq]
        else:
            input_ids = tokens
        input_ids, labels = self._there(input_ids), self._there(labels)
        batch = {"input_ids": input_ids, "labels": labels}
        if wanted.shift_labels:
            batch["labels"], batch["shift_labels"] = unshifted(labels, module), labels
        if wanted.loss_mask:
            mask = self._there(self._empty((self.micro, seq), "float32"))
            mask[:] = labels != IGNORE
            batch["loss_mask"] = mask
        return batch

    def _share(self, batch: dict[str, Any]) -> None:
        """Leaves the slice of this context-parallel rank."""
        make = self.wanted.make
        if "position_ids" not in batch:
            ids = make.module.tile(make.count(self.seq), (self.micro, 1))
            batch["position_ids"] = self._there(ids)
        for name in SLICED:
            if name in batch:
                parts = [batch[name][:, part] for part in self._cut or ()]
                batch[name] = make.module.concatenate(parts, 1)
