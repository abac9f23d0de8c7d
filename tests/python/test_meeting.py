"""If only some processes of a job make a loader, a message names the others in seconds, and the
next loader works.
"""

import json

from lib.forks import run_together

PROGRAM = """
import json, sys, time, warnings
import torch, torch.distributed as dist
import tokend
from tokend import meeting

socket, meet, rank, world, scenario = (
    sys.argv[1],
    sys.argv[2],
    int(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5],
)
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
            loader, error = None, f"{type(failed).__name__} {failed}"
    where, warned = [w.filename for w in caught], [str(w.message) for w in caught]
    said.append({"error": error, "s": time.monotonic() - begin, "warned": warned, "where": where})
    return loader


if scenario == "alone":
    if rank == 0:
        make(deadline=4)
        alone = make(rank=0, world=1)
        said.append({"rows": next(alone)["position"].tolist()})
    dist.barrier()
    together = make(deadline=60)
    said.append({"rows": next(together)["position"].tolist()})
elif scenario == "second":  # the group is there already
    first = make()
    if rank == 0:
        make(deadline=4)
    dist.barrier()
    make()
elif scenario == "late":
    if rank == 1:
        time.sleep(4)
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
        make(deadline=4, group=group, rank=0, world=2)
    dist.barrier()
    if rank < 2:
        make(group=group, rank=rank, world=2)
    dist.barrier()
print(json.dumps(said))
"""


def run(daemon, scenario, world):
    meet = daemon.directory / f"meet-{scenario}"
    ranks = [[daemon.socket, meet, rank, world, scenario] for rank in range(world)]
    return [json.loads(out) for out in run_together(PROGRAM, ranks)]


REMEDY = (
    "make loaders, seek and load states in all processes together; for a loader of "
    "this process alone pass rank=0, world=1"
)


def is_refused(said, missing):
    assert said["error"] == f"Error tokend.Loader: {missing} did not come within 4 s; {REMEDY}"
    assert said["warned"] == [f"tokend.Loader: has waited 0.5 s for {missing}; {REMEDY}"]
    assert said["where"] == ["<string>"]  # the line with the loader
    assert said["s"] < 30


def test_a_loader_made_by_rank_0_alone_is_refused(daemon):
    first, second = run(daemon, "alone", 2)
    is_refused(first[0], "rank 1 of 2")
    assert first[1]["error"] is None and first[2]["rows"] == [
        0,
        1,
    ]  # the remedy in the message works
    assert first[3]["error"] is None and first[4]["rows"] == [0, 1] and second[1]["rows"] == [2, 3]


def test_a_second_loader_made_by_rank_0_alone_is_refused(daemon):
    first, *others = run(daemon, "second", 3)
    is_refused(first[1], "ranks 1, 2 of 3")
    assert [said["error"] for said in (first[0], first[2], *others[0], *others[1])] == [None] * 6


def test_a_late_process_is_waited_for(daemon):
    first, second = run(daemon, "late", 2)
    assert first[0]["error"] is second[0]["error"] is None
    assert first[0]["warned"][0] == f"tokend.Loader: has waited 0.5 s for rank 1 of 2; {REMEDY}"
    assert not [text for text in second[0]["warned"] if "rank 1" in text]


def test_a_group_argument(daemon):
    first, second, third = run(daemon, "given", 3)
    is_refused(first[0], "rank 1 of 2")
    assert [first[1]["error"], second[0]["error"]] == [None, None] and third == []


def test_one_makes_a_loader_while_the_other_seeks(daemon):
    first, second = run(daemon, "seek", 2)
    assert [said["error"] for said in first + second] == [None] * 3
