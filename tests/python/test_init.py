"""python -m tokend init and try: a config for what a directory contains, and a batch from it."""

import collections
import errno
import glob
import io
import json
import os
import pty
import subprocess
import sys

import numpy
import pytest
import yaml
from test_loader_daemon import kill_private
from tokenizing import made, read_terminal  # noqa: F401

from lib import REPO, TOKCTL, child_environment, order_reference, run, shard_writers
from tokend import Loader
from tokend.__main__ import main
from tokend.data import init, trial

WORDS = b"words and words\n" * 4000
RANDOM = numpy.random.default_rng(1)


def tokens(count, dtype="<u2", most=50257):
    return (most * RANDOM.random(count) ** 4).astype(dtype)  # small ones are frequent, as in text


def flat(count, dtype="<u2", most=50257):
    return tokens(count, dtype, most).tobytes()


@pytest.fixture(autouse=True)
def here(directory, monkeypatch):
    """The current directory. Data is in `data`, next to it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.setattr(trial, "MEASURED_S", 0.1)
    (directory / "here").mkdir()
    (directory / "data").mkdir()
    monkeypatch.chdir(directory / "here")
    yield directory / "here"
    kill_private(directory)


def write(files):
    for name, content in files.items():
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def begin(*arguments):
    """Runs init. Returns the config's streams: {name: (facts, {dataset: facts})}."""
    assert init.main(list(arguments)) == 0
    with open("tokend.yaml") as file:
        streams = yaml.safe_load(file)["streams"]
    return {
        name: (stream, {d["name"]: d for d in stream["datasets"]})
        for name, stream in streams.items()
    }


def refused(capsys, *arguments, program=init, code=1):
    before = sorted({*os.listdir(".")} - {"state"})
    assert program.main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), (out, err)
    assert sorted({*os.listdir(".")} - {"state"}) == before, "nothing is left"
    return err.split(": ", 1)[1].rstrip("\n")


# ---- shards ----

D = "../data"
LAYOUTS = {  # files, arguments, {stream: {dataset: path}}
    "a directory": (
        {f"{D}/web/0.bin": flat(9000), f"{D}/web/1.bin": flat(9000)},
        [f"{D}/web"],
        {"train": {"web": f"{D}/web"}},
    ),
    "README.md among the shards": (
        {f"{D}/0.bin": flat(9000), f"{D}/README.md": b"Tokens.\n"},
        [D],
        {"train": {"data": f"{D}/*.bin"}},
    ),
    "subdirectories, formats and widths": (
        {
            f"{D}/web/0.bin": flat(30_000),
            f"{D}/code/0.bin": flat(10_000, "<u4", 150_000),
            f"{D}/math.npy": shard_writers.npy(tokens(20_000, "<i8")),
        },
        [D],
        {"train": {"data": f"{D}/*.npy", "code": f"{D}/code", "web": f"{D}/web"}},
    ),
    "validation by name": (
        {
            f"{D}/fineweb_train_000001.bin": flat(9000),
            f"{D}/fineweb_train_000002.bin": flat(9000),
            f"{D}/fineweb_val_000000.bin": flat(9000),
        },
        [D],
        {
            "train": {"data": f"{D}/fineweb_train_*.bin"},
            "valid": {"data-valid": f"{D}/fineweb_val_000000.bin"},
        },
    ),
    "some files": (
        {f"{D}/a{i}.bin": flat(9000) for i in range(3)} | {f"{D}/b.bin": flat(9000)},
        [f"{D}/a*.bin"],
        {"train": {"data": f"{D}/a*.bin"}},
    ),
    "no pattern tells them from others": (
        {f"{D}/{name}.bin": flat(9000) for name in ("web", "books", "val")},
        [D],
        {
            "train": {"web": f"{D}/web.bin", "books": f"{D}/books.bin"},
            "valid": {"data-valid": f"{D}/val.bin"},
        },
    ),
    "the current directory": ({"./0.bin": flat(9000)}, [], {"train": {"here": "*.bin"}}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_config_for_shards(layout, capsys):
    files, arguments, expected = LAYOUTS[layout]
    write(files)
    streams = begin(*arguments)
    found = {
        name: {dataset: facts["path"] for dataset, facts in datasets.items()}
        for name, (_, datasets) in streams.items()
    }
    assert found == expected
    said = capsys.readouterr().out
    assert "python -m tokend try\n" in said and "torchrun train.py\n" in said
    assert ("left out" in said) == ("README" in layout)
    with open("tokend.yaml") as file:
        assert yaml.safe_load(file)["state_dir"] == "state"
    stream, datasets = streams["train"]
    if "widths" in layout:
        weights = {name: round(facts["weight"], 3) for name, facts in datasets.items()}
        assert weights == {"web": 0.5, "data": 0.333, "code": 0.167}
        assert datasets["code"]["dtype"] == "u32" and "dtype" not in datasets["data"]
        assert 140_000 < stream["vocab"] <= 150_000
    assert ("no stream for validation: a dataset needs" in said) == ("valid" not in streams)
    if "valid" in streams:
        assert streams["valid"][0]["epochs"] == 1


ARCHIVE = io.BytesIO()
numpy.savez(ARCHIVE, weights=numpy.zeros(9))
SHARDS = {f"{D}/train_{i}.bin": flat(9000) for i in range(3)}
OTHERS = {  # file, content, words of the reason
    "train_0_offsets.npy": (shard_writers.npy(tokens(9000, "<i8")), "its name (offsets) is not"),
    "train_mask.bin": (bytes(9000), "its name (mask) is not"),
    "train_0 copy.bin": (flat(9000), "its name is that of a copy"),
    "train_0 (1).bin": (flat(900), "its name is that of a copy"),
    "train_0000.bin": (SHARDS[f"{D}/train_0.bin"], "is a copy of train_0.bin"),
    "train_3.bin.part": (flat(900), "its name ends neither"),
    "wide.bin": (flat(9000, "<i8"), "looks like"),
    "pytorch_model.bin": (ARCHIVE.getvalue(), "is a zip archive"),
    "input.txt": (WORDS * 9, "is text next to shards"),
    "prepare.py": (WORDS, "is text next to shards"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_left_out_with_the_reason(name, capsys):
    content, why = OTHERS[name]
    write({**SHARDS, f"{D}/val.bin": flat(9000), f"{D}/{name}": content})
    streams = begin(D)
    datasets = [d for _, of_stream in streams.values() for d in of_stream.values()]
    matched = [{os.path.basename(p) for p in glob.glob(d["path"])} for d in datasets]
    assert matched == [set(map(os.path.basename, SHARDS)), {"val.bin"}]
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("left out: ")]
    assert name in line and why in line


def test_the_tokenizer_next_to_shards_gives_vocab_and_eos(here, made):  # noqa: F811
    write({f"{D}/a.bin": flat(9000, most=900), f"{D}/tokenizer.json": made.read_bytes()})
    ((stream, datasets),) = begin(D).values()
    assert (stream["vocab"], stream["eos"]) == (1001, 1000)
    assert datasets["data"]["dtype"] == "u16"
    (here / "tokend.yaml").unlink(), (here / "train.py").unlink()
    write({f"{D}/a.bin": flat(9000)})
    ((stream, _),) = begin(D).values()
    assert stream["vocab"] > 1001 and "eos" not in stream, "another tokenizer's"


def test_samples_of_mosaic_shards_are_windows(here, capsys):
    rows = RANDOM.integers(0, 50257, (300, 129)).astype("u2")
    shard_writers.mds(here.parent / "data/mds", rows, 20_000)
    streams = begin("../data")
    assert [(s["seq_len"], s["extra"]) for s, _ in streams.values()] == [(129, 0)] * 2
    assert trial.main([]) == 0
    said = capsys.readouterr().out
    assert "row 3: dataset mds, ../data/mds/shard.0000" in said and "mix: mds 100.0 %" in said


# ---- windows held out for validation ----


def first_epoch(stream):
    """Has a daemon serve it. Returns {dataset: Counter of its windows' (shard, offset)}."""
    keys = ("dataset", "epoch", "shard", "offset")
    with Loader(stream, 8, config="tokend.yaml", provenance=True, framework="numpy") as loader:
        served = {name: collections.Counter() for name in loader.datasets}
        unfinished = set(served)
        for batch in loader:
            for d, epoch, *place in zip(*(batch[key].tolist() for key in keys), strict=True):
                if epoch == 0 and d >= 0:  # otherwise padding
                    served[loader.datasets[d]][tuple(place)] += 1
                elif epoch > 0:
                    unfinished -= {loader.datasets[d]}
            if not unfinished and batch["position"][-1] % 1024 == 1023:
                break  # a mix scrambles blocks of 1024, so epoch 0 may end after 1 begins
    return served


def windows_of(path, seq_len):
    """The (shard, offset) of all windows of a directory of u16 shards."""
    sizes = [os.stat(shard).st_size // 2 for shard in sorted(glob.glob(f"{path}/*.bin"))]
    return {
        (number, offset)
        for number, tokens in enumerate(sizes)
        for offset in range(0, tokens - seq_len, seq_len)
    }


def a_text():
    paths = sorted(glob.glob(f"{REPO}/tests/python/*.py"))
    return {f"{D}/{os.path.basename(path)}": open(path, "rb").read() for path in paths}


HELD_OUT = {  # what writes files, the directories
    "text": (a_text, [D]),
    "a directory of shards": (
        lambda: {f"{D}/{i}.bin": flat(30_000 + 7000 * i) for i in range(9)},
        [D],
    ),
    "directories of shards": (
        lambda: {f"{D}/{n}/{i}.bin": flat(9000 * (i + n)) for n in (3, 4) for i in range(9)},
        [f"{D}/3", f"{D}/4"],
    ),
}


@pytest.mark.parametrize("case", HELD_OUT)
def test_valid_is_what_train_does_not_have(case, capsys):
    files, arguments = HELD_OUT[case]
    write(files())
    streams = begin(*arguments)
    served = {stream: first_epoch(stream) for stream in streams}
    said = capsys.readouterr().out
    assert [*streams] == ["train", "valid"] and len(served["train"]) == len(arguments)
    held = whole = 0
    for name, facts in streams["train"][1].items():
        train, valid = (served[stream][name] for stream in streams)
        every = windows_of(facts["path"], streams["train"][0]["seq_len"])
        assert {*train.values(), *valid.values()} == {1}, "each once in an epoch"
        assert train.keys() & valid.keys() == set() and train.keys() | valid.keys() == every
        assert init.RUN <= len(valid) < 0.25 * len(every)
        held, whole = held + len(valid), whole + len(every)
    assert f"stream valid: {held:,} of {whole:,} windows, which train does not have\n" in said


def test_a_short_run_is_not_all_that_is_held_out():
    def held(windows, share):
        return len(order_reference.windows_of_part(windows, share, 1))

    short = next(n for n in range(init.LEAST, 9999) if held(n, 0.999) < init.RUN)
    write({f"{D}/0.bin": flat(short * 1024 + 1)})
    (_, train), (stream, valid) = begin(D).values()
    start = valid["data"]["part"][0]
    assert stream["seq_len"] == 1024 and train["data"]["part"] == [0, start]
    assert held(short, start) >= init.RUN


def test_small_datasets_stay_whole(capsys):
    write({f"{D}/new/web/0.bin": flat(20_000), f"{D}/old/web/0.bin": flat(300_000)})
    streams = begin(f"{D}/new/web", f"{D}/old/web")
    assert [[*datasets] for _, datasets in streams.values()] == [["web", "web-2"], ["web-2"]]
    assert "part" not in streams["train"][1]["web"] and "part" in streams["train"][1]["web-2"]
    said = capsys.readouterr().out
    assert "; none of ../data/new/web: below 256 windows of 512 tokens\n" in said


BAD = {  # files, arguments, words of the message
    "no files": ({}, [D], "../data: contains no files"),
    "neither shards nor text": ({f"{D}/a.png": b"\x89PNG\0"}, [D], "neither shards nor text"),
    "no such path": ({}, ["../none"], "../none: No such file or directory"),
    "no such files": ({}, ["../none*"], "../none*: matches no file"),
    "only a damaged shard": ({f"{D}/b.bin": flat(900)[:-1]}, [D], "../data/b.bin: 1799 bytes "),
    "Latin-1": ({f"{D}/a.txt": "é".encode("latin-1") * 900}, [D], "../data/a.txt: is not UTF-8"),
    "UTF-16": ({f"{D}/a.txt": WORDS.decode().encode("utf-16-le")}, [D], "a.txt: is not UTF-8"),
    "text without its ending": ({f"{D}/zarr.json": WORDS}, [D], "neither shards nor text"),
    "too few tokens": ({f"{D}/a.bin": flat(5)}, [D], "5 tokens in 1 shard; name more data"),
    "too little text": ({f"{D}/a.txt": b"hi"}, [D], "3 tokens in 1 shard; name more data"),
    "int64 in a flat file": ({f"{D}/a.bin": flat(9000, "<i8")}, [D], "../data/a.bin: "),
    "negative tokens": (
        {f"{D}/a.npy": shard_writers.npy(-tokens(9000, "<i4"))},
        [D],
        "../data/a.npy: ",
    ),
    "shards and text": (
        {f"{D}/web/a.bin": flat(9000), f"{D}/text/a.txt": WORDS},
        [f"{D}/web", f"{D}/text"],
        "name one kind",
    ),
    "a directory in another": (
        {f"{D}/a/b/a.txt": WORDS},
        [f"{D}/a", f"{D}/a/b"],
        "../data/a/b: is below ../data/a; name one of them",
    ),
    "JSON without the field": (
        {f"{D}/a.jsonl": b'{"body": "words"}\n' * 9},
        [D],
        'no field "text" (there are body); pass another --field',
    ),
    "a tokenizer that is none": (
        {f"{D}/a.txt": WORDS, f"{D}/tokenizer.json": b"{}"},
        [D],
        "not a tokenizer",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_line(case, capsys):
    files, arguments, words = BAD[case]
    write(files)
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize("name", ["tokend.yaml", "train.py", "tokens"])
def test_existing_files_are_kept(name, here, capsys):
    write({f"{D}/a.bin": flat(9000)})
    (here / name).write_text("mine")
    assert f"{name}: exists" in refused(capsys, D)
    assert (here / name).read_text() == "mine"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to run as another user")
def test_what_a_user_may_not_read_or_write(here):
    command = [sys.executable, "-m", "tokend", "init"]
    keys = {"user": 65534, "group": 65534, "extra_groups": [], "env": child_environment()}
    write({f"{D}/text/a.txt": WORDS})
    for path in (here, here.parent / "data/text"):
        done = subprocess.run([*command, D], capture_output=True, text=True, check=False, **keys)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert f"{path.name}" in done.stderr, done.stderr
        here.chmod(0o777)
        (here.parent / "data/text/a.txt").chmod(0o600)
    assert os.listdir(here) == [] and "a.txt: Permission denied" in done.stderr


# ---- text ----


def test_text_is_served_as_text(here, made, capsys):  # noqa: F811
    """In one command each, with the tokenizer next to the text, on a terminal and in a pipe."""
    write({f"{D}/a.py": b"print('words')\n" * 4000, f"{D}/b.jsonl": b'{"text": "more"}\n' * 900})
    write({f"{D}/tokenizer.json": made.read_bytes(), f"{D}/c.png": b"\x89PNG\0", f"{D}/d.txt": b""})
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tokend", "init", D, "--most", "1"]
    keys = {"stderr": theirs, "stdout": subprocess.PIPE, "text": True, "env": child_environment()}
    with subprocess.Popen(command, **keys) as running:
        os.close(theirs)
        said, seen = running.stdout.read(), read_terminal(ours)
    assert running.returncode == 0, (said, seen)
    assert "901 documents" in said and "left out: ../data/c.png: its name ends neither" in said
    assert "left out: ../data/d.txt: is empty\n" in said and "no BOS, EOS 1000\n" in said
    assert b"is it text?" in seen and seen.endswith(b"\r\x1b[K"), "a line of progress, removed"
    stream = yaml.safe_load(open("tokend.yaml"))["streams"]["train"]
    assert (stream["eos"], stream["vocab"]) == (1000, 1001)
    assert trial.main(["--rows", "2"]) == 0
    out, err = capsys.readouterr()
    assert "print('words')\n    print('words')\n" in out and err == ""
    assert "row 1: dataset data, tokens/data/00000.bin from token " in out
    assert stream["seq_len"] * 20 <= os.stat("tokens/data/00000.bin").st_size // 2
    assert "mix: data 100.0 %" in out and "M tokens a second" in out and "\x1b" not in out


def test_a_mistyped_command_is_recognized(capsys):
    for name, words in (("inti", "(did you mean init?)"), ("frobnicate", "lists all")):
        assert main([name]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and words in err, err
    for command, said in (
        (["init", "--tokeniser", "x"], "unknown option --tokeniser (did you mean --tokenizer?)"),
        (["try", "--row=3"], "unknown option --row (did you mean --rows?)"),
        (["try", "train", "more"], "unexpected argument more"),
        (["run"], "required: -c/--config"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        out, err = capsys.readouterr()
        assert ended.value.code == 2, err
        assert (out, err.count("\n")) == ("", 1) and said in err, err


def test_try_is_refused_in_one_line(here, capsys):
    assert "tokend.yaml: not in this directory" in refused(capsys, program=trial)
    write({f"{D}/a.bin": flat(9000)})
    begin(D)
    capsys.readouterr()
    assert "must be one of: train" in refused(capsys, "tain", program=trial)
    assert "No such file" in refused(capsys, "-c", "none.yaml", program=trial)
    assert "No such file" in refused(capsys, "--tokenizer", "none.json", program=trial)
    text = (here / "tokend.yaml").read_text()
    vocab = json.loads(text.split("vocab: ")[1].split()[0])
    (here / "low.yaml").write_text(text.replace(f"vocab: {vocab}", "vocab: 50"))
    assert "must be below the stream's vocab, 50" in refused(
        capsys, "-c", "low.yaml", program=trial
    )
    (here / "bad.yaml").write_text(text.replace("seq_len", "seqlen"))
    assert "seqlen" in refused(capsys, "-c", "bad.yaml", program=trial)


def test_much_text_is_converted_in_part(here, capsys):
    write({f"{D}/{name}.txt": WORDS * 20 for name in "ab"})
    _, datasets = begin(D, "--most", "1")["train"]
    said = capsys.readouterr().out
    assert "the first 1 of 2 MiB (--most converts more) in " in said and "a token is a byte" in said
    (dataset,) = datasets.values()
    size = os.stat(here / dataset["path"] / "00000.bin").st_size
    assert size == 2 * (len(WORDS * 20) + 1), "the first file, and its EOS"


def test_text_for_validation_is_a_stream(here, capsys):
    write({f"{D}/{name}": WORDS for name in ("train.txt", "val.txt", "test_it.py", "caf.txt")})
    write({f"{D}/latin.txt": "café".encode("latin-1"), f"{D}/notes": WORDS})
    streams = begin(D)
    assert [[*datasets] for _, datasets in streams.values()] == [["data"], ["data-valid"]]
    sizes = [
        os.stat(f"{d['path']}/00000.bin").st_size for _, s in streams.values() for d in s.values()
    ]
    assert sizes == [2 * 3 * (len(WORDS) + 1), 2 * (len(WORDS) + 1)]
    said = capsys.readouterr().out
    assert "left out: ../data/latin.txt: is not UTF-8" in said
    assert "left out: ../data/notes: its name ends neither" in said


def test_a_full_disk_is_told_what_is_needed(monkeypatch, capsys):
    write({f"{D}/a.txt": WORDS * 100})

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(init.tokenize, "make", full)
    said = refused(capsys, D)
    assert "No space left on device" in said and "about 13 MiB" in said and "--most" in said


@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--nproc-per-node=2"]])
def test_train_py_saves_when_asked_and_resumes(launcher, here):
    """With and without torchrun. A request for a checkpoint writes the file that the next run
    loads.
    """
    write({f"{D}/a.txt": WORDS * 40})
    begin(D)
    script = (here / "train.py").read_text()
    (here / "long.py").write_text(script.replace("range(20)", "range(10**6)"))
    keys = {"stdout": subprocess.PIPE, "text": True, "env": child_environment()}
    with subprocess.Popen([sys.executable, *launcher, "long.py"], **keys) as running:
        while "step 3," not in running.stdout.readline():
            assert running.poll() is None
        code, out, err = run(TOKCTL, "drain", "train", "-c", "tokend.yaml")
        assert code == 0 and b"checkpoint.pt" in out, err
        rest = running.stdout.read()
    assert running.returncode == 0
    positions = [json.loads(line.split(", ", 2)[2]) for line in rest.splitlines()]
    again = subprocess.run([sys.executable, "train.py"], check=True, **keys).stdout.splitlines()
    assert len(again) == 20 and json.loads(again[0].split(", ", 2)[2])[0] == 1 + max(
        position[-1] for position in positions
    )
