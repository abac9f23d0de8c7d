"""Before a loader's first batch: checks that its rank and world fit the launcher and the other
processes of the job. Before its second: imports what it may need later.

Two mistakes would otherwise repeat or lose rows without a word. A loader that is made before
torch.distributed or jax.distributed is initialised reads every row, in every process. And in JAX a
process has several devices, so a world of devices has ranks that no process reads.
"""

from __future__ import annotations

import gc
import sys
import warnings
from typing import TYPE_CHECKING, Any

from . import callers, job
from . import group as groups
from ._tokend import ArgumentError

if TYPE_CHECKING:
    from .loader import Loader


def check_worker() -> None:
    """Raises ArgumentError in a process of torch's DataLoader, if another one would take the same
    rows.
    """
    data: Any = sys.modules.get("torch.utils.data")
    info = data and data.get_worker_info()
    if info and max(info.num_workers, groups.processes()) > 1:
        raise ArgumentError(
            f"tokend.Loader: made in worker {info.id} of {info.num_workers} of a DataLoader, where "
            "each worker would take the same rows; iterate over a loader in the training process, "
            "without a DataLoader, or pass rank= and world= that count the workers"
        )


def _peer_dim() -> tuple[str, int] | None:
    """A dim of one of this process's DeviceMeshes whose processes want the same rows; its size."""
    module: Any = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return None
    from . import mesh as meshes

    for mesh in gc.get_referrers(module.DeviceMesh):
        if isinstance(mesh, module.DeviceMesh) and mesh.get_coordinate() is not None:
            for name, size in zip(mesh.mesh_dim_names or (), mesh.mesh.shape, strict=False):
                if size > 1 and meshes.is_peer(name):
                    return name, size
    return None


def _warn_of_a_mesh(rank: int, world: int) -> None:
    dim = _peer_dim()
    if dim is not None:
        warnings.warn(
            f"tokend.Loader: this process is one of {dim[1]} along dim {dim[0]!r} of a DeviceMesh, "
            f"but got no mesh=, so it is rank {rank} of {world} and takes other rows than they do; "
            "pass mesh=, or rank= and world=",
            RuntimeWarning,
            stacklevel=callers.users_level(),
        )


class First:
    """The place that a loader was made with. @assumed: nobody passed rank, world or mesh."""

    _ranks: dict[tuple[str, str, int], set[int]] = {}  # that this process's loaders have

    def __init__(self, assumed: bool, stream: str, run: str, rank: int, world: int) -> None:
        self._assumed, self._place = assumed, (rank, world)
        self._mine = self._ranks.setdefault((stream, run, world), set())
        self._mine.add(rank)

    def check(self, loader: Loader[Any]) -> Later:
        """Raises ArgumentError, or DisagreementError if the job's processes do not fit."""
        found, rank, world = job.launched(), loader._rank, loader._world
        if found is None or (rank, world) != self._place:  # sought
            return Later()
        if self._assumed and world == 1 < found.world:
            raise ArgumentError(
                f"rank, world: the loader was made before {found.launcher} was initialised, so it "
                f"is rank 0 of 1 instead of {found.rank} of {found.world}; make it after, or pass "
                "rank=0, world=1 if this process alone reads the stream"
            )
        if self._assumed and world > 1:
            loader._meet_late()
            _warn_of_a_mesh(rank, world)
        if found.launcher.startswith("jax") and len(self._mine) * found.world < world:
            raise ArgumentError(
                f"world: is {world}, but JAX has {found.world} processes, and this one reads only "
                f"{len(self._mine)} of the ranks, so rows are lost; omit rank= and world=, or pass "
                "jax.process_index() and jax.process_count()"
            )
        return Later()


class Later:
    """Modules that a first batch does not need. Later calls import nothing: the package could be
    replaced while the job runs, or the process have no descriptors left.
    """

    def check(self, loader: Loader[Any]) -> None:
        from . import callers, control, cursor, dataset, passes, same_place  # noqa: F401

        if "accelerate" in sys.modules:
            from . import accelerated  # noqa: F401
