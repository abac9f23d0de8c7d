"""Makes the dicts that trainers take from the batches in the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _tokend

if TYPE_CHECKING:
    from typing import Literal, Protocol, TypedDict

    from .arrays import Torch, Types
    from .numpy_arrays import Numpy

    class Slice(TypedDict):
        rank: int
        size: int
        kind: Literal["zigzag", "contiguous"]

    class Source(Protocol):
        """Transformed rows, in place of the ring's."""

        waited_s: float  # for workers, in total

        def begin(self) -> None:
            """Called after an attach or a seek."""

        def look(self, tokens: Any, fields: list[Any], into: list[int]) -> tuple | None:
            """look_into(*into), with the rows written to @tokens, NumPy [b, window], and their
            origin to @fields. It may be called again for the same batch.
            """

        def close(self) -> None: ...


IGNORE = -100  # a label that losses ignore
PADDINGS_AHEAD = 4  # masks made at once, as the other tensors
SLICED = ("input_ids", "labels", "shift_labels", "position_ids", "loss_mask", "attention_mask")
FIELDS = ("position", "dataset", "epoch", "window", "shard", "offset")  # in _tokend's order


class Wanted:
    """The parts of a batch that the loader was asked for."""

    def __init__(self, asked: Any, cp: Slice | None, types: Types, device: Any) -> None:
        """@asked: the arguments of Loader. @device: a CUDA device, or None."""
        self.documents: bool = asked.documents
        self.provenance: bool = asked.provenance
        self.loss_mask: bool = asked.loss_mask
        self.attention_mask: bool = asked.attention_mask
        self.shift_labels: bool = bool(asked.shift_labels)
        self.view: bool = asked.view  # lend the ring's slots
        self.tokens: bool = asked.tokens  # unsplit windows instead of input_ids and labels
        self.cp, self.types, self.device = cp, types, device


def unshifted(labels: Any, module: Any) -> Any:
    """Labels for models that shift them: a row's last one has no place. @module: torch or numpy."""
    made = module.roll(labels, 1, 1)
    made[:, 0] = IGNORE
    return made


def shifted(batch: Any) -> Any:
    """The labels of a loader's batch, with or without shift_labels=True."""
    return batch.get("shift_labels", batch["labels"])


def chunks(seq: int, cp: Slice) -> list[tuple[int, int]]:
    """Returns this rank's parts of a row's @seq inputs, as (begin, end)."""
    rank, size = cp["rank"], cp["size"]
    parts = 2 * size if cp["kind"] == "zigzag" else size
    if seq % parts:
        raise _tokend.ArgumentError(
            f"cp: seq_len {seq} is not a multiple of {parts} chunks ({cp['kind']}, {size} ranks); "
            "choose another seq_len"
        )
    each = seq // parts
    mine = (rank, parts - 1 - rank) if cp["kind"] == "zigzag" else (rank,)
    return [(i * each, (i + 1) * each) for i in mine]


def spare(kept: list[Any], more: Callable[[], list[Any]]) -> Any:
    """One of @kept. If none is left, @more() makes several."""
    try:
        return kept.pop()
    except IndexError:  # also if another thread was faster
        first, *others = more()
        kept.extend(others)
        return first


class Batches:
    """Makes batches of one shape. A seek makes a new one.

    A signal's handler may raise wherever Python calls a function. So a batch is taken by an
    assignment, the last thing before next() returns it, and look() may be called again.
    """

    def __init__(
        self,
        client: Any,
        make: Torch | Numpy,
        wanted: Wanted,
        source: Source | None,
        feed: Any = None,
    ) -> None:
        shape = client.shape()
        self.client, self.make, self.source, self.feed = client, make, source, feed
        self.micro, self.seq, self.window = shape["rows"], shape["seq_len"], shape["window_tokens"]
        self.end: int | None = None  # of the stream
        if shape["batches_in_all"] is not None:
            from .cursor import Cursor

            self.end = Cursor(client.cursor()).end
        self.wanted, self._types = wanted, wanted.types
        self._cut = chunks(self.seq, wanted.cp) if wanted.cp else None
        self._fields = len(FIELDS) if wanted.provenance or source else 2
        self._shown = FIELDS if wanted.provenance else FIELDS[:2]
        self._split = not (wanted.view or wanted.tokens)
        if wanted.tokens:
            self._check_tokens(shape["masked"])
        if wanted.loss_mask and not shape["masked"]:
            raise _tokend.ArgumentError(
                "loss_mask: the stream carries no loss mask; set loss_mask: true in the daemon's "
                "config, or omit loss_mask="
            )
        # The extension writes labels, unless they are the next tokens of a transform or a device.
        # It always writes those that depend on more: on a loss mask, or on the window's end.
        ignores = shape["masked"] or self.window <= self.seq
        self._writes = (
            self._split
            and (ignores or not (source or feed))
            or (wanted.tokens and wanted.loss_mask)
        )
        self._token_bytes, self._label_bytes = self._types.token_bytes, self._types.label_bytes
        more = wanted.documents or wanted.provenance or wanted.loss_mask or wanted.attention_mask
        more = more or self._cut or wanted.view or wanted.shift_labels
        self._simple = not (more or source or feed)
        # tokens of a row that the extension writes
        self._width = self.seq if self._split and source is None else self.window
        self._more_arrays = make.maker(
            self.micro,
            (self._width, self._types.tokens),
            *([(self.seq, self._types.labels)] if self._split else ()),
        )
        self._more_fields = make.fields(self.micro, self._fields)
        # Made ahead, and used once each: of batches, next_into()'s arguments and the dict;
        # addresses and arrays of fields; masks of batches without padding.
        self._ready: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        self._rows: list[tuple[int, list[Any]]] = []
        self._paddings: list[Any] = []
        self._look_into = client.look_into
        self.begin = client.taken()

    @property
    def has_labels(self) -> bool:
        """Rather than tokens, whose losses the loop defines."""
        return self._split

    @property
    def taken(self) -> int:
        """The position after the last batch taken."""
        return self.client.taken()  # type: ignore[no-any-return]

    def _new_rows(self) -> tuple[int, list[Any]]:
        """The address and the arrays of a batch's fields."""
        return spare(self._rows, self._more_fields)

    def _more_batches(self) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
        """next_into()'s arguments and the batch that it fills, of simple batches."""
        into: tuple[int, ...]
        made: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        for arrays in self._more_arrays():
            at, (position, dataset) = self._new_rows()
            if self._split:
                to, to_labels, input_ids, labels = arrays
                into = (to, at, self._token_bytes, 2)
                into += (to_labels, 0, 0, self._width, self._label_bytes)
                batch = {"input_ids": input_ids, "labels": labels}
            else:
                to, tokens = arrays
                into = (to, at, self._token_bytes)
                batch = {"tokens": tokens, "padding": self._padding()}
            made.append((into, batch | {"position": position, "dataset": dataset}))
        return made

    def look(self) -> tuple[Any, int, tuple[int, ...]] | None:
        """The next batch, how many of its rows are not padding, and what to set `client.takes` to.
        None at the end.
        """
        if self._simple:
            try:
                into, batch = self._ready.pop()
            except IndexError:  # also if another thread was faster
                into, batch = spare(self._ready, self._more_batches)
            found = self._look_into(*into)
            if found is None:
                return None
            valid, after = found
            if valid < self.micro and not self._split:
                batch["padding"][valid:] = True
            return batch, valid, (after,)
        at, fields = self._new_rows()
        if self.wanted.device is None:
            return self._look_more(at, fields)
        from .device import relaxed

        with relaxed():
            return self._look_more(at, fields)

    def _padding(self) -> Any:
        """The mask of a batch without padding rows."""
        if self.wanted.device is not None:
            return self.make.module.zeros(
                self.micro, dtype=self.make.module.bool, device=self.wanted.device
            )
        return spare(self._paddings, self._more_paddings)

    def _more_paddings(self) -> list[Any]:
        return self.make.trainable(
            lambda: [self.make.falses(self.micro) for _ in range(PADDINGS_AHEAD)]
        )

    def _check_tokens(self, masked: bool) -> None:
        if self.window <= self.seq:
            raise _tokend.ArgumentError(
                f"tokens: the stream's windows of {self.window} tokens do not contain the last "
                "label (extra: 0); set extra: 1 in the daemon's config, or omit tokens="
            )
        if masked and not self.wanted.loss_mask:
            raise _tokend.ArgumentError(
                "tokens: the stream has a loss mask, which tokens do not show; pass "
                "loss_mask=True too, or omit tokens="
            )

    def _empty(self, *shape: int, dtype: Any) -> Any:
        """An array in the CPU's memory. It is pinned if it is copied to a device: otherwise the
        copy could wait for the step.
        """
        if self.wanted.device is None:
            return self.make.empty(*shape, dtype=dtype)
        return self.make.module.empty(shape, dtype=dtype, device=self.make.cpu, pin_memory=True)

    def _look_more(self, at: int, fields: list[Any]) -> Any:
        make, wanted, micro, seq = self.make, self.wanted, self.micro, self.seq
        tokens: Any = (
            None
            if self.feed or wanted.view
            else self._empty(micro, self._width, dtype=self._types.tokens)
        )
        labels = self._empty(micro, seq, dtype=self._types.labels) if self._writes else None
        ids: Any = None
        starts: Any = None
        into = [0 if tokens is None else make.address(tokens), at]
        into += [self._token_bytes, self._fields]
        into.append(0 if labels is None else make.address(labels))
        if wanted.documents:
            ids, starts = (
                self._empty(micro, seq, dtype=make.int64),
                self._empty(micro * seq + 1, dtype=make.int32),
            )
            into += [make.address(ids), make.address(starts)]
        else:
            into += [0, 0]
        into += [self._width, self._label_bytes]
        if self.feed is not None:
            tokens, found = self.feed.next(lambda: self._look_into(*into)) or (None, None)
        elif self.source is not None:
            found = self.source.look(make.numpy(tokens), fields, into)
        else:
            found = self._look_into(*into)
        if found is None:
            return None
        valid, after = found[:2]
        batch = (
            {"tokens": make.lent(self.client.view())}
            if wanted.view
            else self._made(tokens, labels, valid)
        )
        batch.update(zip(self._shown, fields, strict=False))
        if wanted.documents:
            batch.update(
                position_ids=self._there(ids),
                cu_seqlens=self._there(starts[: found[2] + 1]),
                max_seqlen=found[3],
            )
        if self._cut:
            batch = self._share(batch)
        return batch, valid, self.feed.takes(after) if self.feed else (after,)

    def _there(self, array: Any) -> Any:
        """On the device, if there is one."""
        return (
            array if self.wanted.device is None else array.to(self.wanted.device, non_blocking=True)
        )

    def _made(self, tokens: Any, labels: Any, valid: int) -> dict[str, Any]:
        """@tokens: from the feed, the source or the extension."""
        if labels is not None and self.source is not None:
            self._relabel(labels, tokens)
        if self.feed is None:
            tokens = self._there(tokens)
        if labels is not None:
            labels = self._there(labels)
        if self.wanted.tokens:
            padding = self._padding()
            if valid < self.micro:
                padding[valid:] = True
            batch = {"tokens": tokens, "padding": padding}
        else:
            input_ids, labels = self._parted(tokens, labels, valid)
            batch = {"input_ids": input_ids, "labels": labels}
        if self.wanted.shift_labels:
            batch["labels"], batch["shift_labels"] = unshifted(labels, self.make.module), labels
        if self.wanted.loss_mask:
            batch["loss_mask"] = self.make.cast(labels != IGNORE, self.make.float32)
        if self.wanted.attention_mask:
            mask = self.make.ones(self.micro, self.seq, batch["input_ids"])
            if valid < self.micro:
                mask[valid:] = 0
            batch["attention_mask"] = mask
        return batch

    def _parted(self, tokens: Any, labels: Any, valid: int) -> tuple[Any, Any]:
        """Contiguous input_ids and labels, neither of which is a view of the other."""
        make, seq = self.make, self.seq
        if self.source is None and self.feed is None:
            return tokens, labels
        if self.source is not None:
            input_ids, following = make.copy(tokens[:, :seq]), tokens[:, 1 : seq + 1]
        else:
            input_ids, *others = tokens.unbind()
            following = others[0] if others else None
        if labels is None:
            labels = make.cast(following if self.feed else make.copy(following), self._types.labels)
            if valid < self.micro:
                labels[valid:] = IGNORE
        return input_ids, labels

    def _relabel(self, labels: Any, tokens: Any) -> None:
        """Sets the labels to the transformed tokens, except where there is no label."""
        following = tokens[:, 1 : self.seq + 1]
        labels = labels[:, : following.shape[1]]
        labels[:] = self.make.module.where(labels == IGNORE, labels, following)

    def _share(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The slice of this context-parallel rank."""
        make = self.make
        if "position_ids" not in batch:
            batch["position_ids"] = make.count(self.micro, self.seq, batch["input_ids"])
        for name in SLICED:
            if name in batch:
                full = batch[name]
                batch[name] = make.join([full[:, begin:end] for begin, end in self._cut or ()])
        return batch
