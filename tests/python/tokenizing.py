"""Helpers of the tests of the commands that read or show text, and real tokenizers."""

import base64
import io
import json
import multiprocessing
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy
import pytest
import tokenizers

import lib
from lib.forks import print_to
from tokend.__main__ import main

SPECIAL = "<|endoftext|>"
FORK = multiprocessing.get_context("fork")


def prose():
    """Texts of the standard library that are ASCII: every token then is text by itself."""
    names = sorted(pathlib.Path(json.__file__).parents[1].glob("[a-b]*.py"))
    return [text for text in (path.read_text() for path in names) if text.isascii() and text]


def corpus():
    """prose(), and texts that are not ASCII, have NULs or all kinds of line ends, or are empty."""
    odd = ["", "žluťoučký kůň\r\n\u2028\U0001f600\x00\x85 end", "one", f"a {SPECIAL} b"]
    return [*prose(), *odd, " \n\n  spaces  "]


# ---- tokenizers, trained here: each returns the path and how it encodes ----


def of_hugging_face(directory, documents):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([SPECIAL])
    tokenizer.encode_special_tokens = True
    path = directory / "tokenizer.json"
    tokenizer.save(str(path))
    return path, lambda text: tokenizer.encode(text).ids


def of_tiktoken(directory, documents):
    pytest.importorskip("tiktoken")
    words = {word.encode() for text in documents for word in re.findall(" ?[a-z_]{2,}", text)}
    tokens = [bytes([byte]) for byte in range(256)] + sorted(words)[:5000]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    path = directory / "words.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % n for t, n in ranks.items()))

    def encode(text):
        parts = [part.encode() for part in re.findall(" ?[a-z_]{2,}|.", text, re.DOTALL)]
        return [n for part in parts for n in ([ranks[part]] if part in ranks else part)]

    return path, encode


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tokenizer.json whose EOS is its last token, 1000."""
    return of_hugging_face(tmp_path_factory.mktemp("tokenizer"), corpus())[0]


# ---- commands ----


def _call(arguments, files, given):
    print_to(*files)
    sys.stdin = io.StringIO(given)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    sys.exit(main([str(argument) for argument in arguments]))


def call(*arguments, code=0, given=""):
    """Calls `python -m tokend` in a fork of this process, which has imported all packages. @given:
    to its stdin. Returns (stdout, stderr).
    """
    with tempfile.TemporaryDirectory() as directory:
        files = [pathlib.Path(directory) / name for name in ("out", "err")]
        process = FORK.Process(target=_call, args=(arguments, files, given))
        process.start()
        process.join()
        out, err = (file.read_text() for file in files)
    assert process.exitcode == code, err
    return out, err


def tokenize(*arguments, code=0):
    return call("tokenize", *arguments, code=code)


def refused(*arguments, code=1):
    """Its message, which is a line."""
    out, said = tokenize(*arguments, code=code)
    assert out == "" and "tokend tokenize: " in said and said.count("\n") == 1, (out, said)
    return said.split("tokend tokenize: ", 1)[1].rstrip("\n")


def started(*arguments, **keys):
    """The command as a process."""
    command = [sys.executable, "-m", "tokend", "tokenize", *map(str, arguments)]
    return subprocess.Popen(command, env=lib.child_environment(), text=True, **keys)


# ---- files ----


def shards(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.glob("[!.]*"))}


def tokens(directory, dtype="<u2"):
    return numpy.frombuffer(b"".join(shards(directory).values()), dtype)


def split(numbers, eos):
    """The documents, without their EOS."""
    ends = numpy.flatnonzero(numbers == eos)
    assert len(numbers) and ends[-1] == len(numbers) - 1
    return [part[:-1].tolist() for part in numpy.split(numbers, ends + 1)[:-1]]


def texts(directory):
    """The documents of shards that were made with --tokenizer bytes."""
    return [bytes(part).decode() for part in split(tokens(directory), 256)]


def write_jsonl(path, documents):
    path.write_text("".join(json.dumps({"id": 7, "text": text}) + "\n" for text in documents))
    return path
