"""Malformed packets, names, ring memory and users do not harm the daemon or other clients.

A witness is attached all the time. After each piece of bad input it reads on and compares.
"""

import contextlib
import fcntl
import mmap
import os
import pathlib
import re
import resource
import threading
import time

import msgpack
import pytest
from bad_input import without

from lib import As, Client, Daemon, Witness, client_of, datasets, rows_at
from lib.injected import injected
from lib.process import few_descriptors
from lib.wait import LONG, wait_for
from lib.wire import PACKET_BYTES, PERMISSION, Closed, Refused, connect, receive, refusal

pytestmark = pytest.mark.asan  # no packet makes the daemon touch memory out of bounds


HELLO = {"op": "hello", "version": 1, "host": "test"}
ATTACH = {
    "op": "attach", "stream": "train", "run": "test", "rank": 0, "world": 1, "micro": 2, "peer": 0,
    "slots": 4, "begin": 1,
}  # fmt: skip
NOBODY = 65534
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16


# ---- packets ----


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_other_users_are_refused_before_parsing(bench):
    path = bench.daemon.socket
    for raw in (msgpack.packb(HELLO), b"\xc1\xc1", b"\0" * 1000):
        with As(NOBODY):
            s = connect(path)
        with contextlib.suppress(OSError):  # it has been refused already
            s.send(raw)
        assert msgpack.unpackb(receive(s)[0])["code"] == PERMISSION and bench.unharmed()
        injected(28)
    advice = f"uid {NOBODY} may not connect; add it to allow_uids"
    assert bench.daemon.said(advice), "the log says what to do"
    config = bench.place.config("users.yaml", streams=bench.streams, allow_uids=[1, NOBODY])
    daemon = Daemon(bench.place, config, bench.place.file("users.sock"))
    assert client_of(daemon, NOBODY).attach().next().shape == (2, 65)
    assert daemon.stop() == 0


NEEDED = [  # messages with the keys that they need
    without(ATTACH, "begin"),
    {"op": "hello", "version": 1},
    {"op": "checkpoint", "tag": "t", "cursor": b"x"},
    {"op": "request", "kind": "drain", "args": ""},
    {"op": "answer", "number": 1, "outcome": 2, "text": "x"},
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
            b"\xc1\xc1", b"GET / HTTP/1.1\r\n\r\n", bytes(64), attach + b"\xc0",
            b"\xde\xff\xff" + attach[1:],  # a map that claims 65535 pairs
            with_key(b"\xdb\xff\xff\xff\xff"),  # a text that claims 2^32-1 bytes
            with_key(b"\xc6\x80\x00\x00\x00abc"),  # bytes that claim 2^31
            with_key(b"\xc9\xff\xff\xff\xff\x01"),  # an extension that claims 2^32-1 bytes
            *(attach[:n] for n in range(2, len(attach))))),
        *((raw, "packet", "nested at most") for raw in (with_key(deep(9)), deep(100_000))),
        *((raw, "packet", "and 256 values") for raw in (
            b"\xdf\xff\xff\xff\xff" + attach[1:],  # a map that claims 2^32-1 pairs
            with_key(b"\xdd\x00\x01\x86\xa0" + b"\xc0" * 100_000))),
        (msgpack.packb({**ATTACH, "x": "y" * PACKET_BYTES}), "packet", "longer than 128 KiB"),
        *((msgpack.packb(message), "op", "") for message in (
            {**ATTACH, "op": "dance"}, without(ATTACH, "op"),
            {"op": "error", "code": 99, "field": "y", "text": "z"})),
        (msgpack.packb({**HELLO, "version": 2}), "version", ""),
        *((msgpack.packb({**ATTACH, key: value}), key, "") for key, value in TYPES.items()),
        *((msgpack.packb(without(message, key)), key, "missing")
          for message in NEEDED for key in message),
    ]  # fmt: skip


def test_malformed_packets_are_refused(bench):
    """A packet that is not a valid message gets a typed error, then the end."""
    peak = bench.daemon.memory_kib("VmPeak")
    seen = {raw: bench.refused(raw, field, words) for raw, field, words in malformed()}
    injected(25, len(seen))
    wrong = {raw[:80]: why for raw, why in seen.items() if why}
    grown = bench.daemon.memory_kib("VmPeak") - peak
    assert grown < 64 << 10, ("no length that a message claims is allocated", grown)
    assert not wrong, "\n".join(f"{raw} {why}" for raw, why in wrong.items())

    early = bench.refused(msgpack.packb(ATTACH), "op", greeted=False)
    assert not early, ("an op before hello: the same", early)
    assert bench.answers(b"") == [], "an empty packet: the end"


NAMES = ("", "..", ".x", "../../../tmp/x", "x" * 65, "a\nb", "a\0b")
STREAMS = ("", "no\nline: tokend: ready at /tmp/x", "x" * 1000)


def test_invalid_names_are_refused(bench):
    """Names that could become file names or lines of the log."""
    for key, names in ("run", (*NAMES, "\x7f")), ("stream", STREAMS):
        for name in names:
            words = refusal(lambda k=key, n=name: Client(bench.daemon.socket).attach(**{k: n}))
            assert f": {key}: " in words and "\n" not in words
    (word,) = bench.answers(msgpack.packb(ATTACH).replace(b"train", b"tr\xff\xfen"))
    assert word["text"].encode(), "it is UTF-8"

    client = Client(bench.daemon.socket).attach(run="step_1000@node-1:2+x..y")
    cursor = client.feed["cursor"]
    for tag in NAMES:
        words = refusal(lambda tag=tag: client.ask(op="checkpoint", tag=tag, cursor=cursor))
        assert ": tag: " in words and client.next() is not None
    root = pathlib.Path(bench.place.path)
    stored = [f.relative_to(root) for f in root.rglob("*.cursor")]
    outside = [f for f in stored if not re.match(r"state/[^/]+/[^/]+/\.run\.c", str(f))]
    assert stored and not outside, (
        "nothing but cursors of runs is stored, each below its run",
        outside,
    )
    client.tell(op="answer", number=1, outcome=2, text="two\nlines\x1b[2J")
    client.next()
    client.close()
    lines = [line for line in bench.daemon.log().splitlines() if not line.startswith("tokend: ")]
    assert not lines and "\x1b" not in bench.daemon.log(), "no client writes lines of its own"


def test_unknown_keys_are_ignored(bench):
    """A later version may have them."""
    client = Client(bench.daemon.socket)
    client.feed = client.ask(**ATTACH, colour=[1, {"a": {"b": {}}}], x=b"\0" * 1000, z=None)
    client.map()
    assert client.next() is not None and type(client.feed["shards"]) is bytes
    try:
        seen = client.ask(**ATTACH)
    except Refused as e:
        seen = e.packet["field"]
    assert seen == "connection", "a second attach on one connection: refused"
    assert client.last_words() == [], "and the session ends"
    client.close()
    bench.unchanged("packets")


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
        *(lambda fd=fd: os.ftruncate(fd, 0) for fd in client.fds),
        *(lambda fd=fd: os.ftruncate(fd, 1 << 30) for fd in client.fds),
        *(lambda fd=fd: fcntl.fcntl(fd, F_ADD_SEALS, 8) for fd in client.fds),
    ):
        with pytest.raises(OSError):  # noqa: PT011
            call()
        injected(30)
    os.close(again)
    assert client.next() is not None and bench.unharmed()
    client.close()
    bench.unchanged("the ring")


# ---- too many, too slow ----


def effort(pid):
    """Of its control thread: how often it has waited, and its CPU time in seconds."""
    thread = f"/proc/{pid}/task/{pid}"
    with open(f"{thread}/status") as status, open(f"{thread}/schedstat") as times:
        waits = re.search(r"^voluntary_ctxt_switches:\t(\d+)", status.read(), re.M)[1]
        return int(waits), int(times.read().split()[0]) / 1e9


def test_a_crowd_leaves_descriptors_for_shards(bench):
    """A daemon short of descriptors. Its witness goes through more shards than it can hold open."""
    for i in range(40):
        bench.place.shard(f"many/{i:02}.bin", 2_000)
    stream = {"seed": 7, "seq_len": 64, "datasets": datasets("many", shuffle="none")}
    config = bench.place.config("few.yaml", streams={"train": stream})
    few = {"preexec_fn": few_descriptors(90)}
    daemon = Daemon(bench.place, config, bench.place.file("few.sock"), **few)
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
    assert 50 < refused < 150, "90 descriptors are enough for some; the others are turned away"
    assert witness.step(1500), ("the witness reads on, through all shards", witness.wrong)
    assert daemon.said("LimitNOFILE"), "the log says what to raise"
    for client in hold:
        client.close()
    wait_for(lambda: daemon.rings() == 1)
    witness.step(1500)
    allow = lambda most: resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (most, 90))
    allow(3)
    late, (waits, busy) = connect(daemon.socket), effort(daemon.pid)
    time.sleep(0.3)
    after = effort(daemon.pid)
    assert after[0] - waits < 60 and after[1] - busy < 0.05, "it does not try again all the time"
    allow(90)
    late.send(msgpack.packb(HELLO))
    assert receive(late)[0], "and accepts it within a second"
    late.close()
    allow(3)  # no file can be opened, for a moment
    begin = time.monotonic()
    threading.Timer(0.3, allow, [90]).start()
    assert witness.step(600), "without any descriptor the stream waits, and then continues"
    assert time.monotonic() - begin > 0.3, "  it needed one"
    again = Client(daemon.socket).attach()
    assert again.next() is not None and witness.step(), "and a new client is served"
    again.close()
    witness.close()
    assert daemon.stop() == 0, "exit 0"


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
    assert seen is None and bench.unharmed(), ("it is dropped", sent, seen)
    assert bench.daemon.said("does not read its replies"), "the log says so"
    client.close()


def test_idle_connections_are_closed(bench):
    begin, idle = time.monotonic(), [connect(bench.daemon.socket) for _ in range(2)]
    idle[1].send(msgpack.packb(HELLO))
    for one in idle:
        while receive(one)[0] != b"":
            pass
        assert 9.9 < time.monotonic() - begin < LONG
        one.close()
        injected(26)
