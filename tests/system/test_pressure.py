"""A daemon that is stopped for seconds, and one whose page cache is taken away all the time: its
trainers wait, and get every byte.
"""

import signal
import subprocess
import sys
import time

import numpy
import pytest
from test_cgroup import EAT, Group

from lib import LONG, TOKCTL, Client, Daemon, datasets, rank_rows, rows_at, status, wait_for
from lib.cat import Cat

WORLD, MICRO, STOPPED_S = 2, 4, 2.5
LIMIT, EATEN = 96 << 20, 60 << 20
TOKENS, SEQ = 100_000_000, 2047  # 200 MB, twice what the group may have; windows of half a page


def check(cat, rows, rank):
    code, out, err = cat.end()
    assert (code, err) == (0, ""), "exit 0, without a message"
    assert out == rank_rows(rows, rank, WORLD, MICRO).tobytes(), f"rank {rank} got every byte"


def test_a_stopped_daemon_loses_nothing(place):
    """SIGSTOP in the middle of its work, and SIGCONT: the sessions go on, none attaches again."""
    batches = 2000  # far more than pipes and rings hold
    place.shard("web/a.bin", 200_000)
    stream = {"seed": 3, "seq_len": 128, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    rows = rows_at(daemon.config, "train", 0, batches * WORLD * MICRO)
    cats = [Cat(place, daemon, rank, batches) for rank in range(WORLD)]
    assert all(cat.reads() for cat in cats), "full pipes keep them in the middle"
    before = {s["pid"]: s["session"] for s in status(daemon.socket)[0]}
    assert len(before) == WORLD, "both are in the middle"
    daemon.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    for cat in cats:
        cat.drain()

    def waits():
        seen = [cat.written() for cat in cats]
        time.sleep(0.3)
        return seen == [cat.written() for cat in cats]

    assert wait_for(waits), "the ranks wait"
    late = place.spawn(
        [TOKCTL, "cat", "train", "--socket", daemon.socket, "--run", "late", "--batches", "3"]
        + ["--rank", "0", "--world", "1", "--micro", "1"],
        stdout=subprocess.PIPE,
    )
    while time.monotonic() < stopped + STOPPED_S:
        time.sleep(0.05)
        assert late.poll() is None and all(cat.process.poll() is None for cat in cats)
    daemon.process.send_signal(signal.SIGCONT)
    after = {s["pid"]: s["session"] for s in status(daemon.socket)[0] if s["run"] == "r"}
    assert after == before, "the same sessions"
    assert late.communicate(timeout=LONG)[0] == rows[:3].tobytes(), (
        "a client that connected meanwhile is served"
    )
    for rank, cat in enumerate(cats):
        check(cat, rows, rank)
    assert status(daemon.socket)[1]["lost_wakes"] == 0
    assert daemon.stop() == 0


@pytest.fixture
def group():
    try:
        made = Group(LIMIT)
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    made.remove()


def test_a_page_cache_that_is_taken_away_only_slows_reads(place, group):
    """Daemon and trainers have less memory than the shard, and another process takes most of it."""
    rng = numpy.random.default_rng(1)
    with open(place.file("web/a.bin"), "wb") as file:
        for _ in range(10):
            rng.integers(0, 50000, TOKENS // 10, dtype=numpy.uint16).tofile(file)
    batches = 2500
    stream = {"seed": 3, "seq_len": SEQ, "datasets": datasets("web")}
    daemon = Daemon(
        place, place.config(streams={"train": stream}, memory=8 << 20), preexec_fn=group.enter
    )
    rows = rows_at(daemon.config, "train", 0, batches * WORLD * MICRO)
    eater = place.spawn(
        [sys.executable, "-c", EAT, str(EATEN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=group.enter,
    )
    assert eater.stdout.readline() == b"full\n"
    before = group.reclaims()
    cats = [
        Cat(place, daemon, rank, batches, pipe=False, preexec_fn=group.enter)
        for rank in range(WORLD)
    ]
    for rank, cat in enumerate(cats):
        check(cat, rows, rank)
    assert group.reclaims() > before + 10, "pages were taken away meanwhile"
    assert (group.kills(), eater.poll()) == (0, None), "no process was killed"
    client = Client(daemon.socket).attach(run="after")
    assert numpy.array_equal(client.next(), rows[: client.rows]), "the daemon serves on"
    client.close()
    eater.kill()
    eater.wait()
    assert daemon.stop() == 0
