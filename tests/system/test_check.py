"""tokend --check tries what would fail later, and each bad input gets one clear line. Shards that
contradict the config (another width, tokens not below vocab, a lost index or header) are refused
when the dataset is opened, or when they are first read; unusual but valid shards are not.
"""

import io
import os
import re
import struct

import numpy
import pytest
import zstandard

from lib import TOKCTL, TOKEND, Client, Daemon, Refused, child_environment, has, run

SEQ_LEN = 64
RNG = numpy.random.default_rng(16)
TEXT = b"# The shards of web\n\nTokenized by someone else, and moved here.\n"


def ids(n, vocab=50257, dtype="<u2"):
    return RNG.integers(0, vocab, n, dtype=numpy.uint32).astype(dtype)


def npy(array, damaged=False):
    file = io.BytesIO()
    numpy.save(file, array)
    return bytes(128) + file.getvalue()[128:] if damaged else file.getvalue()


def with_token(n, at, token, dtype="<u2"):
    shard = numpy.zeros(n, dtype)
    shard[at] = token
    return shard


def megatron(tokens):
    """The index of shards with documents of 100 tokens."""
    n, width = len(tokens) // 100, tokens.itemsize
    return b"".join([
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1),
        numpy.full(n, 100, "<i4").tobytes(),
        numpy.arange(0, 100 * n * width, 100 * width, dtype="<i8").tobytes(),
        numpy.arange(n + 1, dtype="<i8").tobytes(),
    ])  # fmt: skip


WEB = {"a.bin": ids(20_000)}
U32 = {"a.bin": ids(100_000, dtype="<u4")}
INT64 = {"a.bin": ids(100_000, dtype="<i8")}
LARGE_IDS = {"a.bin": ids(100_000, 262_144, "<u4")}
SPARSE_U32 = numpy.where(ids(100_000) % 100 == 0, ids(100_000), 0).astype("<u4")
THREE = {f"{i}.bin": ids(10_000) for i in range(3)}
NPY = {f"{i}.npy": npy(ids(10_000)) for i in range(3)}
MANY = {f"{i:03}.bin": ids(2 * (SEQ_LEN + 1)) for i in range(200)}
WIDTH = "a.bin looks like u32 (every second u16 is 0)"

REFUSED = {  # shards, keys of the dataset or the stream or the whole, words of the line
    "u32": (U32, {}, f"{WIDTH}; set dtype: u32"),
    "u32, few": ({"a.bin": ids(200, dtype="<u4")}, {}, f"{WIDTH}; set dtype: u32"),
    "u32, padded": ({"a.bin": SPARSE_U32}, {}, f"{WIDTH}; set dtype: u32"),
    "u32 of bytes": ({"a.bin": ids(100_000, 256, "<u4")}, {}, f"{WIDTH}; set dtype: u32"),
    "u32, said u16": (U32, {"dtype": "u16"}, f"{WIDTH}, but dtype: u16 is set"),
    "ids from 65,536 on": (LARGE_IDS, {}, "looks like u32", "dtype: u32"),
    "u32, compressed": (
        {"a.bin.zst": zstandard.compress(U32["a.bin"].tobytes())}, {}, "looks like u32"),
    "one is u32": (
        {f"{i:02}.bin": ids(5000, dtype="<u4" if i == 10 else "<u2") for i in range(20)}, {},
        "10.bin looks like u32", "but 00.bin does not"),
    "all are u32": ({f"{i}.bin": ids(5000, dtype="<u4") for i in range(3)}, {},
                    "0.bin looks like u32 (every second u16 is 0); set dtype: u32"),
    "the last of 200": (MANY | {"199.bin": ids(SEQ_LEN + 1, dtype="<u4")}, {},
                        "199.bin looks like u32"),
    "int64": (INT64, {}, "a.bin looks like int64", ".npy, which states its type"),
    "int64, large ids": ({"a.bin": ids(100_000, 200_000, "<i8")}, {}, "looks like int64"),
    "int64, said u32": (INT64, {"dtype": "u32"}, "looks like int64"),
    "beyond vocab": (WEB, {"stream": {"vocab": 1000}}, "a.bin: token ",
                     "below the stream's vocab, 1000", "larger vocab"),
    "the last token": ({"a.bin": with_token(30_000, 29_999, 1000)}, {"stream": {"vocab": 1000}},
                       "a.bin: token 29999 is 1000;"),
    "negative": ({"a.npy": npy(with_token(20_000, 77, -5, "<i4"))}, {},
                 "a.npy: token 77 is -5; must be 0 to"),
    **{f"index {i} is lost": (
        THREE | {f"{k}.idx": megatron(THREE[f"{k}.bin"]) for k in range(3) if k != i}, {},
        f"{i}.bin: unknown format", "is megatron", "index is lost") for i in (0, 1, 2)},
    **{f"header {i} is lost": (
        NPY | {f"{i}.npy": npy(ids(10_000), True)}, {},
        f"{i}.npy: unknown format", "is npy", "header is damaged") for i in (0, 1, 2)},
    "the only index": ({"0.bin": ids(10_000, dtype="<i4")}, {}, "0.bin looks like u32"),
    "the only header": ({"a.npy": npy(ids(10_000, dtype="<i4"), True)}, {}, "a.npy looks like u32"),
    "README.md": (WEB | {"README.md": TEXT}, {}, "README.md: is text", "/*.bin"),
    "index.json": (WEB | {"index.json": b'{"chunks": [{"filename": "a.bin"}]}'}, {},
                   "index.json: is a Mosaic index by its name", "/*.bin"),
    "hf": (WEB, {"path": "hf://datasets/web/"}, "path: hf:// is unknown", "gs"),
    "memory: 1": (WEB, {"whole": {"memory": 1}}, "memory: 1 bytes are too few", "set memory: "),
    "state_dir": (WEB, {"whole": {"state_dir": "/proc/x"}}, "state_dir: uid", "/proc/x"),
    "socket": (WEB, {"whole": {"socket": "/none/x/s"}}, "socket: uid", "its directory"),
}  # fmt: skip
ACCEPTED = {  # shards, keys, words
    "u32": (U32, {"dtype": "u32"}),
    "ids from 65,536 on": (LARGE_IDS, {"dtype": "u32"}),
    "below vocab": ({"a.bin": with_token(20_000, 5, 999)}, {"stream": {"vocab": 1000}}),
    "zeros": ({"a.bin": numpy.zeros(100_000, "<u2"), **THREE}, {}),
    "one token only": ({"a.bin": numpy.full(100_000, 7, "<u2"), **THREE}, {}),
    "one token and zeros": ({"a.bin": numpy.tile(numpy.array([7, 0], "<u2"), 50_000), **THREE}, {}),
    "a token in a thousand": ({"a.bin": numpy.where(RNG.random(100_000) < 0.001, ids(100_000), 0)
                               .astype("<u2"), **THREE}, {}),
    "zeros, then tokens": ({"a.bin": numpy.append(numpy.zeros(99_000, "<u2"), ids(1000)), **THREE},
                           {}),
    "padded rows": ({"a.bin": ids(100_000).reshape(-1, 100) * (numpy.arange(100) < 60), **THREE},
                    {}),
    "three tokens": ({"a.bin": ids(100_000, 3), **THREE}, {}),
    "eight tokens": ({"a.bin": numpy.arange(8, dtype="<u2"), **THREE}, {}),
    "counting": ({"a.bin": numpy.arange(60_000, dtype="<u2"), **THREE}, {}),
    "200 shards": (MANY, {}),
    "one of 200, not sampled": (MANY | {"100.bin": ids(SEQ_LEN + 1, dtype="<u4")}, {}),
    "a rehearsal": (
        WEB, {"stream": {"vocab": 50257, "eos": 50256, "documents": True}},
        "a ring of micro_batch 8: 64 slots", "has room for", "read 8 rows: tokens "),
    "names of users": (
        WEB, {"whole": {"allow_uids": ["root", "@root"], "admin_uids": ["daemon"]}}),
}  # fmt: skip


def config(place, shards, about):
    """Writes a config over a directory of files: name → bytes or array."""
    about = dict(about)
    whole, stream = about.pop("whole", {}), about.pop("stream", {})
    for file, content in shards.items():
        with open(place.file("data", file), "wb") as f:
            f.write(content if isinstance(content, bytes) else content.tobytes())
    entry = {"name": "d", "path": "data", "shuffle": "none", **about}
    train = {"seed": 1, "seq_len": SEQ_LEN, "datasets": [entry], **stream}
    return place.config(streams={"train": train}, **whole)


def check(path):
    code, out, err = run(TOKEND, "-c", path, "--check", env=child_environment(HOME="/home/ada"))
    return code, out.decode(), err


@pytest.mark.asan
@pytest.mark.parametrize("row", REFUSED)
def test_bad_input_gets_one_line(place, row):
    shards, about, *words = REFUSED[row]
    path = config(place, shards, about)
    code, _, err = check(path)
    assert (code, err.count("\n")) == (1, 1) and re.match(rf"tokend: ({path}:\d+: )?", err), err
    assert has(err, *words) and ("lost" in row or "format: flat" not in err), err


@pytest.mark.parametrize("row", ACCEPTED)
def test_good_input_is_rehearsed(place, row):
    shards, about, *words = ACCEPTED[row]
    code, out, err = check(config(place, shards, about))
    assert (code, err) == (0, "") and has(out, *words) and "looks like" not in out, (out, err)
    assert not os.path.exists(os.path.join(place.path, "state")), "nothing is left"
    assert not [name for name in os.listdir(place.path) if "check" in name]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_a_directory_that_one_may_not_write_to(place):
    """--check and the start give the same remedy."""
    os.makedirs(place.file("own", "x"))
    os.chmod(place.file("own"), 0o777)
    path = config(place, WEB, {"whole": {"state_dir": os.path.join(place.path, "own", "state")}})
    for arguments in (["--check"], []):
        code, _, err = run(TOKEND, "-c", path, *arguments, user=65534)
        assert code == 1 and err.count("\n") == 1, err
        assert has(err, "uid 65534 cannot create", "have its owner allow that")


# ---- what is found when a shard is first read ----


def stops(place, path):
    """Runs a stream until it stops. Returns (number of rows served, text of the error)."""
    daemon = Daemon(place, path)
    client = Client(daemon.socket).attach(micro=1, slots=4)
    n, text = 0, ""
    try:
        while n < 400:
            client.next()
            n += 1
    except Refused as e:
        text = str(e)
    client.close()
    daemon.stop()
    return n, text


def test_a_width_that_is_set_is_served(place):
    assert stops(place, config(place, U32, {"dtype": "u16"})) == (400, "")


def test_shards_that_are_not_sampled_are_checked_when_read(place):
    assert stops(place, config(place, MANY, {})) == (400, "")
    n, text = stops(place, config(place, *ACCEPTED["one of 200, not sampled"]))
    assert "shard 100.bin at token 0: looks like u32" in text and 190 <= n <= 200, (n, text)


def test_a_start_reads_64_kib_of_64_shards(place):
    shards = {f"{i:03}.bin": ids(200_000) for i in range(150)}
    daemon = Daemon(place, config(place, shards, {}))
    with open(f"/proc/{daemon.pid}/io") as f:
        n = next(int(line.split()[1]) for line in f if line.startswith("rchar:"))
    daemon.stop()
    assert 64 * 60_000 < n < 64 * 80_000, n


@pytest.mark.parametrize(
    "shards, options, status, words",
    [
        (U32, [], 1, [f"{WIDTH[6:]}; set dtype: u32"]),
        (U32, ["--input-dtype", "u16"], 0, ["looks like u32"]),  # a note
        (WEB, [], 0, []),
        (REFUSED["index 1 is lost"][0], [], 1, ["its index is lost"]),
    ],
)
def test_inspect_reports_them(place, shards, options, status, words):
    config(place, shards, {})
    code, out, err = run(TOKCTL, "inspect", *options, place.file("data", "x")[:-2])
    out = out.decode()
    assert code == status and has(out, *words) and ("looks" in out) == (shards is U32), (out, err)
