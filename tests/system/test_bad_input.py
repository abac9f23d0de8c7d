#!/usr/bin/env python3
"""What a daemon is sent and must not mind: packets, attaches, cursors, ring words, users, configs.

A witness is attached all the while and compares what it reads; after every piece of bad input it reads on.
"""

import array
import ctypes
import errno
import fcntl
import mmap
import os
import random
import re
import resource
import socket
import struct
import sys
import threading
import time
from functools import partial

import msgpack

from harness import (
    PACKET_BYTES,
    TOKCTL,
    TOKEND,
    Checks,
    Client,
    Closed,
    Daemon,
    Place,
    Refused,
    Witness,
    connect,
    datasets,
    receive,
    rows_at,
    run,
    status,
    wait_for,
    with_parent,
)

MUTATIONS = 10_000
SEALED = 3_000
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


def without(message, *keys):
    return {k: v for k, v in message.items() if k not in keys}


class Bench:
    """A daemon, a witness, and what both must still be after each piece of bad input."""

    def __init__(self, checks, place):
        self.checks, self.place = checks, place
        for name, tokens in (("web/a.bin", 60_000), ("web/b.bin", 30_000), ("code/x.bin", 40_000)):
            place.shard(name, tokens)
        self.train = {
            "seed": 7,
            "seq_len": 64,
            "datasets": [{"name": "web", "path": "web", "weight": 0.7}],
        }
        self.train["datasets"] += [
            {"name": "code", "path": "code", "weight": 0.3, "shuffle": "block", "block": 8}
        ]
        self.streams = {
            "train": self.train,
            "short": {"seed": 7, "seq_len": 64, "samples": 100, "datasets": datasets("web")},
            "wide": {"seed": 7, "seq_len": 16384, "datasets": datasets("web")},
        }
        self.limit = 8 << 20
        self.config = place.config(streams=self.streams, memory=self.limit)
        self.daemon = Daemon(place, self.config)
        self.witness = Witness(self.daemon, rows_at(self.config, "train", 0, 60_000))
        self.witness.step(8)
        for stream in self.streams:  # all shards are open
            client = Client(self.daemon.socket).attach(stream=stream)
            for _ in range(min(20, client.end())):
                client.next()
            client.close()
        wait_for(lambda: self.daemon.rings() == 1)
        self.start = status(self.daemon.socket)[1]
        self.fds = self.daemon.settled_fds()

    def unharmed(self):
        """The daemon is there, the witness goes on, nobody else is attached."""
        return self.daemon.alive() and self.witness.step()

    def unchanged(self, name):
        """After all that, nothing is kept."""
        wait_for(lambda: status(self.daemon.socket)[1]["sessions"] == 1)
        total = status(self.daemon.socket)[1]
        seen = (
            total["sessions"],
            total["memory_bytes"],
            wait_for(lambda: self.daemon.fds() == self.fds) and self.fds,
        )
        self.checks.equal(
            f"{name}: sessions, memory and descriptors are what they were",
            seen,
            (1, self.start["memory_bytes"], self.fds),
        )
        self.checks.ok(
            f"{name}: the witness read {self.witness.checked} batches, 0 wrong", self.unharmed()
        )

    def answers(self, raw, greeted=True, fds=()):
        """Sends one packet: what the daemon says until it closes."""
        client = Client(self.daemon.socket, hello=greeted)
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                client.s.sendmsg([raw], rights)
            else:
                client.s.send(raw)
            return client.last_words()
        finally:
            client.close()

    def refused(self, raw, greeted=True, fds=()):
        """NULL if the packet was answered with one error of one line, then the end; else what was seen."""
        words = self.answers(raw, greeted, fds)
        if len(words) != 1 or words[0]["op"] != "error" or words[0]["code"] != "protocol":
            return f"answered {words!r}"
        if not words[0]["text"] or "\n" in words[0]["field"] + words[0]["text"]:
            return f"not one line: {words!r}"
        return None if self.unharmed() else "the others were harmed"


# ---- packets ----


def packets(bench):
    attach = msgpack.packb(ATTACH)
    deep = lambda n: b"\x91" * n + b"\xc0"
    with_key = lambda value: b"\x8a" + attach[1:] + b"\xa1x" + value
    bad = {
        "no MessagePack": b"\xc1\xc1",
        "text": b"GET / HTTP/1.1\r\n\r\n",
        "zeros": bytes(64),
        "an array": msgpack.packb([1, 2]),
        "a number of two bytes": b"\xcc\xff",
        "more behind the map": attach + b"\xc0",
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
                "fingerprint": 1,
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
        "rank": "0", "world": True, "micro": -1, "peer": 1.5, "slots": None, "stream": 5, "run": b"test", "begin": [1], "cursor": "text",
        "position": {}, "tag": b"x",
    }.items():  # fmt: skip
        bad[f"{key} as {value!r}"] = msgpack.packb({**ATTACH, key: value})
    seen = {name: bench.refused(raw) for name, raw in bad.items()}
    wrong = {name: why for name, why in seen.items() if why}
    bench.checks.ok(f"{len(bad)} malformed packets: a typed error, then the end", not wrong, wrong)

    cut = {n: bench.refused(attach[:n]) for n in range(2, len(attach))}
    wrong = {n: why for n, why in cut.items() if why}
    bench.checks.ok(f"a valid attach cut at each of {len(cut)} bytes: the same", not wrong, wrong)

    early = {
        m["op"]: bench.refused(msgpack.packb(m), greeted=False)
        for m in (ATTACH, {"op": "status", "after": 0}, {"op": "pending"})
    }
    bench.checks.ok("an op before hello: the same", not any(early.values()), early)
    bench.checks.equal("an empty packet: the end", bench.answers(b""), [])

    before = bench.daemon.settled_fds()
    sent = {
        n: bench.refused(msgpack.packb(HELLO), greeted=False, fds=[0] * n) for n in (1, 8, 9, 250)
    }
    sent["with an attach"] = bench.refused(attach, fds=[0, 1, 2])
    sent["with a wake"] = bench.refused(b"\0", fds=[0])
    bench.checks.ok("descriptors with a packet: the same", not any(sent.values()), sent)
    bench.checks.ok(
        "and they are closed",
        wait_for(lambda: bench.daemon.fds() == before),
        (before, bench.daemon.fds()),
    )

    words = bench.answers(msgpack.packb({"op": "checkpoint", "tag": "t", "cursor": b"x"}))
    bench.checks.ok(
        "a checkpoint without an attach: refused", [w["op"] for w in words] == ["error"], words
    )


def names(bench):
    """What would be a file name or a line of the log."""
    wrong = {}
    for run_ in ("", ".", "..", ".x", "a/b", "../../x", "x" * 65, "a\nb", "a\0b", "\x7f"):
        try:
            Client(bench.daemon.socket).attach(run=run_).close()
            wrong[run_] = "taken"
        except Refused as e:
            if e.packet["field"] != "run":
                wrong[run_] = e.packet
    for stream in ("", "no\nline: tokend: ready at /tmp/x", "x" * 1000, "a\0b"):
        try:
            Client(bench.daemon.socket).attach(stream=stream).close()
            wrong[stream] = "taken"
        except Refused as e:
            if e.packet["field"] != "stream" or "\n" in e.packet["text"]:
                wrong[stream] = e.packet
    for word in bench.answers(msgpack.packb(ATTACH).replace(b"train", b"tr\xff\xfen")):
        try:
            word["text"].encode()
        except UnicodeEncodeError:
            wrong["not UTF-8"] = word
    bench.checks.ok(
        "names of streams and runs that are none: refused by field, in one line of UTF-8",
        not wrong,
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
    bench.checks.ok(
        "tags that are none: refused, the session goes on",
        not wrong and client.next() is not None,
        wrong,
    )
    for kind in ("args", "kind"):
        message = {"op": "request", "stream": "train", "kind": "k", "args": "a", kind: "x" * 70000}
        try:
            wrong[kind] = client.ask(**message)
        except Refused:
            pass
    bench.checks.ok(
        "a request that is too long: likewise", not wrong and client.next() is not None, wrong
    )
    client.tell(op="answer", number=1, outcome=2, text="two\nlines\x1b[2J")
    client.next()
    client.close()
    lines = [line for line in bench.daemon.log().splitlines() if not line.startswith("tokend: ")]
    bench.checks.ok(
        "no client writes a line of its own into the log",
        not lines and "\x1b" not in bench.daemon.log(),
        lines[:3],
    )


def tolerated(bench):
    deep = value = {}
    for _ in range(5):
        value["x"] = value = {}
    extra = {"colour": [1, {"a": deep}], "x": b"\0" * 1000, "y": -5, "z": None}
    client = Client(bench.daemon.socket, hello=False)
    client.ask(**HELLO, later=True)
    client.feed = client.ask(**ATTACH, **extra)
    bench.checks.equal("keys of a later version are ignored", client.feed["op"], "feed")
    for _ in range(100):
        client.send(b"\0")
    client.map()
    bench.checks.ok("wake-ups for nothing too", client.next() is not None)
    try:
        seen = client.ask(**ATTACH)
    except Refused as e:
        seen = e.packet["field"]
    bench.checks.equal("a second attach on one connection: refused", seen, "connection")
    bench.checks.equal("and that session is over", client.last_words(), [])
    client.close()
    bench.unchanged("packets")


def mutate(rng, raw, others):
    """A few random changes: bits, bytes, pieces moved, doubled, cut, or of another message."""
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


def mutations(bench, rng):
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
        "saved",
    }
    bench.checks.equal("mutated packets sent", sum(counts.values()), MUTATIONS)
    bench.checks.ok(
        f"each was answered and closed ({counts})",
        set(counts) <= known and counts["error"] > MUTATIONS // 4,
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
    bench.checks.equal("no snapshot lies outside of its run", outside, [])
    bench.unchanged("mutations")


# ---- attaches ----


def attach_refused(bench, name, field, words, **keys):
    try:
        Client(bench.daemon.socket).attach(**keys).close()
        seen = "attached"
    except Refused as e:
        p = e.packet
        missing = [w for w in words if w not in p["text"]]
        seen = (
            None
            if p["field"] == field and not missing and "\n" not in p["text"]
            else f"{p}, {missing} missing"
        )
    bench.checks.ok(f"attach {name}: {field}", seen is None and bench.unharmed(), seen)


def attaches(bench):
    refused = lambda *a, **k: attach_refused(bench, *a, **k)
    refused("of rank 2 of 2", "rank", ["2"], rank=2, world=2)
    refused(
        "of rank 2^64-1 of 2^32", "rank", [str(2**64 - 1), str(2**32)], rank=2**64 - 1, world=2**32
    )
    refused("with world 0", "world", ["0", "2^32"], world=0)
    refused("with world 2^32+1", "world", [str(2**32 + 1)], world=2**32 + 1)
    refused("with micro 0", "micro_batch", ["0", "65536"], micro=0)
    refused("with micro 65537", "micro_batch", ["65537", "65536"], micro=65537)
    refused("with micro 2^64-1", "micro_batch", [str(2**64 - 1)], micro=2**64 - 1, slots=0)
    refused("with slots 2^63", "micro_batch", [str(2**63), "4096"], slots=2**63)
    refused(
        "with a slot over 1 GiB",
        "micro_batch",
        ["65536", "16385", "2147614720", "1073741824"],
        stream="wide",
        micro=65536,
    )
    refused("to an unknown stream", "stream", ["nowhere", bench.config], stream="nowhere")
    refused("beyond the end", "position", ["101", "100"], stream="short", position=101)
    refused(
        "at 2^64-1 of a finite stream",
        "position",
        [str(2**64 - 1)],
        stream="short",
        position=2**64 - 1,
    )
    refused("without a start", "start", ["begin", "position", "tag", "cursor"], rank=0, cursor_=0)
    refused("with two starts", "start", ["begin", "position", "tag", "cursor"], begin=1, position=0)
    refused("with four starts", "start", ["one of"], begin=1, position=0, tag="x", cursor=b"x")
    refused("at a tag nobody saved", "tag", ["epoch-9", "train"], tag="epoch-9")
    refused("at a tag outside", "tag", ["RUN/TAG"], tag="../../train/x")
    refused("at a tag with two slashes", "tag", ["RUN/TAG"], tag="a/b/c")

    client = Client(bench.daemon.socket).attach(stream="short", position=100)
    bench.checks.equal(
        "attach at the very end: 0 batches", (client.end(), client.published()), (0, 0)
    )
    client.close()
    client = Client(bench.daemon.socket).attach(position=2**64 - 1)
    bench.checks.ok("attach at 2^64-1 of an endless stream: padding", not client.next().any())
    client.close()

    wait_for(lambda: status(bench.daemon.socket)[1]["sessions"] == 1)
    left = bench.limit - status(bench.daemon.socket)[1]["memory_bytes"]
    try:
        Client(bench.daemon.socket).attach(micro=4096, slots=64)
        seen = "attached"
    except Refused as e:
        seen = str(e)
    need = 4096 * 65 * 2 * 64
    found = [int(n) for n in re.findall(r"\d+", seen)]
    good = (
        left in found
        and bench.limit in found
        and any(need < n < need * 1.5 for n in found)
        and "memory:" in seen
    )
    bench.checks.ok(
        "attach with more than memory: allows: what it needs and what is left", good, (seen, left)
    )

    hold = []
    try:
        while len(hold) < 100:
            hold.append(Client(bench.daemon.socket).attach(micro=1024, slots=4))
    except Refused as e:
        bench.checks.ok(
            f"memory: is used up by {len(hold)} sessions, the next is refused",
            e.packet["code"] == "memory" and hold,
            e,
        )
    for client in hold:
        client.close()
    bench.unchanged("attaches")


# ---- cursors ----

MASK = (1 << 64) - 1


def mix64(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def sealed(body):
    """A cursor whose checksum is right whatever it holds."""
    golden = 0x9E3779B97F4A7C15
    h = mix64(len(body) + golden & MASK)
    for i in range(0, len(body), 8):
        h = mix64((h ^ int.from_bytes(body[i : i + 8], "little")) + golden & MASK)
    return b"tkdc" + struct.pack("<IQ", 1, h) + body


def cursor_of(bench, stream="train", name="other.yaml", drop=(), **changes):
    """The cursor of a stream like train, but for @changes."""
    about = {**without(bench.train, *drop), **changes}
    config = bench.place.config(name, streams={stream: about})
    path = bench.place.file("other.cursor")
    code, _, err = run(TOKCTL, "cursor", "new", "-c", config, stream, "-o", path)
    if code:
        raise RuntimeError(err)
    return open(path, "rb").read()


def foreign_cursors(bench):
    web, code = bench.train["datasets"]
    listing = lambda *datasets: cursor_of(bench, datasets=list(datasets))
    own = bench.witness.client.feed["cursor"]
    bench.checks.ok("tokctl and tokend make the same cursor", cursor_of(bench) == own)
    for name in ("more/a.bin", "more/c.bin", "renamed/b.bin", "renamed/a2.bin"):
        bench.place.shard(name, 30_000 if "c.bin" in name or "b.bin" in name else 60_000)
    cases = [
        ("another stream", "stream", ["train"], cursor_of(bench, stream="valid")),
        ("another seed", "seed", ["8", "7"], cursor_of(bench, seed=8)),
        ("another seq_len", "seq_len", ["32", "64"], cursor_of(bench, seq_len=32)),
        ("another extra", "extra", ["0", "1"], cursor_of(bench, extra=0)),
        ("another stride", "stride", ["32", "64"], cursor_of(bench, stride=32)),
        ("an end", "samples", ["1000"], cursor_of(bench, samples=1000)),
        (
            "another dataset",
            "dataset math: name",
            ["no longer"],
            listing(web, {**code, "name": "math"}),
        ),
        (
            "one dataset more",
            "dataset math: name",
            [],
            listing(web, code, {**code, "name": "math"}),
        ),
        (
            "other shards",
            "dataset web: digest of its shards",
            ["shards"],
            listing({**web, "path": "renamed"}, code),
        ),
        (
            "a shard of another size",
            "dataset code: windows",
            ["468", "624"],
            listing(web, {**code, "path": "more/c.bin"}),
        ),
        ("another shuffle", "dataset web: shuffle", [], listing({**web, "shuffle": "none"}, code)),
        ("another block", "dataset code: block", ["16", "8"], listing(web, {**code, "block": 16})),
        ("slide", "dataset web: slide", [], listing({**web, "slide": True}, code)),
        ("a newer version", "version", ["3", "newer"], own[:4] + b"\3" + own[5:]),
        ("version 0", "version", [], own[:4] + bytes(4) + own[8:]),
        ("zeros", "cursor", ["not a cursor"], bytes(len(own))),
        ("zeros, 96 KiB", "cursor", ["not a cursor"], bytes(96 * 1024)),
        ("more than 96 KiB", "cursor", ["98304"], own + bytes(96 * 1024)),
        ("garbage", "cursor", ["not a cursor"], random.Random(1).randbytes(len(own))),
        ("nothing", "cursor", ["0 bytes"], b""),
        ("a tail", "checksum", ["damaged"], own + b"\0"),
        (
            "an order of version 2",
            "order",
            ["2", "newer"],
            sealed(msgpack.packb({**msgpack.unpackb(own[16:]), "order": 2})),
        ),
    ]
    for name, field, words, cursor in cases:
        attach_refused(bench, f"at a cursor with {name}", field, words, cursor=cursor)


def damaged_cursors(bench, rng):
    own = bench.witness.client.feed["cursor"]

    def field_of(cursor):
        try:
            Client(bench.daemon.socket).attach(cursor=cursor).close()
            return "attached"
        except Refused as e:
            return e.packet["field"]

    flips = {}
    for bit in rng.sample(range(len(own) * 8), 400):
        damaged = bytearray(own)
        damaged[bit // 8] ^= 1 << bit % 8
        flips[bit] = field_of(bytes(damaged))
    wrong = {bit: f for bit, f in flips.items() if f not in ("cursor", "version", "checksum")}
    bench.checks.ok(
        f"a cursor with any of {len(flips)} bits flipped: refused",
        not wrong and bench.unharmed(),
        wrong,
    )
    cuts = {n: field_of(own[:n]) for n in range(len(own))}
    wrong = {n: f for n, f in cuts.items() if f not in ("cursor", "checksum")}
    bench.checks.ok(
        f"a cursor cut at each of {len(cuts)} bytes: refused", not wrong and bench.unharmed(), wrong
    )


ODD = [
    0,
    1,
    2,
    1023,
    1024,
    2**31,
    2**32 - 1,
    2**32,
    2**63,
    2**64 - 1,
    -1,
    1.5,
    None,
    True,
    b"x",
    "web",
    "",
    [],
    {},
    [0],
    [2**31, 2**31],
]


def twist(rng, value):
    """One part of a decoded cursor made odd."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        value = {**value, key: twist(rng, value[key])}
        if rng.random() < 0.1:
            value["pending_start"] = rng.choice(ODD)
            value["pending_units"] = rng.choice(
                [[2**32, 0], [0, 2**32], [2**31, 2**31, 0], [1], ODD]
            )
        if rng.random() < 0.05:
            del value[key]
    elif isinstance(value, list) and value and rng.random() < 0.9:
        value = list(value)
        at = rng.randrange(len(value))
        value[at : at + rng.choice((0, 1, 1, 1))] = [twist(rng, value[at])] * rng.choice(
            (0, 1, 1, 1, 1, 1, 1, 2)
        )
    elif isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        value = max(
            0, min(2**64 - 1, value + rng.choice((-1, 1, -1024, 1024, rng.getrandbits(64))))
        )
    else:
        value = rng.choice(ODD)
    return value


def sealed_cursors(bench, rng):
    """Cursors that only an enemy makes: the checksum is right, the rest is not."""
    own = msgpack.unpackb(bench.witness.client.feed["cursor"][16:])
    bases = [own, {**own, "pending_start": 2048, "pending_units": [0, 2**32]}]
    counts = {"attached": 0, "refused": 0, "closed": 0}
    for i in range(SEALED):
        cursor = rng.choice(bases)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            cursor = twist(rng, cursor)
        try:
            client = Client(bench.daemon.socket)
            client.attach(
                cursor=sealed(msgpack.packb(cursor)), slots=2, world=rng.choice((1, 3, 2**32))
            )
            if client.end() > 0:
                client.next()
            counts["attached"] += 1
        except Refused:
            counts["refused"] += 1
        finally:
            client.close()
        if i % 4 == 0 and not bench.unharmed():
            break
    bench.checks.equal("hostile cursors with a right checksum", sum(counts.values()), SEALED)
    good = counts["attached"] and counts["refused"] and not counts["closed"]
    bench.checks.ok(f"each was served or refused by name ({counts})", good, counts)
    bench.unchanged("cursors")


# ---- the ring ----


def thrown_out(bench, client):
    """The error that ends a hostile session. It is seen at the latest when the daemon looks, twice a second apart."""
    try:
        words = client.last_words()
    finally:
        client.close()
    return [w["field"] for w in words if w["op"] == "error"]


def hostile_words(bench):
    seen = {}
    lies = {"beyond published": 10**6, "2^64-1": 2**64 - 1, "one too far": None}
    for name, value in lies.items():
        for wake in (True, False):
            client = Client(bench.daemon.socket).attach()
            client.next()
            wait_for(client.wake_at)  # the ring is full, the daemon sleeps
            client.set_released(client.published() + 1 if value is None else value)
            if wake:
                client.send(b"\0")
            seen[name, wake] = thrown_out(bench, client)
    client = Client(bench.daemon.socket).attach(slots=4)
    for _ in range(8):
        client.next()
    wait_for(lambda: client.published() == 12)
    client.set_released(3)
    client.send(b"\0")
    seen["going backwards"] = thrown_out(bench, client)
    wrong = {k: v for k, v in seen.items() if v != ["released"]}
    bench.checks.ok(
        f"{len(seen)} clients with nonsense in released are thrown out",
        not wrong and bench.unharmed(),
        wrong,
    )

    client = Client(bench.daemon.socket).attach()
    client.data[client.control_at : client.control_at + 4096] = os.urandom(4096)
    client.set_released(0)
    client.data[: client.control_at] = os.urandom(client.control_at)
    got = client.next() is not None
    client.data_words[client.control_at // 8 + 8] = MASK  # it waits for what never comes
    client.close()
    bench.checks.ok("one that scribbles elsewhere harms nobody", got and bench.unharmed())


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


def segments(bench):
    client = Client(bench.daemon.socket).attach()
    meta, data = client.fds
    bench.checks.equal(
        "the meta segment is sealed",
        fcntl.fcntl(meta, F_GET_SEALS),
        SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE,
    )
    bench.checks.equal(
        "and the data segment", fcntl.fcntl(data, F_GET_SEALS), SEAL_SEAL | SEAL_SHRINK | SEAL_GROW
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
    bench.checks.ok("no client can change the meta segment", "allowed" not in seen.values(), seen)
    seen = {
        "shrink": refused_call(lambda: os.ftruncate(data, 0)),
        "grow": refused_call(lambda: os.ftruncate(data, 1 << 30)),
        "seal more": refused_call(lambda: fcntl.fcntl(data, F_ADD_SEALS, 8)),
    }
    bench.checks.ok("nor resize or seal the data segment", "allowed" not in seen.values(), seen)
    os.close(again)
    client.next()
    punch(data, 0, client.control_at)
    for _ in range(12):
        client.next()
    bench.checks.ok("holes in the data segment harm only who punches them", bench.unharmed())
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


def users(bench):
    if os.geteuid() != 0:
        bench.checks.skip("users", "needs root to become another one")
        return
    path = bench.daemon.socket
    try:
        seen = [
            as_nobody(partial(first_words, path, raw))
            for raw in (msgpack.packb(HELLO), b"\xc1\xc1", b"\0" * 1000)
        ]
    except PermissionError as e:
        bench.checks.skip("users", f"cannot become another one: {e}")
        return
    bench.checks.ok(
        "another uid is refused before a packet is parsed",
        seen == ["uid"] * 3 and bench.unharmed(),
        seen,
    )
    advice = f"uid {NOBODY} may not attach: add it to allow_uids"
    wait_for(lambda: advice in bench.daemon.log())  # the log is written a moment later
    bench.checks.has("the log says what to do", bench.daemon.log(), advice)
    config = bench.place.config("users.yaml", streams=bench.streams, allow_uids=[1, NOBODY])
    daemon = Daemon(bench.place, config, bench.place.file("users.sock"))
    seen = as_nobody(lambda: Client(daemon.socket).attach().next().shape)
    bench.checks.equal("with allow_uids it attaches and reads", seen, "(2, 65)")
    bench.checks.equal("that daemon ends with 0", daemon.stop(), 0)


# ---- too many, too slow ----


def descriptors(bench):
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
    bench.checks.ok(
        f"of 150 clients {150 - refused} fit into 90 descriptors, the others are turned away",
        50 < refused < 150,
        refused,
    )
    bench.checks.ok(
        "the witness reads on meanwhile, through all shards", witness.step(1500), witness.wrong
    )
    bench.checks.has("the log says what to raise", daemon.log(), "LimitNOFILE")
    for client in hold:
        client.close()
    wait_for(lambda: daemon.rings() == 1)
    before = daemon.settled_fds()
    for client in [Client(daemon.socket) for _ in range(5)]:
        client.close()
    witness.step(1500)
    bench.checks.equal("with the crowd gone its descriptors are free", daemon.settled_fds(), before)
    bench.checks.ok("  which is less than there are", before < 85, before)
    again = Client(daemon.socket).attach()
    bench.checks.ok("and a new client is served", again.next() is not None and witness.step())
    again.close()
    witness.close()
    bench.checks.equal("exit 0", daemon.stop(), 0)


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


def unread_replies(bench):
    client = Client(bench.daemon.socket)
    question, sent = msgpack.packb({"op": "status", "after": 0}), 0
    try:
        while sent < 100_000:
            client.send(question)
            sent += 1
        seen = "never dropped"
    except (BrokenPipeError, ConnectionResetError):
        seen = None
    bench.checks.ok(
        f"a client that does not read its replies is dropped (after {sent})",
        seen is None and bench.unharmed(),
        seen,
    )
    wait_for(lambda: "does not read its replies" in bench.daemon.log())
    bench.checks.has("the log says so", bench.daemon.log(), "does not read its replies")
    client.close()


def slow_clients(bench, slow):
    for name, thread in slow.items():
        thread.join(15)
        at = thread.seconds
        bench.checks.ok(f"{name}: dropped after 10 s", at is not None and 9.9 < at < 14, at)


# ---- the command line ----

GOOD = """socket: {place}/cli.sock
state_dir: {place}/state
streams:
  train:
    seed: 7
    seq_len: 64
    datasets:
      - {{name: web, path: web, weight: 0.7}}
"""


def scheduled(entry, words):
    """A schedule of this one entry, on line 10."""
    return "weight: 0.7}\n", f"weight: 0.7}}\n    schedule:\n      - {entry}\n", 10, words


CONFIGS = {
    # what is wrong: (text to replace, by what, line, words of the message)
    "an unknown key": ("seed: 7", "seed: 7\n    sead: 8", 6, ["sead"]),
    "a wrong type": ("seed: 7", "seed: seven", 5, ["seed", "seven"]),
    "seq_len 0": ("seq_len: 64", "seq_len: 0", 6, ["seq_len", "1"]),
    "a negative weight": ("weight: 0.7", "weight: -1", 8, ["weight", "-1"]),
    "a weight that is no number": ("weight: 0.7", "weight: .nan", 8, ["weight"]),
    "a missing path": ("path: web", "path: nothing", 8, ["nothing"]),
    "shards shorter than a window": ("seq_len: 64", "seq_len: 1000000", 8, ["window"]),
    "a missing seed": ("    seed: 7\n", "", 4, ["seed"]),
    "no YAML": ("streams:", "streams: {[", None, []),
    "a schedule with an unknown dataset": scheduled(
        "{at: 1024, weights: {wab: 1}}", ["weights.wab", "did you mean web?"]
    ),
    "a schedule with a weight that is no number": scheduled(
        "{at: 1024, weights: {web: .nan}}", ["weights.web", ".nan"]
    ),
    "a schedule with a negative weight": scheduled(
        "{at: 1024, weights: {web: -0.5}}", ["weights.web", "negative"]
    ),
    "a schedule with no weight above 0": scheduled(
        "{at: 1024, weights: {web: 0}}", ["weights", "above 0"]
    ),
    "a schedule without weights": scheduled("{at: 1024}", ["weights", "missing"]),
    "a schedule within a block": scheduled(
        "{at: 1500, weights: {web: 1}}", ["at", "take 1024 or 2048"]
    ),
    "a schedule at 0": scheduled("{at: 0, weights: {web: 1}}", ["at", "ahead"]),
    "a schedule with at and from": scheduled(
        "{at: 1024, from: 1024, weights: {web: 1}}", ["at (line 10) and from"]
    ),
    "a ramp backwards": scheduled(
        "{from: 4096, to: 2048, steps: 1, weights: {web: 1}}", ["to", "behind from"]
    ),
    "a ramp in no steps": scheduled(
        "{from: 0, to: 2048, steps: 0, weights: {web: 1}}", ["steps", "0"]
    ),
    "a ramp in more steps than blocks": scheduled(
        "{from: 0, to: 2048, steps: 3, weights: {web: 1}}", ["steps", "1 to 2"]
    ),
    "a schedule with epochs": (
        "seq_len: 64",
        "seq_len: 64\n    epochs: 1\n    schedule: []",
        8,
        ["schedule", "epochs"],
    ),
    "a schedule with samples": (
        "seq_len: 64",
        "seq_len: 64\n    samples: 9\n    schedule: []",
        8,
        ["schedule", "samples"],
    ),
    "max_epochs of 0": ("weight: 0.7", "max_epochs: 0", 8, ["max_epochs", "1"]),
    "max_epochs with epochs": (
        "weight: 0.7}",
        "max_epochs: 2}\n    epochs: 1",
        8,
        ["max_epochs", "epochs"],
    ),
    "max_epochs of all there is": (
        "weight: 0.7",
        "max_epochs: 1",
        8,
        ["max_epochs", "no dataset is left"],
    ),
}


def configs(bench):
    good = GOOD.format(place=bench.place.path)
    wrong = {}
    for name, (old, new, line, words) in CONFIGS.items():
        path = bench.place.file("bad.yaml")
        assert old in good
        with open(path, "w") as f:
            f.write(good.replace(old, new))
        for arguments in (["-c", path], ["-c", path, "--check"]):
            code, out, err = run(TOKEND, *arguments)
            form = rf"^tokend: {re.escape(path)}:{line if line else '[0-9]+'}: [^\n]+\n$"
            if code != 1 or out or not re.match(form, err) or any(w not in err for w in words):
                wrong[name, arguments[-1]] = (code, out, err)
    bench.checks.ok(
        f"{len(CONFIGS)} faulty configs: exit 1 and one line FILE:LINE: …",
        not wrong and bench.unharmed(),
        wrong,
    )

    path = bench.place.file("good.yaml")
    with open(path, "w") as f:
        f.write(good)
    code, out, err = run(TOKEND, "-c", path, "--check")
    bench.checks.ok(
        "the sound one: exit 0 and what is never served",
        code == 0 and b"never served" in out and not err,
        (code, out, err),
    )
    usages = [
        [],
        ["-c"],
        ["--dance"],
        ["-c", path, "more"],
        ["-c", path, "--linger", "x"],
        ["-c", path, "--linger", "0"],
    ]
    usages += [["-c", path, "--linger", "-1"], ["-c", path, "--linger", "99999999999999999999"]]
    wrong = {}
    for arguments in usages:
        try:
            code, out, err = run(TOKEND, *arguments, timeout=3)
        except Exception as e:
            code, out, err = repr(e), "", "x"
        if code != 2 or out or not err:
            wrong[" ".join(arguments)] = (code, out, err)
    bench.checks.ok(f"{len(usages)} usage faults: exit 2", not wrong, wrong)
    code, _, err = run(TOKEND, "-c", bench.place.file("missing.yaml"))
    good = code == 1 and err.count("\n") == 1 and "missing.yaml" in err
    bench.checks.ok("a config that is not there: exit 1 and one line", good, (code, err))


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed} (give it as argument to repeat)")
    rng = random.Random(seed)
    checks = Checks()
    with Place() as place:
        bench = Bench(checks, place)
        users(bench)  # forks: before there are threads
        slow_daemon = Daemon(place, bench.config, place.file("slow.sock"))
        slow = {
            "a connection without a word": Slow(slow_daemon.socket),
            "a hello without an attach": Slow(slow_daemon.socket, msgpack.packb(HELLO)),
        }
        packets(bench)
        names(bench)
        tolerated(bench)
        mutations(bench, rng)
        attaches(bench)
        foreign_cursors(bench)
        damaged_cursors(bench, rng)
        sealed_cursors(bench, rng)
        hostile_words(bench)
        segments(bench)
        unread_replies(bench)
        descriptors(bench)
        configs(bench)
        slow_clients(bench, slow)
        sessions, total = status(bench.daemon.socket)
        checks.equal(
            "no session but the witness's was left", [s["pid"] for s in sessions], [os.getpid()]
        )
        checks.equal(
            "no wake-up of anybody was lost",
            (sessions[0]["lost_wakes"], total["lost_wakes"]),
            (0, 0),
        )
        bench.witness.close()
        checks.equal("the daemon ends with 0 after all that", bench.daemon.stop(), 0)
        checks.equal("and the slow ones' too", slow_daemon.stop(), 0)
    checks.exit()


if __name__ == "__main__":
    main()
