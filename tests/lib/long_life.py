"""A daemon that serves one trainer in C at full speed. Memory, descriptors and threads of both are
sampled.

    life = LongLife(place, begin=0, compressed=True)
    totals = life.run(seconds=60)      # asserts that all of them stay flat
"""

import json
import os
import subprocess
import time
from pathlib import Path

import numpy

from .daemon import Daemon, status
from .place import datasets
from .process import REPO, child_environment

TOKENS = 1 << 20  # in the only shard; windows of one token
SLOTS = 1024
GROWTH_KIB = 256  # of a process, after the first third of its batches


def look(pid):
    """(RSS in KiB, descriptors, threads) of a process; None if it has ended. io_uring's workers
    are the kernel's: there are as many as reads that block, so none is counted.
    """
    try:
        field = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").open())
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
        threads = sum(not name.startswith("iou-wrk-") for name in names)
        return int(field["VmRSS"].split()[0]), fds, threads
    except (FileNotFoundError, KeyError, ProcessLookupError):
        return None


class LongLife:
    def __init__(self, place, begin, compressed):
        """@compressed: rows come from a decoded frame, three times as fast as from a plain shard,
        of which each row is a read.
        """
        self.place, self.begin = place, begin
        shard = place.file("long/a.bin")
        (numpy.arange(TOKENS) % 50000).astype("<u2").tofile(shard)
        if compressed:
            subprocess.run(["zstd", "-q", "--rm", shard], check=True)
        about = {"seed": 1, "seq_len": 1, "extra": 0}
        about["datasets"] = datasets("long", shuffle="none")
        self.daemon = Daemon(place, place.config(streams={"train": about}))

    def run(self, seconds, batches=1 << 62):
        trainer = self.place.spawn(
            [REPO / "build/gcc/check/long-life", self.daemon.socket, "train"]
            + [str(self.begin), str(seconds), str(batches)],
            env=child_environment(WINDOWS=str(TOKENS)),
            stdout=subprocess.PIPE,
            stderr=open(self.place.file("trainer.log"), "wb"),
            text=True,
        )
        samples, last, due = [], None, 0.0
        for line in trainer.stdout:
            last = json.loads(line)
            if time.monotonic() >= due and trainer.poll() is None:
                samples.append((look(self.daemon.pid), look(trainer.pid), last))
                self._compare()
                due = time.monotonic() + (0 if len(samples) < 20 else 0.5)
        code = trainer.wait()
        assert code == 0, (code, open(self.place.file("trainer.log")).read())
        assert last["position"] == self.begin + last["batches"], "batches and position agree"
        assert last["lost_wakes"] == 0, "no wake-up was lost"
        assert last["reattached"] == 0, "the daemon was never lost"
        return {**last, **self._flat(samples)}

    def _compare(self):
        """The daemon's counters between themselves."""
        sessions, _ = status(self.daemon.socket)
        for s in sessions:
            assert 0 <= s["published"] - s["released"] <= SLOTS == s["slots"], s
            at = s["position"] - self.begin
            assert s["released"] <= at <= s["published"] + SLOTS, (s, self.begin)

    @staticmethod
    def _flat(samples):
        """Asserts that nothing grows after the first third of the batches."""
        third = samples[-1][2]["batches"] / 3
        early = sum(batches["batches"] <= third for _, _, batches in samples)
        assert early >= 3 and len(samples) >= early + 6, ("too few samples", samples)
        totals = {}
        for which, name in enumerate(("daemon", "trainer")):
            seen = numpy.array([s[which] for s in samples if s[which]])
            warm, rest = seen[:early], seen[early:]
            grown = rest[:, 0].max() - warm[:, 0].max()
            assert grown <= GROWTH_KIB, (f"RSS of the {name} grew by {grown} KiB", seen[:, 0])
            # the daemon may not have closed the connection of the last status
            assert rest[:, 1].max() - warm[:, 1].max() <= 1, (f"fds of the {name}", seen[:, 1])
            assert rest[:, 2].max() <= warm[:, 2].max(), (f"threads of the {name}", seen[:, 2])
            ends = [[int(x) for x in row] for row in (warm[-1], seen[-1])]
            totals[f"{name}: KiB, fds, threads"] = ends
        return totals
