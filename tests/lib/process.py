"""The programs under test, and processes that a test starts."""

import ctypes
import glob
import os
import pathlib
import random
import resource
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
_reserved = []  # sockets of free_port()


def with_parent():
    """In a forked child: it is killed when the thread that forked it ends. Programs start without
    it: a preexec_fn makes Python copy its memory map, which takes milliseconds once torch is in it.
    tests/run kills what a test leaves.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(*arguments, **keys):
    """Runs a command; returns its exit code, stdout and stderr."""
    keys.setdefault("timeout", 60)
    done = subprocess.run([str(a) for a in arguments], capture_output=True, **keys)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def few_descriptors(count):
    """For preexec_fn: with_parent(), and a limit of open descriptors."""

    def limit():
        with_parent()
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

    return limit


def free_port():
    """A TCP port for a daemon. Until this process ends, no other test gets it: an abstract socket
    reserves it. The kernel takes ports for others from another range.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = max(20_000, int(file.read().split()[0]))
    while True:
        port = random.SystemRandom().randrange(10_000, end)
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0tokend-test-port-{port}")
            with socket.create_server(("127.0.0.1", port)):
                _reserved.append(reserved)
                return port
        except OSError:
            reserved.close()


def children(process):
    """The pids of its threads' children, zombies too."""
    threads = sorted(glob.glob(f"/proc/{process.pid}/task/*/children"))
    return [int(number) for path in threads for number in open(path).read().split()]


def child_environment(**more):
    """The environment of a process that imports tokend and this library."""
    return {
        **os.environ,
        "PYTHONPATH": f"{PACKAGE}:{TESTS}:{TESTS}/python",
        "TOKEND_BIN": str(BIN),
        **more,
    }
