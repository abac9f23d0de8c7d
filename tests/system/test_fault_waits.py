"""One side waits for the other: for a trainer that hangs, for ever; for a daemon that is gone, with
pauses that grow and differ between ranks.
"""

import re
import signal
import urllib.request

import pytest

from lib import Daemon, Witness, datasets, free_port, rank_rows, rows_at, status, wait_for
from lib.cat import Cat
from lib.injected import injected
from lib.preload import Preload

BATCHES, MICRO, WORLD = 4000, 4, 2
HANG_S = 11  # longer than any deadline of a connection
TRIES = 18

CONNECTS = r"""
#include <sys/socket.h>
#include <time.h>

/* TRIES connects so far; their times follow. */
int connect(int fd, const struct sockaddr *to, socklen_t n)
{
	static int (*next)(int, const struct sockaddr *, socklen_t);
	struct timespec now;

	if (!next)
		next = dlsym(RTLD_NEXT, "connect");
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (words[TRIES] < 500)
		words[++words[TRIES]] = now.tv_sec * 1000000000 + now.tv_nsec;
	return next(fd, to, n);
}
"""


@pytest.fixture
def metrics():
    return free_port()


@pytest.fixture
def daemon(place, metrics):
    place.shard("web/a.bin", 200_000)
    stream = {"seed": 3, "seq_len": 128, "datasets": datasets("web")}
    config = place.config(
        streams={"train": stream}, metrics=f"127.0.0.1:{metrics}", metrics_sessions=True
    )
    return Daemon(place, config)


def full_seconds(port, rank):
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    found = re.search(rf'^tokend_session_full_seconds{{.*rank="{rank}".*}} (\S+)$', page, re.M)
    return float(found[1])


def test_a_trainer_that_hangs_is_waited_for(place, daemon, metrics):
    rows = rows_at(daemon.config, "train", 0, BATCHES * MICRO * WORLD)
    hung = Cat(place, daemon, 0, BATCHES)
    assert hung.reads()
    hung.process.send_signal(signal.SIGSTOP)
    other = Witness(daemon, rows, rank=1, world=WORLD, run="r", micro=MICRO)

    def hangs():
        other.step(5)
        return full_seconds(metrics, 0) > HANG_S

    assert wait_for(hangs, 2 * HANG_S, pause=0.1), "a metric says for how long"
    injected(3)
    assert other.wrong == 0 and other.checked > 100, "the other rank did not notice"
    sessions, _ = status(daemon.socket)
    about = {s["rank"]: s for s in sessions}
    assert about[0]["pid"] == hung.process.pid, "it was not thrown out"
    assert about[0]["full_ms"] > HANG_S * 1000, "status says it too"
    assert about[1]["released"] > about[0]["released"] + 50, "while the other one progresses"
    assert about[1]["full_ms"] < about[0]["full_ms"], "whose ring is full at most moments, too"
    published, released = about[0]["published"], about[0]["released"]
    assert published - released == 4, "backpressure: its ring is full"
    other.step(200)
    hung_now = next(s for s in status(daemon.socket)[0] if s["rank"] == 0)
    assert hung_now["published"] == published, "and no more is read"
    hung.process.send_signal(signal.SIGCONT)
    hung.drain()
    code, out, err = hung.end()
    assert (code, err) == (0, "")
    assert out == rank_rows(rows, 0, WORLD, MICRO).tobytes(), "nothing was skipped for it"
    other.close()
    assert daemon.stop() == 0


def test_ranks_look_for_their_daemon_with_growing_pauses(place, daemon):
    """Up to 250 ms, and at different times: 10,000 ranks must not come at once. The simulator
    checks that the first pauses are short, because a busy machine makes them longer.
    """
    looks, ranks = [], []
    for rank in range(WORLD):
        looks.append(Preload(place, CONNECTS, ["tries"], f"connects{rank}"))
        ranks.append(Cat(place, daemon, rank, BATCHES, env=looks[rank].env))
    assert all(rank.reads() for rank in ranks)
    assert [look.get("tries") for look in looks] == [1, 1], "they have looked for it once"
    daemon.kill()
    injected(5)
    for rank in ranks:
        rank.drain()

    def gaps(rank):
        times = [looks[rank].words[i + 1] for i in range(looks[rank].get("tries"))]
        return [(b - a) / 1e6 for a, b in zip(times[1:], times[2:])]

    assert wait_for(lambda: all(len(gaps(rank)) >= TRIES for rank in range(WORLD)))
    daemon.start()
    for rank in range(WORLD):
        pauses = gaps(rank)
        assert all(p > 120 for p in pauses[9:-2]), "after 125 to 250 ms"
        assert len(pauses) <= 9 + sum(pauses) / 120, "and no more often"
        assert max(pauses[9:-2]) - min(pauses[9:-2]) > 20, "at random, so ranks differ"
    rows = rows_at(daemon.config, "train", 0, BATCHES * MICRO * WORLD)
    for rank, cat in enumerate(ranks):
        code, out, err = cat.end()
        assert (code, err) == (0, ""), "nothing is said"
        assert out == rank_rows(rows, rank, WORLD, MICRO).tobytes(), "the bytes are the same"
    assert daemon.stop() == 0
