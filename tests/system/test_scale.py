"""100 T tokens: 10,000 sparse shards of 10 G tokens. Positions are found, and none takes memory.

bench/starts.py measures that every position costs the same time, and bench/growth.py what
sessions cost.
"""

import json
import os
import pathlib
import time

import pytest

from lib import BIN, TOKCTL, Daemon, attach_at_once, datasets, free_port, run, wait_for

SHARDS, TOKENS, SEQ = 10_000, 10_000_000_000, 4096
WINDOW = SEQ + 1
WINDOWS = (TOKENS - WINDOW) // SEQ + 1  # of a shard
ALL = SHARDS * WINDOWS
PLACES = {"0": 0, "middle": ALL // 2, "end": ALL - 64, "2^62": 2**62}


@pytest.fixture(scope="module")
def config(shared):
    for s in range(SHARDS):
        with open(shared.file("web", f"{s:05}.bin"), "wb") as f:
            f.truncate(4 * TOKENS)
    stream = {"seed": 42, "seq_len": SEQ, "datasets": datasets("web", dtype="u32")}
    return shared.config(streams={"train": stream})


def lines(*command):
    code, out, err = run(TOKCTL, *command, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("name", PLACES)
def test_plan_and_when_agree_everywhere(config, name):
    position = PLACES[name]
    rows = lines("plan", "-c", config, "train", "--from", position, "--count", 1000)
    assert [row["position"] for row in rows] == list(range(position, position + 1000))
    at = rows[0]
    assert at["shard"] == f"{int(at['shard'][:5]):05}.bin" and at["offset"] <= TOKENS - WINDOW
    assert at["epoch"] == position // ALL
    where = ["--dataset", "web", "--shard", at["shard"], "--epoch", at["epoch"]]
    found = lines("when", "-c", config, "train", *where, "--offset", at["offset"] + 1)
    assert [row["position"] for row in found] == [position]


def private(daemon):
    """KiB. Not VmRSS - RssShmem: rings may be unmapped between the two readings."""
    return daemon.memory_kib("RssAnon") + daemon.memory_kib("RssFile")


def attach_everywhere(daemon, times):
    for position in list(PLACES.values()) * times:
        micro = os.path.join(BIN, "bench-micro")
        code, _, err = run(micro, "next", daemon.socket, "train", position, 0)
        assert code == 0, err


def test_attaches_take_no_memory_anywhere(shared, config):
    daemon = Daemon(shared, config)
    opened = private(daemon)
    assert opened <= 16 * 1024 + SHARDS * 64 / 1024, ("memory of 10,000 shards", f"{opened} KiB")
    attach_everywhere(daemon, 5)  # opens as many shards as it ever keeps open
    settled = private(daemon)
    attach_everywhere(daemon, 10)
    grown = private(daemon) - settled
    assert grown <= 1024, f"{grown} KiB more after 40 sessions"
    job = ["--rank", 0, "--world", 1, "--micro", 4, "--batches", 2]
    for name, position in PLACES.items():
        cat = ["cat", "train", "--socket", daemon.socket, "--start", position]
        code, out, err = run(TOKCTL, *cat, *job)
        assert code == 0 and len(out) == 2 * 4 * WINDOW * 4 and not any(out), (name, err)
    assert daemon.stop() == 0, "it stops"


def waits(pid):
    """How often all threads have waited."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    about = [(task / "status").read_text() for task in tasks]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in about)


def test_the_trainers_of_a_node_let_the_daemon_sleep(shared, config):
    keys = json.load(open(config)) | {"metrics": f"127.0.0.1:{free_port()}"}
    daemon = Daemon(shared, shared.config("costs.yaml", **keys))
    crowd = attach_at_once(daemon.socket, 64)
    for client in crowd:
        client.close()
    assert wait_for(lambda: daemon.rings() == 0)
    clients = attach_at_once(daemon.socket, 8)
    for client in clients:
        client.next()
        client.next()
        assert wait_for(client.wake_at)  # the daemon sleeps for its sake, too
    begin, before = time.monotonic(), waits(daemon.pid)
    time.sleep(1)
    woke = (waits(daemon.pid) - before) / (time.monotonic() - begin)
    print(f"      the daemon's threads wake up {woke:.0f} times a second")
    assert woke < 100
    assert private(daemon) <= 16 * 1024 + SHARDS * 64 / 1024
    for client in clients:
        client.close()
    assert daemon.stop() == 0
