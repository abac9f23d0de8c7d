"""First inputs of every target, from the real writers: tokctl for cursors, the tables of
proto/wire.c for messages, the pages and tests for configs, and seeds_shards.py for shards.
"""

import functools
import json
import random
import re
import struct
import sys

import msgpack
from targets import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from seeds_cursors import CURSOR_CONFIG, PLAIN, number, cursor_inputs, cursors, sized  # noqa: E402


def failing(data):
    """The input, and the same with failures of early allocations and calls on files."""
    yield PLAIN + data
    for plan in range(1, 8):
        yield bytes([plan, 0]) + data
        for kind in range(4):
            yield bytes([0, plan + 64 * kind]) + data


# ---- messages ----


@functools.cache
def wire_names():
    """The names of the messages, numbers and texts, in the order of the enums."""
    text = (ROOT / "proto/wire.c").read_text()
    tables = re.findall(r"(op|key)_names\[\w+\] = \{(.*?)\};", text, re.S)
    ops, keys = (re.findall(r'= "(\w+)"', table) for _, table in tables)
    return ops, keys[: keys.index("stream")], keys[keys.index("stream") :]


def wires():
    ops, numbers, texts = wire_names()
    limits = [0, 1, 127, 128, 65535, 1 << 32, (1 << 64) - 1]
    for i, op in enumerate(ops):
        for limit in limits:
            message = {"op": op} | {key: limit for key in numbers}
            message |= {key: b"tkdc" if key == "cursor" else "attach" for key in texts}
            yield b"\0" + msgpack.packb(message)
            message |= {key: -1 for key in numbers[:1]} | {"unknown": [1, {"a": None}]}
            yield b"\0" + msgpack.packb(message)
        parts = b"".join(bytes([k, 3]) + b"\7" * 8 for k in range(len(numbers)))
        parts += b"".join(bytes([len(numbers) + k]) + sized(b"text") for k in range(len(texts)))
        yield bytes([i + 1]) + parts
        yield bytes([i + 1])
        yield b"\0" + msgpack.packb({"op": op})
    for name in "a/b", ".a", "é" * 40, "\ud800", "x" * 65, "\x7f", "18446744073709551616", "007":
        message = {"op": "warning", "text": name, "run": name, "path": ""}
        yield b"\0" + msgpack.packb(message, unicode_errors="surrogatepass")
    for value in [1.5, True, None, -5, -200, -40000, -(1 << 40), b"", b"x" * 300, "x" * 70000]:
        yield b"\0" + msgpack.packb({"op": "status", "after": 1, "more": value})
    for raw in (b"", b"\xc1", b"\xc7\1\1a", b"\xd6\1abcd", b"\x91" * 9 + b"\xc0", b"\x82\xa2op",
                b"\xdf\xff\xff\xff\xff", b"\xdd\x80\0\0\0", b"\x80\x80", b"\x90", b"\xca\0\0\0\0",
                b"\xdc\1\1" + b"\1" * 257, b"\x81\xa2op\xd9\0"):  # fmt: skip
        yield b"\0" + raw


# ---- configs ----


def configs():
    yield from failing((ROOT / "config/tokend.yaml").read_bytes())
    for page in sorted(ROOT.glob("**/*.md")):
        if "build" not in page.parts:
            for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S):
                yield PLAIN + block.encode()
    from system.test_bad_configs import CONFIGS, GOOD

    good = GOOD.replace("}", ", weight: 0.7}")
    for text, *_ in CONFIGS:
        if len(text) < 10_000:
            yield PLAIN + (text if isinstance(text, bytes) else text.encode())
    known = good.replace("path: web", "path: web, dtype: u16, format: flat")
    for text in known.encode(), CURSOR_CONFIG.encode():
        for i in range(len(text)):  # cut, or with another byte
            yield PLAIN + text[:i]
            yield PLAIN + text[:i] + bytes([text[i] ^ (1 + i % 127)]) + text[i + 1 :]
    planned = CURSOR_CONFIG.replace(".bin", "")
    for config in (
        known,
        planned,
        planned.replace("seed: 1", "seed: 1\n    eos: 5\n    vocab: 60000"),
    ):
        yield from failing(config.encode())
        for old, new in (
            ("seq_len: 4", "seq_len: 5000"), ("epochs: 3", "epochs: 18446744073709551615"),
            ("samples: 5000", "samples: 1"), ("dtype: u16", "dtype: u32"),
            ("u16", "u16, max_epochs: 1"), ("at: 1024", "at: 18446744073709550592"),
            ("steps: 2", "steps: 3"), ("format: flat", "format: npy"),
            ("{web: 1}", "{code: 1e-300}"), ("max_epochs: 20", "max_epochs: 1"),
            ("vocab: 60000", "vocab: 9"), ("weight: 0.7", "weight: 0"),
            ("web,", "web, block: 7,"), ("seed: 1", "seed: 1\n    extra: 3996"),
        ):  # fmt: skip
            yield PLAIN + config.replace(old, new).encode()
    for key in re.findall(r'\{"(\w+)", \w+', schema_text()):
        for value in "", "x", "1", "-1", ".inf", "[]", "{}", "1e400", "'1'", "true", "!!int 1":
            yield PLAIN + f"{key}: {value}\n".encode()
            yield PLAIN + good.replace("seed: 7", f"seed: 7\n    {key}: {value}").encode()
            yield PLAIN + good.replace("0.7}", f"0.7, {key}: {value}}}").encode()
    for raw in b"", b"\xff", b"[" * 40, b"a: b\n---\nc: d\n", b"a: &x 1\nb: *x\n", b"\0", b"a: [\n":
        yield PLAIN + raw


def schema_text():
    return "".join(p.read_text() for p in sorted((ROOT / "daemon/config").glob("*.c")))


# ---- state_dir, records, rings, manifests ----


def states():
    made = cursors()

    def files(*pairs):
        return b"".join(bytes([name]) + sized(data) for name, data in pairs)

    for flags in range(32):
        for plan in (0, 0), (3, 0), (0, 1 + flags), (0, 64 + flags):
            head = bytes([*plan, flags]) + sized(b"new") + sized(made[flags % len(made)])
            yield head + files((0, made[0]), (3, b"7\n"), (4, made[1]), (5, b"torn"), (6, b"x"))
            yield head + files((1, made[0]), (2, made[1]), (9, made[2]), (10, made[2]))
    for owner in b"", b"7", b"0\n", b"x", b"4294967295\n", b"7\n" * 20, b"70\n":
        yield PLAIN + b"\0" + sized(b"a") + sized(made[0]) + files((3, owner))
    for name in range(17):
        yield PLAIN + b"\2" + sized(b"a") + sized(made[0]) + files((name, made[1]), (0, made[2]))
        yield PLAIN + b"\2" + sized(b"a") + sized(made[0]) + files((name + 128, b""))
    yield PLAIN + b"\0" + sized(b"a") + sized(made[0]) + files((0, bytes(3000)))


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
        events = bytes(chance.randrange(256) for _ in range(600))
        yield PLAIN + bytes([chance.randrange(32)]) + attach + events
    for plan in range(1, 8):
        yield bytes([plan, 0, 9]) + attach + b"\3\0" * 30
    for shape in range(0, 255, 3):
        yield PLAIN + b"\xff" + bytes([shape, 2, 0, 5, 2 + shape % 4]) + bytes([shape % 80, 1] * 8)


def daemons():
    """Actions of clients: see act() in fuzz_daemon.c. An action is 16 · client + its number."""
    hello, close, save, pending, describe = b"\0\1", b"\x0f", b"\6\0\0\1", b"\7", b"\x08"
    status, listen = b"\x0a\0", b"\x11\x12"

    def attach(shape, start, more=b"", client=0):
        return bytes([16 * client + 4, shape, start, 0, 0]) + more

    for shape in range(0, 256, 5):
        session = hello + attach(shape, 0) + save + pending + describe + status
        other = bytes([16, 1]) + attach(shape // 2, 0, client=1) + b"\x1a\0"
        asked = bytes([32, 1, 43, 1, 0, 0, shape % 6, shape % 4, 7, 23])
        answers = bytes([9, 16 * (shape % 8) + shape % 12, 0, 0, 25, 32 + shape % 5, 1, 0])
        heard = pending + b"\x17"
        cancel = bytes([44, shape % 2, 0]) + close
        yield PLAIN + session + other + asked[:-1] + heard + answers + cancel
        yield PLAIN + session + attach(shape, 1, b"\0\5") + save + attach(shape, 2, b"\0") + close
        yield PLAIN + session + other + attach(shape, 3, b"\1\x09\0\7") + attach(shape, 3, b"\0")
        for start in 4, 16, 32, 48, 64, 252, 253, 254, 255:
            yield PLAIN + hello + attach(shape, start, b"\3\xff\xff\xff\xff" * 3)
    for message in list(wires())[::3]:
        if message[0] == 0 and len(message) < 10000:
            yield PLAIN + hello + b"\2" + sized(message[1:]) + listen + sized(message[1:])
    for byte in range(0, 256, 7):
        ring = b"\x0e" + struct.pack("<HB", byte * 8, 3) + b"\xff" * 8 + bytes([byte])
        yield PLAIN + hello + attach(byte, 0) + ring * 3 + status
        yield bytes([byte, 0]) + hello + attach(byte, 0) + save + status
        yield bytes([0, byte]) + hello + attach(byte, 0) + save + attach(byte, 2, b"\0")
        yield PLAIN + hello + b"\x0d" + bytes([byte]) * 9
        yield PLAIN + bytes([0, byte]) + attach(byte, 0) + save + b"\x10\x40" + status
        user = bytes([0, 64]) + attach(byte, 0) + save + bytes([16, 64 * (byte % 2)])
        yield PLAIN + user + attach(byte, 0, client=1) + bytes([43, 1, 0, 0, 0, 0, 27]) + user
    yield PLAIN + hello + b"\2\0\0" + b"\1\2\0\0"
    yield PLAIN + bytes([0, 254]) + bytes([0, 255])
    both = hello + attach(4, 0) + bytes([16, 1]) + attach(5, 0, client=1)
    for kind in range(6):
        for outcome in range(4):
            for cursor in 0, 1:
                told = bytes([16 * outcome + 12, 0, cursor])
                told += (b"\x10\0\5" if cursor else b"") + b"\0\5\0\6"
                asked = bytes([32, 1, 43, 1, 0, 0, kind, 0]) + pending + b"\x17"
                yield PLAIN + both + asked + (b"\x09" + told + b"\x19" + told) * 2
                yield PLAIN + both + asked + b"\x0f" + b"\x19" + told + hello + attach(4, 3, b"\0")
                yield PLAIN + both + asked + b"\x2f\x09" + told + b"\x2c\1"


def clients():
    """Packets of a daemon, and calls of a trainer: see play() and use() in fuzz_client.c."""

    def feed(how=0, more=3, at=1, shape=0x30, published=4, changes=b"\0"):
        end = number(9) if how & 4 else b""
        ring = bytes([shape, 0, published]) + end + b"\2\7" + changes
        later = (b"\5" if how & 8 else b"") + b"".join(
            number(4096) for bit in (32, 64, 128) if how & bit
        )
        return bytes([0, how, more, at]) + ring + later

    calls = bytes(
        [0, 1, 2, 6, 3, 0, 3, 1, 0, 5, 3, 2, 1, 3, 3, 3, 4, 3, 5, 1, 3, 6, 3, 7, 3, 8, 3, 9]
    )
    hello = b"\2\0\1\0"
    for op in range(8):
        for how in 0, 37, 64, 96, 130, 255:
            for serial in 0, 1, 2, 3:
                reply = bytes([2, op, how, serial])
                sent = sized(hello + feed() + reply * 3) + sized(hello + feed()) + sized(reply)
                for call in range(0, 28, 8):
                    yield PLAIN + sent + b"\x80\0" + calls[call:] + calls
    for how in range(0, 256, 3):
        for more in 0, 1, 3, 5, 9, 25, 240, 241, 243:
            first = sized(hello + feed(how, more, shape=how, published=how % 8))
            yield PLAIN + first + first + sized(hello) + bytes([how, how // 3]) + calls
            yield bytes([how % 40, 0]) + first + first + sized(hello) + b"\0\0" + calls
    for byte in range(0, 200):
        changes = b"\1" + struct.pack("<HB", byte, 3 * byte % 256)
        yield PLAIN + sized(hello + feed(changes=changes)) * 3 + b"\0\0" + calls
    for message in list(wires())[::7]:
        if message[0] == 0 and len(message) < 2000:
            sent = sized(hello + b"\5" + sized(message[1:]) + feed() + b"\5" + sized(message[1:]))
            yield PLAIN + sent + sized(b"") * 2 + b"\0\0" + calls


def manifests():
    """Manifests with lines of every format and type."""
    more = {"npy": {"row_tokens": 5}, "mds": {"sample_tokens": 5}}
    more |= {"flat": {"frame_bytes": 4096}, "llmc": {}}
    for name in more:
        for dtype in "u16", "i32", "u64", "i8":
            keys = {"format": name, "dtype": dtype, "tokens": 500, "size": 1000}
            keys |= {"digest": "0123456789abcdef", **more[name]}
            paths = ("a.bin", "a/b.bin", 'b/\u00e9 "x"/c.bin')
            lines = [json.dumps({"path": path, **keys}) for path in paths]
            for data in lines, lines[::-1], lines[:1] * 2:
                yield PLAIN + b"\0" + "".join(line + "\n" for line in data).encode()
            yield from failing(b"\0" + "".join(line + "\n" for line in lines).encode())
            for key in keys:
                for value in None, -1, "", "../x", 1 << 61, 1.5, [], True, "\n", 3, "npy", "u8":
                    changed = json.dumps({"path": "b.bin", **keys, key: value})
                    for before in "", lines[0] + "\n":
                        yield PLAIN + b"\0" + f"{before}{changed}\n".encode()
                less = {k: v for k, v in keys.items() if k != key}
                yield PLAIN + b"\0" + json.dumps({"path": "a.bin", **less}).encode() + b"\n"
    npy = {"format": "npy", "dtype": "u16", "tokens": 500, "size": 1128, "digest": "0" * 16}
    for keys in (
        {**npy, "row_tokens": 5, "sample_tokens": 5}, {**npy, "frame_bytes": 1 << 21},
        {**npy, "frame_bytes": 1 << 19}, {**npy, "format": "mds"}, npy,
    ):  # fmt: skip
        for flag in b"\0", b"\1":
            yield PLAIN + flag + json.dumps({"path": "a.npy", **keys}).encode() + b"\n"
    yield PLAIN + b"\0" + b'{"path": "' + b"x" * 50000 + b'"}\n'
    for path in "", "/a", "a//b", "../a", "a/.", "x" * 5000, "a\u0000b", "\\":
        yield PLAIN + b"\0" + json.dumps({**npy, "path": path}).encode() + b"\n"
    for raw in b"{}", b"\n", b"", b'{"path": "\\ud800"}', b'{"a": tru}', b"{" * 70, b"[1]", b'{"a"':
        yield PLAIN + b"\0" + raw


# ---- answers of stores ----


def answers():
    def asked(kind, size=999, at=100, n=99, body=b""):
        numbers = size.to_bytes(4, "little") if kind & 8 else b""
        numbers += at.to_bytes(3, "little") + n.to_bytes(2, "little")
        return bytes([kind]) + numbers + sized(body)

    good = {
        "ETag": '"e-16"', "Content-Length": "100", "Content-Range": "bytes 100-199/1000",
        "Date": "Sun, 06 Nov 1994 08:49:37 GMT", "Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT",
        "x-amz-bucket-region": "eu-west-1", "x-amz-delete-marker": "true",
        "Content-Encoding": "identity",
    }  # fmt: skip
    values = ("", "0", "18446744073709551615", "bytes */7", "bytes 0-99/100", "gzip", '"\x01"', "9")
    for kind in range(16):
        for status in 200, 206, 301, 403, 404, 412, 416, 429, 503, 99, 99999:
            head = f"HTTP/1.1 {status} x\r\n"
            lines = {key: f"{key}: {value}\r\n" for key, value in good.items()}
            error = b"<Error><Code>SlowDown</Code><Region>a\nb</Region></Error>"
            yield asked(kind, body=error) + (head + "".join(lines.values())).encode()
            for key in good if status in (200, 206, 416, 503) else ():
                for value in values:
                    changed = {**lines, key: f"{key}: {value}\r\n"}
                    yield asked(kind) + (head + "".join(changed.values())).encode()
        yield asked(kind) + (b"X: " + b"y" * 1000 + b"\n") * 70
        yield asked(kind, at=0) + b'HTTP/1.1 200 x\r\nContent-Length: 100\r\nETag: "e-16"\r\n'
        yield asked(kind, body=b"<Code>" + b"x" * 100) + b"HTTP/1.1 400\nno colon\n\x00:\n"


LISTING = (
    "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
    "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t"
    "</NextContinuationToken><Contents><Key>a%20b+%C3%BC</Key><Size>12</Size><ETag>&quot;e-1"
    "&quot;</ETag><Owner><ID>1</ID></Owner></Contents></ListBucketResult>"
)


def stores():
    """Listings, answers with credentials, URLs and shared AWS files, whole and with faults."""
    keys = {"AccessKeyId": "A" * 20, "SecretAccessKey": "s", "Token": "t"}
    ends = "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+00:00", "later", 7, None
    yield from failing(b"\0" + LISTING.encode())
    for old, new in (
        ("12", "-1"), ("12", "9" * 19), ("true", "false"), ("url", "no"), ("%20", "%2"),
        ("<Key>", "<Key>" + "k" * 3000), ("e-1", "e" * 200), ("ListBucketResult", "Error"),
        ("<Size>12</Size>", ""), (">t<", ">" + "t" * 2100 + "<"), ("<?xml", "<!DOCTYPE x><?xml"),
        ("<ID>", "<a><a><a><a><a><a><a><ID>"),
    ):  # fmt: skip
        yield PLAIN + b"\0" + LISTING.replace(old, new).encode()
    many = LISTING[LISTING.index("<Contents>") : LISTING.index("</List")] * 100
    yield PLAIN + b"\0" + LISTING.replace("<Contents>", many + "<Contents>", 1).encode()
    for end in ends:
        yield PLAIN + b"\1" + json.dumps({**keys, "Expiration": end}).encode()
    for name in keys:
        for value in "", "a b", "x" * 9000, 1:
            yield PLAIN + b"\1" + json.dumps({**keys, name: value}).encode()
    for url in (
        "s3://corpus/web/a b%+.bin", "s3:///x", "s3://Corpus/", "s3://a.b.c/", "s3://u:p@b/",
        "lab://corpus/x", "far://a.b/x", "gs://corpus/x", "https://h:443/x", "https://[::1]:8/x",
        "https://h/x?y", "https://u@h/", "http://h/", "lap://c/", "file:///x", "s3://corpus/\n",
        "s3://corpus/" + "k" * 1025, "http://minio:9000", "https://minio/", "https://minio/x",
    ):  # fmt: skip
        yield PLAIN + b"\2" + url.encode()
    text = (
        "# c\n[default]\nx = y\n[{}lab]\naws_access_key_id = A\naws_secret_access_key=s\ns3 =\n"
        "  a = b\nregion = r \ncredential_process = /x y\n\n[other]\nregion = z\n"
    )
    for kind, before in (b"\3", "profile "), (b"\4", ""):
        yield from failing(kind + text.format(before).encode())
        for wrong in "[lab", "[lab]\nx", "[lab]\nregion = " + "r" * 70:
            yield PLAIN + kind + (wrong + "\n" + text.format(before)).encode()
    checksum = 0xBB3302E8A9608868  # XXH64 of 24 zeros, the sums of three pieces
    sums = b"tkdsums1" + struct.pack("<5Q", 1 << 16, 2, 3, 7, checksum) + bytes(24)
    yield from failing(b"\5" + sums)
    for wrong in sums[:-1] + b"\1", sums[:-8], sums + b"\0", sums[:47], b"":
        yield PLAIN + b"\5" + wrong


SEEDS = {
    "wire": wires, "cursor": cursor_inputs, "config": configs, "state": states, "record": records,
    "ring": rings, "daemon": daemons, "client": clients, "manifest": manifests,
    "answer": answers, "store": stores,
}  # fmt: skip


def of(target):
    """The first inputs of a target."""
    if target in SEEDS:
        return SEEDS[target]()
    from seeds_shards import SHARDS

    return SHARDS[target]()
