"""A daemon in a cgroup with less memory than `memory:`: it uses what the cgroup allows, refuses
more, and is not killed.
"""

import ctypes
import os
import re
import subprocess
import sys

import pytest

from lib import Client, Daemon, Refused, datasets, status, wait_for, with_parent
from lib.injected import injected

LIMIT = 256 << 20
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18
RING = {"micro": 4096, "slots": 32}  # about 18 MiB


class Group:
    """A child of our own group."""

    def __init__(self, place):
        with open("/proc/self/cgroup") as file:
            (own,) = [line[3:].strip().rstrip("/") for line in file if line.startswith("0::")]
        self.place, self.path = place, f"/sys/fs/cgroup{own}/tokend-test-{os.getpid()}"
        with open(f"/sys/fs/cgroup{own}/cgroup.controllers") as file:
            if "memory" not in file.read():
                raise OSError("no memory controller of version 2")
        os.mkdir(self.path)
        try:
            with open(f"{self.path}/memory.max", "w") as file:
                file.write(str(LIMIT))
        except OSError:
            os.rmdir(self.path)
            raise

    def enter(self):
        with_parent()
        with open(f"{self.path}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))

    def fill(self):
        """Another process of the group takes half of the memory."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", EAT, str(LIMIT // 2)]
        self.eater = self.place.spawn(command, preexec_fn=self.enter, **pipes)
        assert self.eater.stdout.readline() == b"full\n"

    def kills(self):
        with open(f"{self.path}/memory.events") as file:
            return int(re.search(r"^oom_kill (\d+)", file.read(), re.M)[1])

    def remove(self):
        self.eater.kill()
        self.eater.wait()
        wait_for(lambda: not open(f"{self.path}/cgroup.procs").read(), 5)
        os.rmdir(self.path)


class Pretended:
    """Files instead of the kernel's, for machines without a memory controller of version 2."""

    def __init__(self, place):
        self.path = place.file("cgroup", "memory.max").rpartition("/")[0]
        self.put("max", LIMIT)
        self.put("current", 1 << 20)
        if subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
            raise OSError("no mount namespaces")

    def put(self, name, number):
        with open(f"{self.path}/memory.{name}", "w") as file:
            file.write(f"{number}\n")

    def enter(self):
        with_parent()
        libc = ctypes.CDLL(None)
        assert libc.unshare(CLONE_NEWNS) == 0
        assert libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        at = b"/sys/fs/cgroup"
        assert libc.mount(self.path.encode(), at, None, MS_BIND, None) == 0

    def fill(self):
        self.put("current", LIMIT - (40 << 20))

    def kills(self):
        return 0

    def remove(self):
        pass


EAT = (
    "import sys; a = bytearray(int(sys.argv[1])); a[::4096] = b'x' * len(a[::4096]); "
    "print('full', flush=True); sys.stdin.read()"
)


@pytest.fixture(params=[Group, Pretended])
def group(request, place):
    try:
        made = request.param(place)
    except (OSError, ValueError) as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    made.remove()


def attach(daemon, run, **ring):
    """A session, or the error."""
    client = Client(daemon.socket)
    try:
        return client.attach(run=run, **{**RING, **ring}), {}
    except Refused as error:
        client.close()
        return None, error.packet


def attach_all(daemon):
    """([sessions until one is refused], the error)"""
    clients, refused = [], {}
    while not refused and len(clients) < 40:
        client, refused = attach(daemon, f"run{len(clients)}", peer=len(clients))
        clients += [client] if client else []
    return clients, refused


def test_rings_fit_into_the_cgroup(place, group):
    place.shard("web/a.bin", 600_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    daemon = Daemon(place, place.config(streams=streams, memory=1 << 30), preexec_fn=group.enter)
    assert 128 << 20 < status(daemon.socket)[1]["limit_bytes"] < LIMIT
    (said,) = daemon.said("memory:")
    assert str(LIMIT) in said and str(1 << 30) in said

    clients, refused = attach_all(daemon)
    text = refused["text"].replace(",", "")
    assert 5 <= len(clients) <= 13 and refused["passing"] == 1, refused
    numbers = [word for word in text.split() if word.isdigit() and int(word) > 1 << 20]
    assert len(numbers) >= 2 and "cgroup" in text, "both numbers, and the reason"
    injected(47, 2)  # a limit below memory:, and an attach that does not fit
    assert all(c.next() is not None for c in clients)
    clients.pop().close()
    again = wait_for(lambda: attach(daemon, "again")[0], 5)
    assert again, "when one has ended, there is room"
    _, refused = attach(daemon, "large", micro=65536, slots=64)
    assert refused and not refused.get("passing"), "larger than the limit: it never fits"
    for client in [*clients, again]:
        client.close()
    wait_for(lambda: daemon.rings() == 0)

    group.fill()
    clients, refused = attach_all(daemon)
    assert 1 <= len(clients) <= 7 or isinstance(group, Pretended), "fewer sessions attach"
    _, refused = attach(daemon, "more", micro=6144)
    assert refused["passing"] == 1 and "cgroup" in refused["text"], refused
    assert (group.kills(), daemon.alive()) == (0, True)
    injected(47)
