"""Arrow columns of lists, and IPC streams as Hugging Face's datasets writes: tokens and documents
are what pyarrow reads.
"""

import json
import struct
import subprocess

import numpy
import pyarrow as pa
import pytest
from lib import TOKEND, run
from lib.shard_cat import CAT, facts, tokens
from test_formats_arrow import RANDOM, every_kind

LENGTHS = (5, 0, 1, 0, 0, 300, 2049, 17, 0)
DOCUMENTS = [RANDOM.integers(0, 128, n).tolist() for n in LENGTHS]
BATCHES = [DOCUMENTS[:3], [], DOCUMENTS[3:5], DOCUMENTS[5:]]
TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
WRITERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
LISTS = {"list": pa.list_, "large_list": pa.large_list}
LIST = pa.list_(pa.int32())


def write(path, batches, writer="stream"):
    with WRITERS[writer](str(path), batches[0].schema) as out:
        for batch in batches:
            out.write(batch)
    return path


def batch(array, name="input_ids"):
    return pa.record_batch([array], names=[name])


def lists(path, batches=BATCHES, type=LIST, writer="stream"):
    return write(path, [batch(pa.array(lists, type)) for lists in batches], writer)


def read(path, writer="stream", column="input_ids"):
    """The documents, by pyarrow."""
    opened = {"file": pa.ipc.open_file, "stream": pa.ipc.open_stream}[writer](str(path))
    return [document or [] for document in opened.read_all()[column].to_pylist()]


def check(path, documents, *options):
    """The shard has these documents one after another."""
    seen = facts(path, *options)
    ends = numpy.cumsum([len(d) for d in documents], dtype=int)
    assert (seen["format"], seen["tokens"], seen["note"]) == ("arrow", ends[-1], "")
    assert seen["boundaries"] == sorted({int(e) for e in ends if 0 < e < ends[-1]})
    numpy.testing.assert_array_equal(tokens(path, *options), numpy.concatenate(documents))
    return seen


@pytest.mark.asan
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_documents(tmp_path, writer, kind):
    for type in TYPES:
        path = lists(tmp_path / "a.arrow", BATCHES, LISTS[kind](getattr(pa, type)()), writer)
        seen = check(path, read(path, writer))
        assert seen["type"] == type.replace("uint", "u").replace("int", "i")
    check(lists(path, BATCHES[3:], LISTS[kind](pa.int32()), writer), DOCUMENTS[5:])
    assert facts(path)["plain"]  # a single batch: its lists are contiguous


@pytest.mark.parametrize("writer", WRITERS)
def test_null_sliced_and_foreign_arrays(tmp_path, writer):
    """Null lists, slices of longer arrays, offsets that begin after 0, a child that goes on after
    the last list, other columns around, and many lists.
    """
    path = tmp_path / "a.arrow"
    array = pa.array([None, [1, 2], None, [], [3], None], LIST)
    check(write(path, [batch(array)], writer), [[], [1, 2], [], [], [3], []])
    long = pa.array(DOCUMENTS, LIST)
    check(write(path, [batch(long.slice(2, 4)), batch(long.slice(6, 1))], writer), DOCUMENTS[2:7])
    late = pa.ListArray.from_arrays(pa.array([2, 4, 4, 7], pa.int32()), pa.array(range(9)))
    check(write(path, [batch(late)] * 2, writer), [[2, 3], [], [4, 5, 6]] * 2)
    columns = every_kind(3)
    columns = {
        name: columns[name] for name in columns if name != "runs" and "dictionary" not in name
    }
    ids = pa.array(DOCUMENTS[4:7], LIST)
    for around in ({**columns, "input_ids": ids, "zz": ids}, {"input_ids": ids, **columns}):
        check(write(path, [pa.record_batch(around)] * 2, writer), DOCUMENTS[4:7] * 2)
    many = [list(range(n)) for n in RANDOM.integers(0, 5, 5000)]
    check(lists(path, [many[:1024], many[1024:3073], many[3073:]], LIST, writer), many)


@pytest.mark.parametrize("writer", WRITERS)
def test_fixed_size_lists_are_rows(tmp_path, writer):
    path = tmp_path / "a.arrow"
    rows = RANDOM.integers(0, 128, (50, 32)).tolist()
    arrays = [pa.array(rows[:20], pa.list_(pa.int32(), 32)), pa.array(rows[10:], LIST)]
    arrays[1] = arrays[1].cast(arrays[0].type).slice(10)
    check(write(path, [batch(a) for a in arrays], writer), rows)
    write(path, [batch(pa.array([None, [1, 2]], pa.list_(pa.int32(), 2)))], writer)
    assert "null_count of column 'input_ids' is 1" in facts(path, refused=True)


def test_the_column_is_chosen_as_in_flat_files(tmp_path):
    """input_ids before others; without it, the only column, or the one that is named."""
    path = tmp_path / "a.arrow"
    ids, mask = pa.array([[1, 2], [3]], LIST), pa.array([[1, 1], [1]], pa.list_(pa.int8()))
    length = pa.array([2, 1], pa.int64())
    for writer in WRITERS:
        table = {"attention_mask": mask, "input_ids": ids, "length": length}
        check(write(path, [pa.record_batch(table)], writer), [[1, 2], [3]])
        table = {"ids": ids, "length": length}
        check(write(path, [pa.record_batch(table)], writer), [[1, 2], [3]], "-c", "ids")
        assert "set `column` to the one" in facts(path, refused=True)
    check(lists(path, [[[1, 2]]]), [[1, 2]])
    write(path, [batch(pa.array([["a"]]))])
    assert "column 'input_ids' is of type list; tokens must be a column of integers" in facts(
        path, refused=True
    )


def test_streams(tmp_path):
    """A flat column, dictionaries between batches, a big schema, no end marker, and a whole stream
    that is compressed.
    """
    path = tmp_path / "a.arrow"
    check(write(path, [batch(pa.array([1, 2, 3])), batch(pa.array([4]))]), [[1, 2, 3], [4]])
    words = [pa.array([f"{n}"] * 2).dictionary_encode() for n in range(3)]
    ids = pa.array([[1], [2, 3]], LIST)
    check(
        write(path, [pa.record_batch({"w": w, "input_ids": ids}) for w in words]), [[1], [2, 3]] * 3
    )
    schema = pa.schema([pa.field("input_ids", LIST)], {"huggingface": "x" * 10_000})
    write(path, [pa.record_batch([ids], schema=schema)] * 2)
    check(path, [[1], [2, 3]] * 2)
    whole = path.read_bytes()
    assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    path.write_bytes(whole[:-8])
    assert "has no end marker" in facts(path)["note"]
    numpy.testing.assert_array_equal(tokens(path), [1, 2, 3] * 2)
    path.write_bytes(whole + bytes(8))
    assert "8 bytes follow its end marker" in facts(path, refused=True)
    path.write_bytes(whole)
    subprocess.run(["zstd", "-q", "--rm", path], check=True)
    check(tmp_path / "a.arrow.zst", [[1], [2, 3]] * 2)


def damaged(path, whole, old, new):
    assert whole.count(old) == 1, whole.count(old)
    path.write_bytes(whole.replace(old, new))
    return facts(path, refused=True)


@pytest.mark.asan
@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_lists_are_refused(tmp_path, writer):
    path = tmp_path / "a.arrow"
    whole = lists(path, [[[7, 8], [9, 10, 11], [12]]], LIST, writer).read_bytes()
    offsets = struct.pack("<4i", 0, 2, 5, 6)
    for now, text in {
        (0, 6, 5, 6): "offset 2 of column 'input_ids' is 5; must be 6 to 6",
        (0, 2, 7, 6): "offset 2 of column 'input_ids' is 7; must be 2 to 6",
        (0, -1, 5, 6): "offset 1 of column 'input_ids' is -1; must be 0 to 6",
        (-1, 2, 5, 6): "begin with -1 and end with 6; must ascend within 0 to 6",
        (0, 2, 5, 7): "begin with 0 and end with 7; must ascend within 0 to 6",
        (6, 2, 5, 0): "begin with 6 and end with 0",
    }.items():
        assert text in damaged(path, whole, offsets, struct.pack("<4i", *now))
    assert "offsets of column 'input_ids' have 8 bytes, which is 2 of int32" in damaged(
        path, whole, struct.pack("<4q", 0, 0, 0, 16), struct.pack("<4q", 0, 0, 0, 8)
    )
    assert "which is 5 of i32" in damaged(
        path, whole, struct.pack("<3q", 0, 16, 24), struct.pack("<3q", 0, 16, 20)
    )
    nodes = struct.pack("<4q", 3, 0, 6, 0)
    for now, text in {
        (3, 1, 6, 0): "has nulls, but no validity",
        (3, 4, 6, 0): "null_count of column 'input_ids' is 4; must be 0 to 3",
        (3, 0, 6, 1): "null_count of column 'input_ids''s items is 1; must be 0",
        (3, 0, -1, 0): "length of column 'input_ids's items is -1",
        (3, 0, 5, 0): "begin with 0 and end with 6; must ascend within 0 to 5",
    }.items():
        assert text in damaged(path, whole, nodes, struct.pack("<4q", *now))
    valid = pa.array([None, [1], [2, 3]], LIST)
    whole = write(path, [batch(valid)], writer).read_bytes()
    offsets = struct.pack("<4i", 0, 0, 1, 3)
    assert "list 1 of column 'input_ids' is null, but has 1 items" in damaged(
        path, whole, b"\x06" + bytes(7) + offsets, b"\x05" + bytes(7) + offsets
    )


def saved(directory, batches=BATCHES):
    """A directory as datasets.save_to_disk writes it."""
    directory.mkdir(parents=True)
    lists(directory / "data-00000-of-00001.arrow", batches)
    for name in "dataset_info.json", "state.json":
        (directory / name).write_text("{}")
    return directory


def test_saved_directories(tmp_path):
    """The JSON files are skipped. A cached result of map(), and all splits at once, are refused."""
    saved(tmp_path / "d/train")
    saved(tmp_path / "d/test", BATCHES[:1])

    def check(path):
        config = f"streams: {{a: {{seed: 1, seq_len: 8, datasets: [{{name: d, path: {path}}}]}}}}"
        (tmp_path / "tokend.yaml").write_text(config)
        return run(TOKEND, "--check", "-c", str(tmp_path / "tokend.yaml"))

    code, out, _ = check(tmp_path / "d/train")
    assert code == 0 and b"1 shards, 2372 tokens" in out
    assert check(tmp_path / "d")[0] == 0
    (tmp_path / "d/dataset_dict.json").write_text("{}")
    code, _, err = check(tmp_path / "d")
    assert code == 1 and f"set path: {tmp_path}/d/SPLIT" in err
    lists(tmp_path / "d/train/cache-0123.arrow")
    code, _, err = check(tmp_path / "d/train")
    assert code == 1 and "is a cached result of Hugging Face's datasets" in err
    assert check(tmp_path / "d/train/data-*.arrow")[0] == 0


def test_truncated_streams_are_refused(tmp_path):
    """At every length but the ends of batches, which the note tells from a whole stream."""
    whole = lists(tmp_path / "a.arrow", [DOCUMENTS[:3], DOCUMENTS[:1]]).read_bytes()
    paths = [tmp_path / f"{n}.arrow" for n in range(len(whole))]
    for n, path in enumerate(paths):
        path.write_bytes(whole[:n])
    done = subprocess.run([CAT, *paths], capture_output=True)
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and len(seen) == len(whole) and not done.stderr
    whole_batches = [one for one in seen if "error" not in one]
    assert [one["tokens"] for one in whole_batches] == [0, 6, 11]
    assert all("has no end marker" in one["note"] for one in whole_batches)
