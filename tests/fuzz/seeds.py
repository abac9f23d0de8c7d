"""First inputs of every target, from the real writers: tokctl, the corpus of all formats, the
tables of proto/wire.c, the pages and the tests of configs. fuzz_TARGET.c says what an input is.
"""

import functools
import json
import pathlib
import random
import re
import struct
import sys
import tempfile

import msgpack

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lib.process import run  # noqa: E402
from system.test_bad_configs import CONFIGS, GOOD  # noqa: E402

PLAIN = b"\0\0"  # nothing fails
NUMBERS = [0, 1, 127, 128, 65535, 1 << 32, (1 << 64) - 1]
pack = msgpack.packb


def sized(data):
    return struct.pack("<H", len(data)) + data


def number(value):
    """A number as input_any() takes it."""
    return b"\3" + struct.pack("<Q", value)


def failing(data):
    """The input, and the same with failures of early allocations and calls on files."""
    yield PLAIN + data
    for plan in range(1, 8):
        yield bytes([plan, 0]) + data
        for kind in range(4):
            yield bytes([0, plan + 64 * kind]) + data


def broken(data, most=150):
    """It is cut, or one byte is another one, most often near an end."""
    ends = *range(most // 3), *range(len(data) - most // 3, len(data))
    for at in {*ends, *range(0, len(data), 1 + len(data) // most)}:
        if 0 <= at < len(data):
            yield data[:at] + bytes([data[at] ^ (1 + at % 127)]) + data[at + 1 :]
            if at % 4 == 0:
                yield data[:at]


def replaced(known):
    """Each value of a dict in turn is missing, or another one."""
    for key, value in known.items():
        yield {k: v for k, v in known.items() if k != key}
        others = [None, -1, "", "x", "../x", 1 << 61, (1 << 64) - 1, 1.5, [], [1, 2], True, 3, "u8"]
        if isinstance(value, int):
            others += [value + 1, abs(value - 1), 1024]
        if isinstance(value, list):
            others += [value[:-1], value * 2, [0] * len(value), [1 << 40] * len(value)]
        for other in others:
            yield known | {key: other}


# ---- messages ----


@functools.cache
def wire_names():
    """The names of the messages, numbers and texts, in the order of the enums."""
    text = (ROOT / "proto/wire.h").read_text()
    lists = re.findall(r"define WIRE_EACH_\w+\(X\)((?:.*\\\n)+.*)", text)
    ops, numbers, texts = (re.findall(r'X\(\w+, "(\w+)"\)', names) for names in lists)
    return ops, numbers, texts


def wires():
    ops, numbers, texts = wire_names()
    for op in ops:
        known = {"op": op} | dict.fromkeys(numbers, 1) | dict.fromkeys(texts, "attach")
        yield pack({"op": op})
        for limit in NUMBERS:
            yield pack(known | dict.fromkeys(numbers, limit) | {"cursor": b"tkdc"})
        yield pack(known | {"unknown": [1, {"a": None}]})
        for key in known:
            yield pack({k: v for k, v in known.items() if k != key})
    values = [1.5, True, None, -5, -200, -40000, -(1 << 40), b"", b"x" * 300, "x" * 70000]
    for value in [*values, "a/b", ".a", "é" * 40, "\x7f", "18446744073709551616", "007"]:
        yield pack({"op": "warning", "text": value, "run": value, "path": ""})
        yield pack({"op": "status", "after": value, "more": value})
    yield from (b"", b"\xc1", b"\xc7\1\1a", b"\xd6\1abcd", b"\x91" * 9 + b"\xc0", b"\x82\xa2op",
                b"\xdf\xff\xff\xff\xff", b"\xdd\x80\0\0\0", b"\x80\x80", b"\x90", b"\xca\0\0\0\0",
                b"\xdc\1\1" + b"\1" * 257, b"\x81\xa2op\xd9\0")  # fmt: skip


def daemons():
    """An action is 16 · client + its number: see act() in fuzz_daemon.c."""

    def say(op, client=0, **keys):
        return bytes([16 * client + 5]) + sized(pack({"op": op, "serial": 9, **keys}))

    def attach(client=0, **keys):
        who = {"stream": "train", "run": "run", "rank": 0, "world": 2, "micro": 2}
        return say("attach", client, **(who | {"peer": 0, "slots": 2} | keys))

    begin, last = {"begin": 1}, {"cursor": b""}
    two = b"\0\1" + attach(**begin) + bytes([16, 1]) + attach(1, rank=1, **begin) + bytes([32, 1])
    save = b"".join(say("checkpoint", tag=tag, cursor=b"") for tag in ("a", "b", ""))
    save += say("checkpoint", tag="run/a", cursor=b"\0\7\1")
    told = say("pending") + say("describe") + say("status", after=0) + say("status", after=3)
    starts = begin, last, {"cursor": b"\0\7\1"}, {"cursor": b"1234"}, {"position": 5}, {"tag": "a"}
    starts += {"tag": ".."}, {"tag": "a.former"}, {"position": (1 << 64) - 1}, {}
    for start in starts:
        for keys in (
            {}, {"helper": 0}, {"helper": 1}, {"replaces": 1}, {"strict": 1},
            {"world": 0}, {"rank": 1 << 40}, {"micro": 70000}, {"slots": 5000}, {"peer": 3},
            {"stream": "none"}, {"stream": "short", "run": ""}, {"run": "a/b"}, {"again": 1},
            {"run": "default"}, {"run": "other", "world": 4, "micro": 4, "rank": 3},
        ):  # fmt: skip
            yield PLAIN + two + save + told + attach(**start, **keys) + save + told + b"\4"
    for kind in "mix", "seek", "skip", "drain", "stop", "add", "", "line\nline":
        for outcome in range(6):
            asked = say("request", 2, stream="train", run="run", kind=kind, args="web=1")
            more = {"cursor": b"\0\7\1" if outcome % 2 else b"", "from": 5, "acts_from": 6}
            answers = b"".join(
                say("answer", i, number=255, outcome=outcome, text="{}", **more) for i in (0, 1)
            )
            end = say("cancel", 2, number=255)
            yield PLAIN + two + asked + say("pending") + answers + answers + end
            yield PLAIN + two + asked + b"\4" + answers + b"\0\1" + attach(**begin) + end
    for message in list(wires())[::3]:
        if len(message) < 10000:
            packet = sized(message)
            yield PLAIN + b"\0\1\5" + packet + b"\5" + packet + b"\x11\x15" + packet
    for byte in range(0, 256, 5):
        ring = b"\3" + struct.pack("<H", byte * 8) + number((1 << 64) - 1) + bytes([byte])
        yield PLAIN + two + ring * 3 + told
        yield bytes([byte, 0]) + two + save + told
        yield bytes([0, byte]) + two + save + attach(tag="a")
        yield PLAIN + b"\0\1\2" + bytes([byte]) * 9
        run = {"run": "default" if byte % 2 else "run", **begin}
        other = bytes([16, 64 + byte // 2]) + attach(1, **run) + say("cancel", 1, number=7)
        yield PLAIN + bytes([0, byte]) + attach(**run) + save + told + other + b"\4" + told
    yield PLAIN + b"\0\1\5\0\0" + bytes([0, 254]) + bytes([0, 255])


def clients():
    """Packets of a daemon, and calls of a trainer: see send_packet() and use() in fuzz_client.c."""

    def packet(op, how=0, **keys):
        return bytes([how]) + sized(pack({"op": op, **keys}))

    def feed(how=0, shape=0x30, published=4, changes=b"\0", **keys):
        known = {"cursor": b"", "contents": 1, "end": (1 << 64) - 1, "meta_bytes": 0}
        ring = bytes([shape, 0, published]) + (number(9) if how & 4 else b"") + b"\2\7" + changes
        return packet("feed", how, **(known | {"data_bytes": 0} | keys)) + ring

    calls = bytes([0, 1, 2, 6, *(c for call in range(10) for c in (3, call)), 0, 3, 1, 0])
    hello = packet("hello", version=1)
    replies = [{"op": "hello", "version": 2}, {"op": "described", "cursor": b""}]
    replies += ({"op": "saved", "tag": tag, "path": "/p", "digest": 1} for tag in ("tag", "other"))
    for kind in "mix", "skip", "drain", "checkpoint", "rescale", "a kind that is far too long":
        for args in "weight 0.5 web\nat 4096\n", "samples x\n", "samples 5\n", "world 3\n", "":
            replies.append({"op": "request", "number": 7, "kind": kind, "args": args})
    for code in "memory", "attach", "data", "none":
        replies.append({"op": "error", "code": code, "field": "line\n", "text": "no", "fault": 3})
        replies.append({"op": "error", "code": code, "field": "x", "text": "", "passing": 1})
    for reply in replies:
        for serial in range(4):
            for more in {}, {"cursor": b"\0\7\1"}, {"cursor": b"1234"}, {"text": "a\nwarning"}:
                sent = b"\0" + sized(pack({**reply, **more, "serial": serial}))
                first = sized(hello + feed() + sent * 3)
                for call in range(0, len(calls), 8):
                    use = b"\x80\0" + calls[call:] + calls
                    yield PLAIN + first + sized(hello + feed()) + sized(sent) + use
    limits = [{}, *({key: 4096} for key in ("end", "meta_bytes", "data_bytes"))]
    for how in range(0, 256, 3):
        for more in (*limits, {"cursor": b"\0\7\1"}, {"cursor": b"1234"}, {"serial": 1, "id": 7},
                     {"run": "other"}, {"run": "a/b"}, {"shards": bytes([8] * 24)}):  # fmt: skip
            first = sized(hello + feed(how, how, how % 8, **more) + b"\xff")
            yield PLAIN + first + first + sized(hello) + bytes([how, how // 3]) + calls
            yield bytes([how % 40, 0]) + first + first + sized(hello) + b"\0\0" + calls
    for byte in range(200):
        changes = b"\1" + struct.pack("<HB", byte, 3 * byte % 256)
        yield PLAIN + sized(hello + feed(changes=changes)) * 3 + b"\0\0" + calls
    for message in list(wires())[::7]:
        if len(message) < 2000:
            sent = b"\0" + sized(message)
            yield PLAIN + sized(hello + sent + feed() + sent) + sized(b"") * 2 + b"\0\0" + calls


# ---- configs, manifests, cursors ----

PLANNED = """streams:
  endless:
    seed: 7
    seq_len: 4
    datasets:
      - {name: web, path: web, dtype: u16, format: flat, weight: 0.7}
      - {name: code, path: code, dtype: u16, format: flat, weight: 0.3, shuffle: block}
  epochs:
    {seed: 1, seq_len: 4, epochs: 3, datasets: [{name: web, path: web, dtype: u16, format: flat}]}
  samples:
    {seed: 1, seq_len: 4, samples: 5000, datasets: [{name: d, path: web, dtype: u16, format: flat}]}
  planned:
    seed: 1
    seq_len: 4
    datasets:
      - {name: web, path: web, dtype: u16, format: flat, shuffle: none, slide: true}
      - {name: code, path: code, dtype: u16, format: flat, max_epochs: 20, part: [0.2, 0.7]}
    schedule:
      - {at: 1024, weights: {web: 1}}
      - {from: 2048, to: 4096, steps: 2, weights: {web: 1, code: 1}}
"""


def configs():
    yield from failing((ROOT / "config/tokend.yaml").read_bytes())
    for page in sorted(ROOT.glob("**/*.md")):
        if "build" not in page.parts:
            for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S):
                yield PLAIN + block.encode()
    for text, *_ in CONFIGS:
        if len(text) < 10_000:
            yield PLAIN + (text if isinstance(text, bytes) else text.encode())
    good = GOOD.replace("}", ", weight: 0.7}")
    for text in good, PLANNED, PLANNED.replace("seed: 1", "seed: 1\n    eos: 5\n    vocab: 60000"):
        yield from failing(text.encode())
        yield from (PLAIN + data for data in broken(text.encode(), len(text)))
        for at in re.finditer(r"(?<=: )[\w.]+", text):  # another value
            for value in *NUMBERS, -1, "1e-300", "x", "u32", "npy", "1.5", 9, 1024, "", "[]":
                yield PLAIN + f"{text[: at.start()]}{value}{text[at.end() :]}".encode()
    for raw in b"", b"\xff", b"[" * 40, b"a: b\n---\nc: d\n", b"a: &x 1\nb: *x\n", b"\0", b"a: [\n":
        yield PLAIN + raw


def manifests():
    """Lines as tokctl writes them for every format, and with other values."""
    known = {"dtype": "u16", "tokens": 500, "size": 1000, "digest": "0123456789abcdef"}
    more = {"npy": {"row_tokens": 5}, "mds": {"sample_tokens": 5}, "flat": {"frame_bytes": 4096}}
    for name in "npy", "mds", "flat", "llmc":
        keys = {"path": "b.bin", "format": name, **known, **more.get(name, {})}
        first = json.dumps({**keys, "path": "a/b \u00e9.bin"}) + "\n"
        lines = first + json.dumps({**keys, "dtype": "u64", "path": "b.bin"}) + "\n"
        yield from failing(b"\0" + lines.encode())
        for changed in *replaced(keys), {**keys, "frame_bytes": 1 << 21}, {**keys, "row_tokens": 5}:
            for before in "", first:
                yield PLAIN + b"\0" + f"{before}{json.dumps(changed)}\n".encode()
        yield from (PLAIN + b"\1" + data for data in broken(lines.encode()))
    for path in "", "/a", "a//b", "a/.", "x" * 5000, "a\u0000b", "\\", "x" * 50000:
        yield PLAIN + b"\0" + json.dumps({**keys, "path": path}).encode() + b"\n"
    for raw in b"{}", b"\n", b"", b'{"path": "\\ud800"}', b'{"a": tru}', b"{" * 70, b"[1]", b'{"a"':
        yield PLAIN + b"\0" + raw


@functools.cache
def cursors():
    """Cursors of tokctl, new ones and edits of them."""
    made = []
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        place.joinpath("t.yaml").write_text(PLANNED)
        for name, n in ("web", 4000), ("code", 900):
            place.joinpath(name).write_bytes(bytes(i * 7 % 251 for i in range(2 * n)))

        def tokctl(*arguments):
            code, _, error = run(
                ROOT / "build/gcc/bin/tokctl", "cursor", *arguments, "-o", "c", cwd=place
            )
            assert code == 0, error
            made.append(place.joinpath("c").read_bytes())

        for stream in "endless", "epochs", "samples", "planned":
            tokctl("new", stream, "-c", "t.yaml")
            tokctl("seek", "c", "--to", "100")
            tokctl("skip", "c", "--samples", "50")
            if stream == "endless":
                tokctl("mix", "c", "web=1", "code=3")
                tokctl("mix", "c", "web=1", "code=0", "--at", "8192")
                tokctl("seek", "c", "--to", "9000")
    return tuple(made)


def edits():
    """See edit() in fuzz_cursor.c."""
    chance = random.Random(1)
    for op in range(8):
        yield bytes([op]) + chance.randbytes(60)
        yield bytes([op, 1, 200, 8]) + bytes(40)
    yield chance.randbytes(300)
    for kind in range(4):  # schedules
        head = bytes([7, kind]) + b"\1\3" * (kind & 1) + number(9) * 2 * (kind // 2)
        for at, more, n in (4096, 8192, 4), (8192, 0, 1), (1024, 0, 1), (8192, 1024, 3):
            yield head + b"\1" + number(at) + number(more) + b"\2\5" + number(n)
        yield head + b"\0"


def cursor_inputs():
    for cursor in cursors():
        for edit in edits():
            yield PLAIN + b"\1" + sized(cursor) + edit
        for plan in range(1, 12):
            yield bytes([plan, 0, 1]) + sized(cursor)
            yield bytes([plan, 0, 5]) + sized(cursor) + b"".join(edits())
        for changed in replaced(msgpack.unpackb(cursor[16:])):
            yield PLAIN + b"\1" + sized(cursor[:16] + pack(changed))
        for data in broken(cursor, len(cursor)):
            yield PLAIN + b"\0" + sized(data)
            yield PLAIN + b"\1" + sized(data) + b"\3\1\2\3\4"
        for raw in b"\x90", b"\xc1":
            yield PLAIN + b"\1" + sized(cursor[:16] + raw)


# ---- state_dir, records, rings ----


def states():
    made = cursors()

    def files(*pairs):
        return b"".join(bytes([name]) + sized(data) for name, data in pairs)

    for flags in range(4):
        for plan in (0, 0), (3, 0), (0, 1 + flags), (0, 64 + flags):
            head = bytes([*plan, flags]) + sized(b"new") + sized(made[flags % len(made)])
            yield head + files((0, made[0]), (2, made[1]), (3, b"torn"), (4, b"x"))
            yield head + files((1, made[0]), (2, made[2]), (5, made[1]))
    head = PLAIN + b"\2" + sized(b"a") + sized(made[0])
    for name in range(8):
        yield head + files((name, made[1]), (0, made[2]))
        yield head + files((name + 128, b""), (0, bytes(3000)))


def records():
    chance = random.Random(3)
    begin, rows = b"\0\0\0\1\0\0", b"\3\x10\4"
    for ranks in range(1, 5):
        parts = b""
        for rank in range(ranks):
            parts += bytes([0, rank << 5, 0, 1]) + b"\3\4\1" + struct.pack("<H", rank * 2)
        for plan in (0, 0), (ranks, 0), (0, ranks), (0, 64 * 3 + ranks):
            for kind in range(4):
                head = bytes(plan) + b"\0\0\x40\0" + bytes([kind])
                yield head + sized(parts) + sized(begin + rows + b"\0\0")
    for _ in range(80):
        parts = bytes(chance.choice([chance.randrange(256), 0, 3, 2, 4]) for _ in range(120))
        yield PLAIN + b"\0\0\xff\0\1" + sized(parts) + sized(parts[::-1])


def rings():
    chance = random.Random(4)
    attach = b"".join(
        bytes([16 * i, 3 + 8 * i, 9 * i, 2 * (i % 2) + 1 + 8 * i, 90, 0]) for i in range(4)
    )
    for _ in range(60):
        yield PLAIN + bytes([chance.randrange(32)]) + attach + chance.randbytes(600)
    for plan in range(1, 8):
        yield bytes([plan, 0, 9]) + attach + b"\3\0" * 30
    for shape in range(0, 255, 3):
        yield PLAIN + b"\xff" + bytes([shape, 2, 0, 5, 2 + shape % 4]) + bytes([shape % 80, 1] * 8)


# ---- stores ----


def answers():
    good = {
        "ETag": '"e-16"', "Content-Length": "100", "Content-Range": "bytes 100-199/1000",
        "Date": "Sun, 06 Nov 1994 08:49:37 GMT", "Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT",
        "x-amz-bucket-region": "eu-west-1", "x-amz-delete-marker": "true",
        "Content-Encoding": "identity",
    }  # fmt: skip
    values = ("", "0", "18446744073709551615", "bytes */7", "bytes 0-99/100", "gzip", '"\x01"', "9")
    error = sized(b"<Error><Code>SlowDown</Code><Region>a\nb</Region></Error>")
    for kind in range(16):
        asked = bytes([kind]) + bytes([231, 3, 0, 0] * (kind // 8)) + b"\x64\0\0\x63\0"
        for status in 200, 206, 301, 403, 404, 412, 416, 429, 503, 99, 99999:
            changes = [good]
            if status in (200, 206, 416, 503):
                changes += ({**good, key: value} for key in good for value in values)
            for headers in changes:
                lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
                yield asked + error + f"HTTP/1.1 {status} x\r\n{lines}".encode()
        yield asked + sized(b"") + (b"X: " + b"y" * 1000 + b"\n") * 70
        yield asked + sized(b"<Code>" + b"x" * 100) + b"HTTP/1.1 400\nno colon\n\x00:\n"


LISTING = (
    "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
    "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t"
    "</NextContinuationToken><Contents><Key>a%20b+%C3%BC</Key><Size>12</Size><ETag>&quot;e-1"
    "&quot;</ETag><Owner><ID>1</ID></Owner></Contents></ListBucketResult>"
)
PROFILE = (
    "# c\n[default]\nx = y\n[{}lab]\naws_access_key_id = A\naws_secret_access_key=s\ns3 =\n"
    "  a = b\nregion = r \ncredential_process = /x y\n\n[other]\nregion = z\n"
)


def stores():
    """Listings, credentials, URLs, shared AWS files and answers, whole and with faults."""
    keys = {"AccessKeyId": "A" * 20, "SecretAccessKey": "s", "Token": "t"}
    keys["Expiration"] = "2026-01-01T00:00:00.5+00:00"
    many = LISTING[LISTING.index("<Contents>") : LISTING.index("</List")] * 100
    for kind, text in enumerate((LISTING, json.dumps(keys), "", PROFILE.format("profile "),
                                 PROFILE.format(""))):  # fmt: skip
        data = text.encode()
        yield from failing(bytes([kind]) + data)
        yield from (PLAIN + bytes([kind]) + other for other in broken(data, 400))
        yield PLAIN + bytes([kind]) + data.replace(b"r ", b"r" * 70) + b"\0"
    for old, new in (
        ("12", "9" * 19), ("true", "false"), ("<Key>", "<Key>" + "k" * 3000), ("e-1", "e" * 200),
        ("ListBucketResult", "Error"), ("<Size>12</Size>", ""), (">t<", ">" + "t" * 2100 + "<"),
        ("<?xml", "<!DOCTYPE x><?xml"), ("<ID>", "<a>" * 7 + "<ID>"),
        ("<Contents>", many + "<Contents>"),
    ):  # fmt: skip
        yield PLAIN + b"\0" + LISTING.replace(old, new).encode()
    for other in *replaced(keys), {**keys, "Token": "x" * 9000}:
        yield PLAIN + b"\1" + json.dumps(other).encode()
    for url in (
        "s3://corpus/web/a b%+.bin", "s3:///x", "s3://Corpus/", "s3://a.b.c/", "s3://u:p@b/",
        "lab://corpus/x", "far://a.b/x", "gs://corpus/x", "https://h:443/x", "https://[::1]:8/x",
        "https://h/x?y", "https://u@h/", "http://h/", "lap://c/", "file:///x", "s3://corpus/\n",
        "s3://corpus/" + "k" * 1025, "http://minio:9000", "https://minio/", "https://minio/x",
    ):  # fmt: skip
        yield PLAIN + b"\2" + url.encode()
    yield from (PLAIN + b"\6" + answer for answer in answers())


SEEDS = {
    "wire": wires, "cursor": cursor_inputs, "config": configs, "state": states, "record": records,
    "ring": rings, "daemon": daemons, "client": clients, "manifest": manifests, "store": stores,
}  # fmt: skip


def of(target):
    """The first inputs of a target."""
    if target in SEEDS:
        return SEEDS[target]()
    from seeds_shards import shards

    return shards(target)
