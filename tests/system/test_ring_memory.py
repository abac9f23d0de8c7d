"""A client cannot harm the daemon or a neighbour with the memory of its own ring."""

import ctypes
import errno
import os

import pytest

from lib import Client, Daemon, datasets, wait_for
from lib.injected import injected

MPOL_BIND, MPOL_MF_MOVE = 2, 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
MADV_REMOVE = 9
SYS_MBIND = {"x86_64": 237, "aarch64": 235}[os.uname().machine]
PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


@pytest.fixture
def daemon(place):
    place.shard("a.bin", 400_000)
    stream = {"seed": 1, "seq_len": 1023, "datasets": datasets("a.bin")}
    return Daemon(place, place.config(streams={"train": stream}))


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
