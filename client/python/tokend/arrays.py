"""The arrays of batches: torch's tensors, or NumPy's arrays by the same calls: numpy_arrays.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import phrases
from ._tokend import ArgumentError, Buffers

if TYPE_CHECKING:
    from .numpy_arrays import Numpy

TORCH_AT_LEAST = (2, 2)  # public DeviceMesh
# Tensors are made for several batches at once: after a step of the model torch's code is in no
# cache, and the first call of it waits. So many batches, or bytes, but one batch at least.
AHEAD_MOST, AHEAD_BYTES = 4, 1 << 20


class Torch:
    name = "torch"

    def __init__(self) -> None:
        import torch

        self.module: Any = torch
        version = tuple(
            int(part)
            for part in str(torch.__version__).split("+")[0].split(".")[:2]
            if part.isdigit()
        )
        if version < TORCH_AT_LEAST:
            least = ".".join(map(str, TORCH_AT_LEAST))
            raise ImportError(
                f"torch: {torch.__version__} is older than {least}; {phrases.install('-U torch')}"
            )
        # not the program's default device: the extension writes to the arrays
        self.cpu = torch.device("cpu")
        self.int64, self.int32, self.float32 = torch.int64, torch.int32, torch.float32
        self.has_gradients: Callable[[], bool] = torch.is_grad_enabled
        # if possible, without the checks for objects that are not capsules
        self.from_capsule: Any = getattr(torch._C, "_from_dlpack", torch.from_dlpack)

    def empty(self, *shape: int, dtype: Any) -> Any:
        return self.module.empty(*shape, dtype=dtype, device=self.cpu)

    def maker(self, b: int, *arrays: tuple[int, Any]) -> Callable[[], list[tuple[Any, ...]]]:
        """Returns a function that makes several groups: the addresses of one or two new arrays,
        then the arrays, [b, columns] of a type, contiguous. @arrays: columns and type.

        Their memory is used again after the last tensor over it is freed.
        """
        sizes = [(columns, dtype.itemsize) for columns, dtype in arrays]
        take = Buffers(b, *(number for size in sizes for number in size)).take
        bytes_each = b * sum(columns * width for columns, width in sizes)
        n = max(1, min(AHEAD_MOST, AHEAD_BYTES // bytes_each))
        tensor, alone = self.from_capsule, len(arrays) == 1

        def groups() -> list[tuple[Any, ...]]:
            if alone:
                return [(at, tensor(one)) for at, one in [take() for _ in range(n)]]
            taken = [take() for _ in range(n)]
            return [(at, to, tensor(one), tensor(two)) for at, to, one, two in taken]

        return lambda: self.trainable(groups)

    def fields(self, b: int, n: int) -> Callable[[], list[tuple[int, list[Any]]]]:
        """Returns a function that makes several groups: the address of int64 [n, b], then its rows
        as arrays.

        Their memory is separate from that of maker(): a trainer that keeps them keeps no tokens.
        """
        take, tensor = Buffers(b, *(0, 8) * n).take, self.from_capsule

        def groups() -> list[tuple[int, list[Any]]]:
            taken = [take() for _ in range(AHEAD_MOST)]
            return [(made[0], [tensor(one) for one in made[n:]]) for made in taken]

        return lambda: self.trainable(groups)

    def trainable(self, make: Callable[[], Any]) -> Any:
        """make(), but its tensors are never those of inference mode: they are made ahead, and may
        be used for training.
        """
        if not self.module.is_inference_mode_enabled():
            return make()
        with self.module.inference_mode(False):
            return make()

    def falses(self, rows: int) -> Any:
        return self.module.zeros(rows, dtype=self.module.bool, device=self.cpu)

    @staticmethod
    def address(array: Any) -> int:
        return array.data_ptr()

    @staticmethod
    def copy(array: Any) -> Any:
        return array.clone()

    def cast(self, array: Any, dtype: Any) -> Any:
        return array.to(dtype)

    def join(self, parts: list[Any]) -> Any:
        return self.module.cat(parts, 1)

    def count(self, b: int, seq: int, like: Any) -> Any:
        """0, 1, … in each row, on the device of @like."""
        return self.module.arange(seq, device=like.device).repeat(b, 1)

    def ones(self, b: int, seq: int, like: Any) -> Any:
        """int64, on the device of @like."""
        return self.module.ones(b, seq, dtype=self.int64, device=like.device)

    def numpy(self, array: Any) -> Any:
        """The same memory."""
        return array.numpy()

    def lent(self, capsule: Any) -> Any:
        """A tensor over the capsule's slot."""
        return self.from_capsule(capsule)


def framework(name: str | None) -> Torch | Numpy:
    """The framework @name; None: torch if it is installed, otherwise NumPy."""
    if name not in (None, "torch", "numpy"):
        raise ValueError(phrases.is_not("framework", name, "'torch' or 'numpy'"))
    if name != "numpy":
        try:
            return Torch()
        except ModuleNotFoundError as error:
            if error.name != "torch":  # torch is installed, but broken: report it
                raise
            if name == "torch":
                raise ImportError(
                    f"framework: torch is not installed; {phrases.install('torch')}, or pass "
                    "framework='numpy'"
                ) from None
    from .numpy_arrays import Numpy

    try:
        return Numpy()
    except ModuleNotFoundError:
        missing = "numpy is not" if name else "neither torch nor numpy is"
        raise ImportError(
            f"framework: {missing} installed; {phrases.install(name or 'torch')}"
        ) from None


class Types:
    """The types of a batch's tokens and labels, and their bytes."""

    def __init__(self, tokens: tuple[Any, int], labels: tuple[Any, int]) -> None:
        self.tokens, self.token_bytes = tokens
        self.labels, self.label_bytes = labels


def _integer(make: Torch | Numpy, what: str, dtype: Any) -> tuple[Any, int]:
    """@what: the argument, for an error."""
    if dtype is None:
        return make.int64, 8
    name = getattr(dtype, "__name__", str(dtype).split(".")[-1])
    if name in ("int64", "int32"):
        return (make.int64, 8) if name == "int64" else (make.int32, 4)
    raise ArgumentError(
        f"{what}: {dtype} cannot hold all tokens (unsigned, of 16 or 32 bits), or embeddings do "
        "not take it; pass int64 or int32"
    )


def types(make: Torch | Numpy, dtype: Any, unsplit: bool = False) -> Types:
    """dtype=: one type for input_ids or tokens, or a mapping from a batch's keys to types.
    @unsplit: the batches have tokens.
    """
    ids = "tokens" if unsplit else "input_ids"
    if not isinstance(dtype, Mapping):
        return Types(_integer(make, "dtype", dtype), (make.int64, 8))
    keys = ("tokens",) if unsplit else ("input_ids", "labels")
    if unknown := [key for key in dtype if key not in keys]:
        raise ArgumentError(phrases.is_not("dtype", unknown[0], f"a key for {', '.join(keys)}"))
    return Types(
        _integer(make, f"dtype of {ids}", dtype.get(ids)),
        _integer(make, "dtype of labels", dtype.get("labels")),
    )
