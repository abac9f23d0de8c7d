"""python -m tokend.show prints the text of a run, with tokenizers of every kind, trained here on
real prose and code.
"""

import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys


import numpy
import pytest
import sentencepiece
import tokenizers

import lib
import tokend

EOS = 50256
SEQ_LEN = 64


def corpus():
    """ASCII text from the standard library and its documentation: every token then is text by
    itself.
    """
    texts = [
        pathlib.Path(path).read_text()
        for path in (argument.__file__ for argument in (json, pathlib, shutil, subprocess, re))
    ]
    return [text for text in texts if text.isascii()]


def of_hugging_face(directory, documents):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1000,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    path = directory / "tokenizer.json"
    tokenizer.save(str(path))
    return path, lambda text: tokenizer.encode(text).ids


def of_tiktoken(directory, documents):
    words = sorted(
        {word.encode() for text in documents for word in re.findall(" ?[a-z_]{2,}", text)}
    )[:5000]
    ranks = {
        token: rank for rank, token in enumerate([bytes([byte]) for byte in range(256)] + words)
    }
    path = directory / "words.tiktoken"
    path.write_bytes(
        b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    )

    def encode(text):
        parts = re.findall(" ?[a-z_]{2,}|.", text, re.DOTALL)
        return [
            rank
            for part in parts
            for rank in ([ranks[part.encode()]] if part.encode() in ranks else [*part.encode()])
        ]

    return path, encode


def of_sentencepiece(directory, documents):
    path = directory / "tokenizer.model"
    with open(path, "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter("\n".join(documents).splitlines()), model_writer=model,
            vocab_size=1000, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            minloglevel=2, num_threads=1,
        )  # fmt: skip
    return path, sentencepiece.SentencePieceProcessor(model_file=str(path)).encode


def write_shards(directory, documents, encode):
    """Two datasets of the same documents, each followed by EOS."""
    for number, text in enumerate(documents):
        for dataset in ("prose", "code"):
            (directory / dataset).mkdir(exist_ok=True)
            numpy.array([*encode(text), EOS], "<u2").tofile(directory / dataset / f"{number}.bin")
    config = directory / "text.yaml"
    config.write_text(
        f"socket: {directory}/text.sock\nstate_dir: {directory}/state\nstreams:\n  train:\n    "
        f"seed: 3\n    seq_len: {SEQ_LEN}\n"
        "    datasets:\n      - {name: prose, path: prose, weight: 0.7}\n      - {name: code, "
        "path: code, weight: 0.3}\n"
    )
    return config


def show(*arguments, code=0, **keys):
    command = [sys.executable, "-m", "tokend.show", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=lib.child_environment(**keys), check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def rows(*arguments):
    return [json.loads(line) for line in show(*arguments, "--json").splitlines()]


@pytest.mark.parametrize("make", [of_hugging_face, of_tiktoken, of_sentencepiece])
def test_the_text_is_that_of_the_documents(directory, make):
    documents = corpus()
    tokenizer, encode = make(directory, documents)
    config = write_shards(directory, documents, encode)
    plain = rows("-c", config, "train", "--position", 100, "--count", 40)
    shown = rows("-c", config, "train", "--position", 100, "--count", 40, "--tokenizer", tokenizer)
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
    pathlib.Path("text/a.txt").write_text("".join(corpus()))
    subprocess.run([sys.executable, "-m", "tokend", "init", "text"], env=lib.child_environment(),
        check=True, capture_output=True)  # fmt: skip
    head, text = show().split("\n", 1)
    assert head.startswith("position 0  dataset text") and text.strip() in "".join(corpus())
    assert "tokens" in json.loads(show("--json"))


def test_what_a_loader_was_given_across_a_mix(directory):
    documents = corpus()
    tokenizer, encode = of_tiktoken(directory, documents)
    config = write_shards(directory, documents, encode)
    log = open(directory / "text.log", "w")
    process = subprocess.Popen([lib.BIN / "tokend", "-c", config], stdout=log, stderr=log)
    try:
        lib.wait_until(
            lambda: "ready at" in (directory / "text.log").read_text(), "the daemon's start"
        )
        options = {
            "socket": f"{directory}/text.sock",
            "run": "job",
            "rank": 0,
            "world": 1,
            "framework": "numpy",
        }
        with tokend.Loader("train", 4, **options) as loader:
            given = [next(loader) for _ in range(100)]
            assert loader.set_mix({"code": 1}) == 1024
            given += [next(loader) for _ in range(200)]
        for step in (0, 99, 100, 255, 256, 299):
            asked = (
                "-c",
                config,
                "train",
                "--step",
                step,
                "--world",
                1,
                "--micro",
                4,
                "--run",
                "job",
            )
            assert [row["tokens"][:-1] for row in rows(*asked)] == given[step]["input_ids"].tolist()
            shown = rows(*asked, "--tokenizer", tokenizer)
            assert [(row["position"], row["rank"], row["row"]) for row in shown] == [
                (4 * step + b, 0, b) for b in range(4)
            ]
            assert [row["dataset"] for row in shown] == [
                ("prose", "code")[d] for d in given[step]["dataset"]
            ]
        assert all(row["dataset"] == "code" for row in shown)
        without = rows("-c", config, "train", "--position", 4 * 299, "--count", 4)
        assert any(
            row["dataset"] == "prose" for row in without
        )  # the config alone does not have the mix
    finally:
        process.kill()
        process.wait()


def test_the_output_without_json(directory):
    documents = ["plain text\x1b[31m red\r\n" * 40]
    tokenizer, encode = of_tiktoken(directory, documents)
    config = write_shards(directory, documents, encode)
    ask = ("-c", config, "train", "--step", 0, "--world", 2, "--micro", 1)
    text = show(*ask, "--tokenizer", tokenizer)
    heads = [line for line in text.splitlines() if line.startswith("position ")]
    assert [re.sub("(dataset|epoch|offset) [a-z0-9]+", r"\1 X", line) for line in heads] == [
        f"position {i}  dataset X  epoch X  shard 0.bin  offset X  rank {i}  row 0"
        for i in range(2)
    ]
    assert (
        "\x1b" not in text
        and "\r" not in text
        and "plain text\N{REPLACEMENT CHARACTER}[31m red" in text
    )
    numbers = show(*ask, "--rank", 1).splitlines()
    assert numbers[0].startswith("position 1  ") and len(numbers[1].split()) == SEQ_LEN + 1


def test_padding(daemon):
    windows = 30_001 // 64
    shown = rows(
        "-c",
        daemon.config,
        "finite",
        "--step",
        0,
        "--from",
        windows - 1,
        "--world",
        2,
        "--micro",
        1,
    )
    assert [(row["rank"], row["position"], row["tokens"] is None) for row in shown] == [
        (0, windows - 1, False),
        (1, None, True),
    ]
    text = show(
        "-c",
        daemon.config,
        "finite",
        "--step",
        0,
        "--from",
        windows - 1,
        "--world",
        2,
        "--micro",
        1,
    )
    assert "rank 1  row 0  padding: the stream has ended" in text


def test_errors_are_one_line(directory):
    documents = corpus()[:1]
    tokenizer, encode = of_tiktoken(directory, documents)
    config = write_shards(directory, documents, encode)
    at = ("-c", config, "train", "--position", 0)
    bad = directory / "bad"
    for content, text in (
        (b'{"version": "1.0"}', "name a tokenizer.json"),
        (b"IQ== 0\nIg 1\n", "bad:2: not a token in base64 and its rank"),
        (b"\x0a\x10not a model", "name a tokenizer.json"),
    ):
        bad.write_bytes(content)
        said = show(*at, "--tokenizer", bad, code=1)
        assert (
            said.count("\n") == 1
            and said.startswith(f"tokend.show: --tokenizer {bad}")
            and text in said
        )
    said = show(*at, "--tokenizer", directory / "none", code=1)
    assert said.count("\n") == 1 and "No such file" in said
    said = show(*at, "--cursor", directory / "none", code=1)
    assert said == f"tokctl: {directory}/none: No such file or directory\n"
    assert "--position, --step: pass one" in show(*at, "--step", 0, code=2)
    assert "--world: needs --step" in show(*at, "--world", 2, code=2)


@pytest.mark.parametrize("package", ["tokenizers", "sentencepiece"])
def test_a_missing_package_is_named(directory, package):
    """A package of that name that cannot be imported is first on the path."""
    documents = corpus()[:1]
    _, encode = of_tiktoken(directory, documents)
    config = write_shards(directory, documents, encode)
    (directory / "shadow").mkdir()
    (directory / "shadow" / f"{package}.py").write_text("raise ImportError('not here')\n")
    tokenizer = directory / "tokenizer"
    tokenizer.write_bytes(b"{}" if package == "tokenizers" else b"\x0a")
    said = show("-c", config, "train", "--position", 0, "--tokenizer", tokenizer, code=1,
                PYTHONPATH=f"{directory}/shadow:{lib.PACKAGE}")  # fmt: skip
    assert said == (
        f"tokend.show: --tokenizer {tokenizer}: needs the Python package {package}; pip "
        f"install {package}\n"
    )


def test_a_closed_pipe_ends_it(directory):
    documents = corpus()
    _, encode = of_tiktoken(directory, documents)
    config = write_shards(directory, documents, encode)
    command = [
        sys.executable,
        "-m",
        "tokend.show",
        "-c",
        config,
        "train",
        "--position",
        "0",
        "--count",
        "100000",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=lib.child_environment()
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 1
