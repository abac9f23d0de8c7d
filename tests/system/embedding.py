"""A config without a daemon, and what starts for it: for the tests of private daemons."""

import contextlib
import glob
import os
import signal
import subprocess
import sys

import numpy

from lib import BIN, REPO, datasets, rank_rows, rows_at, wait_for

MICRO, SEQ = 2, 64

# A rank: reads batches, prints a line after each, and saves what it read.
TRAINER = """
import sys, time, numpy, tokend

config, rank, world, batches, pause, keep = sys.argv[1:7]
with tokend.Loader(
    "train",
    2,
    config=config,
    rank=int(rank),
    world=int(world),
    slots=4,
    framework="numpy",
    deadline=60,
) as loader:
    rows = []
    for _ in range(int(batches)):
        batch = next(loader)
        rows.append(numpy.concatenate([batch["input_ids"], batch["labels"][:, -1:]], axis=1))
        print(len(rows), flush=True)
        time.sleep(float(pause))
    numpy.save(keep, numpy.stack(rows))
    print("reattached", loader.stats()["reattached"], flush=True)
    if len(sys.argv) > 7:
        print(loader.checkpoint(sys.argv[7]), flush=True)
"""


def programs(directory, starts="/dev/null"):
    """Makes a $TOKEND_BIN. Its tokend adds its pid to @starts, and lingers for $LINGER seconds."""
    with open(f"{directory}/tokend", "w") as script:
        script.write(
            f'#!/bin/sh\necho $$ >>{starts}\nexec {BIN}/tokend "$@" ${{LINGER:+--linger $LINGER}}\n'
        )
    os.chmod(f"{directory}/tokend", 0o755)
    os.symlink(f"{BIN}/tokctl", f"{directory}/tokctl")
    return directory


class Scene:
    """Shards, a config, a directory for the sockets, and a tokend that logs each start."""

    def __init__(self, place, name, **keys):
        self.place, self.name = place, name
        place.shard(f"{name}/web/a.bin", 60_000)
        place.shard(f"{name}/code/a.bin", 40_000)
        both = datasets("web", "code")
        streams = {"train": {"seed": 3, "seq_len": SEQ, "vocab": 1 << 16, "datasets": both}}
        self.config = place.config(
            f"{name}/tokend.yaml", **{"memory": 64 << 20, "streams": streams, **keys}
        )
        self.runtime = place.file(name, "run", "x")[:-2]
        self.starts_path = place.file(name, "starts")
        open(self.starts_path, "w").close()
        self.bin = programs(place.file(name, "bin", "x")[:-2], self.starts_path)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.environ.get("PYTHONPATH", f"{REPO}/build/python"),
            "TOKEND_BIN": self.bin,
            "XDG_RUNTIME_DIR": self.runtime,
            "HOME": place.file(name, "home", "x")[:-2],
        }
        for name in ("TOKEND_SOCKET", "XDG_STATE_HOME"):
            self.environment.pop(name, None)

    def start(
        self, rank=0, world=1, batches=10, linger=60, pause=0.0, *more, program=TRAINER, **keys
    ):
        keep = self.place.file(self.name, f"rank{rank}.npy")
        arguments = [self.config, rank, world, batches, pause, keep, *more]
        rank = self.place.spawn(
            [sys.executable, "-c", program, *map(str, arguments)],
            env={**self.environment, "LINGER": str(linger)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **keys,
        )
        rank.keep = keep
        return rank

    def starts(self):
        with open(self.starts_path) as pids:
            return [int(pid) for pid in pids]

    def files(self):
        return sorted(os.path.basename(path) for path in glob.glob(f"{self.runtime}/tokend/*"))

    def right(self, ranks, batches):
        """Did all ranks read their parts of the order?"""
        world = len(ranks)
        rows = rows_at(self.config, "train", 0, world * batches * MICRO)
        return all(
            numpy.array_equal(numpy.load(rank.keep), rank_rows(rows, r, world, MICRO))
            for r, rank in enumerate(ranks)
        )

    def end(self):
        """Ends the daemons that still linger."""
        for pid in self.starts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not self.files())


def finish(name, ranks):
    """Waits for the ranks, which must end with 0 and print no error. Returns their output lines."""
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [(rank.returncode, err) for rank, (_, err) in zip(ranks, said, strict=True)] == [
        (0, "")
    ] * len(ranks), name
    return [out.splitlines() for out, _ in said]
