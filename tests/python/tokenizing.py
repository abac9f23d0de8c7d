"""Helpers of the tests of `python -m tokend.tokenize`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tokenizers
from test_show import of_hugging_face

import lib

SPECIAL = "<|endoftext|>"


def corpus():
    """Texts of the standard library, and texts that are not ASCII, have NULs or all kinds of line
    ends, or are empty.
    """
    names = sorted(pathlib.Path(json.__file__).parents[1].glob("[a-b]*.py"))
    texts = [path.read_text(errors="strict") for path in names]
    return [
        *texts,
        "",
        "žluťoučký kůň\r\n\u2028\U0001f600\x00\x85 end",
        "one",
        f"a {SPECIAL} b",
        " \n\n  spaces  ",
    ]


def read_terminal(terminal):
    """All that was written to this pseudo-terminal, whose other side was closed. Closes it."""
    seen = b""
    try:
        while block := os.read(terminal, 4096):
            seen += block
    except OSError:  # its end
        pass
    os.close(terminal)
    return seen


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tokenizer.json whose EOS is its last token."""
    return with_special(tmp_path_factory.mktemp("tokenizer"), corpus())


def with_special(directory, documents):
    path, _ = of_hugging_face(directory, documents)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([SPECIAL])
    tokenizer.save(str(path))
    return path


def command(*arguments):
    return [sys.executable, "-m", "tokend.tokenize", *map(str, arguments)]


def child_environment(**keys):
    return lib.child_environment(
        **{"PYTHONPATH": os.environ.get("PYTHONPATH", str(lib.PACKAGE)), **keys}
    )


def tokenize(*arguments, code=0, **keys):
    """Returns (stdout, stderr)."""
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env=child_environment(**keys),
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def refused(*arguments, code=1, **keys):
    out, said = tokenize(*arguments, code=code, **keys)
    assert out == "" and said.startswith("tokend.tokenize: ") and said.count("\n") == 1, (out, said)
    return said.removeprefix("tokend.tokenize: ").rstrip("\n")


def shards(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.glob("[!.]*"))}


def write_jsonl(path, documents, field="text"):
    path.write_text(
        "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(documents))
    )
    return path


# ---- an interrupted run ----


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return [int(number) for number in file.read().split()]


def kill_and_resume(out, source, tokenizer, shards_of, kills=2):
    """Kills a run after each further shard and resumes it: the result is that of an uninterrupted
    run.
    """
    arguments = (
        source,
        "-o",
        out,
        "--tokenizer",
        tokenizer,
        "--shard-tokens",
        shards_of,
        "--workers",
        2,
        "--resume",
    )
    names = []
    for _ in range(kills):
        awaited = out / f"{len(names) + 1:05}.bin"
        with subprocess.Popen(
            command(*arguments), env=child_environment(), stderr=subprocess.DEVNULL
        ) as process:
            lib.wait_until(awaited.exists, "a shard")
            assert process.poll() is None, "it was done before it could be killed"
            workers = children(process)
            process.kill()
        assert workers
        for pid in workers:
            lib.wait_until(lambda path=f"/proc/{pid}": not os.path.exists(path), "a worker's end")
        names = list(shards(out))
        (out / f".{len(names):05}.bin.part").write_bytes(b"of another time")
    kept = {name: (out / name).stat().st_mtime_ns for name in names[:-1]}
    tokenize(*arguments)
    assert all((out / name).stat().st_mtime_ns == changed for name, changed in kept.items()), (
        "whole shards were written again"
    )
    whole = out.with_name(out.name + "-whole")
    tokenize(source, "-o", whole, "--tokenizer", tokenizer, "--shard-tokens", shards_of)
    assert shards(out) == shards(whole) and len(shards(out)) > len(names)
