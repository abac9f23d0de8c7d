"""tokctl pack writes files that zstd, NumPy and Megatron-core read, and that pack back to the same
bytes. It overwrites nothing, and continues after an interruption.
"""

import ctypes
import gzip
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import warnings

import numpy
import pytest

with warnings.catch_warnings():  # about Transformer Engine and Apex, which its index does not need
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDataset

from lib import TOKCTL, has, wait_for, with_parent

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
EOS = 7


def pack(*arguments, code=0, **keys):
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True, **keys
    )
    assert done.returncode == code, (arguments, done)
    return done.stderr if code else [json.loads(line) for line in done.stdout.splitlines()]


def refused(name, *arguments, words, code=1):
    error = pack(*arguments, code=code)
    assert error.count("\n") == 1, f"{name}: one line"
    assert has(error, *words), name


def contents(path):
    with open(path, "rb") as f:
        return f.read()


def zstd(path):
    return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout


def megatron(prefix):
    """Checks every field of the index. Returns (tokens, lengths, dtype code)."""
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


@pytest.mark.asan
def test_one_file_is_restored_by_zstd(place):
    data = flat(place, "a.bin", 3_333_333, 1)
    lines = pack(place.file("a.bin"), place.file("a.bin.zst"), "--format", "zstd", "--frame", 65536)
    assert [lines[0][k] for k in ("format", "dtype", "tokens", "size")] == [
        "zstd",
        "u16",
        len(data),
        os.path.getsize(place.file("a.bin.zst")),
    ], "the facts of the file are printed"
    assert zstd(place.file("a.bin.zst")) == data.tobytes(), "zstd -d restores the flat file"
    table = contents(place.file("a.bin.zst"))[-9:]
    assert struct.unpack("<IBI", table) == (-(-data.nbytes // 65536), 0x80, 0x8F92EAB1), (
        "it ends in the footer of a seek table"
    )
    pack(place.file("a.bin.zst"), place.file("b.bin"), "--format", "flat")
    assert contents(place.file("b.bin")) == data.tobytes(), "pack restores it too"
    pack(place.file("a.bin.zst"), place.file("n.npy.bin"), "--format", "flat", "--dtype", "u32")
    numpy.testing.assert_array_equal(numpy.fromfile(place.file("n.npy.bin"), "<u4"), data)
    assert not [n for n in os.listdir(place.path) if n.startswith(".")], (
        "no temporary files stay",
        os.listdir(place.path),
    )


@pytest.mark.asan
def test_packs_from_numpy(place):
    data = numpy.random.default_rng(2).integers(0, 1 << 31, 100_003)
    numpy.save(place.file("wide/x.npy"), data.astype("<i8"))
    numpy.save(place.file("wide/y.npy"), data[::-1].astype("<i8"))
    lines = pack(place.file("wide"), place.file("wide.bin"), "--format", "flat")
    assert lines[0]["dtype"] == "u32", "the width is that of the inputs"
    together = numpy.concatenate([data, data[::-1]]).astype("<u4")
    assert contents(place.file("wide.bin")) == together.tobytes(), (
        "the shards of a directory follow each other"
    )


@pytest.mark.asan
def test_shards_have_all_tokens(place):
    whole = numpy.concatenate(
        [flat(place, f"s/{n}.bin", 100_000 * n + n, 30 + n) for n in (1, 2, 3)]
    )
    lines = pack(place.file("s"), place.file("same"), "--format", "zstd")
    names = [f"shard-0000{i}.bin.zst" for i in range(3)]
    assert sorted(os.listdir(place.file("same"))) == names, "there is one shard per input"
    assert [line["tokens"] for line in lines] == [100_001, 200_002, 300_003], "in order"
    assert b"".join(zstd(place.file("same", n)) for n in names) == whole.tobytes(), "byte for byte"
    lines = pack(place.file("same"), place.file("seven"), "--format", "flat", "--shards", 7)
    sizes = [
        os.path.getsize(place.file("seven", n)) // 2
        for n in sorted(os.listdir(place.file("seven")))
    ]
    assert len(sizes) == 7 and max(sizes) - min(sizes) <= 1, (
        "--shards makes them equally large",
        sizes,
    )
    together = b"".join(
        contents(place.file("seven", n)) for n in sorted(os.listdir(place.file("seven")))
    )
    assert together == whole.tobytes(), "nothing is lost at the cuts"


@pytest.mark.asan
def test_megatron_keeps_documents(place):
    data = flat(place, "eos.bin", 2_500_000, 4)
    ends = numpy.unique(numpy.random.default_rng(5).integers(0, len(data), 30_000))
    ends = numpy.append(ends, 1_048_575)  # the last token of a piece
    data[ends] = EOS
    data.tofile(place.file("eos.bin"))
    bounds = numpy.unique(numpy.concatenate([[0], ends + 1, [len(data)]]))
    lines = pack(place.file("eos.bin"), place.file("meg.bin"), "--format", "megatron", "--eos", EOS)
    got, lengths, code = megatron(place.file("meg"))
    assert code == 8, "u16 has Megatron's code"
    theirs = IndexedDataset(place.file("meg"))
    assert (
        numpy.array_equal(theirs.sequence_lengths, lengths)
        and theirs[7].tobytes() == data[bounds[7] : bounds[8]].tobytes()
    ), "Megatron's own reader agrees"
    assert got.tobytes() == data.tobytes(), "its tokens"
    assert numpy.array_equal(lengths, numpy.diff(bounds)), "a sequence ends at each eos"
    assert lines[0]["documents"] == len(lengths), "and they are counted"
    pack(place.file("meg.bin"), place.file("back.bin"), "--format", "flat")
    assert contents(place.file("back.bin")) == data.tobytes(), "flat, Megatron, flat"
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
    assert numpy.array_equal(numpy.concatenate([p[1] for p in parts]), lengths), (
        "documents are kept from its index"
    )
    assert {p[2] for p in parts} == {4}, "u32 is written as i32"
    assert all(abs(len(p[0]) - len(data) / 3) < 2000 for p in parts), (
        "no document is cut",
        [len(p[0]) for p in parts],
    )
    whole = numpy.concatenate([flat(place, f"d/{n}.bin", 1000 * n, 50 + n) for n in (1, 2, 3)])
    pack(place.file("d"), place.file("d.bin"), "--format", "megatron")
    got, lengths, _ = megatron(place.file("d"))
    assert list(lengths) == [1000, 2000, 3000], "without --eos a shard is one document"
    assert got.tobytes() == whole.tobytes(), "with its tokens"
    numpy.array([10, 900, 1000], "<u8").tofile(place.file("e/x.ds.index"))
    whole[:1000].tofile(place.file("e/x.ds"))
    pack(place.file("e"), place.file("e.bin"), "--format", "megatron", "--eos", int(whole[5]))
    assert list(megatron(place.file("e"))[1]) == [10, 890, 100], (
        "an index takes precedence over --eos"
    )


def notes(*arguments):
    """Packs, which must succeed. Returns stderr."""
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done
    return done.stderr


@pytest.mark.asan
def test_documents_of_lists_are_kept(place):
    """Documents listed in a .csv.gz are kept like those of an index, at any cut. If document bounds
    or masks are lost, one line reports it.
    """
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
    error = notes(place.file("l"), place.file("listed.bin"), "--format", "megatron", "--eos", 9)
    assert error == "", "a list of bounds: nothing is lost"
    assert numpy.array_equal(megatron(place.file("listed"))[1], want), (
        "a sequence for each of its rows"
    )
    pack(place.file("l"), place.file("l3"), "--format", "megatron", "--shards", 3)
    lengths = numpy.concatenate([megatron(place.file("l3", f"shard-0000{i}"))[1] for i in range(3)])
    assert numpy.array_equal(lengths, want), "shards are cut between documents"

    flat(place, "gap.bin", 100, 120)
    with gzip.open(place.file("gap.csv.gz"), "wt") as f:
        f.write("10,20\n20,60\n90,100\n")
    error = notes(place.file("gap.bin"), place.file("g.bin"), "--format", "megatron")
    assert error.count("\n") == 1, "tokens outside all documents are reported in one line"
    assert has(error, "gap.bin: tokens outside the documents of its .csv.gz"), "the line says so"
    assert list(megatron(place.file("g"))[1]) == [10, 10, 40, 30, 10], (
        "they are documents of their own"
    )

    for name, source, words in (
        (
            "of two inputs",
            place.file("l"),
            "x.npy (the first of 2 inputs): its document bounds are lost",
        ),
        ("of Megatron", place.file("g.bin"), "g.bin: its document bounds are lost"),
    ):
        for format, ending in (("flat", ".bin"), ("zstd", ".bin.zst")):
            out = place.file(f"flat-{name[-3:]}{ending}")
            error = notes(source, out, "--format", format)
            assert error.count("\n") == 1, f"documents {name}, {format}: one line"
            assert has(error, words), f"documents {name}, {format}"
    shutil.copy(place.file("g.bin"), place.file("g\n2.bin"))
    shutil.copy(place.file("g.idx"), place.file("g\n2.idx"))
    error = notes(place.file("g\n2.bin"), place.file("g2.bin"), "--format", "flat")
    assert error.count("\n") == 1, "for a name with a line break, one line is printed"
    assert has(error, "g?2.bin: its document bounds"), "the line break in the name is replaced"
    flat(place, "d/1.bin", 1000, 51)
    assert notes(place.file("d"), place.file("d-flat"), "--format", "flat") == "", (
        "without documents nothing is reported"
    )

    flat(place, "m/x.ds", 1000, 121)
    flat(place, "m/y.ds", 1000, 122)
    with open(place.file("m/y.ds.loss"), "wb") as f:
        f.write(bytes(1000))
    error = notes(place.file("m"), place.file("m.bin"), "--format", "megatron")
    assert error.count("\n") == 1, "a loss mask is reported in one line"
    assert has(error, "y.ds: its loss mask is lost"), "the line says that it is lost"


@pytest.mark.asan
def test_changed_input_is_not_continued(place):
    """An interrupted pack does not continue after one of its inputs has changed."""
    for name in ("list", "shard"):
        flat(place, f"{name}/a.bin", 1000, 130), flat(place, f"{name}/b.bin", 2000, 131)
        with gzip.open(place.file(name, "b.csv.gz"), "wt") as f:
            f.write("0,20\n20,2000\n")
        limit = {"preexec_fn": lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                        resource.setrlimit(resource.RLIMIT_FSIZE, (3000,
                                        3000)))}  # fmt: skip
        command = [place.file(name), place.file(name + "-out"), "--format", "megatron"]
        assert has(pack(*command, code=1, **limit), "shard-00001.bin: File too large"), (
            "it stops after the first shard"
        )
        os.utime(place.file(name, "b.csv.gz" if name == "list" else "b.bin"), ns=(1, 1))
        refused(f"a {name} that changed", *command, words=["of other inputs or with other options"])


@pytest.mark.asan
def test_errors_leave_no_file(place):
    a, there = place.file("a.bin"), flat(place, "b.bin", 1000, 2)
    flat(place, "a.bin", 3_333_333, 1), flat(place, "s/1.bin", 1000, 31)
    pack(a, place.file("a.bin.zst"), "--format", "zstd", "--frame", 65536)
    pack(a, place.file("n.npy.bin"), "--format", "flat", "--dtype", "u32")
    pack(a, place.file("meg.bin"), "--format", "megatron")
    refused(
        "a file is not overwritten",
        a,
        place.file("b.bin"),
        "--format",
        "flat",
        words=["b.bin: exists"],
    )
    assert contents(place.file("b.bin")) == there.tobytes(), "the existing file is unchanged"
    refused(
        "a directory is not overwritten",
        a,
        place.file("s"),
        "--format",
        "flat",
        words=["is not empty"],
    )
    os.link(place.file("meg.idx"), place.file("lone.idx"))
    refused(
        "an index is not overwritten",
        a,
        place.file("lone.bin"),
        "--format",
        "megatron",
        words=["lone.idx: exists"],
    )
    numpy.array([1, 2, 70000, 80000], "<u4").tofile(place.file("big.bin"))
    refused("a token that does not fit", place.file("n.npy.bin"), place.file("big.bin"),
        place.file("o.bin"), "--format", "flat",
            "--input-dtype", "u32", "--dtype", "u16",
            words=["token 2 is 70000; must be at most 65535", "give --dtype u32"])  # fmt: skip
    numpy.array([1, 1 << 31], "<u4").tofile(place.file("huge.bin"))
    refused("a token over 31 bits", place.file("huge.bin"), place.file("o.bin"), "--format",
        "megatron", "--input-dtype", "u32",
            words=["huge.bin: token 1 is 2147483648", "31 bits"])  # fmt: skip
    numpy.save(place.file("minus.npy"), numpy.array([3, -1], "<i4"))
    refused(
        "a negative token",
        place.file("minus.npy"),
        place.file("o.bin"),
        "--format",
        "flat",
        words=["minus.npy: token 1 is -1"],
    )
    refused(
        "no such input",
        place.file("none"),
        place.file("o.bin"),
        "--format",
        "flat",
        words=["none: No such file"],
    )
    refused(
        "an output inside the input",
        place.file("s"),
        place.file("s/out"),
        "--format",
        "flat",
        words=["inside the input"],
    )
    refused(
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
        "a damaged input",
        place.file("broken.bin.zst"),
        place.file("o.bin"),
        "--format",
        "flat",
        words=["broken.bin.zst: zstd frame"],
    )
    left = [n for n in os.listdir(place.path) if n.startswith((".", "o."))]
    assert left == [], "none of these leaves a file"


@pytest.mark.asan
def test_killed_pack_continues(place):
    """A pack that is killed repeatedly continues, and does not write complete shards again."""
    whole = numpy.concatenate(
        [flat(place, f"k/{n}.bin", 300_000, 70 + n, most=300) for n in range(8)]
    )
    command = [place.file("k"), place.file("killed"), "--format", "zstd", "--level", 19]
    made, kills = {}, 0
    for _ in range(3):
        before = len(made)
        child = place.spawn([TOKCTL, "pack", *map(str, command)], stdout=subprocess.DEVNULL)
        wait_for(lambda c=child, n=before: c.poll() is not None or len([x
            for x in os.listdir(place.file("killed")) if x[0] == "s"]) > n
                 if os.path.isdir(place.file("killed")) else None)  # fmt: skip
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        for name in os.listdir(place.file("killed")):
            if name[0] == "s":
                made.setdefault(name, os.stat(place.file("killed", name)).st_ino)
    assert kills == 3 and 3 <= len(made) < 8, ("it was killed while it worked", (kills, made))
    assert os.path.exists(place.file("killed/.pack")), "the state is on disk"
    refused(
        "other options do not continue it",
        *command[:-1],
        18,
        words=["of other inputs or with other options"],
    )
    lines = pack(*command)
    assert len(lines) == 8, "all shards are printed"
    names = sorted(os.listdir(place.file("killed")))
    assert names == [f"shard-0000{i}.bin.zst" for i in range(8)], "the directory contains only them"
    assert all(os.stat(place.file("killed", n)).st_ino == i for n, i in made.items()), (
        "complete shards were not written again"
    )
    assert b"".join(zstd(place.file("killed", n)) for n in names) == whole.tobytes(), (
        "byte for byte"
    )
    refused("a finished pack is not repeated", *command, words=["is not empty"])


@pytest.mark.asan
def test_damaged_state_is_refused(place):
    """The state is cut at any byte, or a finished file has changed."""
    flat(place, "t/a.bin", 1000, 90), flat(place, "t/b.bin", 2000, 91)
    out = place.file("torn")
    limit = {
        "preexec_fn": lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
        )
    }
    error = pack(place.file("t"), out, "--format", "flat", code=1, **limit)
    assert has(error, "shard-00001.bin: File too large"), "a file reaches its limit"
    assert sorted(os.listdir(out)) == [".pack", "shard-00000.bin"], "the complete shard stays"
    state = contents(out + "/.pack")
    first = state.index(b"\n") + 1
    for cut in (0, 5, first - 1):
        with open(out + "/.pack", "wb") as f:
            f.write(state[:cut])
        refused(
            f"with a state cut at {cut}, the file is not known as its own",
            place.file("t"),
            out,
            "--format",
            "flat",
            words=["shard-00000.bin: exists"],
        )
    with open(out + "/.pack", "wb") as f:
        f.write(state + b"1 4000 0 00")
    with open(out + "/shard-00000.bin", "ab") as f:
        f.write(b"x")
    refused(
        "a file that has changed",
        place.file("t"),
        out,
        "--format",
        "flat",
        words=["has 2001 bytes, but 2000 were written"],
    )
    os.truncate(out + "/shard-00000.bin", 2000)
    pack(place.file("t"), out, "--format", "flat")
    assert sorted(os.listdir(out)) == ["shard-00000.bin", "shard-00001.bin"], (
        "it continues with the other shard"
    )
    assert contents(out + "/shard-00001.bin") == contents(place.file("t/b.bin")), (
        "which is complete"
    )


@pytest.mark.asan
def test_full_disk_is_reported_and_continued(place):
    libc = ctypes.CDLL(None, use_errno=True)
    small = place.file("small", "x")[:-2]
    flat(place, "f/a.bin", 100_000, 95), flat(place, "f/b.bin", 400_000, 96)
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with_parent()
        if (
            libc.unshare(CLONE_NEWNS)
            or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
            or libc.mount(b"tokend", small.encode(), b"tmpfs", 0, b"size=512k")
        ):
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
        pytest.skip("may not mount a tmpfs here")
    code, error, left, same = json.loads(text)
    assert code == 1, "pack fails on a full disk"
    assert has(error, "shard-00001.bin: No space left on device; free some space"), (
        "one line says what to do"
    )
    assert left == [".pack", "shard-00000.bin"], "complete shards stay"
    assert same, "it continues once there is space"


@pytest.mark.asan
def test_second_pack_is_refused(place):
    """Of two packs into one directory, the second is refused."""
    for n in range(2):
        flat(place, f"k/{n}.bin", 500_000, 70 + n, most=300)
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
    refused("a second pack", *command[2:], words=["another tokctl pack is writing"])
    assert child.wait() == 0, "the first one completes"


def test_memory_does_not_grow(place):
    """Ten times as many tokens need no more memory."""
    peaks = []
    for tokens in (20_000_000, 200_000_000):
        with open(place.file("large.bin"), "wb") as f:
            block = numpy.arange(1_000_000, dtype="<u2").tobytes()
            for _ in range(tokens // 1_000_000):
                f.write(block)
        for how in (
            ["--format", "zstd"],
            ["--format", "megatron"],
            ["--fit", "1025", "--shards", str(tokens // 20_000_000)],
        ):
            child = subprocess.Popen(
                [TOKCTL, "pack", place.file("large.bin"), place.file("l"), "--eos", "9", *how],
                stdout=subprocess.DEVNULL,
                env=os.environ | {"ASAN_OPTIONS": "quarantine_size_mb=1"},
            )
            _, status, usage = os.wait4(child.pid, 0)
            assert status == 0, status
            peaks.append(usage.ru_maxrss)
            shutil.rmtree(place.file("l"))
    os.unlink(place.file("large.bin"))
    assert all(large < 1.3 * small + 32 * 1024 for small, large in zip(peaks[:3], peaks[3:])), (
        "memory does not grow with the input",
        peaks,
    )
