#!/usr/bin/env python3
"""Disks and files that go wrong under a running daemon, in every way of reading; and a daemon's coming and going.

Each fault is really there: shards are cut, replaced and deleted, reads fail in a library put in front of libc, a tmpfs is
full, a seccomp filter forbids io_uring.
"""

import ctypes
import errno
import mmap
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time

import numpy

from harness import (
    TOKCTL,
    TOKEND,
    Checks,
    Client,
    Closed,
    Daemon,
    Place,
    Refused,
    Witness,
    datasets,
    rank_rows,
    reading_modes,
    rows_at,
    run,
    status,
    with_parent,
)

SEQ_LEN, SHARD_TOKENS, SHARDS = 512, 40_000, 6
WINDOW = SEQ_LEN + 1
MICRO, WORLD = 2, 2

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def mode_name(io, direct):
    return io + (", direct" if direct else "")


def simple_streams(place):
    place.shard("small/a.bin", 30_000)
    return {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("small")}}


# ---- shards that change ----


def cut_open(path):
    os.truncate(path, os.path.getsize(path) // 4 * 2)


def replace(path):
    numpy.zeros(SHARD_TOKENS, "<u2").tofile(path + ".tmp")
    os.rename(path + ".tmp", path)


def rewrite(path):
    """The same inode and size, other bytes."""
    with open(path, "r+b") as f:
        f.write(bytes(1000))
    os.utime(path, ns=(0, time.time_ns() + 1))


def put_fifo(path):
    os.unlink(path)
    os.mkfifo(path)


# fault: (what happens, to which shard, words of the error). Shard 0 is open then, shard 3 is not.
SHARD_FAULTS = {
    "truncated while open": (cut_open, 0, ["truncated"]),
    "truncated before it is opened": (cut_open, 3, ["not the file that was there", "size was"]),
    "replaced": (replace, 3, ["not the file that was there", "inode was"]),
    "written to": (rewrite, 3, ["not the file that was there", "mtime"]),
    "deleted": (os.unlink, 3, ["No such file"]),
    "replaced by a FIFO": (put_fifo, 3, ["not the file that was there"]),
}


class Trainer:
    """A rank that reads until it is told why not."""

    def __init__(self, daemon, rows, rank):
        self.client = Client(daemon.socket).attach(micro=MICRO, rank=rank, world=WORLD)
        self.want = rank_rows(rows, rank, WORLD, MICRO)
        self.read, self.wrong, self.error = 0, 0, None

    def step(self):
        self.wrong += not numpy.array_equal(self.client.next(), self.want[self.read])
        self.read += 1

    def to_the_error(self):
        try:
            while self.read < len(self.want):
                self.step()
        except Refused as e:
            self.error = e.packet
        more = self.client.last_words() if self.error else []
        self.client.close()
        return len(more) == 0


class Cat:
    """tokctl cat as a trainer, held up by a full pipe until read() is called."""

    def __init__(self, place, daemon, *more):
        self.cursor = place.file("cat.cursor")
        arguments = [
            "--rank",
            "0",
            "--world",
            "1",
            "--micro",
            "2",
            "--slots",
            "4",
            "--cursor-out",
            self.cursor,
        ]
        self.process = place.spawn(
            [TOKCTL, "cat", "train", "--socket", daemon.socket, *arguments, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=4096,
        )
        self.first = os.read(self.process.stdout.fileno(), 1)

    def read(self):
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, self.first + out, err.decode()


def shard_fault(place, io, direct, fault):
    """What went otherwise than it must, as a list of texts."""
    action, number, words = SHARD_FAULTS[fault]
    name = f"{io}{direct}-{fault.replace(' ', '-')}"
    os.makedirs(place.file(name, "x"))
    for i in range(SHARDS):
        place.shard(f"{name}/seq/{i}.bin", SHARD_TOKENS)
    streams = {
        "train": {
            "seed": 3,
            "seq_len": SEQ_LEN,
            "datasets": [{"name": "seq", "path": "seq", "shuffle": "none"}],
        },
        "other": {"seed": 3, "seq_len": 64, "datasets": [{"name": "o", "path": "../small"}]},
    }
    config = place.config(
        f"{name}/tokend.yaml",
        io=io,
        direct=direct,
        socket=place.file("shards.sock"),
        streams=streams,
    )
    daemon = Daemon(place, config)
    total = (SHARD_TOKENS - WINDOW) // SEQ_LEN + 1
    rows = rows_at(config, "train", 0, total * SHARDS)
    trainers = [Trainer(daemon, rows, rank) for rank in range(WORLD)]
    cat = Cat(place, daemon, "--batches", str(total * SHARDS // 2))
    other = Witness(daemon, rows_at(config, "other", 0, 1000), stream="other")
    for trainer in trainers:
        trainer.step()
    shard = place.file(name, "seq", f"{number}.bin")
    shutil.copy2(shard, shard + ".kept")
    os.rename(shard + ".kept", place.file(name, "kept"))
    action(shard)
    sound = os.path.getsize(shard) // 2 if "while open" in fault else 0
    bad = number * total + max(
        0, (sound - WINDOW) // SEQ_LEN + 1
    )  # the first window that is not there any more

    faults = []
    for rank, trainer in enumerate(trainers):
        once = trainer.to_the_error()
        e = trainer.error or {}
        if trainer.wrong or trainer.read > -(-bad // (WORLD * MICRO)):
            faults.append(
                f"rank {rank}: {trainer.wrong} of {trainer.read} batches wrong, position {bad} is the first bad one"
            )
        if not once or e.get("code") != "data" or e.get("field") != "dataset seq":
            faults.append(f"rank {rank}: {e}")
        at = re.search(rf"shard {number}\.bin at token (\d+)\b", e.get("text", ""))
        if not at or "\n" in e["text"] or any(w not in e["text"] for w in [*words, "stops here"]):
            faults.append(f"rank {rank} was told: {e}")
    code, out, err = cat.read()
    if (
        code != 1
        or err.count("\n") != 1
        or f"{number}.bin" not in err
        or not rows.tobytes().startswith(out)
        or len(out) > bad * WINDOW * 2
    ):
        faults.append(f"cat: exit {code} after {len(out)} bytes: {err}")
    if not daemon.alive() or not other.step(10):
        faults.append("the other stream does not go on")
    other.close()
    if daemon.stop() != 0:
        faults.append("the daemon did not end with 0")

    if os.path.lexists(shard):
        os.unlink(shard)
    os.rename(place.file(name, "kept"), shard)
    daemon.start()
    left = total * SHARDS // 2 - len(out) // (2 * WINDOW * 2)
    code, rest, err = Cat(place, daemon, "--cursor", cat.cursor, "--batches", str(left)).read()
    if code != 0 or out + rest != rows.tobytes():
        faults.append(
            f"restored: {code}, {len(out)} + {len(rest)} bytes, wanted {rows.nbytes}: {err}"
        )
    daemon.stop()
    return faults


def reads_direct(daemon, shard):
    """Has it @shard open with O_DIRECT?"""
    for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
        try:
            if os.readlink(f"/proc/{daemon.pid}/fd/{fd}") == shard:
                flags = open(f"/proc/{daemon.pid}/fdinfo/{fd}").read().split("flags:")[1].split()[0]
                return bool(int(flags, 8) & os.O_DIRECT)
        except FileNotFoundError:
            continue
    return None


def open_shard_faults(place, io, direct):
    """A shard that is open is the one that was listed, whatever its name leads to now."""
    faults = []
    for action in (replace, os.unlink):
        name = f"open-{io}{direct}-{action.__name__}"
        place.shard(f"{name}/one/0.bin", SHARD_TOKENS)
        streams = {"train": {"seed": 3, "seq_len": SEQ_LEN, "datasets": datasets("one")}}
        config = place.config(
            f"{name}/tokend.yaml",
            io=io,
            direct=direct,
            socket=place.file("shards.sock"),
            streams=streams,
        )
        daemon = Daemon(place, config)
        witness = Witness(daemon, rows_at(config, "train", 0, 400))
        witness.step()
        shard = place.file(name, "one", "0.bin")
        if reads_direct(daemon, shard) != direct and "refuses O_DIRECT" not in daemon.log():
            faults.append(
                f"O_DIRECT: {reads_direct(daemon, shard)}, not a word in the log: {daemon.log()}"
            )
        action(shard)
        if not witness.step(150):
            faults.append(f"{action.__name__}: {witness.wrong} of {witness.checked} batches wrong")
        witness.close()
        daemon.stop()
    return faults


def shards(checks, place, modes):
    for io, direct in modes:
        mode = mode_name(io, direct)
        for fault in SHARD_FAULTS:
            faults = shard_fault(place, io, direct, fault)
            checks.ok(
                f"{mode}: a shard is {fault}: every trainer stops with its name, and goes on when it is back",
                not faults,
                faults,
            )
        faults = open_shard_faults(place, io, direct)
        checks.ok(
            f"{mode}: an open shard is replaced or deleted: its own bytes go on", not faults, faults
        )


# ---- reads that fail ----

FAILING = r"""
/* In front of libc: reads of one file fail as the words of a shared page say. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAIL, ERROR, INODE, SHORTEST, INJECTED, CALLS };
static _Atomic int64_t *words;

__attribute__((constructor)) static void begin(void)
{
	int fd = open(getenv("FAILING_PAGE"), O_RDWR | O_CLOEXEC);

	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
}

/* 0, or -1 with errno; may shorten *n. */
static int meddle(int fd, size_t *n)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || (int64_t)st.st_ino != words[INODE])
		return 0;
	words[CALLS]++;
	/* So many reads fail, of several threads; below 0: all. */
	int64_t left = words[FAIL];

	while (left > 0 && !atomic_compare_exchange_weak(&words[FAIL], &left, left - 1))
		;
	if (left != 0) {
		words[INJECTED]++;
		errno = (int)words[ERROR];
		return -1;
	}
	if (words[SHORTEST] > 0 && *n > (size_t)words[SHORTEST]) {
		*n = (size_t)words[SHORTEST];
		words[INJECTED]++;
	}
	return 0;
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	static ssize_t (*next)(int, void *, size_t, off_t);

	if (!next)
		next = dlsym(RTLD_NEXT, "pread");
	return meddle(fd, &n) < 0 ? -1 : next(fd, to, n, at);
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) { return pread(fd, to, n, at); }

ssize_t preadv2(int fd, const struct iovec *io, int count, off_t at, int flags)
{
	static ssize_t (*next)(int, const struct iovec *, int, off_t, int);
	struct iovec one = io[0];

	if (!next)
		next = dlsym(RTLD_NEXT, "preadv2");
	if (count != 1)
		abort();
	return meddle(fd, &one.iov_len) < 0 ? -1 : next(fd, &one, 1, at, flags);
}

ssize_t preadv64v2(int fd, const struct iovec *io, int count, off64_t at, int flags)
{
	return preadv2(fd, io, count, at, flags);
}
"""


class Library:
    """What the library is told, and the environment that puts it in front of a daemon's libc."""

    WORDS = {"fail": 0, "error": 1, "inode": 2, "shortest": 3, "injected": 4, "calls": 5}

    def __init__(self, place, library, name):
        page = place.file(f"{name}.page")
        with open(page, "wb") as f:
            f.truncate(4096)
        with open(page, "r+b") as f:
            self.words = memoryview(mmap.mmap(f.fileno(), 4096)).cast("q")
        self.env = {**os.environ, "LD_PRELOAD": library, "FAILING_PAGE": page}
        self.env["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")

    def get(self, name):
        return self.words[self.WORDS[name]]

    def set(self, **words):
        for name, value in words.items():
            self.words[self.WORDS[name]] = value


class Failing(Library):
    """A daemon (io: pread) whose reads fail on command, and its witness."""

    def __init__(self, place, library, name, direct):
        super().__init__(place, library, name)
        shard = place.shard(f"{name}/0.bin", SHARD_TOKENS)
        streams = {
            "train": {
                "seed": 3,
                "seq_len": SEQ_LEN,
                "datasets": [{"name": "failing", "path": name}],
            }
        }
        config = place.config(
            f"{name}.yaml",
            io="pread",
            direct=direct,
            socket=place.file(f"{name}.sock"),
            streams=streams,
        )
        self.daemon = Daemon(place, config, env=self.env)
        self.set(inode=os.stat(shard).st_ino)
        self.witness = Witness(self.daemon, rows_at(config, "train", 0, 2000))
        self.witness.step()

    def error(self):
        try:
            while True:
                self.witness.step()
        except Refused as e:
            return e.packet


def failing_indexes(checks, place, library):
    """What is wanted of a file beside a shard when that is opened."""
    tokens = numpy.fromfile(place.shard("indexed/0.bin", SHARD_TOKENS), "<u2")
    index = place.file("indexed", "0.idx")
    with open(index, "wb") as f:  # Megatron's: u16, one sequence, one document
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, SHARD_TOKENS, 0, 0, 1))
    n = SHARD_TOKENS // SEQ_LEN // 2
    want = b"".join(tokens[i * SEQ_LEN : i * SEQ_LEN + SEQ_LEN + 1].tobytes() for i in range(n))
    dataset = {"name": "d", "path": "indexed", "shuffle": "none"}
    config = place.config("indexed.yaml", socket=place.file("indexed.sock"), io="pread",
                          streams={"train": {"seed": 3, "seq_len": SEQ_LEN, "datasets": [dataset]}})  # fmt: skip
    for error, name in ((errno.EIO, "EIO"), (errno.ESTALE, "ESTALE")):
        page = Library(place, library, f"indexed-{name}")
        daemon = Daemon(place, config, env=page.env)
        page.set(inode=os.stat(index).st_ino, error=error, fail=-1)
        cat = [
            TOKCTL,
            "cat",
            "train",
            "--socket",
            daemon.socket,
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            1,
            "--batches",
            n,
        ]
        code, out, err = run(*cat)
        told = (
            code == 1
            and out == b""
            and "shard 0.bin at token 0" in err
            and os.strerror(error) in err
            and err.count("\n") == 1
        )
        checks.ok(
            f"index: {name} that stays: the stream stops",
            told and 3 <= page.get("injected") < 3000,
            (err, page.get("injected")),
        )
        page.set(injected=0, fail=1)
        code, out, err = run(*cat)
        checks.ok(f"index: {name} that passes: opened again, the same bytes", code == 0 and out == want and page.get("injected") == 1,
                  (err, len(out), page.get("injected")))  # fmt: skip
        checks.equal("  exit 0", daemon.stop(), 0)


def failing_reads(checks, place):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        checks.skip("reads that fail", "no C compiler")
        return
    source, library = place.file("failing.c"), place.file("failing.so")
    with open(source, "w") as f:
        f.write(FAILING)
    code, _, err = run(compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl")
    if code:
        raise RuntimeError(err)
    failing_indexes(checks, place, library)
    EIO, ESTALE, EINTR = 5, 116, 4
    for direct in (False, True):
        mode = mode_name("pread", direct)
        f = Failing(place, library, f"failing{direct}", direct)
        checks.ok(
            f"{mode}: the library is in front of the reads", f.get("calls") > 0, f.get("calls")
        )
        for error, name in ((EIO, "EIO"), (ESTALE, "ESTALE"), (EINTR, "EINTR")):
            injected = f.get("injected")
            for _ in range(10):
                f.set(error=error, fail=1)
                while f.get("fail") and f.witness.checked < 800:
                    f.witness.step()
                f.witness.step(
                    5
                )  # more than the ring holds: the read that failed has come through, and is not the next to fail
            good = f.get("injected") - injected == 10 and f.witness.step(20)
            checks.ok(
                f"{mode}: {name} that passes, ten times: read again, the same bytes",
                good,
                f.get("injected") - injected,
            )
        injected = f.get("injected")
        f.set(shortest=4096 if direct else 100)
        good = f.witness.step(100)
        shortened = f.get("injected") - injected
        if direct:  # a window is hardly longer than a block there: not each read can be shortened
            checks.ok(
                f"{mode}: {shortened} short reads are continued",
                good and shortened > 0,
                (f.witness.wrong, shortened),
            )
        else:
            checks.ok(
                f"{mode}: {shortened} short reads are continued",
                good and shortened > 1000,
                (f.witness.wrong, shortened),
            )
        f.set(shortest=0, error=EIO, fail=-1, injected=0)
        e = f.error()
        checks.ok(
            f"{mode}: EIO that stays: the stream stops",
            e["code"] == "data" and f.witness.wrong == 0,
            e,
        )
        checks.has(
            "  with shard, token and errno",
            e["text"],
            "shard 0.bin at token ",
            "Input/output error",
            "nothing was skipped",
        )
        time.sleep(0.2)  # those in flight come back
        tries, in_flight = f.get("injected"), f.witness.client.slots * f.witness.client.rows
        checks.ok(
            f"  after {tries} tries: bounded", 3 <= tries <= 2 * 3 * in_flight, (tries, in_flight)
        )
        time.sleep(0.2)
        checks.equal("  and none goes on behind it", f.get("injected"), tries)
        f.witness.close()
        f.set(fail=0)
        again = Client(f.daemon.socket).attach(position=f.witness.checked * 2)
        good = numpy.array_equal(again.next(), f.witness.batches[f.witness.checked])
        checks.ok("  when the disk is sound again, an attach at the cursor goes on", good)
        again.close()
        checks.equal("  exit 0", f.daemon.stop(), 0)


# ---- snapshots ----


def moved(place, cursor, position):
    """The cursor's bytes at another position, by tokctl."""
    a, b = place.file("a.cursor"), place.file("b.cursor")
    with open(a, "wb") as f:
        f.write(cursor)
    code, _, err = run(TOKCTL, "cursor", "seek", a, "--to", position, "-o", b)
    if code:
        raise RuntimeError(err)
    return open(b, "rb").read()


def former_of(path):
    return path.removesuffix(".cursor") + ".former.cursor"


def refusal(call):
    try:
        return f"not refused: {call()}"
    except Refused as e:
        return str(e)


def at_tag(daemon, tag, run_="test"):
    """Position at which an attach at a tag begins."""
    client = Client(daemon.socket)
    try:
        client.attach(tag=tag, run=run_, micro=1)
        client.wait()
        return client.meta_words[4096 // 8]  # position of slot 0
    finally:
        client.close()


def full_disk(checks, place):
    if os.geteuid() != 0:
        checks.skip("ENOSPC", "needs root to mount a tmpfs")
        return
    state = place.file("full", "x")
    os.makedirs(state)
    state = os.path.dirname(state)

    def small_disk():
        """A mount of its own name space: it is gone with the daemon."""
        with_parent()
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            os._exit(77)
        if libc.mount(b"tokend", state.encode(), b"tmpfs", 0, b"size=64k"):
            os._exit(77)

    config = place.config(
        "full.yaml", state_dir=state, socket=place.file("full.sock"), streams=simple_streams(place)
    )
    try:
        daemon = Daemon(place, config, preexec_fn=small_disk)
    except RuntimeError as e:
        if "exited with 77" not in str(e):
            raise
        checks.skip("ENOSPC", "may not mount a tmpfs here")
        return
    inside = f"/proc/{daemon.pid}/root{state}"
    witness = Witness(daemon, rows_at(config, "train", 0, 1000))
    client = witness.client
    first = client.feed["cursor"]
    second = moved(place, first, 64)
    saved = client.ask(op="checkpoint", tag="a", cursor=first)
    path = f"/proc/{daemon.pid}/root{saved['path']}"
    with open(f"{inside}/filler", "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass
    told = refusal(lambda: client.ask(op="checkpoint", tag="a", cursor=second))
    checks.has(
        "ENOSPC: the request is answered with the error",
        told,
        "checkpoint",
        "No space left",
        "former snapshot",
    )
    checks.ok(
        "  the snapshot is as it was", open(path, "rb").read() == first and at_tag(daemon, "a") == 0
    )
    checks.equal(
        "  nothing else lies about",
        sorted(os.listdir(os.path.dirname(path))),
        ["a.cursor", "mixes"],
    )
    told = refusal(lambda: client.ask(op="checkpoint", tag="b", cursor=second))
    checks.has("  a new tag likewise", told, "No space left")
    checks.has(
        "  and there is none then", refusal(lambda: at_tag(daemon, "b")), "tag", "no snapshot b"
    )
    checks.ok("  the session goes on", witness.step(20))
    for _ in range(2):
        other = Client(daemon.socket).attach(run="other")
        checks.ok("  another run attaches, without its log of mixes", other.next() is not None)
        other.close()
    said = [line for line in daemon.log().splitlines() if "run other, is not in the log" in line]
    checks.ok("  and one line says so", len(said) == 1 and "No space left" in said[0], said)
    left = [name for _, _, names in os.walk(f"{inside}/train/other") for name in names]
    checks.equal("  nothing half written is left", left, [])
    os.unlink(f"{inside}/filler")
    saved = client.ask(op="checkpoint", tag="a", cursor=second)
    checks.equal("  with room again it is saved", (saved["op"], at_tag(daemon, "a")), ("saved", 64))
    checks.ok(
        "  and the former one kept",
        open(path.replace("a.cursor", "a.former.cursor"), "rb").read() == first,
    )
    witness.close()
    checks.equal("  exit 0", daemon.stop(), 0)


def snapshots(checks, place):
    config = place.config(
        "snapshots.yaml", socket=place.file("snapshots.sock"), streams=simple_streams(place)
    )
    daemon = Daemon(place, config)
    client = Client(daemon.socket).attach()
    first = client.feed["cursor"]
    second = moved(place, first, 128)
    saved = client.ask(op="checkpoint", tag="t", cursor=first)
    path = saved["path"]
    former = former_of(path)
    client.ask(op="checkpoint", tag="t", cursor=first)
    alone = not os.path.exists(former) and open(path, "rb").read() == first
    checks.ok("a snapshot saved twice alike, as ranks do, has no former one", alone)
    client.ask(op="checkpoint", tag="t", cursor=second)
    checks.ok(
        "saved again otherwise: the former one is kept",
        (open(path, "rb").read(), open(former, "rb").read()) == (second, first),
    )
    checks.has("  with a line in the log", daemon.log(), "saved again", "t.former")
    checks.equal("  which is a tag to start from", at_tag(daemon, "t.former"), 0)
    for cursor in (first, second):
        client.ask(op="checkpoint", tag="x" * 64, cursor=cursor)
    told = refusal(lambda: at_tag(daemon, "test/" + "x" * 64 + ".former"))
    checks.equal("  that of the longest tag too", told, "not refused: 0")
    checks.has(
        "  and not one to save",
        refusal(lambda: client.ask(op="checkpoint", tag="x.former", cursor=first)),
        "kept for",
    )
    told = refusal(lambda: client.ask(op="checkpoint", tag="t", cursor=second[:-1]))
    checks.has("a damaged cursor is not saved", told, "checksum")
    checks.ok(
        "  and the snapshot is as it was",
        open(path, "rb").read() == second and client.next() is not None,
    )
    daemon.kill()
    daemon.start()
    client.close()
    checks.equal("after kill -9 an attach at the tag begins there", at_tag(daemon, "t"), 128)
    checks.equal(
        "from another run too, as the tag is the only one", at_tag(daemon, "t", "another"), 128
    )
    checks.equal("and by RUN/TAG", at_tag(daemon, "test/t", "another"), 128)
    checks.has(
        "another stream has none", refusal(lambda: at_tag(daemon, "nothing/t")), "no snapshot t"
    )

    damages = {
        "empty": b"",
        "zeros": bytes(len(second)),
        "half": second[: len(second) // 2],
        "one byte short": second[:-1],
    }
    damages |= {"a byte more": second + b"x", "100 KiB": second + bytes(100_000)}
    for bit in (0, 40, 70, 200, len(second) * 8 - 1):
        flipped = bytearray(second)
        flipped[bit // 8] ^= 1 << bit % 8
        damages[f"bit {bit} flipped"] = bytes(flipped)
    told = {}
    for name, damaged in damages.items():
        with open(path, "wb") as f:
            f.write(damaged)
        told[name] = refusal(lambda: at_tag(daemon, "t"))
    wrong = {n: t for n, t in told.items() if t.startswith("not refused") or "\n" in t}
    checks.ok(f"a snapshot torn or flipped in {len(damages)} ways is refused", not wrong, wrong)
    wrong = {n: t for n, t in told.items() if "t.former" not in t}
    checks.ok("  and the former one offered by name", not wrong, wrong)
    os.unlink(path)
    os.symlink(former, path)
    checks.has("a link is not followed", refusal(lambda: at_tag(daemon, "t")), path)

    shutil.rmtree(place.file("state"))
    with open(place.file("state"), "w") as f:
        f.write("no directory")
    client = Client(daemon.socket).attach()
    told = refusal(lambda: client.ask(op="checkpoint", tag="u", cursor=first))
    checks.has("a state_dir that is a file: the request is answered", told, "Not a directory")
    checks.ok("  and the session goes on", client.next() is not None)
    client.close()
    os.unlink(place.file("state"))
    checks.equal("exit 0", daemon.stop(), 0)


# ---- io_uring forbidden ----


class Filter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    ]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]


def forbid_uring(error):
    """For preexec_fn. System calls 425 to 427 are io_uring's on every machine; the filter is what containers have."""
    code = [
        Filter(0x20, 0, 0, 0),  # the number
        Filter(0x35, 0, 2, 425),  # ≥ 425, else to allow
        Filter(0x25, 1, 0, 427),  # > 427: to allow
        Filter(0x06, 0, 0, 0x00050000 | error),
        Filter(0x06, 0, 0, 0x7FFF0000),
    ]
    program = Program(len(code), (Filter * len(code))(*code))

    def forbid():
        with_parent()
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            os._exit(77)

    return forbid


def forbidden(checks, place):
    streams = simple_streams(place)
    for name, error in (("EPERM", 1), ("ENOSYS", 38)):
        config = place.config(f"{name}.yaml", socket=place.file(f"{name}.sock"), streams=streams)
        daemon = Daemon(place, config, preexec_fn=forbid_uring(error))
        witness = Witness(daemon, rows_at(config, "train", 0, 2000))
        good = witness.step(500)
        checks.equal(f"io_uring forbidden ({name}): pread", status(daemon.socket)[1]["io"], "pread")
        checks.equal("  said once", daemon.log().count("io_uring is forbidden"), 1)
        checks.has("  with the reason", daemon.log(), f"io_uring is forbidden here ({name})")
        checks.ok("  the same bytes", good, witness.wrong)
        witness.close()
        checks.equal("  exit 0", daemon.stop(), 0)
    config = place.config(
        "insist.yaml", io="uring", socket=place.file("insist.sock"), streams=streams
    )
    done = subprocess.run(
        [TOKEND, "-c", config],
        capture_output=True,
        text=True,
        timeout=20,
        preexec_fn=forbid_uring(1),
    )
    checks.equal("io: uring where it is forbidden: exit 1", done.returncode, 1)
    checks.ok(
        "  with one line", done.stderr.count("\n") == 1 and "io: auto" in done.stderr, done.stderr
    )


# ---- coming and going ----


def second_daemon(checks, config, socket_path):
    code, _, err = run(TOKEND, "-c", config, "--socket", socket_path, timeout=20)
    checks.ok(
        "  a second daemon: exit 1 with one line",
        code == 1 and err.count("\n") == 1 and socket_path in err,
        (code, err),
    )


def sockets(checks, place):
    config = place.config(
        "socket.yaml", socket=place.file("run", "s.sock"), streams=simple_streams(place)
    )
    daemon = Daemon(place, config)
    path, lock = daemon.socket, daemon.socket + ".lock"
    daemon.kill()
    checks.ok("kill -9 leaves a socket and a lock", os.path.exists(path) and os.path.exists(lock))
    daemon.start()
    witness = Witness(daemon, rows_at(config, "train", 0, 1000))
    checks.ok("  they are replaced", witness.step(5))
    before = os.stat(path).st_ino
    second_daemon(checks, config, path)
    same = os.stat(path).st_ino == before and status(path)[1]["sessions"] == 1
    checks.ok("  the first one's socket is untouched", same and witness.step(5))
    for name in ("SIGTERM", "SIGINT"):
        daemon.process.send_signal(getattr(signal, name))
        code = daemon.process.wait(20)
        seen = code, os.path.exists(path), os.path.exists(lock)
        checks.equal(
            f"{name} with a session: exit 0, socket and lock are gone", seen, (0, False, False)
        )
        try:
            while True:
                witness.step()
        except Closed:
            pass
        checks.ok(
            "  what was published stays readable, and is right",
            witness.wrong == 0 and witness.checked > 5,
            witness.checked,
        )
        witness.close()
        daemon.start()
        witness = Witness(daemon, rows_at(config, "train", 0, 1000))
        witness.step(6)
    witness.close()
    daemon.stop()

    with open(path, "w") as f:
        f.write("mine")
    code, _, err = run(TOKEND, "-c", config, timeout=20)
    kept = open(path).read() == "mine"
    checks.ok(
        "a file that is no socket is not removed: exit 1 with one line",
        code == 1 and err.count("\n") == 1 and kept,
        (code, err),
    )
    os.unlink(path)

    with socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET
    ) as foreign:  # systemd's, say: it has no lock of ours
        foreign.bind(path)
        foreign.listen(1)
        before = os.stat(path).st_ino
        try:
            code, _, err = run(TOKEND, "-c", config, timeout=2)
        except subprocess.TimeoutExpired:
            code, err = None, "it serves"
        kept = os.path.exists(path) and os.stat(path).st_ino == before
        good = code == 1 and err.count("\n") == 1 and kept
        checks.ok(
            "a live socket without our lock is not taken away: exit 1 with one line",
            good,
            (code, kept, err),
        )
    if os.path.exists(path):
        os.unlink(path)

    long = os.path.join(place.path, "x" * 120)
    code, _, err = run(TOKEND, "-c", config, "--socket", long, timeout=20)
    checks.ok(
        "a path that is too long: exit 1 with one line",
        code == 1 and err.count("\n") == 1 and "107" in err,
        (code, err),
    )
    daemon = Daemon(place, config, place.file("deep", "elsewhere.sock"))
    checks.ok(
        "--socket wins over the config",
        stat.S_ISSOCK(os.stat(daemon.socket).st_mode) and not os.path.exists(path),
    )
    begin = time.monotonic()
    daemon.stop()
    lingering = Daemon(place, config, arguments=["--linger", "1"])
    code = lingering.process.wait(20)
    checks.ok(
        "--linger 1: leaves by itself, with 0", code == 0 and time.monotonic() - begin > 0.9, code
    )


def main():
    checks = Checks()
    with Place() as place:
        modes = reading_modes(checks, place)
        snapshots(checks, place)
        full_disk(checks, place)
        failing_reads(checks, place)
        forbidden(checks, place)
        sockets(checks, place)
        shards(checks, place, modes)
    checks.exit()


if __name__ == "__main__":
    main()
