#!/usr/bin/env python3
"""A ring lies on the NUMA node that its client names: what can be seen of that on a machine with one node or more."""

import os
import re
import shutil
import subprocess

from harness import BIN, LONG, Checks, Client, Daemon, Place, datasets, run, status, wait_for

NODES_KNOWN = 1024


def policies(daemon):
    """Of the daemon's rings, by segment: {name: [policy]}, as the kernel tells it."""
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


def check_nodes(place, checks, daemon):
    for node in online():
        client = Client(daemon.socket).attach(node=node, begin=1)
        client.next()
        checks.equal(
            f"node {node} is named: both segments prefer it",
            policies(daemon),
            expect(f"prefer:{node}"),
        )
        checks.equal(
            f"node {node} is named: so does the status",
            [s["node"] for s in status(daemon.socket)[0]],
            [node],
        )
        client.close()
        wait_for(lambda: not daemon.rings())
    for node in (absent_node(), NODES_KNOWN - 1, NODES_KNOWN, 2**63, 2**64 - 2):
        client = Client(daemon.socket).attach(node=node, begin=1)
        client.next()
        checks.equal(
            f"node {node}, which we have not: is served, from anywhere",
            policies(daemon),
            expect("default"),
        )
        checks.equal(
            f"node {node}: no node in the status",
            [s["node"] for s in status(daemon.socket)[0]],
            [None],
        )
        checks.has(
            f"node {node}: said in the log",
            daemon.log(),
            f"its ring is not put on NUMA node {node}: we have no such node",
        )
        client.close()
        wait_for(lambda: not daemon.rings())
    client = Client(daemon.socket).attach()
    client.next()
    checks.equal("no node is named: anywhere", policies(daemon), expect("default"))
    checks.equal(
        "no node is named: none in the status",
        [s["node"] for s in status(daemon.socket)[0]],
        [None],
    )
    client.close()
    wait_for(lambda: not daemon.rings())


def check_library(place, checks, daemon):
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
    checks.equal(
        "libtokend names its own node", [s["node"] for s in status(daemon.socket)[0]], [node]
    )
    checks.equal("libtokend's ring prefers it", policies(daemon), expect(f"prefer:{node}"))
    cat.kill()
    cat.wait()


def check_forbidden(place, checks, config):
    """Containers may forbid mbind: strace stands in for their seccomp."""
    if not shutil.which("strace"):
        checks.skip("mbind is forbidden", "strace is not installed")
        return
    path, log = place.file("strict.sock"), open(place.file("strict.log"), "w+")
    trace = place.file("trace")
    strace = ["strace", "-f", "-o", trace, "-e", "trace=mbind", "-e", "inject=mbind:error=EPERM"]
    command = [*strace, f"{BIN}/tokend", "-c", config, "--socket", path]
    traced = place.spawn(command, stdout=log, stderr=log)
    if (
        not wait_for(lambda: os.path.exists(path) or traced.poll() is not None, LONG)
        or traced.poll() is not None
    ):
        checks.skip("mbind is forbidden", "strace may not trace here")
        return
    clients = [Client(path).attach(node=online()[0], peer=peer, begin=1) for peer in range(2)]
    for client in clients:
        client.next()
    checks.equal(
        "mbind is forbidden: served all the same",
        [s["node"] for s in status(path)[0]],
        [None, None],
    )
    log.seek(0)
    checks.equal(
        "mbind is forbidden: said once",
        log.read().count("Operation not permitted; not said again"),
        1,
    )
    for client in clients:
        client.close()
    run("kill", status(path)[1]["pid"])
    traced.wait(LONG)
    masks = re.findall(r"MPOL_PREFERRED, \[([^]]*)\], (\d+)", open(trace).read())
    asked = {
        (sum(int(word, 16) << 64 * i for i, word in enumerate(words.split(", "))), int(bits))
        for words, bits in masks
    }
    checks.equal(
        "mbind was asked for that node alone", asked, {(1 << online()[0], NODES_KNOWN + 1)}
    )


if __name__ == "__main__":
    checks = Checks()
    with Place() as place:
        place.shard("web/a.bin", 60_000)
        config = place.config(
            streams={"train": {"seed": 3, "seq_len": 64, "datasets": datasets("web")}}
        )
        daemon = Daemon(place, config)
        if os.path.exists("/proc/self/numa_maps"):
            check_nodes(place, checks, daemon)
            check_library(place, checks, daemon)
        else:
            checks.skip("policies of the rings", "this kernel knows no NUMA")
        check_forbidden(place, checks, config)
    checks.exit()
