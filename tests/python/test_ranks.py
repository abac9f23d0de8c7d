"""Ranks of a job, in real processes: a mesh gives them, a loader is made together or alone, they
are known late or not at all, or another library deals out the batches.
"""

import json
import re
import sys
import types
import warnings

import numpy
import pytest
import tokend
import torch
from lib.forks import run_together
from loading import WINDOWS, make, positions
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

# ---- meshes ----

# Every process makes all these meshes, with slices and flattened dims as trainers do.
OF_MESHES = """
import json, sys, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokend

socket, meet, rank, world, cases = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
warned = []
warnings.showwarning = lambda message, *_: warned.append(str(message))
warnings.simplefilter("always")
for case in json.loads(cases):
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
            saw = {"rank": loader.rank, "world": loader.world}
            saw["rows"] = [b["position"].tolist() for b in batches]
            if "cp" in case:
                saw["ids"] = batches[0]["input_ids"].tolist()
                saw["at"] = batches[0]["position_ids"][0].tolist()
    except Exception as error:
        saw = {"error": type(error).__name__, "text": str(error)}
    saw["warned"] = [text for text in warned if text.startswith("mesh: ")]
    print(json.dumps(saw), flush=True)
dist.barrier()  # nobody ends the group while another is within a gather
dist.destroy_process_group()
"""
DATA = ["dp_replicate", "dp_shard"]
PAIRS = [0, 0, 1, 1, 2, 2, 3, 3]
OF_EIGHT = [  # a mesh of eight processes, and their ranks
    ({"names": ["pp", *DATA, "tp"], "shape": [1, 2, 2, 2]}, PAIRS),
    ({"names": ["tp", "dp_shard", "pp"], "shape": [2, 2, 2]}, [0, 0, 1, 1, 0, 0, 1, 1]),
    ({"names": ["pp", "dp_shard", "cp", "tp"], "shape": [2, 1, 2, 2]}, [0] * 8),
    ({"names": ["dp_shard", "cp", "dp_replicate"], "shape": [2, 2, 2]}, [0, 1, 0, 1, 2, 3, 2, 3]),
    ({"names": ["pp", "batch", "cp", "tp"], "shape": [1, 4, 1, 2]}, PAIRS),  # torchtitan's
    ({"names": ["dp", "ep", "pp"], "shape": [2, 2, 2]}, PAIRS),  # experts' ranks are data ranks
    ({"names": ["weight_parallel", "expert_parallel"], "shape": [4, 2]}, list(range(8))),
    ({"names": None, "shape": [8]}, list(range(8))),
    # a slice does not have the other dims
    ({"names": ["pp", *DATA, "tp"], "shape": [2, 1, 2, 2], "slice": DATA}, [0, 0, 1, 1] * 2),
    ({"names": [*DATA, "tp"], "shape": [2, 2, 2], "slice": DATA, "flatten": "dp"}, PAIRS),
    # the order of ranks is that of the mesh
    ({"names": ["dp", "tp"], "of": [[7, 0], [6, 1], [5, 2], [4, 3]]}, [0, 1, 2, 3, 3, 2, 1, 0]),
]
LESS = [  # these slices leave a data dim out
    ({"names": DATA, "shape": [4, 2], "slice": ["dp_shard"]}, [0, 1] * 4),
    ({"names": ["data", "ep", "tp"], "shape": [2, 2, 2], "slice": ["ep"]}, [0, 0, 1, 1] * 2),
]
REFUSED = [
    ({"names": ["dp_cp", "tp"], "shape": [4, 2]}, "dim 'dp_cp' of .* joins data and peer dims"),
    ({"names": None, "shape": [4, 2]}, "its 2 dims have no names"),
    ({"names": ["world"], "shape": [8]}, "none of its dims .'world',. is known"),
    ({"names": ["dp"], "of": [0, 1, 2, 3]}, "does not contain this process, global rank 4"),
    ({"names": ["dp", "tp"], "shape": [4, 2], "cp": "zigzag"}, "cp: 'zigzag' needs a dim cp"),
]
CP = {"names": ["dp", "cp"], "shape": [2, 4]}
SLICES = [
    ({**CP, "cp": "zigzag"}, [(r, 7 - r) for r in range(4)]),
    ({**CP, "cp": "contiguous"}, [(r,) for r in range(4)]),
]


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
    cases = json.dumps([case for case, _ in OF_EIGHT + LESS + REFUSED + SLICES])
    meet = served.directory / "meet"
    ways = [[served.socket, meet, rank, 8, cases] for rank in range(8)]
    printed = run_together(OF_MESHES, ways, seconds=240)
    said = [[json.loads(line) for line in out.splitlines()] for out in printed]
    results = iter(zip(*said, strict=True))
    for case, ranks in OF_EIGHT + LESS:
        saw = next(results)
        assert not any("error" in each for each in saw), (case, saw)
        check(saw, ranks)
        assert [len(each["warned"]) for each in saw] == [(case, ranks) in LESS] * 8, case
    for case, text in REFUSED:
        saw = next(results)
        assert {each.get("error") for each in saw} <= {"ArgumentError", "DisagreementError"}, case
        assert any(re.search(text, each["text"]) for each in saw), (case, saw)
    for (_, parts), saw in zip(SLICES, results, strict=True):
        check(saw, [0] * 4 + [1] * 4)
        each = 64 // (4 * len(parts[0]))
        for data in range(2):
            whole = [None] * 64
            for r, one in enumerate(saw[4 * data : 4 * data + 4]):
                at = [i for part in parts[r] for i in range(part * each, (part + 1) * each)]
                assert one["at"] == at
                for i, token in zip(at, one["ids"][0], strict=True):
                    whole[i] = token
            (row,) = served.plan("train", 2 * data, 1)
            assert whole == served.tokens(row, 64).tolist()


class Mesh:
    """The parts of a DeviceMesh that a single process needs."""

    def __init__(self, names, shape, coordinate):
        self.mesh_dim_names, self._at = names, coordinate
        self.mesh = torch.arange(torch.Size(shape).numel()).reshape(shape)

    def get_coordinate(self):
        return self._at


@pytest.mark.parametrize(
    ("names", "shape", "at", "rank", "world"),
    [
        (("pp", "dp_replicate", "dp_shard", "cp", "tp"), (2, 2, 2, 2, 2), [1, 1, 0, 1, 0], 2, 4),
        (("replicate", "shard"), (2, 4), [1, 2], 6, 8),
        (("HSDP_shard",), (4,), [3], 3, 4),
        (("tp",), (4,), [3], 0, 1),
        (("dp-shard", "tp.0"), (2, 2), [1, 1], 1, 2),
        (("replica", "data", "mdl"), (2, 2, 2), [1, 0, 1], 2, 4),
        (("dp", "zebra"), (4, 1), [3, 0], 3, 4),
        (("dp", "mp_zebra"), (2, 3), [1, 2], 1, 2),
        (("dp", "dp_zebra"), (2, 3), [1, 2], 5, 6),
    ],
)
def test_names_of_dims_give_the_rank(served, names, shape, at, rank, world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mesh = Mesh(names, shape, at)
        with tokend.Loader("train", 2, socket=served.socket, mesh=mesh, agree=False) as loader:
            assert (loader.rank, loader.world) == (rank, world)


def test_ranks_of_an_unknown_dim_read_the_same_rows_with_a_warning(served):
    """Each loader of one place in the program warns once."""
    mesh = Mesh(("dp", "zebra"), (2, 3), [1, 2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            with tokend.Loader("train", 2, socket=served.socket, mesh=mesh) as loader:
                assert (loader.rank, loader.world) == (1, 2)
    ((file, text),) = [(w.filename, str(w.message)) for w in caught]
    assert file == __file__ and "dim 'zebra'" in text and "3 ranks read the same rows" in text
    with pytest.raises(ValueError, match="mesh, rank, world, peer"):
        make(served, mesh=mesh)


@pytest.mark.parametrize(
    ("names", "processes", "places"),
    [
        (("data",), [0, 0, 1, 1, 2, 2], [(0, 3), (1, 3), (2, 3)]),
        (("data", "model"), [[0, 0], [1, 1]], [(0, 2), (1, 2)]),  # within a host
        (("model", "data"), [[0, 0], [1, 1]], [(0, 1), (0, 1)]),  # over hosts
        (("data", "model"), [[0, 0, 1, 1], [2, 2, 3, 3]], [(0, 2), (0, 2)]),
        (("fsdp", "tensor"), [[2, 3], [2, 3], [0, 1], [0, 1]], [(1, 2), (1, 2), (0, 2)]),
        (("stage", "data", "fsdp"), [[[0, 1], [2, 3]]] * 2, [(i, 4) for i in range(4)]),
        (("data", "model"), [[0, 1], [1, 1], [0, 0]], "share some of their rows"),
        (("data",), [0, 0, 0, 1], "share some of their rows"),
        (("data",), [1, 1], "has no device of this process, 0"),
        (("zebra",), [0, 1], "none of its dims"),
    ],
)
def test_processes_of_a_jax_mesh(served, monkeypatch, names, processes, places):
    """Processes whose devices have the same rows are peers."""
    devices = numpy.empty(numpy.shape(processes), object)
    for at, process in numpy.ndenumerate(numpy.array(processes)):
        devices[at] = types.SimpleNamespace(process_index=int(process))
    mesh = types.SimpleNamespace(axis_names=names, devices=devices)
    keys = {"socket": served.socket, "mesh": mesh, "agree": False}
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
import json, sys, time, warnings
import torch, torch.distributed as dist
import tokend
from tokend import meeting

socket, meet, rank, world, scenario = sys.argv[1:]
rank, world = int(rank), int(world)
meeting.WARN_S = 0.5
dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=world)
said = []


def make(**more):
    begin = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loader, error = tokend.Loader("train", 2, socket=socket, **more), None
        except tokend.Error as failed:
            loader, error = None, str(failed)
    warned = [[w.filename, str(w.message)] for w in caught]
    said.append({"error": error, "s": time.monotonic() - begin, "warned": warned})
    return loader


def take(loader):
    said.append({"error": None, "rows": next(loader)["position"].tolist()})


if scenario == "alone":  # before and after the group is there
    for _ in range(2):
        if rank == 0:
            make(deadline=3)
            take(make(rank=0, world=1))
        dist.barrier()
        take(make(deadline=60))
elif scenario == "late":
    if rank == 1:
        time.sleep(3)
    make(deadline=60)
elif scenario == "seek":  # one makes a loader, the other seeks: it is one agreement
    group = dist.new_group([0, 1], backend="gloo")
    loader = make(group=group, rank=rank, world=2)
    if rank == 1:
        make(group=group, rank=rank, world=2, start=8)
    else:
        loader.seek(position=8)
elif scenario == "given":
    group = dist.new_group([0, 1], backend="gloo")
    if rank == 0:
        make(deadline=3, group=group, rank=0, world=2)
    dist.barrier()
    if rank < 2:
        make(group=group, rank=rank, world=2)
    dist.barrier()
print(json.dumps(said))
"""
REMEDY = "for a loader of this process alone pass rank=0, world=1"


def met(daemon, scenario, world):
    meet = daemon.directory / f"meet-{scenario}"
    ways = [[daemon.socket, meet, rank, world, scenario] for rank in range(world)]
    return [json.loads(out) for out in run_together(MEETING, ways)]


def is_refused(said, missing):
    assert said["error"].startswith(f"tokend.Loader: {missing} did not come within 3 s; ")
    ((file, text),) = said["warned"]
    assert file == "<string>", "the line with the loader"
    assert text.startswith(f"tokend.Loader: has waited 0.5 s for {missing}; ")
    assert REMEDY in said["error"] and REMEDY in text and said["s"] < 30


def test_a_loader_made_by_rank_0_alone_is_refused_and_the_next_works(served):
    first, *others = met(served, "alone", 3)
    assert [said["rows"] for said in others[1] if "rows" in said] == [[4, 5]] * 2
    for i in (0, 5):
        is_refused(first[i], "ranks 1, 2 of 3")
        assert first[i + 1]["error"] is None, "the remedy in the message works"
        assert first[i + 2]["rows"] == first[i + 4]["rows"] == [0, 1]
    assert not any(said["error"] for of in others for said in of)


def test_a_late_process_is_waited_for(served):
    first, second = met(served, "late", 2)
    assert first[0]["error"] is second[0]["error"] is None
    assert "has waited 0.5 s for rank 1 of 2" in first[0]["warned"][0][1]


def test_a_group_argument(served):
    first, second, third = met(served, "given", 3)
    is_refused(first[0], "rank 1 of 2")
    assert first[1]["error"] is second[0]["error"] is None and third == []


def test_one_makes_a_loader_while_the_other_seeks(served):
    first, second = met(served, "seek", 2)
    assert [said["error"] for said in first + second] == [None] * 3


# ---- known late, or not at all ----

LATE = """
import json, os, sys
import torch.distributed as dist
import tokend

socket, meet, rank, case = sys.argv[1:]
os.environ.update(RANK=rank, WORLD_SIZE="2")
loader = tokend.Loader("train", 4, socket=socket, run=case, agree=case != "apart")
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=int(rank), world_size=2)
if rank == "0" and case != "fits":
    loader.seek(position=80)
try:
    said = [next(loader)["position"][0].item() for _ in range(2)]
except tokend.DisagreementError as error:
    said = str(error)
print(json.dumps(said))
dist.barrier()
loader.close()
"""


def test_a_loader_made_before_the_group_is_compared_before_its_first_batch(served):
    def late(case):
        meet = served.directory / f"late-{case}"
        each = [[served.socket, meet, rank, case] for rank in range(2)]
        return [json.loads(out) for out in run_together(LATE, each)]

    assert late("fits") == [[0, 8], [4, 12]]
    assert late("apart") == [[80, 88], [4, 12]]
    one, two = late("differs")
    assert one == two and "next: 0 | 80" in one


NOT_PASSED = """
import gc, json, sys, warnings
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokend

socket, meet, rank = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=int(rank), world_size=2)
said = []
for shape, names, place in (
    ((2,), ("dp",), {}),
    ((2, 1), ("dp_shard", "tp"), {}),
    ((1, 2), ("dp", "tp"), {"rank": 0, "world": 1, "peer": int(rank)}),
    ((1, 2), ("dp", "tp"), {"mesh": True}),
    ((1, 2), ("dp", "tp"), {}),
    ((2,), ("cp",), {}),
):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if "mesh" in place:
        place["mesh"] = mesh
    with tokend.Loader("train", 4, socket=socket, **place) as loader:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(loader), next(loader)
        said.append([str(one.message) for one in caught])
    place = mesh = None
    gc.collect()  # the mesh
    dist.barrier()
print(json.dumps(said))
"""


def test_peers_of_a_mesh_that_is_not_passed_are_warned(served):
    each = [[served.socket, served.directory / "not-passed", rank] for rank in range(2)]
    for rank, out in enumerate(run_together(NOT_PASSED, each)):
        *right, tp, cp = json.loads(out)
        assert right == [[]] * 4
        for (text,), dim in ((tp, "'tp'"), (cp, "'cp'")):
            assert f"one of 2 along dim {dim} of a DeviceMesh" in text
            assert f"rank {rank} of 2" in text


# ---- other libraries around a loader; tests/trainers runs the real ones ----


class Rows(IterableDataset):
    def __init__(self, socket, counts=False):
        self.socket, self.counts = socket, counts

    def __iter__(self):
        info = get_worker_info()
        place = {"rank": info.id, "world": info.num_workers} if self.counts else {}
        with tokend.Loader("finite", 4, socket=self.socket, **place) as loader:
            for batch in loader:
                yield {"position": batch["position"].clone()}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_dataloader_are_refused(served, start):
    def taken(workers, **more):
        data = Rows(served.socket, **more)
        return positions(DataLoader(data, None, num_workers=workers, multiprocessing_context=start))

    with pytest.raises(tokend.ArgumentError, match=r"made in worker \d of 2 of a DataLoader"):
        taken(2)
    if start == "fork":  # otherwise each of its processes imports torch
        assert taken(1) == sorted(taken(2, counts=True)) == list(range(WINDOWS))


@pytest.mark.parametrize("stream", ["train", "finite"])
@pytest.mark.parametrize(
    "more",
    [{}, {"shuffle": True}, {"batch_size": None}, {"batch_size": 2, "num_workers": 1}],
    ids=str,
)
def test_a_dataloader_over_a_loader_is_refused(served, stream, more):
    with make(served, stream) as loader:
        with pytest.raises(TypeError, match="tokend.Loader: replaces a DataLoader"):
            next(iter(DataLoader(loader, **more)))
        assert loader.position == 0


def module(name, code, **names):
    """A module with the name of the real one, because the loader looks at that name."""
    made = types.ModuleType(name)
    exec(compile(code, name, "exec"), made.__dict__)
    made.__dict__.update(names)
    return made


DEAL = """
class DataLoaderDispatcher:
    def __init__(self, dataset, processes):
        self.dataset, self.state = dataset, State(processes)
    def __iter__(self):
        yield from self.dataset

class IterableDatasetShard:
    def __init__(self, dataset, processes):
        self.dataset, self.num_processes = dataset, processes
    def __iter__(self):
        yield from self.dataset

class DataLoaderShard(IterableDatasetShard):
    pass

class State:
    def __init__(self, processes):
        self.num_processes = processes

class Stateful(IterableDatasetShard):
    def __init__(self, dataset, processes):
        self.batches = iter(dataset)
        self.state = State(processes)
    def __iter__(self):
        yield from self.batches

Stateful.__name__ = "DataLoaderDispatcher"  # around torchdata's StatefulDataLoader
"""


@pytest.mark.parametrize(
    ("kind", "processes", "refused"),
    [
        ("DataLoaderDispatcher", 2, True),
        ("IterableDatasetShard", 2, True),
        ("Stateful", 2, True),
        ("DataLoaderDispatcher", 1, False),
        ("DataLoaderShard", 2, False),
    ],
)
def test_accelerate_may_not_deal_out_one_ranks_batches(
    served, monkeypatch, kind, processes, refused
):
    accelerate = module("accelerate.data_loader", DEAL)
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    with make(served) as loader:

        def dataset():
            yield from loader

        around = loader if kind == "Stateful" else dataset()
        batches = iter(getattr(accelerate, kind)(around, processes))
        if refused:
            with pytest.raises(tokend.ArgumentError, match="accelerate's DataLoader deals out"):
                next(batches)
            assert loader.position == 0
        else:
            assert positions([next(batches)]) == [0, 1, 2, 3]
