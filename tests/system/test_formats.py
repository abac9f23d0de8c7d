"""The same documents in every format are served as their writers got them: tokens, document starts
and loss masks, in every way of reading, with manifests, and across a kill -9. Shards that are
damaged, or do not belong together, stop a stream or are refused at the start.
"""

import gzip
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

import numpy
import pytest
import pyzstd

from lib import TOKCTL, TOKEND, Client, Daemon, has, run
from lib.corpus import FORMATS, SEQ_LEN, WHOLE, corpus, plan
from lib.shard_cat import read
from lib.shard_writers import arrow, llmc, npy, put, raw, seekable

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds

MICRO, BATCHES = 5, 70  # about two epochs
WINDOW = SEQ_LEN + 1


@pytest.fixture(scope="module")
def written():
    return corpus()


@pytest.fixture(scope="module")
def manifests(shared, written):
    """A manifest for each format."""
    paths = {name: shared.file(f"{name}.jsonl") for name in FORMATS}
    for name, path in paths.items():
        wide = ["--input-dtype", "u32"] if FORMATS[name].dataset.get("dtype") == "u32" else []
        code, _, err = run(TOKCTL, "inspect", "--manifest", path, *wide, written[0] / name)
        assert code == 0, (name, err)
    return paths


def streams(written, manifests=()):
    """For each format a stream with annotations and one without."""
    more = {name: {"manifest": manifests[name]} for name in manifests}
    return {
        name + marked: about.config(str(written[0] / name), bool(marked), **more.get(name, {}))
        for name, about in FORMATS.items()
        for marked in ("", "-marked")
    }


def options(about):
    return ["-t", "u32" if about.width == 4 else "u16"]


@pytest.mark.parametrize("name", FORMATS)
def test_shards_are_what_their_writers_got(written, name):
    about, root = FORMATS[name], written[0] / name
    for shard, want in written[1][name].items():
        seen, tokens = read(root / shard, *options(about))
        inner = [at for at in about.boundaries(want) if 0 < at < len(want.tokens)]
        assert (seen["format"], seen["boundaries"]) == (about.name, inner), shard
        assert numpy.array_equal(tokens, want.tokens), shard


def test_plan_and_inspect_read_all_formats(place, written):
    config = place.config(streams=streams(written))
    for name, about in FORMATS.items():
        wide = ["--input-dtype", "u32"] if about.dataset.get("dtype") == "u32" else []
        code, out, err = run(TOKCTL, "inspect", "--json", *wide, written[0] / name)
        seen = {os.path.relpath(f["path"], written[0] / name): f
                for f in map(json.loads, out.splitlines())}  # fmt: skip
        assert code == 0 and seen.keys() == written[1][name].keys(), (name, err)
        for shard, want in written[1][name].items():
            documents = getattr(want, about.bounds, None)
            if name in ("arrow-lists", "mds-documents"):  # these do not count empty ones
                documents = [d for d in documents if d[0] < d[1]]
            assert seen[shard]["tokens"] == len(want.tokens), (name, shard)
            count = None if documents is None else len(documents)
            assert seen[shard]["documents"] == count, (name, shard)
            stored = f"{about.dtype[1]}{8 * int(about.dtype[2])}"
            assert seen[shard]["dtype"] == stored, (name, shard)
        for row in plan(config, name, 300, "--tokens"):
            want = about.window(written[1][name][row["shard"]], row["offset"], len(row["tokens"]))
            assert row["tokens"] == want[0].tolist(), (name, row)
    _, out, _ = run(TOKCTL, "inspect", written[0] / "datatrove")
    count = len(WHOLE[0].documents)
    assert has(out.decode(), "datatrove", f"{count} documents", "has no tokens"), out


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


def test_a_manifest_says_nothing_of_an_eos(place, written, manifests):
    about = FORMATS["flat"].config(str(written[0] / "flat"), True, manifest=manifests["flat"])
    del about["eos"]
    daemon = Daemon(place, place.config(streams={"s": about}))
    code, _, err = cat(daemon, "s")
    why = "the ends of its documents are unknown: it has no index, and the stream has no eos"
    assert code == 1 and has(err, "dataset d: shard ", why), err
    assert daemon.stop() == 0


@pytest.mark.parametrize("listed", [False, True], ids=["", "manifests"])
def test_rows_are_what_their_writers_got(place, written, manifests, mode, listed):
    io, direct = mode
    about = streams(written, manifests if listed else ())
    config = place.config(io=io, direct=direct, streams=about)
    daemon = Daemon(place, config)
    for name in streams(written):
        check_rows((mode, listed), daemon, config, name, written[1][name.removesuffix("-marked")])
    assert daemon.stop() == 0


def cat(daemon, name, *more, batches=BATCHES):
    arguments = ["--rank", 0, "--world", 1, "--micro", MICRO, "--batches", batches, *more]
    return run(TOKCTL, "cat", name, "--socket", daemon.socket, *arguments)


def test_formats_survive_a_killed_daemon(place, written):
    config = place.config(io="pread", streams=streams(written))
    daemon = Daemon(place, config)
    for name in ("zstd", "npy-headers", "datatrove-marked", "megatron-scattered", "arrow"):
        _, want, _ = cat(daemon, name)
        words = f"{TOKCTL} cat {name} --socket {daemon.socket} --rank 0 --world 1 --slots 4"
        reader = place.spawn(
            [*words.split(), "--micro", str(MICRO), "--batches", str(BATCHES)],
            stdout=subprocess.PIPE,
            pipesize=4096,
        )
        out = os.read(reader.stdout.fileno(), 1)
        daemon.kill()
        daemon.start()
        rest, _ = reader.communicate(timeout=60)
        assert reader.returncode == 0 and out + rest == want and len(want) > 80_000, name
    assert daemon.stop() == 0


# ---- samples of MDS, and padding ----


def test_a_finite_stream_ends_with_padding(place, written):
    """Padding rows have no annotations, although their slots had some before. Without an eos a
    sample of MDS is one document.
    """
    finite = {"samples": 10, "seed": 1, "documents": True, "loss_mask": True}
    about = {
        name: {**FORMATS[name].config(str(written[0] / name), True), **finite}
        for name in ("flat", "mds")
    }
    del about["mds"]["eos"]
    daemon = Daemon(place, place.config(streams=about))
    for name in about:
        client = Client(daemon.socket).attach(stream=name, micro=4, slots=1)
        found, masks = [], []
        for _ in range(3):
            client.wait()
            found += client.row_documents(client.batch)
            masks += client.row_masks(client.batch).tolist()
            rows = client.next()
        assert not rows[2:].any() and rows[:2].any(), name
        assert masks == [[1] * client.window] * 10 + [[0] * client.window] * 2, name
        assert found[10:] == [[], []] and any(found) == (name == "flat"), name
        client.close()
    assert daemon.stop() == 0


def test_a_ring_without_documents_needs_no_memory_for_them(place, written):
    streams = {marked: FORMATS["flat"].config(str(written[0] / "flat"), marked == "marked")
               for marked in ("marked", "plain")}  # fmt: skip
    streams["marked"]["loss_mask"] = False
    daemon = Daemon(place, place.config(streams=streams))
    sizes = {}
    for name in streams:
        client = Client(daemon.socket).attach(stream=name, micro=3, slots=8)
        sizes[name] = [client.feed["meta_bytes"] // 4096, client.feed["data_bytes"]]
        client.close()
    rows = 3 * 8
    plain, more = 4096 + 16 * 8 + 40 * rows, 4 * rows * (1 + WINDOW)
    assert sizes["plain"][0] == -(-plain // 4096)
    assert sizes["marked"][0] == -(-(plain + more) // 4096)  # room for the worst case
    assert sizes["marked"][1] == sizes["plain"][1]
    assert daemon.stop() == 0


# ---- shards that are damaged, or do not belong together ----


def change(name, data):
    """Overwrites the shard's or side file's bytes at an offset; or all of them."""

    def act(directory):
        path = directory.parent / (directory.name + name)
        if not isinstance(data, tuple):
            return path.write_bytes(data)
        with open(path, "r+b") as f:
            f.seek(data[0])
            f.write(data[1])

    return act


def lose(name):
    return lambda directory: os.remove(directory.parent / (directory.name + name))


def replace(name):
    """Another file with the same name, size and bytes."""

    def act(directory):
        path = directory.parent / (directory.name + name)
        shutil.copy(path, f"{path}~")
        os.rename(f"{path}~", path)

    return act


def own(write, tokens):
    """A dataset of one shard, larger than what is already checked at the start."""

    def make(directory):
        directory.mkdir()
        write(str(directory / "a"), tokens)

    return make


MANY = numpy.random.default_rng(2).integers(0, 50000, 600_000).astype("<u2")
NEGATIVE = MANY[:12_000].astype("<i4")
NEGATIVE[6000] = -7
SUMS = {pyzstd.CParameter.checksumFlag: 1}
FOURTH = 34 + 4 * len(WHOLE[0].documents) + 8 * 3  # of an .idx: where its fourth sequence begins
bounds = lambda text: change("/a/0.csv.gz", gzip.compress(text))
another = lambda what: f"its {what} changed after the shard was listed"
gone = lambda what: f"had its {what} when it was listed and has none now"
# name: (format of the corpus, or a shard to write; damage before the start; after it; words)
DAMAGED = {
    "frame": (own(seekable(".bin.zst", raw, 1000, SUMS), MANY),
              change("/a.bin.zst", (12_500, b"\0\0")), None, "frame"),
    "negative": (own(put(".npy", npy), NEGATIVE), None, None, "token 6000 is -7"),
    "batches": (own(arrow, NEGATIVE), None, None, "token 6000 is -7"),
    "sequence": ("megatron-scattered", change("/a/0.idx", (FOURTH, struct.pack("<q", 1 << 40))),
                 None, "1099511627776"),
    "decreasing": ("npy-listed", bounds(b"9,20\n5,9\n"), None,
                   "0.csv.gz:2: start is 5; must be at least 20"),
    "beyond": ("npy-listed", bounds(b"0,5001\n"), None, "0.csv.gz:1: end is 5001; must be at most"),
    "text": ("npy-listed", bounds(b"start,end\n"), None, "0.csv.gz:1: start is 'start'"),
    "value": ("flat-masked", change("-masks/a/0.bin", bytes([2]) * 5000), None,
              " is 2; must be 0 or 1"),
    "no mask": ("datatrove", None, lose("/a/0.ds.loss"), gone("loss mask")),
    "no list": ("olmo", None, lose("/a/0.csv.gz"), gone("list of document bounds")),
    "no index": ("datatrove-u32", None, lose("/a/0.ds.index"), gone("index of documents")),
    "new list": ("zstd-frames", None, change("/a/0.csv.gz", gzip.compress(b"0,9\n")),
                 "had no list of document bounds when it was listed and has one now"),
    "other mask": ("flat-masked", None, replace("-masks/a/0.bin"), another("loss mask")),
    "other list": ("olmo", None, replace("/a/0.csv.gz"), another("list of document bounds")),
    "other index": ("megatron", None, replace("/a/0.idx"), another("index")),
    "other loss": ("datatrove", None, replace("/a/0.ds.loss"), another("index or loss mask")),
}  # fmt: skip


@pytest.mark.parametrize("io", ["pread", "auto"])
def test_damage_stops_the_stream(place, written, io):
    """It is found when a shard is opened, or read. No token after it is served."""
    streams, right = {}, {"negative": NEGATIVE, "batches": NEGATIVE, "frame": MANY}
    for name, (source, before, *_) in DAMAGED.items():
        directory = pathlib.Path(place.file(name))
        if callable(source):
            source(directory)
            streams[name] = FORMATS["flat"].config(str(directory), False, shuffle="none")
        else:
            shutil.copytree(written[0] / source, directory)
            if "label_mask" in FORMATS[source].dataset:
                shutil.copytree(written[0] / f"{source}-masks", f"{directory}-masks")
            streams[name] = FORMATS[source].config(str(directory), True, shuffle="none")
        if before:
            before(directory)
    streams["sound"] = FORMATS["zstd"].config(str(written[0] / "zstd"), True)
    daemon = Daemon(place, place.config(io=io, streams=streams))
    for name, (_, _, after, words) in DAMAGED.items():
        if after:
            after(pathlib.Path(place.file(name)))
        code, out, err = cat(daemon, name)
        told = has(
            err, words, "dataset d: shard a", f"stream {name} stops here, nothing was skipped"
        )
        assert code == 1 and told and err.count("\n") == 1, (name, code, err)
        assert daemon.said(words), name
        at = re.search(r"shard a\S+ at token (\d+): ", err)
        assert after or at, (name, err)
        rows = b""  # nothing before the first shard, which cannot be opened
        if name in right:
            content, starts = right[name], range(0, int(at[1]), SEQ_LEN)
            rows = b"".join(content[i : i + WINDOW].tobytes() for i in starts)
        assert rows.startswith(out), name
        if name in (*right, "sequence"):
            _, _, err = run(TOKCTL, "plan", "-c", daemon.config, name, *PLAN)
            assert words in err, name
    assert cat(daemon, "sound")[0] == 0, "another stream continues"
    code, out, err = run(TOKCTL, "inspect", "--json", place.file("beyond"))
    problems = json.loads(out.splitlines()[0])["problems"]
    assert (code, len(problems)) == (1, 1) and has(problems[0], "0.csv.gz:1: end is 5001"), err
    assert daemon.stop() == 0


PLAN = ["--from", 0, "--count", 100, "--tokens"]


def rows(dtype):
    return put(".npy", lambda tokens: npy(tokens.astype(dtype).reshape(-1, 64)))


def both(first, second):
    def write(path, tokens):
        first(path, tokens)
        second(path[:-1] + "b", tokens)

    return write


as_u32 = put(".npy", lambda tokens: npy(tokens.astype("<u4")))
RANDOM = MANY[:6400]
PLAIN = numpy.random.default_rng(1).integers(0, 9, 1_500_000).astype("<u2")  # one frame of 3 MB
KEYS = {"seq_len": 63}
# name: (writer, its tokens, keys of the stream, keys of the dataset, exit code, words)
CHECKED = {
    "two formats": (both(put(".npy", npy), put(".bin", llmc)), RANDOM, {}, {}, 1,
                    ["b.bin: is llmc, but the first shard, a.npy, is npy"]),
    "two widths": (both(put(".npy", npy), as_u32), RANDOM, {}, {}, 1,
                   ["b.npy: has tokens of 4 bytes, but the first shard, a.npy, has tokens of 2"]),
    "rows are samples": (rows("<u2"), RANDOM, KEYS, {}, 0,
                         ["windows of 63 + 1", "100 windows", "0 tokens, 0.000 %"]),
    "rows without extra": (rows("<u2"), RANDOM, {"seq_len": 64, "extra": 0}, {}, 0,
                           ["100 windows"]),
    "rows as a stream": (rows("<u2"), RANDOM, {"seq_len": 31}, {}, 0,
                         ["6400 tokens, 206 windows"]),
    "rows do not slide": (rows("<u2"), RANDOM, KEYS, {"slide": True}, 1,
                          ["slide: its windows are samples of 64"]),
    "one frame": (seekable(".bin.zst", raw, 1 << 30), PLAIN, {}, {}, 0,
                  ["with shuffle: global each window of", "2929 KiB", "times as much"]),
    "one frame in order": (seekable(".bin.zst", raw, 1 << 30), PLAIN, {}, {"shuffle": "block"}, 0,
                           ["1 shards"]),
    "over the budget": (seekable(".bin.zst", raw, 1 << 30), PLAIN, {}, {"memory": 8 << 20}, 1,
                        ["a.bin.zst", "frame"]),
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
    assert name != "one frame in order" or b"times as much" not in out
