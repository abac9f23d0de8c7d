"""Which data rank a process of a DeviceMesh is, and which of those that read the same.

A dim's name is taken apart at "_". It is a *data* dim if one of the parts is among DATA: its ranks
read different rows. Expert-parallel ranks do, too: ep, dp_shard_mod_ep and dp_shard_in_ep are data
dims. All other dims (tp, cp, pp, whatever else there is) are *peers*: they read the same rows. A
dim with parts of both (dp_cp, dp_shard_cp) is several dims in one, and what its ranks read cannot
be told: it is refused. So is a mesh without any dim that is known.

The data rank counts through the data dims in the mesh's order, the last one fastest; the peer
number through the others. A slice of a mesh (mesh["dp_shard"], or one flattened) does as well as
the mesh: a slice's peers outside of it have slices of their own, which are told apart by their
least global rank.

Not visible in names: torchtitan's "fsdp" of its dense mesh and "efsdp" and "ep" of its sparse one
take in cp, and tp. With cp or tp there, pass the mesh of "batch", or rank= and world=.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
        "shard",
        "ep",
        "efsdp",
        "edp",
        "expert",
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
        "tensor",
        "context",
        "pipe",
        "pipeline",
        "sequence",
        "cfg",
    )
)
CONTEXT = frozenset(("cp", "context"))


class Place(NamedTuple):
    rank: int
    world: int
    peer: int
    cp: tuple[int, int] | None  # (rank, size) among the context-parallel ones


def _kind(name: str, names: tuple[str, ...]) -> str | None:
    parts = set(name.lower().split("_"))
    if parts & DATA and parts & PEER:
        raise ArgumentError(
            f"mesh: dim {name!r} of {names} holds data ranks and their peers in one: pass the mesh "
            "with its dims apart, or its "
            "slice of the data dims, or rank= and world="
        )
    return "data" if parts & DATA else "peer" if parts & PEER else None


def _kinds(mesh: Any) -> tuple[tuple[str, ...], list[str | None]]:
    names = tuple(mesh.mesh_dim_names or ())
    if not names:
        if mesh.mesh.ndim != 1:
            raise ArgumentError(
                f"mesh: its {mesh.mesh.ndim} dims have no names, so what they are for is not "
                "known: name them (mesh_dim_names=)"
            )
        return ("dp",), ["data"]
    kinds = [_kind(name, names) for name in names]
    if not any(kinds):
        raise ArgumentError(
            f"mesh: none of its dims {names} is known: call those whose ranks read different rows "
            "dp, dp_replicate, dp_shard, fsdp, "
            "… or pass rank= and world="
        )
    return names, kinds


def place(mesh: Any) -> Place:
    """Of this process. ArgumentError if it is not in the mesh, or the mesh does not say."""
    for name in ("get_coordinate", "mesh_dim_names", "mesh"):
        if not hasattr(mesh, name):
            raise TypeError(f"mesh: {mesh!r}, must be a torch.distributed DeviceMesh")
    names, kinds = _kinds(mesh)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        import torch.distributed as distributed

        raise ArgumentError(
            f"mesh: does not hold this process, global rank {distributed.get_rank()} (its ranks: "
            f"{_few(sorted(mesh.mesh.flatten().tolist()))}): pass the mesh that this process is in"
        )
    rank, world, peer, peers, cp = 0, 1, 0, 1, None
    for name, kind, at, size in zip(names, kinds, coordinate, mesh.mesh.shape, strict=True):
        if kind == "data":
            rank, world = rank * size + at, world * size
        else:
            peer, peers = peer * size + at, peers * size
        if CONTEXT & set(name.lower().split("_")):
            cp = (at, size)
    return Place(rank, world, int(mesh.mesh.min()) * peers + peer, cp)


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
