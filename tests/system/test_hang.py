"""The storage of one stream hangs (a real FUSE file system). Other streams continue, status names
the shard, a dead trainer's memory is freed, and the daemon stops on SIGTERM.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from lib import (
    TOKCTL,
    Client,
    Daemon,
    Witness,
    child_environment,
    datasets,
    few_descriptors,
    has,
    rows_at,
    run,
    status,
    wait_for,
)
from lib.fuse import GETATTR, hanging
from lib.injected import injected
from lib.preload import Preload

SEQ_LEN, TOKENS = 64, 20_000
SHARDS = {"near": 4, "far": 4, "hung": 40}
DESCRIPTORS = 128  # limit of the daemon: at most 32 shards are open, fewer than hang
SLOTS, MICRO = 64, 8  # twice as many rows as a daemon has reads in flight
TOGETHER = 3  # streams that hang at the same time
SERVED = 100  # batches, more than those in the ring and in flight


def make_streams(place):
    """Streams on a disk, on a FUSE file system that answers, and on one that will hang."""
    mounts = {}
    for name, count in SHARDS.items():
        for i in range(count):
            place.shard(f"files-{name}/{i:02}.bin", TOKENS)
    for name in ("far", "hung"):
        mounts[name] = hanging(place.file(f"files-{name}"), place.file(name, ""))
    place.shard("hung-too/x.bin", TOKENS)
    shapes = {
        "near": "files-near",
        "far": "far",
        "hung": "hung",
        "cold": "hung",
        "one": "hung/00.bin",
    }
    shapes |= {f"together{i}": "hung" for i in range(TOGETHER)}
    streams = {
        n: {"seed": 3, "seq_len": SEQ_LEN, "vocab": 65536, "datasets": datasets(path)}
        for n, path in shapes.items()
    }
    for i in range(TOGETHER):  # with one order, all would wait for the first one's shards
        streams[f"together{i}"]["seed"] = i
    return mounts, streams


# While words[SLOWER], a second of the data thread's clock, and so of its ticks, takes 20.
SLOWER = r"""
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static _Atomic int64_t since, hidden;

int clock_gettime(clockid_t id, struct timespec *to)
{
	static int (*next)(clockid_t, struct timespec *);

	if (!next)
		next = dlsym(RTLD_NEXT, "clock_gettime");
	int error = next(id, to);
	char thread[16];

	prctl(PR_GET_NAME, thread);
	if (!words || error || id != CLOCK_MONOTONIC || strcmp(thread, "tokend-data") != 0)
		return error;
	int64_t now = to->tv_sec * INT64_C(1000000000) + to->tv_nsec;

	if (!since)
		since = now;
	if (words[SLOWER])
		hidden += (now - since) / 20 * 19;
	since = now;
	to->tv_sec = (now - hidden) / 1000000000;
	to->tv_nsec = (now - hidden) % 1000000000;
	return 0;
}
"""
LOADER = """
import sys, tokend
next(tokend.Loader("cold", 4, socket=sys.argv[1], rank=0, world=1, framework="numpy"))
"""


class Reader:
    """A client that reads as fast as it can."""

    def __init__(self, daemon, stream):
        self.client = Client(daemon.socket).attach(stream=stream, slots=16, micro=MICRO)

    def take(self, most):
        """Takes @most batches. Returns how many arrived."""
        for count in range(most):
            try:
                self.client.next(10.0)
            except TimeoutError:
                return count
        return most


def trainer(place, daemon, stream):
    """Another process, which takes no batches."""
    arguments = [
        "--slots",
        SLOTS,
        "--micro",
        MICRO,
        "--rank",
        0,
        "--world",
        1,
        "--batches",
        10**6,
        "--run",
        f"of-{stream}",  # runs share what is in flight, see turns.h
    ]
    return place.spawn(
        [TOKCTL, "cat", stream, "--socket", daemon.socket, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pipesize=4096,
    )


def drain(process, seconds=0.5):
    """Reads the trainer's pipe for a while, so that the daemon continues to read."""
    os.set_blocking(process.stdout.fileno(), False)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        process.stdout.read()
        time.sleep(0.01)


def slow_of(daemon, stream):
    return [s for s in status(daemon.socket)[0] if s["stream"] == stream and s.get("slow_ms")]


def begin_hang(place, daemon, mount):
    process = trainer(place, daemon, "hung")
    wait_for(
        lambda: any(s["stream"] == "hung" and s["published"] for s in status(daemon.socket)[0])
    )
    mount.hang()
    drain(process)
    return process


def all_served(readers, when):
    taken = {name: reader.take(SERVED) for name, reader in readers.items()}
    assert taken == dict.fromkeys(readers, SERVED), (f"other streams continue {when}", taken)


def check_others(place, daemon, mounts):
    readers = {name: Reader(daemon, name) for name in ("near", "far")}
    all_served(readers, "before the hang")
    process = begin_hang(place, daemon, mounts["hung"])
    assert wait_for(lambda: mounts["hung"].held() >= 16)
    all_served(readers, "while the hang is not known")
    known = wait_for(lambda: slow_of(daemon, "hung"), 6)
    for _ in range(10):
        all_served(readers, "during the hang")
    check_said(daemon, known)
    check_memory(daemon, process)
    injected(45, mounts["hung"].held())
    mounts["hung"].answer()
    assert wait_for(lambda: not status(daemon.socket)[1]["slow_ms"])
    for reader in readers.values():
        reader.client.close()


def check_said(daemon, known):
    mount = os.path.join(os.path.dirname(daemon.socket), "hung")
    assert known and known[0]["slow_ms"] >= 2000, (
        "status --json names the shard, and since when",
        known,
    )
    assert has(known[0]["slow_shard"] if known else "", mount, ".bin"), "a path"
    total = status(daemon.socket)[1]
    assert total.get("slow_ms", 0) >= 2000 and mount in total.get("slow_shard", ""), (
        "so do the totals",
        total,
    )
    others = [s for s in status(daemon.socket)[0] if s["stream"] != "hung"]
    assert others and all(s.get("slow_ms") is None for s in others), (
        "other streams are not reported as slow",
        others,
    )
    code, out, _ = run(TOKCTL, "status", "--socket", daemon.socket)
    assert has(out.decode(), "stream hung waits for", mount), "so does the text of status"
    said = daemon.said("has not answered")
    assert any(has(line, "stream hung", mount) for line in said), "so does the log"


def check_memory(daemon, process):
    """The trainer dies while its reads are in flight."""
    before, rings = status(daemon.socket)[1]["memory_bytes"], daemon.rings()
    mine = next(s["memory_bytes"] for s in status(daemon.socket)[0] if s["stream"] == "hung")
    process.kill()
    process.wait()
    back = wait_for(lambda: status(daemon.socket)[1]["memory_bytes"] == before - mine, 6)
    assert back, (
        "a dead trainer's memory: is free again",
        (before, mine, status(daemon.socket)[1]),
    )
    assert wait_for(lambda: daemon.rings() == rings - 1, 2), (
        "and so is its ring",
        (rings, daemon.rings()),
    )


def check_after(daemon):
    """The stream that hung is served again, correctly."""
    rows = rows_at(daemon.config, "hung", 0, 400)
    witness = Witness(daemon, rows, stream="hung", run="after")
    assert witness.step(100), "every token is right"
    witness.close()


def check_looks(place, daemon, mount):
    """A shard can be read, but statx() on it hangs."""
    process = trainer(place, daemon, "one")
    wait_for(lambda: any(s["stream"] == "one" and s["published"] for s in status(daemon.socket)[0]))
    mount.hang(GETATTR)
    drain(process)
    known = wait_for(lambda: slow_of(daemon, "one"), 6)
    assert known, ("a shard whose statx() hangs is named", (mount.held(), daemon.log()))
    injected(45, mount.held())
    process.kill()
    process.wait()
    mount.answer()
    assert wait_for(lambda: not status(daemon.socket)[1]["slow_ms"])


def check_openings(place, daemon, mount):
    """A stream whose shards cannot be opened, because open() hangs."""
    mount.hang()
    process = trainer(place, daemon, "cold")
    loader = place.spawn(
        [sys.executable, "-c", LOADER, daemon.socket],
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    reader = Reader(daemon, "near")
    known = wait_for(lambda: slow_of(daemon, "cold"), 12)
    assert known, ("a shard whose open() hangs is named", daemon.log())
    said = loader.stderr.readline()
    assert has(
        said, "stream cold: waiting for position 0 since 2 s", " reads shard ", " dataset "
    ), ("a loader says what it waits for", said)
    loader.kill()
    injected(45, mount.held())
    all_served({"near": reader}, "during the openings")
    reader.client.close()
    return process


def check_together(place, daemon, mount, clock):
    """Several streams hang at once. While that is not known, some is left to other streams. The
    data thread's clock is slow meanwhile, so that a busy machine does not know it sooner.
    """
    readers = {name: Reader(daemon, name) for name in ("near", "far")}
    all_served(readers, "before the hangs")
    clock.set(slower=1)
    mount.hang()
    processes = []
    for i in range(TOGETHER):
        held = mount.held()
        processes.append(trainer(place, daemon, f"together{i}"))
        more = wait_for(lambda h=held: mount.held() > h, 10)
        assert more, ("  reads of one more stream hang", i, held)
    all_served(readers, "before the hangs are known")
    assert not status(daemon.socket)[1]["slow_ms"], "the hangs were not known"
    injected(45, mount.held())
    clock.set(slower=0)
    assert wait_for(lambda: status(daemon.socket)[1]["slow_ms"], 6), "with its clock they are"
    for reader in readers.values():
        reader.client.close()
    for process in processes:
        process.kill()
        process.wait()
    mount.answer()
    assert wait_for(lambda: not status(daemon.socket)[1]["slow_ms"])


def check_end(place, daemon, near):
    """SIGTERM: the socket is free at once, and the process ends within 15 s."""
    begin = time.monotonic()
    os.kill(daemon.pid, signal.SIGTERM)
    freed = wait_for(lambda: not os.path.exists(daemon.socket) and time.monotonic() - begin, 5)
    assert freed and freed < 2, ("the socket is free at once", freed)
    heir = Daemon(place, place.config("heir.yaml", streams={"near": near}))
    witness = Witness(heir, rows_at(heir.config, "near", 0, 100), stream="near")
    assert daemon.alive() and witness.step(20), "another daemon serves at the socket meanwhile"
    witness.close()
    code = None
    try:
        code = daemon.process.wait(max(0.1, 15 - (time.monotonic() - begin)))
    except subprocess.TimeoutExpired:
        pass
    took = time.monotonic() - begin
    assert code == 0, ("the daemon ends within 15 s, with 0", (code, took))
    print(f"      it took {took:.1f} s")
    heir.stop()


@pytest.fixture(scope="module")
def mounts(shared):
    made = make_streams(shared)
    yield made[0], made[1]
    for mount in made[0].values():
        mount.close()


@pytest.fixture(scope="module")
def clock(shared):
    return Preload(shared, SLOWER, ["slower"])


@pytest.fixture(scope="module")
def daemon(shared, mounts, clock):
    config = shared.config(streams=mounts[1])
    return Daemon(shared, config, preexec_fn=few_descriptors(DESCRIPTORS), env=clock.env)


def test_other_streams_continue(shared, daemon, mounts):
    check_others(shared, daemon, mounts[0])
    check_after(daemon)


def test_streams_that_hang_together_leave_reads_to_others(shared, daemon, mounts, clock):
    check_together(shared, daemon, mounts[0]["hung"], clock)


def test_shards_whose_statx_hangs_are_named(shared, daemon, mounts):
    check_looks(shared, daemon, mounts[0]["hung"])


def test_shards_whose_open_hangs_are_named_and_the_daemon_stops(shared, daemon, mounts):
    check_openings(shared, daemon, mounts[0]["hung"])
    check_end(shared, daemon, mounts[1]["near"])
