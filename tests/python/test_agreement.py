"""Processes of a job that do not fit together all raise an error at attach that names the one."""

import re
import time

import numpy
import pytest
from lib import TOKCTL, run
from lib.forks import run_together
from lib.injected import injected
from lib.stock import another_daemon
from job import Job

import tokend


PROCESS_0 = r"process 0 \(rank 0, host \S+, pid \d+\)"
PROCESS_1 = r"process 1 of 2 \(rank \d, host \S+, pid \d+\)"


def refusals(directory, sockets, **options):
    """The error of each process; all of them must have one."""
    with Job(directory, sockets, steps=2, **options) as job:
        job.wait(expected=3)
        told = [
            [(line["refused"], line["text"]) for line in job.lines(rank)]
            for rank in range(len(sockets))
        ]
    assert [len(lines) for lines in told] == [1] * len(sockets)
    return [lines[0] for lines in told]


def all_were_told(told, pattern):
    assert {kind for kind, _ in told} == {"DisagreementError"}
    assert len({text for _, text in told}) == 1
    assert re.search(pattern, told[0][1]), told[0][1]


def test_another_position_is_named_on_all_ranks(daemon):
    told = refusals(daemon.directory, [daemon.socket] * 3, start=["begin", "begin", 4096])
    all_were_told(
        told,
        (
            r"process 2 of 3 \(rank 2, host \S+, pid \d+\): next: 4096 \| 0 \(there \| "
            rf"{PROCESS_0}\)$"
        ),
    )
    injected(40)


def test_a_different_micro_batch_is_named(daemon):
    all_were_told(
        refusals(daemon.directory, [daemon.socket] * 2, micro=[4, 8]),
        rf"{PROCESS_1}: micro_batch: 8 differs from 4 at {PROCESS_0}$",
    )
    injected(32)


def test_a_different_world_is_named(daemon):
    told = refusals(daemon.directory, [daemon.socket] * 2, data_rank=[0, 1], data_world=[2, 3])
    all_were_told(told, rf"{PROCESS_1}: world: 3 differs from 2 at {PROCESS_0}$")
    injected(32)


def test_a_rank_of_two_processes_is_named(daemon):
    begin = time.monotonic()
    told = refusals(
        daemon.directory, [daemon.socket] * 2, data_rank=[1, 1], data_world=2
    )  # although strict, neither waits for the other's end
    assert time.monotonic() - begin < 60
    said = rf"{PROCESS_1}: rank: rank 1, peer 0 is also that of {PROCESS_0}; "
    all_were_told(told, said.replace("rank 0, host", "rank 1, host"))
    injected(31)


def test_a_rank_with_too_few_peers_is_named(daemon):
    told = refusals(
        daemon.directory, [daemon.socket] * 3, data_rank=[0, 0, 1], peer=[0, 1, 0], data_world=2
    )
    all_were_told(
        told, r"world: is 2, but 1 of the group's 3 processes read as rank 1 and 2 as rank 0"
    )
    injected(31)


def test_a_different_seed_on_another_node_is_named(daemon):
    with another_daemon(seed=43) as other:
        all_were_told(
            refusals(daemon.directory, [daemon.socket, other.socket]),
            r"process 1 .*: seed: 43 \| 42",
        )
    injected(40)


def test_a_node_that_lacks_a_shard_is_named(daemon):
    with another_daemon() as other:
        other.stop()
        (other.directory / "web" / "b.bin").unlink()
        other.start()
        all_were_told(
            refusals(daemon.directory, [daemon.socket, other.socket]),
            rf"{PROCESS_1}: dataset web: .*\(there \| {PROCESS_0}\)$",
        )
    injected(40)


@pytest.mark.parametrize("manifest", [False, True])
def test_a_node_with_other_tokens_is_named(daemon, manifest):
    """Its shards have the same names and lengths."""
    with another_daemon() as other:
        for node in (daemon, other):
            node.stop()
            if node is other:
                path = other.directory / "web" / "b.bin"
                numpy.fromfile(path, "<u2")[::-1].tofile(path)
            if manifest:
                web = node.directory / "web"
                code, _, err = run(TOKCTL, "inspect", "--manifest", node.directory / "web.m", web)
                assert code == 0, err
                config = node.directory / "tokend.yaml"
                config.write_text(
                    config.read_text().replace("path: web,", "path: web, manifest: web.m,")
                )
                assert "web.m" in config.read_text()
            node.start()
        all_were_told(
            refusals(daemon.directory, [daemon.socket, other.socket]),
            rf"{PROCESS_1}: shards: names and lengths are those at {PROCESS_0}, but the tokens",
        )
    injected(40)


def snapshots(daemons):
    """The files of the snapshots of @daemons: {path: bytes}."""
    paths = [path for d in daemons for path in (d.directory / "state").rglob("epoch*.cursor")]
    return {path: path.read_bytes() for path in paths}


def test_snapshots_of_nodes_that_disagree_are_refused(daemon):
    """One node of three missed the last save, as if it had been away."""
    with another_daemon() as second, another_daemon() as third:
        nodes = [daemon, second, third]
        for node in nodes:
            with tokend.Loader("train", 4, socket=node.socket, run="job", rank=0, world=1) as one:
                for step in range(1, 5):
                    next(one)
                    if step == 2 or (step == 4 and node is not third):
                        one.checkpoint("epoch")
        before = snapshots(nodes)
        assert len(set(before.values())) == 2 and len(before) == 5, "two of them have former ones"
        told = refusals(daemon.directory, [node.socket for node in nodes], start="epoch")
        injected(19)
        all_were_told(
            told,
            r"process 2 of 3 \(rank 2, host \S+, pid \d+\): next: 8 \| 16 \(there \| process 0",
        )
        assert snapshots(nodes) == before, "no snapshot changed"
        paths = [next((node.directory / "state").rglob("epoch.cursor")) for node in reversed(nodes)]
        code, out, _ = run(TOKCTL, "cursor", "diff", *paths)
        assert (code, out.decode()) == (
            1,
            f"{paths[0]} differs from {paths[1]} and 1 other:\nnext: 16 | 8\n",
        )


def test_the_others_do_not_wait_for_a_process_that_cannot_attach(daemon):
    told = refusals(daemon.directory, [daemon.socket, f"{daemon.socket}.not"])
    assert [kind for kind, _ in told] == ["DisagreementError", "ConnectError"]
    assert re.search(
        r"process 1 of 2 \(host \S+, pid \d+\): could not attach: .*socket\.not", told[0][1]
    ), told[0][1]


@pytest.mark.parametrize(
    "call",
    [
        "loader.load_state_dict({} if rank else loader.state_dict())",
        "loader.seek(3 if rank else None)",
        "tokend.Loader('train', 2, socket=sys.argv[3], dtype='uint16' if rank else None)",
        "tokend.Loader('train', 2, socket=sys.argv[3], mesh=5 if rank else None)",
    ],
)
def test_the_others_do_not_wait_for_a_process_with_an_invalid_argument(daemon, call):
    program = f"""
import sys, torch.distributed as dist, tokend
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
with tokend.Loader("train", 2, socket=sys.argv[3]) as loader:
    next(loader)
    try:
        {call}
    except (tokend.Error, TypeError) as error:
        print(type(error).__name__, next(loader)["position"].tolist())
dist.barrier()
"""
    meet = daemon.directory / "meet"
    said = run_together(program, [[rank, meet, daemon.socket] for rank in range(2)], seconds=30)
    assert said[0] == "DisagreementError [4, 5]\n"
    assert said[1].endswith("Error [6, 7]\n")


def test_agree_false_compares_nothing(daemon):
    with Job(
        daemon.directory,
        [daemon.socket] * 2,
        steps=3,
        start=["begin", 4096],
        agree=False,
        calls_from=None,
    ) as job:
        job.wait()
        assert job.positions() == [
            *range(0, 4),
            *range(8, 12),
            *range(16, 20),
            *range(4100, 4104),
            *range(4108, 4112),
            *range(4116, 4120),
        ]


def test_peers_of_one_rank_take_the_same_rows(daemon):
    ranks = {"data_rank": [0, 0, 1, 1], "peer": [0, 1, 0, 1], "data_world": 2}
    with Job(daemon.directory, [daemon.socket] * 4, steps=20, **ranks) as job:
        job.wait()
        took = [job.of(process, "took") for process in range(4)]
        assert took[0] == took[1] != took[2] == took[3]
        assert sorted(row[0] for rank in (0, 2) for rows in took[rank] for row in rows) == list(
            range(160)
        )
        assert len({job.lines(process)[-1]["cursor"] for process in range(4)}) == 1


def test_a_loader_alone_agrees_with_itself(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket) as loader:
        loader.seek(position=1024)
        loader.load_state_dict(loader.state_dict())
        assert loader.position == 1024
