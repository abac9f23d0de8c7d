"""tokctl pack writes files that zstd, NumPy and Megatron-core read, and that pack back to the same
bytes. With --fit, an independent reader finds each document once in the rows, and the padding that
was promised. It overwrites nothing, and continues after an interruption.
"""

import glob
import gzip
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import time
import warnings

import numpy
import pytest
import yaml

from lib import TOKCTL, TOKEND, has, run, shard_writers, wait_for

with warnings.catch_warnings():  # about Transformer Engine and Apex, which its index does not need
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDataset

EOS, ROW = 7, 1025
FLAT, MEGATRON, ZSTD = (["--format", name] for name in ("flat", "megatron", "zstd"))


def pack(*arguments, code=0, **keys):
    """Its lines, or its one line of stderr if it fails."""
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True, **keys
    )
    assert done.returncode == code, (arguments, done)
    assert code == 2 or done.stderr.count("\n") <= 1, done.stderr
    return done.stderr if code else [json.loads(line) for line in done.stdout.splitlines()]


def contents(path):
    with open(path, "rb") as f:
        return f.read()


def everything(directory):
    return {name: contents(f"{directory}/{name}") for name in os.listdir(directory)}


def zstd(path):
    return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout


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


def documents(place, name, lengths, seed=1, listed=False, dtype="<u2", most=50000):
    """Documents of these lengths, that end with EOS or are listed in a .csv.gz."""
    ends = numpy.cumsum(lengths)
    tokens = flat(place, name, ends[-1], seed, dtype, most)
    if listed:
        with gzip.open(place.file(name.replace(".bin", ".csv.gz")), "wt") as f:
            f.writelines(f'{a},{b},"id, {a}"\r\n' for a, b in zip([0, *ends[:-1]], ends))
    else:
        tokens[ends - 1] = EOS
        tokens.tofile(place.file(name))
    return numpy.split(tokens, ends[:-1])


def lognormal(n, seed=1):
    drawn = numpy.random.default_rng(seed).lognormal(numpy.log(300), 1, n)
    return numpy.maximum(1, drawn).astype(int)


# ---- formats ----


@pytest.mark.asan
def test_one_file_is_restored_by_zstd(place):
    data = flat(place, "a.bin", 3_333_333, 1)
    a, packed = place.file("a.bin"), place.file("b.bin.zstd")
    (line,) = pack(a, packed, *ZSTD, "--frame", 65536)
    facts = ["zstd", "u16", len(data), os.path.getsize(packed)]
    assert [line[k] for k in ("format", "dtype", "tokens", "size")] == facts
    assert zstd(packed) == data.tobytes()
    footer = (-(-data.nbytes // 65536), 0x80, 0x8F92EAB1)  # of a seek table
    assert struct.unpack("<IBI", contents(packed)[-9:]) == footer
    pack(packed, place.file("b.bin"), *FLAT)
    assert contents(place.file("b.bin")) == data.tobytes()
    assert not [n for n in os.listdir(place.path) if n.startswith(".")], "no temporary files stay"


def test_shards_have_all_tokens_in_order(place):
    parts = [flat(place, f"s/{n}.bin", 100_000 * n + n, 30 + n) for n in (1, 2, 3)]
    whole = numpy.concatenate(parts)
    lines = pack(place.file("s"), place.file("same"), *ZSTD)
    assert [line["tokens"] for line in lines] == [100_001, 200_002, 300_003]
    names = [f"shard-0000{i}.bin.zst" for i in range(3)]  # one for each input
    assert sorted(os.listdir(place.file("same"))) == names
    lines = pack(place.file("same"), place.file("seven"), *FLAT, "--shards", 7)
    shards = [contents(line["path"]) for line in lines]
    sizes = [len(shard) // 2 for shard in shards]
    assert len(sizes) == 7 and max(sizes) - min(sizes) <= 1 and b"".join(shards) == whole.tobytes()
    pack(place.file("seven"), place.file("wide.bin"), *FLAT, "--dtype", "u32")
    assert contents(place.file("wide.bin")) == whole.astype("<u4").tobytes()


def lengths_of(prefix, dtype=numpy.uint16):
    """Those of its sequences, as Megatron-core reads them."""
    theirs = IndexedDataset(prefix)
    assert theirs.index.dtype == dtype
    assert theirs.document_indices.tolist() == list(range(len(theirs) + 1))
    tokens = numpy.concatenate([theirs[i] for i in range(0, len(theirs), 50)])
    cut = numpy.split(numpy.fromfile(prefix + ".bin", dtype), theirs.sequence_lengths.cumsum()[:-1])
    assert numpy.array_equal(tokens, numpy.concatenate(cut[::50]))
    return theirs.sequence_lengths.tolist()


@pytest.mark.asan
@pytest.mark.parametrize("listed", [False, True])
def test_megatron_keeps_documents(place, listed):
    """Of an eos, or of lists. A document may end with a piece of what is read at once."""
    lengths = [1_048_576, *lognormal(20_000)]
    data = documents(place, "in/a.bin", lengths, listed=listed)
    data += documents(place, "in/b.bin", lengths[::-1], 2, listed)
    eos = ["--eos", EOS if not listed else 9]
    lines = pack(place.file("in"), place.file("m.bin"), *MEGATRON, *eos)
    assert lines[0]["documents"] == len(data)
    assert lengths_of(place.file("m")) == [len(document) for document in data]
    pack(place.file("m.bin"), place.file("back.bin"), *FLAT)
    assert contents(place.file("back.bin")) == numpy.concatenate(data).tobytes()
    pack(place.file("in"), place.file("m3"), *MEGATRON, *eos, "--shards", 3, "--dtype", "u32")
    parts = [lengths_of(place.file("m3", f"shard-0000{i}"), numpy.int32) for i in range(3)]
    assert sum(parts, []) == [len(document) for document in data]  # none is cut


def test_what_is_lost_is_said(place):
    def notes(*arguments):
        code, _, said = run(TOKCTL, "pack", *arguments)
        assert code == 0 and said.count("\n") <= 1, said
        return said

    flat(place, "gap.bin", 100, 120)
    with gzip.open(place.file("gap.csv.gz"), "wt") as f:
        f.write("10,20\n20,60\n90,100\n")
    said = notes(place.file("gap.bin"), place.file("g.bin"), *MEGATRON)
    assert "gap.bin: tokens outside the documents of its .csv.gz" in said
    assert lengths_of(place.file("g")) == [10, 10, 40, 30, 10]  # documents of their own
    assert "g.bin: its document bounds" in notes(place.file("g.bin"), place.file("o.bin"), *FLAT)
    os.symlink("../o.bin", place.file("t/a.bin"))
    os.symlink("a.bin", place.file("t/b.bin"))
    assert "b.bin: is the same file as" in notes(place.file("t"), place.file("t.bin"), *FLAT)
    for name in ("m/x.ds", "m/y.ds"):
        flat(place, name, 1000, 121)
    numpy.zeros(1000, "u1").tofile(place.file("m/y.ds.loss"))
    assert "y.ds: its loss mask is lost" in notes(place.file("m"), place.file("m.bin"), *MEGATRON)
    for name in ("n/train.bin", "n/val.bin"):
        flat(place, name, 1000, 122)
    assert "n: val.bin is validation" in notes(place.file("n"), place.file("n.bin"), *FLAT)
    rows = [numpy.arange(1, n, dtype="<u2") for n in (*[40] * 20, 7, 40)]
    shard_writers.mds(place.file("d"), rows, 1000)  # the first shard's samples are alike by chance
    notes(place.file("d"), place.file("d.bin"), *MEGATRON, "--eos", 41)
    assert lengths_of(place.file("d")) == [len(row) for row in rows]


# ---- rows ----


def pieces(path, row, dtype):
    """(pieces of documents, tokens of padding) in a shard. No piece crosses a row."""
    tokens, found, padding = numpy.fromfile(path, dtype), [], 0
    inside = numpy.zeros(len(tokens), bool)
    assert len(tokens) % row == 0
    for line in gzip.open(path.replace(".bin", ".csv.gz"), "rt"):
        begin, end = map(int, line.split(","))
        assert begin // row == (end - 1) // row and not inside[begin:end].any()
        inside[begin:end] = True
        found.append(tokens[begin:end].tobytes())
    for rows, kept in zip(tokens.reshape(-1, row), inside.reshape(-1, row)):
        used = kept.sum()
        assert used > 0 and kept[:used].all() and (rows[used:] == rows[used - 1]).all()
        padding += row - used
    return found, padding


@pytest.mark.asan
@pytest.mark.parametrize(
    "shards, row, dtype, lengths",
    [
        (3, ROW, "<u4", lognormal(20_000)),
        (2, 2, "<u2", numpy.arange(1, 60)),
        (1, 4097, "<u2", [1, 4097, 4098, 4096, 1, 2 * 4097, 3, 70_000]),
    ],
)
def test_each_document_is_in_the_rows_once(place, shards, row, dtype, lengths):
    written = []
    for seed, listed in enumerate((False, True)):
        written += documents(place, f"in/{seed}.bin", lengths, seed, listed, dtype)
    kind = "u16" if dtype == "<u2" else "u32"
    options = ["--eos", EOS, "--fit", row, "--shards", shards, "--input-dtype", kind]
    lines = pack(place.file("in"), place.file("out"), *options)
    found = []
    for line in lines:
        some, padding = pieces(line["path"], row, dtype)
        assert (line["padding"], line["tokens"]) == (padding, line["rows"] * row)
        found += some
    chunks = [d[i : i + row].tobytes() for d in written for i in range(0, len(d), row)]
    assert sorted(found) == sorted(chunks)
    sizes = numpy.array([len(d) for d in written])
    ends = numpy.cumsum(sizes)
    split = ((ends - sizes) // row != (ends - 1) // row).sum()
    sums = [sum(line[k] for line in lines) for k in ("documents", "cut", "cut_by_concatenation")]
    assert sums == [len(sizes), (sizes > row).sum(), split]
    if row == ROW:
        assert sum(line["rows"] for line in lines) <= 1.01 * -(-ends[-1] // row)
    first = {min(os.sched_getaffinity(0))}
    alone = {"preexec_fn": lambda: os.sched_setaffinity(0, first)}
    pack(place.file("in"), place.file("one"), *options, **alone)
    assert everything(place.file("one")) == everything(place.file("out")), "with one thread"


def test_rows_are_served_as_they_are_and_padding_is_shown(place):
    """The printed lines are a stream's config. Windows that are not the rows are refused."""
    documents(place, "in.bin", [40] * 600 + [600] * 100)
    fit = ["--fit", ROW, "--eos", EOS]
    text = run(TOKCTL, "pack", place.file("in.bin"), place.file("out"), *fit)[1].decode()
    said = re.search(r"(\d+) rows of 1025 tokens, ([\d.]+) % padding; cut: 0 of 700", text)
    config = {"seed": 1, "vocab": 50000, **yaml.safe_load(text[text.index("    seq_len") :])}

    def check(**keys):
        path = place.config(streams={"train": {**config, **keys}})
        return run(TOKEND, "-c", path, "--check")

    _, out, err = check(loss_mask=False)
    assert has(out.decode(), f"{said[1]} windows"), err
    assert has(out.decode(), "trained on; set loss_mask: true")
    out = check()[1].decode()
    assert has(out, f"rows of 1025 tokens, {said[2]} % padding") and "loss_mask:" not in out
    line = json.loads(run(TOKCTL, "inspect", "--json", "--deep", place.file("out"))[1])
    assert line["padding"] == line["masked"] > 0 and line["sample_tokens"] == ROW
    run(TOKCTL, "manifest", place.file("out"), place.file("m.jsonl"))
    datasets = config["datasets"]
    for manifest in {}, {"manifest": place.file("m.jsonl")}:
        listed = [datasets[0] | manifest]
        assert check(datasets=listed)[0] == 0
        assert check(datasets=listed, seq_len=512)[0] == 1
    assert check(extra=0)[0] == check(datasets=[datasets[0] | {"slide": True}])[0] == 1


# ---- what goes wrong ----


@pytest.mark.asan
def test_errors_leave_no_file(place):
    a, fit, wide = place.file("a.bin"), ["--fit", 64, "--eos", EOS], ["--input-dtype", "u32"]
    documents(place, "a.bin", [333_330, 3]), flat(place, "s/1.bin", 1000, 31)
    there = flat(place, "b.bin", 1000, 2)
    pack(a, place.file("z.bin.zst"), *ZSTD, "--frame", 65536)
    pack(a, place.file("rows.bin"), *fit)
    for name in ("lone.idx", "other.csv.gz"):
        os.link(a, place.file(name))
    numpy.array([1, 2, 70000, EOS], "<u4").tofile(place.file("big.bin"))
    numpy.save(place.file("minus.npy"), numpy.array([3, -1], "<i4"))
    flat(place, "wide.bin", 9000, 1, "<u4")
    os.symlink("s/1.bin", place.file("link"))
    broken = bytearray(contents(place.file("z.bin.zst")))
    broken[len(broken) // 2] ^= 8
    numpy.frombuffer(broken, "u1").tofile(place.file("broken.bin.zst"))
    before = sorted([*os.listdir(place.path), "o"])  # an empty directory may be left
    for source, out, options, words in (
        ("a.bin", "b.bin", FLAT, "b.bin: exists"),
        ("a.bin", "s", FLAT, "is not empty"),
        ("a.bin", "lone.bin", MEGATRON, "lone.idx: exists"),
        ("a.bin", "other.bin", fit, "other.csv.gz: exists"),
        ("big.bin", "o.bin", [*FLAT, *wide, "--dtype", "u16"],
         "token 2 is 70000; must be at most 65535"),
        ("big.bin", "o.bin", [*fit, *wide, "--dtype", "u16"], "big.bin: token 2 is 70000"),
        ("minus.npy", "o.bin", FLAT, "minus.npy: token 1 is -1"),
        ("s", "s/out", FLAT, "inside the input"),
        ("big.bin", "o", [*FLAT, "--shards", 9], "too few tokens"),
        ("a.bin", "o", [*fit, "--shards", 9], "too few documents"),
        ("broken.bin.zst", "o.bin", FLAT, "broken.bin.zst: zstd frame"),
        ("a.bin", "o", ["--fit", 64], "a.bin: has no document bounds; give --eos"),
        ("a.bin", "o", ["--fit", 64, "--eos", 5], "--eos 5: does not occur"),
        ("a.bin", "o", [*MEGATRON, "--eos", 5], "--eos 5: does not occur"),
        ("rows.bin", "o", ["--fit", 64], "packed in rows"),
        ("wide.bin", "o", [*MEGATRON, "--eos", EOS],
         "wide.bin: looks like u32 (every second u16 is 0 or small); give --input-dtype"),
    ):  # fmt: skip
        assert words in pack(place.file(source), place.file(out), *options, code=1)
    for twice in "s", "s/*.bin", "s/1.bin", "link":
        said = pack(place.file("s"), place.file(twice), place.file("o"), *FLAT, code=1)
        assert f"in two arguments, {place.file('s')} and {place.file(twice)};" in said
    for out, *options in (
        ["o", "--format", "tar"],
        ["o.npy", *FLAT],
        ["o.zst", *ZSTD],
        ["o", *FLAT, "--level", "3"],
        ["o", *ZSTD, "--frame", "1001"],
        ["o", *FLAT, "--shards", "0"],
        ["o", "--fit", 1, "--eos", EOS],
        ["o", *fit, *MEGATRON],
    ):
        pack(a, place.file(out), *options, code=2)
    assert sorted(os.listdir(place.path)) == before
    assert contents(place.file("b.bin")) == there.tobytes()


INTERRUPTED = {"zstd": [*ZSTD, "--level", 12], "rows": [*ZSTD, "--fit", ROW, "--eos", EOS]}


@pytest.mark.asan
@pytest.mark.parametrize("options", INTERRUPTED.values(), ids=INTERRUPTED)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, "no space"])
def test_an_interrupted_pack_continues(place, how, options):
    """It does not write complete shards again, and takes no shards of other tokens for them."""
    for i, most in enumerate((300, 300, 50_000)):  # the first shards are smaller
        documents(place, f"in/{i}.bin", lognormal(5000), i, most=most)
    options = ["--shards", 6, *options]
    wanted = pack(place.file("in"), place.file("want"), *options)
    command, shards = [place.file("in"), place.file("out"), *options], place.file("out/s*.zst")
    if how == "no space":
        most = max(map(os.path.getsize, glob.glob(place.file("want/*.zst"))))
        pack(*command, code=1, **limited(most - 1))
    else:
        child = place.spawn([TOKCTL, "pack", *map(str, command)], stdout=subprocess.DEVNULL)
        wait_for(lambda: child.poll() is not None or len(glob.glob(shards)) > 1)
        child.send_signal(how)
        assert child.wait() == -how
    made = {path: os.stat(path).st_ino for path in glob.glob(shards)}
    assert 0 < len(made) < 6
    assert "exists, and nothing is overwritten" in pack(*command, "--dtype", "u32", code=1)
    swapped = [place.file(f"in/{i}.bin") for i in (1, 0, 2)]
    assert "exists, and nothing is overwritten" in pack(*swapped, *command[1:], code=1)
    assert made == {path: os.stat(path).st_ino for path in glob.glob(shards)}
    for _ in range(2):  # the second call writes nothing
        lines = [
            {**line, "path": line["path"].replace("/out/", "/want/")} for line in pack(*command)
        ]
        assert lines == wanted
        assert all(os.stat(path).st_ino == inode for path, inode in made.items())
        assert everything(place.file("out")) == everything(place.file("want"))
        made = {path: os.stat(path).st_ino for path in glob.glob(shards)}


@pytest.mark.parametrize("options", [MEGATRON, ["--fit", ROW]])
def test_a_pack_that_ended_between_its_renames_continues(place, options):
    """Only with the side file that it would write."""
    documents(place, "in.bin", lognormal(100))
    command = [place.file("in.bin"), place.file("out.bin"), *options, "--eos", EOS]
    (line,) = pack(*command)
    whole = everything(place.path)
    (side,) = {name for name in whole if name.startswith("out.")} - {"out.bin"}
    os.rename(place.file("out.bin"), place.file(".part-out.bin"))
    assert pack(*command) == [line] and everything(place.path) == whole
    os.rename(place.file("out.bin"), place.file(".part-out.bin"))
    with open(place.file(side), "ab") as f:
        f.write(b"x")
    for _ in range(2):
        assert f"{side}: exists" in pack(*command, code=1)
        assert everything(place.path) == {"in.bin": whole["in.bin"], side: whole[side] + b"x"}


def test_files_that_are_there_are_compared(place):
    flat(place, "t/a.bin", 1000, 90), flat(place, "t/b.bin", 2000, 91)
    out = place.file("there")
    command, shard = [place.file("t"), out, *FLAT], out + "/shard-00000.bin"
    assert "shard-00001.bin: File too large" in pack(*command, code=1, **limited(3000))
    assert os.listdir(out) == ["shard-00000.bin"], "the complete shard stays"
    flat(place, "there/shard-00000.bin", 1000, 92)
    assert "shard-00000.bin: exists" in pack(*command, code=1)
    os.truncate(shard, 1998)
    assert "has 999 tokens of 2 bytes; must be 1000" in pack(*command, code=1)
    for file in glob.glob(out + "/*"):  # the second may have been packed meanwhile
        os.unlink(file)
    flat(place, "there/shard-00002.bin", 10, 93)
    assert "is not empty: shard-00002.bin is none of" in pack(*command, code=1)
    os.rename(out + "/shard-00002.bin", out + "/shard-00001.idx")
    assert "is not empty: shard-00001.idx is none of" in pack(*command, code=1)
    assert "shard-00001.idx: exists" in pack(*command[:2], *MEGATRON, code=1)


@pytest.mark.parametrize(
    "options, again", [(MEGATRON, []), ([*ZSTD, "--fit", 64], ["--level", 9, "--frame", 4096])]
)
def test_bounds_of_files_that_are_there_are_compared(place, options, again):
    """The tokens and the number of documents are the same. Frames may differ."""
    command = [place.file("in.bin"), place.file("out"), *options]
    for lengths, code in (([10, 20, 30], 0), ([10, 20, 30], 0), ([20, 10, 30], 1)):
        documents(place, "in.bin", lengths, listed=True)
        said = pack(*command, code=code)
        command += again
        again = []
    assert has(said, "exists, and nothing is overwritten", "has other document bounds")


def test_padding_listed_as_documents_is_found(place):
    """All bounds are where they should be; the list has lost its comment."""
    documents(place, "in.bin", [10, 20, 30, 63])
    command = [place.file("in.bin"), place.file("out"), "--fit", 64, "--eos", EOS]
    (line,) = pack(*command)
    listed = line["path"].replace(".bin", ".csv.gz")
    bounds = {int(n) for text in gzip.open(listed, "rt") for n in text.split(",")}
    bounds = sorted(bounds | {0, line["tokens"]})
    with gzip.open(listed, "wt") as f:
        f.writelines(f"{a},{b}\n" for a, b in zip(bounds, bounds[1:]))
    assert "has other document bounds" in pack(*command, code=1)


def test_a_second_pack_and_inputs_that_change_meanwhile_are_refused(place):
    documents(place, "in.bin", lognormal(60_000))
    options = ["--fit", ROW, "--eos", EOS, "--shards", 20, *ZSTD, "--level", 19]
    command = [place.file("in.bin"), place.file("out"), *options]
    child = place.spawn([TOKCTL, "pack", *map(str, command)], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: glob.glob(place.file("out/s*.zst")) or child.poll() is not None)
    assert "another tokctl pack is writing" in pack(*command, code=1)
    os.utime(place.file("in.bin"), ns=(1, 1))
    error = child.communicate()[1]
    assert child.returncode == 1 and has(error, "in.bin: the file or a side file has changed")


def peak(child):
    """KiB. ru_maxrss would have the memory of this process, whose fork it was."""
    most = 0
    while child.poll() is None:
        with open(f"/proc/{child.pid}/status") as status:
            found = re.search(r"VmHWM:\s*(\d+)", status.read())
        most = max(most, int(found[1]) if found else 0)
        time.sleep(0.005)
    assert child.returncode == 0
    return most


def test_memory_does_not_grow(place):
    """Ten times as many tokens need no more memory than 64 MiB of decoded frames that are kept."""
    peaks = []
    for millions in (20, 200):
        with open(place.file("large.bin"), "wb") as f:
            for _ in range(millions):
                f.write(numpy.arange(1_000_000, dtype="<u2").tobytes())
        fit = ["--fit", "1025", "--shards", str(millions // 20)]
        for how in (ZSTD, MEGATRON, fit):
            command = [TOKCTL, "pack", place.file("large.bin"), place.file("l"), "--eos", "9", *how]
            peaks.append(peak(place.spawn(command, stdout=subprocess.DEVNULL)))
            shutil.rmtree(place.file("l"))
    os.unlink(place.file("large.bin"))
    for small, large in zip(peaks[:3], peaks[3:]):
        assert 1000 < large < 1.3 * small + 72 * 1024, peaks
