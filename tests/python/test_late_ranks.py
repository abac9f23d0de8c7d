"""Ranks that are known late, or not at all: workers of a DataLoader, a process group that is
initialised after the loader was made, a mesh that was not passed. And the rank whose last batch is
padding only.
"""

import json
import warnings

import pytest
import tokend
import torch
from lib.forks import run_together
from loading import make
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Rows(IterableDataset):
    def __init__(self, socket, counts=False):
        self.socket, self.counts = socket, counts

    def __iter__(self):
        info = get_worker_info()
        place = {"rank": info.id, "world": info.num_workers} if self.counts else {}
        with tokend.Loader("finite", 4, socket=self.socket, **place) as loader:
            for batch in loader:
                yield batch["position"].tolist()


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_a_dataloader_are_refused(daemon, start):
    def taken(workers, **more):
        data = Rows(daemon.socket, **more)
        batches = DataLoader(data, None, num_workers=workers, multiprocessing_context=start)
        return [row for rows in batches for row in rows if row >= 0]

    with pytest.raises(tokend.ArgumentError, match=r"made in worker \d of 2 of a DataLoader"):
        taken(2)
    if start != "fork":  # each of its processes imports torch
        return
    assert taken(1) == list(range(468))
    assert sorted(taken(2, counts=True)) == list(range(468))


LATE = """
import json, os, sys, warnings
import torch.distributed as dist
import tokend

socket, meet, rank, case = sys.argv[1:]
os.environ.update(RANK=rank, WORLD_SIZE="2")
options = {"agree": False} if case == "apart" else {}
loader = tokend.Loader("train", 4, socket=socket, run=case, **options)
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=int(rank), world_size=2)
if rank == "0" and case != "fits":
    loader.seek(position=80)
try:
    said = [next(loader)["position"][0].item() for _ in range(2)]
    said.append(loader._control.group is not None)
except tokend.DisagreementError as error:
    said = [str(error)]
print(json.dumps(said))
dist.barrier()
loader.close()
"""


def late(daemon, case):
    meet = daemon.directory / f"meet-{case}"
    each = [[daemon.socket, meet, rank, case] for rank in range(2)]
    return [json.loads(out) for out in run_together(LATE, each)]


def test_a_loader_made_before_the_group_is_compared_before_its_first_batch(daemon):
    assert late(daemon, "fits") == [[0, 8, True], [4, 12, True]]
    one, two = late(daemon, "differs")
    assert one == two
    assert "next: 0 | 80" in one[0]
    assert late(daemon, "apart") == [[80, 88, False], [4, 12, False]]


MESHES = """
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


def test_peers_of_a_mesh_that_is_not_passed_are_warned(daemon):
    each = [[daemon.socket, daemon.directory / "meet", rank] for rank in range(2)]
    for rank, out in enumerate(run_together(MESHES, each)):
        *right, tp, cp = json.loads(out)
        assert right == [[]] * 4
        for (text,), dim in ((tp, "'tp'"), (cp, "'cp'")):
            assert f"one of 2 along dim {dim} of a DeviceMesh" in text
            assert f"rank {rank} of 2" in text


def taken(daemon, rank=1, **more):
    """The warnings of a pass over 468 rows in steps of 16."""
    with (
        make(daemon, "finite", micro=8, rank=rank, world=2, **more) as loader,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        assert sum(1 for _ in loader) == 30
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def test_a_batch_of_padding_only_under_gradients_warns(daemon):
    (text,) = taken(daemon)
    assert "padding only on rank 1 of 2" in text
    assert "samples: 464 in the config" in text
    assert taken(daemon, rank=0) == taken(daemon, tokens=True) == []
    assert taken(daemon, framework="numpy") == []
    with torch.no_grad():
        assert taken(daemon) == []


def test_the_batches_of_a_whole_pass_are_the_same_after_a_resume(daemon):
    with make(daemon, "finite", micro=8) as loader:
        assert loader.batches_per_pass == len(loader) == 59
        next(loader)
        state = loader.state_dict()
    with make(daemon, "finite", micro=8, start=state) as loader:
        assert (loader.batches_per_pass, len(loader)) == (59, 58)
    with make(daemon, "finite", micro=8, world=2, start=state) as loader:
        assert loader.batches_per_pass == 30
    with make(daemon) as loader, pytest.raises(TypeError, match="the stream has no end"):
        print(loader.batches_per_pass)
