"""The log never blocks the daemon, and clients cannot make it grow without limit."""

import fcntl
import os
import re
import select
import sys
import termios
import time

import pytest

from lib import TOKCTL, TOKEND, Client, Daemon, client_of, datasets, has, refusal, run, status
from lib.injected import injected
from lib.wait import LONG, wait_for

FLOOD = 3000
NOBODY = 61234
F_SETPIPE_SZ = 1031


def provoke(path, times):
    """Connects clients that are refused, each with a line in the log."""
    for _ in range(times):
        client = Client(path)
        assert "stream" in refusal(lambda client=client: client.attach(stream="nowhere"))
        client.s.close()


def bytes_waiting(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def read_until(pipe, words, times):
    data = b""
    while data.count(words) < times:
        data += os.read(pipe, 4096)
    return data


def suppressed(log):
    return sum(int(n) for n in re.findall(r"(\d+) more lines about uid 0 were suppressed", log))


def test_a_flood_of_lines_is_limited(place, config):
    daemon = Daemon(place, config)
    begin = time.monotonic()
    provoke(daemon.socket, FLOOD)
    took = time.monotonic() - begin

    def counted():
        return daemon.log().count("refused: stream") + suppressed(daemon.log()) == FLOOD

    assert wait_for(counted), ("written and suppressed ones are all", daemon.log()[-2000:])
    written = daemon.log().count("refused: stream")
    assert written <= 256 + took + 2, ("256 lines, then one a second", written, took)
    injected(49, FLOOD)
    if os.getuid() == 0:
        assert "uid" in refusal(lambda: client_of(daemon, NOBODY))
        assert daemon.said(f"uid {NOBODY} may not connect"), "another user's line is written"
    assert daemon.stop() == 0
    assert has(daemon.log(), "SIGTERM: stopping"), "the last lines are written"


def test_a_full_pipe_does_not_block_the_daemon(place, config):
    """The daemon's stderr is a full pipe that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    filled = os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    daemon = place.spawn([TOKEND, "-c", config], stderr=writer)
    path = place.file("tokend.sock")

    def answers():
        return run(TOKCTL, "status", "--socket", path)[0] == 0

    assert wait_for(answers), "full pipe: the daemon starts"
    provoke(path, 50)
    assert answers(), "full pipe: it still answers"
    assert bytes_waiting(reader) == filled, "full pipe: nothing was written"
    injected(49)
    os.read(reader, filled)
    said = read_until(reader, b"refused: stream", 50).decode()
    assert has(said, "ready at"), "the lines are written once the pipe is read"
    os.write(writer, b"x" * 4096)
    provoke(path, 5)
    begin = time.monotonic()
    daemon.terminate()
    assert daemon.wait(LONG) == 0 and time.monotonic() - begin < 5, "full pipe: it stops"
    os.close(reader)
    os.close(writer)


def test_a_start_loses_no_line_if_its_reader_is_slow(place):
    """The remarks of 600 datasets wait for it in the queue."""
    place.shard("web/a.bin", 30_000)
    many = [{"name": f"d{i}", "path": "web", "dtype": "u16", "part": [0, 0.5]} for i in range(600)]
    data = [*many, {"name": "rest", "path": "web", "dtype": "u16"}]
    streams = {"train": {"seed": 3, "seq_len": 64, "vocab": 65536, "datasets": data}}
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    daemon = place.spawn([TOKEND, "-c", place.config(streams=streams)], stderr=writer)
    os.close(writer)
    said = b""
    while b"ready at" not in said and select.select([reader], [], [], 10)[0]:
        said += os.read(reader, 1024)
        time.sleep(0.002)
    assert said.count(b": windows ") == len(many) and b"were lost" not in said
    injected(49)
    daemon.terminate()
    assert daemon.wait(LONG) == 0
    os.close(reader)


@pytest.fixture
def config(place):
    place.shard("web/a.bin", 30_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "vocab": 50000, "datasets": datasets("web")}}
    return place.config(allow_uids=[1], streams=streams)


def test_start_attach_and_detach_are_one_line_each(place, config):
    daemon = Daemon(place, config)
    sessions, total = status(daemon.socket)
    assert not sessions and total["version"] == run(TOKEND, "--version")[1].decode().split()[-1]
    assert [s["stream"] for s in total["streams"]] == ["train"]
    ready = rf"version {total['version']}, .* digest {total['config_digest']}, 1 stream$"
    assert re.search(ready, daemon.log(), re.M), daemon.log()
    client = Client(daemon.socket).attach(run="r", rank=1, world=2, micro=4)
    for _ in range(10):
        client.next()
    (session,) = status(daemon.socket)[0]
    assert {"waits", "waited_ms"} <= set(session)
    client.close()
    about = rf"pid {os.getpid()} \(uid {os.getuid()}\) %s: stream train, run r, rank 1 of 2"
    attached = about % "attached" + ", micro_batch 4, from position 0\n"
    detached = about % "detached" + r": 40 samples in \d+\.\d s, waited 0\.0 s in 0 waits\n"
    assert wait_for(lambda: "detached" in daemon.log())
    assert len(re.findall(attached, daemon.log())) == 1, daemon.log()
    assert len(re.findall(detached, daemon.log())) == 1, daemon.log()
    assert len(daemon.log().splitlines()) == 3
