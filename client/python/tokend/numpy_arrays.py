"""NumPy's arrays for batches. A loader of torch's tensors does not import this module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .view import Lent

LINE = 64  # bytes of a cache line


class Numpy:
    name = "numpy"
    has_gradients = None

    def __init__(self) -> None:
        import numpy

        self.module: Any = numpy
        self.int64, self.int32, self.float32 = numpy.int64, numpy.int32, numpy.float32

    def empty(self, *shape: int, dtype: Any) -> Any:
        return self._aligned(shape, dtype)()[1]

    def _aligned(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], tuple[int, Any]]:
        """Returns a function that makes (address, array): new, and beginning at a cache line,
        because JAX copies all others.
        """
        empty, array, byte = self.module.empty, self.module.ndarray, self.module.uint8
        size = math.prod(shape) * self.module.dtype(dtype).itemsize + LINE

        def new() -> tuple[int, Any]:
            raw = empty(size, byte)
            at = self.address(raw)
            skip = -at % LINE
            return at + skip, array(shape, dtype, raw, skip)

        return new

    def maker(self, b: int, *arrays: tuple[int, Any]) -> Callable[[], list[tuple[Any, ...]]]:
        """As Torch.maker(), but one group of new memory. If the types are equal, the arrays are
        parts of one, which is faster than two.
        """
        (columns, dtype), *labels = arrays
        if labels != [arrays[0]]:
            news = [self._aligned((b, columns), dtype) for columns, dtype in arrays]
            return lambda: [
                tuple(part for made in zip(*(new() for new in news), strict=True) for part in made)
            ]
        step = b * columns * self.module.dtype(dtype).itemsize
        new = self._aligned((2, b, columns), dtype)

        def groups() -> list[tuple[Any, ...]]:
            at, both = new()
            return [(at, at + step, both[0], both[1])]

        return groups

    def fields(self, b: int, n: int) -> Callable[[], list[tuple[int, list[Any]]]]:
        def groups() -> list[tuple[int, list[Any]]]:
            block = self.module.empty((n, b), self.int64)
            return [(self.address(block), list(block))]

        return groups

    @staticmethod
    def trainable(make: Callable[[], Any]) -> Any:
        return make()

    def falses(self, rows: int) -> Any:
        return self.module.zeros(rows, bool)

    @staticmethod
    def address(array: Any) -> int:
        return array.__array_interface__["data"][0]

    @staticmethod
    def copy(array: Any) -> Any:
        return array.copy()

    def cast(self, array: Any, dtype: Any) -> Any:
        return array.astype(dtype, copy=False)

    def join(self, parts: list[Any]) -> Any:
        return self.module.concatenate(parts, 1)

    def count(self, b: int, seq: int, like: Any) -> Any:
        return self.module.tile(self.module.arange(seq), (b, 1))

    def ones(self, b: int, seq: int, like: Any) -> Any:
        array = self.empty(b, seq, dtype=self.int64)
        array[:] = 1
        return array

    def numpy(self, array: Any) -> Any:
        return array

    def lent(self, capsule: Any) -> Any:
        return self.module.from_dlpack(Lent(capsule))
