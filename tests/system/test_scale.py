"""100 T tokens: 10,000 sparse shards of 10 G tokens. Every position costs the same time, and none
takes memory.

Figures are the best of ROUNDS rounds, with the positions in turn, because the machine may be busy.
If they differ, more rounds follow, up to MOST_ROUNDS: a position that really costs more stays
slower. bench/run.py measures the same more closely.
"""

import json
import math
import os
import pathlib
import resource
import time

import pytest

from lib import BIN, TOKCTL, Daemon, attach_at_once, datasets, free_port, run, wait_for

SHARDS, TOKENS, SEQ = 10_000, 10_000_000_000, 4096
WINDOW = SEQ + 1
WINDOWS = (TOKENS - WINDOW) // SEQ + 1  # of a shard
ALL = SHARDS * WINDOWS
PLACES = {"0": 0, "middle": ALL // 2, "end": ALL - 64, "2^62": 2**62}
ROUNDS, MOST_ROUNDS = 5, 75
RATIO = 1.5


def shards(place):
    for s in range(SHARDS):
        with open(place.file("web", f"{s:05}.bin"), "wb") as f:
            f.truncate(4 * TOKENS)


def in_turn(measure, least=None):
    """The least measured at each position, including @least."""
    least = least or dict.fromkeys(PLACES, math.inf)
    for _ in range(ROUNDS):
        for name, position in PLACES.items():
            least[name] = min(least[name], measure(position))
    return least


def alike(what, measure, unit):
    """Checks that all positions cost the same. Returns the number of measurements."""
    least, rounds = None, 0
    while True:
        least, rounds = in_turn(measure, least), rounds + ROUNDS
        ratios = {name: round(least[name] / least["0"], 2) for name in least}
        if max(ratios.values()) <= RATIO or rounds >= MOST_ROUNDS:
            break
    print(f"      {what}: {least['0']:.2f} {unit} at 0; elsewhere × {ratios}, {rounds} rounds")
    assert max(ratios.values()) <= RATIO, (f"{what}: the same at all positions", ratios)
    return rounds * len(PLACES)


def cpu_of(*command):
    """(the lines of JSON that a command prints, its CPU time in ms)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, out, err = run(*command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise RuntimeError(err)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out.splitlines(), used * 1e3


def offline(config):
    """plan and when, with enough output that opening the shards is the smaller part."""
    count = 100_000

    def plan(position):
        rows, ms = cpu_of(
            TOKCTL, "plan", "-c", config, "train", "--from", position, "--count", count, "--json"
        )
        first, last = (json.loads(rows[i])["position"] for i in (0, -1))
        assert [first, last, len(rows)] == [position, position + count - 1, count]
        return ms

    alike(f"plan of {count} windows", plan, "ms CPU")

    asked = {}
    for name, position in PLACES.items():
        (row,), _ = cpu_of(
            TOKCTL, "plan", "-c", config, "train", "--from", position, "--count", 1, "--json"
        )
        at = asked[position] = json.loads(row)
        assert (
            at["shard"] == f"{int(at['shard'][:5]):05}.bin" and at["offset"] <= TOKENS - WINDOW
        ), (f"position {name} is a window", at)
        assert at["epoch"] == position // ALL, f"position {name} is of its epoch"

    def when(position):
        at = asked[position]
        where = (
            "--dataset",
            "web",
            "--shard",
            at["shard"],
            "--offset",
            at["offset"] + 1,
            "--epoch",
            at["epoch"],
        )
        rows, ms = cpu_of(TOKCTL, "when", "-c", config, "train", *where, "--json")
        assert [json.loads(row)["position"] for row in rows] == [position], (rows, at)
        return ms

    alike("when", when, "ms CPU")


def online(place, config):
    daemon = Daemon(place, config)

    def private():
        # Not VmRSS - RssShmem: rings may be unmapped between the two readings.
        return daemon.memory_kib("RssAnon") + daemon.memory_kib("RssFile")

    opened = private()
    assert opened <= 16 * 1024 + SHARDS * 64 / 1024, ("memory of 10,000 shards", f"{opened} KiB")

    def first(position):
        code, out, err = run(os.path.join(BIN, "bench-next"), daemon.socket, "train", position, 0)
        if code:
            raise RuntimeError(err)
        return json.loads(out)["first_ms"]

    in_turn(first)  # opens as many shards as it ever keeps open
    settled = private()
    sessions = alike("attach to first batch", first, "ms")
    grown = private() - settled
    print(
        f"      daemon: {opened} KiB opened, {settled} KiB settled, {grown:+} after {sessions} more"
    )
    assert grown <= 1024, ("memory does not grow", f"{grown} KiB more after {sessions} sessions")
    for name, position in PLACES.items():
        code, out, err = run(
            TOKCTL,
            "cat",
            "train",
            "--socket",
            daemon.socket,
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            4,
            "--batches",
            2,
            "--start",
            position,
        )
        assert code == 0 and len(out) == 2 * 4 * WINDOW * 4 and not any(out), (
            f"batches at {name}",
            err or len(out),
        )
    assert daemon.stop() == 0, "it stops"


def cpu_of_tasks(pid):
    """Seconds that all threads have used."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@pytest.fixture(scope="module")
def config(shared):
    shards(shared)
    stream = {"seed": 42, "seq_len": SEQ, "datasets": datasets("web", dtype="u32")}
    return shared.config(streams={"train": stream})


def test_plan_and_when_cost_the_same_everywhere(config):
    offline(config)


def test_attaches_cost_the_same_everywhere(shared, config):
    online(shared, config)


def test_the_trainers_of_a_node_cost_the_daemon_little(shared, config):
    """bench/day_one.py measures the same closely. Here the limits are ten times as wide, but for
    memory's; CPU time does not depend on what else the machine does.
    """
    keys = json.load(open(config)) | {"metrics": f"127.0.0.1:{free_port()}"}
    daemon = Daemon(shared, shared.config("costs.yaml", **keys))
    before = cpu_of_tasks(daemon.pid)
    crowd = attach_at_once(daemon.socket, 64)
    attached = cpu_of_tasks(daemon.pid) - before
    for client in crowd:
        client.close()
    wait_for(lambda: daemon.rings() == 0)
    clients = attach_at_once(daemon.socket, 8)
    for client in clients:
        client.next()
        client.next()
        wait_for(client.wake_at)  # the daemon sleeps for its sake, too
    begin, before = time.monotonic(), cpu_of_tasks(daemon.pid)
    time.sleep(1)
    share = (cpu_of_tasks(daemon.pid) - before) / (time.monotonic() - begin)
    private = daemon.memory_kib("RssAnon") + daemon.memory_kib("RssFile")
    print(f"      64 attach: {attached * 1e3:.0f} ms CPU; 8 idle: {share:.3%}, {private} KiB")
    assert attached <= 2 and share <= 0.01
    assert private <= 16 * 1024 + SHARDS * 64 / 1024
    for client in clients:
        client.close()
    assert daemon.stop() == 0
