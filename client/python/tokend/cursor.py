"""Where a run is, as a value."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from operator import index
from typing import Any

from . import _tokend


def _lines(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """What differs between two values out of JSON, as "field: left | right"."""
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
    """to_dict() with what is in lists under names that people know."""
    names = [dataset["name"] for dataset in shown["datasets"]]
    for dataset in shown.pop("datasets"):
        shown[f"dataset {dataset.pop('name')}"] = dataset
    for segment in shown.pop("segments"):
        whole = sum(segment["units"])
        shares = (
            f"{name} {100 * units / whole:.6f} %"
            for name, units in zip(names, segment["units"], strict=True)
            if units
        )
        shown[f"mix from {segment['start']}"] = ", ".join(shares)
    return shown


def named_weights(weights: Any) -> dict[str, float]:
    """Of a mix, as numbers; which names and numbers they may be is the edit's to say."""
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"mix: a {type(weights).__name__}, must be a dict of weights by dataset name"
        )
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise TypeError(f"mix: {name!r}, must be the name of a dataset")
        if isinstance(weight, str) or not hasattr(weight, "__float__"):
            raise TypeError(f"mix: weight of dataset {name}: {weight!r}, must be a number")
    return {name: float(weight) for name, weight in weights.items()}


class Cursor:
    """Where a run is: identity of the stream, position, mix and what is announced of it. Immutable;
    equal ones have equal bytes.

    The edits return a new cursor and refuse what cannot be with ArgumentError, which says what
    would be right. None of them touches a loader: seek() there afterwards, on all ranks.
    """

    __slots__ = ("_bytes", "_shown")

    def __init__(self, cursor: Cursor | bytes | bytearray | memoryview) -> None:
        self._bytes = bytes(memoryview(cursor)) if not isinstance(cursor, Cursor) else cursor._bytes
        self._shown: dict[str, Any] | None = None
        _tokend.cursor_position(self._bytes)  # refuses what is no cursor

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cursor:
        with open(path, "rb") as file:
            return cls(file.read())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Replaces @path at one stroke and durably."""
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
        """What `tokctl cursor show --json` prints."""
        shown: dict[str, Any] = json.loads(_tokend.cursor_show(self._bytes))
        return shown

    @property
    def position(self) -> int:
        """The first sample of the run that no rank has taken."""
        return _tokend.cursor_position(self._bytes)

    @property
    def stream(self) -> str:
        return str(self._show()["stream"])

    @property
    def seed(self) -> int:
        return int(self._show()["seed"])

    @property
    def datasets(self) -> list[str]:
        """Their names, by the index in batches."""
        return [dataset["name"] for dataset in self._show()["datasets"]]

    @property
    def segments(self) -> list[dict[str, Any]]:
        """The mix in force, then those that are announced: dicts of start, pending and weights
        (shares by name).
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
        """One behind the last position of a finite stream, else None."""
        end: int | None = self._show()["end"]
        return end

    # ---- edits ----

    def seek(self, position: int) -> Cursor:
        """At another position: not before the mix in force began, nor behind the end."""
        return Cursor(_tokend.cursor_seek(self._bytes, index(position)))

    def skip(self, samples: int) -> Cursor:
        """Further on: the samples in between are never served."""
        return Cursor(_tokend.cursor_skip(self._bytes, index(samples)))

    def rewind(self, position: int) -> Cursor:
        """Back: refused for what lies ahead."""
        return Cursor(_tokend.cursor_rewind(self._bytes, index(position)))

    def mix(self, weights: Mapping[str, float], at: int | None = None) -> Cursor:
        """New weights by name from @at on; default: as soon as can be. Replaces what was
        announced.
        """
        weights = named_weights(weights)
        return Cursor(_tokend.cursor_mix(self._bytes, list(weights), list(weights.values()), at))

    def add(self, name: str, like: Cursor | bytes) -> Cursor:
        """With dataset @name as cursor @like has it, e.g. loader.fresh(); a mix then gives it
        weight.
        """
        return Cursor(_tokend.cursor_add(self._bytes, bytes(like), name))

    def remove(self, name: str, at: int | None = None) -> Cursor:
        """Without weight for @name from @at on (default: as soon as can be); the others keep their
        ratio.
        """
        return Cursor(_tokend.cursor_remove(self._bytes, name, at))

    # ---- as a value ----

    def diff(self, other: Cursor | bytes) -> list[str]:
        """What differs, as lines "field: here | there"; [] if nothing does."""
        other = other if isinstance(other, Cursor) else Cursor(other)
        lines = list(_lines(_comparable(self.to_dict()), _comparable(other.to_dict())))
        if not lines and self._bytes != other._bytes:
            lines.append("mix: rounded otherwise, by other mixes before")
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
