"""The same documents in every format are served as their writers got them: tokens, document starts
and loss masks, in every way of reading, and with manifests. Shards that are damaged, or do not
belong together, stop a stream or are refused at the start.
"""

import gzip
import json
import os
import pathlib
import shutil

import numpy
import pytest

from lib import TOKCTL, TOKEND, Client, Daemon, Refused, has, run, status, wait_for
from lib.corpus import FORMATS, SEQ_LEN, manifest, plan
from lib.shard_writers import arrow, llmc, mds, npy, put, raw, seekable

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds

MICRO, BATCHES = 5, 70  # about two epochs
WINDOW = SEQ_LEN + 1


@pytest.fixture(scope="module")
def manifests(shared, written):
    """A manifest for each format."""
    return {name: manifest(shared.file(f"{name}.jsonl"), written[0] / name) for name in FORMATS}


def streams(written, manifests=()):
    """For each format a stream with annotations and one without."""
    more = {name: {"manifest": manifests[name]} for name in manifests}
    return {
        name + marked: about.config(str(written[0] / name), bool(marked), **more.get(name, {}))
        for name, about in FORMATS.items()
        for marked in ("", "-marked")
    }


def test_plan_and_inspect_read_all_formats(place, written):
    config = place.config(streams=streams(written))
    for name, about in FORMATS.items():
        code, out, err = run(TOKCTL, "inspect", "--json", written[0] / name)
        seen = {os.path.relpath(f["path"], written[0] / name): f
                for f in map(json.loads, out.splitlines())}  # fmt: skip
        assert code == 0 and seen.keys() == written[1][name].keys(), (name, err)
        stored = f"{about.dtype[1]}{8 * int(about.dtype[2])}"
        for shard, want in written[1][name].items():
            documents = getattr(want, about.bounds, None)
            if name == "mds-documents":  # it has no empty ones
                documents = [d for d in documents if d[0] < d[1]]
            facts = len(want.tokens), None if documents is None else len(documents), stored
            assert tuple(seen[shard][k] for k in ("tokens", "documents", "dtype")) == facts, shard
        for row in plan(config, name, 300, "--tokens"):
            want = about.window(written[1][name][row["shard"]], row["offset"], len(row["tokens"]))
            assert row["tokens"] == want[0].tolist(), (name, row)


def check_rows(how, daemon, config, name, shards, world=2):
    """Each row of the last rank is what the writer of its format got."""
    about, marked = FORMATS[name.removesuffix("-marked")], name.endswith("-marked")
    client = Client(daemon.socket)
    client.attach(stream=name, rank=world - 1, world=world, micro=MICRO, slots=3)
    assert (client.documents, client.loss_mask) == (marked, marked), name
    rows = plan(config, name, BATCHES * world * MICRO)
    starts = masked = 0
    for batch in range(world - 1, BATCHES * world, world):
        client.wait()
        found = client.row_documents(client.batch) if marked else [[]] * MICRO
        masks = client.row_masks(client.batch).tolist() if marked else [[]] * MICRO
        for row, at, *marks in zip(client.next(), rows[batch * MICRO :], found, masks):
            want = about.window(shards[at["shard"]], at["offset"], client.window)
            assert numpy.array_equal(row, want[0]), (how, name, at)
            assert not marked or tuple(marks) == want[1:], (how, name, at)
            starts, masked = starts + len(marks[0]), masked + marks[1].count(0)
    client.close()
    assert (starts > 0, masked > 0) == (marked, marked and about.mask != ""), name


@pytest.mark.parametrize("listed", [False, True], ids=["", "manifests"])
def test_rows_are_what_their_writers_got(place, written, manifests, mode, listed):
    """Also by a daemon that executed itself, which takes the datasets from its former image."""
    io, direct = mode
    about = streams(written, manifests if listed else ())
    config = place.config(io=io, direct=direct, streams=about)
    daemon = Daemon(place, config)
    if not direct:
        daemon.reload()
    for name in streams(written):
        check_rows((mode, listed), daemon, config, name, written[1][name.removesuffix("-marked")])


def cat(daemon, name, *more, batches=BATCHES):
    arguments = ["--rank", 0, "--world", 1, "--micro", MICRO, "--batches", batches, *more]
    return run(TOKCTL, "cat", name, "--socket", daemon.socket, *arguments)


def test_a_finite_stream_ends_with_padding(place, written):
    """Padding rows have no annotations, although their slots had some before."""
    finite = {**FORMATS["flat"].config(str(written[0] / "flat"), True), "samples": 10}
    daemon = Daemon(place, place.config(streams={"s": finite}))
    client, found, masks = Client(daemon.socket).attach(stream="s", micro=4, slots=1), [], []
    for _ in range(3):
        client.wait()
        found += client.row_documents(client.batch)
        masks += client.row_masks(client.batch).tolist()
        rows = client.next()
    assert rows[:2].any() and not rows[2:].any()
    assert masks == [[1] * client.window] * 10 + [[0] * client.window] * 2
    assert any(found) and found[10:] == [[], []]
    at = lambda: status(daemon.socket)[0][0]["position"]
    assert wait_for(lambda: at() == 10), "a status counts no padding"
    client.close()


# ---- shards that are damaged, or do not belong together ----


def change(name, data):
    return lambda directory: pathlib.Path(f"{directory}{name}").write_bytes(data)


def lose(name):
    return lambda directory: os.remove(f"{directory}{name}")


def replace(name):
    """Another file with the same name, size and bytes."""

    def act(directory):
        shutil.copy(f"{directory}{name}", f"{directory}{name}~")
        os.rename(f"{directory}{name}~", f"{directory}{name}")

    return act


SIDES = "its side files (index, document bounds, loss mask) changed after the shard was listed"
# name: (format of the corpus; damage before the start; after it; words)
DAMAGED = {
    "beyond": ("npy-listed", change("/a/0.csv.gz", gzip.compress(b"0,5001\n")), None,
               "0.csv.gz: row 1: end is 5001; must be 0 to 5000"),
    "value": ("flat-masked", change("-masks/a/0.bin", bytes([2]) * 5000), None,
              " is 2; must be 0 or 1"),
    "no mask": ("datatrove", None, lose("/a/0.ds.loss"), SIDES),
    "no list": ("olmo", None, lose("/a/0.csv.gz"), SIDES),
    "new list": ("zstd-frame", None, change("/a/0.csv.gz", gzip.compress(b"0,9\n")), SIDES),
    "other index": ("megatron", None, replace("/a/0.idx"), SIDES),
}  # fmt: skip


@pytest.mark.parametrize("io", ["pread", "auto"])
def test_damaged_side_files_stop_the_stream(place, written, io):
    """They are found when a shard is opened, or read."""
    streams = {"sound": FORMATS["zstd"].config(str(written[0] / "zstd"), True)}
    for name, (source, before, *_) in DAMAGED.items():
        directory = place.file(name)
        shutil.copytree(written[0] / source, directory)
        if "label_mask" in FORMATS[source].dataset:
            shutil.copytree(written[0] / f"{source}-masks", f"{directory}-masks")
        streams[name] = FORMATS[source].config(directory, True, shuffle="none")
        if before:
            before(directory)
    daemon = Daemon(place, place.config(io=io, streams=streams))
    for name, (_, _, after, words) in DAMAGED.items():
        if after:  # a reconnect compares nothing with the path
            after(place.file(name))
            with pytest.raises(Refused) as refused:
                Client(daemon.socket).attach(stream=name, begin=1, again=1).next()
            text = refused.value.packet["text"]
            assert has(text, words, "shard a", f"stream {name} stops here"), text
            continue
        code, out, err = cat(daemon, name)
        assert code == 1 and err.count("\n") == 1, (name, code, err)
        assert has(err, words, "dataset d: shard a", f"stream {name} stops here, nothing was"), err
        assert out == b"" and daemon.said(words), name
    assert cat(daemon, "sound")[0] == 0, "another stream continues"


@pytest.mark.parametrize("io", ["pread", "auto"])
def test_another_shape_in_a_large_mds_shard_stops_the_stream(place, io):
    """Its sample is as long as all others. No byte of its header is served, read fast or slowly."""
    rows = [numpy.full(600, i, "<i4") for i in range(1000)]
    rows[700] = rows[700][:599].reshape(1, 1, 599)
    mds(place.file("d"), rows, None)
    rows[598] = rows[598][:598].reshape(1, 1, 1, 1, 598)
    mds(place.file("u"), rows, None)
    stream = {"seed": 1, "seq_len": 600, "extra": 0, "datasets": [{"name": "d", "path": "d"}]}
    joined = {**stream, "seq_len": 599, "datasets": [{"name": "u", "path": "u", "shuffle": "none"}]}
    daemon = Daemon(place, place.config(io=io, streams={"rows": stream, "joined": joined}))
    client = Client(daemon.socket).attach(stream="rows", micro=1)
    seen = []
    with pytest.raises(Refused) as refused:
        while True:
            tokens = client.next()
            assert (tokens == tokens[0, 0]).all()
            seen.append(tokens[0, 0])
    words = "must be that of one dimension and 600 tokens of i32"
    assert has(refused.value.packet["text"], "shard shard.00000.mds at token 420000", words)
    assert 9 < len(seen) < 1000 and 700 not in seen
    code, out, err = cat(daemon, "joined", "--start", 599)  # token 1 of sample 598
    assert code == 1 and not out and words in err, (code, out, err)


def rows(path, tokens):
    numpy.save(path + ".npy", tokens.reshape(-1, 64))


def some_rows(path, tokens):
    """All samples of the first shard are as long as a window, but not all of the others."""
    mds(os.path.dirname(path), numpy.split(tokens, [*range(64, 2560, 64), 2600, 3000]), 4096)


def both(first, second):
    return lambda path, tokens: (first(path, tokens), second(path[:-1] + "b", tokens))


as_u32 = put(".npy", lambda tokens: npy(tokens.astype("<u4")))
one_frame = seekable(".bin.zst", raw, 1 << 30)
RANDOM = numpy.random.default_rng(2).integers(0, 50000, 6400).astype("<u2")
PLAIN = numpy.random.default_rng(1).integers(0, 9, 1_500_000).astype("<u2")  # a frame of 3 MB
# name: (writer, its tokens, keys of the stream, keys of the dataset, exit code, words)
CHECKED = {
    "two formats": (both(put(".npy", npy), put(".bin", llmc)), RANDOM, {}, {}, 1,
                    ["b.bin: format is llmc, but that of the first shard, a.npy, is npy"]),
    "two widths": (both(put(".npy", npy), as_u32), RANDOM, {}, {}, 1,
                   ["b.npy: dtype is u32, but that of the first shard, ", ", is u16"]),
    "two columns": (both(arrow, lambda *a: arrow(*a, column="input_ids")), RANDOM, {}, {}, 1,
                    ["b.arrow: column is input_ids, but ", "a.arrow, is tokens", "set column:"]),
    "rows are samples": (rows, RANDOM, {"seq_len": 63}, {}, 0,
                         ["windows of 63 + 1", "100 windows", "0 tokens, 0.000 %"]),
    "rows as a stream": (rows, RANDOM, {"seq_len": 31}, {}, 0, ["6400 tokens, 206 windows"]),
    "rows in some shards": (some_rows, RANDOM, {"seq_len": 63}, {}, 0,
                            ["windows of 63 + 1", "6400 tokens"]),
    "rows do not slide": (rows, RANDOM, {"seq_len": 63}, {"slide": True}, 1,
                          ["slide: its windows are samples of 64"]),
    "a column": (arrow, RANDOM, {}, {}, 0, ["    column tokens\n"]),
    "one frame": (one_frame, PLAIN, {}, {"shuffle": "block"}, 0, ["1 shards"]),
    "over the budget": (one_frame, PLAIN, {}, {"memory": 8 << 20}, 1, ["a.bin.zst", "frame"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_check_tells_what_becomes_of_shards(place, name):
    write, content, stream, dataset, wanted, words = CHECKED[name]
    write(place.file("d", "a"), content)
    memory = dataset.pop("memory", 64 << 20)
    datasets = [{"name": "d", "path": "d", **dataset}]
    streams = {"s": {"seed": 3, "seq_len": SEQ_LEN, **stream, "datasets": datasets}}
    config = place.config(memory=memory, streams=streams)
    code, out, err = run(TOKEND, "--check", "-c", config)
    assert code == wanted and has(out.decode() + err, *words), (code, out, err)
    assert code == 0 or err.count("\n") == 1, err


def test_parts_of_rows_and_of_joined_rows_need_one_seq_len(place):
    mds(os.path.dirname(place.file("d/x", "a")), RANDOM.reshape(-1, 64), None)
    streams = {
        f"s{n}": {"seed": 3, "seq_len": n, "extra": 0, "datasets": [{"name": "d", **dataset}]}
        for n, dataset in ((64, {"path": "d", "part": [0, 0.5]}), (32, {"path": "d/x"}))
    }
    code, _, err = run(TOKEND, "--check", "-c", place.config(streams=streams))
    assert code == 1 and "stream s32 cuts these files with another seq_len" in err, err
