"""Malformed packets, names, ring memory and users do not harm the daemon or other clients.

A witness is attached all the time. After each piece of bad input it reads on and compares.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import pathlib
import resource
import threading
import time

import msgpack
import pytest
from bad_input import without

from lib import (
    LONG,
    PACKET_BYTES,
    As,
    Client,
    Closed,
    Daemon,
    Refused,
    Witness,
    client_of,
    connect,
    datasets,
    receive,
    refusal,
    rows_at,
    wait_for,
    with_parent,
)
from lib.injected import injected

pytestmark = pytest.mark.asan  # no packet makes the daemon touch memory out of bounds


HELLO = {"op": "hello", "version": 1, "host": "test"}
ATTACH = {
    "op": "attach", "stream": "train", "run": "test", "rank": 0, "world": 1, "micro": 2, "peer": 0,
    "slots": 4, "begin": 1,
}  # fmt: skip
NOBODY = 65534
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16
PUNCH_HOLE = 3  # with KEEP_SIZE


# ---- packets ----


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_other_users_are_refused_before_parsing(bench):
    path = bench.daemon.socket
    for raw in (msgpack.packb(HELLO), b"\xc1\xc1", b"\0" * 1000):
        with As(NOBODY):
            s = connect(path)
        with contextlib.suppress(OSError):  # it has been refused already
            s.send(raw)
        assert msgpack.unpackb(receive(s)[0])["code"] == "uid" and bench.unharmed()
        injected(28)
    advice = f"uid {NOBODY} may not connect; add it to allow_uids"
    assert bench.daemon.said(advice), "the log says what to do"
    config = bench.place.config("users.yaml", streams=bench.streams, allow_uids=[1, NOBODY])
    daemon = Daemon(bench.place, config, bench.place.file("users.sock"))
    assert client_of(daemon, NOBODY).attach().next().shape == (2, 65)
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def slow(bench, shared):
    """Idle connections, which are closed after ten seconds. Other tests run meanwhile."""
    daemon = Daemon(shared, bench.config, shared.file("slow.sock"))
    yield {
        "a connection without a packet": Slow(daemon.socket),
        "a hello without an attach": Slow(daemon.socket, msgpack.packb(HELLO)),
    }
    assert daemon.stop() == 0


NEEDED = [  # messages with the keys that they need
    without(ATTACH, "begin"),
    {"op": "hello", "version": 1},
    {"op": "checkpoint", "tag": "t", "cursor": b"x"},
    {"op": "request", "kind": "drain", "args": ""},
    {"op": "answer", "number": 1, "outcome": 2, "text": "x"},
    {"op": "cancel", "number": 1},
]
TYPES = {
    "rank": "0", "world": True, "micro": -1, "peer": 1.5, "slots": None, "stream": 5,
    "run": b"test", "begin": [1], "cursor": "text", "position": {}, "tag": b"x", "op": 1,
}  # fmt: skip


def malformed():
    """Packets, the field of the error, and a part of its text."""
    attach = msgpack.packb(ATTACH)
    deep = lambda n: b"\x91" * n + b"\xc0"
    with_key = lambda value: b"\x8a" + attach[1:] + b"\xa1x" + value
    return [
        *((raw, "packet", "must be a MessagePack map") for raw in (
            b"\xc1\xc1", b"GET / HTTP/1.1\r\n\r\n", bytes(64),
            msgpack.packb([1, 2]), b"\xcc\xff", attach + b"\xc0",
            b"\xde\xff\xff" + attach[1:],  # a map that claims 65535 pairs
            with_key(b"\xdb\xff\xff\xff\xff"),  # a text that claims 2^32-1 bytes
            with_key(b"\xc6\x80\x00\x00\x00abc"),  # bytes that claim 2^31
            with_key(b"\xc9\xff\xff\xff\xff\x01"),  # an extension that claims 2^32-1 bytes
            with_key(b"\xd4\x01\x02"),  # an extension
            *(attach[:n] for n in range(2, len(attach))))),
        *((raw, "packet", "nested too deeply") for raw in (
            with_key(deep(9)), with_key(deep(100_000)), deep(100_000))),
        *((raw, "packet", "or more than 256 values") for raw in (
            b"\xdf\xff\xff\xff\xff" + attach[1:],  # a map that claims 2^32-1 pairs
            with_key(b"\xdd\xff\xff\xff\xff"),  # an array that claims 2^32-1 items
            with_key(b"\xdd\x00\x01\x86\xa0" + b"\xc0" * 100_000))),
        *((raw, "packet", "longer than 128 KiB") for raw in (
            msgpack.packb({**ATTACH, "x": "y" * PACKET_BYTES}), bytes(200_000))),
        (msgpack.packb({**ATTACH, "op": "dance"}), "op", ""),
        (msgpack.packb(without(ATTACH, "op")), "op", ""),
        (b"\xde\0\0", "op", ""),
        (msgpack.packb({"op": "feed", "cursor": b"x", "contents": 1, "end": 1, "meta_bytes": 1,
                        "data_bytes": 1}), "op", ""),
        (msgpack.packb({"op": "error", "code": "x", "field": "y", "text": "z"}), "op", ""),
        (msgpack.packb({**HELLO, "version": 2}), "version", ""),
        (msgpack.packb({**HELLO, "version": 2**64 - 1}), "version", ""),
        *((msgpack.packb({**ATTACH, key: value}), key, "") for key, value in TYPES.items()),
        *((msgpack.packb(without(message, key)), key, "missing")
          for message in NEEDED for key in message),
    ]  # fmt: skip


@pytest.mark.usefixtures("slow")
def test_malformed_packets_are_refused(bench):
    """A packet that is not a valid message gets a typed error, then the end."""
    peak = bench.daemon.memory_kib("VmPeak")
    seen = {raw: bench.refused(raw, field, words) for raw, field, words in malformed()}
    injected(25, len(seen))
    wrong = {raw[:80]: why for raw, why in seen.items() if why}
    grown = bench.daemon.memory_kib("VmPeak") - peak
    assert grown < 64 << 10, ("no length that a message claims is allocated", grown)
    assert not wrong, "\n".join(f"{raw} {why}" for raw, why in wrong.items())

    early = {
        m["op"]: bench.refused(msgpack.packb(m), "op", greeted=False)
        for m in (ATTACH, {"op": "status", "after": 0}, {"op": "pending"})
    }
    assert not any(early.values()), ("an op before hello: the same", early)
    assert bench.answers(b"") == [], "an empty packet: the end"

    words = bench.answers(msgpack.packb(NEEDED[2]))
    assert [w["op"] for w in words] == ["error"], ("a checkpoint without an attach: refused", words)


NAMES = ("", ".", "..", ".x", "a/b", "../../../tmp/x", "x" * 65, "a\nb", "a\0b")
STREAMS = ("", "no\nline: tokend: ready at /tmp/x", "x" * 1000, "a\0b")


def test_invalid_names_are_refused(bench):
    """Names that could become file names or lines of the log."""
    for key, names in ("run", (*NAMES, "\x7f")), ("stream", STREAMS):
        for name in names:
            words = refusal(lambda k=key, n=name: Client(bench.daemon.socket).attach(**{k: n}))
            assert f": {key}: " in words and "\n" not in words
    (word,) = bench.answers(msgpack.packb(ATTACH).replace(b"train", b"tr\xff\xfen"))
    assert word["text"].encode(), "it is UTF-8"
    for run_ in ("step_1000@node-1:2+x.y", "a..b", "n" * 64):
        Client(bench.daemon.socket).attach(run=run_).close()

    client = Client(bench.daemon.socket).attach(run="names")
    cursor = client.feed["cursor"]
    for tag in NAMES:
        words = refusal(lambda tag=tag: client.ask(op="checkpoint", tag=tag, cursor=cursor))
        assert ": tag: " in words and client.next() is not None
    root = pathlib.Path(bench.place.path)
    stored = [f.relative_to(root) for f in root.rglob("*.cursor")]
    outside = [f for f in stored if not f.match("state/*/*/mixes/*.cursor") or len(f.parts) != 5]
    assert stored and not outside, ("nothing but mixes is stored, each below its run", outside)
    for kind in ("args", "kind"):
        message = {"op": "request", "stream": "train", "kind": "k", "args": "a", kind: "x" * 70000}
        assert ": " in refusal(lambda message=message: client.ask(**message))
        assert client.next() is not None
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
    client = Client(bench.daemon.socket)
    client.s.send(msgpack.packb({17: 18, "op": "status", "after": 0}))
    assert client.hear()["op"] == "session", "a key that is a number is ignored"
    client.close()
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


def punch(fd, at, size):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, PUNCH_HOLE, ctypes.c_long(at), ctypes.c_long(size)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def test_segments(bench):
    client = Client(bench.daemon.socket).attach()
    meta, data = client.fds
    sealed = SEAL_SEAL | SEAL_SHRINK | SEAL_GROW
    assert fcntl.fcntl(meta, F_GET_SEALS) == sealed | SEAL_FUTURE_WRITE
    assert fcntl.fcntl(data, F_GET_SEALS) == sealed
    again = os.open(f"/proc/self/fd/{meta}", os.O_RDWR)
    for call in (
        lambda: mmap.mmap(meta, 4096),
        lambda: mmap.mmap(again, 4096),
        lambda: os.pwrite(meta, b"x", 128),
        lambda: os.pwrite(again, b"x", 128),
        lambda: punch(meta, 0, 4096),
        lambda: make_writable(meta),
        *(lambda fd=fd: os.ftruncate(fd, 0) for fd in client.fds),
        *(lambda fd=fd: os.ftruncate(fd, 1 << 30) for fd in client.fds),
        *(lambda fd=fd: fcntl.fcntl(fd, F_ADD_SEALS, 8) for fd in client.fds),
    ):
        with pytest.raises(OSError):  # noqa: PT011
            call()
        injected(30)
    os.close(again)
    client.next()
    punch(data, 0, client.control_at)
    injected(23)
    for _ in range(12):
        client.next()
    assert bench.unharmed(), "holes in the data segment harm only who punches them"
    client.close()
    bench.unchanged("the ring")


def make_writable(fd):
    """A read-only map, then PROT_WRITE."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    code = libc.mprotect(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE)
    libc.munmap(at, 4096)
    if code:
        raise OSError("mprotect")


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
    allow = lambda most: resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (most, 90))
    allow(3)  # no file can be opened, for a moment
    threading.Timer(0.3, allow, [90]).start()
    begin = time.monotonic()
    assert witness.step(600), "without any descriptor the stream waits, and then continues"
    assert time.monotonic() - begin > 0.3, "  it needed one"
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
