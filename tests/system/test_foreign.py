"""Files that are not shards, alone and among shards: never served as tokens without a word."""

import json
import re
import struct

import numpy
import pytest
import zstandard

from lib import TOKCTL, TOKEND, Daemon, run

rng = numpy.random.default_rng(11)
IDS = numpy.minimum(rng.zipf(1.2, 20_000), 50_256)
TOKENS = rng.permutation(50_257)[IDS].astype("<u2")
RANDOM = rng.bytes(20_000)


def config(place, name, files, vocab=None, **keys):
    for file, content in files.items():
        with open(place.file(name, "data", file), "wb") as f:
            for part in content if isinstance(content, list) else [content]:
                f.write(part if isinstance(part, bytes) else part.tobytes())
                f.seek(1 << 16, 1)  # a hole between parts
    data = {"name": "d", "path": "data", "shuffle": "none", **keys}
    stream = {"seed": 1, "seq_len": 64, "datasets": [data], **({"vocab": vocab} if vocab else {})}
    return place.config(f"{name}/tokend.yaml", socket=place.file("s.sock"), streams={"s": stream})


def check(*args, **keys):
    code, out, err = run(TOKEND, "-c", config(*args, **keys), "--check")
    return code, out.decode() + err


def counted(samples):
    ends = numpy.cumsum([4 * (len(samples) + 2)] + [len(s) for s in samples])
    return struct.pack(f"<I{len(ends)}I", len(samples), *ends) + b"".join(samples)


CONTAINERS = {
    "LITPKDS": b"LITPKDS" + struct.pack("<QBQ", 1, 8, 20_000) + TOKENS.tobytes(),
    "litData": counted([TOKENS[i : i + 100].tobytes() for i in range(0, 5000, 100)]),
    "safetensors": struct.pack("<Q", 100) + json.dumps({"a": "b" * 89}).encode() + RANDOM,
    "Arrow stream": struct.pack("<iii", -1, 400, 16) + RANDOM,
    "UTF-8": "Ein Äußerst kurzer Text, und 中文.\n".encode() * 99,
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_are_refused_under_every_key(place, kind):
    content = CONTAINERS[kind] + b"\0" * (len(CONTAINERS[kind]) % 2)
    for name, file, made, keys in (
        ("raw", "a.bin", content, {}),
        ("zst", "a.bin.zst", zstandard.compress(content), {"vocab": 65536}),
        ("flat", "a.bin", content, {"format": "flat", "dtype": "u16"}),
    ):
        code, said = check(place, name, {file: made}, **keys)
        assert code == 1 and "not a shard of tokens" in said and "format: flat" not in said, said


RANK = ["--rank", 0, "--world", 1, "--micro", 1, "--batches", 1]
UNKNOWN = {
    "random": RANDOM,
    "big-endian": IDS.astype(">u2"),
    "shifted": b"\7" + IDS.astype("<u2").tobytes() + b"\7",
    "u8": rng.zipf(1.3, 40_000).clip(0, 255).astype("u1"),
    "u32 with an odd one": numpy.where(numpy.arange(20_000) == 9, 2**32 - 1, IDS).astype("<u4"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_content_needs_dtype_and_is_doubted_with_it(place, kind):
    """The advice of the refusal is followed."""
    code, said = check(place, "plain", {"a.bin": UNKNOWN[kind]})
    advice = re.search(r"set dtype: (\w+)", said)
    assert code == 1 and ("looks like u32" in said or "does not look like tokens" in said)
    path = config(place, "asked", {"a.bin": UNKNOWN[kind]}, dtype=advice[1], vocab=1 << 32)
    daemon = Daemon(place, path)
    assert run(TOKCTL, "cat", "s", "--socket", daemon.socket, *RANK)[0] == 0
    daemon.stop()


OTHER = TOKENS[::-1]
DOUBTS = [  # what is said, and the shards
    ("never written", {"a.bin": numpy.append(TOKENS, numpy.zeros(20_000, "<u2"))}),
    ("has a hole at byte 100", {"a.bin": [numpy.tile(TOKENS, 25)] * 2}),
    ("of a wider type", {"a.bin": (IDS % 3 + 1).astype("<u4")}),
    ("perhaps a mask", {"a.bin": rng.integers(0, 2, 9000).astype("<u2")}),
    ("repeats four tokens or fewer", {"a.bin": numpy.full(9000, 5, "<u2")}),
    ("no token occurs twice in a sample", {"a.bin": rng.permutation(9000).astype("<u2")}),
    ("x_val_0.bin is validation data by its name (1 of 2",
     {"x_train_0.bin": TOKENS, "x_val_0.bin": OTHER}),
    ("1.part.bin is a file that is being written", {"0.bin": TOKENS, "1.part.bin": OTHER}),
    ("shard 1.bin has the same tokens as 0.bin", {"0.bin": TOKENS, "1.bin": TOKENS}),
    ("a-00000-of-00002.bin is one of 2 by its name, but there are 1;",
     {"a-00000-of-00002.bin": TOKENS, "b-00001-of-00001.bin": OTHER}),
]  # fmt: skip


@pytest.mark.parametrize("words, shards", DOUBTS)
def test_doubtful_shards_are_served_with_a_remark(place, words, shards):
    code, said = check(place, "d", shards)
    assert code == 0 and words in said, said


def test_copies_in_a_manifest_are_named(place):
    shards = {"0.bin": TOKENS, "1.bin": TOKENS[::-1], "2.bin": TOKENS}
    config(place, "d", shards)
    assert run(TOKCTL, "manifest", place.file("d", "data"), place.file("m.jsonl"))[0] == 0
    code, said = check(place, "d", shards, manifest=place.file("m.jsonl"))
    assert code == 0 and "2.bin has the same tokens as 0.bin, by the manifest (1 of 3" in said
