"""`python -m tokend.tokenize --column`: shards of columns that are tokens already."""

import json

import numpy
import pytest
from test_formats_lists import BATCHES, LIST, batch, lists, write
from tokenizing import refused, tokenize

import lib
from lib import TOKCTL

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
DOCUMENTS = [document for some in BATCHES for document in some]
LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def shards(directory, dtype="<u4"):
    files = sorted(directory.glob("*.bin"))
    return numpy.concatenate([numpy.fromfile(file, dtype) for file in files]).tolist()


def joined(documents, eos=()):
    return [token for document in documents for token in [*document, *eos]]


def test_columns_of_tokens(directory):
    """All kinds of lists, of parquet and of both kinds of Arrow, also compressed; a directory."""
    made = directory / "in"
    made.mkdir()
    parquet.write_table(
        pa.table({"x": range(9), "input_ids": pa.array(DOCUMENTS, LIST)}),
        made / "a.parquet",
        row_group_size=4,
    )
    lists(made / "b.arrow")
    lists(made / "c.arrow", BATCHES, pa.large_list(pa.int64()), "file")
    table = pa.table({"input_ids": pa.array([None, [1, 2]], LIST)})
    with pa.ipc.new_stream(str(made / "d.arrow"), table.schema, options=LZ4) as writer:
        writer.write(table)
    (made / "state.json").write_text("{}")
    out, said = tokenize(made, "-o", directory / "out", "--column", "input_ids")
    expected = [*DOCUMENTS * 3, [], [1, 2]]
    assert shards(directory / "out") == joined(expected)
    assert f"{len(expected)} documents (13 of them empty)" in said and "no EOS" in said
    assert "eos" not in out and "\n    # vocab: " in out and "dtype: u32" in out
    (directory / "tokend.yaml").write_text(out)
    assert lib.run(lib.TOKEND, "--check", "-c", directory / "tokend.yaml")[0] == 0
    options = ("--column", "input_ids", "--dtype", "u16", "--eos", "7", "--shard-tokens", "500")
    out, said = tokenize(made, "-o", directory / "u16", *options)
    assert shards(directory / "u16", "<u2") == joined(expected, [7]) and "eos: 7" in out
    flat = write(directory / "flat.arrow", [batch(pa.array([5, 6])), batch(pa.array([7]))])
    tokenize(flat, "-o", directory / "flat", "--column", "input_ids", "--eos", "0")
    assert shards(directory / "flat") == [5, 6, 0, 7, 0]


def test_bad_columns_are_named(directory):
    path = directory / "a.parquet"
    parquet.write_table(pa.table({"ids": [[1], [70000, -1]], "n": [1, 2], "t": ["a", "b"]}), path)
    none = directory / "none"
    for options, text in {
        ("--column", "x"): 'no column "x" (there are ids, n, t); pass another --column',
        ("--column", "n"): 'column "n" is int64, not lists of integers',
        ("--column", "ids"): 'rows 0 to 1: column "ids": not a token of u32',
        ("--column", "ids", "--eos", "</s>"): "--eos </s>: there is no tokenizer",
        ("--tokenizer", "bytes"): f"tokend.tokenize --column ids -o DIR {path}",
    }.items():
        assert text in refused(path, "-o", none / str(abs(hash(text))), *options)
    assert "pass --tokenizer for text, or --column" in tokenize(path, "-o", none, code=2)[1]
    text = directory / "a.txt"
    text.write_text("a")
    assert "omit --column" in refused(text, "-o", none, "--column", "ids")


def test_the_daemon_names_the_command(directory):
    parquet.write_table(pa.table({"ids": [[1]]}), directory / "a.parquet")
    with pa.ipc.new_stream(str(directory / "a.arrow"), pa.schema({"ids": LIST}), options=LZ4) as to:
        to.write(pa.table({"ids": pa.array([[1]], LIST)}))
    for name, column in ("a.parquet", "input_ids"), ("a.arrow", "ids"):
        _, out, _ = lib.run(TOKCTL, "inspect", "--json", directory / name)
        command = f"python -m tokend.tokenize --column {column} -o DIR FILE"
        assert command in json.loads(out)["problems"][0]
