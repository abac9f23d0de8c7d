"""python -m tokend init and try: a config for what a directory contains, and a batch from it."""

import json
import os
import re
import subprocess
import sys

import numpy
import pytest
import yaml
from test_loader_daemon import kill_private
from tokenizing import call, corpus, tokenize

from lib import TOKCTL, child_environment, has, run, shard_writers
from tokend import Loader
from tokend.data import parser, trial

pytest_plugins = ["tokenizing"]  # its fixture
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


def streams_of(text):
    """{stream: (facts, {dataset: facts})}"""
    streams = yaml.safe_load(text)["streams"]
    return {name: (s, {d["name"]: d for d in s["datasets"]}) for name, s in streams.items()}


def begin(*arguments):
    """Runs init. Returns the config's streams and what it printed."""
    said = "".join(call("init", *arguments))
    with open("tokend.yaml") as file:
        return streams_of(file.read()), said


def refused(*arguments, program=("init",), code=1):
    """The message, the last line. Nothing is written."""
    before = sorted({*os.listdir(".")} - {"state"})
    out, err = call(*program, *arguments, code=code)
    err = err.splitlines(keepends=True)[-1]
    assert out == "" and "Traceback" not in err, (out, err)
    assert sorted({*os.listdir(".")} - {"state"}) == before, "nothing is left"
    return err.split(": ", 1)[1].rstrip("\n")


# ---- shards ----

D = "../data"
LAYOUTS = {  # files, arguments, {stream: {dataset: path}}
    "a dataset an argument, formats and widths": (
        {
            f"{D}/web/0.bin": flat(20_000),
            f"{D}/web/empty.bin": b"",
            f"{D}/web/deep/1.bin": flat(10_000),
            f"{D}/code/0.bin": flat(10_000, "<u4", 150_000),
            f"{D}/math.npy": shard_writers.npy(tokens(20_000, "<i8")),
        },
        [f"{D}/web", f"{D}/code", f"{D}/math.npy"],
        {"train": {"math": f"{D}/math.npy", "code": f"{D}/code", "web": f"{D}/web"}},
    ),
    "a pattern": (
        {
            **{f"{D}/{part}.bin": flat(9000) for part in ("mask_1", "mask_2", "val_0")},
            f"{D}/input.txt": WORDS,
        },
        [f"{D}/mask_*.bin", "--eos", 7],
        {"train": {"data": f"{D}/mask_*.bin"}},
    ),
    "odd characters": (
        {f"{D}/a\u2028\x85\x1b[31m.bin": flat(9000)},
        [f"{D}/a\u2028\x85\x1b[31m.bin"],
        {"train": {"a[31m": f"{D}/a\u2028\x85\x1b[31m.bin"}},
    ),
    "a dash": ({"./-0.bin": flat(9000)}, ["--", "-0.bin"], {"train": {"-0": "-0.bin"}}),
    "the current directory": ({"./0.bin": flat(9000)}, ["*.bin"], {"train": {"here": "*.bin"}}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_config_for_shards(layout):
    files, arguments, expected = LAYOUTS[layout]
    write(files)
    streams, said = begin(*arguments)
    assert {
        name: {dataset: facts["path"] for dataset, facts in datasets.items()}
        for name, (_, datasets) in streams.items()
    } == expected
    assert "\x1b" not in said
    assert "python -m tokend try\n" in said and "torchrun train.py\n" in said
    stream, datasets = streams["train"]
    assert stream.get("eos") == (7 if "--eos" in arguments else None)
    if "widths" in layout:
        weights = {name: round(facts["weight"], 3) for name, facts in datasets.items()}
        assert weights == {"web": 0.5, "math": 0.333, "code": 0.167}
        assert datasets["code"]["dtype"] == "u32" and "dtype" not in datasets["math"]
        assert 149_000 < stream["vocab"] <= 150_000, "the largest of all tokens, and 1"
    assert "valid" not in streams or streams["valid"][0]["epochs"] == 1


# ---- windows held out for validation ----


@pytest.mark.parametrize("case", ["text", "directories of shards"])
def test_valid_is_what_train_does_not_have(case):
    if case == "text":
        arguments = [D]
        write({f"{D}/{i}.py": text.encode() for i, text in enumerate(corpus())})
    else:
        arguments = [f"{D}/3", f"{D}/4"]
        write({f"{D}/{n}/{i}.bin": flat(9000 * (i + n)) for n in (3, 4) for i in range(9)})
    streams, said = begin(*arguments)
    assert [*streams] == ["train", "valid"] and len(streams["train"][1]) == len(arguments)
    for name, facts in streams["train"][1].items():
        held = streams["valid"][1][name]
        assert (facts["part"][0], held["part"][1]) == (0, 1) and held["path"] == facts["path"]
        assert facts["part"][1] == held["part"][0] > 0.75
    parts = re.findall(r": windows (\d+) of (\d+)", said.partition("stream valid")[2])
    held, whole = (sum(int(part[i]) for part in parts) for i in (0, 1))
    assert len(parts) == len(arguments) and 0 < held < 0.25 * whole
    with Loader("valid", 8, config="tokend.yaml", framework="numpy") as loader:
        assert sum((batch["dataset"] >= 0).sum() for batch in loader) == held


BAD = {  # files, arguments, words of the message
    "neither shards nor text": (
        {f"{D}/a.png": b"\x89PNG\0"},
        [D],
        "../data: has no documents; name other files",
    ),
    "a directory of arrays": (
        {f"{D}/c/0": b"\xff\xfe" * 9000, f"{D}/zarr.json": WORDS[:100]},
        [D],
        "../data: nearly all of it, as ../data/c/0, is not UTF-8 text",
    ),
    "text next to shards": (
        {f"{D}/a.bin": flat(9000), f"{D}/b.bin": flat(9000), f"{D}/c.bin": WORDS},
        [D],
        "c.bin: is text, not a shard of tokens; move it away, or set a pattern that matches only",
    ),
    "validation among shards": (
        {f"{D}/{name}.bin": flat(9000) for name in ("train_0", "val")},
        [f"{D}/"],
        "val.bin: is for validation by its name; add it to tokend.yaml",
    ),
    "validation in a directory of that name": (
        {f"eval/{D}/{name}.bin": flat(9000) for name in ("train_0", "eval_0")},
        [f"eval/{D}/*.bin"],
        "eval_0.bin: is for validation by its name; add it to tokend.yaml",
    ),
    "a mask among shards": (
        {f"{D}/{name}.bin": flat(9000) for name in ("train_0", "x_mask")},
        [f"{D}/*.bin"],
        "x_mask.bin: its name (mask) is not a shard's",
    ),
    "validation next to training": (
        {f"{D}/{name}.bin": flat(9000) for name in ("train", "val")},
        [f"{D}/train.bin", f"{D}/val.bin"],
        "val.bin: is validation data by its name; leave it out",
    ),
    "the current directory": ({"./0.bin": flat(9000)}, ["."], "tokend.yaml"),
    "two formats": (
        {f"{D}/a.bin": flat(9000), f"{D}/b.npy": shard_writers.npy(tokens(9000))},
        [D],
        "b.npy: format is npy, but that of the first shard, a.bin",
    ),
    "no such path": ({}, ["../none"], "../none: No such file or directory"),
    "too few tokens": ({f"{D}/a.bin": flat(5)}, [D], "fewer than 9 tokens"),
    "int64 in a flat file": ({f"{D}/a.bin": flat(9000, "<i8")}, [D], "../data/a.bin: "),
    "shards and text": (
        {f"{D}/web/a.bin": flat(9000), f"{D}/text/a.txt": WORDS},
        [f"{D}/web", f"{D}/text"],
        "name one kind",
    ),
    "a directory in another": ({f"{D}/a/b/a.txt": WORDS}, [f"{D}/a", f"{D}/a/b"], "name it once"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_line(case):
    files, arguments, words = BAD[case]
    write(files)
    assert words in refused(*arguments)


def test_existing_files_are_kept(here):
    write({f"{D}/a.bin": flat(9000)})
    for name in ("tokens", "train.py", "tokend.yaml"):
        (here / name).write_text("mine")
        assert f"{name}: exists" in refused(D)
        assert (here / name).read_text() == "mine"


def test_a_check_that_dies_is_one_line(monkeypatch):
    write({f"{D}/a.bin": flat(9000)})
    monkeypatch.setattr(parser, "program", {"tokend": "/bin/false", "tokctl": TOKCTL}.get)
    assert refused(D) == "tokend: exit status 1"


# ---- text ----


@pytest.mark.parametrize("more", [[], ["--tokenizer", "bytes"]])
def test_shards_of_tokenize_keep_their_eos(here, made, more):
    write({f"{D}/a.txt": WORDS})
    tokenize(f"{D}/a.txt", "-o", "all/made", "--tokenizer", "bytes", "--eos", 10)
    notes = here / "all/made/.tokenize.json"
    text = notes.read_text()
    notes.write_text(re.sub(r'"tokens": \d+', '"tokens": 70000', text))
    assert "all/made: has 64001 tokens, but tokenize made 70000; copy" in refused("all")
    notes.write_text(text.replace('"finished": true', '"finished": false'))
    assert "all/made: tokenize has not ended; continue with --resume" in refused("all")
    notes.write_text(text)
    assert "--eos: 7: the shards were made with 10" in refused("all", "--eos", "7", *more)
    tokenize(f"{D}/a.txt", "-o", "eos", "--tokenizer", "bytes")
    assert "eos: has EOS 256, unlike all/made: 10; use one" in refused("eos", "all/made")
    tokenize(f"{D}/a.txt", "-o", "all/other", "--tokenizer", made)
    for arguments in (["all"], ["all/made", "all/other"], ["all/other", "--tokenizer", "bytes"]):
        assert "so the same tokens may mean other texts" in refused(*arguments)
    assert begin("all/made", *more)[0]["train"][0]["eos"] == 10


def test_text_is_served_as_text(here, made):
    """In one command each, with the tokenizer next to the text."""
    write({f"{D}/a.py": b"print('words')\n" * 4000, f"{D}/b.jsonl": b'{"text": "more"}\n' * 900})
    write({"../tokenizer.json": made.read_bytes(), f"{D}/c.png": b"\x89PNG\0", f"{D}/d.txt": b""})
    streams, said = begin(D, "--most", "1")
    assert has(said, "901 documents", "c.png: is not UTF-8 text", "d.txt: is empty\n")
    stream, _ = streams["train"]
    assert (stream["eos"], stream["vocab"]) == (1000, 1001)
    out, err = call("try", "--rows", "2")
    assert "print('words')\n    print('words')\n" in out and err == ""
    assert "row 1: dataset data, tokens/data/00000.bin from token " in out
    assert "mix: data 100.0 %" in out and "M tokens a second" in out and "\x1b" not in out


def test_a_mistyped_command_is_recognized():
    for command, said in (
        (["inti"], "(did you mean init?)"),
        (["init", "--tokeniser", "x"], "unknown option --tokeniser (did you mean --tokenizer?)"),
        (["run"], "needs -c FILE"),
    ):
        assert said in refused(*command, program=(), code=2)


def test_try_is_refused_in_one_line(here):
    ask = {"program": ("try",)}
    assert "tokend.yaml: not found; pass -c FILE" in refused(**ask)
    write({f"{D}/a.bin": flat(9000)})
    begin(D)
    text = (here / "tokend.yaml").read_text()
    (here / "low.yaml").write_text(re.sub(r"vocab: \d+", "vocab: 50", text))
    for arguments, said in (
        (["tain"], "must be one of: train"),
        (["-c", "none.yaml"], "none.yaml: not found"),
        (["--tokenizer", "none.json"], "No such file"),
        (["-c", "low.yaml"], "must be below the stream's vocab, 50"),
    ):
        assert said in refused(*arguments, **ask)


def test_the_first_mib_of_text_is_converted():
    write({f"{D}/{name}": WORDS for name in ("all/train.txt", "all/test_it.py", "more.txt")})
    write({f"{D}/all/latin.txt": "café".encode("latin-1"), f"{D}/all/dev/0.txt": WORDS})
    write({f"{D}/all/much/{name}": WORDS * 20 for name in ("a.txt", "b.NDJSON")})
    streams, said = begin(f"{D}/all/*", f"{D}/more*.txt", "--most", "1")
    assert has(said, "(--most converts more)\n", "a token is a byte", "NDJSON: is taken as plain")
    assert [[*datasets] for _, datasets in streams.values()] == [["all", "data"], ["all"]]
    paths = [dataset["path"] for dataset in streams["train"][1].values()]
    sizes = [os.stat(f"{path}/00000.bin").st_size for path in paths]
    assert sizes[1] == 2 * (len(WORDS) + 1) and sizes[0] % 2 == 0, sizes
    assert "left out: ../data/all/latin.txt: is not UTF-8" in said
    assert "left out: ../data/all/dev/0.txt: is for validation by its name" in said


def test_train_py_saves_when_asked_and_resumes(here):
    """With torchrun, and then without. A request for a checkpoint writes the file that the next run
    loads.
    """
    write({f"{D}/a.txt": WORDS * 40})
    begin(D)
    script = (here / "train.py").read_text()
    (here / "long.py").write_text(script.replace("range(20)", "range(10**6)"))
    keys = {"stdout": subprocess.PIPE, "text": True, "env": child_environment()}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    with subprocess.Popen([*torchrun, "long.py"], **keys) as running:
        while "step 3," not in running.stdout.readline():
            assert running.poll() is None
        code, out, err = run(TOKCTL, "drain", "train", "-c", "tokend.yaml")
        assert code == 0 and b"checkpoint.pt" in out, err
        rest = running.stdout.read()
    assert running.returncode == 0
    # two processes write to one pipe: a line's end may follow another line
    last = max(json.loads(found)[-1] for found in re.findall(r"\[\d[^]]*]", rest))
    again = subprocess.run([sys.executable, "train.py"], check=True, **keys).stdout.splitlines()
    assert len(again) == 20 and json.loads(again[0].split(", ", 2)[2])[0] == 1 + last
