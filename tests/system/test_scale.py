"""100 T tokens: 10,000 sparse shards of 10 G tokens. Positions are found, and none takes memory.

bench/starts.py measures that every position costs the same time, and bench/growth.py what
sessions cost.
"""

import json
import os

import pytest

from lib import BIN, TOKCTL, Daemon, datasets, run

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
