"""Malformed packets, names, ring memory and users do not harm the daemon or other clients.

A witness is attached all the time. After each piece of bad input it reads on and compares.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import re
import resource
import socket
import threading
import time
from functools import partial

import msgpack
import pytest
from bad_input import without

from lib import (
    LONG,
    PACKET_BYTES,
    Client,
    Closed,
    Daemon,
    Refused,
    Witness,
    connect,
    datasets,
    receive,
    rows_at,
    wait_for,
    with_parent,
)
from lib.injected import injected

pytestmark = pytest.mark.asan  # no packet makes the daemon touch memory out of bounds


MUTATIONS = 10_000
HELLO = {"op": "hello", "version": 1, "host": "test"}
ATTACH = {
    "op": "attach",
    "stream": "train",
    "run": "test",
    "rank": 0,
    "world": 1,
    "micro": 2,
    "peer": 0,
    "slots": 4,
    "begin": 1,
}
NOBODY = 65534
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16
PUNCH_HOLE = 3  # with KEEP_SIZE


# ---- packets ----


def test_other_users_are_refused_before_parsing(bench):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    path = bench.daemon.socket
    try:
        seen = [
            as_nobody(partial(first_words, path, raw))
            for raw in (msgpack.packb(HELLO), b"\xc1\xc1", b"\0" * 1000)
        ]
    except PermissionError as e:
        pytest.skip(f"cannot become another user: {e}")
    injected(28, len(seen))
    assert seen == ["uid"] * 3 and bench.unharmed(), (
        "another uid is refused before a packet is parsed",
        seen,
    )
    advice = f"uid {NOBODY} may not connect; add it to allow_uids"
    assert bench.daemon.said(advice), "the log says what to do"
    config = bench.place.config("users.yaml", streams=bench.streams, allow_uids=[1, NOBODY])
    daemon = Daemon(bench.place, config, bench.place.file("users.sock"))
    seen = as_nobody(lambda: Client(daemon.socket).attach().next().shape)
    assert seen == "(2, 65)", "with allow_uids it attaches and reads"
    assert daemon.stop() == 0, "that daemon ends with 0"


@pytest.fixture(scope="module")
def slow(bench, shared):
    """Idle connections, which are closed after ten seconds. Other tests run meanwhile."""
    daemon = Daemon(shared, bench.config, shared.file("slow.sock"))
    yield {
        "a connection without a packet": Slow(daemon.socket),
        "a hello without an attach": Slow(daemon.socket, msgpack.packb(HELLO)),
    }
    assert daemon.stop() == 0


@pytest.mark.usefixtures("slow")
def test_malformed_packets_are_refused(bench):
    attach = msgpack.packb(ATTACH)
    deep = lambda n: b"\x91" * n + b"\xc0"
    with_key = lambda value: b"\x8a" + attach[1:] + b"\xa1x" + value
    bad = {
        "not MessagePack": b"\xc1\xc1",
        "text": b"GET / HTTP/1.1\r\n\r\n",
        "zeros": bytes(64),
        "an array": msgpack.packb([1, 2]),
        "a number of two bytes": b"\xcc\xff",
        "bytes after the map": attach + b"\xc0",
        "a map that claims 2^32-1 pairs": b"\xdf\xff\xff\xff\xff" + attach[1:],
        "a map that claims 65535 pairs": b"\xde\xff\xff" + attach[1:],
        "a text that claims 2^32-1 bytes": with_key(b"\xdb\xff\xff\xff\xff"),
        "bytes that claim 2^31": with_key(b"\xc6\x80\x00\x00\x00abc"),
        "an array that claims 2^32-1 items": with_key(b"\xdd\xff\xff\xff\xff"),
        "an extension that claims 2^32-1 bytes": with_key(b"\xc9\xff\xff\xff\xff\x01"),
        "an extension": with_key(b"\xd4\x01\x02"),
        "nine levels": with_key(deep(9)),
        "100,000 levels": with_key(deep(100_000)),
        "100,000 levels from the start": deep(100_000),
        "100,000 values": with_key(b"\xdd\x00\x01\x86\xa0" + b"\xc0" * 100_000),
        "longer than 128 KiB": msgpack.packb({**ATTACH, "x": "y" * PACKET_BYTES}),
        "twice 128 KiB of nothing": bytes(200_000),
        "an unknown op": msgpack.packb({**ATTACH, "op": "dance"}),
        "an op that is a number": msgpack.packb({**ATTACH, "op": 1}),
        "no op": msgpack.packb(without(ATTACH, "op")),
        "an empty map": b"\xde\0\0",
        "a feed": msgpack.packb(
            {
                "op": "feed",
                "cursor": b"x",
                "contents": 1,
                "end": 1,
                "meta_bytes": 1,
                "data_bytes": 1,
            }
        ),
        "an error": msgpack.packb({"op": "error", "code": "x", "field": "y", "text": "z"}),
        "another version": msgpack.packb({**HELLO, "version": 2}),
        "version 2^64-1": msgpack.packb({**HELLO, "version": 2**64 - 1}),
    }
    for key in without(ATTACH, "op", "begin"):
        bad[f"an attach without {key}"] = msgpack.packb(without(ATTACH, key))
    for key, value in {
        "rank": "0",
        "world": True,
        "micro": -1,
        "peer": 1.5,
        "slots": None,
        "stream": 5,
        "run": b"test",
        "begin": [1],
        "cursor": "text",
        "position": {},
        "tag": b"x",
    }.items():
        bad[f"{key} as {value!r}"] = msgpack.packb({**ATTACH, key: value})
    peak = bench.daemon.memory_kib("VmPeak")
    seen = {name: bench.refused(raw) for name, raw in bad.items()}
    injected(25, len(seen))
    wrong = {name: why for name, why in seen.items() if why}
    assert not wrong, (f"{len(bad)} malformed packets: a typed error, then the end", wrong)

    cut = {n: bench.refused(attach[:n]) for n in range(2, len(attach))}
    injected(25, len(cut))
    wrong = {n: why for n, why in cut.items() if why}
    grown = bench.daemon.memory_kib("VmPeak") - peak
    assert grown < 64 << 10, ("no length that a message claims is allocated", grown)
    assert not wrong, (f"a valid attach cut at each of {len(cut)} bytes: the same", wrong)

    early = {
        m["op"]: bench.refused(msgpack.packb(m), greeted=False)
        for m in (ATTACH, {"op": "status", "after": 0}, {"op": "pending"})
    }
    assert not any(early.values()), ("an op before hello: the same", early)
    assert bench.answers(b"") == [], "an empty packet: the end"

    words = bench.answers(msgpack.packb({"op": "checkpoint", "tag": "t", "cursor": b"x"}))
    assert [w["op"] for w in words] == ["error"], ("a checkpoint without an attach: refused", words)


def test_invalid_names_are_refused(bench):
    """Names that could become file names or lines of the log."""
    wrong = {}
    for run_ in ("", ".", "..", ".x", "a/b", "../../x", "x" * 65, "a\nb", "a\0b", "\x7f"):
        try:
            Client(bench.daemon.socket).attach(run=run_).close()
            wrong[run_] = "accepted"
        except Refused as e:
            if e.packet["field"] != "run":
                wrong[run_] = e.packet
    for stream in ("", "no\nline: tokend: ready at /tmp/x", "x" * 1000, "a\0b"):
        try:
            Client(bench.daemon.socket).attach(stream=stream).close()
            wrong[stream] = "accepted"
        except Refused as e:
            if e.packet["field"] != "stream" or "\n" in e.packet["text"]:
                wrong[stream] = e.packet
    for word in bench.answers(msgpack.packb(ATTACH).replace(b"train", b"tr\xff\xfen")):
        try:
            word["text"].encode()
        except UnicodeEncodeError:
            wrong["not UTF-8"] = word
    assert not wrong, (
        "invalid names of streams and runs: refused with the field, in one line of UTF-8",
        wrong,
    )

    client = Client(bench.daemon.socket).attach(run="names")
    cursor = client.feed["cursor"]
    wrong = {}
    for tag in ("", ".", "..", ".x", "a/b", "../../../tmp/x", "x" * 65, "a\nb", "a\0b"):
        try:
            wrong[tag] = client.ask(op="checkpoint", tag=tag, cursor=cursor)
        except Refused as e:
            if e.packet["field"] != "tag":
                wrong[tag] = e.packet
    assert not wrong and client.next() is not None, (
        "invalid tags: refused, and the session continues",
        wrong,
    )
    for kind in ("args", "kind"):
        message = {"op": "request", "stream": "train", "kind": "k", "args": "a", kind: "x" * 70000}
        try:
            wrong[kind] = client.ask(**message)
        except Refused:
            pass
    assert not wrong and client.next() is not None, ("a request that is too long: likewise", wrong)
    client.tell(op="answer", number=1, outcome=2, text="two\nlines\x1b[2J")
    client.next()
    client.close()
    lines = [line for line in bench.daemon.log().splitlines() if not line.startswith("tokend: ")]
    assert not lines and "\x1b" not in bench.daemon.log(), (
        "no client can write lines of its own to the log",
        lines[:3],
    )


def test_unknown_keys_are_ignored(bench):
    deep = value = {}
    for _ in range(5):
        value["x"] = value = {}
    extra = {"colour": [1, {"a": deep}], "x": b"\0" * 1000, "y": -5, "z": None}
    client = Client(bench.daemon.socket, hello=False)
    client.ask(**HELLO, later=True)
    client.feed = client.ask(**ATTACH, **extra)
    assert client.feed["op"] == "feed", "keys of a later version are ignored"
    for _ in range(100):
        client.send(b"\0")
    client.map()
    assert client.next() is not None, "so are needless wake-ups"
    try:
        seen = client.ask(**ATTACH)
    except Refused as e:
        seen = e.packet["field"]
    assert seen == "connection", "a second attach on one connection: refused"
    assert client.last_words() == [], "and the session ends"
    client.close()
    bench.unchanged("packets")


def mutate(rng, raw, others):
    """Makes a few random changes: flips, insertions, cuts, pieces of other messages."""
    raw = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(raw) + 1)
        size = rng.randrange(9)
        what = rng.randrange(6)
        if what == 0 and raw:
            raw[at % len(raw)] ^= 1 << rng.randrange(8)
        elif what == 1 and raw:
            raw[at % len(raw)] = rng.choice(
                (0, 0x80, 0x90, 0xC1, 0xC6, 0xCF, 0xDB, 0xDD, 0xDF, 0xFF, rng.randrange(256))
            )
        elif what == 2:
            raw[at:at] = rng.randbytes(size)
        elif what == 3:
            del raw[at : at + size]
        elif what == 4:
            raw[at:at] = raw[at : at + size * 4]
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            raw[at:at] = other[start : start + size * 8]
    return bytes(raw[: PACKET_BYTES - 1]) or b"\0\0"


def test_mutated_packets_do_no_harm(bench, seed):
    rng = random.Random(seed)
    cursor = bench.witness.client.feed["cursor"]
    free = [
        HELLO,
        ATTACH,
        {**without(ATTACH, "begin"), "cursor": cursor},
        {**without(ATTACH, "begin"), "position": 12345},
    ]
    free += [
        {"op": "status", "after": 0},
        {"op": "request", "stream": "short", "kind": "drain", "args": ""},
    ]
    bound = [
        {"op": "checkpoint", "tag": "mutant", "cursor": cursor},
        {"op": "answer", "number": 1, "outcome": 2, "text": "x"},
    ]
    bound += [{"op": "pending"}, {"op": "describe"}, {"op": "cancel", "number": 1}]
    free, bound = [msgpack.packb(m) for m in free], [msgpack.packb(m) for m in bound]
    everything = free + bound
    counts = {}
    for i in range(MUTATIONS):
        client = Client(bench.daemon.socket)
        attached = i % 10 == 0
        if attached:
            client.ask(**{**ATTACH, "stream": "short"})
        client.s.send(mutate(rng, rng.choice(bound if attached else free), everything))
        client.s.shutdown(socket.SHUT_WR)
        words = client.last_words()
        kind = words[0]["op"] if words else "the end"
        counts[kind] = counts.get(kind, 0) + 1
        client.close()
        if not bench.unharmed():
            break
    known = {
        "the end",
        "error",
        "hello",
        "feed",
        "session",
        "status",
        "request",
        "asked",
        "cancelled",
        "described",
        "warning",
        "saved",
    }
    injected(25, counts["error"])
    assert sum(counts.values()) == MUTATIONS, "mutated packets sent"
    assert set(counts) <= known and counts["error"] > MUTATIONS // 4, (
        f"each was answered and closed ({counts})",
        counts,
    )
    outside = [
        os.path.join(top, f)
        for top, _, files in os.walk(bench.place.path)
        for f in files
        if f.endswith(".cursor")
        and not top.startswith(os.path.join(bench.place.path, "state", "short", "test"))
    ]
    log_of_mixes = re.compile(
        re.escape(bench.place.path) + r"/state/[^/]+/[^/]+/mixes/[0-9]{6}\.cursor"
    )
    outside = [
        f for f in outside if "/state/train/names/" not in f and not log_of_mixes.fullmatch(f)
    ]
    assert outside == [], "no snapshot is written outside its run"
    bench.unchanged("mutations")


def refused_call(call):
    try:
        call()
        return "allowed"
    except OSError as e:
        return errno.errorcode[e.errno]


def punch(fd, at, size):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, PUNCH_HOLE, ctypes.c_long(at), ctypes.c_long(size)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def test_segments(bench):
    client = Client(bench.daemon.socket).attach()
    meta, data = client.fds
    assert (
        fcntl.fcntl(meta, F_GET_SEALS) == SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE
    ), "the meta segment is sealed"
    assert fcntl.fcntl(data, F_GET_SEALS) == SEAL_SEAL | SEAL_SHRINK | SEAL_GROW, (
        "and the data segment"
    )
    again = os.open(f"/proc/self/fd/{meta}", os.O_RDWR)
    seen = {
        "map it writable": refused_call(lambda: mmap.mmap(meta, 4096)),
        "through /proc": refused_call(lambda: mmap.mmap(again, 4096)),
        "pwrite": refused_call(lambda: os.pwrite(meta, b"x", 128)),
        "pwrite through /proc": refused_call(lambda: os.pwrite(again, b"x", 128)),
        "punch a hole": refused_call(lambda: punch(meta, 0, 4096)),
        "shrink": refused_call(lambda: os.ftruncate(meta, 0)),
        "grow": refused_call(lambda: os.ftruncate(meta, 1 << 30)),
        "seal more": refused_call(lambda: fcntl.fcntl(meta, F_ADD_SEALS, 8)),
        "make a read-only map writable": "allowed" if mprotect(client) == 0 else "EACCES",
    }
    assert "allowed" not in seen.values(), ("no client can change the meta segment", seen)
    injected(30, len(seen))
    seen = {
        "shrink": refused_call(lambda: os.ftruncate(data, 0)),
        "grow": refused_call(lambda: os.ftruncate(data, 1 << 30)),
        "seal more": refused_call(lambda: fcntl.fcntl(data, F_ADD_SEALS, 8)),
    }
    assert "allowed" not in seen.values(), ("nor resize or seal the data segment", seen)
    injected(30, len(seen))
    os.close(again)
    client.next()
    punch(data, 0, client.control_at)
    injected(23)
    for _ in range(12):
        client.next()
    assert bench.unharmed(), "holes in the data segment harm only who punches them"
    client.close()
    bench.unchanged("the ring")


def mprotect(client):
    """A read-only map of its own, then PROT_WRITE."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, client.fds[0], 0)
    code = libc.mprotect(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE)
    libc.munmap(at, 4096)
    return code


# ---- users ----


def as_nobody(action):
    """What action() returned in a child with another uid, as text."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with_parent()
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            text = str(action())
        except BaseException as e:
            text = repr(e)
        os.write(into, text.encode())
        os._exit(0)
    os.close(into)
    text = os.read(out, 4096).decode()
    os.close(out)
    os.waitpid(child, 0)
    return text


def first_words(path, raw):
    s = connect(path)
    try:
        s.send(raw)
    except OSError:
        pass  # it has been refused already
    data, _ = receive(s)
    return msgpack.unpackb(data)["code"] if data else "closed"


# ---- too many, too slow ----


def test_a_crowd_leaves_descriptors_for_shards(bench):
    """A daemon short of descriptors. Its witness goes through more shards than it can hold open."""
    for i in range(40):
        bench.place.shard(f"many/{i:02}.bin", 2_000)
    stream = {"seed": 7, "seq_len": 64, "datasets": datasets("many", shuffle="none")}
    config = bench.place.config("few.yaml", streams={"train": stream})
    few = lambda: (with_parent(), resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90)))
    daemon = Daemon(bench.place, config, bench.place.file("few.sock"), preexec_fn=few)
    witness = Witness(daemon, rows_at(config, "train", 0, 5000), slots=2, micro=1)
    witness.step()
    hold, refused = [], 0
    for _ in range(150):
        try:
            client = Client(daemon.socket)
            hold.append(client)
            client.attach(slots=2, micro=1, position=len(hold))
        except (Refused, Closed, ConnectionError):
            refused += 1
        witness.step(5)
    injected(24, refused)
    assert 50 < refused < 150, (
        f"of 150 clients {150 - refused} fit into 90 descriptors, the others are turned away",
        refused,
    )
    assert witness.step(1500), ("the witness reads on meanwhile, through all shards", witness.wrong)
    assert daemon.said("LimitNOFILE"), "the log says what to raise"
    for client in hold:
        client.close()
    wait_for(lambda: daemon.rings() == 1)
    before = daemon.settled_fds()
    for client in [Client(daemon.socket) for _ in range(5)]:
        client.close()
    witness.step(1500)
    assert daemon.settled_fds() == before, "with the crowd gone its descriptors are free"
    assert before < 85, ("  which is less than there are", before)
    again = Client(daemon.socket).attach()
    assert again.next() is not None and witness.step(), "and a new client is served"
    again.close()
    witness.close()
    assert daemon.stop() == 0, "exit 0"


class Slow(threading.Thread):
    """Connects, says what it was given, then nothing. Notes when it is dropped."""

    def __init__(self, path, raw=b""):
        super().__init__(daemon=True)
        self.s = connect(path)
        self.begin = time.monotonic()
        self.seconds = None
        if raw:
            self.s.send(raw)
        self.start()

    def run(self):
        while receive(self.s)[0] != b"":
            pass
        self.seconds = time.monotonic() - self.begin


def test_a_client_that_reads_no_replies_is_disconnected(bench):
    client = Client(bench.daemon.socket)
    question, sent = msgpack.packb({"op": "status", "after": 0}), 0
    try:
        while sent < 100_000:
            client.send(question)
            sent += 1
        seen = "never dropped"
    except (BrokenPipeError, ConnectionResetError):
        seen = None
    injected(26)
    assert seen is None and bench.unharmed(), (
        f"a client that does not read its replies is dropped (after {sent})",
        seen,
    )
    assert bench.daemon.said("does not read its replies"), "the log says so"
    client.close()


def test_idle_connections_are_closed(slow):
    for name, thread in slow.items():
        thread.join(LONG)
        at = thread.seconds
        injected(26)
        assert at is not None and at > 9.9, (f"{name}: dropped after 10 s", at)
