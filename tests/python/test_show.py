"""python -m tokend.show prints the text of a run, with tokenizers of every kind, trained here on
real prose and code.
"""

import json
import os
import pathlib
import re
import sys

import numpy
import pytest
from tokenizing import call, of_hugging_face, of_sentencepiece, of_tiktoken, prose

import lib
from tokend.data import init
from tokend.data import show as program

EOS = 50256
SEQ_LEN = 64


def write_shards(place, documents, encode):
    """Two datasets of the same documents, each followed by EOS."""
    for number, text in enumerate(documents):
        for dataset in ("prose", "code"):
            shard = place.file(dataset, f"{number}.bin")
            numpy.array([*encode(text), EOS], "<u2").tofile(shard)
    both = [{**d, "weight": w} for d, w in zip(lib.datasets("prose", "code"), (0.7, 0.3))]
    return place.config(streams={"train": {"seed": 3, "seq_len": SEQ_LEN, "datasets": both}})


def show(*arguments, code=0):
    return call(program.main, *arguments, code=code)[code != 0]


def rows(*arguments):
    return [json.loads(line) for line in show(*arguments, "--json").splitlines()]


@pytest.mark.parametrize("make", [of_hugging_face, of_tiktoken, of_sentencepiece])
def test_the_text_is_that_of_the_documents(place, directory, make):
    documents = prose()
    tokenizer, encode = make(directory, documents)
    ask = ("-c", write_shards(place, documents, encode), "train", "--position", 100, "--count", 40)
    plain, shown = rows(*ask), rows(*ask, "--tokenizer", tokenizer)
    assert [row["position"] for row in shown] == [*range(100, 140)]
    for numbers, row in zip(plain, shown, strict=True):
        document = documents[int(row["shard"].removesuffix(".bin"))]
        text, end = re.subn(re.escape(f"<|{EOS}|>") + "$", "", row["text"])
        assert text and text in document
        assert len(numbers.pop("tokens")) == SEQ_LEN + 1
        assert end == 0 or document.endswith(text)
        assert {key: value for key, value in row.items() if key != "text"} == numbers


def test_without_arguments_it_shows_what_init_made(directory, monkeypatch):
    """The first row of tokend.yaml, as text if a token is a byte."""
    monkeypatch.chdir(directory)
    assert "tokend.yaml: not in this directory" in show(code=1)
    os.mkdir("text")
    pathlib.Path("text/a.txt").write_text("".join(prose()))
    call(init.main, "text")
    head, text = show().split("\n", 1)
    assert head.startswith("position 0  dataset text") and text.strip() in "".join(prose())


def test_the_output_without_json(place, directory):
    tokenizer, encode = of_tiktoken(directory, prose())
    config = write_shards(place, ["plain text\x1b[31m red\r\n" * 40], encode)
    ask = ("-c", config, "train", "--step", 0, "--world", 2, "--micro", 1)
    text = show(*ask, "--tokenizer", tokenizer)
    heads = re.findall(r"^position (\d)  dataset \w+  epoch .* rank (\d)  row 0$", text, re.M)
    assert heads == [("0", "0"), ("1", "1")]
    assert "plain text\N{REPLACEMENT CHARACTER}[31m red" in text
    assert "\x1b" not in text and "\r" not in text
    numbers = show(*ask, "--rank", 1).splitlines()
    assert numbers[0].startswith("position 1  ") and len(numbers[1].split()) == SEQ_LEN + 1


def test_errors_are_one_line(place, directory, monkeypatch):
    config = write_shards(place, ["text " * 99], str.encode)
    at = ("-c", config, "train", "--position", 0)
    bad = directory / "bad"
    for content, package, text in (
        (b'{"version": "1.0"}', None, "name a tokenizer.json"),
        (b"IQ== 0\nIg 1\n", None, "bad:2: not a token in base64 and its rank"),
        (b"{}", "tokenizers", "needs the Python package tokenizers; pip install tokenizers"),
    ):
        bad.write_bytes(content)
        if package:
            monkeypatch.setitem(sys.modules, package, None)
        said = show(*at, "--tokenizer", bad, code=1)
        assert said.startswith(f"tokend.show: --tokenizer {bad}") and said.count("\n") == 1
        assert text in said
    assert "No such file" in show(*at, "--tokenizer", directory / "none", code=1)
    said = show(*at, "--cursor", directory / "none", code=1)
    assert said == f"tokctl: {directory}/none: No such file or directory\n"
    assert "--position, --step: pass one" in show(*at, "--step", 0, code=2)
