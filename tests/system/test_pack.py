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

from lib import TOKCTL, wait_for, with_parent

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
EOS = 7
FLAT, MEGATRON, ZSTD = (["--format", name] for name in ("flat", "megatron", "zstd"))

pytestmark = pytest.mark.asan


def pack(*arguments, code=0, **keys):
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True, **keys
    )
    assert done.returncode == code, (arguments, done)
    return done.stderr if code else [json.loads(line) for line in done.stdout.splitlines()]


def refused(*arguments, words, **keys):
    error = pack(*arguments, code=1, **keys)
    assert error.count("\n") == 1 and words in error, error


def notes(*arguments):
    """Packs, which must succeed. Returns stderr, of one line at most."""
    command = [TOKCTL, "pack", "--json", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("\n") <= 1, done
    return done.stderr


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


def limited(most):
    """No file may have more bytes."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return {"preexec_fn": limit}


def flat(place, name, tokens, seed, dtype="<u2", most=50000):
    data = numpy.random.default_rng(seed).integers(EOS + 1, most, tokens).astype(dtype)
    data.tofile(place.file(name))
    return data


def test_one_file_is_restored_by_zstd(place):
    data, a, packed = (
        flat(place, "a.bin", 3_333_333, 1),
        place.file("a.bin"),
        place.file("a.bin.zst"),
    )
    (line,) = pack(a, packed, *ZSTD, "--frame", 65536)
    facts = ["zstd", "u16", len(data), os.path.getsize(packed)]
    assert [line[k] for k in ("format", "dtype", "tokens", "size")] == facts
    assert zstd(packed) == data.tobytes()
    footer = (-(-data.nbytes // 65536), 0x80, 0x8F92EAB1)  # of a seek table
    assert struct.unpack("<IBI", contents(packed)[-9:]) == footer
    pack(packed, place.file("b.bin"), *FLAT)
    assert contents(place.file("b.bin")) == data.tobytes()
    pack(packed, place.file("n.npy.bin"), *FLAT, "--dtype", "u32")
    assert numpy.array_equal(numpy.fromfile(place.file("n.npy.bin"), "<u4"), data)
    assert not [n for n in os.listdir(place.path) if n.startswith(".")], "no temporary files stay"


def test_a_directory_is_packed_in_order(place):
    """The width is that of the inputs."""
    data = numpy.random.default_rng(2).integers(0, 1 << 31, 100_003)
    numpy.save(place.file("wide/x.npy"), data)
    numpy.save(place.file("wide/y.npy"), data[::-1])
    (line,) = pack(place.file("wide"), place.file("wide.bin"), *FLAT)
    assert line["dtype"] == "u32"
    together = numpy.concatenate([data, data[::-1]]).astype("<u4")
    assert contents(place.file("wide.bin")) == together.tobytes()


def test_shards_have_all_tokens(place):
    parts = [flat(place, f"s/{n}.bin", 100_000 * n + n, 30 + n) for n in (1, 2, 3)]
    whole = numpy.concatenate(parts).tobytes()
    lines = pack(place.file("s"), place.file("same"), *ZSTD)
    names = [f"shard-0000{i}.bin.zst" for i in range(3)]  # one for each input
    assert sorted(os.listdir(place.file("same"))) == names
    assert [line["tokens"] for line in lines] == [100_001, 200_002, 300_003]
    assert b"".join(zstd(place.file("same", n)) for n in names) == whole
    lines = pack(place.file("same"), place.file("seven"), *FLAT, "--shards", 7)
    shards = [contents(line["path"]) for line in lines]
    sizes = [len(shard) // 2 for shard in shards]
    assert len(sizes) == 7 and max(sizes) - min(sizes) <= 1 and b"".join(shards) == whole


def test_megatron_keeps_documents(place):
    eos, meg = place.file("eos.bin"), place.file("meg.bin")
    data = flat(place, "eos.bin", 2_500_000, 4)
    ends = numpy.unique(numpy.random.default_rng(5).integers(0, len(data), 30_000))
    data[numpy.append(ends, 1_048_575)] = EOS  # the last token of a piece
    data.tofile(eos)
    ends = numpy.flatnonzero(data == EOS) + 1
    bounds = numpy.unique([0, *ends, len(data)])
    (line,) = pack(eos, meg, *MEGATRON, "--eos", EOS)
    got, lengths, code = megatron(meg[:-4])
    assert got.tobytes() == data.tobytes() and code == 8
    assert numpy.array_equal(lengths, numpy.diff(bounds)) and line["documents"] == len(lengths)
    theirs = IndexedDataset(meg[:-4])
    assert numpy.array_equal(theirs.sequence_lengths, lengths)
    assert theirs[7].tobytes() == data[bounds[7] : bounds[8]].tobytes()
    pack(meg, place.file("back.bin"), *FLAT)
    assert contents(place.file("back.bin")) == data.tobytes()
    pack(meg, place.file("meg3"), *MEGATRON, "--shards", 3, "--dtype", "u32")
    parts = [megatron(place.file("meg3", f"shard-0000{i}")) for i in range(3)]
    assert numpy.array_equal(numpy.concatenate([p[1] for p in parts]), lengths)  # none is cut
    assert {p[2] for p in parts} == {4}, "u32 is written as i32"
    assert all(abs(len(p[0]) - len(data) / 3) < 2000 for p in parts)
    for n in (1, 2, 3):
        flat(place, f"d/{n}.bin", 1000 * n, 50 + n)
    pack(place.file("d"), place.file("d.bin"), *MEGATRON)
    assert list(megatron(place.file("d"))[1]) == [1000, 2000, 3000], "a shard is one document"
    numpy.array([10, 900, 1000], "<u8").tofile(place.file("e/x.ds.index"))
    data[:1000].tofile(place.file("e/x.ds"))
    pack(place.file("e"), place.file("e.bin"), *MEGATRON, "--eos", int(data[5]))
    assert list(megatron(place.file("e"))[1]) == [10, 890, 100], "an index counts before --eos"


def test_documents_of_lists_are_kept(place):
    """Like those of an index, at any cut."""
    want = []
    for n, name in enumerate(("l/x.npy", "l/y.npy")):
        data = flat(place, name, 1_300_000, 110 + n)
        ends = numpy.random.default_rng(n).integers(1, len(data), 20_000)
        ends = numpy.unique([*ends, 1_048_576, len(data)])
        want += numpy.diff(ends, prepend=0).tolist()
        with gzip.open(place.file(name[:-3] + "csv.gz"), "wt") as f:
            f.writelines(f'{a},{b},"id, {a}"\r\n' for a, b in zip([0, *ends[:-1]], ends))
    assert notes(place.file("l"), place.file("listed.bin"), *MEGATRON, "--eos", 9) == ""
    assert megatron(place.file("listed"))[1].tolist() == want
    pack(place.file("l"), place.file("l3"), *MEGATRON, "--shards", 3)
    parts = [megatron(place.file("l3", f"shard-0000{i}"))[1] for i in range(3)]
    assert numpy.concatenate(parts).tolist() == want
    for format_, end in ((FLAT, ".bin"), (ZSTD, ".bin.zst")):
        said = notes(place.file("l"), place.file(f"lost{end}"), *format_)
        assert "x.npy (the first of 2 inputs): its document bounds are lost" in said


def test_what_is_lost_is_said(place):
    flat(place, "gap.bin", 100, 120)
    with gzip.open(place.file("gap.csv.gz"), "wt") as f:
        f.write("10,20\n20,60\n90,100\n")
    said = notes(place.file("gap.bin"), place.file("g.bin"), *MEGATRON)
    assert "gap.bin: tokens outside the documents of its .csv.gz" in said
    assert list(megatron(place.file("g"))[1]) == [10, 10, 40, 30, 10]  # documents of their own
    for ending in (".bin", ".idx"):
        shutil.copy(place.file(f"g{ending}"), place.file(f"g\n2{ending}"))
    assert "g?2.bin: its document bounds" in notes(
        place.file("g\n2.bin"), place.file("o.bin"), *FLAT
    )
    flat(place, "d/1.bin", 1000, 51)
    assert notes(place.file("d"), place.file("d-flat"), *FLAT) == ""
    for name in ("m/x.ds", "m/y.ds"):
        flat(place, name, 1000, 121)
    with open(place.file("m/y.ds.loss"), "wb") as f:
        f.write(bytes(1000))
    assert "y.ds: its loss mask is lost" in notes(place.file("m"), place.file("m.bin"), *MEGATRON)


def test_changed_input_is_not_continued(place):
    """An interrupted pack does not continue after one of its inputs has changed."""
    for name in ("list", "shard"):
        flat(place, f"{name}/a.bin", 1000, 130), flat(place, f"{name}/b.bin", 2000, 131)
        with gzip.open(place.file(name, "b.csv.gz"), "wt") as f:
            f.write("0,20\n20,2000\n")
        command = [place.file(name), place.file(name + "-out"), *MEGATRON]
        refused(*command, words="shard-00001.bin: File too large", **limited(3000))
        os.utime(place.file(name, "b.csv.gz" if name == "list" else "b.bin"), ns=(1, 1))
        refused(*command, words="of other inputs or with other options")


def test_errors_leave_no_file(place):
    a = place.file("a.bin")
    flat(place, "a.bin", 333_333, 1), flat(place, "s/1.bin", 1000, 31)
    there = flat(place, "b.bin", 1000, 2)
    pack(a, place.file("z.bin.zst"), *ZSTD, "--frame", 65536)
    pack(a, place.file("meg.bin"), *MEGATRON)
    os.link(place.file("meg.idx"), place.file("lone.idx"))
    numpy.array([1, 2, 70000, 80000], "<u4").tofile(place.file("big.bin"))
    numpy.array([1, 1 << 31], "<u4").tofile(place.file("huge.bin"))
    numpy.save(place.file("minus.npy"), numpy.array([3, -1], "<i4"))
    broken = bytearray(contents(place.file("z.bin.zst")))
    broken[len(broken) // 2] ^= 8
    with open(place.file("broken.bin.zst"), "wb") as f:
        f.write(broken)
    wide = ["--input-dtype", "u32"]
    for source, out, options, words in (
        ("a.bin", "b.bin", FLAT, "b.bin: exists"),
        ("a.bin", "s", FLAT, "is not empty"),
        ("a.bin", "lone.bin", MEGATRON, "lone.idx: exists"),
        ("big.bin", "o.bin", [*FLAT, *wide, "--dtype", "u16"],
         "token 2 is 70000; must be at most 65535"),
        ("huge.bin", "o.bin", [*MEGATRON, *wide], "huge.bin: token 1 is 2147483648"),
        ("minus.npy", "o.bin", FLAT, "minus.npy: token 1 is -1"),
        ("none", "o.bin", FLAT, "none: No such file"),
        ("s", "s/out", FLAT, "inside the input"),
        ("big.bin", "o", [*FLAT, "--shards", 9], "too few tokens"),
        ("broken.bin.zst", "o.bin", FLAT, "broken.bin.zst: zstd frame"),
    ):  # fmt: skip
        refused(place.file(source), place.file(out), *options, words=words)
    for words in (
        ["o", "--format", "tar"],
        ["o"],
        ["o.npy", *FLAT],
        ["o", *FLAT, "--level", "3"],
        ["o", *ZSTD, "--frame", "1001"],
        ["o", *FLAT, "--shards", "0"],
    ):
        pack(a, place.file(words[0]), *words[1:], code=2)
    assert contents(place.file("b.bin")) == there.tobytes()
    assert [n for n in os.listdir(place.path) if n.startswith((".", "o"))] == []


def test_killed_pack_continues(place):
    """A pack that is killed repeatedly continues, and does not write complete shards again."""
    parts = [flat(place, f"k/{n}.bin", 300_000, 70 + n, most=300) for n in range(8)]
    command = [place.file("k"), place.file("killed"), *ZSTD, "--level", 19]
    made = {}

    def shards():
        if not os.path.isdir(place.file("killed")):
            return []
        return [name for name in os.listdir(place.file("killed")) if name[0] == "s"]

    for _ in range(3):
        before = len(made)
        child = place.spawn([TOKCTL, "pack", *map(str, command)], stdout=subprocess.DEVNULL)
        wait_for(lambda c=child, n=before: c.poll() is not None or len(shards()) > n)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        for name in shards():
            made.setdefault(name, os.stat(place.file("killed", name)).st_ino)
    assert 3 <= len(made) < 8 and os.path.exists(place.file("killed/.pack"))
    refused(*command[:-1], 18, words="of other inputs or with other options")
    assert len(pack(*command)) == 8
    names = sorted(os.listdir(place.file("killed")))
    assert names == [f"shard-0000{i}.bin.zst" for i in range(8)]
    assert all(os.stat(place.file("killed", n)).st_ino == inode for n, inode in made.items())
    whole = numpy.concatenate(parts).tobytes()
    assert b"".join(zstd(place.file("killed", n)) for n in names) == whole
    refused(*command, words="is not empty")


def test_damaged_state_is_refused(place):
    """The state is cut at any byte, or a finished file has changed."""
    flat(place, "t/a.bin", 1000, 90), flat(place, "t/b.bin", 2000, 91)
    out = place.file("torn")
    command, shard = [place.file("t"), out, *FLAT], out + "/shard-00000.bin"
    refused(*command, words="shard-00001.bin: File too large", **limited(3000))
    assert sorted(os.listdir(out)) == [".pack", "shard-00000.bin"], "the complete shard stays"
    state = contents(out + "/.pack")
    for cut in (0, 5, state.index(b"\n")):
        with open(out + "/.pack", "wb") as f:
            f.write(state[:cut])
        refused(*command, words="shard-00000.bin: exists")
    with open(out + "/.pack", "wb") as f, open(shard, "ab") as grown:
        f.write(state + b"1 4000 0 00")
        grown.write(b"x")
    refused(*command, words="has 2001 bytes, but 2000 were written")
    os.truncate(shard, 2000)
    pack(*command)
    assert sorted(os.listdir(out)) == ["shard-00000.bin", "shard-00001.bin"]
    assert contents(out + "/shard-00001.bin") == contents(place.file("t/b.bin"))


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
        command = [TOKCTL, "pack", place.file("f"), small + "/out", *FLAT]
        done = subprocess.run(command, capture_output=True, text=True)
        left = sorted(os.listdir(small + "/out"))
        libc.mount(b"tokend", small.encode(), b"tmpfs", 32, b"size=8m")
        again = subprocess.run(command, capture_output=True)
        whole = [contents(path) for path in (small + "/out/shard-00001.bin", place.file("f/b.bin"))]
        same = again.returncode == 0 and whole[0] == whole[1]
        os.write(write, json.dumps([done.returncode, done.stderr, left, same]).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 1 << 16)
    os.close(read)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77:
        pytest.skip("may not mount a tmpfs here")
    code, error, left, same = json.loads(text)
    assert code == 1 and "shard-00001.bin: No space left on device; free some space" in error
    assert left == [".pack", "shard-00000.bin"] and same, "it continues once there is space"


def test_second_pack_is_refused(place):
    """Of two packs into one directory, the second is refused."""
    for n in range(2):
        flat(place, f"k/{n}.bin", 500_000, 70 + n, most=300)
    command = [TOKCTL, "pack", place.file("k"), place.file("both"), *ZSTD, "--level", "19"]
    child = place.spawn(command, stdout=subprocess.DEVNULL)
    wait_for(
        lambda: (
            os.path.exists(place.file("both/.pack")) and os.path.getsize(place.file("both/.pack"))
        )
    )
    refused(*command[2:], words="another tokctl pack is writing")
    assert child.wait() == 0
