"""A daemon that is stopped for seconds, and one whose page cache is taken away all the time: its
trainers wait, and get every byte.
"""

import os
import signal
import subprocess
import sys
import time

import numpy
import pytest
from test_cgroup import EAT, Group

from lib import LONG, TOKCTL, Client, Daemon, datasets, rank_rows, rows_at, status, wait_for

WORLD, MICRO, STOPPED_S = 2, 4, 2.5
LIMIT, EATEN = 96 << 20, 60 << 20
TOKENS, SEQ = 100_000_000, 2047  # 200 MB, twice what the group may have; windows of half a page


class Cat:
    """tokctl cat of one rank; the test reads what it writes."""

    def __init__(self, place, daemon, rank, batches, **keys):
        self.err = place.file(f"{rank}.err")
        arguments = f"--run r --rank {rank} --world {WORLD} --micro {MICRO} --slots 4".split()
        self.process = place.spawn(
            [TOKCTL, "cat", "train", "--socket", daemon.socket, "--batches", str(batches)]
            + arguments,
            stdout=open(place.file(f"{rank}.out"), "wb"),
            stderr=open(self.err, "wb"),
            **keys,
        )
        self.out = place.file(f"{rank}.out")

    def written(self):
        return os.path.getsize(self.out)

    def check(self, rows, rank):
        code = self.process.wait(120)
        assert (code, open(self.err).read()) == (0, ""), "exit 0, without a message"
        want = rank_rows(rows, rank, WORLD, MICRO)
        assert open(self.out, "rb").read() == want.tobytes(), f"rank {rank} got every byte"


def test_a_stopped_daemon_loses_nothing(place):
    """SIGSTOP in the middle of its work, and SIGCONT: the sessions go on, nobody attaches again."""
    batches = 30_000
    place.shard("web/a.bin", 200_000)
    stream = {"seed": 3, "seq_len": 128, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    rows = rows_at(daemon.config, "train", 0, batches * WORLD * MICRO)
    cats = [Cat(place, daemon, rank, batches) for rank in range(WORLD)]
    assert wait_for(lambda: all(cat.written() for cat in cats))
    before = {s["pid"]: s["session"] for s in status(daemon.socket)[0]}
    assert len(before) == WORLD, "both are in the middle"
    daemon.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()

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
    assert late.communicate(timeout=LONG)[0] == rows[:3].tobytes(), "who came meanwhile is served"
    for rank, cat in enumerate(cats):
        cat.check(rows, rank)
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
            file.write(rng.bytes(TOKENS // 5))
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
    cats = [Cat(place, daemon, rank, batches, preexec_fn=group.enter) for rank in range(WORLD)]
    for rank, cat in enumerate(cats):
        cat.check(rows, rank)
    assert group.reclaims() > before + 10, "pages were taken away meanwhile"
    assert (group.kills(), eater.poll()) == (0, None), "no process was killed"
    client = Client(daemon.socket).attach(run="after")
    assert numpy.array_equal(client.next(), rows[: client.rows]), "the daemon serves on"
    client.close()
    eater.kill()
    eater.wait()
    assert daemon.stop() == 0
