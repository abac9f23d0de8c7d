"""The programs under test, and processes that a test starts."""

import ctypes
import os
import pathlib
import signal
import socket
import subprocess

REPO = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TOKEND_BIN") or REPO / "build/bin").resolve()
PACKAGE = pathlib.Path(os.environ.get("TOKEND_PYTHON") or REPO / "build/python").resolve()
TESTS = REPO / "tests"
TOKEND = str(BIN / "tokend")
TOKCTL = str(BIN / "tokctl")

_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


def with_parent():
    """For preexec_fn: the child is killed when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(*arguments, **keys):
    """Runs a command; returns its exit code, stdout and stderr."""
    keys.setdefault("timeout", 60)
    done = subprocess.run(
        [str(a) for a in arguments], capture_output=True, preexec_fn=with_parent, **keys
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def child_environment(**more):
    """The environment of a process that imports tokend and this library."""
    return {
        **os.environ,
        "PYTHONPATH": f"{PACKAGE}:{TESTS}:{TESTS}/python",
        "TOKEND_BIN": str(BIN),
        **more,
    }
