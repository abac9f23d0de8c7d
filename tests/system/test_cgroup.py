"""A daemon in a cgroup with less memory than `memory:`: it uses what the cgroup allows, refuses
more, and is not killed.
"""

import os
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
        self.limit = limit
        self.path = self.find()
        self.procs = f"{self.path}/cgroup.procs"

    def find(self):
        errors = ["no memory controller is mounted"]
        for line in open("/proc/self/mountinfo"):
            fields, tail = line.split(" - ")
            kind, _, options = tail.split()
            two = kind == "cgroup2"
            if not two and not (kind == "cgroup" and "memory" in options.split(",")):
                continue
            for own in open("/proc/self/cgroup"):
                number, controllers, path = own.strip().split(":", 2)
                if (number == "0") != two or (not two and "memory" not in controllers.split(",")):
                    continue
                directory = f"{fields.split()[4]}{path.rstrip('/')}/tokend-test-{os.getpid()}"
                try:
                    os.mkdir(directory)
                    with open(
                        f"{directory}/{'memory.max' if two else 'memory.limit_in_bytes'}", "w"
                    ) as f:
                        f.write(str(self.limit))
                    return directory
                except OSError as e:
                    errors.append(f"{directory}: {e.strerror}")
                    if os.path.isdir(directory):
                        os.rmdir(directory)
        raise RuntimeError(errors[-1])

    def enter(self):
        with_parent()
        with open(self.procs, "w") as f:
            f.write(str(os.getpid()))

    def kills(self):
        for name in ("memory.events", "memory.oom_control"):
            try:
                text = open(f"{self.path}/{name}").read()
                return next(
                    int(line.split()[1])
                    for line in text.splitlines()
                    if line.startswith("oom_kill ")
                )
            except OSError:
                continue
        return None

    def reclaims(self):
        """How often memory had to be taken from the group's own pages."""
        try:
            return int(open(f"{self.path}/memory.failcnt").read())
        except OSError:
            text = open(f"{self.path}/memory.events").read()
            return next(int(x.split()[1]) for x in text.splitlines() if x.startswith("max "))

    def remove(self):
        wait_for(lambda: not open(self.procs).read(), 5)
        os.rmdir(self.path)


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
