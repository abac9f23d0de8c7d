"""systemd's watchdog is fed only while the data thread runs. The test stops that thread with
ptrace.
"""

import contextlib
import ctypes
import os
import socket
import time

import pytest

from lib import Client, Daemon, datasets, status, wait_for
from lib.injected import injected
from lib.web import Web

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
INTERVAL_S = 1  # a third of WATCHDOG_USEC

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid):
    if libc.ptrace(request, tid, 0, 0) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def threads(pid):
    """{tid: name} of all threads except the first, which is the control thread."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm") as f:
            found[int(tid)] = f.read().strip()
    del found[pid]
    return found


@contextlib.contextmanager
def stopped(tids):
    for tid in tids:
        ptrace(PTRACE_SEIZE, tid)
        ptrace(PTRACE_INTERRUPT, tid)
        os.waitpid(tid, WALL)
    try:
        yield
    finally:
        for tid in tids:
            ptrace(PTRACE_DETACH, tid)


class Manager:
    """systemd's side of the notify socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)

    def fed(self, seconds):
        """How often the watchdog is fed within @seconds."""
        until, count = time.monotonic() + seconds, 0
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            with contextlib.suppress(TimeoutError):
                count += self.socket.recv(4096) == b"WATCHDOG=1"
        return count


def test_watchdog_is_fed_while_the_data_thread_runs(place):
    place.shard("web/a.bin", 30_000)
    manager = Manager(place.file("notify.sock"))
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    config = place.config(streams={"train": stream})

    environment = {
        **os.environ,
        "NOTIFY_SOCKET": manager.socket.getsockname(),
        "WATCHDOG_USEC": str(int(3e6 * INTERVAL_S)),
    }
    environment.pop("WATCHDOG_PID", None)
    daemon = Daemon(place, config, env=environment)
    web = Web(place, daemon.socket)
    health = lambda path: web.ask(path)[0].status
    assert manager.fed(4 * INTERVAL_S + 1) >= 3, "the watchdog of an idle daemon is fed"
    others = threads(daemon.pid)
    data = [tid for tid, name in others.items() if name == "tokend-data"]
    try:
        with stopped(data):
            manager.fed(2 * INTERVAL_S)
            assert manager.fed(5 * INTERVAL_S) == 0, "the data thread is stopped"
            assert wait_for(lambda: status(daemon.socket)), "although the control thread answers"
            assert wait_for(lambda: (health("/healthz"), health("/readyz")) == (503, 503))
        injected(52)
    except PermissionError as e:
        pytest.skip(f"no thread can be stopped here: {e}")
    assert manager.fed(4 * INTERVAL_S + 1) >= 2, "the data thread continues"
    assert wait_for(lambda: (health("/healthz"), health("/readyz")) == (200, 200))
    with stopped([tid for tid in threads(daemon.pid) if tid not in data]):
        manager.fed(2 * INTERVAL_S)
        assert manager.fed(4 * INTERVAL_S + 1) >= 3, "others, which may wait for storage"
    client = Client(daemon.socket).attach()
    with stopped([daemon.pid]):
        manager.fed(INTERVAL_S)
        assert manager.fed(3 * INTERVAL_S) == 0, "the control thread is stopped"
        injected(8)
        assert [client.next() is not None for _ in range(client.slots)], "what is published"
    assert wait_for(lambda: manager.fed(INTERVAL_S)), "it continues"
    client.close()
