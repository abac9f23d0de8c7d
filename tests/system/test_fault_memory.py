"""The daemon runs out of memory: each of its allocations fails in turn, in every thread. It refuses
a client or closes its connection, but it does not crash, and other sessions read on.
"""

import contextlib
import os
import signal

import numpy
import pytest

from lib import (
    TOKCTL,
    Client,
    Closed,
    Daemon,
    Refused,
    Witness,
    datasets,
    few_descriptors,
    rows_at,
    run,
    status,
    wait_for,
)
from lib.injected import injected
from lib.preload import Preload
from lib.shard_writers import arrow, npy, put, raw, seekable

FAILING = r"""
#include <errno.h>
#include <string.h>

/* Counts an allocation. True: it fails. FAIL: 0: none fails; n: the n-th from now; below 0: all. */
static int fails(void)
{
	if (!words)
		return 0;
	words[CALLS]++;
	int64_t left = words[FAIL];

	while (left > 0 && !atomic_compare_exchange_weak(&words[FAIL], &left, left - 1))
		;
	if (left == 0 || left > 1)
		return 0;
	words[FAILED]++;
	errno = ENOMEM;
	return 1;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return fails() ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return fails() ? NULL : __libc_memalign(a, n); }

int posix_memalign(void **to, size_t a, size_t n)
{
	void *p = fails() ? NULL : __libc_memalign(a, n);

	if (p)
		*to = p;
	return p ? 0 : ENOMEM;
}
"""
MICRO = 2


@pytest.fixture
def memory(place):
    return Preload(place, FAILING, ["fail", "failed", "calls"])


@pytest.fixture
def daemon(place, memory):
    for number in range(8):
        place.shard(f"web/{number}.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    return Daemon(place, place.config(streams={"train": stream}), env=memory.env)


def visit(daemon, rows, number):
    """A whole session: it attaches, reads, saves, asks for the status. Returns how it ended, or
    "wrong" if it got a wrong batch.
    """
    client = None
    try:
        client = Client(daemon.socket)
        client.attach(micro=MICRO, run=f"run{number}")
        for at in range(0, 12 * MICRO, MICRO):
            if (client.next() != rows[at : at + MICRO]).any():
                return "wrong"
        client.ask(op="checkpoint", tag="kept", cursor=client.feed["cursor"])
        client.ask(op="status", after=0)
        return "served"
    except (Refused, Closed, ConnectionError) as end:
        return type(end).__name__
    finally:
        if client:
            client.close()


def test_each_allocation_fails_once(daemon, memory, place):
    rows = rows_at(daemon.config, "train", 0, 20_000)
    witness = Witness(daemon, rows)
    witness.step()
    assert visit(daemon, rows, 0) == "served"
    wait_for(lambda: status(daemon.socket)[1]["sessions"] == 1)
    taken = status(daemon.socket)[1]["memory_bytes"], daemon.settled_fds()
    ends, number = {}, 0
    while number < 400 and ends.get("in a row", 0) < 20:
        number += 1
        before = memory.get("failed")
        memory.set(fail=number)
        end = visit(daemon, rows, number)
        failed = memory.get("failed") - before
        memory.set(fail=0)
        assert daemon.alive(), (f"allocation {number}: the daemon lives", daemon.log()[-2000:])
        assert end != "wrong" and witness.step(), f"allocation {number}: no batch is wrong"
        ends[end] = ends.get(end, 0) + 1
        ends["in a row"] = 0 if failed else ends.get("in a row", 0) + 1
    injected(21, memory.get("failed"))
    assert memory.get("failed") > 30, ("allocations of every kind failed", ends)
    memory.set(fail=-1, failed=0)
    ends = [visit(daemon, rows, 500) for _ in range(10)]
    assert "served" not in ends and "wrong" not in ends, ("no memory at all: no session", ends)
    assert witness.step(50), "  those who have one read on"
    memory.set(fail=0)
    injected(21, memory.get("failed"))
    assert wait_for(lambda: status(daemon.socket)[1]["sessions"] == 1), "no session is left over"
    assert status(daemon.socket)[1]["memory_bytes"] == taken[0], "nor ring memory"
    assert wait_for(lambda: daemon.fds() == taken[1]), ("nor descriptors", daemon.fds(), taken)
    assert visit(daemon, rows, 1000) == "served", "with memory again, clients are served"
    witness.close()
    assert daemon.stop() == 0, "exit 0"


KINDS = {
    "frames": seekable(".bin.zst", raw, 8_192),
    "arrow": arrow,
    "npy, compressed": seekable(".npy.zst", npy, 8_192),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_allocation_of_opening_and_decoding_fails_once(place, memory, kind):
    """The read is repeated: no stream stops, and no row is wrong."""
    rng = numpy.random.default_rng(7)
    for number in range(60):
        tokens = rng.integers(0, 30_000, 3_000).astype("<i4" if kind == "arrow" else "<u2")
        put(".bin", raw)(place.file("plain", f"{number:02}"), tokens.astype("<u2"))
        KINDS[kind](place.file("data", f"{number:02}"), tokens)
    stream = {"seed": 3, "seq_len": 64}
    config = lambda name, path: place.config(
        name, streams={"train": {**stream, "datasets": [{"name": "d", "path": path}]}}
    )
    rows = rows_at(config("plain.yaml", "plain"), "train", 0, 20_000)
    daemon = Daemon(
        place, config("data.yaml", "data"), env=memory.env, preexec_fn=few_descriptors(80)
    )
    witness = Witness(daemon, rows)
    assert witness.step(100)
    memory.set(failed=0)
    for number in range(1, 60):
        memory.set(fail=number)
        assert witness.step(20), f"allocation {number}"
    assert memory.get("failed") > 30, "allocations failed"
    injected(21, memory.get("failed"))
    memory.set(fail=-1)
    with contextlib.suppress(Refused):
        witness.step(200)
    assert witness.wrong == 0, "no memory for long: the stream stops, or goes on"
    memory.set(fail=0)
    again = Client(daemon.socket).attach(position=witness.checked * 2)
    assert (again.next() == witness.batches[witness.checked]).all(), "  and then continues"
    again.close()
    witness.close()
    assert daemon.stop() == 0


def test_reading_allocates_nothing(daemon, memory):
    """Everything is allocated at attach and when shards are opened, but for the threads that look
    whether names still lead to the shards.
    """
    threads = lambda: len(os.listdir(f"/proc/{daemon.pid}/task"))
    rows = rows_at(daemon.config, "train", 0, 20_000)
    witness = Witness(daemon, rows)
    witness.step(500)
    before = memory.get("calls") - threads()
    assert witness.step(3000), "the batches are right"
    assert memory.get("calls") - threads() == before, "no allocation while batches are read"
    witness.close()
    assert daemon.stop() == 0, "exit 0"


def test_a_start_without_memory_ends_with_one_line(place, memory):
    """Every fourth allocation of a start fails in turn: the daemon exits with 1, or serves."""
    place.shard("web/0.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "vocab": 50000, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}), env=memory.env)
    calls, refused, wrong = memory.get("calls"), 0, []
    assert daemon.stop() == 0
    for number in range(1, calls, 4):
        memory.set(fail=number, failed=0)
        daemon.start(ready=False)
        wait_for(lambda: "ready at" in daemon.log() or not daemon.alive())
        if daemon.alive():
            assert daemon.stop() == 0, (number, daemon.log())
            continue
        refused += 1
        injected(21, memory.get("failed"))
        if daemon.process.returncode != 1 or daemon.log().count("\n") != 1:
            wrong.append((number, daemon.process.returncode, daemon.log()))
    assert refused > calls // 8, "most of these allocations are needed"
    aborted = [end for end in wrong if end[1:] == (-signal.SIGABRT, "")]
    assert len(aborted) <= 1, "libuv aborts if pthread_atfork() has no memory"
    assert wrong == aborted


def test_a_client_without_memory_ends_with_one_line(place, memory):
    """Each allocation of libtokend and tokctl fails in turn: what is written is right."""
    place.shard("web/0.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    want = rows_at(daemon.config, "train", 0, 200).tobytes()
    command = [TOKCTL, "cat", "train", "--socket", daemon.socket, "--run", "r", "--batches", "50"]
    command += "--rank 0 --world 1 --micro 4".split()
    wrong, number, failed = [], 0, True
    while failed:
        number += 1
        memory.set(fail=number, failed=0)
        code, out, err = run(*command, env=memory.env)
        failed = memory.get("failed")
        injected(21, failed)
        ended = code == 1 and err.count("\n") == 1 and want.startswith(out)
        if not ended and (code, out, err) != (0, want, ""):
            wrong.append((number, code, len(out), err))
    memory.set(fail=0)
    assert not wrong and number > 5, (number, wrong)
    assert daemon.stop() == 0
