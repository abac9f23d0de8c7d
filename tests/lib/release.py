"""An older release of tokend, built from this repository's history and kept in build/release/."""

import fcntl
import os
import pathlib
import subprocess

import pytest

from .process import REPO


class Release:
    """The programs and the package of one commit."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.tokend = str(self.path / "build/gcc/bin/tokend")
        self.tokctl = str(self.path / "build/gcc/bin/tokctl")
        self.package = str(self.path / "build/python")


def _make(commit, path):
    """Writes the commit's tree to @path and builds it there."""
    archive = subprocess.check_output(["git", "archive", commit], cwd=REPO)
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", path], input=archive, check=True)
    names = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VARIANT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = ["make", "-s", "-j2", "CFLAGS=-O1", "programs", "python"]
    keys = {"check": True, "env": environment, "stdout": subprocess.DEVNULL}
    subprocess.run(command, cwd=path, **keys)


def release(commit):
    """The release at @commit. Building it takes a minute the first time. Skips the test in a
    shallow clone, which lacks the commit.
    """
    there = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(there, cwd=REPO, capture_output=True).returncode:
        pytest.skip(f"commit {commit} is not in this clone: git fetch --unshallow")
    path = REPO / "build/release" / commit
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = path / "built"
        if not done.exists():
            _make(commit, path)
            done.touch()
    return Release(path)
