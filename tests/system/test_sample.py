"""Shards that contradict the config (another width, tokens not below vocab, a lost index or header)
are refused when the dataset is opened, or when they are first read. Unusual but valid shards are
not.
"""

import re
import struct

import numpy
import zstandard

from lib import TOKCTL, TOKEND, Client, Daemon, Refused, run

SEQ_LEN = 64
rng = numpy.random.default_rng(5)


def ids(n, vocab=50257):
    return rng.integers(0, vocab, n, dtype=numpy.uint32)


def dataset(place, name, shards, **about):
    """A config over a directory of files: name → bytes or array. `vocab` is a key of the stream;
    all other keys are the dataset's.
    """
    for file, content in shards.items():
        with open(place.file(name, "data", file), "wb") as f:
            f.write(content if isinstance(content, bytes) else content.tobytes())
    vocab = {k: about.pop(k) for k in ("vocab",) if k in about}
    stream = {
        "seed": 1,
        "seq_len": SEQ_LEN,
        **vocab,
        "datasets": [{"name": "d", "path": "data", "shuffle": "none", **about}],
    }
    return place.config(
        f"{name}/tokend.yaml", socket=place.file("s.sock"), streams={"train": stream}
    )


def check(config):
    code, out, err = run(TOKEND, "-c", config, "--check")
    return code, out.decode(), err


def refused(place, name, shards, *words, **about):
    """Checks for one line that names the config's line and the shard, and says what to do."""
    config = dataset(place, name, shards, **about)
    code, _, err = check(config)
    good = (
        code == 1
        and err.count("\n") == 1
        and re.match(rf"tokend: {re.escape(config)}:\d+: streams\.train\.datasets\[0\]\.", err)
    )
    assert good and all(w in err for w in words), (f"{name}: refused", (code, err, words))


def taken(place, name, shards, *words, **about):
    code, out, err = check(dataset(place, name, shards, **about))
    looks = "looks like" in out
    assert code == 0 and err == "" and looks == bool(words) and all(w in out for w in words), (
        f"{name}: taken",
        (code, out, err),
    )


# ---- the type of flat shards ----


def test_wrong_width_is_refused(place):
    u32 = ".dtype: ", "a.bin looks like u32 (every second u16 is 0); set dtype: u32"
    refused(place, "u32", {"a.bin": ids(100_000).astype("<u4")}, *u32)
    refused(place, "u32, few of them", {"a.bin": ids(200).astype("<u4")}, *u32)
    refused(place, "u32, the tenth of twenty",
            {f"{'a' if i == 9 else i + 10}.bin": ids(5000).astype("<u4" if i == 9 else "<u2")
            for i in range(20)}, "looks like u32", "but 10.bin does not")  # fmt: skip
    refused(
        place,
        "u32, mostly padding",
        {"a.bin": numpy.where(ids(100_000) % 100 == 0, ids(100_000), 0).astype("<u4")},
        *u32,
    )
    refused(place, "u32 of bytes", {"a.bin": ids(100_000, 256).astype("<u4")}, *u32)
    refused(
        place,
        "ids from 65,536 on",
        {"a.bin": ids(100_000, 262_144).astype("<u4")},
        "looks like u32",
        "dtype: u32",
    )
    refused(place, "int64", {"a.bin": ids(100_000).astype("<i8")}, "a.bin looks like int64", ".npy")
    refused(
        place,
        "int64, ids from 65,536 on",
        {"a.bin": ids(100_000, 200_000).astype("<i8")},
        "a.bin looks like int64",
    )
    refused(
        place,
        "u32, compressed",
        {"a.bin.zst": zstandard.compress(ids(100_000).astype("<u4").tobytes())},
        "looks like u32",
    )
    # The daemon serves these, because dtype is set, but --check fails.
    said = "a.bin looks like u32 (every second u16 is 0), but dtype: u16 is set"
    refused(place, "u32, dtype: u16 said", {"a.bin": ids(100_000).astype("<u4")}, said, dtype="u16")
    n, text = stops(place, place.file("u32, dtype: u16 said", "tokend.yaml"))
    assert (n, text) == (400, ""), "it is served"
    refused(
        place,
        "int64, dtype: u32 said",
        {"a.bin": ids(100_000).astype("<i8")},
        "looks like int64",
        dtype="u32",
    )
    taken(place, "u32, dtype: u32 said", {"a.bin": ids(100_000).astype("<u4")}, dtype="u32")
    taken(
        place,
        "ids from 65,536 on, dtype: u32 said",
        {"a.bin": ids(100_000, 200_000).astype("<u4")},
        dtype="u32",
    )


def test_unusual_shards_are_accepted(place):
    sparse = numpy.where(rng.random(100_000) < 0.001, ids(100_000), 0).astype("<u2")
    padded = numpy.concatenate([numpy.zeros(99_000, "<u2"), ids(1000).astype("<u2")])
    runs = ids(100_000).astype("<u2").reshape(-1, 100)
    runs[:, 60:] = 0
    shards = {
        "random": ids(100_000).astype("<u2"),
        "zeros": numpy.zeros(100_000, "<u2"),
        "one token only": numpy.full(100_000, 7, "<u2"),
        "one token and zeros": numpy.tile(numpy.array([7, 0], "<u2"), 50_000),
        "a token in a thousand": sparse,
        "zeros, then tokens": padded,
        "padded rows": runs,
        "five tokens": ids(100_000, 5).astype("<u2"),
        "three tokens": ids(100_000, 3).astype("<u2"),
        "eight tokens": numpy.arange(8, dtype="<u2"),
        "a token and no more": ids(66, 10).astype("<u2"),
        "counting": numpy.arange(60_000, dtype="<u2"),
    }
    for name, shard in shards.items():
        taken(place, name, {"a.bin": shard, "b.bin": ids(1000).astype("<u2")})


# ---- many shards: those not sampled are checked when they are first read ----


def read_bytes(place, config):
    """Bytes that a daemon has read with system calls until it is ready."""
    daemon = Daemon(place, config)
    with open(f"/proc/{daemon.pid}/io") as f:
        n = next(int(line.split()[1]) for line in f if line.startswith("rchar:"))
    daemon.stop()
    return n


def stops(place, config):
    """Runs a stream until it stops. Returns (number of rows served, text of the error)."""
    daemon = Daemon(place, config)
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


def test_many_shards_are_checked_when_read(place):
    shards = {f"{i:03}.bin": ids(2 * (SEQ_LEN + 1)).astype("<u2") for i in range(200)}
    taken(place, "200 shards", shards)
    config = place.file("200 shards", "tokend.yaml")
    n, text = stops(place, config)
    assert n == 400 and text == "", ("they are served one after the other", (n, text))
    shards["100.bin"] = ids(SEQ_LEN + 1).astype("<u4")
    taken(place, "200 shards, one that is not sampled is u32", shards)
    n, text = stops(place, place.file("200 shards, one that is not sampled is u32", "tokend.yaml"))
    told = "shard 100.bin at token 0: looks like u32" in text
    assert told and 190 <= n <= 200, (
        "the stream stops when that shard is opened, before any of its tokens",
        (n, text),
    )
    shards = {f"{i:03}.bin": ids(2 * (SEQ_LEN + 1)).astype("<u2") for i in range(200)}
    shards["199.bin"] = ids(SEQ_LEN + 1).astype("<u4")
    refused(place, "the last of 200", shards, "199.bin looks like u32")
    large = {f"{i:03}.bin": ids(200_000).astype("<u2") for i in range(150)}
    n = read_bytes(place, dataset(place, "large", large))
    assert 64 * 60_000 < n < 64 * 80_000, ("150 shards of 400 KB: 64 KiB of each of 64 are read", n)


# ---- tokens ----


def test_tokens_beyond_vocab_are_refused(place):
    many_ids = ids(100_000, 16_000).astype("<u2")
    many_ids[50_000] = 15_999
    refused(
        place,
        "vocab: 1000",
        {"a.bin": many_ids},
        "a.bin: token ",
        "must be below the stream's vocab, 1000",
        vocab=1000,
    )
    taken(place, "vocab: 16000", {"a.bin": many_ids}, vocab=16_000)
    one = numpy.zeros(30_000, "<u2")
    one[29_999] = 1000
    refused(place, "the last token", {"a.bin": one}, "a.bin: token 29999 is 1000;", vocab=1000)
    negative = numpy.zeros(20_000, "<i4")
    negative[7] = -100
    numpy.save(place.file("negative", "data", "a.npy"), negative)
    with open(place.file("negative", "data", "a.npy"), "rb") as f:
        npy = f.read()
    refused(place, "negative", {"a.npy": npy}, "a.npy: token 7 is -100; must be 0 ")


# ---- lost indexes and headers ----


def megatron(tokens):
    n, width = len(tokens) // 100, tokens.itemsize
    code = {2: 8, 4: 4}[width]
    return b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, n + 1) + struct.pack(f"<{n}i",
    *[100] * n) + struct.pack(
        f"<{n}q", *range(0, 100 * n * width, 100 * width)) + struct.pack(f"<{n + 1}q",
        *range(n + 1))  # fmt: skip


def test_lost_index_or_header_is_refused(place):
    for gone in range(3):
        shards = {f"{i}.bin": ids(10_000).astype("<u2") for i in range(3)}
        indexes = {f"{i}.idx": megatron(shards[f"{i}.bin"]) for i in range(3) if i != gone}
        refused(place, f"{gone}.idx is lost", shards | indexes,
        f"{gone}.bin: unknown format", "is megatron",
                "index is lost", "format: flat")  # fmt: skip
    refused(
        place, "the only .idx is lost", {"0.bin": ids(10_000).astype("<i4")}, "0.bin looks like u32"
    )
    shards = {}
    for i in range(3):
        numpy.save(place.file("npy", f"{i}.npy"), ids(10_000).astype("<u2"))
        shards[f"{i}.npy"] = open(place.file("npy", f"{i}.npy"), "rb").read()
    for i in range(3):
        damaged = bytes(128) + shards[f"{i}.npy"][128:]
        refused(place, f"{i}.npy has no header", shards | {f"{i}.npy": damaged},
        f"{i}.npy: unknown format", "is npy",
                "header is damaged")  # fmt: skip
    numpy.save(place.file("npy", "i4.npy"), ids(10_000).astype("<i4"))
    damaged = bytes(128) + open(place.file("npy", "i4.npy"), "rb").read()[128:]
    refused(place, "the only header is damaged", {"a.npy": damaged}, "a.npy looks like u32")


def test_inspect_reports_them(place):
    dataset(place, "u32", {"a.bin": ids(100_000).astype("<u4")})
    dataset(place, "random", {"a.bin": ids(100_000).astype("<u2")})
    shards = {f"{i}.bin": ids(10_000).astype("<u2") for i in range(3)}
    indexes = {f"{i}.idx": megatron(shards[f"{i}.bin"]) for i in (0, 2)}
    dataset(place, "1.idx is lost", shards | indexes)
    path = place.file("u32", "data", "a.bin")
    code, out, err = run(TOKCTL, "inspect", path)
    assert code == 1 and "looks like u32 (every second u16 is 0); set dtype: u32" in out.decode(), (
        ("tokctl inspect reports it as a problem"),
        (code, out, err),
    )
    code, out, err = run(TOKCTL, "inspect", "--input-dtype", "u16", path)
    assert code == 0 and "looks like u32" in out.decode(), (
        "with a dtype given it is a note",
        (code, out, err),
    )
    code, out, err = run(TOKCTL, "inspect", place.file("random", "data"))
    assert code == 0 and "looks" not in out.decode(), (
        "a valid shard has neither",
        (code, out, err),
    )
    code, out, err = run(TOKCTL, "inspect", place.file("1.idx is lost", "data"))
    assert code == 1 and b"its index is lost" in out, (
        "a lost index is a problem",
        (code, out, err),
    )
