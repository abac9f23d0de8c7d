"""tokctl inspect reports the facts and the problems of shards, from their headers alone or, with
--deep, from all their tokens. test_manifest.py has the manifests that it writes.
"""

import gzip
import json
import os
import struct
import subprocess

import numpy
import pyzstd

from lib import TOKCTL, TOKEND, has, run
from lib.shard_writers import mds, raw, seekable

SUMS = {pyzstd.CParameter.checksumFlag: 1}
IDS = numpy.arange(40, dtype="<u2")


def inspect(*arguments, code=0, **keys):
    done = subprocess.run(
        [TOKCTL, "inspect", "--json", *arguments], capture_output=True, text=True, **keys
    )
    assert done.returncode == code, (arguments, done)
    return [json.loads(line) for line in done.stdout.splitlines()]


def problems(*arguments, code=1, **keys):
    return [line["problems"] for line in inspect(*arguments, code=code, **keys)]


def test_deep_finds_the_largest_token_and_the_first_beyond_vocab(place):
    tokens = numpy.random.default_rng(4).integers(0, 50_000, 3_000_017).astype("<u4")
    tokens[[700_003, 2_500_001]] = 50257, 99999
    tokens.tofile(place.file("v/a.bin"))
    datasets = [{"name": "v", "path": "v", "dtype": "u32"}]
    stream = {"seed": 1, "seq_len": 1000, "vocab": 50257, "datasets": datasets}
    config = place.config(streams={"train": stream})
    (seen,) = inspect("-c", config, "--deep", place.file("v"), code=1)
    assert (seen["windows"], seen["unserved"]) == (3000, 16)  # of the stream's seq_len
    assert seen["max_token"] == 99999
    assert seen["problems"] == [
        "token 700003 is 50257; must be below the vocab of stream train, 50257, "
        "or this is not a file of tokens"
    ]
    numpy.save(place.file("v/b.npy"), tokens[2_500_000:])
    _, seen = problems("-c", config, "--deep", place.file("v"))
    assert len(seen) == 2 and has(seen[0], "token 1 is 99999") and has(seen[1], "is npy, but")


def test_deep_names_the_damaged_frame(place):
    tokens = numpy.random.default_rng(5).integers(0, 5000, 5_000_000).astype("<u2")
    path = place.file("a.bin.zst")
    seekable(".bin.zst", raw, 64 << 10, SUMS)(path[: -len(".bin.zst")], tokens)
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 0x10]))
    ((problem,),) = problems("--deep", path)
    frame = int(problem.split("zstd frame ")[1].split()[0].rstrip(":"))
    assert abs(frame - 5_000_000 * 2 / (64 << 10) / 2) < 20, problem


def megatron(place, name):
    IDS.tofile(place.file(name + ".bin"))
    with open(place.file(name + ".idx"), "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 40, 0, 0, 1))


def said(place, *names, code=0):
    """(path, format, problems…) of each shard."""
    seen = inspect(*names, code=code, cwd=place.path)
    return [(s["path"], s["format"], *s["problems"]) for s in seen]


def test_named_files_equal_their_directory(place):
    """A directory, the files that a shell expands DIRECTORY/* to, and the pattern itself."""
    for name in ("n/a", "n/deep/b", "nn/[c]"):
        megatron(place, name)
    a, b, c = ((f"{name}.bin", "megatron") for name in ("n/a", "n/deep/b", "nn/[c]"))
    for names, wanted in (
        (["n/a.bin", "n/a.idx"], [a]),
        (["n/a.bin", "n/a.idx", "n/deep"], [a, b]),
        (["n/*.bin"], [a]),
        (["n/d*"], [b]),
        (["nn/[c].bin"], [c]),  # the name of an existing file
    ):
        assert said(place, *names) == wanted, names
    assert said(place, "n/*.npy", code=1) == [("n/*.npy", None, "no files found")]
    assert has(said(place, "n/deep/b.bin", "n/a.idx", code=1)[1][2], "is a Megatron index, but its")
    assert problems(place.file("missing"))[0][0].endswith("No such file or directory")
    os.mkdir(place.file("nothing"))
    assert problems(place.file("nothing")) == [["no files found"]]
    subprocess.run([TOKCTL, "manifest", "n/*", "m"], cwd=place.path, check=True)
    listed = [json.loads(line)["path"] for line in open(place.file("m"))]
    assert listed == ["a.bin", "deep/b.bin"]


def test_mixed_formats_are_reported(place):
    """In a directory that the daemon would refuse as a dataset."""
    for name in "ab":
        IDS.tofile(place.file(f"x/{name}.bin"))
        numpy.save(place.file(f"x/{name}.npy"), IDS)
    seen = problems(place.file("x"))
    assert [len(p) for p in seen] == [0, 1, 0, 1] and "is npy, but" in seen[1][0], seen


def test_a_dataset_has_one_mode(place):
    """As in the daemon: samples of a shard are windows only if those of all shards are."""
    stream = {"seed": 1, "seq_len": 39, "datasets": [{"name": "m", "path": "m"}]}
    config = place.config(streams={"train": stream})
    seen = []
    for name, row in (("a", 40), ("b", 41)):
        mds(place.file("m", name), numpy.ones((50, row), "<i4"), None)
        lines = inspect("-c", config, place.file("m"))
        windows = [line["windows"] for line in lines]
        assert f" {sum(windows)} windows" in run(TOKEND, "-c", config, "--check")[1].decode()
        seen.append([(line.get("sample_tokens"), line["documents"]) for line in lines])
        assert inspect("-c", config, place.file("m/a")) == lines[:1]
    assert seen == [[(40, None)], [(None, 50), (None, 50)]] and windows == [51, 52]


def test_a_problem_is_one_line(place):
    """Whatever the names contain; of the daemon too."""
    IDS.tofile(place.file("lf\nname/x.bin"))
    open(place.file("lf\nname/stray.idx"), "wb").write(b"MMIDIDX\0\0")
    words = "lf?name/stray.idx: is a Megatron index"
    assert words in problems(place.file("lf\nname"))[0][0]
    open(place.file("none.bin"), "w").close()
    assert problems(place.file("none.bin")) == [["its size is 0 bytes; write it again"]]


def put(place, name, data):
    with open(place.file(name), "wb") as f:
        f.write(data)


TOKENS = 200_000
MASK = numpy.random.default_rng(7).integers(0, 4, TOKENS) > 0
HIDDEN = int((~MASK).sum())


def masked(*arguments, code=1):
    return [(s.get("masked"), *s["problems"]) for s in inspect(*arguments, code=code)]


def test_masks_next_to_shards_are_checked(place):
    for name in "abc":
        put(place, f"lm/{name}.ds", bytes(2 * TOKENS))
    put(place, "lm/a.ds.loss", MASK.tobytes())
    put(place, "lm/b.ds.loss", MASK[:-1].tobytes())
    root = place.file("lm")
    seen = masked(root)
    assert seen[0] == seen[2] == (None,)
    assert has(seen[1][1], "its loss mask: its size is 199999 bytes; must be 200000, one for each")
    put(place, "lm/b.ds.loss", bytes([1]) * 70_000 + b"\2" + bytes([1]) * 129_999)
    assert masked(root, code=0) == [(None,)] * 3  # its values are not read without --deep
    seen = masked(root, "--deep")
    value = "its loss mask: the value of token 70000 is 2; must be 0 or 1"
    assert [seen[0], seen[1][1:], seen[2]] == [(HIDDEN,), (value,), (None,)]


def test_masks_in_a_directory_are_checked(place):
    for name in "abc":
        put(place, f"om/data/x/{name}.npy", bytes(2 * TOKENS))
    put(place, "om/masks/x/a.npy", MASK.tobytes())
    put(place, "om/masks/x/b.npy", (~MASK).tobytes())
    put(place, "om/masks/x/c.npy", bytes(10))
    datasets = [{"name": "o", "path": "om/./data", "label_mask": "om/masks/"}]
    stream = {"seed": 1, "seq_len": 1000, "loss_mask": True, "datasets": datasets}
    config = place.config(streams={"train": stream})
    seen = masked(place.file("om/data"), "-c", config, "--deep")
    assert seen[:2] == [(HIDDEN,), (TOKENS - HIDDEN,)]
    assert "its loss mask: its size is 10 bytes; must be 200000, one" in seen[2][1]
    put(place, "om/data/x/a.csv.gz", gzip.compress(b"5,10\n10,199990\n"))
    listed = place.file("om/data/x/a.npy")
    assert masked(listed, "--deep", code=0) == [(15,)]  # those outside all documents
