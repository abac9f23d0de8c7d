"""python -m tokend.tokenize with real tokenizers, trained here on real prose and code: NumPy reads
the shards and tokend serves them.
"""

import base64
import gzip
import json
import os
import pty
import re
import subprocess
import sys

import numpy
import pytest
import sentencepiece
import tokenizers
from test_show import of_sentencepiece, of_tiktoken
from tokenizing import (
    SPECIAL,
    child_environment,
    command,
    corpus,
    kill_and_resume,
    read_terminal,
    refused,
    shards,
    tokenize,
    with_special,
    write_jsonl,
)

import lib
import tokend

pytest_plugins = ["tokenizing"]  # its fixture


def tokens(directory, dtype="<u2"):
    return numpy.frombuffer(b"".join(shards(directory).values()), dtype)


def split(numbers, eos):
    """The documents, without their EOS."""
    ends = numpy.flatnonzero(numbers == eos)
    assert len(numbers) and ends[-1] == len(numbers) - 1
    return [part[:-1].tolist() for part in numpy.split(numbers, ends + 1)[:-1]]


# ---- the shards ----


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
        assert f"{packed}: the zstd is damaged: " in refused(
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
        ((path,), "the parquet is damaged: "),
        (
            (directory / "0.parquet", "--field", "body"),
            'no column "body" (there are id, text); pass another --field',
        ),
        ((directory / "0.parquet", "--field", "id"), 'column "id" is int64, not strings'),
    ):
        assert text in refused(*given, "-o", directory / "none" / text[:6], "--tokenizer", made)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", None]}), path)
    assert (
        refused(path, "-o", directory / "null", "--tokenizer", made)
        == f'{path}: row 2: field "text" is null, not a string'
    )
    bad = pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(numpy.array([0, 1, 2], "<i4")), pyarrow.py_buffer(b"a\xff")
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": bad}), path)
    assert f"{path}: row 1: byte 0xff is not UTF-8" in refused(
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


def with_template(directory, made):
    """A file for inference: it truncates, pads, and puts a token before each text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(made))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.enable_truncation(10)
    tokenizer.enable_padding(length=10)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        f"<s> $A {SPECIAL}", special_tokens=[("<s>", 1001), (SPECIAL, 1000)]
    )
    tokenizer.save(str(directory / "template.json"))
    return directory / "template.json"


def test_truncation_and_padding_of_the_tokenizer_file_are_ignored(directory, made):
    """Special tokens in a text are only text."""
    source = write_jsonl(directory / "a.jsonl", corpus())
    for name in (made, with_template(directory, made)):
        tokenize(source, "-o", directory / name.stem, "--tokenizer", name, "--bos", "none")
    assert shards(directory / "tokenizer") == shards(directory / "template")
    parts = split(tokens(directory / "template"), 1000)
    decode = tokenizers.Tokenizer.from_file(str(made)).decode
    assert [decode(part) for part in parts] == corpus()


def test_documents_begin_and_end_as_the_tokenizers_template_says(directory, made):
    file = with_template(directory, made)
    (directory / "texts").mkdir()
    for i, text in enumerate(["one\n", "two\n" * 300, "three\n"]):
        (directory / "texts" / f"{i}.txt").write_text(text)
    _, said = tokenize(directory / "texts", "-o", directory / "out", "--tokenizer", file)
    assert "BOS 1001, EOS 1000;" in said
    parts = split(tokens(directory / "out"), 1000)
    assert [(part[0], part.count(1001)) for part in parts] == [(1001, 1)] * 3
    encode = tokenizers.Tokenizer.from_file(str(made)).encode
    assert parts[0][1:] == encode("one\n").ids
    ask = (directory / "texts", "-o", directory / "named", "--tokenizer", file)
    _, said = tokenize(*ask, "--bos", "e", "--eos", 7)
    assert said.count("EOS 7;") == 1 and tokens(directory / "named")[0] == encode("e").ids[0]
    assert "--bos no-such: " in refused(*ask, "--bos", "no-such")


def test_widths_and_eos(directory, made):
    source = write_jsonl(directory / "a.jsonl", ["text", ""])

    def run(name, *more):
        return tokenize(source, "-o", directory / name, "--tokenizer", made, *more)

    out, said = run("auto")
    assert (
        "dtype: u16" in out
        and "eos: 1000\n" in out
        and "vocab: 1001\n" in out
        and "2 documents (1 of them empty)" in said
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
    assert (
        "several tokens that end a text (<|endoftext|>, <eos>); pass its number or its text" in said
    )
    assert known < 70_000  # the package assigns their numbers
    assert "pass a number below 1001" in refused(
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
    assert "--dtype u16: cannot hold the vocabulary's 65537 tokens; pass u32" == refused(
        *ask, "--eos", 65_536, "--dtype", "u16"
    )
    assert "does not name the token that ends a text; pass its number" in refused(*ask)
    said = refused(*ask, "--eos", 60_000, "--pattern", "[a-z]+")
    assert said == (
        f"{source}:1: --pattern [a-z]+: does not match all of this text; pass one that does"
    )
    assert refused(*ask, "--eos", 60_000, "--pattern", "(").startswith("--pattern (: ")
    tokenizer.write_bytes(b"".join(tokenizer.read_bytes().splitlines(True)[1:]))
    assert "has no token for byte 0x00" in refused(*ask, "--eos", 60_000)


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
        seen = read_terminal(ours)
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
