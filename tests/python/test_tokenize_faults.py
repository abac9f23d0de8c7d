"""Tokenizing that is killed or resumed, or whose input is not text."""

import base64
import gzip
import json
import os
import pathlib
import subprocess

import pytest
from tokenizing import (
    child_environment,
    children,
    command,
    corpus,
    kill_and_resume,
    refused,
    shards,
    tokenize,
    write_jsonl,
)

import lib

pytest_plugins = ["tokenizing"]  # its fixture


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "txt"])
def test_a_killed_run_resumes_to_the_same_bytes(directory, made, ending):
    documents = corpus() * 20
    source = write_jsonl(directory / "a.jsonl", documents)
    if ending == "jsonl.gz":
        (directory / "a.jsonl.gz").write_bytes(gzip.compress(source.read_bytes(), 1))
        source = directory / "a.jsonl.gz"
    elif ending == "txt":
        source = directory / "texts"
        source.mkdir()
        for i, text in enumerate(text for text in documents if text):
            (source / f"{i:05}.txt").write_bytes(text.encode())
    kill_and_resume(directory / "out", source, made, shards_of=29_991)
    assert not [path for path in (directory / "out").glob("*.part")]


def test_resume_refuses_other_options_and_inputs(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus())
    out = directory / "out"
    ask = (source, "-o", out, "--tokenizer", made)
    tokenize(*ask, "--shard-tokens", 50_000)
    before = shards(out)
    again = "start again, in another directory"
    assert (
        refused(*ask) == f"{out}: is not empty; name another directory, or continue with --resume"
    )
    resume = (*ask, "--resume", "--shard-tokens", 50_000)
    done, said = tokenize(*resume)
    assert "datasets:" in done and f"{len(corpus())} documents" in said and shards(out) == before
    for more, text in (
        (("--field", "body"), "field was text, now body"),
        (("--dtype", "u32"), "dtype was u16, now u32"),
        (("--shard-tokens", 50_001), "shard-tokens was 50000, now 50001"),
        (("--eos", 5), "eos was 1000, now 5"),
        ((directory,), "the inputs were 1 files, now"),
    ):
        if more == (directory,):
            more = (write_jsonl(directory / "b.jsonl", ["b"]),)
            text = "the inputs were 1 files, now 2"
        assert refused(*resume, *more) == f"{out}: --resume: {text}; {again}"
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(made.read_text() + "\n")
    said = refused(
        source, "-o", out, "--tokenizer", tokenizer, "--resume", "--shard-tokens", 50_000
    )
    assert said == f"{out}: --resume: the tokenizer's file has changed; {again}"
    (out / "00000.bin").write_bytes(before["00000.bin"][:-2])
    assert refused(*resume) == f"{out}/00000.bin: has 99998 bytes instead of 100000; {again}"
    os.utime(source, ns=(1, 1))
    assert refused(*resume) == f"{out}: --resume: {source} has changed (size or time); {again}"
    other = pathlib.Path(json.__file__).parent
    assert "no run of tokend.tokenize" in refused(
        source, "-o", other, "--tokenizer", made, "--resume"
    )


def test_disk_full(directory, made):
    """On a file system of 1 MiB, which then gets larger."""
    full = directory / "full"
    full.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", full], capture_output=True, check=False
    ).returncode:
        pytest.skip("needs root, to mount a small file system")
    try:
        source = write_jsonl(directory / "a.jsonl", corpus() * 10)
        ask = (source, "-o", full / "out", "--tokenizer", made, "--shard-tokens", 200_000)
        assert (
            refused(*ask)
            == f"{full}/out: No space left on device; free some space, and continue with --resume"
        )
        assert list(shards(full / "out")) == ["00000.bin", "00001.bin"]
        subprocess.run(["mount", "-o", "remount,size=50m", full], check=True)
        tokenize(*ask, "--resume")
        tokenize(source, "-o", directory / "out", "--tokenizer", made, "--shard-tokens", 200_000)
        assert shards(full / "out") == shards(directory / "out")
    finally:
        subprocess.run(["umount", full], check=True)


# ---- invalid input ----

GOOD = b'{"text": "good"}\n'
LINES = [
    (GOOD + b'{"text": "cut\n', ":2: invalid JSON at column 10: "),
    (GOOD * 2 + b"[1, 2]\n", ":3: a list, not a JSON object"),
    (b'"text"\n', ":1: a string, not a JSON object"),
    (
        b"\n" + GOOD + b'{"body": "b", "id": 1}\n',
        ':3: no field "text" (there are body, id); pass another --field',
    ),
    (b"{}\n", ':1: no field "text" (there are none); pass another --field'),
    (b'{"text": null}', ':1: field "text" is null, not a string'),
    (b'{"text": [1]}', ':1: field "text" is a list, not a string'),
    (b'{"text": 12}', ':1: field "text" is a number, not a string'),
    (b'{"text": true}', ':1: field "text" is true or false, not a string'),
    (
        GOOD * 3 + b'{"text": "a\xffb"}\n',
        ":4: byte 0xff is not UTF-8; convert the file (iconv -t UTF-8)",
    ),
    (
        GOOD + b'{"text": "half \\ud800 pair"}',
        ':2: field "text" has half a surrogate pair, \\ud800; remove it',
    ),
    (b'{"text": ' + b"[" * 200_000, ":1: invalid JSON: "),
    (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", ":1: invalid JSON: "),
    (b"", ": is empty; leave it out"),
    (b"\n \n\n", ": is empty; leave it out"),
    (GOOD * 100_000 + b"{", ":100001: invalid JSON at column 2: "),  # in a later piece
    (GOOD + b'{"text": "' + b"a" * (33 << 20) + b'"}\n', ":2: a document of "),
]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_invalid_lines_are_named(directory, made, number):
    contents, text = LINES[number]
    source = directory / "bad.jsonl"
    source.write_bytes(contents)
    said = refused(source, "-o", directory / "out", "--tokenizer", made)
    assert said.startswith(f"{source}{text}"), said
    assert len(said) < 400 and (not (directory / "out").exists() or not shards(directory / "out"))


def test_invalid_files_are_named(directory, made):
    ask = ("-o", directory / "out", "--tokenizer", made)
    for name, contents, text in (
        ("a.txt", b"one\ntwo \xe9\n", ":2: byte 0xe9 is not UTF-8"),
        ("a.txt", b"", ": is empty; leave it out"),
        ("a.txt", b"a" * ((32 << 20) + 1), ":1: a document of "),
        ("a.txt.gz", gzip.compress(b""), ": is empty; leave it out"),
        ("a.jsonl.gz", gzip.compress(GOOD * 9)[:-9], ": the gzip is damaged: "),
        ("a.jsonl.gz", b"not packed", ": the gzip is damaged: "),
        (
            "a.csv",
            b"1,2",
            ": the name's ending is unknown; it must be .txt or .jsonl, also with .gz or .zst, ",
        ),
    ):
        path = directory / name
        path.write_bytes(contents)
        assert refused(path, *ask).startswith(f"{path}{text}")
        subprocess.run(["rm", "-rf", directory / "out"], check=True)
    assert (
        refused(directory / "none.txt", *ask) == f"{directory}/none.txt: No such file or directory"
    )
    (directory / "empty").mkdir()
    assert (
        refused(directory / "empty", *ask)
        == f"{directory}/empty: contains no files; name another directory"
    )
    good = write_jsonl(directory / "good.jsonl", ["a"])
    for contents, text in (
        (b'{"version": "1.0"}', "name a tokenizer.json"),
        (b"\x0a\x10no", "or a SentencePiece model"),
    ):
        (directory / "bad").write_bytes(contents)
        said = refused(good, "-o", directory / "out", "--tokenizer", directory / "bad")
        assert said.startswith(f"--tokenizer {directory}/bad: ") and text in said
    assert "No such file" in refused(
        good, "-o", directory / "out", "--tokenizer", directory / "none"
    )
    assert refused(good, *ask, "--pattern", "a").startswith("--pattern: ")
    assert refused(good, "-o", good, "--tokenizer", made) == f"{good}: File exists"
    assert "number ≥ 1" in tokenize(good, *ask, "--workers", "0", code=2)[1]


@pytest.mark.parametrize("name, package", [("a.parquet", "pyarrow"), ("a.jsonl.zst", "zstandard")])
def test_a_missing_package_is_named(directory, made, name, package):
    (directory / name).write_bytes(b"PAR1")
    (directory / "shadow").mkdir()
    (directory / "shadow" / f"{package}.py").write_text("raise ImportError('not here')\n")
    said = refused(
        directory / name,
        "-o",
        directory / "out",
        "--tokenizer",
        made,
        PYTHONPATH=f"{directory}/shadow:{lib.PACKAGE}",
    )
    assert said == f"{directory / name}: needs the Python package {package}; pip install {package}"


def test_tiktoken_needs_numpy_too(directory):
    source = write_jsonl(directory / "a.jsonl", ["a"])
    ranks = directory / "a.tiktoken"
    ranks.write_bytes(b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256)))
    (directory / "numpy.py").write_text("raise ImportError('not here')\n")
    ask = (source, "-o", directory / "out", "--tokenizer", ranks, "--eos", 256)
    said = refused(*ask, PYTHONPATH=f"{directory}:{lib.PACKAGE}")
    assert said == f"--tokenizer {ranks}: needs the Python package numpy; pip install numpy"


def test_a_killed_worker_is_reported(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus() * 20)
    with subprocess.Popen(
        command(
            source,
            "-o",
            directory / "out",
            "--tokenizer",
            made,
            "--workers",
            2,
            "--shard-tokens",
            50_000,
        ),
        env=child_environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lib.wait_until((directory / "out" / "00000.bin").exists, "a shard")
        os.kill(children(process)[-1], 9)
        said = process.stderr.read()
    assert process.returncode == 1
    assert said == (
        "tokend.tokenize: --workers: a worker died (out of memory?); pass fewer, and continue "
        "with --resume\n"
    )


def test_a_second_run_is_refused_and_ctrl_c_ends_the_first(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus() * 20)
    ask = (
        source,
        "-o",
        directory / "out",
        "--tokenizer",
        made,
        "--workers",
        2,
        "--shard-tokens",
        50_000,
    )
    with subprocess.Popen(
        command(*ask),
        env=child_environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        lib.wait_until((directory / "out" / "00000.bin").exists, "a shard")
        assert refused(*ask, "--resume").startswith(
            f"{directory}/out: another tokend.tokenize writes to it"
        )
        os.killpg(process.pid, 2)
        assert process.stderr.read() == "tokend.tokenize: interrupted; continue with --resume\n"
        assert process.wait() == 130
