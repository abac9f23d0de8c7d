"""System calls that take descriptors or memory fail, each in turn: the daemon refuses a client or
closes its connection, leaks nothing, and other sessions read on.
"""

import pytest
from test_fault_memory import MICRO, visit

from lib import Daemon, Witness, datasets, rows_at, status, wait_for
from lib.injected import injected
from lib.preload import OPENS, Preload

FAILING = r"""
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>


/* True: this call of kind @kind fails. FAIL: 0: none; n: the n-th of these from now. */
static int fails(int64_t kind)
{
	if (!words || words[KIND] != kind)
		return 0;
	int64_t left = words[FAIL];

	while (left > 0 && !atomic_compare_exchange_weak(&words[FAIL], &left, left - 1))
		;
	if (left != 1)
		return 0;
	words[FAILED]++;
	errno = kind == DESCRIPTORS ? EMFILE : ENOMEM;
	return 1;
}

#define CALL(kind, failure, type, name, parameters, arguments) \
	type name parameters \
	{ \
		NEXT(name); \
		return fails(kind) ? failure : next arguments; \
	}
CALL(DESCRIPTORS, -1, int, memfd_create, (const char *name, unsigned flags), (name, flags))
CALL(DESCRIPTORS, -1, int, accept4, (int fd, struct sockaddr *to, socklen_t *n, int flags),
	(fd, to, n, flags))
CALL(DESCRIPTORS, -1, int, dup, (int fd), (fd))
CALL(MEMORY, -1, int, ftruncate, (int fd, off_t n), (fd, n))
CALL(MEMORY, -1, int, ftruncate64, (int fd, off64_t n), (fd, n))
CALL(MEMORY, -1, int, fallocate, (int fd, int how, off_t at, off_t n), (fd, how, at, n))
CALL(MEMORY, -1, int, fallocate64, (int fd, int how, off64_t at, off64_t n), (fd, how, at, n))
CALL(MEMORY, ENOMEM, int, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n))
CALL(MEMORY, ENOMEM, int, posix_fallocate64, (int fd, off64_t at, off64_t n), (fd, at, n))
CALL(MEMORY, -1, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
CALL(MEMORY, -1, ssize_t, send, (int fd, const void *m, size_t n, int flags), (fd, m, n, flags))
CALL(MEMORY, -1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(MEMORY, -1, int, madvise, (void *at, size_t n, int advice), (at, n, advice))
CALL(MEMORY, -1, int, getsockopt, (int fd, int l, int o, void *v, socklen_t *n), (fd, l, o, v, n))
CALL(MEMORY, MAP_FAILED, void *, mmap, (void *p, size_t n, int a, int b, int fd, off_t at),
	(p, n, a, b, fd, at))
CALL(MEMORY, MAP_FAILED, void *, mmap64, (void *p, size_t n, int a, int b, int fd, off64_t at),
	(p, n, a, b, fd, at))

static int opening(const char *call, const char *path)
{
	(void)call, (void)path;
	return fails(DESCRIPTORS);
}

int fcntl64(int fd, int what, ...)
{
	static int (*next)(int, int, ...);
	va_list more;

	if (!next)
		next = dlsym(RTLD_NEXT, "fcntl64");
	va_start(more, what);
	void *argument = va_arg(more, void *);
	va_end(more);
	const int kind = what == F_DUPFD_CLOEXEC ? DESCRIPTORS : MEMORY;

	return fails(kind) ? -1 : next(fd, what, argument);
}

long syscall(long number, ...)
{
	static long (*next)(long, ...);
	va_list more;
	long a[6];

	if (!next)
		next = dlsym(RTLD_NEXT, "syscall");
	va_start(more, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(more, long);
	va_end(more);
	if ((number == SYS_pidfd_open || number == SYS_mbind) &&
		fails(number == SYS_mbind ? MEMORY : DESCRIPTORS))
		return -1;
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""
DESCRIPTORS, MEMORY = 1, 2
KINDS = f"enum {{ DESCRIPTORS = {DESCRIPTORS}, MEMORY = {MEMORY} }};\n"


@pytest.mark.parametrize("row, kind", [(24, DESCRIPTORS), (21, MEMORY)], ids=["fds", "memory"])
def test_each_call_fails_once(place, row, kind):
    for number in range(8):
        place.shard(f"web/{number}.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    calls = Preload(place, KINDS + FAILING + OPENS, ["fail", "kind", "failed"])
    calls.set(kind=kind)
    daemon = Daemon(place, place.config(streams={"train": stream}), env=calls.env)
    rows = rows_at(daemon.config, "train", 0, 20_000)
    witness = Witness(daemon, rows)
    witness.step()
    assert visit(daemon, rows, 0) == "served"

    def settled():
        total = status(daemon.socket)[1]
        return total["sessions"] == 1 and (total["memory_bytes"], daemon.settled_fds())

    taken = wait_for(settled)
    number, unharmed, failed, ends = 0, 0, 0, []
    while unharmed < 10 and number < 300:
        number += 1
        calls.set(fail=number, failed=0)
        ends.append(visit(daemon, rows, number))
        calls.set(fail=0)
        failed += calls.get("failed")
        unharmed = 0 if calls.get("failed") else unharmed + 1
        assert daemon.alive(), (number, daemon.log()[-2000:])
        assert ends[-1] != "wrong" and witness.step(MICRO), f"call {number}: no batch is wrong"
        assert wait_for(lambda: settled() == taken), (number, ends[-1], settled(), taken)
    injected(row, failed)
    assert failed > 5, ends
    assert visit(daemon, rows, 1000) == "served"
    witness.close()
    assert daemon.stop() == 0


def test_a_client_that_cannot_be_warned_leaves_nothing(place):
    """Sending fails while the session begins, so it leaves at once. If the data thread was quick,
    it learned of that before it knew the session, which then stayed forever.
    """
    place.shard("web/a.bin", 20_000)
    stream = {
        "seed": 3,
        "seq_len": 64,
        "datasets": datasets("web"),
    }  # its lack of vocab: is warned of
    calls = Preload(place, KINDS + FAILING + OPENS, ["fail", "kind", "failed"])
    daemon = Daemon(place, place.config(streams={"train": stream}), env=calls.env)
    rows = rows_at(daemon.config, "train", 0, 20_000)
    assert visit(daemon, rows, 0) == "served"
    before = daemon.settled_fds()
    calls.set(kind=MEMORY)
    for number in range(600):
        calls.set(fail=1 + number % 15)
        visit(daemon, rows, number)
    calls.set(fail=0)
    assert wait_for(lambda: daemon.settled_fds() == before), daemon.log()[-1000:]
    assert daemon.stop() == 0
