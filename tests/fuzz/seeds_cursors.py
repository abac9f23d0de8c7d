"""First inputs for the target of cursors: cursors by tokctl, new ones and edits of them."""

import functools
import pathlib
import random
import struct
import sys
import tempfile

import msgpack
from targets import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from lib.process import run  # noqa: E402

TOKCTL = ROOT / "build/gcc/bin/tokctl"
PLAIN = b"\0\0"  # nothing fails


def sized(data):
    return struct.pack("<H", len(data)) + data


CURSOR_CONFIG = """streams:
  endless:
    seed: 7
    seq_len: 4
    datasets:
      - {name: web, path: web.bin, dtype: u16, format: flat, weight: 0.7}
      - {name: code, path: code.bin, dtype: u16, format: flat, weight: 0.3, shuffle: block}
  epochs: {seed: 1, seq_len: 4, epochs: 3, datasets: [{name: web, path: web.bin, dtype: u16}]}
  samples: {seed: 1, seq_len: 4, samples: 5000, datasets: [{name: web, path: web.bin, dtype: u16}]}
  planned:
    seed: 1
    seq_len: 4
    datasets:
      - {name: web, path: web.bin, dtype: u16, weight: 0.7, shuffle: none, slide: true}
      - {name: code, path: code.bin, dtype: u16, weight: 0.3, max_epochs: 20}
    schedule:
      - {at: 1024, weights: {web: 1}}
      - {from: 2048, to: 4096, steps: 2, weights: {web: 1, code: 1}}
  parts:
    seed: 1
    seq_len: 4
    datasets:
      - {name: web, path: web.bin, dtype: u16, weight: 0.7, part: [0.2, 0.9]}
      - {name: code, path: code.bin, dtype: u16, weight: 0.3, part: [0.25, 0.75], max_epochs: 20}
"""


@functools.cache
def cursors():
    made = []
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        place.joinpath("t.yaml").write_text(CURSOR_CONFIG)
        for name, n in ("web", 4000), ("code", 900):
            place.joinpath(name + ".bin").write_bytes(bytes(i * 7 % 251 for i in range(2 * n)))

        def tokctl(*arguments):
            code, _, error = run(TOKCTL, "cursor", *arguments, cwd=place)
            assert code == 0, error
            made.append(place.joinpath("c").read_bytes())

        for stream in "endless", "epochs", "samples", "planned", "parts":
            tokctl("new", stream, "-c", "t.yaml", "-o", "c")
            tokctl("seek", "c", "--to", "100", "-o", "c")
            tokctl("skip", "c", "--samples", "50", "-o", "c")
            if stream == "endless":
                tokctl("mix", "c", "web=1", "code=3", "-o", "c")
                tokctl("mix", "c", "web=1", "code=0", "--at", "8192", "-o", "c")
                tokctl("seek", "c", "--to", "9000", "-o", "c")
    return tuple(made)


def edits():
    chance = random.Random(1)
    for op in range(8):
        yield bytes([op]) + bytes(chance.randrange(256) for _ in range(60))
        yield bytes([op, 1, 200, 8]) + bytes(40)
    yield bytes(chance.randrange(256) for _ in range(300))


def number(value):
    """A number as input_any() takes it."""
    if value and value % 1024 == 0 and value < 1 << 26:
        return b"\6" + struct.pack("<H", value // 1024)
    return b"\3" + struct.pack("<Q", value)


def beginnings():
    """New cursors: see begin() in fuzz_cursor.c."""

    def source(name, weight, windows, epochs):
        limit = b"\1" + number(epochs) if epochs else b"\0"
        text = bytes([len(name)]) + name + bytes([weight])
        return text + number(windows) + number(7) + number(64) * 2 + b"\1\0" + limit

    def steps(*all_steps):
        return bytes([len(all_steps)]) + b"".join(
            number(at) + number(more) + bytes(weights) + number(n)
            for at, more, weights, n in all_steps
        )

    two = source(b"web", 7, 100, 0), source(b"code", 3, 50, 40)
    schedules = [
        steps(), steps((1024, 0, (1, 0), 1)), steps((1024, 8192, (1, 3), 8)),
        steps((1024, 1024, (1, 3), 2)), steps((0, 0, (1, 1), 1)), steps((1000, 0, (1, 1), 1)),
        steps((2048, 4096, (1, 3), 3), (8192, 0, (0, 1), 1)), steps((4096, 0, (0, 0), 1)),
        steps((8192, 0, (1, 1), 1), (2048, 0, (1, 0), 1)), steps((1024, 1 << 40, (1, 3), 1 << 31)),
        steps((1024, 1 << 25, (5, 3), 9999)), steps((1024, 0, (2, 2), 1), (2048, 4096, (3, 1), 4)),
    ]  # fmt: skip
    for kind in 0, 1, 2, 3:
        for extra in schedules:
            head = number(5) + number(4) + b"\1" + number(4) + bytes([kind + 4 * len(two)])
            ends = (number(3) if kind & 1 else b"") + (number(5000) if kind & 2 else b"")
            yield head + b"\5train" + ends + b"".join(two) + extra
        yield head + b"\5train" + ends + two[0] * 2 + steps()
        yield head + b"\1." + ends + b"".join(two) + steps()
        yield head + b"\5train" + ends + source(b"web", 0, 9, 0) + source(b"c", 0, 9, 0) + steps()
        yield head + b"\5train" + ends + source(b"web", 1, 0, 0) + source(b"c", 1, 9, 0) + steps()
        last = number((1 << 64) - 1)
        yield head.replace(number(3), last) + b"\5train" + last * 2 + b"".join(two) + steps()


def schedules():
    """Edits: see edit_schedule() in fuzz_cursor.c."""
    for kind in range(4):
        weights = b"\1\3" if kind & 1 else b""
        limits = number(9) * 2 if kind & 2 else b""
        for at, more, n in (4096, 8192, 4), (8192, 0, 1), (1024, 0, 1), (8192, 1024, 3):
            step = b"\1" + number(at) + number(more) + b"\2\5" + number(n)
            yield bytes([7, kind]) + weights + limits + step
        yield bytes([7, kind]) + weights + limits + b"\0"


def cursor_inputs():
    for cursor in cursors():
        for edit in (*edits(), *schedules()):
            yield PLAIN + b"\1" + sized(cursor) + edit
        for plan in range(1, 12):
            yield bytes([plan, 0, 1]) + sized(cursor)
            yield bytes([plan, 0, 5]) + sized(cursor) + b"".join(edits())
        for n in 0, 5, 15, 17, len(cursor) - 1:
            yield PLAIN + b"\0" + sized(cursor[:n])
    for version in 0, 3:
        data = cursors()[0][:4] + struct.pack("<I", version) + cursors()[0][8:]
        yield PLAIN + b"\0" + sized(data)
    yield from broken_cursors()
    for begin in beginnings():
        for plan in range(12):
            yield bytes([plan, 0, 2]) + sized(begin) + (b"".join(schedules()) if plan == 0 else b"")
        yield PLAIN + b"\2" + sized(begin) + b"".join(edits())


def broken_cursors():
    """Every member of the map left out, or of another type, or with another number."""
    for cursor in cursors():
        whole = msgpack.unpackb(cursor[16:])
        for key, value in whole.items():
            others = ["x", [], 2**63, b"", [1, 2], -1]
            if isinstance(value, list):
                others += [value[:-1], value + value[-1:], [0] * len(value), [2**40] * len(value)]
            if isinstance(value, int):
                others += [value + 1, value - 1 if value else 5, 1024]
            for other in others:
                yield PLAIN + b"\1" + sized(cursor[:16] + msgpack.packb(whole | {key: other}))
            less = {k: v for k, v in whole.items() if k != key}
            yield PLAIN + b"\1" + sized(cursor[:16] + msgpack.packb(less))
        for i in range(16, len(cursor)):
            other = bytes([cursor[i] ^ 1 << i % 8])
            yield PLAIN + b"\1" + sized(cursor[:i] + other + cursor[i + 1 :]) + b"\3\1\2\3\4"
        for raw in b"\x90", b"\xc1", msgpack.packb({**whole, "pending": [1024]}):
            yield PLAIN + b"\1" + sized(cursor[:16] + raw)
