"""Tokenizing that is killed or resumed, or whose input is not text."""

import gzip
import os
import signal
import subprocess
import sys

import pytest
from test_tokenize import files, packed, parquet
from tokenizing import corpus, of_tiktoken, refused, shards, started, texts, tokenize, write_jsonl

import lib
from tokend.data import tokenize as program

pytest_plugins = ["tokenizing"]  # its fixture


KINDS = {"a.jsonl.gz": packed, "texts": files, "a.parquet": parquet}


@pytest.mark.parametrize("name", KINDS)
def test_a_killed_run_resumes_to_the_same_bytes(directory, name):
    documents = [text for text in corpus() if text] * 10
    KINDS[name](directory / name, documents)
    out = directory / "out"
    ask = (directory / name, "-o", out, "--tokenizer", "bytes", "--shard-tokens", 29_991)
    names = []
    for _ in range(2):
        awaited = out / f"{len(names) + 1:05}.bin"
        with started(*ask, "--workers", 2, "--resume", stderr=subprocess.DEVNULL) as process:
            lib.wait_until(awaited.exists, "a shard")
            assert process.poll() is None, "it was done before it could be killed"
            process.kill()
        names = list(shards(out))
        assert (out / ".part-tokenize").exists()
        (out / f".{len(names):05}.bin.part").write_bytes(b"of another time")
    kept = {name: (out / name).stat().st_mtime_ns for name in names[:-1]}
    tokenize(*ask, "--resume")
    assert not (out / ".part-tokenize").exists()
    changed = [name for name, time in kept.items() if (out / name).stat().st_mtime_ns != time]
    assert not changed, "whole shards were written again"
    assert texts(out) == documents and len(shards(out)) > len(names)
    assert {len(data) for data in [*shards(out).values()][:-1]} == {2 * 29_991}


def test_resume_refuses_other_options_and_inputs(directory, made, monkeypatch):
    """And another tokend: it may divide long texts otherwise."""
    source = write_jsonl(directory / "a.jsonl", corpus())
    out = directory / "out"
    ask = (source, "-o", out, "--tokenizer", made, "--shard-tokens", 50_000)
    tokenize(*ask)
    before = shards(out)
    assert "is not empty; name another directory, or continue with --resume" in refused(*ask)
    done, _ = tokenize(*ask, "--resume")
    assert "datasets:" in done and shards(out) == before
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(made.read_text() + "\n")
    tokenize(*ask, "--resume", "--tokenizer", tokenizer)
    tokenizer.write_text(made.read_text().replace("false", "true", 1))
    for more, text in (
        (["--field", "body"], "other field than before"),
        ([write_jsonl(directory / "b.jsonl", ["b"])], "other inputs than before"),
        (["--tokenizer", tokenizer], "other tokenizer than before"),
    ):
        assert f" --resume: {text}" in refused(*ask, "--resume", *more)
    assert "no run of tokend tokenize" in refused(*ask, "--resume", "-o", directory)
    bad = write_jsonl(directory / "bad", ["no directory"])
    for more, text in (
        ([directory / "none.txt"], "none.txt: No such file or directory"),
        (["-o", bad], f"{bad}: File exists"),
    ):
        assert text in refused(*ask, *more)
    (out / "00000.bin").write_bytes(before["00000.bin"][:-2])
    assert "00000.bin: has 99998 bytes instead of 100000" in refused(*ask, "--resume")
    os.utime(source, ns=(1, 1))
    assert "other inputs than before" in refused(*ask, "--resume")
    monkeypatch.setattr(program, "version", "0.0")
    assert " --resume: other made_by than before" in refused(*ask, "--resume")


def test_disk_full(directory):
    """On a file system of 1 MiB, which then gets larger."""
    full = directory / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", full]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small file system")
    try:
        documents = corpus() * 3
        source = write_jsonl(directory / "a.jsonl", documents)
        ask = (source, "-o", full / "out", "--tokenizer", "bytes", "--shard-tokens", 200_000)
        assert "No space left on device; continue with --resume" in refused(*ask)
        assert list(shards(full / "out")) == ["00000.bin", "00001.bin"]
        subprocess.run(["mount", "-o", "remount,size=50m", full], check=True)
        tokenize(*ask, "--resume")
        assert texts(full / "out") == documents
    finally:
        subprocess.run(["umount", full], check=True)


# ---- invalid input ----

GOOD = b'{"text": "good"}\n'
A, GZ = "a.jsonl", "a.jsonl.gz"
BAD = [
    (A, GOOD + b'{"text": "cut\n', ":2: invalid JSON: "),
    (A, GOOD * 2 + b"[1, 2]\n", ':3: no field "text"; write one object a line'),
    (A, b"\n" + GOOD + b'{"m": {"text": 1}}\n', ':3: no field "text"; pass another --field, or '),
    (A, b'{"text": null}', ':1: "text" is null; must be a string'),
    (A, b'{"text": "a", "text": "b"}', ':1: invalid JSON: "text" is there twice; '),
    (A, GOOD * 3 + b'{"text": "a\xffb"}\n', ": is not UTF-8 ("),
    (A, GOOD + b'{"text": "half \\ud800 pair"}', ":1 or a later document: "),
    (A, b'{"text": ' + b"[" * 200_000, ":1: invalid JSON: "),
    (A, b"\n \n\n", ": has no documents; "),
    (GZ, gzip.compress(GOOD * 9)[:-9], ": is damaged: "),
]


@pytest.mark.parametrize("name, contents, text", BAD, ids=range(len(BAD)))
def test_invalid_text_is_named(directory, name, contents, text):
    source = directory / name
    source.write_bytes(contents)
    ask = (source, "-o", directory / "out", "--tokenizer", "bytes")
    said = refused(*ask)
    assert said.startswith(f"{source}{text}") and len(said) < 400, said
    assert refused(*ask) == said, "nothing of the first try is in its way"


TWICE = "has the same documents, or some of them"
REFUSED = {  # files of a directory
    "\x1b[31m.jsonl \x1b[31m.jsonl.gz": TWICE,
    "web.jsonl web.parquet": TWICE,
    "data-0-of-1.jsonl data-0-of-2.jsonl data-1-of-2.jsonl": TWICE,
    "_delta_log/0.parquet day=1/b.parquet": "its table has rows of older versions, too",
    "a.jsonl pointer.txt": "pointer.txt: is a pointer of Git LFS; fetch the file",
}


@pytest.mark.parametrize("names", REFUSED)
def test_no_document_is_taken_twice_or_without_its_text(directory, names):
    for path in (directory / "in" / name for name in names.split()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"version https://git-lfs.github.com/" if "poi" in path.name else b"{}")
    said = refused(directory / "in", "-o", directory / "out", "--tokenizer", "bytes")
    assert REFUSED[names] in said and "\x1b" not in said


def test_linked_directories_are_read_and_linked_files_are_read_once(directory):
    for name in ("text/sub", "other"):
        (directory / name).mkdir(parents=True)
    write_jsonl(directory / "text/a.jsonl", ["one"])
    write_jsonl(directory / "other/b.jsonl", ["two"])
    write_jsonl(directory / "other/c4-holdout.0-of-1.jsonl", ["held out"])
    (directory / "text/latest.jsonl").symlink_to("a.jsonl")
    (directory / "text/same.jsonl").hardlink_to(directory / "text/a.jsonl")
    (directory / "text/sub/above").symlink_to(directory / "text")
    (directory / "text/web").symlink_to(directory / "other")
    for number, source in enumerate((directory / "text", directory / "text/*")):
        ask = (source, "-o", directory / f"{number}", "--tokenizer", "bytes")
        said = tokenize(*ask)[1]
        assert texts(directory / f"{number}") == ["one", "two"]
        assert all(f"{name}.jsonl: is the same file as" in said for name in ("latest", "same"))
        assert "c4-holdout.0-of-1.jsonl: is for validation by its name" in said
    assert "a.jsonl: is the same file as" in refused(*[directory / "text/a.jsonl"] * 2, *ask[1:])
    assert "** would match one level only" in refused(directory / "**/a.jsonl", *ask[1:])


def test_damaged_frames_and_tables_are_named(directory):
    pyarrow, zstandard = pytest.importorskip("pyarrow"), pytest.importorskip("zstandard")
    write_table = pytest.importorskip("pyarrow.parquet").write_table
    packed, table = directory / "a.jsonl.zst", directory / "a.parquet"
    packed.write_bytes(zstandard.compress(GOOD * 99)[:-5])
    said = refused(packed, "-o", directory / "packed", "--tokenizer", "bytes")
    assert f"{packed}: is damaged: " in said
    buffers = [pyarrow.py_buffer(data) for data in (b"\0\0\0\0\1\0\0\0\2\0\0\0", b"a\xff")]
    for column, more, text in (
        (["a", "b", None], [], ': row 3: "text" is null; must be a string'),
        (pyarrow.StringArray.from_buffers(2, *buffers), [], ": is not UTF-8 ("),
        (["a"], ["--field", "body"], ': has 0 columns "body"; '),
    ):
        write_table(pyarrow.table({"text": column}), table)
        ask = (table, "-o", directory / text[6:12], "--tokenizer", "bytes", *more)
        assert refused(*ask).startswith(f"{table}{text}")
    words = pyarrow.table({"text": ["words"] * 70})
    write_table(words, table, 40, compression="none", write_page_checksum=True)
    whole = table.read_bytes()
    more = whole.replace(b"\x8c\x01", b"\x8e\x01")  # 71 rows by the footer
    for data in (whole[:-9], whole.replace(b"words", b"wards", 1), more):
        table.write_bytes(data)
        ask = ("-o", directory / "cut", "--tokenizer", "bytes")
        assert f"{table}: is damaged: " in refused(table, *ask)


PACKAGES = {"a.parquet": "pyarrow", "a.jsonl.zst": "pyarrow", "a.txt": "tiktoken"}


@pytest.mark.parametrize("name, package", PACKAGES.items())
def test_a_missing_package_is_named(directory, monkeypatch, name, package):
    (directory / name).write_bytes(b"PAR1")
    tokenizer = of_tiktoken(directory, corpus())[0]
    monkeypatch.setitem(sys.modules, package, None)
    said = refused(directory / name, "-o", directory / "o", "--tokenizer", tokenizer, "--eos", 9999)
    assert said.endswith(f"; pip install {package}")


def test_a_second_run_and_ctrl_c(directory):
    source = write_jsonl(directory / "a.jsonl", corpus() * 40)
    out = directory / "out"
    ask = (source, "-o", out, "--tokenizer", "bytes", "--workers", 2, "--shard-tokens", 50_000)
    keys = {"stderr": subprocess.PIPE, "start_new_session": True}
    with started(*ask, **keys) as process:
        lib.wait_until((out / "00000.bin").exists, "a shard")
        assert "another run writes to it" in refused(*ask, "--resume")
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.read() == "tokend tokenize: interrupted; continue with --resume\n"
        assert process.wait() == 130
