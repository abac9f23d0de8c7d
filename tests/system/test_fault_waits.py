"""A daemon waits for a trainer that hangs, for ever; metrics and status say for how long."""

import re
import signal

from lib import Daemon, Witness, datasets, rank_rows, rows_at, status, wait_for
from lib.cat import Cat
from lib.injected import injected
from lib.web import metrics

BATCHES, MICRO, WORLD = 4000, 4, 2
HANG_S = 11  # longer than any deadline of a connection


def full_seconds(daemon, rank):
    page = metrics(daemon.socket, "--sessions")
    found = re.search(rf'^tokend_session_full_seconds{{.*rank="{rank}".*}} (\S+)$', page, re.M)
    return float(found[1])


def test_a_trainer_that_hangs_is_waited_for(place):
    place.shard("web/a.bin", 200_000)
    stream = {"seed": 3, "seq_len": 128, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    rows = rows_at(daemon.config, "train", 0, BATCHES * MICRO * WORLD)
    hung = Cat(place, daemon, 0, BATCHES)
    assert hung.reads()
    hung.process.send_signal(signal.SIGSTOP)
    other = Witness(daemon, rows, rank=1, world=WORLD, run="r", micro=MICRO)

    def hangs():
        other.step(10)
        return full_seconds(daemon, 0) > HANG_S

    assert wait_for(hangs, 2 * HANG_S, pause=0.1), "a metric says for how long"
    injected(3)
    assert other.wrong == 0 and other.checked > 100, "the other rank did not notice"
    sessions, _ = status(daemon.socket)
    about = {s["rank"]: s for s in sessions}
    assert about[0]["pid"] == hung.process.pid, "it was not thrown out"
    assert about[0]["full_ms"] > HANG_S * 1000, "status says it too"
    assert about[1]["released"] > about[0]["released"] + 50, "while the other one progresses"
    assert 2 * about[1]["full_ms"] < about[0]["full_ms"], "its ring is full at most moments, too"
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
