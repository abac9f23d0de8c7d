"""Loader(mesh=) in real processes with real meshes, without other arguments about ranks."""

import json
import re
import sys
import types
import warnings

import numpy
import pytest
import tokend
from lib import REPO
from lib.forks import run_together
from tokend import mesh as meshes

# Every process makes all these meshes, with slices and flattened dims as trainers do.
PROGRAM = """
import json, sys, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokend

socket, meet, rank, world, cases = (
    sys.argv[1],
    sys.argv[2],
    int(sys.argv[3]),
    int(sys.argv[4]),
    json.loads(sys.argv[5]),
)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
warned = []
warnings.showwarning = lambda message, *_: warned.append(str(message))
warnings.simplefilter("always")
for case in cases:
    warned.clear()
    names = case["names"] and tuple(case["names"])
    if "of" in case:
        mesh = torch.distributed.DeviceMesh("cpu", case["of"], mesh_dim_names=names)
    else:
        mesh = init_device_mesh("cpu", tuple(case["shape"]), mesh_dim_names=names)
    if "slice" in case:
        mesh = mesh[tuple(case["slice"])]
    if "flatten" in case:
        mesh = mesh._flatten(case["flatten"])
    try:
        with tokend.Loader("train", 2, socket=socket, mesh=mesh, cp=case.get("cp")) as loader:
            batches = [next(loader) for _ in range(3)]
            saw = {
                "rank": loader.rank,
                "world": loader.world,
                "peer": loader._peer,
                "group": loader._control.group.size,
            }
            saw["rows"] = [b["position"].tolist() for b in batches]
            if "cp" in case:
                saw["ids"], saw["at"] = (
                    batches[0]["input_ids"].tolist(),
                    batches[0]["position_ids"][0].tolist(),
                )
    except Exception as error:
        saw = {"error": type(error).__name__, "text": str(error)}
    saw["warned"] = [text for text in warned if text.startswith("mesh: ")]
    print(json.dumps(saw), flush=True)
dist.barrier()  # nobody ends the group while another is within a gather
dist.destroy_process_group()
"""


def run(daemon, world, cases):
    """The result of each process in each case: [case][process]."""
    meet, cases = daemon.directory / "meet", json.dumps(cases)
    ranks = [[daemon.socket, meet, rank, world, cases] for rank in range(world)]
    printed = run_together(PROGRAM, ranks, seconds=240)
    said = [[json.loads(line) for line in out.splitlines()] for out in printed]
    return list(zip(*said, strict=True))


def check(saw, world, coordinates):
    """Process i has data rank coordinates[i]; processes of one rank read the same; together they
    read the order.
    """
    assert [one["rank"] for one in saw] == coordinates
    assert {one["world"] for one in saw} == {world}
    assert {one["group"] for one in saw} == {len(saw)}  # peers, too
    assert len({(one["rank"], one["peer"]) for one in saw}) == len(saw)
    rows = {rank: [one["rows"] for one in saw if one["rank"] == rank] for rank in range(world)}
    assert all(each == of_rank[0] for of_rank in rows.values() for each in of_rank)
    assert sorted(p for of_rank in rows.values() for row in of_rank[0] for p in row) == list(
        range(3 * 2 * world)
    )


def test_meshes_give_ranks_and_peers(daemon):
    data = ["dp_replicate", "dp_shard"]
    eight = [
        ({"names": ["pp", "dp_replicate", "dp_shard", "tp"], "shape": [1, 2, 2, 2]}, 4, [0, 0, 1, 1,
        2, 2, 3, 3]),
        ({"names": ["tp", "dp_shard", "pp"], "shape": [2, 2, 2]}, 2, [0, 0, 1, 1, 0, 0, 1, 1]),
        ({"names": ["pp", "dp_shard", "cp", "tp"], "shape": [2, 1, 2, 2]}, 1, [0] * 8),
        ({"names": ["dp_shard", "cp", "dp_replicate"], "shape": [2, 2, 2]}, 4, [0, 1, 0, 1, 2, 3, 2,
        3]),
        # torchtitan's dataloading mesh
        ({"names": ["pp", "batch", "cp", "tp"], "shape": [1, 4, 1, 2]}, 4, [0, 0, 1, 1, 2, 2, 3,
        3]),
        ({"names": ["dp_replicate", "dp_shard_mod_ep", "dp_shard_in_ep", "tp"], "shape": [1, 2, 2,
        2]}, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        # experts' ranks are data ranks
        ({"names": ["dp", "ep", "pp"], "shape": [2, 2, 2]}, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"names": ["data_share", "ep"], "shape": [2, 4]}, 8, list(range(8))),
        # MegaBlocks' mesh
        ({"names": ["weight_parallel", "expert_parallel"], "shape": [4, 2]}, 8, list(range(8))),
        ({"names": None, "shape": [8]}, 8, list(range(8))),
        # A slice does not have the other dims.
        ({"names": ["pp", "dp_replicate", "dp_shard", "tp"], "shape": [2, 1, 2, 2], "slice": data},
        2, [0, 0, 1, 1] * 2),
        ({"names": [*data, "tp"], "shape": [2, 2, 2], "slice": data, "flatten": "dp"}, 4, [0, 0, 1,
        1, 2, 2, 3, 3]),
        ({"names": ["tp", "dp"], "shape": [4, 2], "slice": ["dp"]}, 2, [0, 1] * 4),
        # The order of ranks is that of the mesh.
        ({"names": ["dp", "tp"], "of": [[7, 0], [6, 1], [5, 2], [4, 3]]}, 4, [0, 1, 2, 3, 3, 2, 1,
        0]),
    ]  # fmt: skip
    # These slices leave a data dim out.
    less = [
        ({"names": data, "shape": [4, 2], "slice": ["dp_shard"]}, 2, [0, 1] * 4),
        (
            {"names": ["data_share", "ep", "tp"], "shape": [2, 2, 2], "slice": ["ep"]},
            2,
            [0, 0, 1, 1] * 2,
        ),
    ]
    refused = [
        ({"names": ["dp_cp", "tp"], "shape": [4, 2]}, "dim 'dp_cp' of .* joins data and peer dims"),
        ({"names": None, "shape": [4, 2]}, "its 2 dims have no names"),
        ({"names": ["world"], "shape": [8]}, "none of its dims .'world',. is known"),
        (
            {"names": ["dp"], "of": [0, 1, 2, 3]},
            "does not contain this process, global rank 4 .its ranks: 0, 1, 2, 3.",
        ),
        (
            {"names": ["dp", "tp"], "shape": [4, 2], "cp": "zigzag"},
            "cp: 'zigzag' needs a dim cp in the mesh",
        ),
    ]
    cp = {"names": ["dp", "cp"], "shape": [2, 4]}
    slices = [{**cp, "cp": "zigzag"}, {**cp, "cp": "contiguous"}]
    saw = run(daemon, 8, [case for case, *_ in eight + less + refused] + slices)
    for (case, world, coordinates), one in zip(eight + less, saw, strict=False):
        assert not any("error" in each for each in one), (case, one)
        check(one, world, coordinates)
        warned = [len(each["warned"]) for each in one]
        assert warned == [(case, world, coordinates) in less] * 8, (case, one)
    for (case, text), one in zip(refused, saw[len(eight + less) :], strict=False):
        assert all("error" in each for each in one), (case, one)
        assert any(re.search(text, each["text"]) for each in one), (case, one)
        assert {each["error"] for each in one} <= {"ArgumentError", "DisagreementError"}
    for one, parts in zip(
        saw[-2:], ([(r, 7 - r) for r in range(4)], [(r,) for r in range(4)]), strict=True
    ):
        check(one, 2, [0] * 4 + [1] * 4)
        each = 64 // (8 if len(parts[0]) == 2 else 4)
        for data in range(2):
            whole = [None] * 64
            for r in range(4):
                at = [i for part in parts[r] for i in range(part * each, (part + 1) * each)]
                assert one[4 * data + r]["at"] == at
                for i, token in zip(at, one[4 * data + r]["ids"][0], strict=True):
                    whole[i] = token
            assert whole == daemon.tokens(daemon.plan("train", 2 * data, 1)[0], 64).tolist()


class FakeMesh:
    """The parts of a DeviceMesh that a single process needs."""

    def __init__(self, names, shape, coordinate):
        import torch

        self.mesh_dim_names, self._at = names, coordinate
        self.mesh = torch.arange(torch.Size(shape).numel()).reshape(shape)

    def get_coordinate(self):
        return self._at


@pytest.mark.parametrize(
    ("names", "shape", "at", "expected"),
    [
        (
            ("pp", "dp_replicate", "dp_shard", "cp", "tp"),
            (2, 2, 2, 2, 2),
            [1, 1, 0, 1, 0],
            (2, 4, 6, (1, 2)),
        ),
        (("replicate", "shard"), (2, 4), [1, 2], (6, 8, 0, None)),
        (("HSDP_shard",), (4,), [3], (3, 4, 0, None)),
        (("tp",), (4,), [3], (0, 1, 3, None)),
        (("dp", "stage"), (2, 2), [1, 1], (1, 2, 1, None)),
        (("dp-shard", "tp.0"), (2, 2), [1, 1], (1, 2, 1, None)),
        (("replica", "data", "mdl"), (2, 2, 2), [1, 0, 1], (2, 4, 1, None)),
        (("dp", "zebra"), (4, 1), [3, 0], (3, 4, 0, None)),
    ],
)
def test_names_of_dims_give_rank_and_peer(names, shape, at, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuple(meshes.place(FakeMesh(names, shape, at))) == expected


def test_ranks_of_an_unknown_dim_read_the_same_rows_with_a_warning(daemon):
    """Each loader of one place in the program warns once."""
    said = (
        r"mesh: dim 'zebra' of \('dp', 'zebra'\) is unknown, so its 3 ranks read the same rows; "
        "name it mp_zebra if they are to do so, dp_zebra if not, or pass rank= and world="
    )
    mesh = FakeMesh(("dp", "zebra"), (2, 3), [1, 2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            with tokend.Loader("train", 2, socket=daemon.socket, mesh=mesh) as loader:
                assert (loader.rank, loader.world) == (1, 2)
    assert [(w.category, w.filename) for w in caught] == [(RuntimeWarning, __file__)]
    assert re.fullmatch(said, str(caught[0].message))
    for name in ("mp_zebra", "dp_zebra"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            at = meshes.place(FakeMesh(("dp", name), (2, 3), [1, 2]))
        assert at[:2] == ((1, 2) if name == "mp_zebra" else (5, 6))


def test_the_page_lists_the_parts_of_all_known_names():
    page = (REPO / "client/python/README.md").read_text()
    for kind, parts in (("data", meshes.DATA), ("peer", meshes.PEER)):
        (row,) = re.findall(rf"^\| {kind} \| (.*?) \|", page, re.M)
        assert set(re.findall(r"`(\w+)`", row)) == parts


def test_a_mesh_excludes_rank_and_world(daemon):
    with pytest.raises(ValueError, match="mesh, rank, world, peer: the mesh has all of them"):
        tokend.Loader(
            "train", 2, socket=daemon.socket, mesh=FakeMesh(("dp",), (1,), [0]), rank=0, world=1
        )
    with pytest.raises(TypeError, match="mesh: 3 is not a torch.distributed DeviceMesh"):
        tokend.Loader("train", 2, socket=daemon.socket, mesh=3)


def of_jax(monkeypatch, mine, names, processes):
    """The place of process @mine in a jax.sharding.Mesh whose devices belong to @processes."""
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(process_index=lambda: mine))
    devices = numpy.empty(numpy.shape(processes), object)
    for at, process in numpy.ndenumerate(numpy.array(processes)):
        devices[at] = types.SimpleNamespace(process_index=int(process))
    return meshes.place(types.SimpleNamespace(axis_names=names, devices=devices))[:3]


@pytest.mark.parametrize(
    ("names", "processes", "places"),
    [
        (("data",), [0, 0, 1, 1, 2, 2], [(0, 3, 0), (1, 3, 0), (2, 3, 0)]),
        (("data", "model"), [[0, 0], [1, 1]], [(0, 2, 0), (1, 2, 0)]),  # within a host
        (("model", "data"), [[0, 0], [1, 1]], [(0, 1, 0), (0, 1, 1)]),  # over hosts
        (("data", "model"), [[0, 0, 1, 1], [2, 2, 3, 3]], [(0, 2, i % 2) for i in range(2)]),
        (("fsdp", "tensor"), [[2, 3], [2, 3], [0, 1], [0, 1]], [(1, 2, 0), (1, 2, 1), (0, 2, 0)]),
        (("stage", "data", "fsdp"), [[[0, 1], [2, 3]]] * 2, [(i, 4, 0) for i in range(4)]),
    ],
)
def test_processes_of_a_jax_mesh(monkeypatch, names, processes, places):
    """Processes whose devices have the same rows are peers."""
    got = [of_jax(monkeypatch, mine, names, processes) for mine in range(len(places))]
    assert got == places


@pytest.mark.parametrize(
    ("names", "processes", "text"),
    [
        (("data", "model"), [[0, 1], [1, 1], [0, 0]], "share some of their rows"),
        (("data", "model"), [[0, 1], [1, 1]], "share some of their rows"),
        (("data",), [0, 0, 0, 1], "share some of their rows"),
        (("data",), [1, 1], "has no device of this process, 0"),
        (("zebra",), [0, 1], "none of its dims"),
    ],
)
def test_a_jax_mesh_that_does_not_fit_is_refused(monkeypatch, names, processes, text):
    with pytest.raises(tokend.ArgumentError, match=text):
        of_jax(monkeypatch, 0, names, processes)
