"""Fixtures: a real daemon process with its own shards, socket and state in a temporary directory."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TOKEND_BIN", ROOT / "build" / "bin")).resolve()
PACKAGE = pathlib.Path(os.environ.get("TOKEND_PYTHON", ROOT / "build" / "python")).resolve()

sys.path.insert(0, str(PACKAGE))

STREAMS = """\
streams:
  train:
    seed: {seed}
    seq_len: 64
    datasets:
      - {{name: web, path: web, weight: 0.7}}
      - {{name: code, path: code.bin, weight: 0.3, shuffle: block, block: 8, group: 4}}
  finite:
    seed: 7
    seq_len: 64
    epochs: 1
    datasets:
      - {{name: code, path: code.bin}}
  whole:
    seed: 7
    seq_len: 64
    extra: 0
    datasets:
      - {{name: code, path: code.bin}}
  wide:
    seed: 7
    seq_len: 64
    datasets:
      - {{name: wide, path: wide.bin, dtype: u32}}
  ahead:
    seed: 7
    seq_len: 64
    extra: 3
    datasets:
      - {{name: code, path: code.bin}}
"""


def write_shards(directory):
    """Shards of every kind the streams need, by name; u16 but for wide.bin."""
    random = numpy.random.default_rng(1)
    shards = {
        "web/a.bin": random.integers(0, 50000, 60_000).astype(numpy.uint16),
        "web/b.bin": random.integers(0, 50000, 41_234).astype(numpy.uint16),
        "code.bin": random.integers(0, 50000, 30_001).astype(numpy.uint16),
        "wide.bin": random.integers(0, 2**32, 20_000).astype(numpy.uint32),
    }
    for name, tokens in shards.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        tokens.tofile(path)
    return shards


def wait_until(true, what, seconds=20):
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up, f"{what} did not happen within {seconds} s"
        time.sleep(0.005)


class Daemon:
    """tokend over a directory of its own. It is killed, and its directory removed, at the end of the test."""

    def __init__(self, directory):
        self.directory = directory
        self.config = directory / "tokend.yaml"
        self.socket = str(directory / "socket")
        self.shards = write_shards(directory)
        self.process = None
        self.configure()

    def configure(self, seed=42):
        (self.directory / "state").mkdir(exist_ok=True)
        self.config.write_text(
            f"socket: {self.socket}\nstate_dir: {self.directory}/state\nmemory: 64MiB\n"
            + STREAMS.format(seed=seed)
        )

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(self.socket) == 0

    def start(self):
        log = open(self.directory / "log", "a")
        self.process = subprocess.Popen([BIN / "tokend", "-c", self.config], stdout=log, stderr=log)
        log.close()
        wait_until(lambda: self.answers() or self.process.poll() is not None, "the daemon's start")
        assert self.process.poll() is None, (self.directory / "log").read_text()
        return self

    def signal(self, number):
        self.process.send_signal(number)

    def freeze(self):
        """Stops it in its tracks, and returns when every thread of it stands."""
        self.signal(signal.SIGSTOP)
        threads = f"/proc/{self.process.pid}/task"

        def state(thread):
            with open(f"{threads}/{thread}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0]

        wait_until(
            lambda: all(state(thread) == "T" for thread in os.listdir(threads)),
            "the daemon's standstill",
        )

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(20) == 0

    def tokctl(self, *arguments):
        done = subprocess.run(
            [BIN / "tokctl", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def plan(self, stream, start, count, cursor=None):
        """The order as tokctl computes it without the daemon."""
        more = []
        if cursor is not None:
            path = self.directory / "plan.cursor"
            path.write_bytes(cursor)
            more = ["--cursor", path]
        return self.tokctl(
            "plan", "-c", self.config, stream, "--from", start, "--count", count, "--json", *more
        )

    def tokens(self, row, n):
        """What a row of plan() holds, read with numpy."""
        name = row["shard"] if row["shard"] in self.shards else f"{row['dataset']}/{row['shard']}"
        return self.shards[name][row["offset"] : row["offset"] + n].astype(numpy.int64)


def socket_directory():
    """A short one: a socket's path has at most 107 bytes."""
    return pathlib.Path(tempfile.mkdtemp(prefix="tokend-test-", dir="/tmp"))


@pytest.fixture
def directory():
    path = socket_directory()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def daemon(directory):
    d = Daemon(directory).start()
    yield d
    if d.process.poll() is None:
        d.signal(signal.SIGCONT)
        d.kill()


@contextlib.contextmanager
def another_daemon(seed=42):
    """Of another node, as it were."""
    directory = socket_directory()
    other = Daemon(directory)
    other.configure(seed=seed)
    try:
        yield other.start()
    finally:
        other.kill()
        shutil.rmtree(directory)


def subprocess_environment(**more):
    return {**os.environ, "PYTHONPATH": str(PACKAGE), "TOKEND_BIN": str(BIN), **more}
