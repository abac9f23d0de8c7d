"""The memory of rings: it is on the NUMA node of its client, and a client cannot harm the daemon or
a neighbour with that of its own ring.
"""

import ctypes
import errno
import os
import re
import shutil
import subprocess

import pytest

from lib import BIN, LONG, TOKCTL, Client, Daemon, datasets, run, status, wait_for
from lib.injected import injected

NODES_KNOWN = 1024
MPOL_BIND, MPOL_MF_MOVE = 2, 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
MADV_REMOVE = 9
SYS_MBIND = {"x86_64": 237, "aarch64": 235}[os.uname().machine]
PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
has_numa = os.path.exists("/proc/self/numa_maps")


def policies(daemon):
    """[(memfd, policy)] of the daemon's rings, as the kernel reports them."""
    with open(f"/proc/{daemon.pid}/numa_maps") as maps:
        return re.findall(r"^\w+ (\S+) file=/memfd:tokend-(\w+)", maps.read(), re.M)


def online():
    """The first node that has memory, and one that does not exist."""
    with open("/sys/devices/system/node/has_memory") as nodes:
        numbers = [int(number) for number in re.findall(r"\d+", nodes.read())]
    return numbers[0], numbers[-1] + 1


@pytest.fixture(scope="module")
def config(shared):
    shared.shard("a.bin", 400_000)
    stream = {"seed": 1, "seq_len": 1023, "datasets": datasets("a.bin")}
    return shared.config(streams={"train": stream})


@pytest.fixture
def daemon(shared, config):
    daemon = Daemon(shared, config)
    yield daemon
    assert daemon.stop() == 0


@pytest.mark.skipif(not has_numa, reason="this kernel has no NUMA support")
def test_a_ring_is_on_the_node_of_its_client(place, daemon):
    there, absent = online()
    for node, kept in ((there, there), (absent, None), (NODES_KNOWN, None), (2**64 - 2, None)):
        client = Client(daemon.socket).attach(node=node, begin=1)
        client.next()
        policy = "default" if kept is None else f"prefer:{node}"
        assert sorted(policies(daemon)) == [(policy, "data"), (policy, "meta")]
        assert [s["node"] for s in status(daemon.socket)[0]] == [kept]
        if kept is None:
            assert daemon.said(f"its ring cannot be put on NUMA node {node}: no such node")
        client.close()
        wait_for(lambda: not daemon.rings())
    cpu = max(os.sched_getaffinity(0))
    numbers = "--rank 0 --world 1 --micro 2 --batches 1000000".split()
    cat = place.spawn(
        [TOKCTL, "cat", "train", "--socket", daemon.socket, *numbers],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, [cpu]),
    )
    cat.stdout.read(1)
    names = os.listdir(f"/sys/devices/system/cpu/cpu{cpu}")
    (node,) = [int(name[4:]) for name in names if re.fullmatch(r"node\d+", name)]
    assert [s["node"] for s in status(daemon.socket)[0]] == [node], "libtokend names its own node"
    cat.kill()


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_rings_work_if_mbind_is_forbidden(place, config):
    """Containers may forbid it with seccomp; here strace does."""
    path, log = place.file("strict.sock"), open(place.file("strict.log"), "w+")
    strace = ["strace", "-f", "-o", place.file("trace"), "-e", "inject=mbind:error=EPERM"]
    command = [*strace, f"{BIN}/tokend", "-c", config, "--socket", path]
    traced = place.spawn(command, stdout=log, stderr=log)
    said = lambda: open(log.name).read()
    wait_for(lambda: "ready at" in said() or traced.poll() is not None, LONG)
    if traced.poll() is not None:
        pytest.skip("strace may not trace here")
    clients = [Client(path).attach(node=online()[0], peer=peer, begin=1) for peer in range(2)]
    for client in clients:
        client.next()
    assert [s["node"] for s in status(path)[0]] == [None, None]
    assert "NUMA" not in said()
    run("kill", status(path)[1]["pid"])
    traced.wait(LONG)


def call(function, *arguments):
    """Calls a function of libc. Returns 0 or the errno."""
    return 0 if function(*arguments) == 0 else ctypes.get_errno()


def mapping(fd, size, protection):
    at = libc.mmap(None, ctypes.c_size_t(size), protection, MAP_SHARED, fd, ctypes.c_long(0))
    assert at not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return ctypes.c_void_p(at)


def mbind(at, size, flags=0):
    """To node 0."""
    mask, bits = (ctypes.c_ulong * 17)(1), ctypes.c_ulong(1025)
    size = ctypes.c_size_t(size)
    return call(libc.syscall, SYS_MBIND, at, size, MPOL_BIND, mask, bits, flags)


def test_a_client_cannot_free_or_move_memory(daemon):
    neighbour = Client(daemon.socket).attach(micro=4)
    reference = Client(daemon.socket).attach(micro=4, slots=8)
    hostile = Client(daemon.socket).attach(micro=4, slots=8)
    feeds = [client.feed for client in (neighbour, reference, hostile)]
    counted = sum(feed["meta_bytes"] + feed["data_bytes"] for feed in feeds)
    (meta_fd, data_fd), meta_bytes, data_bytes = hostile.fds, *sizes(hostile.feed)
    meta = mapping(meta_fd, meta_bytes, PROT_READ)
    data = mapping(data_fd, data_bytes, PROT_READ | PROT_WRITE)

    bound = mbind(meta, meta_bytes), mbind(data, data_bytes)
    if bound not in ((errno.ENOSYS,) * 2, (errno.EPERM,) * 2):  # it is not available here
        assert bound == (0, 0), "a client can bind both memfds to a node"
        assert mbind(data, data_bytes, MPOL_MF_MOVE) == 0, "those that the daemon maps stay"
    hole = FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE
    whole = ctypes.c_long(0), ctypes.c_long(meta_bytes)
    assert call(libc.fallocate64, meta_fd, hole, *whole) == errno.EPERM

    slots = ctypes.c_size_t(hostile.control_at // 4096 * 4096)
    freed = right = 0
    for n in range(80):
        if n < 64 and n % 8 == 7:
            freed += call(libc.madvise, data, slots, MADV_REMOVE) == 0
        got, want = hostile.next(), reference.next()
        right += n >= 72 and (got == want).all()
        neighbour.next()
    assert right == 8, "batches published after that are right"
    injected(23, freed)
    assert freed == 8
    assert daemon.memory_kib("RssShmem") <= counted / 1024 + 64, "no more than it counted"
    libc.madvise(data, ctypes.c_size_t(data_bytes), MADV_REMOVE)  # including its control words
    hostile.close()
    assert wait_for(lambda: daemon.rings() == 2), "its ring is freed when it closes"
    for _ in range(16):
        neighbour.next()


def sizes(feed):
    return feed["meta_bytes"], feed["data_bytes"]
