"""tokctl pack --fit: an independent reader finds each document of the inputs once in the rows, and
the padding that was promised. The bytes depend on nothing but the inputs.
"""

import glob
import gzip
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import numpy
import pytest
import yaml

from lib import TOKCTL, TOKEND, has, wait_for

EOS, ROW = 7, 1025


def pack(*arguments, code=0, **keys):
    done = subprocess.run(
        [TOKCTL, "pack", "--json", *map(str, arguments)], capture_output=True, text=True, **keys
    )
    assert done.returncode == code, (arguments, done)
    return done.stderr if code else [json.loads(line) for line in done.stdout.splitlines()]


def write(place, name, lengths, seed=1, listed=False, dtype="<u2", most=50000):
    """Documents of these lengths, that end with EOS or are listed in a .csv.gz."""
    ends = numpy.cumsum(lengths)
    tokens = numpy.random.default_rng(seed).integers(EOS + 1, most, ends[-1]).astype(dtype)
    if listed:
        with gzip.open(place.file(name.replace(".bin", ".csv.gz")), "wt") as f:
            f.writelines(f"{a},{b}\n" for a, b in zip([0, *ends[:-1]], ends))
    else:
        tokens[ends - 1] = EOS
    tokens.tofile(place.file(name))
    return numpy.split(tokens, ends[:-1])


def lognormal(n, seed=1):
    return numpy.maximum(1, numpy.random.default_rng(seed).lognormal(numpy.log(300), 1, n)).astype(
        int
    )


def chunks(document, row):
    return [document[i : i + row].tobytes() for i in range(0, len(document), row)]


def pieces(path, row, dtype="<u2"):
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


def everything(directory):
    paths = sorted(glob.glob(glob.escape(str(directory)) + "/*"))
    return {os.path.basename(path): open(path, "rb").read() for path in paths}


@pytest.mark.asan
@pytest.mark.parametrize(
    "shards, row, dtype, lengths",
    [
        (1, ROW, "<u2", lognormal(40_000)),
        (3, ROW, "<u4", lognormal(20_000, 2)),
        (2, 2, "<u2", numpy.arange(1, 60)),
        (1, 4097, "<u2", [1, 4097, 4098, 4096, 1, 2 * 4097, 3, 70_000]),
        (1, 64, "<u2", [63] * 1000),
    ],
)
def test_each_document_is_in_the_rows_once(place, shards, row, dtype, lengths):
    documents = []
    for seed, listed in enumerate((False, True)):
        documents += write(place, f"in/{seed}.bin", lengths, seed, listed, dtype)
    kind = "u16" if dtype == "<u2" else "u32"
    options = ["--eos", EOS, "--fit", row, "--shards", shards, "--input-dtype", kind]
    lines = pack(place.file("in"), place.file("out"), *options)
    found, padding = [], 0
    for line in lines:
        some, pad = pieces(line["path"], row, dtype)
        assert (line["padding"], line["tokens"]) == (pad, line["rows"] * row)
        found, padding = found + some, padding + pad
    assert sorted(found) == sorted(c for d in documents for c in chunks(d, row))
    sums = {k: sum(line[k] for line in lines) for k in ("documents", "cut", "cut_by_concatenation")}
    sizes = numpy.array([len(d) for d in documents])
    ends = numpy.cumsum(sizes)
    split = ((ends - sizes) // row != (ends - 1) // row).sum()
    assert sums == {
        "documents": len(sizes), "cut": (sizes > row).sum(), "cut_by_concatenation": split,
    }  # fmt: skip
    if row == ROW:
        assert sum(line["rows"] for line in lines) <= 1.01 * -(-ends[-1] // row)

    first = {min(os.sched_getaffinity(0))}
    alone = {"preexec_fn": lambda: os.sched_setaffinity(0, first)}
    pack(place.file("in"), place.file("one"), *options, **alone)
    assert everything(place.file("one")) == everything(place.file("out")), "with one thread"


def test_rows_are_served_as_they_are_and_padding_is_shown(place):
    """The printed lines are a stream's config. Windows that are not the rows are refused."""
    write(place, "in.bin", [40] * 600 + [600] * 100)
    command = [
        TOKCTL,
        "pack",
        place.file("in.bin"),
        place.file("out"),
        "--fit",
        "1025",
        "--eos",
        "7",
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows, share = re.search(
        r"(\d+) rows of 1025 tokens, ([\d.]+) % padding; cut: 0 of 700", text
    ).groups()
    config = yaml.safe_load(text[text.index("    seq_len") :])
    config = {"seed": 1, "vocab": 50000, **config}

    def check(**keys):
        with open(place.file("c.yaml"), "w") as f:
            streams = {"train": {**config, **keys}}
            json.dump({"state_dir": place.file("state"), "streams": streams}, f)
        return subprocess.run(
            [TOKEND, "-c", place.file("c.yaml"), "--check"], capture_output=True, text=True
        )

    done = check()
    assert done.returncode == 0, done
    assert has(done.stdout, f"{rows} windows", f"rows of 1025 tokens, {share} % padding")
    inspected = subprocess.run(
        [TOKCTL, "inspect", "--json", "--deep", place.file("out")], capture_output=True, text=True
    )
    line = json.loads(inspected.stdout)
    assert line["padding"] == line["masked"] > 0 and line["sample_tokens"] == 1025
    for off in ({}, {"documents": False, "loss_mask": False}):
        for wrong in ({"seq_len": 512}, {"seq_len": 1025}, {"extra": 0}, {"slide": True}):
            keys = {"datasets": [config["datasets"][0] | wrong]} if "slide" in wrong else wrong
            assert check(**keys, **off).returncode == 1, (wrong, off)
    assert has(check(loss_mask=False).stdout, "trained on; set loss_mask: true")
    subprocess.run(
        [TOKCTL, "inspect", "--manifest", place.file("m.jsonl"), place.file("out")], check=True
    )
    listed = [config["datasets"][0] | {"manifest": place.file("m.jsonl")}]
    assert check(datasets=listed).returncode == 0
    assert check(datasets=listed, seq_len=512).returncode == 1

    path = glob.glob(place.file("out/*.csv.gz"))[0]
    data = open(path, "rb").read()
    for old, new in ((b"rows of 1025", b"rows of 1024"), (b" of padding", b"0 of padding")):
        with open(path, "wb") as f:
            f.write(data.replace(old, new))
        assert check().returncode == 1, new


@pytest.mark.asan
def test_bad_input_is_refused(place):
    a = place.file("a.bin")
    write(place, "a.bin", [10, 20, 30])
    write(place, "listed.bin", [10, 20, 30], listed=True)
    numpy.array([1, 2, 70000, EOS], "<u4").tofile(place.file("wide.bin"))
    pack(a, place.file("packed.bin"), "--fit", 50, "--eos", EOS)
    wide = [place.file("wide.bin"), "--input-dtype", "u32", "--dtype", "u16"]
    for name, words, code, *arguments in (
        ("no documents", "a.bin: has no document bounds; give --eos", 1, a, "--fit", 64),
        ("an eos that is not there", "--eos 5: does not occur", 1, a, "--fit", 64, "--eos", 5),
        ("a short row", "fit", 2, a, "--fit", 1, "--eos", EOS),
        ("a wide token", "wide.bin: token 2 is 70000", 1, *wide, "--fit", 64, "--eos", EOS),
        ("too many shards", "too few documents", 1, a, "--fit", 64, "--eos", EOS, "--shards", 9),
        ("packed already", "packed in rows", 1, place.file("packed.bin"), "--fit", 64),
        ("megatron", "loss mask", 2, a, "--fit", 64, "--eos", EOS, "--format", "megatron"),
        ("neither format nor fit", "--fit", 2, a, "--eos", EOS),
    ):  # fmt: skip
        error = pack(arguments[0], place.file(name), *arguments[1:], code=code)
        assert has(error, words) and (code == 2 or error.count("\n") == 1), (name, error)
        assert not glob.glob(place.file(name) + "/*.*"), name
    for out, code in (("packed.bin", 1), ("new.zst", 2)):
        pack(a, place.file(out), "--format", "zstd" if code == 2 else "flat", "--fit", 64, "--eos",
            EOS, code=code)  # fmt: skip
    os.rename(place.file("packed.csv.gz"), place.file("other.csv.gz"))
    assert has(
        pack(a, place.file("other.bin"), "--fit", 64, "--eos", EOS, code=1), "other.csv.gz: exists"
    )
    assert not os.path.exists(place.file("other.bin"))


@pytest.mark.asan
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, "no space", "torn"])
def test_an_interrupted_pack_continues(place, how):
    write(place, "in/0.bin", lognormal(15_000), most=300)  # the first shards are smaller
    write(place, "in/1.bin", lognormal(15_000))
    options = [place.file("out"), "--fit", ROW, "--eos", EOS, "--shards", 6, "--format", "zstd"]
    pack(place.file("in"), place.file("want"), *options[1:])
    shards = place.file("out/s*.zst")
    if how in ("no space", "torn"):
        sizes = [os.path.getsize(p) for p in sorted(glob.glob(place.file("want/*.zst")))]
        limit = {"preexec_fn": lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                 resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) - 1,) * 2))}  # fmt: skip
        pack(place.file("in"), *options, code=1, **limit)
    else:
        child = place.spawn([TOKCTL, "pack", place.file("in"), *map(str, options)])
        wait_for(lambda: child.poll() is not None or len(glob.glob(shards)) > 1)
        child.send_signal(how)
        assert child.wait() == -how
    assert os.path.exists(place.file("out/.pack")) and len(glob.glob(shards)) < 6
    if how == "torn":  # its list has its name, and it has not
        os.unlink(glob.glob(shards)[0])
    pack(place.file("in"), *options[:2], ROW + 1, *options[3:], code=1)
    pack(place.file("in"), *options)
    assert everything(place.file("out")) == everything(place.file("want"))
    assert not os.path.exists(place.file("out/.pack"))


def test_inputs_that_change_meanwhile_are_refused(place):
    write(place, "in.bin", lognormal(60_000))
    options = ["--fit", ROW, "--eos", EOS, "--shards", 20, "--format", "zstd", "--level", 19]
    command = [TOKCTL, "pack", place.file("in.bin"), place.file("out"), *map(str, options)]
    child = place.spawn(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: glob.glob(place.file("out/s*.zst")) or child.poll() is not None)
    os.utime(place.file("in.bin"), ns=(1, 1))
    error = child.communicate()[1]
    assert child.returncode == 1 and has(error, "in.bin: the file or a side file has changed")
    pack(place.file("in.bin"), place.file("out"), *options, code=1)


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
    """Ten times as many tokens need no more memory."""
    peaks = []
    for millions in (20, 200):
        with open(place.file("large.bin"), "wb") as f:
            for _ in range(millions):
                f.write(numpy.arange(1_000_000, dtype="<u2").tobytes())
        fit = ["--fit", "1025", "--shards", str(millions // 20)]
        for how in (["--format", "zstd"], ["--format", "megatron"], fit):
            command = [TOKCTL, "pack", place.file("large.bin"), place.file("l"), "--eos", "9", *how]
            peaks.append(peak(place.spawn(command, stdout=subprocess.DEVNULL)))
            shutil.rmtree(place.file("l"))
    os.unlink(place.file("large.bin"))
    for small, large in zip(peaks[:3], peaks[3:]):
        assert 1000 < large < 1.3 * small + 32 * 1024, peaks
