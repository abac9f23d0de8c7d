"""Cursor: the state of a run, as a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import index
from typing import Any

from . import _tokend, phrases
from .errors import ArgumentError

SEEK, SKIP, REWIND, MIX = range(4)  # enum tokend_edit_kind
NUMBERS = ("position", "samples", "position", "at")  # what an edit's number is
MOST = (1 << 64) - 1  # of 64 bits; as the number of a mix: the next possible one


def integer(name: str, value: Any, most: int = MOST, least: int = 0) -> int:
    """Any integer, also one of NumPy or a torch tensor. @name: the argument, for errors."""
    try:
        number = index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(phrases.is_not(name, value, f"an integer from {least} to {most}"))
    if not least <= number <= most:
        raise ArgumentError(f"{name}: {number}; must be {least} to {most}")
    return number


def edited(
    kind: int, cursor: bytes, number: int = MOST, weights: dict[str, float] | None = None
) -> bytes:
    """The cursor after an edit. The other arguments are those of struct tokend_edit."""
    return _tokend.cursor_edit(kind, cursor, integer(NUMBERS[kind], number), weights or {})


def named_weights(weights: Any) -> dict[str, float]:
    """A mix as floats by name. The extension checks which names and values are possible."""
    if not isinstance(weights, Mapping):
        raise TypeError(phrases.kind_is_not("mix", weights, "a dict of weights by dataset name"))
    for name, weight in weights.items():
        if isinstance(weight, str) or not hasattr(weight, "__float__"):
            raise TypeError(phrases.is_not(f"mix: weight of dataset {name}", weight, "a number"))
    return {str(name): float(weight) for name, weight in weights.items()}


def is_cursor(value: Any) -> bool:
    return isinstance(value, (Cursor, bytes, bytearray, memoryview))


def cursor_of(
    state: Any, what: str = "state", instead: str = "seek(position=SAMPLES IT CONSUMED)"
) -> bytes:
    """The bytes in a state of Loader.state_dict(). @what, @instead: for an error."""
    cursor = state.get("cursor") if isinstance(state, Mapping) else None
    if is_cursor(cursor):
        return bytes(cursor)  # type: ignore[arg-type]
    keys = sorted(map(str, state)) if isinstance(state, Mapping) else []
    raise ArgumentError(
        f"{what}: not from a tokend.Loader's state_dict(), it has no cursor of bytes, its keys are "
        f"{keys}; to continue after another loader, {instead}"
    )


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
    ranks. `tokctl cursor` edits files, compares cursors, and adds and removes datasets.

    ArgumentError: the bytes are not a cursor, or an edit is impossible.
    """

    __slots__ = ("_bytes",)

    def __init__(self, cursor: Cursor | bytes | bytearray | memoryview) -> None:
        self._bytes = bytes(memoryview(cursor)) if not isinstance(cursor, Cursor) else cursor._bytes
        self.to_dict()  # raises if this is not a cursor

    def __bytes__(self) -> bytes:
        return self._bytes

    # ---- reading ----

    def to_dict(self) -> dict[str, Any]:
        """What `tokctl cursor show --json` prints."""
        return json.loads(_tokend.cursor_show(self._bytes))  # type: ignore[no-any-return]

    @property
    def position(self) -> int:
        """The first sample of the run that no rank has taken."""
        return self.to_dict()["next"]  # type: ignore[no-any-return]

    @property
    def end(self) -> int | None:
        """The number of samples of a finite stream; None if it has no end."""
        return self.to_dict()["end"]  # type: ignore[no-any-return]

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, by the index in batches."""
        return [dataset["name"] for dataset in self.to_dict()["datasets"]]

    @property
    def segments(self) -> list[dict[str, Any]]:
        """The mix in force and the planned ones: dicts of start, pending, and weights, which has
        each dataset's share by name: numbers from 0 to 1.
        """
        names, segments = self.datasets, self.to_dict()["segments"]
        for segment in segments:
            units = segment.pop("units")
            segment["weights"] = dict(zip(names, (n / sum(units) for n in units), strict=True))
        return [{name: s[name] for name in ("start", "pending", "weights")} for s in segments]

    # ---- edits ----

    def seek(self, position: int) -> Cursor:
        """Returns the cursor at a position after its oldest mix and before the end."""
        return Cursor(edited(SEEK, self._bytes, position))

    def skip(self, samples: int) -> Cursor:
        """Returns the cursor @samples further on. Those in between are never served."""
        return Cursor(edited(SKIP, self._bytes, samples))

    def rewind(self, position: int) -> Cursor:
        """Returns the cursor at an earlier position, after the oldest mix that it knows."""
        return Cursor(edited(REWIND, self._bytes, position))

    def mix(self, weights: Mapping[str, float], at: int | None = None) -> Cursor:
        """Returns the cursor with new weights by dataset name. Planned mixes are replaced.

        Args:
            weights: datasets that are not named get weight 0.
            at: the position from which they act, a multiple of 1024. Default: the next one.
        """
        return Cursor(edited(MIX, self._bytes, MOST if at is None else at, named_weights(weights)))

    # ---- as a value ----

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, Cursor) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        def mix(segment: dict[str, Any]) -> str:
            shares = segment["weights"].items()
            return ", ".join(f"{name} {100 * share:.4g} %" for name, share in shares if share)

        shown = self.to_dict()
        now, *pending = self.segments
        end = "" if shown["end"] is None else f" of {shown['end']}"
        later = "".join(f"; from {segment['start']} on {mix(segment)}" for segment in pending[:3])
        more = f"; {len(pending) - 3} more to come" if len(pending) > 3 else ""
        return (
            f"<tokend.Cursor {shown['stream']} at {self.position}{end}, seed {shown['seed']}: "
            f"{mix(now)}{later}{more}>"
        )
