"""Finds a process's data rank, and its number among its peers, in a mesh of torch or JAX.

    mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
    loader = Loader("train", micro_batch=8, mesh=mesh)  # rank 0 to 3 of 4, two peers each

The names of the dims decide. A name is split at "_", "-" and ".":

  data dims   one of the parts is in DATA: dp, fsdp, hsdp, replicate, shard, ep, … Their ranks read
              different rows. Expert-parallel ranks do so too (ep, dp_shard_mod_ep)
  peer dims   one of the parts is in PEER: tp, cp, pp, … Their ranks read the same rows
  unknown     all others: as peer dims, with a RuntimeWarning, unless they have one rank
  refused     a name with parts of both (dp_cp, dp_shard_cp), because it joins several dims; and a
              mesh in which no dim is known

The data rank counts through the data dims in the mesh's order, the last one fastest. The peer
number counts through the others. A slice of all data dims (mesh["dp"], also a flattened one) gives
the same ranks as the mesh. Peers outside of the slice have slices of their own, which differ in
their least global rank. A slice that leaves a data dim out (mesh["ep"]) gives a RuntimeWarning,
because the processes along that dim then read the same rows.

In a jax.sharding.Mesh a process has several devices. Processes whose devices have the same
coordinates in the data dims are peers: JAX takes the same rows from each of them, unchecked.

Names do not show everything: torchtitan's "fsdp" of its dense mesh and "efsdp" and "ep" of its
sparse mesh contain cp and tp. With cp or tp pass its mesh "batch", or rank= and world=.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
import warnings
from typing import Any, NamedTuple

from . import callers, phrases
from ._tokend import ArgumentError

DATA = frozenset(
    (
        "dp",
        "ddp",
        "fsdp",
        "hsdp",
        "data",
        "batch",
        "replicate",
        "replica",  # of JAX's trainers
        "shard",
        "ep",
        "efsdp",
        "edp",
        "expert",
        "weight",  # MegaBlocks: processes with the same experts
    )
)
PEER = frozenset(
    (
        "tp",
        "cp",
        "pp",
        "sp",
        "etp",
        "mp",
        "model",
        "mdl",
        "tensor",
        "context",
        "pipe",
        "pipeline",
        "stage",
        "sequence",
        "cfg",
    )
)
CONTEXT = frozenset(("cp", "context"))


class Place(NamedTuple):
    rank: int
    world: int
    peer: int
    cp: tuple[int, int] | None  # (rank, size) among the context-parallel processes


def _parts(name: str) -> set[str]:
    return set(re.split("[_.-]", name.lower()))


def is_peer(name: str) -> bool:
    """Do the processes along dim @name want the same rows?"""
    return bool(_parts(name) & PEER) and not _parts(name) & DATA


def _kind(name: str, names: tuple[str, ...]) -> str | None:
    parts = _parts(name)
    if parts & DATA and parts & PEER:
        raise ArgumentError(
            f"mesh: dim {name!r} of {names} joins data and peer dims; pass the mesh with separate "
            f"dims, or its slice of the data dims, or {phrases.PASS_RANKS}"
        )
    return "data" if parts & DATA else "peer" if parts & PEER else None


def _kinds(
    names: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[tuple[str, ...], list[str | None]]:
    if not names:
        if len(sizes) != 1:
            raise ArgumentError(
                f"mesh: its {len(sizes)} dims have no names; name them (mesh_dim_names=), or "
                f"{phrases.PASS_RANKS}"
            )
        return ("dp",), ["data"]
    kinds = [_kind(name, names) for name in names]
    if not any(kinds):
        raise ArgumentError(
            f"mesh: none of its dims {names} is known; name those whose ranks read different rows "
            f"dp, dp_replicate, dp_shard, fsdp, …, or {phrases.PASS_RANKS}"
        )
    for name, kind, size in zip(names, kinds, sizes, strict=True):
        if kind is None and size > 1:
            text = (
                f"mesh: dim {name!r} of {names} is unknown, so its {size} ranks read the same "
                f"rows; name it mp_{name} if they are to do so, dp_{name} if not, or "
                f"{phrases.PASS_RANKS}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=callers.users_level())
    return names, kinds


def place(mesh: Any) -> Place:
    """Returns the place of this process.

    Raises:
        TypeError: this is not a DeviceMesh or a jax.sharding.Mesh.
        ArgumentError: the process is not in the mesh, or the dims' names do not decide.
    """
    if hasattr(mesh, "axis_names") and hasattr(mesh, "devices"):
        return _of_jax(mesh)
    for name in ("get_coordinate", "mesh_dim_names", "mesh"):
        if not hasattr(mesh, name):
            raise TypeError(
                phrases.is_not("mesh", mesh, "a torch.distributed DeviceMesh or a JAX Mesh")
            )
    names, kinds = _kinds(tuple(mesh.mesh_dim_names or ()), tuple(mesh.mesh.shape))
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        import torch.distributed as distributed

        raise ArgumentError(
            f"mesh: does not contain this process, global rank {distributed.get_rank()} (its "
            f"ranks: {_few(sorted(mesh.mesh.flatten().tolist()))}); pass a mesh that does"
        )
    rank, world, peer, peers, cp = 0, 1, 0, 1, None
    for name, kind, at, size in zip(names, kinds, coordinate, mesh.mesh.shape, strict=True):
        if kind == "data":
            rank, world = rank * size + at, world * size
        else:
            peer, peers = peer * size + at, peers * size
        if CONTEXT & _parts(name):
            cp = (at, size)
    _warn_of_less(mesh, names, world)
    return Place(rank, world, int(mesh.mesh.min()) * peers + peer, cp)


def _of_jax(mesh: Any) -> Place:
    jax: Any = sys.modules["jax"]
    names, kinds = _kinds(tuple(mesh.axis_names), mesh.devices.shape)
    coordinates: dict[int, set[tuple[int, ...]]] = {}  # of each process, in the data dims
    for index in itertools.product(*map(range, mesh.devices.shape)):
        at = tuple(i for i, kind in zip(index, kinds, strict=True) if kind == "data")
        coordinates.setdefault(mesh.devices[index].process_index, set()).add(at)
    mine = jax.process_index()
    if mine not in coordinates:
        raise ArgumentError(
            f"mesh: has no device of this process, {mine} (it has devices of processes "
            f"{_few(sorted(coordinates))}); pass a mesh that does"
        )
    shares = sorted({tuple(sorted(part)) for part in coordinates.values()})
    joined = {at for share in shares for at in share}
    if any(len(share) * len(shares) != len(joined) for share in shares):
        raise ArgumentError(
            f"mesh: processes share some of their rows of {names}, but not all; order the devices "
            f"so that they share all or none, or {phrases.PASS_RANKS}"
        )
    share = tuple(sorted(coordinates[mine]))
    peers = sorted(i for i, part in coordinates.items() if tuple(sorted(part)) == share)
    return Place(shares.index(share), len(shares), peers.index(mine), None)


def _warn_of_less(mesh: Any, names: tuple[str, ...], world: int) -> None:
    """Warns if @mesh is a slice with fewer data ranks than its whole mesh."""
    whole = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    sizes = dict(zip(whole.mesh_dim_names or (), whole.mesh.shape, strict=False))
    parts = {name: _parts(name) for name in sizes}
    if any(part & DATA and part & PEER for part in parts.values()):
        return
    data = {name: size for name, size in sizes.items() if parts[name] & DATA}
    ranks = math.prod(data.values())
    if ranks > world:
        dims = " × ".join(f"{name} {size}" for name, size in data.items())
        text = (
            f"mesh: the slice {names} has {world} data ranks, but its whole mesh has {ranks} "
            f"({dims}), so {ranks // world} processes each read the same rows; pass the whole "
            f"mesh, or if they are peers {phrases.PASS_RANKS} and peer="
        )
        warnings.warn(text, RuntimeWarning, stacklevel=callers.users_level())


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
