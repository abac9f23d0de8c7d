"""Ranks of a job, in real processes: a mesh gives them, a loader is made together or alone, they
are known late or not at all, or another library deals out the batches.
"""

import json
import re
import sys
import types

import numpy
import pytest
import tokend
from lib.forks import run_together
from loading import WINDOWS, make, positions
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

# ---- meshes ----

# Every process makes all these meshes, with slices and flattened dims as trainers do.
OF_MESHES = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokend

socket, meet, rank, world, cases = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
for case in json.loads(cases):
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
            saw = {"rank": loader.rank, "world": loader.world}
            saw["rows"] = [b["position"].tolist() for b in batches]
            if "cp" in case:
                saw["ids"] = batches[0]["input_ids"].tolist()
                saw["at"] = batches[0]["position_ids"][0].tolist()
    except Exception as error:
        saw = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(saw), flush=True)
dist.barrier()  # nobody ends the group while another is within a gather
dist.destroy_process_group()
"""
DATA = ["dp_replicate", "dp_shard"]
PAIRS = [0, 0, 1, 1, 2, 2, 3, 3]
OF_EIGHT = [  # a mesh of eight processes, and their ranks
    ({"names": ["pp", *DATA, "tp"], "shape": [1, 2, 2, 2]}, PAIRS),
    ({"names": ["dp_shard", "cp", "dp_replicate"], "shape": [2, 2, 2]}, [0, 1, 0, 1, 2, 3, 2, 3]),
    ({"names": ["pp", "batch", "cp", "tp"], "shape": [1, 4, 1, 2], "cp": [0, 2, "zigzag"]}, PAIRS),
    ({"names": ["dp", "ep", "pp"], "shape": [2, 2, 2]}, PAIRS),  # experts' ranks are data ranks
    # a slice does not have the other dims
    ({"names": ["pp", *DATA, "tp"], "shape": [2, 1, 2, 2], "slice": DATA}, [0, 0, 1, 1] * 2),
    ({"names": [*DATA, "tp"], "shape": [2, 2, 2], "slice": DATA, "flatten": "dp"}, PAIRS),
    # the order of ranks is that of the mesh
    ({"names": ["dp", "tp"], "of": [[7, 0], [6, 1], [5, 2], [4, 3]]}, [0, 1, 2, 3, 3, 2, 1, 0]),
]
NO_CP = "cp: 'zigzag' needs a mesh with a dim cp, and only one"
REFUSED = [
    ({"names": ["dp", "zebra"], "shape": [4, 2]}, r"mesh: \('dp', 'zebra'\): not all are known"),
    ({"names": ["dp_cp", "tp"], "shape": [4, 2]}, "dim 'dp_cp' of .* joins data and peer dims"),
    ({"names": ["dp"], "shape": [8], "cp": [0, 2, "zigzag"]}, "cp: 8 ranks with 2 slices"),
    ({"names": ["dp"], "of": [0, 1, 2, 3]}, "does not contain this process, 4"),
    ({"names": DATA, "shape": [4, 2], "slice": ["dp_shard"]}, "has 2 data ranks, .* of has 8"),
    ({"names": ["dp", "cp"], "shape": [4, 2], "flatten": "fsdp"}, "has 8 data ranks, .* of has 4"),
    ({"names": ["dp", "tp"], "shape": [4, 2], "cp": "zigzag"}, NO_CP),
    ({"names": ["cp", "dp"], "shape": [2, 4], "cp": [0, 2, "zigzag"]}, r"\(1, 2\) in the mesh"),
    ({"names": ["dp", "cp_ring", "cp_ulysses"], "shape": [2, 2, 2], "cp": "zigzag"}, NO_CP),
    ({"names": ["dp", "cp_tp"], "shape": [2, 4], "cp": "zigzag"}, NO_CP),
]
ZIGZAG = {"names": ["dp", "cp_ring", "cp"], "shape": [2, 4, 1], "cp": "zigzag"}


def check(saw, ranks):
    """Each process has its rank; those of one read the same; together they read the order."""
    assert [one["rank"] for one in saw] == ranks
    world = max(ranks) + 1
    assert {one["world"] for one in saw} == {world}
    rows = {}
    for one in saw:
        assert rows.setdefault(one["rank"], one["rows"]) == one["rows"]
    assert sorted(p for of in rows.values() for row in of for p in row) == list(range(6 * world))


def test_meshes_give_ranks(served):
    cases = json.dumps([case for case, _ in OF_EIGHT + REFUSED] + [ZIGZAG])
    meet = served.directory / "meet"
    ways = [[served.socket, meet, rank, 8, cases] for rank in range(8)]
    printed = run_together(OF_MESHES, ways, seconds=240)
    said = [[json.loads(line) for line in out.splitlines()] for out in printed]
    results = iter(zip(*said, strict=True))
    for case, ranks in OF_EIGHT:
        saw = next(results)
        assert not any("error" in each for each in saw), (case, saw)
        check(saw, ranks)
    for case, text in REFUSED:
        saw = next(results)
        assert {each.get("error") for each in saw} <= {"ArgumentError", "DisagreementError"}, case
        assert any(re.search(text, each["text"]) for each in saw), (case, saw)
    (saw,) = results
    check(saw, [0] * 4 + [1] * 4)
    for rank, one in enumerate(saw):
        part = rank % 4
        assert one["at"] == [*range(8 * part, 8 * part + 8), *range(56 - 8 * part, 64 - 8 * part)]
        (row,) = served.plan("train", 2 * (rank // 4), 1)
        assert one["ids"][0] == served.tokens(row, 64)[one["at"]].tolist()


@pytest.mark.parametrize(
    ("names", "processes", "places"),
    [
        (("data", "model"), [[0, 0], [1, 1]], [(0, 2), (1, 2)]),  # within a host
        (("fsdp", "tensor"), [[2, 3], [2, 3], [0, 1], [0, 1]], [(1, 2), (1, 2), (0, 2)]),
        (("data", "model"), [[0, 1], [1, 1], [0, 0]], "share some of their rows"),
        (("data",), [1, 1], "does not contain this process, 0"),
    ],
)
def test_processes_of_a_jax_mesh(served, monkeypatch, names, processes, places):
    """Processes whose devices have the same rows are peers."""
    devices = numpy.empty(numpy.shape(processes), object)
    for at, process in numpy.ndenumerate(numpy.array(processes)):
        devices[at] = types.SimpleNamespace(process_index=int(process))
    mesh = types.SimpleNamespace(axis_names=names, devices=devices)
    keys = {"socket": served.socket, "mesh": mesh, "group": False}
    for mine, place in enumerate(places if type(places) is list else [None]):
        jax = types.SimpleNamespace(process_index=lambda mine=mine: mine)
        monkeypatch.setitem(sys.modules, "jax", jax)
        if place is None:
            with pytest.raises(tokend.ArgumentError, match=places):
                tokend.Loader("train", 2, **keys)
        else:
            with tokend.Loader("train", 2, **keys) as loader:
                assert (loader.rank, loader.world) == place


# ---- made together or alone ----

MEETING = """
import json, os, sys, time, warnings
import torch, torch.distributed as dist
import tokend
from tokend import group

socket, meet, rank, scenario = sys.argv[1:]
rank, said = int(rank), []
group.WARN_S = 0.5


def begin(world=2):
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=world)


def make(**more):
    try:
        return tokend.Loader("train", 2, socket=socket, run=scenario, **more)
    except tokend.Error as failed:
        said.append(str(failed))


def take(loader):
    try:
        said.append(next(loader)["position"].tolist())
    except tokend.Error as failed:
        said.append(str(failed))


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if scenario == "alone":
        begin()
        if rank == 0:
            make(deadline=3)
            take(make(rank=0, world=1))
        dist.barrier()
        take(make(deadline=60))
    elif scenario == "late":
        begin()
        mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("dp_cp",))
        time.sleep(1.5 * rank)
        take(loader := make(deadline=60))
        group.LATE_S = 0.5
        time.sleep(1.5 * rank)
        loader.control()
    elif scenario == "peers":
        begin()
        mesh = torch.distributed.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        take(make())
        take(make(mesh=mesh))
        flat = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
        take(make(mesh=flat))
    elif scenario == "anew":
        begin()
        loader = make()
        take(loader)
        for world, seek in (2, False), (2, True), (1, False):
            dist.barrier()
            dist.destroy_process_group()
            meet += "-"
            if rank < world:
                begin(world)
            if seek and rank == 0:
                loader.seek(position=80)
            take(loader)
    else:  # made before the group
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")
        loader = make(group=False if scenario == "apart" else None)
        begin()
        if rank == 0 and scenario != "fits":
            loader.seek(position=80)
        take(loader)
        dist.barrier()
        loader.close()
    said.append([str(w.message) for w in caught])
print(json.dumps(said))
"""


def met(daemon, scenario):
    meet = daemon.directory / f"meet-{scenario}"
    ways = [[daemon.socket, meet, rank, scenario] for rank in range(2)]
    return [json.loads(out) for out in run_together(MEETING, ways)]


def test_a_loader_made_by_rank_0_alone_is_refused_and_the_next_works(served):
    (error, alone, together, (warning, *_)), (other, _) = met(served, "alone")
    assert error.startswith("group: rank 1 of 2 did not come within 3 s; ")
    assert warning.startswith("tokend: group: has waited 0.5 s for rank 1 of 2; ")
    remedy = "for a loader of this process alone pass group=False, rank=0, world=1"
    assert remedy in error and remedy in warning and alone == [0, 1], "the remedy works"
    assert (together, other) == ([0, 1], [2, 3])


def test_a_late_process_is_waited_for(served):
    (one, warned), (two, _) = met(served, "late")
    assert (one, two) == ([0, 1], [2, 3]) and "call control() equally often" in warned[-1]


def test_a_peer_that_passes_no_mesh_or_one_without_its_dim_is_warned(served):
    (one, same, *_, warned), (two, also, *_) = met(served, "peers")
    assert (one, two) == ([0, 1], [2, 3]) and same == also == [0, 1]
    assert sum("2 along dim 'tp' of a DeviceMesh, but got no mesh=" in w for w in warned) == 2


def test_a_loader_made_before_the_group_is_compared_before_its_first_batch(served):
    assert [said[0] for said in met(served, "fits")] == [[0, 1], [2, 3]]
    assert [said[0] for said in met(served, "apart")] == [[80, 81], [2, 3]]
    one, two = (said[0] for said in met(served, "differs"))
    assert one == two and "next: 0 instead of 80" in one


def test_a_group_that_is_initialised_anew_is_compared_and_has_to_fit(served):
    (*same, apart, alone, _), (*other, also, on, _) = met(served, "anew")
    assert (same, other, on) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]], [10, 11])
    assert apart == also and "next: 8 instead of 80" in apart
    assert "initialised, for 2 processes instead of 1, as rank 0 of 2" in alone


# ---- other libraries around a loader; tests/trainers runs the real ones ----


class Rows(IterableDataset):
    def __init__(self, socket, counts):
        self.socket, self.counts = socket, counts

    def __iter__(self):
        info = get_worker_info()
        place = {"rank": info.id, "world": info.num_workers} if self.counts else {}
        with tokend.Loader("finite", 4, socket=self.socket, **place) as loader:
            for batch in loader:
                yield {"position": batch["position"].clone()}


def test_workers_of_a_dataloader_are_refused_unless_they_are_ranks(served):
    with pytest.raises(tokend.ArgumentError, match=r"made in worker \d of 2 of a DataLoader"):
        positions(DataLoader(Rows(served.socket, False), None, num_workers=2))
    taken = positions(DataLoader(Rows(served.socket, True), None, num_workers=2))
    assert sorted(taken) == list(range(WINDOWS))


@pytest.mark.parametrize("more", [{}, {"batch_size": 2, "num_workers": 1}], ids=str)
def test_a_dataloader_over_a_loader_is_refused(served, more):
    with make(served) as loader:
        with pytest.raises(TypeError, match="a Loader replaces a DataLoader"):
            next(iter(DataLoader(loader, **more)))
        assert loader.position == 0
