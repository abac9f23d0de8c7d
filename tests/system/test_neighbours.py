"""A hostile client of another uid does not starve a polite one: batches of 65,536 rows, and floods
of wake-ups, messages, connects and attaches.

bench/neighbours.py measures what is left to the polite client.
"""

import os
import subprocess
import sys
import time

import pytest

from lib import LONG, REPO, Client, Daemon, datasets, wait_for
from lib.injected import injected
from lib.preload import Preload

HOSTILE = os.path.join(REPO, "bench", "hostile.py")
NOBODY = 65534

UNMAPS = r"""
/* Unmaps of a large ring, and those of them by the control thread, which is the first one. */
int munmap(void *at, size_t n)
{
	NEXT(munmap);
	if (n >= 64 << 20)
		words[gettid() == getpid() ? CONTROL : OTHER]++;
	return next(at, n);
}
"""

READS = r"""
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>

static void seen(size_t n)
{
	char thread[16] = "";

	pthread_getname_np(pthread_self(), thread, sizeof(thread));
	if (strcmp(thread, "tokend-data") == 0 && (int64_t)n > words[LARGEST])
		words[LARGEST] = n;
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	NEXT(pread);
	seen(n);
	return next(fd, to, n, at);
}

ssize_t preadv2(int fd, const struct iovec *to, int n, off_t at, int flags)
{
	NEXT(preadv2);
	seen(to->iov_len);
	return next(fd, to, n, at, flags);
}
"""


def patient(path):
    """A client. Tries again if the socket's queue is full, as libtokend does."""
    until = time.monotonic() + LONG
    while True:
        try:
            return Client(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)


class Hostile:
    """A flood from another process, which has begun when this is entered."""

    def __init__(self, bench, kind, count=0, uid=NOBODY):
        self.command = [sys.executable, HOSTILE, "--socket", bench.daemon.socket]
        self.command += ["--count", str(count), kind]
        self.command += ["--uid", str(uid)] if os.geteuid() == 0 else []
        self.place = bench.place

    def __enter__(self):
        self.process = self.place.spawn(self.command, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.command} did not begin")
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        self.ended = self.process.poll()
        self.process.kill()
        self.process.communicate()
        self.place.children.remove(self.process)


class Bench:
    def __init__(self, place):
        self.place = place
        place.shard("web/a.bin", 2_000_000)
        streams = {"train": {"seed": 3, "seq_len": 512, "datasets": datasets("web")}}
        config = place.config(streams=streams, memory=2 << 30, allow_uids=[NOBODY])
        self.unmaps = Preload(place, UNMAPS, ["control", "other"])
        self.daemon = Daemon(place, config, env=self.unmaps.env)

    def data_thread_woke(self):
        """How often the data thread has waited so far."""
        for task in os.listdir(f"/proc/{self.daemon.pid}/task"):
            about = open(f"/proc/{self.daemon.pid}/task/{task}/status").read()
            if about.startswith("Name:\ttokend-data\n"):
                return int(about.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_clients_without_credit_wait_and_are_served(bench):
    """Clients without credit wait and are served. 40 clients of the flooding user connect during
    the flood; hear() and next() fail for a client that gets no reply or batch.
    """
    with Hostile(bench, "messages", 64):
        clients = [Client(bench.daemon.socket, hello=False) for _ in range(40)]
        for client in clients:
            client.tell(op="hello", version=1, host="late")
        for client in clients:
            client.hear()
        for i, client in enumerate(clients):
            client.attach(run="late", peer=i)
            client.next()
        for client in clients:
            client.close()
    gone = wait_for(lambda: bench.daemon.rings() == 0, LONG)
    assert gone, ("all rings are freed afterwards", bench.daemon.rings())


def test_needless_wakeups_do_not_reach_the_data_thread(bench):
    with Hostile(bench, "wakes", 64):
        client = patient(bench.daemon.socket).attach(run="polite")
        begin, before = time.monotonic(), bench.data_thread_woke()
        for _ in range(200):  # the control thread handles the flood meanwhile
            client.ask(op="describe")
        woke = bench.data_thread_woke() - before
        client.close()
    assert woke < 20 + 10 * (time.monotonic() - begin), ("a few ticks a second", woke)
    injected(46)


def test_large_rows_are_read_in_parts(place):
    """Otherwise a cached row of 2 MB keeps the data thread from all other feeds."""
    place.shard("web/a.bin", 2_000_000)
    reads = Preload(place, READS, ["largest"])
    wide = {"seed": 3, "seq_len": 1_000_000, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": wide}, io="pread"), env=reads.env)
    client = Client(daemon.socket).attach(micro=1, slots=2)
    for _ in range(4):  # the first one opens the file, in another thread
        client.next()
    client.close()
    assert 0 < reads.get("largest") <= 512 << 10


def test_a_large_ring_is_freed_outside_the_control_thread(bench):
    client = Client(bench.daemon.socket).attach(run="large", micro=65536, slots=4)
    bench.unmaps.set(control=0, other=0)
    client.close()
    assert wait_for(lambda: bench.unmaps.get("other") == 1, LONG), "a ring of 268 MB is freed"
    assert bench.unmaps.get("control") == 0


@pytest.fixture(scope="module")
def bench(shared):
    return Bench(shared)


@pytest.mark.parametrize(
    "kind, count, uid",
    [
        ("huge", 0, NOBODY),
        ("wakes", 1000, NOBODY),
        ("messages", 600, NOBODY),
        ("messages", 600, os.geteuid()),
        ("describe", 64, NOBODY),
        ("connects", 16, NOBODY),
        ("attaches", 16, NOBODY),
    ],
)
def test_others_get_batches_and_replies_during_a_flood(bench, kind, count, uid):
    with Hostile(bench, kind, count, uid) as hostile:
        client = patient(bench.daemon.socket).attach(run="polite", slots=4, micro=8)
        for _ in range(100):
            client.ask(op="describe")
            client.next()
        client.close()
    assert hostile.ended is None, "the flood lasted"
    injected(46)
