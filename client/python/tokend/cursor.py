"""Cursor: the state of a run, as a value."""

from __future__ import annotations

import contextlib
import json
import os
import types
from collections.abc import Iterator, Mapping
from operator import index
from typing import Any

from . import _tokend, phrases


def _lines(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """Yields the differences of two JSON values, as "field: left | right"."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            yield from _lines(left.get(key), right.get(key), f"{path}{': ' if path else ''}{key}")
    elif isinstance(left, list) and isinstance(right, list):
        for i in range(max(len(left), len(right))):
            pair = [side[i] if i < len(side) else None for side in (left, right)]
            yield from _lines(*pair, f"{path}[{i}]")
    elif left != right:
        left, right = (
            "absent" if side is None else side if isinstance(side, str) else json.dumps(side)
            for side in (left, right)
        )
        yield f"{path}: {left} | {right}"


def _comparable(shown: dict[str, Any]) -> dict[str, Any]:
    """to_dict() with datasets and segments by name instead of in lists."""
    names = [dataset["name"] for dataset in shown["datasets"]]
    for dataset in shown.pop("datasets"):
        shown[f"dataset {dataset.pop('name')}"] = dataset
    for segment in shown.pop("past") + shown.pop("segments"):
        whole = sum(segment["units"])
        shares = (
            f"{name} {100 * units / whole:.6f} %"
            for name, units in zip(names, segment["units"], strict=True)
            if units
        )
        shown[f"mix from {segment['start']}"] = ", ".join(shares)
    return shown


SEEK, SKIP, REWIND, MIX, ADD, REMOVE = range(6)  # enum tokend_edit_kind


def edited(
    kind: int,
    cursor: bytes,
    number: int | None = None,
    weights: Mapping[str, float] = types.MappingProxyType({}),
    like: bytes | None = None,
) -> bytes:
    """The cursor after an edit. The other arguments are those of struct tokend_edit."""
    named = list(weights), list(weights.values())
    return _tokend.cursor_edit(kind, cursor, number, *named, like)


def named_weights(weights: Any) -> dict[str, float]:
    """A mix as floats by name. The extension checks which names and values are possible."""
    if not isinstance(weights, Mapping):
        raise TypeError(phrases.kind_is_not("mix", weights, "a dict of weights by dataset name"))
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise TypeError(phrases.is_not("mix", name, "the name of a dataset"))
        if isinstance(weight, str) or not hasattr(weight, "__float__"):
            raise TypeError(phrases.is_not(f"mix: weight of dataset {name}", weight, "a number"))
    return {name: float(weight) for name, weight in weights.items()}


class Cursor:
    """The state of a run: the stream's identity, the position, the mix and its planned changes.

    Immutable. Equal cursors have equal bytes. Cursor(b) takes bytes or a Cursor; bytes(cursor) is
    what a checkpoint stores.

    >>> with Loader("train", micro_batch=4) as loader:
    ...     cursor = loader.cursor
    >>> cursor
    <tokend.Cursor train at 0, seed 42: web 70 %, code 30 %>
    >>> cursor.skip(1000).mix({"web": 1}, at=2048)
    <tokend.Cursor train at 1000, seed 42: web 70 %, code 30 %; from 2048 on web 100 %>

    An edit returns a new cursor and changes no loader: pass the new one to Loader.seek(), on all
    ranks.

    Raises:
        ArgumentError: the bytes are not a cursor.
        TypeError: the argument is not bytes.
    """

    __slots__ = ("_bytes", "_shown")

    def __init__(self, cursor: Cursor | bytes | bytearray | memoryview) -> None:
        self._bytes = bytes(memoryview(cursor)) if not isinstance(cursor, Cursor) else cursor._bytes
        self._shown: dict[str, Any] | None = None
        _tokend.cursor_position(self._bytes)  # raises if this is not a cursor

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cursor:
        """Reads a cursor from a file, such as those of save() and of `tokctl cursor -o`.

        Raises:
            OSError: the file cannot be read.
            ArgumentError: it does not contain a cursor.
        """
        with open(path, "rb") as file:
            return cls(file.read())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the cursor to a file, atomically and durably.

        Raises:
            OSError: the file cannot be written; a former one is then unchanged.
        """
        import tempfile  # it takes as long to import as the rest of this package

        directory = os.path.dirname(os.path.abspath(path))
        handle, name = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
        try:
            with open(handle, "wb") as file:
                file.write(self._bytes)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # ---- reading ----

    def __bytes__(self) -> bytes:
        return self._bytes

    def _show(self) -> dict[str, Any]:
        if self._shown is None:
            self._shown = json.loads(_tokend.cursor_show(self._bytes))
        return self._shown

    def to_dict(self) -> dict[str, Any]:
        """Returns what `tokctl cursor show --json` prints. Raises nothing."""
        shown: dict[str, Any] = json.loads(_tokend.cursor_show(self._bytes))
        return shown

    @property
    def position(self) -> int:
        """The first sample of the run that no rank has taken."""
        return _tokend.cursor_position(self._bytes)

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return str(self._show()["stream"])

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return int(self._show()["seed"])

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, by the index in batches."""
        return [dataset["name"] for dataset in self._show()["datasets"]]

    @property
    def segments(self) -> list[dict[str, Any]]:
        """The mix in force and the planned ones: dicts of start, pending and weights.

        weights has each dataset's share by name: numbers from 0 to 1.
        """
        names = self.datasets
        shown = []
        for segment in self._show()["segments"]:
            whole = sum(segment["units"])
            weights = {
                name: units / whole for name, units in zip(names, segment["units"], strict=True)
            }
            shown.append(
                {"start": segment["start"], "pending": segment["pending"], "weights": weights}
            )
        return shown

    @property
    def end(self) -> int | None:
        """The number of samples of a finite stream; None if it has no end."""
        end: int | None = self._show()["end"]
        return end

    # ---- edits ----

    def seek(self, position: int) -> Cursor:
        """Returns the cursor at another position.

        Raises:
            ArgumentError: the position is before the cursor's oldest mix, or after the end.
        """
        return Cursor(edited(SEEK, self._bytes, index(position)))

    def skip(self, samples: int) -> Cursor:
        """Returns the cursor @samples further on. Those in between are never served.

        Raises:
            ArgumentError: that is after the end.
        """
        return Cursor(edited(SKIP, self._bytes, index(samples)))

    def rewind(self, position: int) -> Cursor:
        """Returns the cursor at an earlier position.

        Raises:
            ArgumentError: the position is ahead, or before the oldest mix that the cursor knows.
        """
        return Cursor(edited(REWIND, self._bytes, index(position)))

    def mix(self, weights: Mapping[str, float], at: int | None = None) -> Cursor:
        """Returns the cursor with new weights by dataset name. Planned mixes are replaced.

        Args:
            weights: datasets that are not named get weight 0.
            at: the position from which they act, a multiple of 1024. Default: the next one.

        Raises:
            TypeError: weights is not a dict of numbers by name.
            ArgumentError: an unknown dataset, an impossible weight or position, a stream with
                epochs.
        """
        return Cursor(edited(MIX, self._bytes, at, named_weights(weights)))

    def add(self, name: str, like: Cursor | bytes) -> Cursor:
        """Returns the cursor with one more dataset, of weight 0: give it weight with mix().

        Args:
            name: the dataset.
            like: a cursor of the same stream that has it, such as loader.fresh().

        Raises:
            ArgumentError: @like does not have the dataset, this cursor has it already, or the
                stream has epochs.
        """
        return Cursor(edited(ADD, self._bytes, None, {name: 0.0}, bytes(like)))

    def remove(self, name: str, at: int | None = None) -> Cursor:
        """Returns the cursor with weight 0 for a dataset. The others keep their ratio.

        Args:
            at: as for mix().

        Raises:
            ArgumentError: the dataset is unknown, has no weight, or is the only one with weight;
                or the stream has epochs.
        """
        return Cursor(edited(REMOVE, self._bytes, at, {name: 0.0}))

    # ---- as a value ----

    def diff(self, other: Cursor | bytes) -> list[str]:
        """Returns the differences as lines "field: here | there"; [] if there are none.

        >>> with Loader("train", micro_batch=4) as loader:
        ...     loader.cursor.diff(loader.cursor.skip(8))
        ['next: 0 | 8']

        Raises:
            ArgumentError: @other is not a cursor.
        """
        other = other if isinstance(other, Cursor) else Cursor(other)
        lines = list(_lines(_comparable(self.to_dict()), _comparable(other.to_dict())))
        if not lines and self._bytes != other._bytes:
            lines.append("mix: rounded differently, because the earlier mixes differ")
        return lines

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, Cursor) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> Any:
        return Cursor, (self._bytes,)

    def __str__(self) -> str:
        def mix(segment: dict[str, Any]) -> str:
            return ", ".join(
                f"{name} {100 * share:.4g} %" for name, share in segment["weights"].items() if share
            )

        now, *pending = self.segments
        end = "" if self.end is None else f" of {self.end}"
        later = "".join(f"; from {segment['start']} on {mix(segment)}" for segment in pending[:3])
        more = f"; {len(pending) - 3} more to come" if len(pending) > 3 else ""
        return f"{self.stream} at {self.position}{end}, seed {self.seed}: {mix(now)}{later}{more}"

    def __repr__(self) -> str:
        return f"<tokend.Cursor {self}>"
