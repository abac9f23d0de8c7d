"""tokctl inspect reports the facts and the problems of shards, from their headers alone or, with
--deep or --manifest, from all their tokens.
"""

import gzip
import json
import os
import pty
import struct
import subprocess

import numpy
import xxhash
import zstandard

from lib import TOKCTL, TOKEND, has
from lib.shard_writers import mds


def inspect(*arguments, code=0):
    done = subprocess.run([TOKCTL, "inspect", "--json", *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done)
    return [json.loads(line) for line in done.stdout.splitlines()]


def seekable(path, data, frame):
    """Compresses with zstandard, and writes the seek table by its format's description."""
    out, entries = b"", b""
    for at in range(0, len(data), frame):
        piece = data[at : at + frame]
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(piece)
        out += packed
        entries += struct.pack(
            "<III", len(packed), len(piece), xxhash.xxh64_intdigest(piece) & 0xFFFFFFFF
        )
    count = len(entries) // 12
    table = entries + struct.pack("<IBI", count, 0x80, 0x8F92EAB1)
    with open(path, "wb") as f:
        f.write(out + struct.pack("<II", 0x184D2A5E, len(table)) + table)
    return count


def digest(tokens):
    """The digest as scan.h defines it."""
    pieces = (
        tokens[at : at + (1 << 20)].astype("<u4").tobytes() for at in range(0, len(tokens), 1 << 20)
    )
    return "%016x" % (
        sum(xxhash.xxh3_64_intdigest(piece, seed=i) for i, piece in enumerate(pieces)) % (1 << 64)
    )


def test_largest_token_is_found(place):
    tokens = numpy.random.default_rng(3).integers(0, 50000, 3_000_017).astype("<u2")
    tokens[2_500_001] = 50256
    path = place.file("large.bin")
    tokens.tofile(path)
    seen = inspect("--deep", path)[0]
    assert (seen["max_token"], seen["problems"]) == (50256, []), "the largest token is found"
    assert "max_token" not in inspect(path)[0], "without --deep it is not"


def test_token_beyond_vocab_is_found(place):
    tokens = numpy.random.default_rng(4).integers(0, 50000, 1_200_000).astype("<u4")
    tokens[[700_003, 1_100_000]] = 50257, 99999
    tokens.tofile(place.file("v/a.bin"))
    config = place.config(
        "v.yaml",
        streams={
            "train": {
                "seed": 1,
                "seq_len": 1000,
                "vocab": 50257,
                "datasets": [{"name": "v", "path": "v", "dtype": "u32"}],
            }
        },
    )
    seen = inspect("-c", config, "--deep", place.file("v"), code=1)[0]
    assert (seen["windows"], seen["unserved"]) == (1199, 999), (
        "windows are those of the stream's seq_len"
    )
    assert seen["max_token"] == 99999, "the largest token"
    problem = (
        "token 700003 is 50257; must be below the vocab of stream train, 50257, "
        "or this is not a file of tokens"
    )
    assert seen["problems"] == [problem], "the first token beyond vocab is named"
    assert inspect("-c", config, place.file("v"))[0]["problems"] == [], (
        "without --deep it is not found"
    )


def test_negative_token_is_found(place):
    tokens = numpy.arange(200_000, dtype="<i4")
    tokens[[77_777, 150_000]] = -5, -6
    path = place.file("negative.npy")
    numpy.save(path, tokens)
    seen = inspect("--deep", path, code=1)[0]
    assert seen["dtype"] == "i32", "a signed dtype is named"
    assert has(seen["problems"][0], "token 77777 is -5"), "the first negative token is named"
    assert has(seen["problems"][0], "(the first of 2 failed reads)"), (
        "the number of failed reads is reported"
    )


def test_damaged_frame_is_named(place):
    tokens = numpy.random.default_rng(5).integers(0, 5000, 5_000_000).astype("<u2")
    path = place.file("damaged.bin.zst")
    frames = seekable(path, tokens.tobytes(), 64 << 10)
    seen = inspect("--deep", path)[0]
    assert (seen["tokens"], seen["max_token"]) == (5_000_000, int(tokens.max())), (
        "a compressed shard is read completely"
    )
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 0x10]))
    assert inspect(path)[0]["problems"] == [], (
        "without --deep a flipped bit of a large shard is not found"
    )
    problems = inspect("--deep", path, code=1)[0]["problems"]
    assert has(problems[0], "zstd frame"), "--deep names the frame"
    assert 0 < int(problems[0].split("zstd frame ")[1].split()[0].rstrip(":")) < frames - 1, (
        "it is the frame in the middle",
        problems,
    )


def test_manifest_lists_shards(place):
    rng = numpy.random.default_rng(6)
    parts = {
        "a.bin": rng.integers(0, 50000, 2_500_000),
        "deep/b.bin": rng.integers(0, 50000, 7),
        "deep/c.bin.zst": rng.integers(0, 50000, 50_001),
    }
    for name, tokens in parts.items():
        path = place.file("m", name)
        raw = tokens.astype("<u2").tobytes()
        seekable(path, raw, 4096) if name.endswith("zst") else open(path, "wb").write(raw)
    place.shard("large.bin", 1000)
    path = place.file("manifest.jsonl")
    inspect("--manifest", path, place.file("m"))
    lines = [json.loads(line) for line in open(path)]
    assert lines == [
        {
            "path": n,
            "format": "flat",
            "dtype": "u16",
            "tokens": len(t),
            "size": os.path.getsize(place.file("m", n)),
            "digest": digest(t),
        }
        | ({"frame_bytes": 4096} if n.endswith("zst") else {"data_at": 0})
        for n, t in parts.items()
    ], "the manifest has these lines, with the digests computed here"
    with open(place.file("m/deep/c.bin.zst"), "r+b") as f:
        f.seek(100)
        f.write(b"xxxx")
    before = open(path).read()
    inspect("--manifest", path, place.file("m"), code=1)
    assert open(path).read() == before, "with a problem the old manifest stays"
    assert [n for n in os.listdir(place.path) if n.startswith("manifest")] == ["manifest.jsonl"], (
        "no temporary file stays"
    )
    done = subprocess.run(
        [TOKCTL, "inspect", "--manifest", path, place.file("m"), place.path + "/large.bin"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "not in one directory" in done.stderr) == (2, True), (
        "paths of two directories are refused"
    )


def test_directory_is_read_with_side_files_skipped(place):
    for name in ("w/one.ds", "w/two.ds"):
        numpy.arange(1000, dtype="<u2").tofile(place.file(name))
    numpy.array([10, 400, 1000], "<u8").tofile(place.file("w/one.ds.index"))
    seen = inspect(place.file("w"))
    assert [(os.path.basename(s["path"]), s["documents"]) for s in seen] == [
        ("one.ds", 3),
        ("two.ds", None),
    ], "side files are skipped"
    os.makedirs(place.file("nothing", "x")[:-2], exist_ok=True)
    assert inspect(place.file("nothing"), code=1)[0]["problems"] == ["contains no files"], (
        "an empty directory is a problem"
    )
    assert has(inspect(place.file("missing"), code=1)[0]["problems"][0], "No such file"), (
        "a missing directory is a problem"
    )


def test_named_files_equal_their_directory(place):
    """A directory, the files that a shell expands DIRECTORY/* to, and the pattern itself print the
    same.
    """
    for name in ("n/a.bin", "n/deep/b.bin", "nn/c.bin"):
        numpy.arange(40, dtype="<u2").tofile(place.file(name))
        with open(place.file(name[:-3] + "idx"), "wb") as f:
            f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 40, 0, 0, 1))
    mds(place.file("p", "0"), numpy.arange(640, dtype="<i4").reshape(-1, 64), 1 << 20)
    os.rename(place.file("p/0/index.json"), place.file("p/index.json"))
    index = open(place.file("p/index.json")).read().replace("shard.0", "0/shard.0")
    open(place.file("p/index.json"), "w").write(index)

    def said(*names, code=0, cwd=place.path):
        done = subprocess.run(
            [TOKCTL, "inspect", "--json", *names], capture_output=True, text=True, cwd=cwd
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == code, f"inspect {names} exits"
        return [(s["path"], s["format"], *s["problems"]) for s in lines]

    both = [("n/a.bin", "megatron"), ("n/deep/b.bin", "megatron")]
    assert said("n/a.bin", "n/a.idx") == both[:1], "a file and its index, one by one"
    assert said("n/a.bin", "n/a.idx", "n/deep") == both, "an index and a directory"
    assert said("p/0", "p/index.json") == [("p/0/shard.00000.mds", "mds")], (
        "an index above the directory of its shard"
    )
    assert said("n/*.bin") == both[:1], "a pattern"
    assert said("n/d*") == both[1:], "a pattern with directories"
    assert said("*.bin", cwd=place.file("n")) == [("a.bin", "megatron")], "a pattern without one"
    assert said("n/*.npy", code=1) == [("n/*.npy", None, "matches no file")], (
        "a pattern that matches nothing is an error"
    )
    os.rename(place.file("nn/c.idx"), place.file("nn/[c].idx"))
    os.rename(place.file("nn/c.bin"), place.file("nn/[c].bin"))
    assert said("nn/[c].bin") == [("nn/[c].bin", "megatron")], (
        "the name of an existing file is not a pattern"
    )
    line = said("n/deep/b.bin", "n/a.idx", code=1)[1][2]
    assert has(line, "is a Megatron index, but its shard (.bin)"), (
        "an index without its shard is a problem"
    )
    path = place.file("named.jsonl")
    said("--manifest", path, "n/a.bin", "n/a.idx")
    assert [json.loads(s)["path"] for s in open(path)] == ["a.bin"], (
        "a manifest is not written with it"
    )
    said("--manifest", path, "n/*", code=0)
    assert [json.loads(s)["path"] for s in open(path)] == ["a.bin", "deep/b.bin"], (
        "a manifest of a pattern"
    )
    done = subprocess.run(
        [TOKCTL, "pack", "n/a.bin", "n/a.idx", "out.bin", "--format", "flat"],
        capture_output=True,
        cwd=place.path,
    )
    assert (done.returncode, os.path.getsize(place.file("out.bin"))) == (0, 80), (
        "pack takes the same paths"
    )
    done = subprocess.run(
        [TOKCTL, "pack", "n/*", "n/out", "--format", "flat"],
        capture_output=True,
        text=True,
        cwd=place.path,
    )
    assert done.returncode == 1 and "n/out: is inside the input n/*" in done.stderr, (
        "pack refuses to read its own output",
        done,
    )
    with (
        open(place.file("twins", "a.bin"), "wb") as raw,
        open(place.file("twins", "a.bin.zst"), "wb") as packed,
    ):
        raw.write(bytes(80))
        packed.write(zstandard.compress(bytes(80)))
    assert has(
        said("twins", code=1)[0][2], "a.bin.zst: exists uncompressed too, as a.bin, so its tokens"
    ), "a shard that also exists compressed is a problem"
    assert said("twins/*.zst") == [("twins/a.bin.zst", "flat")], (
        "a pattern that names one of the two is not"
    )
    for ending, read in ((".bin", "flat"), (".ds", "datatrove"), (".bin.zst", "flat")):
        name = "n" * (255 - len(ending)) + ending
        raw = numpy.arange(40, dtype="<u2").tobytes()
        with open(place.file(name), "wb") as f:
            f.write(zstandard.compress(raw) if ending.endswith(".zst") else raw)
        assert said(name) == [(name, read)], (
            f"a shard with the longest name has no side files ({ending})"
        )
    mds(place.file("empty"), numpy.zeros((0, 64), "<i4"), 1 << 20)
    assert has(said("empty", code=1)[0][2], "(*.mds)"), (
        "an index without shards names the missing ones"
    )


def test_mixed_formats_are_reported(place):
    """In a directory that the daemon would refuse as a dataset, the first two shards that differ
    are named, once.
    """
    for name in ("x/a.bin", "x/b.bin"):
        numpy.arange(100, dtype="<u2").tofile(place.file(name))
    for name in ("x/c.npy", "x/d.npy"):
        numpy.save(place.file(name), numpy.arange(100, dtype="<u2"))
    seen = [s["problems"] for s in inspect(place.file("x"), code=1)]
    told = "is npy, but the format of another shard, a.bin, is unknown"
    assert [len(p) for p in seen] == [0, 0, 1, 0] and told in seen[2][0], ("formats mixed", seen)
    datasets = [{"name": "n", "path": "x/*.npy"}, {"name": "b", "path": "x/*.bin"}]
    config = place.config(
        "x.yaml", streams={"train": {"seed": 1, "seq_len": 10, "datasets": datasets}}
    )
    assert [s["problems"] for s in inspect("-c", config, place.file("x"))] == [[]] * 4, (
        "two datasets may have different formats"
    )
    seen = inspect(place.file("x/a.bin"), place.file("x/c.npy"))
    assert [s["problems"] for s in seen] == [[], []], "files named one by one may differ"


def test_dictionary_is_named(place):
    """A shard compressed with a dictionary is not called damaged; the dictionary is named."""
    rng = numpy.random.default_rng(8)
    samples = [rng.integers(0, 300, 200).astype("<u2").tobytes() for _ in range(500)]
    trained = zstandard.train_dictionary(4096, samples)
    frame = zstandard.ZstdCompressor(dict_data=trained).compress(samples[0])
    table = struct.pack("<II", len(frame), len(samples[0]))
    for name, end in (
        ("walked", b""),
        (
            "table",
            struct.pack("<II", 0x184D2A5E, 17) + table + struct.pack("<IBI", 1, 0, 0x8F92EAB1),
        ),
    ):
        with open(place.file(name + ".bin.zst"), "wb") as f:
            f.write(frame + end)
        problem = (
            f"zstd frame 0: was compressed with dictionary {trained.dict_id()}, which is not "
            "supported; compress it without a dictionary"
        )
        assert inspect(place.file(name + ".bin.zst"), code=1)[0]["problems"] == [problem], (
            f"the dictionary is named ({name})"
        )


def test_problems_are_one_line(place):
    """Problems found without --deep are one line each, whatever the names contain."""
    tokens = numpy.arange(3000, dtype="<u2")
    for name in ("loss/a.ds", "lf\nname/x.bin"):
        tokens.tofile(place.file(name))
    open(place.file("loss/a.ds.loss"), "wb").write(bytes(2999))
    open(place.file("lf\nname/stray.idx"), "wb").write(b"MMIDIDX\0\0")
    said = inspect(place.file("loss"), code=1)[0]["problems"]
    assert said == [
        "a.ds.loss: its size is 2999 bytes; must be 3000, one for each token of the shard"
    ], "a mask of another size is a problem"
    said = inspect(place.file("lf\nname"), code=1)[0]["problems"][0]
    assert has(said, "lf?name/stray.idx: is a Megatron index"), (
        "a name with a line break stays in one line"
    )
    streams = {
        "s": {"seed": 1, "seq_len": 8, "datasets": [{"name": "d", "path": place.file("lf\nname")}]}
    }
    done = subprocess.run(
        [TOKEND, "--check", "-c", place.config(streams=streams)], capture_output=True, text=True
    )
    said = (done.returncode, done.stderr.count("\n"), "lf?name/stray.idx" in done.stderr)
    assert said == (1, 1, True), "the daemon reports it in one line too"
    open(place.file("none.bin"), "w").close()
    said = inspect(place.file("none.bin"), code=1)[0]["problems"]
    assert said == ["its size is 0 bytes; write it again"], "no bytes"
    numpy.full(3000, 2, "u1").tofile(place.file("loss/a.ds.loss"))
    assert inspect(place.file("loss"))[0]["problems"] == [], (
        "a mask's values are not read without --deep"
    )
    said = inspect("--deep", place.file("loss"), code=1)[0]["problems"]
    assert said == ["a.ds.loss: the value of token 0 is 2; must be 0 or 1"], (
        "--deep reads the mask's values"
    )

    # Frames without a content size: only decoding shows that the seek table is wrong about the
    # last one.
    count = seekable(place.file("lie.bin.zst"), tokens.tobytes(), 1024)
    good = open(place.file("lie.bin.zst"), "rb").read()
    lies = (
        (count - 3, 1022, "is damaged"),
        (count - 1, 900, "the seek table says"),
        (1, 0, "has a decompressed size of 0; its"),
    )
    for frame, lie, word in lies:
        at = len(good) - 9 - 12 * (count - frame) + 4
        with open(place.file("lie.bin.zst"), "wb") as f:
            f.write(good[:at] + struct.pack("<I", lie) + good[at + 4 :])
        said = inspect(place.file("lie.bin.zst"), code=1)[0]["problems"][0]
        assert has(said, f"frame {frame}", word), (
            f"a seek table that says {lie} bytes of frame {frame}"
        )


def test_index_is_found_through_links(place):
    """The index above a shard is found by the shard's name, also if only a part of it is given."""
    rows = numpy.arange(640, dtype="<i4").reshape(-1, 64)
    mds(place.file("far", "part"), rows, 1 << 20)
    index = json.load(open(place.file("far", "part", "index.json")))
    os.unlink(place.file("far", "part", "index.json"))
    index["shards"][0]["raw_data"]["basename"] = "link/shard.00000.mds"
    index["shards"][0]["samples"] = 11
    with open(place.file("near", "index.json"), "w") as f:
        json.dump(index, f)
    os.symlink("../far/part", place.file("near", "link"))
    problem = "shards[0].samples is 11"
    for here, name in (
        ("", place.file("near/link/shard.00000.mds")),
        ("", "near/link/shard.00000.mds"),
        ("near", "link"),
        ("near/link", "shard.00000.mds"),
        ("far/part", "../../near/link/shard.00000.mds"),
        ("near", ".//link/./"),
    ):
        done = subprocess.run([TOKCTL, "inspect", "--json", name], capture_output=True, text=True,
            cwd=place.file(here, "x")[:-2],
                              env={**os.environ, "PWD": place.file(here, "x")[:-2]})  # fmt: skip
        seen = [json.loads(line)["problems"] for line in done.stdout.splitlines()]
        assert done.returncode == 1 and problem in seen[0][0], (
            f"the index above {name} in {here or 'its place'} is seen",
            done,
        )
    assert inspect(place.file("far/part"))[0]["problems"] == [], (
        "the directory that the link leads to has no index"
    )


def test_progress_bar_on_a_terminal(place):
    """The progress bar appears on a terminal only."""
    tokens = numpy.zeros(200_000_000, "<u2")
    path = place.file("bar.bin")
    tokens.tofile(path)
    outer, inner = pty.openpty()
    done = subprocess.run(
        [TOKCTL, "inspect", "--deep", "--manifest", place.file("bar.manifest"), path],
        stdout=subprocess.PIPE,
        stderr=inner,
    )
    os.close(inner)
    seen = b""
    try:
        while piece := os.read(outer, 1 << 16):
            seen += piece
    except OSError:  # the terminal is gone when all is read
        pass
    os.close(outer)
    assert done.returncode == 0, "the exit status is the same with a bar"
    assert b"bar.bin [" in seen and b"MB/s" in seen and seen.endswith(b"\r\x1b[K"), (
        "the bar is shown, then removed",
        seen[-200:],
    )
    done = subprocess.run([TOKCTL, "inspect", "--deep", path], capture_output=True)
    assert done.stderr == b"", "without a terminal there is no bar"
    os.unlink(path)


def test_masks_are_checked(place):
    """Loss masks are checked: those next to their shards, and those in a config's label_mask."""
    tokens = numpy.arange(200_000) % 50_000
    mask = numpy.random.default_rng(7).integers(0, 4, len(tokens)) > 0
    hidden = int((~mask).sum())

    def put(name, data):
        with open(place.file(name), "wb") as f:
            f.write(data)

    def said(path, *arguments, code=1):
        seen = inspect(*arguments, place.file(path), code=code)
        return [(s.get("masked"), s["problems"]) for s in seen]

    for name in "abc":
        put(f"lm/{name}.ds", tokens.astype("<u2").tobytes())
    put("lm/a.ds.loss", mask.tobytes())
    put("lm/b.ds.loss", mask[:-1].tobytes())
    short = "b.ds.loss: its size is 199999 bytes; must be 200000, one for each token of the shard"
    assert said("lm") == [(None, []), (None, [short]), (None, [])], "the size of a mask is checked"
    put("lm/b.ds.loss", bytes([1]) * 70_000 + b"\2" + bytes([1]) * 129_999)
    assert said("lm", code=0) == [(None, [])] * 3, "its values are not read"
    value = "b.ds.loss: the value of token 70000 is 2; must be 0 or 1"
    seen = said("lm", "--deep")
    assert [seen[0], seen[1][1], seen[2]] == [(hidden, []), [value], (None, [])], (
        "--deep counts masked tokens, and checks each value"
    )

    stream = {
        "seed": 1,
        "seq_len": 1000,
        "loss_mask": True,
        "datasets": [{"name": "l", "path": "lm"}],
    }
    config = place.config("lm.yaml", streams={"train": stream})
    problem = f"has no loss mask, but {place.file('lm/a.ds')} has one; all shards of a dataset must"
    problem += " have one, or none"
    assert said("lm", "-c", config) == [(None, []), (None, []), (None, [problem])], (
        "in a stream with loss_mask all shards have a mask, or none"
    )

    for name in "abc":
        put(f"om/data/x/{name}.npy", tokens.astype("<u2").tobytes())
    put("om/masks/x/a.npy", mask.tobytes())
    numpy.save(place.file("om/masks/x/b.npy"), ~mask)
    put("om/masks/x/c.npy", bytes(10))
    stream = {
        "seed": 1,
        "seq_len": 1000,
        "datasets": [{"name": "o", "path": "om/./data", "label_mask": "om/masks/"}],
    }
    plain = {"seed": 1, "seq_len": 100, "datasets": [{"name": "o", "path": "om/data"}]}
    config = place.config(
        "om.yaml", streams={"first": plain, "train": {**stream, "loss_mask": True}}
    )
    os.symlink("om/data/x", place.file("om-link"))
    short = (
        "its loss mask c.npy: its size is 10 bytes; must be 200000, one for each token of the shard"
    )
    for path in ("om/data", "om/data/x", "om-link"):
        seen = said(path, "-c", config, "--deep")
        assert seen == [(hidden, []), (len(mask) - hidden, []), (None, [short])], (
            f"label_mask: {path}"
        )
    os.unlink(place.file("om/masks/x/c.npy"))
    assert has(
        said("om/data/x/c.npy", "-c", config)[0][1][0],
        "has no loss mask: ",
        "masks/x/c.npy does not exist",
    ), "a missing mask is a problem"
    assert said("om/data", "--deep", code=0) == [(None, [])] * 3, (
        "without the config masks are not needed"
    )

    put("om/data/x/a.csv.gz", gzip.compress(b"5,10\n10,199990\n"))
    assert said("om/data/x/a.npy", "--deep", code=0) == [(15, [])], (
        "tokens outside all documents are masked too"
    )
    put("om/data/x/a.csv.gz", gzip.compress(b"5,10\n10,199990\n")[:-9])
    assert said("om/data/x/a.npy") == [
        (None, ["a.csv.gz: is truncated: it ends within its gzip data"])
    ], "a list of bounds that is cut short is a problem"
