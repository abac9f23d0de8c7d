"""A dataset is what its path names: files, a directory, or a pattern. Files that do not belong
together are refused by name, with the key of the config. test_manifest.py has manifests.
"""

import json
import os

import numpy
import pyarrow as pa
import pytest

from lib import TOKCTL, TOKEND, has, run, shard_writers

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds

CODE = json.dumps({"chunks": []}).encode()
TEXT = b"# The shards of web\n\nTokenized by someone else.\n"
LOSSES, DOCUMENTS = {"loss_mask": True}, {"documents": True}
EOS = {**DOCUMENTS, "eos": 3}


def write(place, **files):
    """Files by name: their bytes, or a number of zeros."""
    for name, content in files.items():
        with open(place.file(name), "wb") as f:
            f.write(bytes(content) if isinstance(content, int) else content)


def config(place, datasets, **keys):
    named = [{"name": name, **about} for name, about in datasets.items()]
    stream = {"seed": 42, "seq_len": 8, **keys, "datasets": named}
    return place.config(streams={"train": stream})


def opened(place, **keys):
    """It is accepted. Returns what --check prints."""
    code, out, err = run(TOKEND, "--check", "-c", config(place, **keys))
    assert code == 0, err
    return out.decode()


def refused(place, *words, **keys):
    """It is refused in one line."""
    code, _, err = run(TOKEND, "--check", "-c", config(place, **keys))
    assert code == 1 and has(err, *words) and err.count("\n") == 1, err


def one(path, **keys):
    return {"d": {"path": path, **keys}}


# ---- files that come twice ----


def test_files_that_come_twice_are_remarked(place):
    """By links in a dataset, or in two: not one path in two streams, nor parts without overlap."""
    write(place, **{f"s/{i}.bin": 4000 + 2 * i for i in range(3)})
    assert run(TOKCTL, "manifest", place.file("s"), place.file("m"))[0] == 0
    os.makedirs(place.file("l/a"))
    os.link(place.file("s/1.bin"), place.file("l/a/1.bin"))
    for at in "l/a/2.bin", "l/a/3.bin":
        os.symlink(place.file("s/2.bin"), place.file(at))

    def said(*streams):
        keys = {"seed": 1, "seq_len": 8}
        named = [[{"name": f"d{i}", **d} for i, d in enumerate(stream)] for stream in streams]
        streams = {f"t{i}": {**keys, "datasets": stream} for i, stream in enumerate(named)}
        code, out, err = run(TOKEND, "--check", "-c", place.config(streams=streams))
        assert code == 0, err
        return [x for x in out.decode().splitlines() if "same file" in x or "overlaps" in x]

    whole, some, above = {"path": "s"}, {"path": "s/[0-9].bin"}, {"path": "[s]"}
    one, most, rest = {"path": "s/2.bin"}, {**whole, "part": [0, 0.5]}, {**whole, "part": [0.5, 1]}
    for streams, words in (
        ([[{"path": "l/a"}]], "d0: shard 3.bin is the same file as 2.bin (1 of 3 shards"),
        ([[whole, {"path": "l/a"}]], "1.bin is the same file as 1.bin of dataset d0 (3 of 3 sh"),
        ([[whole, some]], "d1: shard 0.bin is the same file as 0.bin of dataset d0 (3 of 3 shards"),
        ([[whole], [one]], "d0: shard 2.bin is the same file as 2.bin of dataset d0 of stream"),
        ([[whole], [some], [whole]], None),
        ([[most, rest], [most, {**rest, **above}]], None),
        ([[{**most, "manifest": "m"}], [above]], "overlaps [0, 0.5] of dataset d0 of stream t0"),
    ):
        lines = said(*streams)
        assert words in "".join(lines) if words else not lines, lines


# ---- paths ----


NAMES = ["B.bin", "a-b.bin", "a.bin", "a/b.bin", "a/c/d.npy", "a0.bin", "é.bin"]
PATHS = {
    "d/": NAMES,  # sorted byte by byte, without hidden ones
    "./d//a*.bin": ["a-b.bin", "a.bin", "a0.bin"],
    "e/*/t/*.bin": ["1/t/a.bin", "2/t/a.bin"],
    "e/[12]": ["1/t/a.bin", "2/t/a.bin", "2/u/a.bin"],
    "l/a[1]*.bin": ["a[1]*.bin"],  # a path that exists is not a pattern
    "links": ["c.bin", "dir/b.bin", "file.bin"],
    "sides": ["0_a.ds", "part-0.npy", "sub/b.ds.zst"],
    "counts": ["web/a.arrow"],
    "mds": ["s.0.mds", "s.2.mds.zst", "s.3.mds.br"],
}


@pytest.fixture(scope="module")
def tree(shared):
    hidden = (".x.bin", ".h/x.bin", "a/.x")
    write(shared, **{f"d/{name}": 100 for name in (*NAMES, *hidden)})
    write(shared, **{f"e/{name}": 100 for name in ("1/t/a.bin", "2/t/a.bin", "2/u/a.bin", "3/t")})
    write(shared, **{"l/a[1]*.bin": 100, "l/a1.bin": 100, "far/a.bin": 100, "far/deep/b.bin": 100})
    write(shared, **{"links/c.bin": 100, "counts/meta/combined_counts.csv": b"x"})
    os.symlink("../far/a.bin", shared.file("links/file.bin"))
    os.symlink("../far/deep", shared.file("links/dir"))
    sides = ["0_a.ds", "0_a.ds.index", "0_a.ds.loss", "a.ds.metadata", "part-0.csv.gz"]
    write(shared, **{f"sides/{name}": 0 for name in [*sides, "sub/b.ds.index"]})
    write(shared, **{f"mds/s.{name}": 0 for name in ("0.mds", "2.mds.zst")})
    write(shared, **{"mds/s.3.mds.br": 0, "mds/index.json": b"{}"})
    with pa.ipc.new_file(shared.file("counts/web/a.arrow"), pa.schema([("tokens", "u4")])):
        pass
    write(
        shared, **{"sides/part-0.npy": 100, "sides/sub/b.ds.zst": b"\x28\xb5\x2f\xfd\x20\0\1\0\0"}
    )
    return shared


@pytest.mark.parametrize("path", PATHS)
def test_a_path_names_shards_in_order(tree, path):
    if path in ("sides", "counts", "mds"):  # most of these have no windows
        _, out, _ = run(TOKCTL, "inspect", "--json", tree.file(path))
        seen = [
            os.path.relpath(json.loads(line)["path"], tree.file(path)) for line in out.splitlines()
        ]
    else:
        about = config(tree, one(path, shuffle="none"), epochs=1)
        code, out, err = run(
            TOKCTL, "plan", "-c", about, "train", "--from", 0, "--count", 500, "--json"
        )
        assert code == 0, err
        seen = list(dict.fromkeys(json.loads(line)["shard"] for line in out.splitlines()))
    assert seen == PATHS[path]


def test_the_index_of_mosaic_lists_all_shards_of_a_dataset(place):
    """One in the directory above, too."""
    for name in "ab":
        shard_writers.mds(place.file(name), numpy.ones((9, 9), "<i4"), None)
    about = json.load(open(place.file("a/index.json")))
    about["shards"][0]["raw_data"]["basename"] = "a/shard.00000.mds"
    write(place, **{"index.json": json.dumps(about).encode()})
    opened(place, datasets=one("a"))
    refused(place, "is not among the 1 shards of ", datasets=one("b"))


def test_rows_that_are_joined_are_remarked(place):
    """Because of a shard, or of the extra token."""
    for name, shape in (("a", (9, 8)), ("b", (1, 5))):
        shard_writers.mds(place.file(f"d/{name}"), numpy.ones(shape, "<i4"), None)
    numpy.save(place.file("n.npy"), numpy.ones((9, 8), "<u2"))
    for path, extra, words in (
        ("d", 0, "(b/shard.00000.mds differs from the first); so all are joined"),
        ("n.npy", 1, "to make each a window, set seq_len: 8 and extra: 0"),
        ("d/a", 0, None),
        ("n.npy", 0, None),
    ):
        said = opened(place, datasets=one(path), extra=extra)
        assert words in said if words else "joined" not in said, said


def test_what_mosaic_does_not_say(place):
    """The type of raw values, what another column means, and without an index which exist."""
    columns = dict.fromkeys(("tokens", "labels"), "bytes")
    with shard_writers.mds_writer()(columns=columns, out=place.file("w")) as writer:
        for _ in range(99):
            ids = numpy.random.randint(1, 50_000, 99).tobytes()  # int64
            writer.write(dict.fromkeys(columns, ids))
    assert "column labels is not used" in opened(place, datasets=one("w"))
    refused(place, "shard.00000.mds looks like int64", datasets=one("w", dtype="u16"))
    os.rename(place.file("w/shard.00000.mds"), place.file("v.mds"))
    assert "no index.json lists the shards" in opened(place, datasets=one("v.mds", column="labels"))


def test_directories_that_hugging_face_saved(place):
    """The JSON files are skipped. A cached result of map(), and all splits at once, are refused."""
    ids = pa.array([[1] * 99], pa.list_(pa.int32()))
    lists = pa.record_batch({"input_ids": ids, "labels": ids})

    def save(name):
        with pa.ipc.new_stream(place.file(name), lists.schema) as out:
            out.write(lists)

    for split in ("train", "test"):
        save(f"d/{split}/data-00000-of-00001.arrow")
        write(place, **{f"d/{split}/{n}.json": b"{}" for n in ("dataset_info", "state", ".part-0")})
    said = opened(place, datasets={"a": {"path": "d/train"}, "b": {"path": "d"}})
    assert "column labels is not used: if there is padding or a prompt, it is trained on" in said
    _, _, said = run(TOKCTL, "pack", place.file("d/train"), place.file("p"), "--format", "flat")
    assert "column labels is not used" in said and "has not finished an output in" in said
    write(place, **{"d/dataset_dict.json": b'{"splits": ["train", "test"]}'})
    refused(place, "dataset_dict.json: is a list of splits", "set path:", datasets=one("d"))
    save("d/train/cache-0123.arrow")
    save("d/train/code/x.arrow")  # sorts between them
    refused(place, "is a cached result of Hugging Face's datasets", datasets=one("d/train"))
    save("d/train/cache-4567_00000_of_00002.arrow")
    refused(place, "set a pattern that matches only one", datasets=one("d/train/cache-*.arrow"))
    opened(place, datasets={p: {"path": f"d/train/{p}*.arrow"} for p in ("data", "cache-4567")})


PATH, LABELS = "streams.train.datasets[0].path: ", "streams.train.datasets[0].label_mask: "
FILES = {
    "a.bin": 40, "d.bin": 42, "x.tokens": 40, "gone/a.bin": 40, "loop/in/a.bin": 40,
    "short/a.bin": 14, "short/b.bin": 16, "short/c.bin": 0, "text/x/1.bin.zst": 40,
    "text/NOTES.txt": TEXT, "lit/1.bin": 40, "lit/index.json": CODE, "i/a.ds": 40, "i/b.ds": 40,
    "i/a.ds.loss": 20, "i/a.ds.index": (7).to_bytes(8, "little") + (20).to_bytes(8, "little"),
    "k/a.npy": 40, "k/b.npy": 40, "k/b.csv.gz": 0, "ds/c.ds.index": 8, "ds/b.bin": 40,
    "csv/meta/combined_counts.csv": b"x", "csv/b.bin": 40, "masks/short/a.bin": 19,
    "masks/npy/a.bin": 148, "m/a.bin": 40, "lower/a.bin": 40,
    "lower/m/a.bin": 20, "many/a.bin": 40, "many/a.bin.zst": 40, "raw/a.mds": 9,
    "raw/a.mds.zstd": 9, "z/b.zst": 9, "z/b.zstd": 9,
    **{f"saves/1-of-2/x-0000{i}-of-0000{n}.bin": 40 for n in (2, 3) for i in range(n)},
}  # fmt: skip
REFUSED = [  # (path, words, keys of the dataset, keys of the stream)
    ("nix", [PATH, "nix: No such file or directory; must be a readable file, a directory or"]),
    ("*.xyz", [PATH, "*.xyz: no shards found; must have at least one"]),
    ("short/**/*.bin", [PATH, "** would match one level only; name the directory, which is read"]),
    ("saves", ["1-of-2/x-00000-of-00003.bin: is by its name of another save of the dataset than "
               "1-of-2/x-00000-of-00002.bin, so its tokens would be served twice;"]),
    ("gone", ["gone/gone.bin: No such file"]),
    ("loop", ["loop/in/back/", "a link in it leads to a directory that contains it; remove"]),
    ("short", [PATH, "all have fewer than 9 tokens", "weight 0"]),
    ("d.bin", [PATH, "42 bytes is not a multiple of 4 (dtype u32); set dtype: u16?"],
     {"dtype": "u32"}),
    ("a.bin", ["streams.train.eos: 65536 does not fit u16"], {}, {**DOCUMENTS, "eos": 65536}),
    ("a.bin", ["streams.train.documents: ", "shard a.bin, of format flat, has no index; set eos"],
     {}, DOCUMENTS),
    ("i", [PATH, "b.ds: has no list of where documents start, unlike the first shard, a.ds; all"],
     {}, EOS),
    ("i", [PATH, "b.ds: has no loss mask, unlike the first shard, a.ds; all"], {}, LOSSES),
    ("k", [PATH, "b.npy: has a list of document bounds, unlike the first", "a.npy"], {}, LOSSES),
    ("x.tokens", [PATH, "has no known format", "move it away, or", "set `format: flat`"]),
    ("a.bin", [".format: 'parquet' is unknown; must be auto or"], {"format": "parquet"}),
    ("pipe.bin", [PATH, "is not a regular file; a shard must be one"]),
    ("text", ["NOTES.txt: is text, not a shard", "set a pattern that matches only the shards"]),
    ("lit", ["index.json: is a Mosaic index by its name", "(.mds) is not among", "a pattern"]),
    ("ds", ["c.ds.index: is a datatrove index, but its shard (.ds) is not among"]),
    ("csv", ["is a table of counts, but its shard"]),
    *((path, [f"/{packed}: exists also as {other}, so its"]) for path, packed, other in (
        ("many", "a.bin.zst", "a.bin"), ("raw", "a.mds.zstd", "a.mds"), ("z", "b.zstd", "b.zst"))),
    *(("m/a.bin", [PATH, *words], {"label_mask": f"masks/{mask}"}, LOSSES) for mask, *words in (
        ("none", "has no loss mask: ", "masks/none/a.bin does not exist; label_mask must have"),
        ("short", "its loss mask: its size is 19 bytes; must be 20, one for each token"),
        ("npy", "its size is 148 bytes; must be 20, one for each token of the shard, without a"),
    )),
    ("lower", [LABELS, "m/a.bin is in it and also in path; must be a directory outside path"],
     {"label_mask": "lower/m/"}, LOSSES),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(shared):
    write(shared, **FILES)
    os.mkfifo(shared.file("pipe.bin"))
    os.symlink("nowhere", shared.file("gone/gone.bin"))
    os.symlink("../../loop", shared.file("loop/in/back"))
    return shared


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row[0]}: {row[1][-1][:20]}")
def test_what_is_no_dataset_is_refused(files, row):
    path, words, about, keys = [*row, {}, {}][:4]
    refused(files, *words, datasets=one(path, **about), **keys)


def test_schedules_that_a_dataset_cannot_follow_are_refused(files):
    """In the words of the key that causes it."""
    two = {"a": {"path": "short", "weight": 0}, "b": {"path": "a.bin"}}
    steps = [{"at": 1024, "weights": {"a": 1}}]
    refused(files, PATH + "no shard is as long", datasets=two, schedule=steps)
    two = {"a": {"path": "a.bin", "max_epochs": 1}, "b": {"path": "d.bin", "max_epochs": 2}}
    refused(files, "max_epochs: no dataset is left from position", datasets=two)


def test_datasets_of_several_widths(files):
    """The widest dataset sets the width of the stream."""
    seen = opened(files, datasets={
        "a": {"path": "a.bin"}, "b": {"path": "m", "dtype": "u32"},
        "c": {"path": "short", "weight": 0}, "d": {"path": "x.tokens", "format": "flat"},
    })  # fmt: skip
    assert has(
        seen, "4 bytes a token", "a: 1 shards, 20 tokens", "b: 1 shards, 10 tokens",
        "c: 3 shards, 15 tokens, 0 windows", "d: 1 shards, 20 tokens",
    )  # fmt: skip
    for keys in (DOCUMENTS, LOSSES):
        said = opened(files, datasets=one("i/a.ds"), **keys)
        assert ("have loss masks, but the tokens" in said) == (keys is DOCUMENTS), said
    opened(files, datasets={"k": {"path": "k/a.npy"}, "i": {"path": "i/a.ds"}}, **LOSSES)


def test_the_first_of_many_bad_shards_is_named(place):
    """They are opened by several threads."""
    write(place, **{f"d/{i:04}.bin": 40 if i not in (301, 302, 700) else 41 for i in range(1000)})
    for _ in range(5):
        refused(place, "d/0301.bin: 41 bytes is not a multiple", datasets=one("d"))
