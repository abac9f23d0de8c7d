"""python -m tokend show prints the text of a run, with tokenizers that are trained here."""

import json
import os
import pathlib
import re

import numpy
import pytest
from tokenizing import call, of_hugging_face, of_tiktoken, prose

import lib
from tokend.data.tokenize import NOTES

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


def plan(config, *arguments):
    ask = ("plan", "-c", config, "train", *arguments, "--tokens", "--json")
    return lib.run(lib.TOKCTL, *ask)[1].decode()


def show(given, *arguments, code=0):
    return call("show", *arguments, code=code, given=given)[code != 0]


@pytest.mark.parametrize("make", [of_hugging_face, of_tiktoken])
def test_the_text_is_that_of_the_documents(place, directory, make):
    documents = prose()
    tokenizer, encode = make(directory, documents)
    config = write_shards(place, documents, encode)
    given = plan(config, "--from", 100, "--count", 40)
    shown = re.split("^position ", show(given, "--tokenizer", tokenizer), flags=re.M)[1:]
    for line, row in zip(given.splitlines(), shown, strict=True):
        numbers = json.loads(line)
        head, text = row.split("\n", 1)
        assert head.startswith(f"{numbers['position']}  dataset {numbers['dataset']}  epoch ")
        document = documents[int(numbers["shard"].removesuffix(".bin"))]
        text, end = re.subn(re.escape(f"<|{EOS}|>") + "$", "", text[:-2])
        assert text and text in document
        assert end == 0 or document.endswith(text)


def test_shards_of_init_are_shown_as_text(directory, monkeypatch):
    """A token is a byte there, as is noted next to the shards."""
    monkeypatch.chdir(directory)
    os.mkdir("text")
    pathlib.Path("text/a.txt").write_text("".join(prose()))
    call("init", "text")
    head, text = show(plan("tokend.yaml", "--from", 0, "--count", 1)).split("\n", 1)
    assert head.startswith("position 0  dataset text") and text.strip() in "".join(prose())
    (notes,) = directory.rglob(NOTES)
    notes.write_text(notes.read_text().replace('"tokenizer": "bytes"', '"tokenizer": "another"'))
    out, said = call("show", given=plan("tokend.yaml", "--from", 0, "--count", 1))
    assert out.split("\n")[1].replace(" ", "").isdigit() and "was changed after tokenize" in said


def test_data_does_not_control_the_terminal(place, directory):
    tokenizer, encode = of_tiktoken(directory, prose())
    config = write_shards(place, ["plain text\x1b[31m red\r\n" * 40], encode)
    given = plan(config, "--step", 0, "--world", 2, "--micro", 1)
    text = show(given, "--tokenizer", tokenizer)
    heads = re.findall(r"^position (\d)  dataset \w+  epoch .* rank (\d)  row 0$", text, re.M)
    assert heads == [("0", "0"), ("1", "1")]
    assert "plain text\N{REPLACEMENT CHARACTER}[31m red" in text
    assert "\x1b" not in text and "\r" not in text
    numbers = show(given).splitlines()
    assert numbers[0].startswith("position 0  ") and len(numbers[1].split()) == SEQ_LEN + 1


def test_errors_are_one_line(directory):
    bad = directory / "bad"
    for content, text in (
        (b'{"version": "1.0"}', "name a tokenizer.json"),
        (b"IQ== 0\nIg 1\n", "not a tokenizer: Incorrect padding"),
    ):
        bad.write_bytes(content)
        said = show("", "--tokenizer", bad, code=1)
        assert said.count("\n") == 1 and str(bad) in said and text in said
    assert "not the output of tokctl plan --tokens --json" in show("{}", code=1)
