"""python -m tokend.tokenize: real tokenizers, trained here, over real prose and code; what it wrote
NumPy reads and tokend serves.
"""

import base64
import gzip
import json
import os
import pathlib
import pty
import re
import subprocess
import sys


import numpy
import pytest
import sentencepiece
import tokenizers
from test_show import of_hugging_face, of_sentencepiece, of_tiktoken

import lib
import tokend

SPECIAL = "<|endoftext|>"


def corpus():
    """Some of the standard library, and what is not ASCII, has NULs, line ends of all kinds, or
    nothing at all.
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
    """(stdout, stderr)"""
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


def tokens(directory, dtype="<u2"):
    return numpy.frombuffer(b"".join(shards(directory).values()), dtype)


def split(numbers, eos):
    """Documents, without their EOS."""
    ends = numpy.flatnonzero(numbers == eos)
    assert len(numbers) and ends[-1] == len(numbers) - 1
    return [part[:-1].tolist() for part in numpy.split(numbers, ends + 1)[:-1]]


def write_jsonl(path, documents, field="text"):
    path.write_text(
        "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(documents))
    )
    return path


# ---- what is written ----


@pytest.mark.parametrize("kind", ["tokenizers", "tiktoken", "sentencepiece"])
def test_round_trip(directory, kind):
    pytest.importorskip(kind)
    documents = [text for text in corpus() if text]
    if kind == "tokenizers":
        tokenizer = with_special(directory, documents)
    else:
        tokenizer, _ = (of_tiktoken if kind == "tiktoken" else of_sentencepiece)(
            directory, documents
        )
    source = write_jsonl(directory / "documents.jsonl", documents)
    eos = ["--eos", 60_000] if kind == "tiktoken" else []
    out, said = tokenize(source, "-o", directory / "out", "--tokenizer", tokenizer, *eos)
    parts = split(tokens(directory / "out"), int(re.search("eos: ([0-9]+)", out)[1]))
    if kind == "tokenizers":
        whole = tokenizers.Tokenizer.from_file(str(tokenizer))
        whole.encode_special_tokens = True
        assert parts == [whole.encode(text).ids for text in documents]
        decode = whole.decode
    elif kind == "sentencepiece":
        model = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
        assert parts == model.encode(documents)
        decode = model.decode
    else:
        ranks = [base64.b64decode(line.split()[0]) for line in tokenizer.read_bytes().splitlines()]
        decode = lambda numbers: b"".join(ranks[n] for n in numbers).decode()
        assert "GPT-2's pattern is used" in said
    assert [decode(part) for part in parts] == documents
    assert (
        f"{len(documents)} documents, {sum(map(len, parts)) + len(parts)} tokens in 1 shards of u16"
        in said
    )


def test_all_kinds_of_files_give_the_same(directory, made):
    documents = [text for text in corpus() if text]
    (directory / "texts").mkdir()
    for i, text in enumerate(documents):
        (directory / "texts" / f"{i:03}.txt").write_bytes(text.encode())
    plain = write_jsonl(directory / "a.jsonl", documents)
    packed = directory / "b.jsonl.gz"
    packed.write_bytes(
        b"".join(
            gzip.compress(part) for part in (plain.read_bytes()[:1000], plain.read_bytes()[1000:])
        )
    )
    unlike = (
        directory / "c.jsonl"
    )  # with a byte order mark, CRLF, blank lines, no escapes, no newline at the end
    lines = [json.dumps({"body": text}, ensure_ascii=False) for text in documents]
    unlike.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    first = None
    for source, field in (
        (directory / "texts", "text"),
        (plain, "text"),
        (packed, "text"),
        (unlike, "body"),
    ):
        out = directory / f"out-{source.name}"
        tokenize(source, "-o", out, "--tokenizer", made, "--field", field)
        first = first or shards(out)
        assert shards(out) == first and len(first["00000.bin"]) > 100_000
    both = directory / "both"
    tokenize(plain, directory / "texts" / "003.txt", packed, "-o", both, "--tokenizer", made)
    text = tokenizers.Tokenizer.from_file(str(made)).encode(documents[3]).ids
    whole = first["00000.bin"]
    assert shards(both)["00000.bin"] == whole + numpy.array([*text, 1000], "<u2").tobytes() + whole


def test_zstd(directory, made):
    zstandard = pytest.importorskip("zstandard")
    plain = write_jsonl(directory / "a.jsonl", corpus() * 6)  # several pieces
    data = plain.read_bytes()
    packed = directory / "b.jsonl.zst"
    packed.write_bytes(b"".join(zstandard.compress(part) for part in (data[:77], b"", data[77:])))
    for source in (plain, packed):
        tokenize(source, "-o", directory / f"out-{source.name}", "--tokenizer", made)
    assert shards(directory / "out-a.jsonl") == shards(directory / "out-b.jsonl.zst")
    for broken in (packed.read_bytes()[:-5], b"no zstd at all", packed.read_bytes() + b"more"):
        packed.write_bytes(broken)
        assert f"{packed}: broken zstd: " in refused(
            packed, "-o", directory / "none", "--tokenizer", made
        )
        for path in (directory / "none").glob(".*"):
            path.unlink()


def test_parquet(directory, made):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    documents = corpus() * 15
    plain = write_jsonl(directory / "a.jsonl", documents)
    tokenize(plain, "-o", directory / "plain", "--tokenizer", made)
    for i, kind in enumerate(
        (
            pyarrow.string(),
            pyarrow.large_string(),
            pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        )
    ):
        path = directory / f"{i}.parquet"
        table = pyarrow.table(
            {"id": range(len(documents)), "text": pyarrow.array(documents).cast(kind)}
        )
        pyarrow.parquet.write_table(table, path, row_group_size=100)
        tokenize(path, "-o", directory / f"out{i}", "--tokenizer", made)
        assert shards(directory / f"out{i}") == shards(directory / "plain")
    kill_and_resume(directory / "killed", path, made, shards_of=20_000)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    for given, text in (
        ((path,), "broken parquet: "),
        (
            (directory / "0.parquet", "--field", "body"),
            'no column "body"; has id, text: give --field',
        ),
        ((directory / "0.parquet", "--field", "id"), 'column "id" is int64; must be strings'),
    ):
        assert text in refused(*given, "-o", directory / "none" / text[:6], "--tokenizer", made)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", None]}), path)
    assert (
        refused(path, "-o", directory / "null", "--tokenizer", made)
        == f'{path}: row 2: field "text" is null; must be a string'
    )
    bad = pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(numpy.array([0, 1, 2], "<i4")), pyarrow.py_buffer(b"a\xff")
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": bad}), path)
    assert f"{path}: row 1: invalid UTF-8 (byte 0xff)" in refused(
        path, "-o", directory / "utf8", "--tokenizer", made
    )


def test_same_bytes_for_any_number_of_workers(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus() * 5)
    for workers in (1, 3):
        tokenize(
            source,
            "-o",
            directory / f"{workers}",
            "--tokenizer",
            made,
            "--workers",
            workers,
            "--shard-tokens",
            29_999,
        )
    one, three = shards(directory / "1"), shards(directory / "3")
    assert one == three and len(one) > 10 and [*one] == [f"{i:05}.bin" for i in range(len(one))]
    assert {len(data) for data in [*one.values()][:-1]} == {2 * 29_999}


def test_what_a_tokenizer_file_would_cut_is_whole(directory, made):
    """Truncation and padding in the file are for inference, a template's tokens too; special tokens
    in a text are only text.
    """
    whole = json.loads(made.read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(made))
    tokenizer.enable_truncation(10)
    tokenizer.enable_padding(length=10)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        f"{SPECIAL} $A", special_tokens=[(SPECIAL, 1000)]
    )
    tokenizer.save(str(directory / "cutting.json"))
    assert (
        json.loads((directory / "cutting.json").read_text())["truncation"]
        and whole["truncation"] is None
    )
    source = write_jsonl(directory / "a.jsonl", corpus())
    for name in (made, directory / "cutting.json"):
        tokenize(source, "-o", directory / f"of-{name.stem}", "--tokenizer", name)
    assert shards(directory / "of-tokenizer") == shards(directory / "of-cutting")
    parts = split(tokens(directory / "of-cutting"), 1000)
    decode = tokenizers.Tokenizer.from_file(str(made)).decode
    assert [decode(part) for part in parts] == corpus()


def test_widths_and_eos(directory, made):
    source = write_jsonl(directory / "a.jsonl", ["text", ""])

    def run(name, *more):
        return tokenize(source, "-o", directory / name, "--tokenizer", made, *more)

    out, said = run("auto")
    assert (
        "dtype: u16" in out
        and "eos: 1000\n" in out
        and "vocab: 1001\n" in out
        and "2 documents (1 without text)" in said
    )
    assert tokens(directory / "auto")[-2:].tolist() == [1000, 1000]
    run("wide", "--dtype", "u32")
    assert tokens(directory / "wide", "<u4").tolist() == tokens(directory / "auto").tolist()
    run("named", "--eos", "e")
    assert tokens(directory / "named")[-1] == tokenizers.Tokenizer.from_file(str(made)).token_to_id(
        "e"
    )
    many = {**json.loads(made.read_text())}
    many["added_tokens"] = [
        {**many["added_tokens"][0], "id": 70_000, "content": "<eos>"},
        *many["added_tokens"],
    ]
    (directory / "many.json").write_text(json.dumps(many))
    known = tokenizers.Tokenizer.from_file(str(directory / "many.json")).token_to_id("<eos>")
    said = refused(source, "-o", directory / "none", "--tokenizer", directory / "many.json")
    assert "names several ends of text, <|endoftext|>, <eos>: give its number or its text" in said
    assert known < 70_000  # the package numbers them itself
    assert "must be below 1001" in refused(
        source, "-o", directory / "none", "--tokenizer", made, "--eos", 1001
    )
    assert "has no such token" in refused(
        source, "-o", directory / "none", "--tokenizer", made, "--eos", "<none>"
    )
    assert not (directory / "none").exists()


def test_wide_vocabulary(directory):
    pytest.importorskip("tiktoken")
    tokenizer, _ = of_tiktoken(directory, corpus())
    source = write_jsonl(directory / "a.jsonl", ["def wide"])
    out, _ = tokenize(source, "-o", directory / "out", "--tokenizer", tokenizer, "--eos", 65_536)
    assert (
        "dtype: u32" in out
        and "vocab: 65537" in out
        and tokens(directory / "out", "<u4")[-1] == 65_536
    )
    out, _ = tokenize(source, "-o", directory / "fits", "--tokenizer", tokenizer, "--eos", 65_535)
    assert "dtype: u16" in out and tokens(directory / "fits")[-1] == 65_535
    ask = (source, "-o", directory / "none", "--tokenizer", tokenizer)
    assert "--dtype u16: the vocabulary has 65537 tokens, u16 holds 65536: give u32" == refused(
        *ask, "--eos", 65_536, "--dtype", "u16"
    )
    assert "does not name the end of a text: give its number" in refused(*ask)
    said = refused(*ask, "--eos", 60_000, "--pattern", "[a-z]+")
    assert said == (
        f"{source}:1: --pattern [a-z]+: it matches only parts of this text, the others would "
        "be lost"
    )
    assert refused(*ask, "--eos", 60_000, "--pattern", "(").startswith("--pattern: ")
    tokenizer.write_bytes(b"".join(tokenizer.read_bytes().splitlines(True)[1:]))
    assert "has no token for byte 0x00" in refused(*ask, "--eos", 60_000)


# ---- an interrupted run ----


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return [int(number) for number in file.read().split()]


def kill_and_resume(out, source, tokenizer, shards_of, kills=2):
    """Killed after each next shard, and then let go on: the same as of a run that nothing
    stopped.
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


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "txt"])
def test_killed_and_resumed(directory, made, ending):
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


def test_resume_refuses_what_is_not_the_same(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus())
    out = directory / "out"
    ask = (source, "-o", out, "--tokenizer", made)
    tokenize(*ask, "--shard-tokens", 50_000)
    before = shards(out)
    again = "start again, in another directory"
    assert (
        refused(*ask) == f"{out}: is not empty: give another directory, or --resume to go on there"
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
        assert refused(*resume, *more) == f"{out}: --resume: {text}: {again}"
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(made.read_text() + "\n")
    said = refused(
        source, "-o", out, "--tokenizer", tokenizer, "--resume", "--shard-tokens", 50_000
    )
    assert said == f"{out}: --resume: the tokenizer's file was another one: {again}"
    (out / "00000.bin").write_bytes(before["00000.bin"][:-2])
    assert refused(*resume) == f"{out}/00000.bin: has 99998 bytes, must have 100000: {again}"
    os.utime(source, ns=(1, 1))
    assert (
        refused(*resume) == f"{out}: --resume: {source} was changed since (size or time): {again}"
    )
    other = pathlib.Path(json.__file__).parent
    assert "nothing that tokend.tokenize began" in refused(
        source, "-o", other, "--tokenizer", made, "--resume"
    )


def test_disk_full(directory, made):
    """On a file system of 1 MiB; then there is room, and it goes on."""
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
            == f"{full}/out: No space left on device: free some space, and go on with --resume"
        )
        assert list(shards(full / "out")) == ["00000.bin", "00001.bin"]
        subprocess.run(["mount", "-o", "remount,size=50m", full], check=True)
        tokenize(*ask, "--resume")
        tokenize(source, "-o", directory / "out", "--tokenizer", made, "--shard-tokens", 200_000)
        assert shards(full / "out") == shards(directory / "out")
    finally:
        subprocess.run(["umount", full], check=True)


# ---- bad input ----

GOOD = b'{"text": "good"}\n'
LINES = [
    (GOOD + b'{"text": "cut\n', ":2: broken JSON at column 10: "),
    (GOOD * 2 + b"[1, 2]\n", ":3: is a list; must be a JSON object"),
    (b'"text"\n', ":1: is a string; must be a JSON object"),
    (b"\n" + GOOD + b'{"body": "b", "id": 1}\n', ':3: no field "text"; has body, id: give --field'),
    (b"{}\n", ':1: no field "text"; has none: give --field'),
    (b'{"text": null}', ':1: field "text" is null; must be a string'),
    (b'{"text": [1]}', ':1: field "text" is a list; must be a string'),
    (b'{"text": 12}', ':1: field "text" is a number; must be a string'),
    (b'{"text": true}', ':1: field "text" is true or false; must be a string'),
    (
        GOOD * 3 + b'{"text": "a\xffb"}\n',
        ":4: invalid UTF-8 (byte 0xff): must be UTF-8: convert it (iconv -t UTF-8)",
    ),
    (
        GOOD + b'{"text": "half \\ud800 pair"}',
        ':2: field "text" has half a surrogate pair, \\ud800, which is no text',
    ),
    (b'{"text": ' + b"[" * 200_000, ":1: broken JSON: "),
    (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", ":1: broken JSON: "),
    (b"", ": is empty: leave it out"),
    (b"\n \n\n", ": is empty: leave it out"),
    (GOOD * 100_000 + b"{", ":100001: broken JSON at column 2: "),  # in a later piece
    (GOOD + b'{"text": "' + b"a" * (33 << 20) + b'"}\n', ":2: a document of "),
]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_bad_lines(directory, made, number):
    contents, text = LINES[number]
    source = directory / "bad.jsonl"
    source.write_bytes(contents)
    said = refused(source, "-o", directory / "out", "--tokenizer", made)
    assert said.startswith(f"{source}{text}"), said
    assert len(said) < 400 and (not (directory / "out").exists() or not shards(directory / "out"))


def test_bad_files(directory, made):
    ask = ("-o", directory / "out", "--tokenizer", made)
    for name, contents, text in (
        ("a.txt", b"one\ntwo \xe9\n", ":2: invalid UTF-8 (byte 0xe9)"),
        ("a.txt", b"", ": is empty: leave it out"),
        ("a.txt", b"a" * ((32 << 20) + 1), ": a document of "),
        ("a.txt.gz", gzip.compress(b""), ": is empty: leave it out"),
        ("a.jsonl.gz", gzip.compress(GOOD * 9)[:-9], ": broken gzip: "),
        ("a.jsonl.gz", b"not packed", ": broken gzip: "),
        (
            "a.csv",
            b"1,2",
            ": its name must end in .txt or .jsonl, also packed as .gz or .zst, or in .parquet",
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
    assert refused(directory / "empty", *ask) == f"{directory}/empty: holds no file"
    good = write_jsonl(directory / "good.jsonl", ["a"])
    for contents, text in (
        (b'{"version": "1.0"}', "must be a tokenizer.json"),
        (b"\x0a\x10no", "or a SentencePiece model"),
    ):
        (directory / "bad").write_bytes(contents)
        said = refused(good, "-o", directory / "out", "--tokenizer", directory / "bad")
        assert said.startswith(f"--tokenizer {directory}/bad: ") and text in said
    assert "No such file" in refused(
        good, "-o", directory / "out", "--tokenizer", directory / "none"
    )
    assert refused(good, *ask, "--pattern", "a").startswith("--pattern: goes with a .tiktoken file")
    assert refused(good, "-o", good, "--tokenizer", made) == f"{good}: File exists"
    assert "number from 1 on" in tokenize(good, *ask, "--workers", "0", code=2)[1]


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
    assert said == f"{directory / name}: needs the Python package {package}: pip install {package}"


def test_a_worker_that_is_killed(directory, made):
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
        "tokend.tokenize: a worker died (out of memory?): give fewer --workers, and go on "
        "with --resume\n"
    )


def test_two_at_once_and_ctrl_c(directory, made):
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
        assert refused(*ask, "--resume") == f"{directory}/out: another tokend.tokenize writes there"
        os.killpg(process.pid, 2)
        assert process.stderr.read() == "tokend.tokenize: interrupted: go on with --resume\n"
        assert process.wait() == 130


def test_progress_on_a_terminal(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus() * 10)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(source, "-o", directory / "out", "--tokenizer", made),
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env=child_environment(),
    ):
        os.close(theirs)
        seen = b""
        try:
            while block := os.read(ours, 4096):
                seen += block
        except OSError:  # the terminal's end
            pass
    os.close(ours)
    assert re.search(
        rb"\r\x1b\[K[0-9]+ documents, [0-9]+ tokens, [0-9.]+ MB/s, 0:00:[0-9]{2} left", seen
    ), seen
    assert seen.endswith(b" MB/s\r\n")


# ---- tokend serves it ----


def test_served_and_shown(directory, made):
    documents = [
        text for text in corpus() if text.isascii() and len(text) > 1000 and SPECIAL not in text
    ]
    source = write_jsonl(directory / "a.jsonl", documents)
    text, _ = tokenize(
        source, "-o", directory / "prose", "--tokenizer", made, "--shard-tokens", 30_000
    )
    config = directory / "tokend.yaml"
    config.write_text(
        f"socket: {directory}/socket\nstate_dir: {directory}/state\n"
        + text.replace("seq_len: 2048", "seq_len: 64")
    )
    whole = tokens(directory / "prose")
    with open(directory / "log", "w") as log:
        process = subprocess.Popen([lib.BIN / "tokend", "-c", config], stdout=log, stderr=log)
    try:
        lib.wait_until(lambda: "ready at" in (directory / "log").read_text(), "the daemon's start")
        with tokend.Loader(
            "train", 4, socket=f"{directory}/socket", run="job", rank=0, world=1, framework="numpy"
        ) as loader:
            assert loader.datasets[0] == "prose"
            given = [next(loader)["input_ids"] for _ in range(50)]
    finally:
        process.kill()
        process.wait()
    ask = [
        sys.executable,
        "-m",
        "tokend.show",
        "-c",
        config,
        "train",
        "--position",
        "0",
        "--count",
        "200",
        "--json",
    ]
    plain, shown = (
        [json.loads(line) for line in subprocess.run(
            [*ask, *more], check=True, stdout=subprocess.PIPE,
            env=child_environment()).stdout.splitlines()]
        for more in ([], ["--tokenizer", made])
    )  # fmt: skip
    decode = tokenizers.Tokenizer.from_file(str(made)).decode
    for row, words, ids in zip(plain, shown, numpy.concatenate(given), strict=True):
        at = int(row["shard"].removesuffix(".bin")) * 30_000 + row["offset"]
        assert row["tokens"] == whole[at : at + 65].tolist() and ids.tolist() == row["tokens"][:-1]
        assert words["text"] == decode(row["tokens"], skip_special_tokens=False)
        assert all(part in "".join(documents) for part in words["text"].split(SPECIAL))
