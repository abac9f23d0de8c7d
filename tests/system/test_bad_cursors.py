"""The daemon refuses invalid attaches, damaged cursors and hostile ones, and names the fault."""

import os
import random
import re
import struct

import msgpack
import pytest
from bad_input import without

from lib import TOKCTL, Client, Refused, has, refusal, run, status, wait_for, with_parent
from lib.injected import injected
from lib.order_reference import derive
from lib.wire import MEMORY

pytestmark = pytest.mark.asan  # ASan: no byte outside a message is touched


def refused(bench, field, *words, **keys):
    """An attach is refused by this field, and nobody is harmed. Returns the text."""
    text = refusal(lambda: Client(bench.daemon.socket).attach(**keys).close())
    assert has(text, f": {field}: ", *words) and "\n" not in text and bench.unharmed()
    return text


# ---- attaches ----

LAST = 2**64 - 1


@pytest.mark.parametrize(
    "keys, field, words",
    [
        ({"rank": 2, "world": 2}, "rank", ["2"]),
        ({"rank": LAST, "world": 2**32}, "rank", [str(LAST), str(2**32)]),
        ({"world": 0}, "world", ["0", "2^32"]),
        ({"micro": 0}, "micro_batch", ["0", "65536"]),
        ({"slots": 2**63}, "slots", [str(2**63), "4096"]),
        ({"stream": "wide", "micro": 65536}, "micro_batch", ["65536", "2147614720", "1073741824"]),
        ({"stream": "nowhere"}, "stream", ["nowhere", "tokend.yaml"]),
        ({"stream": "short", "position": 101}, "position", ["101", "100"]),
        ({"cursor_": 0}, "start", ["begin", "position", "tag", "cursor"]),
        ({"begin": 1, "position": 0, "tag": "x", "cursor": b"x"}, "start", ["one of"]),
        ({"tag": "epoch-9"}, "tag", ["epoch-9", "train"]),
        ({"tag": "../../train/x"}, "tag", ["RUN/TAG"]),
    ],
)
def test_invalid_attaches_are_refused(bench, keys, field, words):
    refused(bench, field, *words, **keys)


def test_attaches_at_the_end_and_beyond_memory(bench):
    for start in ({"stream": "short", "position": 100}, {"position": LAST}):
        client = Client(bench.daemon.socket).attach(**start)
        assert (client.end(), client.published()) == (0, 0), "at the very end it gets 0 batches"
        client.close()
    wait_for(lambda: status(bench.daemon.socket)[1]["sessions"] == 1)
    left = bench.limit - status(bench.daemon.socket)[1]["memory_bytes"]
    text = refused(bench, "slots", "memory: ", micro=4096, slots=64)
    need = 4096 * 65 * 2 * 64
    found = [int(n) for n in re.findall(r"\d+", text)]
    assert {left, bench.limit} <= {*found} and any(need < n < need * 1.5 for n in found), text
    injected(21)
    hold = []
    with pytest.raises(Refused) as error:
        while len(hold) < 100:
            hold.append(Client(bench.daemon.socket).attach(micro=1024, slots=4))
    assert error.value.packet["code"] == MEMORY and hold, "it is used up by many sessions"
    for client in hold:
        client.close()
    bench.unchanged("attaches")


# ---- cursors ----


def sealed(body, version=4):
    """A cursor of these contents with a correct checksum."""
    body = (
        body if isinstance(body, bytes) else msgpack.packb(body, unicode_errors="surrogateescape")
    )
    words = (int.from_bytes(body[i : i + 8], "little") for i in range(0, len(body), 8))
    return b"tkdc" + struct.pack("<IQ", version, derive(len(body), *words)) + body


def cursor_of(bench, stream="train", **changes):
    """The cursor of a stream that differs from train by @changes."""
    config = bench.place.config("other.yaml", streams={stream: {**bench.train, **changes}})
    path = bench.place.file("other.cursor")
    code, _, err = run(TOKCTL, "cursor", "new", "-c", config, stream, "-o", path)
    assert code == 0, err
    return open(path, "rb").read()


def test_cursors_of_other_streams_are_refused(bench):
    web, code = bench.train["datasets"]
    listing = lambda *datasets: cursor_of(bench, datasets=list(datasets))
    own = bench.witness.client.feed["cursor"]
    assert cursor_of(bench) == own, "tokctl and tokend make the same cursor"
    for name in ("more/a.bin", "more/c.bin", "renamed/b.bin", "renamed/a2.bin"):
        bench.place.shard(name, 30_000 if "c.bin" in name or "b.bin" in name else 60_000)
    members = msgpack.unpackb(own[16:])
    for cursor, field, words in (
        (cursor_of(bench, stream="valid"), "stream", ["train"]),
        (cursor_of(bench, seed=8), "seed", ["8", "7"]),
        (cursor_of(bench, seq_len=32), "seq_len", ["32", "64"]),
        (cursor_of(bench, samples=1000), "samples", ["1000"]),
        (cursor_of(bench, datasets=[without(web, "weight")], epochs=1), "epochs", ["1"]),
        (listing(web, {**code, "name": "math"}), "dataset math: name", ["no longer"]),
        (listing({**web, "path": "renamed"}, code), "dataset web: shards", ["shards"]),
        (listing(web, {**code, "path": "more/c.bin"}), "dataset code: windows", ["468", "624"]),
        (listing(web, {**code, "block": 16}), "dataset code: block", ["16", "8"]),
        *((own[:4] + bytes([v]) + own[5:], "version", [str(v), "4"]) for v in (0, 1, 3, 5)),
        (own[:-1], "checksum", ["damaged"]),
        (own[:40] + bytes([own[40] ^ 4]) + own[41:], "checksum", ["damaged"]),
        (bytes(96 * 1024), "cursor", ["not a cursor"]),
        (own + bytes(96 * 1024), "cursor", ["98304"]),
        (b"", "cursor", ["0 bytes"]),
        (own + b"\0", "checksum", ["damaged"]),
        (sealed({**members, "order": 2}), "order", ["2", "newer"]),
    ):
        refused(bench, field, *words, cursor=cursor)
        injected(18 if "newer" in words else 39 if field in ("cursor", "checksum") else 17)
    # Of a dataset that is not served, or does not matter for the order, all may differ.
    for cursor in (
        listing(code, {**web, "block": 9, "max_epochs": 7}),
        listing(web, code, {**code, "name": "math", "weight": 0}),
    ):
        client = Client(bench.daemon.socket).attach(cursor=cursor)
        assert client.next() is not None
        client.close()


def test_cursors_with_invalid_members_are_refused(bench):
    """By an attach and by tokctl, with the same field. The checksum is right."""
    web, code = bench.train["datasets"]
    cursor = cursor_of(bench, datasets=[{**web, "part": [0, 0.9]}, {**code, "max_epochs": 2}])
    members = msgpack.unpackb(cursor[16:])
    path = bench.place.file("invalid.cursor")
    web, code = members["datasets"]
    start, units, *more = members["mixes"]
    late, whole = 1 << 20, [2**32, 0]
    datasets = lambda *d: {"datasets": list(d)}
    changes = [  # which members are refused by which field
        *(({key: "x" if isinstance(value, int) else 5}, key) for key, value in members.items()),
        ({"stride": 0}, "stride"),
        ({"extra": 2**64 - 1}, "extra"),
        ({"epochs": 1, "samples": 1}, "samples"),
        ({"stream": "tra\0n"}, "stream"),
        (datasets(web, code[:-1]), "datasets"),
        (datasets(web, web), "dataset web: name"),
        (datasets(["a\nb", *web[1:]], code), "dataset a?b: name"),
        (datasets(["\udcc0\udcaf", *web[1:]], code), "dataset ??: name"),  # no UTF-8
        (datasets(web, [*code[:-3], None, 0, 0]), "datasets"),
        (datasets(web, [*code[:-3], 2, 1, 0]), "datasets"),
        (datasets(web, [*code[:-3], 2, 5, 5]), "dataset code: part"),
        ({"epochs": 1}, "dataset code: max_epochs"),
        ({"base": [1, 0]}, "base"),
        ({"base": [0]}, "base"),
        ({"phase": [1, 0]}, "phase"),
        ({"mixes": [start, [2**31, 2**31 - 1], *more]}, "units"),
        *(({"mixes": x}, "mixes") for x in (
            [], [0], [0, []], [0, 5], [0, whole, late], [0, whole, late, [2**32]],
            [0, whole, late + 1, whole], [0, whole, late, whole, late, whole])),
        ({"mixes": [1024, units, *more], "next": 0}, "base"),
    ]  # fmt: skip
    packed = msgpack.packb(members)
    broken = packed[: packed.index(b"mixes") + 5] + b"\x93"  # fewer values than announced
    cursors = [
        (broken, "cursor", sealed(broken)),
        *((c, f, sealed({**members, **c})) for c, f in changes),
    ]
    wrong = []
    for change, field, cursor in cursors:
        with open(path, "wb") as f:
            f.write(cursor)
        seen = field_of(bench, cursor)
        code_, out, err = run(TOKCTL, "cursor", "show", path)
        begin = f"tokctl: {path}: {field}: "
        if seen != field or code_ != 1 or out or not err.startswith(begin) or err.count("\n") != 1:
            wrong.append((change, field, seen, err))
    with open(path, "wb") as f:
        f.write(b"a checkpoint with " + sealed(members))
    assert run(TOKCTL, "cursor", "show", path)[0] == 0
    assert not wrong and bench.unharmed(), wrong
    injected(39, len(cursors))


def field_of(bench, cursor):
    try:
        Client(bench.daemon.socket).attach(cursor=cursor).close()
        return "attached"
    except Refused as e:
        return e.packet["field"]


# ---- the ring ----


def test_hostile_counters_end_the_session(bench):
    ends = {}
    for name, value in {"far beyond": LAST, "one too far": 1, "backwards": -9}.items():
        client = Client(bench.daemon.socket).attach(slots=4)
        for _ in range(8):
            client.next()
        wait_for(lambda client=client: client.published() == 12)
        client.set_released(value if value == LAST else client.published() + value)
        if value != 1:  # otherwise the daemon looks by itself
            client.send(b"\0")
        ends[name] = [w["field"] for w in client.last_words() if w["op"] == "error"]
        client.close()
    assert ends == dict.fromkeys(ends, ["released"]) and bench.unharmed()
    injected(29, len(ends))


def scribble(path):
    """Writes random control words as fast as it can, until the daemon disconnects it."""
    client = Client(path).attach(run=f"scribbler-{os.getpid()}")
    client.wait()
    words, at, rng = client.data_words, client.control_at // 8, random.Random(os.getpid())
    odd = [0, 1, LAST, *(rng.getrandbits(64) for _ in range(64))]
    for ticks in range(10**7):
        words[at] = client.batch + ticks % 2 * odd[ticks % len(odd)]  # right half of the time
        words[at + 8] = odd[ticks * 7 % len(odd)]
        if ticks % 1000 == 0:
            client.s.send(b"\0")


def test_clients_that_race_with_the_daemons_loads_are_disconnected(bench):
    """A value that changes between a check and its use would be used unchecked."""
    pids = []
    for _ in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            with_parent()
            try:
                scribble(bench.daemon.socket)
            except OSError:
                os._exit(0)
            finally:
                os._exit(1)
    for pid in pids:
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            assert bench.unharmed()
        assert ended[1] == 0, "it was disconnected"
    injected(29, len(pids))
    bench.unchanged("scribblers")
