"""Batches: dicts of new arrays, torch's or NumPy's, that the extension fills from the ring."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from ._tokend import DOCUMENTS, LOSS_MASK
from .cursor import Cursor
from .device import Cuda, Feed
from .errors import ArgumentError, is_not

IGNORE = -100  # a label that losses ignore
FIELDS = ("position", "dataset", "epoch", "window", "shard", "offset")  # in the extension's order
SLICED = ("input_ids", "labels", "shift_labels", "position_ids", "loss_mask")


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
        if self.name == "torch":
            self.address = module.Tensor.data_ptr
            self.cpu = {"device": module.device("cpu")}  # whatever the program's default device

    def maker(self, shape: tuple[int, ...], dtype: str, pinned: bool = False) -> Callable[[], Any]:
        """Returns a function that makes arrays in the CPU's memory. It holds one, untouched."""
        kind, more = getattr(self.module, dtype), {"pin_memory": True} if pinned else {}
        like = self.module.empty(shape, dtype=kind, **self.cpu)
        return functools.partial(self.module.empty_like, like, **more)  # faster than empty()


def framework(name: str | None) -> Framework:
    """The framework @name; None: torch if it is installed, otherwise NumPy."""
    if name not in (None, "torch", "numpy"):
        raise ValueError(is_not("framework", name, "'torch' or 'numpy'"))
    for module in (name,) if name else ("torch", "numpy"):
        try:
            return Framework(importlib.import_module(module))
        except ModuleNotFoundError as error:
            if error.name != module:  # it is installed, but broken: report it
                raise
    missing = f"{name} is not" if name else "neither torch nor numpy is"
    raise ImportError(f"framework: {missing} installed; pip install {name or 'torch'}")


# ---- what a loader was asked for ----


def types(dtype: Any) -> dict[str, str]:
    """dtype=: a type for input_ids, or a mapping from a batch's keys to types."""
    asked = dtype if isinstance(dtype, Mapping) else {"input_ids": dtype}
    made = {"input_ids": "int64", "labels": "int64"}
    for key, kind in asked.items():
        if key not in made:
            raise ArgumentError(is_not("dtype", key, "a key for input_ids, labels"))
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
        raise ArgumentError(is_not("cp", cp, what))
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
    """Makes the batches of a _tokend.Client. @types: of input_ids and labels, "int64" or "int32".
    @asked: whether keys are wanted, by name. @cp: rank, size and kind. @device: a CUDA device.
    @transform: transform.Transform, or None. @workers: that run it, or None.
    """

    def __init__(
        self,
        client: Any,
        make: Framework,
        types: dict[str, str],
        asked: dict[str, bool],
        cp: tuple[int, int, str] | None,
        device: Any,
        transform: Any,
        workers: Any,
    ) -> None:
        self._client, self._make, self._types, self._asked = client, make, types, asked
        self._cp, self._device, self._transform, self._workers = cp, device, transform, workers
        self.feed: Feed | None = None
        if device is not None and transform is None:
            self.feed = Feed(client, Cuda(make.module, device), types)
        self._shown = FIELDS if asked["provenance"] else FIELDS[:2]
        self.begin()

    def begin(self) -> None:
        """Adapts to the shape of the batches, after an attach or a seek; and when a restarted
        daemon's config differs. If it fails, look() tries again.
        """
        self.stale = True  # the owner sets it, too, to have look() begin again
        shape = self._client.status()
        self.micro, self.seq, window = shape["rows"], shape["seq_len"], shape["window_tokens"]
        self.end = Cursor(self._client.cursor).end  # of the stream
        self._cut = chunks(self.seq, self._cp) if self._cp else None
        self._annotations = shape["annotations"]
        for name, bit, keys in (
            ("documents", DOCUMENTS, "documents: true and eos"),
            ("loss_mask", LOSS_MASK, "loss_mask: true"),
        ):
            if self._asked[name] and not self._annotations & bit:
                raise ArgumentError(
                    f"{name}: the stream has none; set {keys} in the daemon's config, or omit "
                    f"{name}="
                )
        # a transform gets all tokens of a window, as int64
        ids, labels = self._types["input_ids"], self._types["labels"]
        kind, width = (ids, self.seq) if self._transform is None else ("int64", window)
        self._window, self._width = window, width
        self._bytes = [4 if each == "int32" else 8 for each in (kind, labels)]
        shapes = {"fields": ((len(FIELDS), self.micro), "int64")}
        if self.feed is None:
            shapes["tokens"] = (self.micro, width), kind
        # On a device labels are the tokens that follow, unless they depend on more: on a loss
        # mask, or on the window's end. Those the extension writes.
        if self.feed is None or self._annotations & LOSS_MASK or window <= self.seq:
            shapes["labels"] = (self.micro, self.seq), labels
        if self._asked["documents"]:
            shapes["position_ids"] = (self.micro, self.seq), "int64"
            shapes["cu_seqlens"] = (self.micro * self.seq + 1,), "int32"
        # pinned, if it is copied to a device: otherwise the copy could wait for the step
        pinned = self._device is not None
        self._makers = {
            name: self._make.maker(*shape, pinned=pinned and name != "fields")
            for name, shape in shapes.items()
        }
        if self._transform is not None:
            self._new_ids = self._make.maker((self.micro, self.seq), ids, pinned=pinned)
        if self._workers is not None:
            self._workers.begin()
        self.stale = False

    def look(self) -> tuple[Any, int] | None:
        """The next batch, not yet taken, and the position after it. None at the end."""
        if self.stale:
            self.begin()
        made = {name: new() for name, new in self._makers.items()}
        at = {name: self._make.address(array) for name, array in made.items()}
        tokens, labels = at.get("tokens", 0), at.get("labels", 0)
        packs = at.get("position_ids", 0), at.get("cu_seqlens", 0), at["fields"]
        of_tokens, of_labels = self._bytes
        into = (self.micro, self._width, tokens, of_tokens, labels, of_labels, *packs)
        if self.feed is not None:
            shape = 1 if labels else 2, self.micro, self.seq
            look = functools.partial(self._client.look_into, *into)
            made["tokens"], found = self.feed.next(look, shape, self._window)
        elif self._workers is not None:
            found = self._workers.look(made["tokens"], made["fields"], into)
        else:
            found = self._client.look_into(*into)
        if found is None:
            return None
        if self._transform is not None and self._workers is None:
            self._transform.apply(made["tokens"], made["fields"][0].tolist())
        valid, after, documents, longest, annotations, *_ = found
        if annotations != self._annotations:
            self.begin()
            return self.look()
        batch = self._tokens_and_labels(made["tokens"], made.get("labels"), valid)
        for i, name in enumerate(self._shown):
            batch[name] = made["fields"][i]
        if self._asked["documents"]:
            batch["position_ids"] = self._there(made["position_ids"])
            batch["cu_seqlens"] = self._there(made["cu_seqlens"][: documents + 1])
            batch["max_seqlen"] = longest
        if self._cut is not None:
            self._share(batch)
        return batch, after

    def _there(self, array: Any) -> Any:
        """On the device, if there is one. The copy is queued, and not waited for."""
        return array if self._device is None else array.to(self._device, non_blocking=True)

    def _tokens_and_labels(self, tokens: Any, labels: Any, valid: int) -> dict[str, Any]:
        """Contiguous input_ids and labels, of which none is a view of another."""
        module = self._make.module
        if self._transform is not None:
            tokens = self._transformed(tokens, labels)
        elif self.feed is not None:
            tokens, *following = tokens.unbind()
            if labels is None:
                labels = following[0].to(getattr(module, self._types["labels"]))
                labels[valid:] = IGNORE
        batch = {"input_ids": self._there(tokens), "labels": self._there(labels)}
        if self._asked["loss_mask"]:
            mask = module.empty_like(batch["labels"], dtype=module.float32)
            mask[:] = batch["labels"] != IGNORE
            batch["loss_mask"] = mask
        if self._asked["shift_labels"]:
            batch["shift_labels"] = batch["labels"]
            batch["labels"] = unshifted(batch["labels"], module)
        return batch

    def _transformed(self, tokens: Any, labels: Any) -> Any:
        """Returns input_ids, and puts the transformed tokens into @labels, except where there is
        no label.
        """
        following = tokens[:, 1 : self.seq + 1]
        part = labels[:, : following.shape[1]]
        part[:] = self._make.module.where(part == IGNORE, part, following)
        input_ids = self._new_ids()
        input_ids[:] = tokens[:, : self.seq]
        return input_ids

    def _share(self, batch: dict[str, Any]) -> None:
        """Leaves the slice of this context-parallel rank."""
        module = self._make.module
        if "position_ids" not in batch:
            count = module.arange(self.seq, **self._make.cpu)
            batch["position_ids"] = self._there(module.tile(count, (self.micro, 1)))
        for name in SLICED:
            if name in batch:
                parts = [batch[name][:, part] for part in self._cut or ()]
                batch[name] = module.concatenate(parts, 1)
