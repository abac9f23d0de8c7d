"""Processes of a job that do not fit together all raise an error at attach that names the one."""

import gzip
import re

import numpy
import pytest
from lib import TOKCTL, run
from lib.forks import run_together
from lib.injected import injected
from lib.stock import KINDS, another_daemon
from job import Job

import tokend


PROCESS_0 = r"process 0 \(rank 0, host \S+, pid \d+\)"
PROCESS_1 = r"process 1 of 2 \(rank \d, host \S+, pid \d+\)"


def refusals(directory, sockets, **options):
    """The error of each process; all of them must have one: (class, text)."""
    with Job(directory, sockets, steps=2, **options) as job:
        job.wait(expected=3)
        lines = [job.lines(rank) for rank in range(len(sockets))]
    assert [len(of_one) for of_one in lines] == [1] * len(sockets)
    return [(of_one[0]["refused"], of_one[0]["text"]) for of_one in lines]


def all_were_told(told, pattern):
    assert {kind for kind, _ in told} == {"DisagreementError"}
    assert len({text for _, text in told}) == 1
    assert re.search(pattern, told[0][1]), told[0][1]


TWICE = {"data_rank": [1, 1], "data_world": 2}  # although strict, neither waits for the other's end
FEW = {"data_rank": [0, 0, 1], "peer": [0, 1, 0], "data_world": 2}
CASES = [  # row of the catalogue of faults, processes, their options, what all of them report
    (40, 3, {"start": ["begin", "begin", 4096]}, rf"{PROCESS_0}: next: 4096 instead of 0; load "),
    (32, 2, {"micro": [4, 8]}, rf"{PROCESS_1}: micro_batch: 8 differs from 4 at {PROCESS_0}$"),
    (31, 2, TWICE, rf"{PROCESS_1}: rank: rank 1, peer 0 is also that of process 0 \(rank 1, host"),
    (31, 3, FEW, r"world: is 2, but 1 of the group's 3 processes read as rank 1 and 2 as rank 0"),
]


@pytest.mark.parametrize("row, processes, options, pattern", CASES)
def test_processes_that_do_not_fit_together_are_named(daemon, row, processes, options, pattern):
    all_were_told(refusals(daemon.directory, [daemon.socket] * processes, **options), pattern)
    injected(row)


def without_a_shard(node):
    (node.directory / "web" / "b.bin").unlink()


def with_other_tokens(node):
    path = node.directory / "web" / "b.bin"
    numpy.fromfile(path, "<u2")[::-1].tofile(path)


def with_another_vocab(node):
    node.config.write_text(node.config.read_text().replace("vocab: 65536", "vocab: 65535", 1))


NODES = [  # a node's seed, what it has, what all processes report
    (43, None, r"process 1 .*: seed: 43 instead of 42"),
    (42, without_a_shard, rf"{PROCESS_1}: .* {PROCESS_0}: dataset web: "),
    (42, with_other_tokens, rf"{PROCESS_1}: shards: names and lengths .*, but the tokens"),
    (42, with_another_vocab, rf"{PROCESS_1}: shards: .* eos, vocab, documents or masks, are not"),
]


@pytest.mark.parametrize("seed, change, pattern", NODES)
def test_a_node_with_another_config_or_data_is_named(daemon, seed, change, pattern):
    with another_daemon(seed=seed) as other:
        if change:
            daemon.stop(), other.stop()
            change(other)
            daemon.start(), other.start()
        all_were_told(refusals(daemon.directory, [daemon.socket, other.socket]), pattern)
    injected(40)


def annotate(node, file, content):
    """Adds documents and a mask to the stream, and replaces a side file."""
    text = node.config.read_text().replace("web, w", "web, label_mask: mask, w")
    keys = "    seed: 42\n    documents: true\n    loss_mask: true\n"
    node.config.write_text(text.replace("    seed: 42\n", keys + "    eos: 0\n"))
    (node.directory / "mask").mkdir()
    for name, tokens in (("a", 60_000), ("b", 41_234)):
        bounds = gzip.compress(b"0,9\n9,%d\n" % tokens, mtime=node.pid)
        (node.directory / "web" / f"{name}.csv.gz").write_bytes(bounds)
        (node.directory / "mask" / f"{name}.bin").write_bytes(b"\1" * tokens)
    (node.directory / file).write_bytes(content)


@pytest.mark.parametrize(
    "file, contents",
    [
        ("web/b.csv.gz", [gzip.compress(b"0,%d\n5000,41234\n" % end) for end in (5000, 4999)]),
        ("mask/b.bin", [b"\1" * 41_234, bytes(41_234)]),
    ],
)
def test_a_node_with_another_side_file_is_named(daemon, file, contents):
    with another_daemon() as other:
        for node, content in zip((daemon, other), contents):
            annotate(node, file, content)
            node.stop(), node.start()
        told = refusals(daemon.directory, [daemon.socket, other.socket])
        all_were_told(told, rf"{PROCESS_1}: shards: .* documents or masks, are not$")


def snapshots(daemons):
    """The files of the snapshots of @daemons: {path: bytes}."""
    paths = [path for d in daemons for path in (d.directory / "state").rglob("epoch*.cursor")]
    return {path: path.read_bytes() for path in paths}


def test_snapshots_of_nodes_that_disagree_are_refused(daemon):
    """One node of two missed the last save, as if it had been away."""
    with another_daemon() as other:
        for node, saves in ((daemon, (2, 4)), (other, (2,))):
            with tokend.Loader("train", 4, socket=node.socket, run="job", rank=0, world=1) as one:
                for step in range(1, 5):
                    next(one)
                    one.checkpoint("epoch") if step in saves else None
        before = snapshots([daemon, other])
        assert len(set(before.values())) == 2 and len(before) == 2
        told = refusals(daemon.directory, [daemon.socket, other.socket], start="epoch")
        injected(19)
        all_were_told(told, r"process 1 of 2 \(rank 1, .* process 0 .*: next: 8 instead of 16; ")
        assert snapshots([daemon, other]) == before, "no snapshot changed"
        paths = [next((n.directory / "state").rglob("epoch.cursor")) for n in (other, daemon)]
        code, out, _ = run(TOKCTL, "cursor", "diff", *paths)
        assert (code, out) == (1, b"next: 8 | 16\n")


def test_the_others_do_not_wait_for_a_process_that_cannot_attach(daemon):
    told = refusals(daemon.directory, [daemon.socket, f"{daemon.socket}.not"])
    assert [kind for kind, _ in told] == ["DisagreementError", "ConnectError"]
    pattern = r"process 1 of 2 \(host \S+, pid \d+\): failed: .*socket\.not"
    assert re.search(pattern, told[0][1]), told[0][1]


def answers(daemon, sockets, call, start="begin"):
    """For each process what a call raises, the positions of the next batch, and code's weight."""
    program = f"""
import sys, torch.distributed as dist, tokend
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
with tokend.Loader("train", 2, socket=sys.argv[3], start={start!r}) as loader:
    next(loader)
    try:
        {call}
    except (tokend.Error, TypeError) as error:
        print(type(error).__name__, next(loader)["position"].tolist(), loader.mix.get("code"))
dist.barrier()
"""
    meet = daemon.directory / "meet"
    return run_together(program, [[i, meet, each] for i, each in enumerate(sockets)], seconds=30)


@pytest.mark.parametrize(
    "call",
    [
        "loader.load_state_dict({} if rank else loader.state_dict())",
        "loader.seek(3 if rank else None)",
        "loader.set_mix({'web': -1 if rank else 1})",
        "tokend.Loader('train', 2, socket=sys.argv[3], mesh=5 if rank else None)",
    ],
)
def test_the_others_do_not_wait_for_a_process_with_an_invalid_argument(daemon, call):
    said = answers(daemon, [daemon.socket] * 2, call)
    assert said[0] == "DisagreementError [4, 5] 0.3\n"
    assert said[1].endswith("Error [6, 7] 0.3\n")


def test_a_dataset_without_weight_that_differs_is_refused(daemon):
    """At attach; and by the mix that adds it to a cursor, after which the former mix goes on."""
    text, cursor = daemon.config.read_text(), daemon.directory / "cursor"
    daemon.config.write_text(text.replace(f"      - {KINDS['train'][3]}\n", ""))
    assert run(TOKCTL, "cursor", "new", "-c", daemon.config, "train", "-o", cursor)[0] == 0
    daemon.config.write_text(text)
    with another_daemon() as other:
        other.shards["code.bin"][::-1].tofile(other.directory / "code.bin")
        for node in daemon, other:
            node.config.write_text(node.config.read_text().replace("0.3, shuffle", "0, shuffle"))
            node.stop(), node.start()
        sockets, mix = [daemon.socket, other.socket], "loader.set_mix({'web': 1, 'code': 1})"
        all_were_told(refusals(daemon.directory, sockets), "shards: names and lengths are those")
        said = answers(daemon, sockets, mix, cursor.read_bytes())
    assert said == [f"DisagreementError {rows} None\n" for rows in ([4, 5], [6, 7])]


def test_without_a_group_nothing_is_compared(daemon):
    options = {"start": ["begin", 4096], "group": False, "calls": False}
    with Job(daemon.directory, [daemon.socket] * 2, steps=1, **options) as job:
        job.wait()
        assert job.positions() == [0, 1, 2, 3, 4100, 4101, 4102, 4103]
