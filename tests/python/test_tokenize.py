"""python -m tokend tokenize with real tokenizers, trained here on real prose and code: NumPy reads
the shards and tokend serves them.
"""

import base64
import gzip
import json
import re
import sys

import pytest
import tokenizers
from tokenizing import (
    SPECIAL,
    corpus,
    of_hugging_face,
    of_tiktoken,
    prose,
    refused,
    shards,
    split,
    texts,
    tokenize,
    tokens,
    write_jsonl,
)

import lib

pytest_plugins = ["tokenizing"]  # its fixture


@pytest.mark.parametrize("make", [of_hugging_face, of_tiktoken])
def test_round_trip(directory, make):
    documents = [text for text in corpus() if text]
    tokenizer, encode = make(directory, documents)
    source = write_jsonl(directory / "documents.jsonl", documents)
    eos = ["--eos", 60_000] if make == of_tiktoken else []
    out, said = tokenize(source, "-o", directory / "out", "--tokenizer", tokenizer, *eos)
    parts = split(tokens(directory / "out"), int(re.search("eos: ([0-9]+)", out)[1]))
    if make == of_tiktoken:  # it splits words by GPT-2's pattern
        ranks = [base64.b64decode(line.split()[0]) for line in tokenizer.open("rb")]
        assert [b"".join(ranks[n] for n in part).decode() for part in parts] == documents
        assert "GPT-2's pattern is used" in said
    else:
        assert parts == [encode(text) for text in documents]
    assert f"{len(documents)} documents, " in said and " in 1 shards of u16" in said


def parquet(path, documents, encode=True):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    texts = pyarrow.array(documents).dictionary_encode() if encode else pyarrow.array(documents)
    columns = {"id": range(len(documents)), "text": texts}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=100)


def unlike(path, documents):
    """With a byte order mark, CRLF, blank lines, no escapes, no newline at the end."""
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())


def packed(path, documents):
    """Of several members, or frames."""
    lines = write_jsonl(path.with_name("lines"), documents).read_bytes()
    pack = gzip.compress
    if path.suffix == ".zst":
        pack = pytest.importorskip("zstandard").compress
    path.write_bytes(b"".join(map(pack, (lines[:1000], b"", lines[1000:]))))


def files(path, documents):
    path.mkdir()
    for i, text in enumerate(documents):
        (path / f"{i:04}-of-9999.txt").write_bytes(text.encode())


KINDS = {
    "a directory": ("texts", files),
    "lines": ("a.jsonl", write_jsonl),
    "unusual lines": ("a.jsonl", unlike),
    "gzip": ("a.json.gz", packed),
    "zstd": ("a.jsonl.zst", packed),
    "strings": ("a.parquet", lambda *to: parquet(*to, encode=False)),
    "a dictionary": ("a.parquet", parquet),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_files_are_read(directory, kind):
    """In several pieces. Files are read in the given order."""
    name, write = KINDS[kind]
    documents = [text for text in corpus() if text] * 2
    paths = [directory / name, directory / "b.txt", directory / f"c{name}"]
    write(paths[0], documents)
    paths[1].write_text("between")
    write(paths[2], documents)
    tokenize(*paths, "-o", directory / "out", "--tokenizer", "bytes")
    assert texts(directory / "out") == [*documents, "between", *documents]


def test_same_bytes_for_any_number_of_workers(directory, made):
    source = write_jsonl(directory / "a.jsonl", corpus() * 2)
    for workers in (1, 3):
        options = ("--tokenizer", made, "--workers", workers, "--shard-tokens", 9_999)
        tokenize(source, "-o", directory / f"{workers}", *options)
    one, three = shards(directory / "1"), shards(directory / "3")
    assert one == three and len(one) > 10 and [*one] == [f"{i:05}.bin" for i in range(len(one))]


def test_a_template_names_what_begins_and_ends_a_document(directory, made):
    """A file for inference also truncates and pads, and one may have a dropout: all are ignored.
    Special tokens in a text are only text.
    """
    plain, tokenizer = (tokenizers.Tokenizer.from_file(str(made)) for _ in range(2))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.enable_truncation(10)
    tokenizer.enable_padding(length=10)
    tokenizer.model.dropout = 0.5
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        f"<s> $A {SPECIAL}", special_tokens=[("<s>", 1001), (SPECIAL, 1000)]
    )
    file = directory / "template.json"
    tokenizer.save(str(file))
    source = write_jsonl(directory / "a.jsonl", corpus())
    ask = (source, "-o", directory / "out", "--tokenizer", file)
    _, said = tokenize(*ask)
    assert "BOS 1001, EOS 1000;" in said and "in its text" not in said
    parts = split(tokens(directory / "out"), 1000)
    assert [(part[0], part.count(1001)) for part in parts] == [(1001, 1)] * len(corpus())
    assert [plain.decode(part[1:]) for part in parts] == corpus()
    _, said = tokenize(source, "-o", directory / "named", *ask[3:], "--bos", "e", "--eos", 7)
    assert "EOS 7 in its text" in said and tokens(directory / "named")[0] == plain.token_to_id("e")
    words = [(name, -len(name)) for name in ("G", "<s>", "</s>", *"/<s>0x47", "<0x47>")]
    genes = tokenizers.Tokenizer(tokenizers.models.Unigram(words, None, True))
    genes.add_special_tokens(["<s>", "</s>", "<mask>"])
    genes.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    genes.save(str(file))  # it has no token for any other text
    source = write_jsonl(directory / "b.jsonl", ["GG", "G</s>", "<0x47>"])
    tokenize(source, "-o", directory / "genes", *ask[3:])
    rows = [[0, 0], [0, 4, 3, 5, 6], [4, 7, 8, 9, 10, 6]]
    assert split(tokens(directory / "genes"), 2) == [[1, *row] for row in rows]


def test_widths_and_eos(directory, made):
    source = write_jsonl(directory / "a.jsonl", ["text", ""])

    def ask(name, *more):
        return (source, "-o", directory / name, "--tokenizer", made, *more)

    out, said = tokenize(*ask("auto"))
    for line in ('"dtype": "u16"', "eos: 1000\n", "vocab: 1001\n"):
        assert line in out
    assert "2 documents, " in said
    assert tokens(directory / "auto")[-2:].tolist() == [1000, 1000]
    tokenize(source, "-o", directory / "wide", "--tokenizer", "bytes", "--dtype", "u32")
    assert tokens(directory / "wide", "<u4").tolist() == [*b"text", 256, 256]
    many = json.loads(made.read_text())
    many["added_tokens"].append({**many["added_tokens"][0], "id": 1007, "content": "<eos>"})
    (directory / "many.json").write_text(json.dumps(many))
    for more, text in (
        (["--tokenizer", directory / "many.json"], "several tokens that end a text"),
        (["--eos", "<none>"], "there is no such token"),
        (["--eos", "none"], "--eos none: is for --bos"),
    ):
        assert text in refused(*ask("none", *more))
    assert not (directory / "none").exists()
    said = tokenize(*ask("gap"), "--tokenizer", directory / "many.json", "--eos", 7)[1]
    assert "<eos>: is 1007 in the tokenizer, but is used as 1001" in said


def test_a_tiktoken_file_does_not_contain_its_special_tokens(directory, monkeypatch):
    """It does not need NumPy."""
    tokenizer, _ = of_tiktoken(directory, prose())
    monkeypatch.setitem(sys.modules, "numpy", None)
    source = write_jsonl(directory / "a.jsonl", ["def wide"])
    ask = (source, "--tokenizer", tokenizer, "-o")
    for eos, dtype, width in ((65_536, "u32", "<u4"), (65_535, "u16", "<u2")):
        out, _ = tokenize(*ask, directory / dtype, "--eos", eos)
        assert f'"dtype": "{dtype}"' in out and f"vocab: {eos + 1}\n" in out
        assert tokens(directory / dtype, width)[-1] == eos
    for more, text in (
        (["--eos", 65_536, "--dtype", "u16"], "cannot hold the vocabulary's 65537 tokens"),
        ([], "the tokenizer has no known one"),
        (["--eos", 60_000, "--pattern", "[a-z]+"], "--pattern [a-z]+: does not match"),
    ):
        assert text in refused(*ask, directory / "none", *more)


# ---- files of all kinds, and long ones ----

LEFT_OUT = {"\x1b[31m.png": b"\x89PNG\r\n\x1a\n\0\0", "empty.txt": b"", "vocab.txt": b"the"}
TEXTS = {"README.md": "# Žluťoučký kůň\n", "d/metadata/a.metadata.json": "{}\n", "d/b": "no end"}


def test_any_text_below_a_directory(directory):
    source = directory / "all"
    contents = {name: text.encode() for name, text in TEXTS.items()}
    for name, data in {**LEFT_OUT, **contents, ".git/a": b"a", "_temporary/a": b"a"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    parquet(source / "d/rows.parquet", ["a row"])
    ask = ("-o", directory / "out", "--tokenizer", "bytes")
    assert "its name ends in none of .txt" in refused(directory / "all/README.md", *ask)
    _, said = tokenize(source, *ask, "--text")
    wanted = sorted({**TEXTS, "d/rows.parquet": "a row"}.items())
    assert texts(directory / "out") == [text for _, text in wanted]
    assert "empty.txt: is empty\n" in said and "\ufffd[31m.png: is not UTF-8 text\n" in said
    assert "data.json: is taken as plain text" in said and "vocab.txt: belongs to a tok" in said


def test_a_long_text_is_one_document(directory, monkeypatch):
    """It is read in parts that end with a line."""
    monkeypatch.setattr("tokend.data.documents.PART", 1 << 20)  # for a quick test
    text = "".join(f"line {i} of žluťoučký kůň\n" for i in range(130_000))
    long, short = directory / "long.txt", directory / "short.txt"
    long.write_text(text)
    short.write_text("after it")
    tokenize(long, short, "-o", directory / "out", "--tokenizer", "bytes")
    assert texts(directory / "out") == [text, "after it"]


# ---- columns that are tokens already ----


def test_columns_of_tokens(directory):
    """All kinds of lists, of parquet and of both kinds of Arrow, also compressed; a directory."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    documents = [[*range(i, 80_000, 9_000)] for i in range(9)] + [[], [1]]
    source = directory / "in"
    source.mkdir()
    lists = pa.table({"labels": range(11), "input_ids": pa.array(documents, pa.list_(pa.int32()))})
    large = pa.array(documents, pa.large_list(pa.int64()))
    large = pa.table({"x": range(11), "y": [None] * 11, "input_ids": large})
    empty = pa.table({"input_ids": pa.array([[], [1, 2]], pa.list_(pa.int32()))})
    parquet.write_table(lists, source / "a.parquet", row_group_size=4)
    lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
    for name, table, new, options in (
        ("b.arrow", lists, pa.ipc.new_stream, None),
        ("c.arrow", large, pa.ipc.new_file, None),
        ("d.arrow", empty, pa.ipc.new_stream, lz4),
    ):
        with new(str(source / name), table.schema, options=options) as writer:
            writer.write(table)
    (source / "state.json").write_text("{}")
    expected = [*documents * 3, [], [1, 2]]
    ask = (source, "--column", "input_ids", "-o")
    out, said = tokenize(*ask, directory / "out")
    assert tokens(directory / "out", "<u4").tolist() == sum(expected, [])
    assert f"{len(expected)} documents, " in said and "no EOS" in said
    assert said.count("a.parquet: column labels is not used: ") == 1 == said.count("not used")
    assert "eos" not in out and "\n    # vocab: " in out and '"dtype": "u32"' in out
    (directory / "tokend.yaml").write_text(out.replace("seq_len: 2048", "seq_len: 64"))
    code, _, err = lib.run(lib.TOKEND, "--check", "-c", directory / "tokend.yaml")
    assert code == 0, err
    tokenize(*ask, directory / "eos", "--eos", 7, "--shard-tokens", 50)
    assert tokens(directory / "eos", "<u4").tolist() == sum(([*d, 7] for d in expected), [])
    problem = json.loads(lib.run(lib.TOKCTL, "inspect", "--json", source / "d.arrow")[1])[
        "problems"
    ]
    assert "python -m tokend tokenize --column " in problem[0], "the daemon rejects it"
    named = source / "c.arrow"
    for more, text in (
        (["--column", "z"], '0 columns "z"; pass another --field, or --column, of x, y, input_ids'),
        (["--column", "y"], '"y" is null; must be a list of tokens'),
        (["--column", "x"], '"x" is int; must be a list of tokens'),
        (["--column", "input_ids", "--eos", "72000"], "row 1: has that --eos or --bos already"),
        (["--column", "input_ids", "--dtype", "u16"], "--column takes lists of tokens of u16"),
    ):
        assert text in refused(named, "-o", directory / "none" / "-".join(more), *more)
    whole = (source / "d.arrow").read_bytes()
    for data in (whole * 2, whole[:-8]):
        (source / "d.arrow").write_bytes(data)
        said = refused(source / "d.arrow", "--column", "input_ids", "-o", directory / "damaged")
        assert "d.arrow: is damaged: the end marker of" in said
    said = tokenize(named, "-o", "none", code=2)[1]
    assert "pass --tokenizer for text, or --column" in said
