"""Expert-parallel ranks are data ranks in the trainers' meshes.

torchrun ep_mesh.py torchtitan|olmo. Each of 4 processes creates a Loader from a mesh alone and
takes two batches. Process 0 prints a line per mesh: each process's data rank according to the
trainer and to the loader, and its rows.
"""

import json
import os
import sys

import torch._utils
import torch.distributed as dist
from tokend import Loader


def prove(job, trainer):
    """Asserts that each data rank gets its own rows, and that its peers get the same."""
    out = job.start(4, trainer, launcher=os.path.abspath(__file__))
    seen = [json.loads(line[5:]) for line in out.splitlines() if line.startswith("MESH ")]
    assert seen, ("meshes were printed", out[-2000:])
    for mesh in seen:
        wrong = []
        for number, process in enumerate(mesh["processes"]):
            rank, world = process["trainer"]
            rows = [[2 * (step * world + rank), 2 * (step * world + rank) + 1] for step in range(2)]
            if process["loader"] != [rank, world] or process["rows"] != rows:
                wrong.append(f"process {number}: {process}, want rows {rows}")
        assert not wrong, (f"expert parallelism, {trainer}, mesh {mesh['mesh']}", wrong)


def torchtitan():
    torch._utils._get_available_device_type = lambda: "cpu"  # as in titan_run.py
    # the backend of dimensions of size 1; torchtitan's trainer imports it
    from torch.testing._internal.distributed import fake_pg  # noqa: F401
    from torchtitan.distributed import ParallelDims

    for sizes, meshes in (
        ({"dp_shard": 4, "ep": 2}, ("batch", ["efsdp", "ep"], ["dp_replicate", "efsdp", "ep"])),
        (
            {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
            ("batch", ["dp_replicate", "fsdp"], ["dp_replicate", "efsdp", "ep"]),
        ),
        ({"dp_shard": 2, "tp": 2, "ep": 2}, ("batch",)),
        ({"dp_shard": 2, "cp": 2, "ep": 4}, ("batch",)),
    ):
        one = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep"), 1)
        dims = ParallelDims(**one | sizes, world_size=4, spmd_backend="partial_dtensor")
        dims.build_mesh()
        for names in meshes:
            # torchtitan's Trainer takes batch_rank from this mesh.
            batch = dims.get_mesh("batch")
            yield (
                f"{sizes} {names}",
                dims.get_optional_mesh(names, include_singleton_axes=True),
                (batch.get_local_rank(), batch.size()),
            )


def olmo():
    from olmo_core.distributed import parallel
    from olmo_core.distributed.parallel import (
        DataParallelConfig,
        DataParallelType,
        ExpertParallelConfig,
    )
    from olmo_core.distributed.utils import get_rank, get_world_size

    experts = DataParallelConfig(name=DataParallelType.hsdp, num_replicas=2, shard_degree=2)
    mesh = parallel.build_world_mesh(
        dp=experts, ep=ExpertParallelConfig(degree=2), device_type="cpu"
    )
    group = parallel.get_dp_process_group(mesh)
    yield "the world's", mesh, (get_rank(group), get_world_size(group))
    yield "for data loaders", parallel.get_dp_mesh(mesh), (get_rank(group), get_world_size(group))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for what, mesh, own in {"torchtitan": torchtitan, "olmo": olmo}[sys.argv[1]]():
        with Loader("train", 2, mesh=mesh) as loader:
            rows = [next(loader)["position"].tolist() for _ in range(2)]
            mine = {"trainer": own, "loader": (loader.rank, loader.world), "rows": rows}
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        if dist.get_rank() == 0:
            print("MESH " + json.dumps({"mesh": what, "processes": everyone}), flush=True)
    dist.barrier()  # no process destroys the group during another one's gather
    dist.destroy_process_group()
