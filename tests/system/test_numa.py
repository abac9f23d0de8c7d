"""A ring is put on the NUMA node that its client names."""

import os
import re
import shutil
import subprocess

import pytest

from lib import BIN, LONG, Client, Daemon, datasets, run, status, wait_for

NODES_KNOWN = 1024


def policies(daemon):
    """{memfd: [policy]} of the daemon's rings, as the kernel reports them."""
    found = {}
    with open(f"/proc/{daemon.pid}/numa_maps") as maps:
        for line in maps:
            if seen := re.match(r"[0-9a-f]+ (\S+) file=/memfd:(tokend-\w+)", line):
                found.setdefault(seen[2], []).append(seen[1])
    return found


def expect(policy):
    return {"tokend-data": [policy], "tokend-meta": [policy]}


def online():
    with open("/sys/devices/system/node/has_memory") as nodes:
        return [
            int(n)
            for part in nodes.read().strip().split(",")
            for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
        ]


def absent_node():
    return next(n for n in range(NODES_KNOWN) if n not in online())


def check_nodes(place, daemon):
    for node in online():
        client = Client(daemon.socket).attach(node=node, begin=1)
        client.next()
        assert policies(daemon) == expect(f"prefer:{node}"), (
            f"node {node} is named: both memfds prefer it"
        )
        assert [s["node"] for s in status(daemon.socket)[0]] == [node], (
            f"node {node} is named: status reports it"
        )
        client.close()
        wait_for(lambda: not daemon.rings())
    for node in (absent_node(), NODES_KNOWN - 1, NODES_KNOWN, 2**63, 2**64 - 2):
        client = Client(daemon.socket).attach(node=node, begin=1)
        client.next()
        assert policies(daemon) == expect("default"), (
            f"node {node} does not exist: the client is served, without a policy"
        )
        assert [s["node"] for s in status(daemon.socket)[0]] == [None], (
            f"node {node}: status reports no node"
        )
        assert daemon.said(f"its ring cannot be put on NUMA node {node}: no such node"), (
            f"node {node}: the log says so"
        )
        client.close()
        wait_for(lambda: not daemon.rings())
    client = Client(daemon.socket).attach()
    client.next()
    assert policies(daemon) == expect("default"), "no node is named: no policy"
    assert [s["node"] for s in status(daemon.socket)[0]] == [None], (
        "no node is named: status reports none"
    )
    client.close()
    wait_for(lambda: not daemon.rings())


def check_library(place, daemon):
    """libtokend names the node where it runs."""
    keys = {
        "stdout": subprocess.PIPE,
        "preexec_fn": lambda: os.sched_setaffinity(0, [max(os.sched_getaffinity(0))]),
    }
    arguments = (
        "train",
        "--socket",
        daemon.socket,
        "--rank",
        "0",
        "--world",
        "1",
        "--micro",
        "2",
        "--batches",
        "1000000",
    )
    cat = place.spawn([f"{BIN}/tokctl", "cat", *arguments], **keys)
    cat.stdout.read(1)
    cpu = max(os.sched_getaffinity(0))
    (node,) = [
        int(name[4:])
        for name in os.listdir(f"/sys/devices/system/cpu/cpu{cpu}")
        if re.fullmatch(r"node\d+", name)
    ]
    assert [s["node"] for s in status(daemon.socket)[0]] == [node], "libtokend names its own node"
    assert policies(daemon) == expect(f"prefer:{node}"), "libtokend's ring prefers it"
    cat.kill()
    cat.wait()


def check_forbidden(place, config):
    """Containers may forbid mbind with seccomp; here strace does."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    path, log = place.file("strict.sock"), open(place.file("strict.log"), "w+")
    trace = place.file("trace")
    strace = ["strace", "-f", "-o", trace, "-e", "trace=mbind", "-e", "inject=mbind:error=EPERM"]
    command = [*strace, f"{BIN}/tokend", "-c", config, "--socket", path]
    traced = place.spawn(command, stdout=log, stderr=log)
    if (
        not wait_for(lambda: "ready at" in open(log.name).read() or traced.poll() is not None, LONG)
        or traced.poll() is not None
    ):
        pytest.skip("strace may not trace here")
    clients = [Client(path).attach(node=online()[0], peer=peer, begin=1) for peer in range(2)]
    for client in clients:
        client.next()
    assert [s["node"] for s in status(path)[0]] == [None, None], (
        "mbind is forbidden: clients are served"
    )
    told = "Operation not permitted; later failures are not logged"
    assert wait_for(lambda: told in open(log.name).read()), "mbind is forbidden: it is logged"
    assert open(log.name).read().count(told) == 1, "  once"
    for client in clients:
        client.close()
    run("kill", status(path)[1]["pid"])
    traced.wait(LONG)
    masks = re.findall(r"MPOL_PREFERRED, \[([^]]*)\], (\d+)", open(trace).read())
    asked = {
        (sum(int(word, 16) << 64 * i for i, word in enumerate(words.split(", "))), int(bits))
        for words, bits in masks
    }
    assert asked == {(1 << online()[0], NODES_KNOWN + 1)}, "mbind was called for that node only"


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("web")}}
    return Daemon(shared, shared.config(streams=streams))


needs_numa = pytest.mark.skipif(
    not os.path.exists("/proc/self/numa_maps"), reason="this kernel has no NUMA support"
)


@needs_numa
def test_a_ring_is_on_the_requested_node(shared, daemon):
    check_nodes(shared, daemon)


@needs_numa
def test_libtokend_requests_its_own_node(shared, daemon):
    check_library(shared, daemon)


def test_rings_work_if_mbind_is_forbidden(shared, daemon):
    check_forbidden(shared, daemon.config)
