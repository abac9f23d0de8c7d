"""A client cannot harm the daemon or a neighbour with the memory of its own ring."""

import ctypes
import errno
import os

from lib import Client, Daemon, datasets, wait_for
from lib.injected import injected

MPOL_BIND, MPOL_MF_MOVE, MPOL_MF_MOVE_ALL = 2, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
MADV_REMOVE = 9
SYS_MBIND = {"x86_64": 237, "aarch64": 235}[os.uname().machine]
PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def call(function, *arguments):
    """Calls a function of libc. Returns 0 or the errno."""
    return 0 if function(*arguments) == 0 else ctypes.get_errno()


def mapping(fd, size, protection):
    at = libc.mmap(None, ctypes.c_size_t(size), protection, MAP_SHARED, fd, ctypes.c_long(0))
    assert at not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return ctypes.c_void_p(at)


def mbind(at, size, flags=0):
    mask = (ctypes.c_ulong * 17)(1)  # node 0
    return call(
        libc.syscall,
        SYS_MBIND,
        at,
        ctypes.c_size_t(size),
        MPOL_BIND,
        mask,
        ctypes.c_ulong(1025),
        flags,
    )


def policies(daemon):
    with open(f"/proc/{daemon.pid}/numa_maps") as maps:
        return [line.split()[1] for line in maps if "/memfd:tokend-" in line]


def test_a_client_cannot_free_or_move_memory(place):
    place.shard("a.bin", 400_000)
    stream = {"seed": 1, "seq_len": 1023, "datasets": datasets("a.bin")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    neighbour = Client(daemon.socket).attach(micro=4)
    reference = Client(daemon.socket).attach(micro=4, slots=8)
    hostile = Client(daemon.socket).attach(micro=4, slots=8)
    counted = sum(
        client.feed["meta_bytes"] + client.feed["data_bytes"]
        for client in (neighbour, reference, hostile)
    )
    meta_fd, data_fd = hostile.fds
    meta_bytes, data_bytes = hostile.feed["meta_bytes"], hostile.feed["data_bytes"]
    meta, data = (
        mapping(meta_fd, meta_bytes, PROT_READ),
        mapping(data_fd, data_bytes, PROT_READ | PROT_WRITE),
    )

    bound = mbind(meta, meta_bytes), mbind(data, data_bytes)
    if bound not in (
        (errno.ENOSYS,) * 2,
        (errno.EPERM,) * 2,
    ):  # otherwise mbind is not available here
        assert bound == (0, 0), "a client can bind both memfds to a node"
        assert policies(daemon).count("bind:0") == 2, (
            "  which also applies to the daemon's page faults"
        )
        assert mbind(data, data_bytes, MPOL_MF_MOVE) == 0, (
            "  moving pages succeeds; those that the daemon maps stay"
        )
    hole = FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE

    def punch(fd, size):
        return call(libc.fallocate64, fd, hole, ctypes.c_long(0), ctypes.c_long(size))

    assert punch(meta_fd, meta_bytes) == errno.EPERM, "it cannot free pages of meta"
    slots = hostile.control_at // 4096 * 4096
    rounds = whole = 0
    for n in range(80):
        if n < 64 and n % 8 == 7:
            rounds += call(libc.madvise, data, ctypes.c_size_t(slots), MADV_REMOVE) == 0
        got, want = hostile.next(), reference.next()
        whole += n >= 72 and (got == want).all()
        neighbour.next()
    assert whole == 8, "batches published after that are right"
    injected(23, rounds)
    assert rounds == 8, "it freed its slots eight times"
    assert daemon.alive() and neighbour.next() is not None, "the daemon and the neighbour live"
    assert daemon.memory_kib("RssShmem") <= counted / 1024 + 64, (
        "the daemon has no more memory for rings than it counted"
    )
    libc.madvise(data, ctypes.c_size_t(data_bytes), MADV_REMOVE)  # including its control words
    hostile.close()
    assert wait_for(lambda: daemon.rings() == 2), "its ring is freed when it closes"
    for _ in range(16):
        neighbour.next()
    assert daemon.stop() == 0, "the daemon ends with 0"
