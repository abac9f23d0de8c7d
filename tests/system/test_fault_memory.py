"""A daemon without memory or descriptors: each of its allocations, and of the calls that take them,
fails in turn, in every thread. It refuses a client or closes its connection, but it does not crash,
it leaks nothing, and other sessions read on.
"""

import contextlib
import shutil

import numpy
import pytest

from lib import TOKCTL, Client, Daemon, Witness, datasets, few_descriptors, rows_at, run, status
from lib.injected import injected
from lib.preload import OPENS, Preload
from lib.shard_writers import arrow, put, raw, seekable
from lib.wait import wait_for
from lib.wire import Closed, Refused

FAILING = r"""
#include <errno.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { ALLOCATIONS = 1, DESCRIPTORS, MEMORY };

/* True: this call of kind @kind fails. FAIL: 0: none; n: the n-th from now; below 0: all. */
static int fails(int64_t kind)
{
	if (!words || words[KIND] != kind)
		return 0;
	words[CALLS]++;
	int64_t left = words[FAIL];

	while (left > 0 && !atomic_compare_exchange_weak(&words[FAIL], &left, left - 1))
		;
	if (left == 0 || left > 1)
		return 0;
	words[FAILED]++;
	errno = kind == DESCRIPTORS ? EMFILE : ENOMEM;
	return 1;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) { return fails(ALLOCATIONS) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return fails(ALLOCATIONS) ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return fails(ALLOCATIONS) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n)
{
	return fails(ALLOCATIONS) ? NULL : __libc_memalign(a, n);
}

int posix_memalign(void **to, size_t a, size_t n)
{
	void *p = fails(ALLOCATIONS) ? NULL : __libc_memalign(a, n);

	if (p)
		*to = p;
	return p ? 0 : ENOMEM;
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
CALL(MEMORY, -1, int, ftruncate64, (int fd, off64_t n), (fd, n))
CALL(MEMORY, -1, int, fallocate64, (int fd, int how, off64_t at, off64_t n), (fd, how, at, n))
CALL(MEMORY, ENOMEM, int, posix_fallocate64, (int fd, off64_t at, off64_t n), (fd, at, n))
CALL(MEMORY, -1, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
CALL(MEMORY, -1, ssize_t, send, (int fd, const void *m, size_t n, int flags), (fd, m, n, flags))
CALL(MEMORY, -1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(MEMORY, -1, int, madvise, (void *at, size_t n, int advice), (at, n, advice))
CALL(MEMORY, -1, int, getsockopt, (int fd, int l, int o, void *v, socklen_t *n), (fd, l, o, v, n))
CALL(MEMORY, MAP_FAILED, void *, mmap64, (void *p, size_t n, int a, int b, int fd, off_t at),
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
	if (number == SYS_pidfd_open && fails(DESCRIPTORS))
		return -1;
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""
ALLOCATIONS, DESCRIPTORS, MEMORY = 1, 2, 3
KINDS = {"allocations": (21, ALLOCATIONS), "fds": (24, DESCRIPTORS), "memory": (21, MEMORY)}
MICRO = 2


@pytest.fixture
def calls(place):
    calls = Preload(place, FAILING + OPENS, ["fail", "kind", "failed", "calls"])
    calls.set(kind=ALLOCATIONS)
    return calls


@pytest.fixture
def daemon(place, calls):
    for number in range(8):
        place.shard(f"web/{number}.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    return Daemon(place, place.config(streams={"train": stream}), env=calls.env)


def visit(daemon, rows, number):
    """A whole session: it attaches, reads, saves, asks for the status. Returns how it ended, or
    "wrong" if it got a wrong batch, or a refusal after which a trainer would not try again.
    """
    client = None
    try:
        client = Client(daemon.socket)
        client.attach(micro=MICRO, run=f"run{number}", **({"tag": "run0/kept"} if number else {}))
        for at in range(0, 12 * MICRO, MICRO):
            if (client.next() != rows[at : at + MICRO]).any():
                return "wrong"
        client.ask(op="checkpoint", tag="kept", cursor=client.feed["cursor"])
        client.ask(op="status", after=0)
        return "served"
    except Refused as end:
        refused = (client is None or client.meta is None) and "passing" not in end.packet
        return "wrong" if refused else "Refused"
    except (Closed, ConnectionError) as end:
        return type(end).__name__
    finally:
        if client:
            client.close()


@pytest.mark.parametrize("row, kind", KINDS.values(), ids=KINDS)
def test_each_call_fails_once(daemon, calls, row, kind):
    rows = rows_at(daemon.config, "train", 0, 20_000)
    witness = Witness(daemon, rows)
    witness.step()
    assert visit(daemon, rows, 0) == "served"

    def settled():
        total = status(daemon.socket)[1]
        return total["sessions"] == 1 and (total["memory_bytes"], daemon.settled_fds())

    taken = wait_for(settled)
    calls.set(kind=kind)
    number, unharmed, failed, ends = 0, 0, 0, []
    while unharmed < 10 and number < 400:
        number += 1
        calls.set(fail=number, failed=0)
        ends.append(visit(daemon, rows, number))
        failed += calls.get("failed")
        unharmed = 0 if calls.get("failed") else unharmed + 1
        calls.set(fail=0)
        assert daemon.alive(), (number, daemon.log()[-2000:])
        assert ends[-1] != "wrong" and witness.step(MICRO), f"call {number}: no batch is wrong"
        whole = kind == ALLOCATIONS or wait_for(lambda: settled() == taken)
        assert whole, (number, ends[-1], settled(), taken)
    assert failed > 5, ends
    if kind == ALLOCATIONS:
        calls.set(fail=-1)
        ends = [visit(daemon, rows, 500) for _ in range(10)]
        assert "served" not in ends and "wrong" not in ends, ("no memory at all: no session", ends)
        assert witness.step(50), "those who have one read on"
        calls.set(fail=0)
    injected(row, failed)
    assert wait_for(lambda: settled() == taken), (settled(), taken)
    assert visit(daemon, rows, 1000) == "served"
    witness.close()
    assert daemon.stop() == 0


def test_a_client_that_cannot_be_warned_leaves_nothing(daemon, calls):
    """Sending fails while the session begins, so it leaves at once. If the data thread was quick,
    it learned of that before it knew the session, which then stayed forever.
    """
    rows = rows_at(daemon.config, "train", 0, 20_000)
    assert visit(daemon, rows, 0) == "served"
    before = daemon.settled_fds()
    calls.set(kind=MEMORY)
    for number in range(600):  # the stream's lack of vocab: is warned of
        calls.set(fail=1 + number % 15)
        visit(daemon, rows, number)
    calls.set(fail=0)
    assert wait_for(lambda: daemon.settled_fds() == before), daemon.log()[-1000:]
    assert daemon.stop() == 0


def write_all(place, write, dtype, shards=60, tokens=3_000):
    """Shards by @write below data/, and flat ones of the same tokens below plain/."""
    rng = numpy.random.default_rng(7)
    for number in range(shards):
        these = rng.integers(0, 30_000, tokens)
        put(".bin", raw)(place.file("plain", f"{number:02}"), these.astype("<u2"))
        write(place.file("data", f"{number:02}"), these.astype(dtype))


def config_of(place, name, **keys):
    stream = {"seed": 3, "seq_len": 64, "datasets": [{"name": "d", "path": name}]}
    return place.config(f"{name}.yaml", streams={"train": stream}, **keys)


SHARDS = {"frames": (seekable(".bin.zst", raw, 8_192), "<u2"), "arrow": (arrow, "<i4")}


@pytest.mark.parametrize("kind", SHARDS)
def test_each_allocation_of_opening_and_decoding_fails_once(place, calls, kind):
    """The read is repeated: no stream stops, and no row is wrong."""
    write_all(place, *SHARDS[kind])
    rows = rows_at(config_of(place, "plain"), "train", 0, 20_000)
    config = config_of(place, "data")
    daemon = Daemon(place, config, env=calls.env, preexec_fn=few_descriptors(80))
    witness = Witness(daemon, rows)
    assert witness.step(100)
    calls.set(failed=0)
    for number in range(1, 60):
        calls.set(fail=number)
        assert witness.step(20), f"allocation {number}"
    assert calls.get("failed") > 30, "allocations failed"
    injected(21, calls.get("failed"))
    calls.set(fail=-1)
    with contextlib.suppress(Refused):
        witness.step(200)
    assert witness.wrong == 0, "no memory for long: the stream stops, or goes on"
    calls.set(fail=0)
    again = Client(daemon.socket).attach(position=witness.checked * 2)
    assert (again.next() == witness.batches[witness.checked]).all(), "and then continues"
    again.close()
    witness.close()


def test_a_start_without_memory_ends_with_one_line(place, calls):
    """Each allocation of a start fails in turn: the daemon exits with 1, or serves."""
    place.shard("web/0.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "vocab": 50000, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}), env=calls.env)
    needed, refused, wrong = calls.get("calls"), 0, []
    assert daemon.stop() == 0
    for number in range(1, needed):
        calls.set(fail=number, failed=0)
        daemon.start(ready=False)
        wait_for(lambda: "ready at" in daemon.log() or not daemon.alive())
        if daemon.alive():
            assert daemon.stop() == 0, (number, daemon.log())
            continue
        refused += 1
        injected(21, calls.get("failed"))
        if daemon.process.returncode != 1 or daemon.log().count("\n") != 1:
            wrong.append((number, daemon.process.returncode, daemon.log()))
    assert refused > needed // 8, "most of these allocations are needed"
    assert not wrong, wrong


@pytest.mark.parametrize("kind", [ALLOCATIONS, MEMORY])
def test_a_client_without_memory_ends_with_one_line(place, calls, kind):
    """Each call of libtokend and tokctl fails in turn: what is written is right."""
    place.shard("web/0.bin", 20_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    want = rows_at(daemon.config, "train", 0, 200).tobytes()
    command = [TOKCTL, "cat", "train", "--socket", daemon.socket, "--run", "r", "--batches", "50"]
    command += "--rank 0 --world 1 --micro 4".split()
    wrong, number, failed = [], 0, True
    calls.set(kind=kind)
    while failed:
        number += 1
        calls.set(fail=number, failed=0)
        code, out, err = run(*command, env=calls.env)
        failed = calls.get("failed")
        injected(21, failed)
        ended = code == 1 and err.count("\n") == 1 and want.startswith(out)
        ended = ended and "compatible" not in err
        if not ended and (code, out, err) != (0, want, ""):
            wrong.append((number, code, len(out), err))
    calls.set(fail=0)
    assert not wrong and number > 5, (number, wrong)


@pytest.mark.parametrize("memory, fits", [(8 << 20, False), (1 << 30, True)])
def test_indexes_stay_within_their_memory(place, calls, memory, fits):
    """A sixteenth of `memory:`. Shards whose seek tables do not fit are opened again."""
    shards, tokens = 40, numpy.random.default_rng(7).integers(0, 30_000, 300_000).astype("<u2")
    put(".bin", raw)(place.file("plain", "00"), tokens)
    seekable(".bin.zst", raw, 64)(place.file("data", "00"), tokens)
    for number in range(1, shards):
        for path in ("plain/{:02}.bin", "data/{:02}.bin.zst"):
            shutil.copy(place.file(path.format(0)), place.file(path.format(number)))
    rows = rows_at(config_of(place, "plain"), "train", 0, 2000)
    daemon = Daemon(place, config_of(place, "data", memory=memory), env=calls.env)
    witness = Witness(daemon, rows)
    assert witness.step(200)
    calls.set(kind=DESCRIPTORS, calls=0)
    assert witness.step(700)
    assert (calls.get("calls") < shards) == fits
    witness.close()
