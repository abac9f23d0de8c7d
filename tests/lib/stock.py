"""A daemon with one stream of each kind, for the tests of the Python package."""

import contextlib
import json
import os
import pathlib
import signal
import socket

import numpy

from .daemon import Daemon
from .place import Place
from .process import TOKCTL, run
from .wait import wait_until

CODE = "{name: code, path: code.bin}"
KINDS = {  # of streams: the vocabulary, another key, the datasets
    "train": (
        65536,
        "",
        "{name: web, path: web, weight: 0.7}",
        "{name: code, path: code.bin, weight: 0.3, shuffle: block, block: 8, group: 4}",
    ),
    "finite": (65536, "epochs: 1", CODE),
    "whole": (65536, "extra: 0", CODE),
    "wide": (2**32, "", "{name: wide, path: wide.bin, dtype: u32}"),
    "ahead": (65536, "extra: 3", CODE),
}


def streams(seed):
    """The text of all streams; the seed is that of train."""
    text = "streams:\n"
    for name, (vocab, key, *datasets) in KINDS.items():
        text += f"  {name}:\n    seed: {seed if name == 'train' else 7}\n    seq_len: 64\n"
        text += f"    vocab: {vocab}\n" + (f"    {key}\n" if key else "")
        text += "    datasets:\n" + "".join(f"      - {dataset}\n" for dataset in datasets)
    return text


def write_shards(directory):
    """Writes the shards of all streams; returns {name: tokens}. wide.bin is u32, the others u16."""
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


class StockDaemon(Daemon):
    """A daemon that serves all KINDS. Its shards, config, socket and log are in @directory.

    start() starts it. Some tests restart it from a timer, so it may outlive the thread that starts
    it; the fixture ends it.
    """

    def __init__(self, directory, env=None):
        self.directory, self.place = pathlib.Path(directory), Place()
        self.arguments, self.keys = (), {"env": env}
        self.config = self.directory / "tokend.yaml"
        self.socket = str(self.directory / "socket")
        self.log_path = self.directory / "log"
        self.shards = write_shards(self.directory)
        self.process = None
        self.configure()

    def configure(self, seed=42):
        """Writes the config; the daemon reads it at its next start."""
        (self.directory / "state").mkdir(exist_ok=True)
        self.config.write_text(
            f"socket: {self.socket}\nstate_dir: {self.directory}/state\nmemory: 64MiB\n"
            + streams(seed)
        )

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(self.socket) == 0

    def end(self):
        """Kills it, if it runs, also when it is frozen."""
        if self.process and self.alive():
            self.kill()

    def stop(self):
        assert super().stop() == 0, self.log()

    def signal(self, number):
        self.process.send_signal(number)

    def freeze(self):
        """Sends SIGSTOP, and returns when every thread is stopped."""
        self.signal(signal.SIGSTOP)
        threads = f"/proc/{self.pid}/task"

        def state(thread):
            with open(f"{threads}/{thread}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0]

        wait_until(
            lambda: all(state(thread) == "T" for thread in os.listdir(threads)),
            "the stop of all threads",
        )

    def tokctl(self, *arguments):
        """The output of tokctl, decoded: one JSON object a line."""
        code, out, err = run(TOKCTL, *arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def plan(self, stream, start, count, cursor=None):
        """The rows that `tokctl plan` computes without the daemon."""
        more = []
        if cursor is not None:
            path = self.directory / "plan.cursor"
            path.write_bytes(cursor)
            more = ["--cursor", path]
        return self.tokctl(
            "plan", "-c", self.config, stream, "--from", start, "--count", count, "--json", *more
        )

    def tokens(self, row, n):
        """The tokens of a row of plan(), read with numpy."""
        name = row["shard"] if row["shard"] in self.shards else f"{row['dataset']}/{row['shard']}"
        return self.shards[name][row["offset"] : row["offset"] + n].astype(numpy.int64)


@contextlib.contextmanager
def another_daemon(seed=42):
    """A second started daemon with its own directory, like one on another node."""
    with Place() as place:
        other = StockDaemon(place.path)
        other.configure(seed=seed)
        try:
            yield other.start()
        finally:
            other.end()
