"""A user's transform: a pure function of one row, f(tokens, position, rng) → a row of the same
length.

tokens    NumPy int64 [window] (seq_len + extra), may be changed in place; not to be kept
position  int, the number of the row in the whole run
rng       a numpy.random.Generator over Philox, its key derive(seed, 7, position) of the order, its
          counter 0: the same numbers for the same row, whichever process asks, however often.
          (NumPy keeps bit streams for ever; how a distribution is made of them may change between
          its versions.) It is one object, begun anew for each row: draw from it in the call

What comes back is an integer array of the same length, of tokens ≥ 0. A transform cannot change
which positions there are, so cursor, seek, rescale and replay stay exact. Document boundaries and
loss masks are those of the row as it was stored.
"""

from __future__ import annotations

from typing import Any

from . import _tokend

TAG = 7  # of derive()


class TransformError(_tokend.Error):
    """A transform raised, or returned no row. `position`, `dataset`, `shard` and `offset` say on
    which one; the cursor is before the batch.
    """

    position: int
    dataset: str
    shard: int
    offset: int


class WorkerError(_tokend.Error):
    """A worker process of a transform ended, or could not be started."""


class Row:
    """Where a row is from."""

    def __init__(self, position: int, dataset: str, shard: int, offset: int) -> None:
        self.position, self.dataset, self.shard, self.offset = position, dataset, shard, offset

    def error(self, why: str) -> TransformError:
        error = TransformError(
            f"transform: {why} (position {self.position}, dataset {self.dataset}, shard "
            f"{self.shard} of its sorted list, offset "
            f"{self.offset}): the cursor is before this batch"
        )
        for name, value in vars(self).items():
            setattr(error, name, value)
        return error


def needs_numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise ImportError(
            "transform: rows are NumPy arrays, and NumPy is not installed: pip install numpy"
        ) from None
    return numpy


class Transform:
    """Applies @function. @greatest: the largest token that may come out."""

    def __init__(self, function: Any, seed: int, greatest: int) -> None:
        numpy = needs_numpy()
        if not callable(function):
            raise TypeError(
                f"transform: {function!r}, must be a function of (tokens, position, rng)"
            )
        self._numpy, self._function, self._seed, self._greatest = numpy, function, seed, greatest
        self._bits = numpy.random.Philox(key=0)
        self._rng = numpy.random.Generator(self._bits)
        self._state = self._bits.state

    def _begin(self, position: int) -> None:
        self._state["state"]["key"][0] = _tokend.derive(self._seed, TAG, position)
        self._bits.state = self._state

    def _checked(self, made: Any, like: Any) -> Any:
        """@made as a row, or a text that says why it is none."""
        numpy = self._numpy
        if made is None:
            return "returned None, must return the row"
        made = numpy.asarray(made)
        if made.shape != like.shape:
            shapes = f"{list(made.shape)}, must be {list(like.shape)}"
            return f"returned shape {shapes}: rows keep their length"
        if made.dtype.kind not in "iu":
            return f"returned {made.dtype}, must be integers"
        made = made.astype(numpy.int64, copy=False)
        if int(numpy.maximum.reduce(made.view(numpy.uint64))) > self._greatest:  # below 0, too
            return f"returned a token outside of 0 … {self._greatest}"
        return made

    def apply(self, tokens: Any, fields: list[list[int]], names: list[str]) -> None:
        """To each row of @tokens [b, window], in place. @fields: where they are from, as
        batch.FIELDS has it.
        """
        position, dataset, _, _, shard, offset = fields
        for i, at in enumerate(position):
            if at >= 0:  # no padding
                self._apply(tokens[i], Row(at, names[dataset[i]], shard[i], offset[i]))

    def _apply(self, tokens: Any, row: Row) -> None:
        given = tokens.astype(self._numpy.int64, copy=False)  # of a batch that nobody else has seen
        self._begin(row.position)
        try:
            made = self._function(given, row.position, self._rng)
        except (Exception, SystemExit) as error:
            raise row.error(
                f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
            ) from error
        made = self._checked(made, given)
        if isinstance(made, str):
            raise row.error(made)
        if made is not tokens:
            tokens[:] = made


def greatest(token_bytes: int) -> int:
    return (1 << (31 if token_bytes == 4 else 63)) - 1


class InProcess:
    """The source of batches that are transformed in the trainer's own process."""

    waited_s = 0.0

    def __init__(self, client: Any, transform: Transform) -> None:
        self._client, self._transform = client, transform
        self._names: list[str] = []

    def begin(self) -> None:
        """After an attach or a seek."""
        self._names = self._client.datasets()

    def take(self, tokens: Any, fields: list[Any], into: list[int]) -> tuple | None:
        taken = self._client.next_into(*into)
        if taken is not None:
            self._transform.apply(tokens, [field.tolist() for field in fields], self._names)
        return taken

    def close(self) -> None:
        pass
