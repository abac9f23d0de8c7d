"""A user's transform: a pure function of one row, f(tokens, position, rng) → row.

>>> def swap_halves(tokens, position, rng):
...     half = len(tokens) // 2
...     if rng.random() < 0.5:
...         tokens[:half], tokens[half : 2 * half] = tokens[half : 2 * half], tokens[:half].copy()
...     return tokens
>>> with Loader("train", micro_batch=4, transform=swap_halves) as loader:
...     batch = next(loader)

tokens    NumPy int64 [seq_len + extra]. May be changed in place, but not kept
position  int: number of the row in the run
rng       a numpy.random.Generator: the same numbers for the same row, in every process, however
          often it is asked. Draw from it only within the call: the object is reused. It is Philox
          with key derive(seed, 7, position) of the order and counter 0. NumPy keeps its bit streams
          for ever, but not the way that a distribution uses them

The function returns a row of the same length: integers ≥ 0. It cannot change which positions exist,
so cursor, seek, rescale and replay stay exact. Document starts and loss mask are those of the
stored row. If it raises, next() raises a TransformError.
"""

from __future__ import annotations

from typing import Any

from . import _tokend, phrases
from .cursor import Cursor
from .errors import Error

TAG = 7  # of derive()


class TransformError(Error):
    """A transform raised an exception, or did not return a row. The cursor is before the batch."""


class Transform:
    """Applies @function. @types: of input_ids and labels, which the tokens must fit."""

    def __init__(self, function: Any, seed: int, types: dict[str, str]) -> None:
        import numpy

        if not callable(function):
            raise TypeError(
                phrases.is_not("transform", function, "a function of (tokens, position, rng)")
            )
        self.numpy: Any = numpy
        self._function, self._seed, self._types = function, seed, types
        self._greatest = (1 << (31 if "int32" in types.values() else 63)) - 1
        self._bits = numpy.random.Philox(key=0)
        self._rng = numpy.random.Generator(self._bits)
        self._state = self._bits.state

    def __reduce__(self) -> Any:
        return Transform, (self._function, self._seed, self._types)

    def _apply(self, tokens: Any, position: int) -> None:
        """Transforms a row in place. Raises what the function raises, or TransformError."""
        numpy = self.numpy
        self._state["state"]["key"][0] = _tokend.derive(self._seed, TAG, position)
        self._bits.state = self._state
        made = self._function(tokens, position, self._rng)
        if made is None:
            raise TransformError("returned None instead of the row")
        made = numpy.asarray(made)
        if made.shape != tokens.shape:
            raise TransformError(
                f"returned shape {list(made.shape)} instead of {list(tokens.shape)}"
            )
        if made.dtype.kind not in "iu":
            raise TransformError(f"returned {made.dtype} instead of integers")
        made = made.astype(numpy.int64, copy=False)
        # as unsigned, numbers below 0 are too great as well
        if int(numpy.maximum.reduce(made.view(numpy.uint64))) > self._greatest:
            raise TransformError(f"returned a token outside of 0 … {self._greatest}")
        if made is not tokens:
            tokens[:] = made

    def apply(self, client: Any, tokens: Any, fields: Any) -> None:
        """Transforms each row of @tokens, int64 [b, window], in place. @fields: arrays, as
        batch.FIELDS. If it raises, look_into() fills both again.
        """
        rows = self.numpy.asarray(tokens)
        positions, datasets, _, _, shards, offsets = (field.tolist() for field in fields)
        for i, position in enumerate(positions):
            if position < 0:
                continue  # padding
            try:
                self._apply(rows[i], position)
            except (Exception, SystemExit) as error:
                kind = "" if type(error) is TransformError else f"{type(error).__name__}: "
                why = (kind + " ".join(str(error).split())).removesuffix(": ")
                name = Cursor(client.cursor).datasets[datasets[i]]
                raise TransformError(
                    f"transform: {why} (position {position}, dataset {name}, shard {shards[i]} of "
                    f"its sorted list, offset {offsets[i]}); the cursor is before this batch"
                ) from error
