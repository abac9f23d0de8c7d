"""A store goes away under four sessions, two of them local. The local ones continue, a detach does
not wait, filled rings keep serving, and the trainer's own output says what it waits for.
"""

import os
import subprocess
import sys
import threading
import time

import pytest
from jobs import BUCKET, Reader, place_of, stream, windows

from lib import Client, child_environment, status, wait_until
from lib.fault_proxy import Fault
from lib.injected import injected
from lib.store_faults import WINDOW

SEEKS = 100
LOADER = """
import tokend

with tokend.Loader("train", 2, rank=0, world=1, framework="numpy", slots=8, run="python") as loader:
    for step, batch in enumerate(loader, 1):
        print(step, flush=True)
"""


@pytest.fixture(scope="module")
def both(job):
    """A daemon with a stream in the store, and two on the disk."""
    flat, packed = job.place.file("web"), job.place.file("packed", "0.bin.zst")
    subprocess.run(["zstd", "-q", "-f", os.path.join(flat, "0.bin"), "-o", packed], check=True)
    streams = {
        "train": stream(f"lab://{BUCKET}/web/", manifest=job.manifest),
        "flat": stream(flat),
        "zstd": stream(os.path.dirname(packed)),
    }
    daemon = job.daemon(job.config(streams, memory=64 << 20))
    yield daemon
    assert daemon.stop() == 0


class Local(threading.Thread):
    """Counts the batches of a local session."""

    def __init__(self, daemon, name):
        super().__init__(daemon=True)
        self.client = Client(daemon.socket).attach(stream=name, micro=8, slots=8)
        self.taken, self.ending = 0, False
        self.start()

    def run(self):
        while not self.ending:
            self.client.next()
            self.taken += 1

    def goes_on(self):
        enough = self.taken + 1000
        wait_until(lambda: self.taken >= enough, "1,000 batches")

    def end(self):
        self.ending = True
        self.join()
        self.client.close()


def test_a_store_that_is_away(job, proxy, both):
    proxy.inject("hang", Fault(hang=True), 0, windows)
    sessions = [Reader(job, both, micro=2, slots=64, run=run) for run in "ab"]
    for session in sessions:
        session.read(10)
    local = [Local(both, name) for name in ("flat", "zstd")]
    wait_until(lambda: all(half(s.client) for s in sessions), "filled rings")
    away = proxy.injected["hang"]
    proxy.inject("hang", Fault(hang=True), 1 << 30)
    for session in sessions:
        session.read(32, seconds=5)  # of the ring
    wait_until(lambda: proxy.injected["hang"] >= away + 4, "GETs that hang")
    for session in local:
        session.goes_on()
    detached = []
    for _ in range(5):
        waiting = Client(both.socket).attach(stream="train", run="c", position=2000, slots=8)
        begin = time.monotonic()
        waiting.close()
        wait_until(lambda: len(status(both.socket)[0]) == 4, "detach")
        detached.append(time.monotonic() - begin)
    print(f"detached after {[f'{1000 * s:.0f} ms' for s in detached]}, with tokctl status")
    assert min(detached) < 1
    proxy.clear()
    assert both.said("retrying")
    for session in sessions:
        session.read(200)
        session.close()
    for session in local:
        session.end()
    injected(WINDOW + 3, proxy.injected["hang"] - away)


def half(client):
    return client.published() >= client.batch + client.slots // 2


def test_seeks_while_the_store_hangs(job, proxy, both):
    """Each seek is another session. The last one reads, once the store answers."""
    before = proxy.injected["hang"]
    proxy.inject("hang", Fault(hang=True), 1 << 30, windows)
    for i in range(SEEKS):
        client = Client(both.socket).attach(**place_of(3000 + 7 * i), run="seek", slots=8)
        if i % 10 == 0:
            wait_until(lambda: proxy.injected["hang"] > before, "a GET that hangs")
        client.close()
    proxy.clear()
    reader = Reader(job, both, 1000, run="seek", slots=8)
    reader.read(50)
    reader.close()
    wait_until(lambda: status(both.socket)[0] == [], "detach")
    injected(WINDOW + 17, proxy.injected["hang"] - before)


def test_the_trainer_says_what_it_waits_for(job, proxy, both):
    env = child_environment(TOKEND_SOCKET=both.socket)
    trainer = subprocess.Popen(
        [sys.executable, "-u", "-c", LOADER],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    for stream_ in (trainer.stdout, trainer.stderr):
        threading.Thread(target=lambda f=stream_: lines.extend(f), daemon=True).start()
    wait_until(lambda: len(lines) > 20, "batches")
    proxy.inject("503", Fault(status=503, code="SlowDown"), 1 << 30, windows)
    wait_until(lambda: any("503 SlowDown" in line for line in lines), "the warning", 40)
    (warning,) = [line for line in lines if "SlowDown" in line][:1]
    print(warning)
    assert f"{BUCKET}" in warning and "waiting" in warning
    proxy.clear()
    at = len(lines)
    wait_until(lambda: len(lines) > at + 50, "batches", 60)
    trainer.kill()
    trainer.wait()
