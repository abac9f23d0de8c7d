#!/usr/bin/env python3
"""tokctl inspect: what it says of good and bad shards, by their headers alone and (--deep, --manifest) by all their tokens."""

import gzip
import json
import os
import pty
import struct
import subprocess

import numpy
import xxhash
import zstandard

from harness import TOKCTL, TOKEND, Checks, Place

from lib.shard_writers import mds  # noqa: E402


def inspect(*arguments, code=0):
    done = subprocess.run([TOKCTL, "inspect", "--json", *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done)
    return [json.loads(line) for line in done.stdout.splitlines()]


def seekable(path, data, frame):
    """Compressed by zstandard, with the seek table written as the format's text says."""
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
    """From scan.h's text."""
    pieces = (
        tokens[at : at + (1 << 20)].astype("<u4").tobytes() for at in range(0, len(tokens), 1 << 20)
    )
    return "%016x" % (
        sum(xxhash.xxh3_64_intdigest(piece, seed=i) for i, piece in enumerate(pieces)) % (1 << 64)
    )


def largest(place, checks):
    tokens = numpy.random.default_rng(3).integers(0, 50000, 3_000_017).astype("<u2")
    tokens[2_500_001] = 50256
    path = place.file("large.bin")
    tokens.tofile(path)
    seen = inspect("--deep", path)[0]
    checks.equal("the largest token is found", (seen["max_token"], seen["problems"]), (50256, []))
    checks.ok("without --deep nothing is said of it", "max_token" not in inspect(path)[0])


def vocabulary(place, checks):
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
    checks.equal(
        "windows are those of the stream's seq_len",
        (seen["windows"], seen["unserved"]),
        (1199, 999),
    )
    checks.equal("the largest token", seen["max_token"], 99999)
    problem = "token 700003 is 50257; must be below the vocab of train, 50257"
    checks.equal("the first token beyond vocab is named", seen["problems"], [problem])
    checks.equal(
        "only --deep looks for it", inspect("-c", config, place.file("v"))[0]["problems"], []
    )


def negative(place, checks):
    tokens = numpy.arange(200_000, dtype="<i4")
    tokens[[77_777, 150_000]] = -5, -6
    path = place.file("negative.npy")
    numpy.save(path, tokens)
    seen = inspect("--deep", path, code=1)[0]
    checks.equal("a signed dtype is named", seen["dtype"], "i32")
    checks.has("the first negative token is named", seen["problems"][0], "token 77777 is -5")
    checks.has("and how many there are", seen["problems"][0], "(the first of 2 reads that fail)")


def damaged(place, checks):
    tokens = numpy.random.default_rng(5).integers(0, 5000, 5_000_000).astype("<u2")
    path = place.file("damaged.bin.zst")
    frames = seekable(path, tokens.tobytes(), 64 << 10)
    seen = inspect("--deep", path)[0]
    checks.equal(
        "a compressed shard is read whole",
        (seen["tokens"], seen["max_token"]),
        (5_000_000, int(tokens.max())),
    )
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 0x10]))
    checks.equal(
        "a flipped bit of a large one is not seen from outside", inspect(path)[0]["problems"], []
    )
    problems = inspect("--deep", path, code=1)[0]["problems"]
    checks.has("--deep names the frame", problems[0], "zstd frame")
    checks.ok(
        "which is that in the middle",
        0 < int(problems[0].split("zstd frame ")[1].split()[0].rstrip(":")) < frames - 1,
        problems,
    )


def manifest(place, checks):
    rng = numpy.random.default_rng(6)
    parts = {
        "a.bin": rng.integers(0, 60000, 2_500_000),
        "deep/b.bin": rng.integers(0, 60000, 7),
        "deep/c.bin.zst": rng.integers(0, 60000, 50_001),
    }
    for name, tokens in parts.items():
        path = place.file("m", name)
        raw = tokens.astype("<u2").tobytes()
        seekable(path, raw, 4096) if name.endswith("zst") else open(path, "wb").write(raw)
    path = place.file("manifest.jsonl")
    inspect("--manifest", path, place.file("m"))
    lines = [json.loads(line) for line in open(path)]
    checks.equal("the manifest's lines, digests computed here", lines, [
        {"path": n, "format": "flat", "dtype": "u16", "tokens": len(t), "size": os.path.getsize(place.file("m", n)), "digest": digest(t)}
        | ({"frame_bytes": 4096} if n.endswith("zst") else {})
        for n, t in parts.items()
    ])  # fmt: skip
    with open(place.file("m/deep/c.bin.zst"), "r+b") as f:
        f.seek(100)
        f.write(b"xxxx")
    before = open(path).read()
    inspect("--manifest", path, place.file("m"), code=1)
    checks.equal("with a problem the former manifest stays", open(path).read(), before)
    checks.equal(
        "and nothing beside it",
        [n for n in os.listdir(place.path) if n.startswith("manifest")],
        ["manifest.jsonl"],
    )
    done = subprocess.run(
        [TOKCTL, "inspect", "--manifest", path, place.file("m"), place.path + "/large.bin"],
        capture_output=True,
        text=True,
    )
    checks.equal(
        "paths of two directories are refused",
        (done.returncode, "relative to one directory" in done.stderr),
        (2, True),
    )


def directory(place, checks):
    for name in ("w/one.ds", "w/two.ds"):
        numpy.arange(1000, dtype="<u2").tofile(place.file(name))
    numpy.array([10, 400, 1000], "<u8").tofile(place.file("w/one.ds.index"))
    seen = inspect(place.file("w"))
    checks.equal(
        "companions are passed over",
        [(os.path.basename(s["path"]), s["documents"]) for s in seen],
        [("one.ds", 3), ("two.ds", None)],
    )
    os.makedirs(place.file("nothing", "x")[:-2], exist_ok=True)
    checks.equal(
        "an empty directory is a problem",
        inspect(place.file("nothing"), code=1)[0]["problems"],
        ["has no files"],
    )
    checks.has(
        "and so is none", inspect(place.file("missing"), code=1)[0]["problems"][0], "No such file"
    )


def named(place, checks):
    """What a shell makes of DIRECTORY/* says the same as the directory, and so does the pattern itself."""
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
        checks.equal(f"inspect {names} exits", done.returncode, code)
        return [(s["path"], s["format"], *s["problems"]) for s in lines]

    both = [("n/a.bin", "megatron"), ("n/deep/b.bin", "megatron")]
    checks.equal("a file and its index, one by one", said("n/a.bin", "n/a.idx"), both[:1])
    checks.equal("an index and a directory", said("n/a.bin", "n/a.idx", "n/deep"), both)
    checks.equal(
        "an index above the directory of its shard",
        said("p/0", "p/index.json"),
        [("p/0/shard.00000.mds", "mds")],
    )
    checks.equal("a pattern", said("n/*.bin"), both[:1])
    checks.equal("a pattern with directories", said("n/d*"), both[1:])
    checks.equal(
        "a pattern without one", said("*.bin", cwd=place.file("n")), [("a.bin", "megatron")]
    )
    checks.equal(
        "a pattern of nothing", said("n/*.npy", code=1), [("n/*.npy", None, "matches no file")]
    )
    os.rename(place.file("nn/c.idx"), place.file("nn/[c].idx"))
    os.rename(place.file("nn/c.bin"), place.file("nn/[c].bin"))
    checks.equal("what is there is no pattern", said("nn/[c].bin"), [("nn/[c].bin", "megatron")])
    line = said("n/deep/b.bin", "n/a.idx", code=1)[1][2]
    checks.has(
        "an index without its shard is no shard",
        line,
        "is a Megatron index, but no shard that it belongs to (.bin)",
    )
    path = place.file("named.jsonl")
    said("--manifest", path, "n/a.bin", "n/a.idx")
    checks.equal("nor is it in a manifest", [json.loads(s)["path"] for s in open(path)], ["a.bin"])
    said("--manifest", path, "n/*", code=0)
    checks.equal(
        "a manifest of a pattern",
        [json.loads(s)["path"] for s in open(path)],
        ["a.bin", "deep/b.bin"],
    )
    done = subprocess.run(
        [TOKCTL, "pack", "n/a.bin", "n/a.idx", "out.bin", "--format", "flat"],
        capture_output=True,
        cwd=place.path,
    )
    checks.equal(
        "pack takes the same", (done.returncode, os.path.getsize(place.file("out.bin"))), (0, 80)
    )
    done = subprocess.run(
        [TOKCTL, "pack", "n/*", "n/out", "--format", "flat"],
        capture_output=True,
        text=True,
        cwd=place.path,
    )
    checks.ok(
        "but not what it puts out",
        done.returncode == 1 and "n/out: lies in n/*" in done.stderr,
        done,
    )
    with (
        open(place.file("twins", "a.bin"), "wb") as raw,
        open(place.file("twins", "a.bin.zst"), "wb") as packed,
    ):
        raw.write(bytes(80))
        packed.write(zstandard.compress(bytes(80)))
    checks.has(
        "a shard beside its compressed self",
        said("twins", code=1)[0][2],
        "a.bin.zst: lies beside a.bin: the same tokens",
    )
    checks.equal("of which a pattern names one", said("twins/*.zst"), [("twins/a.bin.zst", "flat")])
    for ending, read in ((".bin", "flat"), (".ds", "datatrove"), (".bin.zst", "flat")):
        name = "n" * (255 - len(ending)) + ending
        raw = numpy.arange(40, dtype="<u2").tobytes()
        with open(place.file(name), "wb") as f:
            f.write(zstandard.compress(raw) if ending.endswith(".zst") else raw)
        checks.equal(
            f"nothing can lie beside so long a name ({ending})", said(name), [(name, read)]
        )
    mds(place.file("empty"), numpy.zeros((0, 64), "<i4"), 1 << 20)
    checks.has(
        "an index of no shards says which are missing", said("empty", code=1)[0][2], "(*.mds)"
    )


def mixed(place, checks):
    """A directory is a dataset: what the daemon would refuse in it is said, with two examples, once."""
    for name in ("x/a.bin", "x/b.bin"):
        numpy.arange(100, dtype="<u2").tofile(place.file(name))
    for name in ("x/c.npy", "x/d.npy"):
        numpy.save(place.file(name), numpy.arange(100, dtype="<u2"))
    seen = [s["problems"] for s in inspect(place.file("x"), code=1)]
    told = "is npy, and the format of another shard, a.bin, is not known"
    checks.ok("formats mixed", [len(p) for p in seen] == [0, 0, 1, 0] and told in seen[2][0], seen)
    datasets = [{"name": "n", "path": "x/*.npy"}, {"name": "b", "path": "x/*.bin"}]
    config = place.config(
        "x.yaml", streams={"train": {"seed": 1, "seq_len": 10, "datasets": datasets}}
    )
    checks.equal(
        "of two datasets each has its own",
        [s["problems"] for s in inspect("-c", config, place.file("x"))],
        [[]] * 4,
    )
    seen = inspect(place.file("x/a.bin"), place.file("x/c.npy"))
    checks.equal(
        "files that are named are looked at one by one", [s["problems"] for s in seen], [[], []]
    )


def dictionary(place, checks):
    """Which zstd could not decode without it: it is not damaged."""
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
        problem = f"zstd frame 0: was compressed with dictionary {trained.dict_id()}; must be without one: compress it again without"
        checks.equal(
            f"a dictionary is named ({name})",
            inspect(place.file(name + ".bin.zst"), code=1)[0]["problems"],
            [problem],
        )


def refused(place, checks):
    """What is found out without --deep: one line each, whatever names are in it."""
    tokens = numpy.arange(3000, dtype="<u2")
    for name in ("loss/a.ds", "lf\nname/x.bin"):
        tokens.tofile(place.file(name))
    open(place.file("loss/a.ds.loss"), "wb").write(bytes(2999))
    open(place.file("lf\nname/stray.idx"), "wb").write(b"MMIDIDX\0\0")
    said = inspect(place.file("loss"), code=1)[0]["problems"]
    checks.equal(
        "a mask of another size",
        said,
        ["a.ds.loss: its size is 2999 bytes; must be 3000, one for each token of the shard"],
    )
    said = inspect(place.file("lf\nname"), code=1)[0]["problems"][0]
    checks.has("a name with a line's end", said, "lf?name/stray.idx: is a Megatron index")
    streams = {
        "s": {"seed": 1, "seq_len": 8, "datasets": [{"name": "d", "path": place.file("lf\nname")}]}
    }
    done = subprocess.run(
        [TOKEND, "--check", "-c", place.config(streams=streams)], capture_output=True, text=True
    )
    said = (done.returncode, done.stderr.count("\n"), "lf?name/stray.idx" in done.stderr)
    checks.equal("and the daemon's word of it", said, (1, 1, True))
    open(place.file("none.bin"), "w").close()
    said = inspect(place.file("none.bin"), code=1)[0]["problems"]
    checks.equal("no bytes", said, ["its size is 0 bytes: there is no token in it; write it again"])
    numpy.full(3000, 2, "u1").tofile(place.file("loss/a.ds.loss"))
    checks.equal("a mask's values take --deep", inspect(place.file("loss"))[0]["problems"], [])
    said = inspect("--deep", place.file("loss"), code=1)[0]["problems"]
    checks.equal("which reads them", said, ["a.ds.loss: the value of token 0 is 2; must be 0 or 1"])

    # Frames that do not say what they hold: only decoding shows that the table lies of the last one.
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
        checks.has(
            f"a seek table that says {lie} bytes of frame {frame}", said, f"frame {frame}", word
        )


def links(place, checks):
    """What lies above a shard is what its name says, however much of it is given."""
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
        done = subprocess.run([TOKCTL, "inspect", "--json", name], capture_output=True, text=True, cwd=place.file(here, "x")[:-2],
                              env={**os.environ, "PWD": place.file(here, "x")[:-2]})  # fmt: skip
        seen = [json.loads(line)["problems"] for line in done.stdout.splitlines()]
        checks.ok(
            f"the index above {name} in {here or 'its place'} is seen",
            done.returncode == 1 and problem in seen[0][0],
            done,
        )
    checks.equal(
        "where the file really is there is none", inspect(place.file("far/part"))[0]["problems"], []
    )


def progress(place, checks):
    """A bar on a terminal, and none elsewhere."""
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
    checks.equal("with a bar the status is the same", done.returncode, 0)
    checks.ok(
        "a bar that shows and goes",
        b"bar.bin [" in seen and b"MB/s" in seen and seen.endswith(b"\r\x1b[K"),
        seen[-200:],
    )
    done = subprocess.run([TOKCTL, "inspect", "--deep", path], capture_output=True)
    checks.equal("no bar where nobody looks", done.stderr, b"")
    os.unlink(path)


def masks(place, checks):
    """Loss masks: those that a format keeps beside its shards, and those that a config's label_mask names."""
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
    checks.equal(
        "a mask beside a shard: its size", said("lm"), [(None, []), (None, [short]), (None, [])]
    )
    put("lm/b.ds.loss", bytes([1]) * 70_000 + b"\2" + bytes([1]) * 129_999)
    checks.equal("its values are not looked at", said("lm", code=0), [(None, [])] * 3)
    value = "b.ds.loss: the value of token 70000 is 2; must be 0 or 1"
    seen = said("lm", "--deep")
    checks.equal(
        "--deep counts, and looks at each",
        [seen[0], seen[1][1], seen[2]],
        [(hidden, []), [value], (None, [])],
    )

    stream = {
        "seed": 1,
        "seq_len": 1000,
        "loss_mask": True,
        "datasets": [{"name": "l", "path": "lm"}],
    }
    config = place.config("lm.yaml", streams={"train": stream})
    problem = f"has no loss mask beside it, {place.file('lm/a.ds')} has one; all or none must"
    checks.equal(
        "where a stream asks, all or none",
        said("lm", "-c", config),
        [(None, []), (None, []), (None, [problem])],
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
        checks.equal(
            f"label_mask: {path}", seen, [(hidden, []), (len(mask) - hidden, []), (None, [short])]
        )
    os.unlink(place.file("om/masks/x/c.npy"))
    checks.has(
        "one that is missing",
        said("om/data/x/c.npy", "-c", config)[0][1][0],
        "has no loss mask: ",
        "masks/x/c.npy is not there",
    )
    checks.equal(
        "nobody asks without the config", said("om/data", "--deep", code=0), [(None, [])] * 3
    )

    put("om/data/x/a.csv.gz", gzip.compress(b"5,10\n10,199990\n"))
    checks.equal(
        "what no document holds is masked, too",
        said("om/data/x/a.npy", "--deep", code=0),
        [(15, [])],
    )
    put("om/data/x/a.csv.gz", gzip.compress(b"5,10\n10,199990\n")[:-9])
    checks.equal(
        "a list that is cut short",
        said("om/data/x/a.npy"),
        [(None, ["a.csv.gz: ends within its gzip data: it is cut short"])],
    )


def main():
    checks = Checks()
    with Place() as place:
        largest(place, checks)
        vocabulary(place, checks)
        negative(place, checks)
        damaged(place, checks)
        manifest(place, checks)
        directory(place, checks)
        named(place, checks)
        mixed(place, checks)
        dictionary(place, checks)
        refused(place, checks)
        links(place, checks)
        progress(place, checks)
        masks(place, checks)
    checks.exit()


if __name__ == "__main__":
    main()
