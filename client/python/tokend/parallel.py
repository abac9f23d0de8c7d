"""Finds which process of the job this one is: its data rank, their number, and its peer number.

Launchers start each other: mpirun in a Slurm allocation, torchrun in each task of srun. The ranks
of the inner one are the job's, but they inherit the environment of the outer one. So the first of
these that has both numbers counts: torch.distributed and jax.distributed if they are initialised;
JAX's number of processes, if its devices are in use (a TPU's runtime knows it); torchrun, Open MPI,
PMI, Horovod, Slurm, by their variables in ENVIRONMENTS. SLURM_NTASKS is not used: it is also set in
a batch script, where one process runs.

In a mesh of torch or JAX the names of the dims decide: a part of a name, split at "_", "-" and ".",
is in DATA (ranks read different rows) or in PEER (ranks read the same rows). The data rank counts
through the data dims in the mesh's order, the last one fastest; the peer number through the
processes with the same rows. A slice of all data dims (mesh["dp"], also a flattened one) gives the
same ranks as the mesh; one that leaves a data dim out (mesh["ep"]) is refused. In a
jax.sharding.Mesh a process has several devices, and processes whose devices have the same
coordinates in the data dims are peers.

Names do not show everything: torchtitan's "fsdp" of its dense mesh and "efsdp" and "ep" of its
sparse mesh contain cp and tp. With cp or tp pass its mesh "batch", or rank= and world=. If another
mesh of the process shows that it has a peer among the other ranks, the loader warns.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from typing import Any, NamedTuple

from . import group as groups
from . import phrases
from .cursor import integer
from .errors import ArgumentError

# ---- launchers ----


class Launched(NamedTuple):
    launcher: str
    rank: int
    world: int


ENVIRONMENTS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "Horovod": ("HOROVOD_RANK", "HOROVOD_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def coordinate(rank: int | None, world: int | None) -> tuple[int, int]:
    """Returns (rank, world): as passed, otherwise the launcher's, otherwise (0, 1)."""
    if rank is not None or world is not None:
        if rank is None or world is None:
            raise ValueError("rank, world: pass both or neither")
        return integer("rank", rank), integer("world", world)
    found = launched()
    if found is not None:
        return found.rank, found.world
    _check_halves()
    return 0, 1


def launched() -> Launched | None:
    """Returns the place that the innermost launcher gives; None if there is no launcher."""
    distributed = groups.torch_distributed()
    if distributed is not None:
        return Launched("torch.distributed", distributed.get_rank(), distributed.get_world_size())
    return _of_jax_distributed() or _of_environment()


def _of_jax_distributed() -> Launched | None:
    # jax.process_count() would initialise the devices, so the state is looked at first
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is not None:
        return Launched("jax.distributed", state.process_id, state.num_processes)
    public: Any = sys.modules.get("jax.distributed")
    if state is None and public is not None and public.is_initialized():
        jax: Any = sys.modules["jax"]
        return Launched("jax.distributed", jax.process_index(), jax.process_count())
    in_use = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    if in_use is None or not in_use():
        return None
    jax = sys.modules["jax"]
    index, count = jax.process_index(), jax.process_count()
    return Launched("jax", index, count) if count > 1 else None


def _of_environment() -> Launched | None:
    for launcher, names in ENVIRONMENTS.items():
        rank, world = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and world.isdigit():
            return Launched(launcher, int(rank), int(world))
    return None


def _check_halves() -> None:
    """Called when no launcher has both numbers. Raises if one has half of them: it has started
    several processes, and each would take all rows.
    """
    for launcher, names in ENVIRONMENTS.items():
        values = [os.environ.get(name, "") for name in names]
        # Slurm's batch script has a SLURM_PROCID, and is a single process
        if any(values) and launcher != "Slurm":
            raise ValueError(
                f"{names[0]}={values[0]!r}, {names[1]}={values[1]!r}: not two numbers; set both, "
                f"or pass rank= and world="
            )
    rank = os.environ.get("PMIX_RANK", "")
    if rank not in ("", "0"):  # a single program under Open MPI is rank 0, too
        raise ValueError(
            f"PMIX_RANK={rank!r}: one of several processes, but no launcher says how many; "
            f"pass rank= and world="
        )


def token() -> str | None:
    """The launcher's name for this job, or None. torchrun without --rdzv-id draws a UUID, and
    another one at the next start: that names nothing.
    """
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name, "")
        if value and value != "none" and not _RANDOM.fullmatch(value):
            return value
    return None


# ---- mistakes that would repeat or lose rows without a word ----

_ranks_here: dict[tuple[str, str, int], set[int]] = {}  # that this process's loaders have


def refuse_workers() -> None:
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


def check_slices(place: Place, cp: tuple[int, int, str] | None, given: bool) -> None:
    """Raises ArgumentError if the job has fewer processes than slices of rows: those that share a
    row would take different ones. @given: rank= and world= were; then it warns, because one process
    may make several loaders.
    """
    found = launched()
    if cp is None or cp[1] == 1 or found is None or place.world * cp[1] <= found.world:
        return
    why = (
        f"cp: {place.world} ranks with {cp[1]} slices of each row need more processes than the "
        f"{found.world} of {found.launcher}, so slices are lost; pass mesh=, or rank= and world= "
        "that count the processes of one row once"
    )
    if not given:
        raise ArgumentError(why)
    phrases.warn(why)


class Made:
    """How a loader was made, to be checked before its first batch, and when torch.distributed or
    jax.distributed was initialised since the last check. A loader that is made before reads every
    row, in every process; one of a former job goes on without the rows of processes that are gone.
    And in JAX a process has several devices, so a world of devices has ranks that no process reads.
    @given: rank= and world= were.
    """

    def __init__(self, given: bool, at: Place, stream: str, run: str) -> None:
        rank, world = self._place = at.rank, at.world
        self._given, self._others = given, at.others
        found = launched()
        self._processes = found.world if found else 1
        self._ranks = _ranks_here.setdefault((stream, run, world), set())
        self._ranks.add(rank)

    def check(self, rank: int, world: int) -> bool:
        """Returns whether the loader has yet to be compared with a group that was initialised
        since. Raises ArgumentError.
        """
        found = launched()
        # launchers by environment do not change; and a seek gives another place
        if found is None or found.launcher in ENVIRONMENTS or (rank, world) != self._place:
            return False
        if not self._given and found.world != self._processes:
            raise ArgumentError(
                f"rank, world: the loader was made before {found.launcher} was initialised, for "
                f"{self._processes} processes instead of {found.world}, as rank {rank} of {world}; "
                "make it after, or pass rank=0, world=1 if this process alone reads the stream"
            )
        if found.launcher.startswith("jax") and len(self._ranks) * found.world < world:
            raise ArgumentError(
                f"world: is {world}, but JAX has {found.world} processes, and this one reads only "
                f"{len(self._ranks)} of the ranks, so rows are lost; omit rank= and world=, or "
                "pass jax.process_index() and jax.process_count()"
            )
        if self._given:
            return False
        dim = None if world == 1 else _peer_dim(self._others)
        if dim is not None:
            phrases.warn(
                f"this process is one of {dim[1]} along dim {dim[0]!r} of a DeviceMesh, but got no "
                f"mesh= with it, so it takes other rows, as rank {rank} of {world}; pass mesh= "
                "with this dim, or rank= and world="
            )
        return True


# ---- meshes ----

DATA = frozenset(
    "dp ddp fsdp hsdp data batch replicate replica shard ep efsdp edp expert weight".split()
)
PEER = frozenset(
    "tp cp pp sp etp mp model mdl tensor context pipe pipeline stage sequence cfg".split()
)
CONTEXT = frozenset(("cp", "context"))


class Place(NamedTuple):
    rank: int
    world: int
    peer: int
    cp: tuple[int, int] | None  # (rank, size) among the context-parallel processes
    others: set[int] | None  # processes of the mesh that are other ranks; without a mesh None


def _parts(name: str) -> set[str]:
    return set(re.split("[_.-]", name.lower()))


def _data_dims(names: tuple[str, ...], sizes: tuple[int, ...]) -> list[int]:
    """The numbers of the dims whose ranks read different rows."""
    if not names and len(sizes) == 1:
        names = ("dp",)
    parts = [_parts(name) for name in names]
    for name, of in zip(names, parts, strict=True):
        if of & DATA and of & PEER:
            raise ArgumentError(
                f"mesh: dim {name!r} of {names} joins data and peer dims; pass the mesh with "
                "separate dims, or its slice of the data dims, or pass rank= and world="
            )
    known = [bool(of & (DATA | PEER)) for of in parts]
    if not any(known) or not all(k or size == 1 for k, size in zip(known, sizes, strict=True)):
        raise ArgumentError(
            f"mesh: {names or 'dims without names'}: not all are known; begin the names of those "
            "whose ranks read different rows with dp_, and of those whose ranks read the same rows "
            "with mp_; or pass rank= and world="
        )
    return [dim for dim, of in enumerate(parts) if of & DATA]


def _peer_dim(others: set[int] | None) -> tuple[str, int] | None:
    """The dim of a DeviceMesh along which processes want the rows of this one, but some are among
    @others (None: perhaps), and its size; None if there is none.
    """
    module: Any = sys.modules.get("torch.distributed.device_mesh")
    for mesh in gc.get_referrers(module.DeviceMesh) if module else ():
        at = mesh.get_coordinate() if isinstance(mesh, module.DeviceMesh) else None
        for dim, name in enumerate(mesh.mesh_dim_names or () if at is not None else ()):
            along = mesh.mesh[(*at[:dim], slice(None), *at[dim + 1 :])].tolist()
            wrong = len(along) > 1 if others is None else others.intersection(along)
            # a mesh that was flattened to dp_shard_cp may have no cp
            if wrong and _parts(name) & PEER and not _parts(name) & DATA:
                return name, len(along)
    return None


def _check_slice(mesh: Any, world: int) -> None:
    """Raises ArgumentError if @mesh, of @world ranks, is a slice that leaves a data dim out, or is
    flattened from data and peer dims.
    """
    whole = getattr(mesh, "_root_mesh", None)  # in newer torch
    try:
        ranks = locate(whole, None, None, 0).world if whole and whole.mesh_dim_names else world
    except ArgumentError:  # the names of its dims do not decide
        return
    if ranks != world:
        raise ArgumentError(
            f"mesh: this slice {mesh.mesh_dim_names} has {world} data ranks, and the mesh "
            f"{whole.mesh_dim_names} that it is of has {ranks}; pass that one, or rank= and world="
        )


def locate(mesh: Any, rank: int | None, world: int | None, peer: int) -> Place:
    """Returns the place of this process, from a Loader's arguments.

    TypeError: this is not a mesh. ArgumentError: the process is not in it, or the dims' names do
    not decide.
    """
    if mesh is None:
        return Place(*coordinate(rank, world), peer, None, None)
    if rank is not None or world is not None or peer != 0:
        raise ValueError("mesh, rank, world, peer: the mesh has them; pass mesh= alone")
    cp = None
    if hasattr(mesh, "axis_names") and hasattr(mesh, "devices"):
        names, shape = tuple(mesh.axis_names), tuple(mesh.devices.shape)
        processes = [device.process_index for device in mesh.devices.flat]
        mine = sys.modules["jax"].process_index()
    elif hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "mesh"):
        names, shape = tuple(mesh.mesh_dim_names or ()), tuple(mesh.mesh.shape)
        processes = mesh.mesh.flatten().tolist()
        mine = sys.modules["torch.distributed"].get_rank()
        own = zip(names, mesh.get_coordinate() or (), shape, strict=False)
        dims = [(name, at, size) for name, at, size in own if CONTEXT & _parts(name)]
        dims = [dim for dim in dims if dim[2] > 1] or dims[:1]
        # nobody says which slices the processes of two dims take, or of one that joins cp and tp
        if len(dims) == 1 and _parts(dims[0][0]) & PEER <= CONTEXT:
            cp = dims[0][1:]
    else:
        raise TypeError(
            phrases.is_not("mesh", mesh, "a torch.distributed DeviceMesh or a JAX Mesh")
        )
    data = _data_dims(names, shape)
    parts: dict[int, set[tuple[int, ...]]] = {}  # of each process: coordinates in the data dims
    for index, process in zip(itertools.product(*map(range, shape)), processes, strict=True):
        parts.setdefault(process, set()).add(tuple(index[dim] for dim in data))
    if mine not in parts:
        raise ArgumentError(
            f"mesh: does not contain this process, {mine} (its processes: "
            f"{phrases.few(sorted(parts))}); pass a mesh that does"
        )
    shares = sorted({tuple(sorted(part)) for part in parts.values()})
    joined = {at for share in shares for at in share}
    if any(len(share) * len(shares) != len(joined) for share in shares):
        raise ArgumentError(
            f"mesh: processes share some of their rows of {names}, but not all; order the devices "
            f"so that they share all or none, or pass rank= and world="
        )
    peers = sorted(process for process, part in parts.items() if part == parts[mine])
    # the slices of a mesh differ in their first process
    peer = min(parts) * len(peers) + peers.index(mine)
    _check_slice(mesh, len(shares))
    others = {process for process, part in parts.items() if part != parts[mine]}
    return Place(shares.index(tuple(sorted(parts[mine]))), len(shares), peer, cp, others)
