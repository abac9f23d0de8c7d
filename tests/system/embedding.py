"""A user's home: shards, a config, directories, a tokend that notes each start, and trainers. For
the tests of private daemons and of the places where sockets and state are.
"""

import contextlib
import ctypes
import glob
import json
import os
import signal
import subprocess
import sys

import numpy

from lib import BIN, TOKCTL, child_environment, datasets, rank_rows, rows_at, wait_for
from lib import with_parent

MICRO, SEQ = 2, 64
NOBODY = 57000 + os.getpid() % 8000  # owns nothing; differs between concurrent tests
STREAM = {"seed": 3, "seq_len": SEQ, "vocab": 1 << 16, "datasets": datasets("web", "code")}

# A rank, in Python and in C: writes its rows to a file, and prints a line after each batch.
LOADER = """
import os, sys, time, numpy, tokend


def unchanged(tokens, position, rng):
    return tokens


if __name__ == "__main__":
    config, rank, world, batches, keep, workers, *tags = sys.argv[1:]
    more = {"transform": unchanged, "workers": int(workers)} if int(workers) else {}
    more |= {"config": config} if config else {}
    keys = {"slots": 4, "framework": "numpy", "deadline": 60, **more}
    with tokend.Loader("train", 2, rank=int(rank), world=int(world), **keys) as loader, open(
        keep, "wb"
    ) as rows:
        print("attached", flush=True)
        if "HOLD" in os.environ:
            sys.stdin.readline()
        for _ in range(int(batches)):
            batch = next(loader)
            row = numpy.concatenate([batch["input_ids"], batch["labels"][:, -1:]], axis=1)
            row.astype("<u2").tofile(rows)
            print(batch["position"][0], flush=True)
            time.sleep(0.003)
        print(loader.stats()["reattached"])
        for tag in tags:
            print(loader.checkpoint(tag))
"""
PROGRAM = BIN.parent / "check/config-trainer"

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_PRIVATE = 0x20000, 1 << 18 | 1 << 14


def as_nobody():
    """For preexec_fn: another user."""
    with_parent()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def alone():
    """For preexec_fn: no daemon of another test is at the default places."""
    with_parent()
    if _libc.unshare(CLONE_NEWNS) or _libc.mount(b"", b"/", None, MS_PRIVATE, None):
        os._exit(77)
    for place in "/run", f"/tmp/tokend-{os.geteuid()}":
        for _ in range(9):  # the last private daemon of another test removes the second
            os.makedirs(place, mode=0o700, exist_ok=True)
            if _libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, b"mode=0700") == 0:
                break
        else:
            os._exit(77)


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
    """@before: what each process does first. @keys: of the config."""

    def __init__(self, place, name="home", before=with_parent, **keys):
        self.place, self.name, self.before = place, name, before
        place.shard(f"{name}/web/a.bin", 60_000)
        place.shard(f"{name}/code/a.bin", 40_000)
        self.config = self.write(**keys)
        self.home, self.runtime = self.directory("user"), self.directory("run")
        self.starts_path = place.file(name, "starts")
        open(self.starts_path, "w").close()
        os.chmod(self.starts_path, 0o666)
        self.bin = programs(self.directory("bin"), self.starts_path)
        places = {"XDG_RUNTIME_DIR": self.runtime, "HOME": self.home, "LINGER": "60"}
        self.environment = {**child_environment(**places), "TOKEND_BIN": self.bin}
        for variable in "TOKEND_SOCKET", "XDG_STATE_HOME":
            self.environment.pop(variable, None)

    def directory(self, name):
        """A new directory, of the user whose processes these are."""
        path = self.place.file(self.name, name, "x")[:-2]
        if self.before is as_nobody:
            os.chown(path, NOBODY, NOBODY)
        return path

    def write(self, file="tokend.yaml", **keys):
        """Writes a config that names neither socket nor state_dir, unless @keys do."""
        path = self.place.file(self.name, file)
        with open(path, "w") as config:
            json.dump({"memory": 64 << 20, "streams": {"train": STREAM}, **keys}, config)
        return path

    def spawn(self, *command, **environment):
        return self.place.spawn(
            [str(part) for part in command],
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=self.before,
        )

    def run(self, *command, **environment):
        """Runs a command; returns its exit code, stdout and stderr."""
        process = self.spawn(*command, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def ctl(self, *arguments, code=0, **environment):
        """tokctl's output, or the line of an error if it must fail with @code."""
        got, out, err = self.run(TOKCTL, *arguments, **environment)
        assert got == code and err.count("\n") == (code != 0), (arguments, got, out, err)
        return err if code else out

    def start(self, rank=0, world=1, batches=10, *tags, workers=0, config=None, **more):
        """Starts a rank in Python. @more: python, its command, and the environment."""
        python = more.pop("python", [sys.executable])
        with open(self.place.file(self.name, "loader.py"), "w") as program:
            program.write(LOADER)
        config = self.config if config is None else config
        keep = self.place.file(self.directory("user"), f"{rank}.rows")
        arguments = config, rank, world, batches, keep, workers, *tags
        trainer = self.spawn(*python, program.name, *arguments, **more)
        trainer.keep = keep
        return trainer

    def start_c(self, rank=0, world=1, batches=10, **environment):
        """Starts a rank in C."""
        keep = self.place.file(self.name, f"{rank}.rows")
        trainer = self.spawn(PROGRAM, self.config, rank, world, batches, keep, **environment)
        trainer.keep = keep
        return trainer

    def starts(self):
        with open(self.starts_path) as pids:
            return [int(pid) for pid in pids]

    def files(self):
        return sorted(os.path.basename(path) for path in glob.glob(f"{self.runtime}/tokend/*"))

    def finish(self, *ranks):
        """Waits for the ranks. Each ends with 0, prints no error, and read its part of the order.
        Returns their output lines.
        """
        said = [rank.communicate(timeout=60) for rank in ranks]
        ends = [(rank.returncode, err) for rank, (_, err) in zip(ranks, said, strict=True)]
        assert ends == [(0, "")] * len(ranks), said
        for number, rank in enumerate(ranks):
            got = numpy.fromfile(rank.keep, "<u2").reshape(-1, MICRO, SEQ + 1)
            rows = rows_at(self.config, "train", 0, got[..., 0].size * len(ranks))
            assert numpy.array_equal(got, rank_rows(rows, number, len(ranks), MICRO))
        return [out.splitlines() for out, _ in said]

    def end(self):
        """Ends the daemons that still linger. They leave no file."""
        for pid in self.starts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert wait_for(lambda: not self.files()), self.files()
