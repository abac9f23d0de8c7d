"""A daemon in a cgroup with less memory than `memory:`: it uses what the cgroup allows, refuses
more, and is not killed.
"""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from lib import Client, Daemon, Refused, datasets, status, wait_for, with_parent
from lib.injected import injected

LIMIT = 256 << 20
RING = {"micro": 4096, "slots": 32}  # about 18 MiB


class Group:
    """A child of our own memory cgroup, of version 1 or 2."""

    def __init__(self, limit=LIMIT):
        errors = ["no memory controller is mounted"]
        for directory, file in self.places():
            try:
                os.mkdir(directory)
                with open(f"{directory}/{file}", "w") as f:
                    f.write(str(limit))
                self.path, self.procs = directory, f"{directory}/cgroup.procs"
                return
            except OSError as e:
                errors.append(f"{directory}: {e.strerror}")
                if os.path.isdir(directory):
                    os.rmdir(directory)
        raise RuntimeError(errors[-1])

    @staticmethod
    def places():
        """Where a group may be made, and the name of its limit."""
        with open("/proc/self/cgroup") as file:
            own = {controllers: path for _, controllers, path in map(split_group, file)}
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" - ") for line in file if " - cgroup" in line]
        for fields, tail in mounts:
            kind, _, options = tail.split()
            for controllers, path in own.items():
                names = controllers.split(",")
                at = f"{fields.split()[4]}{path.rstrip('/')}/tokend-test-{os.getpid()}"
                if kind == "cgroup2" and not controllers:
                    yield at, "memory.max"
                if kind == "cgroup" and "memory" in names and "memory" in options.split(","):
                    yield at, "memory.limit_in_bytes"

    def enter(self):
        with_parent()
        with open(self.procs, "w") as f:
            f.write(str(os.getpid()))

    def kills(self):
        """In one of two files: version 1 has others than 2."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(FileNotFoundError), open(f"{self.path}/{name}") as file:
                return int(re.search(r"^oom_kill (\d+)", file.read(), re.M)[1])
        return None

    def remove(self):
        wait_for(lambda: not open(self.procs).read(), 5)
        os.rmdir(self.path)


def split_group(line):
    return line.strip().split(":", 2)


EAT = (
    "import sys; a = bytearray(int(sys.argv[1])); a[::4096] = b'x' * len(a[::4096]); "
    "print('full', flush=True); sys.stdin.read()"
)


@pytest.fixture
def group():
    try:
        made = Group()
    except (OSError, RuntimeError) as error:
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

    # Another process of the group takes half of the memory.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", EAT, str(120 << 20)]
    eater = place.spawn(command, preexec_fn=group.enter, **pipes)
    assert eater.stdout.readline() == b"full\n"
    clients, refused = attach_all(daemon)
    assert 1 <= len(clients) <= 7, "fewer sessions attach"
    assert refused["passing"] == 1 and "cgroup" in refused["text"], refused
    assert (group.kills(), daemon.alive(), eater.poll()) == (0, True, None)
    injected(47)
    eater.kill()
    eater.wait()
    assert daemon.stop() == 0
