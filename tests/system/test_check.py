"""tokend --check tries what would fail later, and each bad input gets one clear line. Shards that
contradict the config (another width, tokens not below vocab, a lost index or header) are refused
when the dataset is opened, or when they are first read; unusual but valid shards are not.
"""

import gzip
import io
import os
import re
import shutil
import struct

import numpy
import pytest
import pyzstd
import zstandard

from lib import TOKCTL, TOKEND, child_environment, has, run
from lib.shard_writers import npy

SEQ_LEN = 64
RNG = numpy.random.default_rng(16)


def ids(n, vocab=50257, dtype="<u2"):
    return RNG.integers(0, vocab, n, dtype=numpy.uint32).astype(dtype)


def frames(array):
    """Two, with a table."""
    file = io.BytesIO()
    with pyzstd.SeekableZstdFile(file, "w", max_frame_content_size=array.nbytes // 2) as zstd:
        zstd.write(array.tobytes())
    return file.getvalue()


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
THREE = {f"{i}.bin": ids(10_000) for i in range(3)}
NPY = {f"{i}.npy": npy(ids(10_000)) for i in range(3)}
MANY = {f"{i:03}.bin": ids(2 * (SEQ_LEN + 1)) for i in range(200)}
NOT_SAMPLED = MANY | {"100.bin": ids(SEQ_LEN + 1, dtype="<u4")}
NO_INDEX = THREE | {f"{k}.idx": megatron(THREE[f"{k}.bin"]) for k in (0, 2)}
FRAMES = {f"{i:03}.bin.zst": frames(ids(5000)) for i in range(200)}
FRAMES["100.bin.zst"] = bytes(4).join(FRAMES["100.bin.zst"].rsplit(b"\x28\xb5\x2f\xfd", 1))
WIDTH = "a.bin looks like u32 (every second u16 is 0 or small)"

REFUSED = {  # shards, keys of the dataset or the stream or the whole, words of the line
    "u32": (U32, {}, f"{WIDTH}; set dtype: u32"),
    "u32, few": ({"a.bin": ids(200, dtype="<u4")}, {}, f"{WIDTH}; set dtype: u32"),
    "u32, said u16": (U32, {"dtype": "u16"}, f"{WIDTH}, but dtype: u16 is set"),
    "ids from 65,536 on": ({"a.bin": ids(100_000, 262_144, "<u4")}, {}, "looks like u32"),
    "u32, compressed": (
        {"a.bin.zst": zstandard.compress(U32["a.bin"].tobytes())}, {}, "looks like u32"),
    "one is u32": (
        {f"{i:02}.bin": ids(5000, dtype="<u4" if i == 10 else "<u2") for i in range(20)}, {},
        "10.bin looks like u32", "; if only this shard does, move it away"),
    "all are u32": ({f"{i}.bin": ids(5000, dtype="<u4") for i in range(3)}, {},
                    "0.bin looks like u32 (every second u16 is 0 or small); set dtype: u32"),
    "int64": ({"a.bin": ids(100_000, dtype="<i8")}, {}, "a.bin looks like int64", ".npy, which"),
    "beyond vocab": ({"a.bin": with_token(30_000, 29_999, 1000)}, {"stream": {"vocab": 1000}},
                     "a.bin: token 29999 is 1000;", "below the stream's vocab, 1000"),
    "negative": ({"a.npy": npy(with_token(20_000, 77, -5, "<i4"))}, {},
                 "a.npy: token 77 is -5; must be 0 to"),
    "index is lost": (NO_INDEX, {}, "1.bin: format is flat", "is megatron",
                      "if the index of one is lost", "restore that first"),
    "header is lost": (NPY | {"0.npy": bytes(128) + npy(ids(10_000))[128:]}, {},
                       "1.npy: format is npy", "is flat", "header is damaged"),
    "a frame is damaged, not sampled": (FRAMES, {}, "100.bin.zst: zstd frame 1 is damaged"),
    "README.md": (WEB | {"README.md": b"# The shards\n\nof web.\n"}, {}, "README.md: is text",
                  "move it away, or set a pattern that matches only the shards"),
    "hf": (WEB, {"path": "hf://datasets/web/"}, "path: hf:// is unknown", "gs"),
    "memory: 1": (WEB, {"whole": {"memory": 1}}, "memory: 1 bytes are too few", "set memory: "),
    "socket": (WEB, {"whole": {"socket": "/none/at/x"}}, "socket: uid", "create its directory"),
    "state_dir": (WEB, {"whole": {"state_dir": "/dev/null/x"}}, "state_dir: uid", "/dev/null/x"),
}  # fmt: skip
ACCEPTED = {  # shards, keys, words
    "u32": (U32, {"dtype": "u32", "whole": {"socket": "new/x"}}),
    "zeros": ({"a.bin": numpy.zeros(100_000, "<u2"), **THREE}, {}),
    "one token and zeros": ({"a.bin": numpy.tile(numpy.array([7, 0], "<u2"), 50_000), **THREE}, {}),
    "zeros, then tokens": ({"a.bin": numpy.append(numpy.zeros(99_000, "<u2"), ids(1000)), **THREE},
                           {}),
    "padded rows": ({"a.bin": ids(100_000).reshape(-1, 100) * (numpy.arange(100) < 60), **THREE},
                    {}),
    "one of 200, not sampled": (NOT_SAMPLED, {}),
    "a rehearsal": (
        WEB, {"stream": {"vocab": 50257, "eos": 50256, "documents": True}},
        "a ring of micro_batch 8: 64 slots", "has room for", "read 1 windows: tokens "),
    "names of users": (
        WEB, {"whole": {"allow_uids": ["root", "@root"], "admin_uids": ["daemon"]}}),
}  # fmt: skip


DOUBTED = {  # shards, datasets, words
    "pack was killed": (WEB | {"sub/.part-b.bin": b""}, {}, "has not finished an output in"),
    "datatrove was killed": (WEB | {"0_unshuffled.bin": ids(9000)}, {}, "is a file that is being"),
    "a copy in another dataset": (
        WEB | {"b.bin": WEB["a.bin"]},
        {"datasets": [{"name": name, "path": f"data/{name}.bin"} for name in "ab"]},
        "b: shard b.bin has the same tokens as a.bin of dataset a, wherever both were sampled"),
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


@pytest.mark.parametrize("row", DOUBTED)
def test_what_may_not_be_meant_is_said(place, row):
    shards, datasets, words = DOUBTED[row]
    code, out, err = check(config(place, shards, {"stream": datasets}))
    assert (code, err) == (0, "") and words in out, (out, err)


def test_a_loss_mask_without_any_mask(place):
    """A list of document bounds is one: tokens outside documents are masked."""
    about = {"stream": {"loss_mask": True, "vocab": 50257}}
    said = "loss_mask: none of its shards has a mask, so every token counts"
    for gaps in ({}, {"a.csv.gz": gzip.compress(b"0,9000\n12000,20000\n")}):
        code, out, err = check(config(place, WEB | gaps, about))
        assert (code, said in out) == (0, not gaps), (out, err)


def test_an_eos_that_no_token_is(place):
    about = {"stream": {"documents": True, "eos": 50256, "vocab": 50257}}
    said = "none of 32768 sampled tokens is eos, 50256; unless documents are so long, set eos"
    shard = ids(40_000, 50255)
    for shard[0] in (50255, 50256):
        code, out, err = check(config(place, {"a.bin": shard}, about))
        assert (code, said in out) == (0, shard[0] == 50255), (out, err)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_a_directory_that_one_may_not_write_to(place):
    """The start of a daemon whose socket it is gives the remedy."""
    os.makedirs(place.file("own", "x"))
    os.chmod(place.file("own"), 0o777)
    path = config(place, WEB, {"whole": {"state_dir": os.path.join(place.path, "own", "state")}})
    code, _, err = run(TOKEND, "-c", path, user=65534)
    assert code == 1 and err.count("\n") == 1, err
    assert has(err, "uid 65534 cannot create", "have its owner allow that")


def test_inspect_deep_looks_at_shards_that_a_start_does_not_sample(place):
    config(place, NOT_SAMPLED, {})
    code, out, _ = run(TOKCTL, "inspect", "--deep", place.file("data"))
    assert code == 1 and out.decode().count("looks like u32") == 1


def test_inspect_reports_them(place):
    for shards, options, status, words in (
        (U32, [], 1, f"{WIDTH[6:]}; set dtype: u32"),
        (U32, ["--input-dtype", "u16"], 0, "looks like u32"),  # a note
        ({"a.ds": ids(9000)}, ["--input-dtype", "u8"], 1, "dtype must be u16 or u32"),
        (NO_INDEX, [], 1, "is flat, but"),
    ):
        shutil.rmtree(place.file("data", "x")[:-2])
        config(place, shards, {})
        code, out, err = run(TOKCTL, "inspect", *options, place.file("data", "x")[:-2])
        assert code == status and words in out.decode(), (out, err)
