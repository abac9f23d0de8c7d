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


def refused(call):
    try:
        call()
    except Refused as e:
        return e.packet
    return {}


def attach_all(daemon):
    """([sessions until one is refused], the error)"""
    clients = []
    while len(clients) < 40:
        client = Client(daemon.socket)
        try:
            clients.append(client.attach(peer=len(clients), run=f"run{len(clients)}", **RING))
        except Refused as e:
            client.close()
            return clients, e.packet
    return clients, {}


EAT = (
    "import sys; a = bytearray(int(sys.argv[1])); a[::4096] = b'x' * len(a[::4096]); "
    "print('full', flush=True); sys.stdin.read()"
)


def check(place, group):
    place.shard("web/a.bin", 600_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    config = place.config(streams=streams, memory=1 << 30)
    daemon = Daemon(place, config, preexec_fn=group.enter)
    limit = status(daemon.socket)[1]["limit_bytes"]
    assert 128 << 20 < limit < LIMIT, ("memory: is lowered to what the cgroup allows", limit)
    said = daemon.said("memory:")
    assert len(said) == 1 and str(LIMIT) in said[0] and str(1 << 30) in said[0], (
        "  one line says so",
        said,
    )
    clients, packet = attach_all(daemon)
    text = packet.get("text", "")
    assert 5 <= len(clients) <= 13, ("sessions attach while there is room", len(clients))
    assert packet.get("passing") == 1, ("  the next gets a passing error", packet)
    numbers = sum(word.isdigit() and int(word) > 1 << 20 for word in text.replace(",", "").split())
    assert numbers >= 2 and "cgroup" in text, ("  the error has both numbers, and the reason", text)
    injected(47, 2)  # a limit below memory:, and an attach that does not fit
    assert all(c.next() is not None for c in clients), "  the other sessions get batches"
    clients.pop().close()
    again = wait_for(lambda: attach_again(daemon), 5)
    assert again, "  when one has ended, there is room"
    packet = refused(lambda: Client(daemon.socket).attach(micro=65536, slots=64, run="large"))
    assert packet and not packet.get("passing"), (
        "the error for a ring larger than the limit does not pass",
        packet,
    )
    for client in [*clients, again]:
        client.close()
    wait_for(lambda: daemon.rings() == 0)
    eater = place.spawn(
        [sys.executable, "-c", EAT, str(120 << 20)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=group.enter,
    )
    assert eater.stdout.readline() == b"full\n", (
        "another process of the group takes half of the memory"
    )
    clients, packet = attach_all(daemon)
    assert 1 <= len(clients) <= 7, ("  fewer sessions attach", len(clients))
    assert packet.get("passing") == 1 and "cgroup" in packet["text"], (
        "  the next gets a passing error",
        packet,
    )
    assert (group.kills(), daemon.alive(), eater.poll()) == (0, True, None), (
        "  no process was killed"
    )
    injected(47)
    eater.kill()
    eater.wait()
    assert daemon.stop() == 0, "exit 0"


def attach_again(daemon):
    try:
        return Client(daemon.socket).attach(run="again", **RING)
    except Refused:
        return None


@pytest.fixture
def group():
    try:
        made = Group()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    made.remove()


def test_rings_fit_into_the_cgroup(group, place):
    check(place, group)
