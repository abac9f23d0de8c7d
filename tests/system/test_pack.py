#!/usr/bin/env python3
"""tokctl pack: what comes out is read by zstd, NumPy and Megatron-core, and packed back to the same bytes."""

import ctypes
import gzip
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
import warnings

import numpy

with (
    warnings.catch_warnings()
):  # it misses Transformer Engine and Apex, which its index does without
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDataset

from harness import TOKCTL, Checks, Place, wait_for, with_parent

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
EOS = 7


def pack(*arguments, code=0, **keys):
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True, **keys
    )
    assert done.returncode == code, (arguments, done)
    return done.stderr if code else [json.loads(line) for line in done.stdout.splitlines()]


def refused(checks, name, *arguments, words, code=1):
    error = pack(*arguments, code=code)
    checks.equal(f"{name}: one line", error.count("\n"), 1)
    checks.has(name, error, *words)


def contents(path):
    with open(path, "rb") as f:
        return f.read()


def zstd(path):
    return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout


def megatron(prefix):
    """(tokens, lengths, dtype code), every field of the index checked."""
    idx = contents(prefix + ".idx")
    assert idx[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<Q", idx, 9) == (1,)
    code, count, documents = struct.unpack_from("<BQQ", idx, 17)
    dtype = {8: numpy.uint16, 4: numpy.int32}[code]
    lengths = numpy.frombuffer(idx, "<i4", count, 34)
    pointers = numpy.frombuffer(idx, "<i8", count, 34 + 4 * count)
    bounds = numpy.frombuffer(idx, "<i8", documents, 34 + 12 * count)
    assert len(idx) == 34 + 12 * count + 8 * documents
    numpy.testing.assert_array_equal(bounds, numpy.arange(count + 1))
    data = numpy.fromfile(prefix + ".bin", dtype)
    at = pointers // data.itemsize
    numpy.testing.assert_array_equal(at, numpy.cumsum(lengths) - lengths)
    return data, lengths, code


def flat(place, name, tokens, seed, dtype="<u2", most=50000):
    data = numpy.random.default_rng(seed).integers(EOS + 1, most, tokens).astype(dtype)
    data.tofile(place.file(name))
    return data


def one_file(place, checks):
    data = flat(place, "a.bin", 3_333_333, 1)
    lines = pack(place.file("a.bin"), place.file("a.bin.zst"), "--format", "zstd", "--frame", 65536)
    checks.equal("what is said of a file", [lines[0][k] for k in ("format", "dtype", "tokens", "size")],
                 ["zstd", "u16", len(data), os.path.getsize(place.file("a.bin.zst"))])  # fmt: skip
    checks.ok("zstd -d restores the flat file", zstd(place.file("a.bin.zst")) == data.tobytes())
    table = contents(place.file("a.bin.zst"))[-9:]
    checks.equal(
        "its seek table's footer",
        struct.unpack("<IBI", table),
        (-(-data.nbytes // 65536), 0x80, 0x8F92EAB1),
    )
    pack(place.file("a.bin.zst"), place.file("b.bin"), "--format", "flat")
    checks.ok("and pack, too", contents(place.file("b.bin")) == data.tobytes())
    pack(place.file("a.bin.zst"), place.file("n.npy.bin"), "--format", "flat", "--dtype", "u32")
    numpy.testing.assert_array_equal(numpy.fromfile(place.file("n.npy.bin"), "<u4"), data)
    checks.ok(
        "nothing but files is left",
        not [n for n in os.listdir(place.path) if n.startswith(".")],
        os.listdir(place.path),
    )


def from_numpy(place, checks):
    data = numpy.random.default_rng(2).integers(0, 1 << 31, 100_003)
    numpy.save(place.file("wide/x.npy"), data.astype("<i8"))
    numpy.save(place.file("wide/y.npy"), data[::-1].astype("<i8"))
    lines = pack(place.file("wide"), place.file("wide.bin"), "--format", "flat")
    checks.equal("the width is that of the inputs", lines[0]["dtype"], "u32")
    together = numpy.concatenate([data, data[::-1]]).astype("<u4")
    checks.ok(
        "shards of a directory follow each other",
        contents(place.file("wide.bin")) == together.tobytes(),
    )


def shards(place, checks):
    whole = numpy.concatenate(
        [flat(place, f"s/{n}.bin", 100_000 * n + n, 30 + n) for n in (1, 2, 3)]
    )
    lines = pack(place.file("s"), place.file("same"), "--format", "zstd")
    names = [f"shard-0000{i}.bin.zst" for i in range(3)]
    checks.equal("a shard for each input", sorted(os.listdir(place.file("same"))), names)
    checks.equal("in order", [line["tokens"] for line in lines], [100_001, 200_002, 300_003])
    checks.ok(
        "byte for byte", b"".join(zstd(place.file("same", n)) for n in names) == whole.tobytes()
    )
    lines = pack(place.file("same"), place.file("seven"), "--format", "flat", "--shards", 7)
    sizes = [
        os.path.getsize(place.file("seven", n)) // 2
        for n in sorted(os.listdir(place.file("seven")))
    ]
    checks.ok(
        "--shards makes them of one size", len(sizes) == 7 and max(sizes) - min(sizes) <= 1, sizes
    )
    together = b"".join(
        contents(place.file("seven", n)) for n in sorted(os.listdir(place.file("seven")))
    )
    checks.ok("nothing is lost at the cuts", together == whole.tobytes())


def documents(place, checks):
    data = flat(place, "eos.bin", 2_500_000, 4)
    ends = numpy.unique(numpy.random.default_rng(5).integers(0, len(data), 30_000))
    ends = numpy.append(ends, 1_048_575)  # the last token of a piece
    data[ends] = EOS
    data.tofile(place.file("eos.bin"))
    bounds = numpy.unique(numpy.concatenate([[0], ends + 1, [len(data)]]))
    lines = pack(place.file("eos.bin"), place.file("meg.bin"), "--format", "megatron", "--eos", EOS)
    got, lengths, code = megatron(place.file("meg"))
    checks.equal("u16 has Megatron's code", code, 8)
    theirs = IndexedDataset(place.file("meg"))
    checks.ok(
        "Megatron's own reader agrees",
        numpy.array_equal(theirs.sequence_lengths, lengths)
        and theirs[7].tobytes() == data[bounds[7] : bounds[8]].tobytes(),
    )
    checks.ok("its tokens", got.tobytes() == data.tobytes())
    checks.ok("a sequence ends at each eos", numpy.array_equal(lengths, numpy.diff(bounds)))
    checks.equal("and they are counted", lines[0]["documents"], len(lengths))
    pack(place.file("meg.bin"), place.file("back.bin"), "--format", "flat")
    checks.ok("flat, Megatron, flat", contents(place.file("back.bin")) == data.tobytes())
    pack(
        place.file("meg.bin"),
        place.file("meg3"),
        "--format",
        "megatron",
        "--shards",
        3,
        "--dtype",
        "u32",
    )
    parts = [megatron(place.file("meg3", f"shard-0000{i}")) for i in range(3)]
    checks.ok(
        "documents are kept from its index",
        numpy.array_equal(numpy.concatenate([p[1] for p in parts]), lengths),
    )
    checks.equal("u32 is written as i32", {p[2] for p in parts}, {4})
    checks.ok(
        "no document is cut",
        all(abs(len(p[0]) - len(data) / 3) < 2000 for p in parts),
        [len(p[0]) for p in parts],
    )
    whole = numpy.concatenate([flat(place, f"d/{n}.bin", 1000 * n, 50 + n) for n in (1, 2, 3)])
    pack(place.file("d"), place.file("d.bin"), "--format", "megatron")
    got, lengths, _ = megatron(place.file("d"))
    checks.equal("else a shard is one document", list(lengths), [1000, 2000, 3000])
    checks.ok("with its tokens", got.tobytes() == whole.tobytes())
    numpy.array([10, 900, 1000], "<u8").tofile(place.file("e/x.ds.index"))
    whole[:1000].tofile(place.file("e/x.ds"))
    pack(place.file("e"), place.file("e.bin"), "--format", "megatron", "--eos", int(whole[5]))
    checks.equal("an index goes before --eos", list(megatron(place.file("e"))[1]), [10, 890, 100])


def said(*arguments):
    """What pack says beside its output, where it succeeds."""
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done
    return done.stderr


def beside(place, checks):
    """Bounds in a .csv.gz are documents as an index's are, at any cut; what cannot be kept is told in a line."""
    rng = numpy.random.default_rng(8)
    bounds = []
    for n, name in enumerate(("l/x.npy", "l/y.npy")):
        data = flat(place, name, 1_300_000, 110 + n)
        ends = numpy.unique(
            numpy.append(rng.integers(1, len(data), 20_000), [1_048_576, len(data)])
        )
        bounds.append(ends)
        rows = "".join(f'{a},{b},"id, {a}"\r\n' for a, b in zip([0, *ends[:-1]], ends))
        with gzip.open(place.file(name[:-3] + "csv.gz"), "wt") as f:
            f.write(rows)
    want = numpy.concatenate([numpy.diff(ends, prepend=0) for ends in bounds])
    error = said(place.file("l"), place.file("listed.bin"), "--format", "megatron", "--eos", 9)
    checks.equal("a list of bounds: nothing is lost", error, "")
    checks.ok(
        "a sequence for each of its rows",
        numpy.array_equal(megatron(place.file("listed"))[1], want),
    )
    pack(place.file("l"), place.file("l3"), "--format", "megatron", "--shards", 3)
    lengths = numpy.concatenate([megatron(place.file("l3", f"shard-0000{i}"))[1] for i in range(3)])
    checks.ok("and shards are cut between them", numpy.array_equal(lengths, want))

    flat(place, "gap.bin", 100, 120)
    with gzip.open(place.file("gap.csv.gz"), "wt") as f:
        f.write("10,20\n20,60\n90,100\n")
    error = said(place.file("gap.bin"), place.file("g.bin"), "--format", "megatron")
    checks.equal("tokens in no document: one line", error.count("\n"), 1)
    checks.has(
        "that says so", error, "gap.bin: has tokens that its list of bounds (.csv.gz) leaves out"
    )
    checks.equal(
        "they are documents of their own", list(megatron(place.file("g"))[1]), [10, 10, 40, 30, 10]
    )

    for name, source, words in (
        (
            "of two inputs",
            place.file("l"),
            "x.npy (the first of 2 inputs): where its documents begin and end is not kept",
        ),
        (
            "of Megatron",
            place.file("g.bin"),
            "g.bin: where its documents begin and end is not kept",
        ),
    ):
        for format, ending in (("flat", ".bin"), ("zstd", ".bin.zst")):
            out = place.file(f"flat-{name[-3:]}{ending}")
            error = said(source, out, "--format", format)
            checks.equal(f"documents {name}, {format}: one line", error.count("\n"), 1)
            checks.has(f"documents {name}, {format}", error, words)
    shutil.copy(place.file("g.bin"), place.file("g\n2.bin"))
    shutil.copy(place.file("g.idx"), place.file("g\n2.idx"))
    error = said(place.file("g\n2.bin"), place.file("g2.bin"), "--format", "flat")
    checks.equal("documents of a name with a line end: one line", error.count("\n"), 1)
    checks.has("of which that is no part", error, "g?2.bin: where its documents begin")
    checks.equal(
        "no documents, no word", said(place.file("d"), place.file("d-flat"), "--format", "flat"), ""
    )

    flat(place, "m/x.ds", 1000, 121)
    flat(place, "m/y.ds", 1000, 122)
    with open(place.file("m/y.ds.loss"), "wb") as f:
        f.write(bytes(1000))
    error = said(place.file("m"), place.file("m.bin"), "--format", "megatron")
    checks.equal("a loss mask: one line", error.count("\n"), 1)
    checks.has("that says it is not kept", error, "y.ds: its loss mask is not kept")


def changed(place, checks):
    """What was packed for an hour and changed meanwhile does not go on."""
    for name in ("list", "shard"):
        flat(place, f"{name}/a.bin", 1000, 130), flat(place, f"{name}/b.bin", 2000, 131)
        with gzip.open(place.file(name, "b.csv.gz"), "wt") as f:
            f.write("0,20\n20,2000\n")
        limit = {"preexec_fn": lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))}  # fmt: skip
        command = [place.file(name), place.file(name + "-out"), "--format", "megatron"]
        checks.has(
            "it stops half way", pack(*command, code=1, **limit), "shard-00001.bin: File too large"
        )
        os.utime(place.file(name, "b.csv.gz" if name == "list" else "b.bin"), ns=(1, 1))
        refused(
            checks,
            f"a {name} that changed",
            *command,
            words=["of other inputs or with other options"],
        )


def bad(place, checks):
    a = place.file("a.bin")
    checks.equal(
        "what is there stays there", (b := contents(place.file("b.bin"))) and len(b), 6_666_666
    )
    refused(
        checks,
        "a file is not overwritten",
        a,
        place.file("b.bin"),
        "--format",
        "flat",
        words=["b.bin: is there already"],
    )
    refused(
        checks, "nor a directory", a, place.file("s"), "--format", "flat", words=["is not empty"]
    )
    os.link(place.file("meg.idx"), place.file("lone.idx"))
    refused(
        checks,
        "nor an index",
        a,
        place.file("lone.bin"),
        "--format",
        "megatron",
        words=["lone.idx: is there already"],
    )
    numpy.array([1, 2, 70000, 80000], "<u4").tofile(place.file("big.bin"))
    refused(checks, "what does not fit", place.file("n.npy.bin"), place.file("big.bin"), place.file("o.bin"), "--format", "flat",
            "--input-dtype", "u32", "--dtype", "u16", words=["big.bin: token 2 is 70000; must be at most 65535", "say --"])  # fmt: skip
    numpy.array([1, 1 << 31], "<u4").tofile(place.file("huge.bin"))
    refused(checks, "31 bits of Megatron", place.file("huge.bin"), place.file("o.bin"), "--format", "megatron", "--input-dtype", "u32",
            words=["huge.bin: token 1 is 2147483648", "31 bits"])  # fmt: skip
    numpy.save(place.file("minus.npy"), numpy.array([3, -1], "<i4"))
    refused(
        checks,
        "a negative token",
        place.file("minus.npy"),
        place.file("o.bin"),
        "--format",
        "flat",
        words=["minus.npy: token 1 is -1"],
    )
    refused(
        checks,
        "no such input",
        place.file("none"),
        place.file("o.bin"),
        "--format",
        "flat",
        words=["none: No such file"],
    )
    refused(
        checks,
        "a place inside the input",
        place.file("s"),
        place.file("s/out"),
        "--format",
        "flat",
        words=["lies in"],
    )
    refused(
        checks,
        "more shards than tokens",
        place.file("big.bin"),
        place.file("o"),
        "--format",
        "flat",
        "--shards",
        9,
        words=["too few tokens"],
    )
    refused(
        checks,
        "a name of another format",
        a,
        place.file("o.npy"),
        "--format",
        "flat",
        words=["o.npy", ".bin"],
        code=2,
    )
    for words in (
        ["--format", "tar"],
        [],
        ["--format", "flat", "--level", "3"],
        ["--format", "zstd", "--frame", "1001"],
        ["--format", "flat", "--shards", "0"],
    ):
        pack(a, place.file("o"), *words, code=2)
    broken = bytearray(contents(place.file("a.bin.zst")))
    broken[len(broken) // 2] ^= 8
    with open(place.file("broken.bin.zst"), "wb") as f:
        f.write(broken)
    refused(
        checks,
        "a damaged input",
        place.file("broken.bin.zst"),
        place.file("o.bin"),
        "--format",
        "flat",
        words=["broken.bin.zst: zstd frame"],
    )
    left = [n for n in os.listdir(place.path) if n.startswith((".", "o."))]
    checks.equal("and nothing is left of all that", left, [])


def killed(place, checks):
    """Again and again, until it comes to an end: what was whole is not made again."""
    whole = numpy.concatenate(
        [flat(place, f"k/{n}.bin", 700_000, 70 + n, most=300) for n in range(8)]
    )
    command = [place.file("k"), place.file("killed"), "--format", "zstd", "--level", 19]
    made, kills = {}, 0
    for _ in range(3):
        before = len(made)
        child = place.spawn([TOKCTL, "pack", *map(str, command)], stdout=subprocess.DEVNULL)
        wait_for(lambda c=child, n=before: c.poll() is not None or len([x for x in os.listdir(place.file("killed")) if x[0] == "s"]) > n
                 if os.path.isdir(place.file("killed")) else None)  # fmt: skip
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        for name in os.listdir(place.file("killed")):
            if name[0] == "s":
                made.setdefault(name, os.stat(place.file("killed", name)).st_ino)
    checks.ok("it was killed at work", kills == 3 and 3 <= len(made) < 8, (kills, made))
    checks.ok("what it is about is on record", os.path.exists(place.file("killed/.pack")))
    refused(
        checks,
        "other options do not go on from it",
        *command[:-1],
        18,
        words=["of other inputs or with other options"],
    )
    lines = pack(*command)
    checks.equal("the rest is made", len(lines), 8)
    names = sorted(os.listdir(place.file("killed")))
    checks.equal("and nothing else is there", names, [f"shard-0000{i}.bin.zst" for i in range(8)])
    checks.ok(
        "what was whole was not made again",
        all(os.stat(place.file("killed", n)).st_ino == i for n, i in made.items()),
    )
    checks.ok(
        "byte for byte", b"".join(zstd(place.file("killed", n)) for n in names) == whole.tobytes()
    )
    refused(checks, "what is finished is not begun again", *command, words=["is not empty"])


def cut_state(place, checks):
    """The record is torn at any byte, and a file is not what it was."""
    flat(place, "t/a.bin", 1000, 90), flat(place, "t/b.bin", 2000, 91)
    out = place.file("torn")
    limit = {
        "preexec_fn": lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
        )
    }
    error = pack(place.file("t"), out, "--format", "flat", code=1, **limit)
    checks.has("a file that may not grow", error, "shard-00001.bin: File too large")
    checks.equal("what was whole stays", sorted(os.listdir(out)), [".pack", "shard-00000.bin"])
    state = contents(out + "/.pack")
    first = state.index(b"\n") + 1
    for cut in (0, 5, first - 1):
        with open(out + "/.pack", "wb") as f:
            f.write(state[:cut])
        refused(
            checks,
            f"a record cut at {cut}: the file is nobody's",
            place.file("t"),
            out,
            "--format",
            "flat",
            words=["shard-00000.bin: is there already"],
        )
    with open(out + "/.pack", "wb") as f:
        f.write(state + b"1 4000 0 00")
    with open(out + "/shard-00000.bin", "ab") as f:
        f.write(b"x")
    refused(
        checks,
        "a file that has changed",
        place.file("t"),
        out,
        "--format",
        "flat",
        words=["is 2001 bytes long; 2000 were written"],
    )
    os.truncate(out + "/shard-00000.bin", 2000)
    pack(place.file("t"), out, "--format", "flat")
    checks.equal(
        "with the rest it goes on", sorted(os.listdir(out)), ["shard-00000.bin", "shard-00001.bin"]
    )
    checks.ok("to the end", contents(out + "/shard-00001.bin") == contents(place.file("t/b.bin")))


def disk_full(place, checks):
    libc = ctypes.CDLL(None, use_errno=True)
    small = place.file("small", "x")[:-2]
    flat(place, "f/a.bin", 100_000, 95), flat(place, "f/b.bin", 400_000, 96)
    if os.geteuid() != 0:
        return checks.skip("disk full", "needs root to mount a tmpfs")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with_parent()
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) or \
           libc.mount(b"tokend", small.encode(), b"tmpfs", 0, b"size=512k"):  # fmt: skip
            os._exit(77)
        done = subprocess.run(
            [TOKCTL, "pack", place.file("f"), small + "/out", "--format", "flat"],
            capture_output=True,
            text=True,
        )
        left = sorted(os.listdir(small + "/out"))
        libc.mount(b"tokend", small.encode(), b"tmpfs", 32, b"size=8m")
        again = subprocess.run(
            [TOKCTL, "pack", place.file("f"), small + "/out", "--format", "flat"],
            capture_output=True,
            text=True,
        )
        same = again.returncode == 0 and contents(small + "/out/shard-00001.bin") == contents(
            place.file("f/b.bin")
        )
        os.write(write, json.dumps([done.returncode, done.stderr, left, same]).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 1 << 16)
    os.close(read)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77:
        return checks.skip("disk full", "may not mount a tmpfs here")
    code, error, left, same = json.loads(text)
    checks.equal("a full disk fails", code, 1)
    checks.has(
        "with one line that says what to do",
        error,
        "shard-00001.bin: No space left on device; make room",
    )
    checks.equal("and leaves what is whole", left, [".pack", "shard-00000.bin"])
    checks.ok("with room it goes on", same)


def alone(place, checks):
    """Two at once in one place: one of them is told."""
    command = [
        TOKCTL,
        "pack",
        place.file("k"),
        place.file("both"),
        "--format",
        "zstd",
        "--level",
        "19",
    ]
    child = place.spawn(command, stdout=subprocess.DEVNULL)
    wait_for(
        lambda: (
            os.path.exists(place.file("both/.pack")) and os.path.getsize(place.file("both/.pack"))
        )
    )
    refused(checks, "another one at work", *command[2:], words=["another tokctl pack is at work"])
    checks.equal("which goes on", child.wait(), 0)


def memory(place, checks):
    """Ten times the tokens take no more of it."""
    peaks = []
    for tokens in (20_000_000, 200_000_000):
        with open(place.file("large.bin"), "wb") as f:
            block = numpy.arange(1_000_000, dtype="<u2").tobytes()
            for _ in range(tokens // 1_000_000):
                f.write(block)
        for name, format in (("l.bin.zst", "zstd"), ("l.bin", "megatron")):
            command = [
                TOKCTL,
                "pack",
                place.file("large.bin"),
                place.file(name),
                "--format",
                format,
                "--eos",
                "9",
            ]
            child = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"ASAN_OPTIONS": "quarantine_size_mb=1"},
            )
            _, status, usage = os.wait4(child.pid, 0)
            assert status == 0, status
            peaks.append(usage.ru_maxrss)
            os.unlink(place.file(name))
        os.unlink(place.file("l.idx"))
    os.unlink(place.file("large.bin"))
    checks.ok(
        "memory is flat",
        all(large < 1.3 * small + 32 * 1024 for small, large in zip(peaks[:2], peaks[2:])),
        peaks,
    )


def main():
    checks = Checks()
    began = time.monotonic()
    with Place() as place:
        one_file(place, checks)
        from_numpy(place, checks)
        shards(place, checks)
        documents(place, checks)
        beside(place, checks)
        changed(place, checks)
        bad(place, checks)
        killed(place, checks)
        cut_state(place, checks)
        disk_full(place, checks)
        alone(place, checks)
        memory(place, checks)
    print(f"{time.monotonic() - began:.1f} s")
    checks.exit()


if __name__ == "__main__":
    main()
