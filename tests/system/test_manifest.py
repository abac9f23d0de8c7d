"""With a `manifest:`, a dataset has the same order and cursors as without, and no shard is opened
before it is read. A shard that differs from its manifest stops the stream, which names it. Broken
manifests are refused by line. test_formats.py serves all formats with manifests.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
import xxhash

from lib import TOKCTL, TOKEND, Daemon, has, run
from lib.corpus import FORMATS, corpus, manifest, plan
from lib.shard_writers import llmc

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds


def tokctl(*arguments, code=0):
    got, out, err = run(TOKCTL, *arguments)
    assert got == code, (arguments, out, err)
    return out


def write_manifest(path, shards):
    return [json.loads(line) for line in open(manifest(path, shards))]


# ---- manifests that tokctl writes ----


def digest(tokens):
    """As client/ctl/offline/shards.h defines it."""
    pieces = (tokens[at : at + (1 << 20)] for at in range(0, len(tokens), 1 << 20))
    sums = (
        xxhash.xxh3_64_intdigest(piece.astype("<u4").tobytes(), seed=i)
        for i, piece in enumerate(pieces)
    )
    return f"{sum(sums) % (1 << 64):016x}"


@pytest.mark.parametrize("name", FORMATS)
def test_order_and_facts_are_the_same(place, name):
    """The facts of each shard, and the same cursor and plan with and without a manifest."""
    about, (root, corpora) = FORMATS[name], corpus()
    root, shards, path = root / name, corpora[name], place.file("m.jsonl")
    lines = write_manifest(path, root)
    assert [line["path"] for line in lines] == sorted(shards)
    for line in lines:
        tokens = shards[line["path"]].tokens
        assert (line["tokens"], line["digest"]) == (len(tokens), digest(tokens)), line
        assert line["size"] == os.path.getsize(root / line["path"])
    cursors, plans = [], []
    for more in {"manifest": path}, {}:
        config = place.config(streams={"s": about.config(str(root), False, **more)})
        code, _, err = run(TOKCTL, "cursor", "new", "-c", config, "s", "-o", place.file("cursor"))
        assert code == 0, err
        cursors.append(open(place.file("cursor"), "rb").read())
        plans.append(plan(config, "s", 300, "--tokens"))
    assert cursors[0] == cursors[1] and plans[0] == plans[1]


def test_large_shards_are_digested_in_pieces(place):
    tokens = numpy.random.default_rng(6).integers(0, 50_000, 2_500_000).astype("<u2")
    tokens.tofile(place.file("a", "a.bin"))
    (line,) = write_manifest(place.file("m.jsonl"), place.file("a"))
    assert line["digest"] == digest(tokens)


def test_a_manifest_that_cannot_be_written_stays_as_it_is(place):
    odd, path = place.file("odd", "x"), place.file("none.jsonl")
    Path(os.fsdecode(os.fsencode(odd)[:-1] + b"\xff.bin")).write_bytes(bytes(100))
    Path(path).write_bytes(b"before")
    assert b"is not UTF-8" in tokctl("manifest", place.file("odd"), path, code=1)
    assert open(path).read() == "before"
    for i in range(100):
        Path(place.file("many", f"{i}.bin")).write_bytes(bytes(100))
    with open("/dev/full", "w") as full:
        many = [TOKCTL, "manifest", "--json", place.file("many"), path]
        done = subprocess.run(many, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and has(
        done.stderr, "stdout: No space left", f"{path}: not written"
    )
    assert open(path).read() == "before"
    assert sorted(os.listdir(place.path)) == ["many", "none.jsonl", "odd"]


def test_a_manifest_may_be_in_the_directory_of_its_shards(place):
    Path(place.file("web", "a.bin")).write_bytes(bytes(100))
    path = place.file("web", "m.jsonl")
    tokctl("manifest", place.file("web"), path)
    assert '"a.bin"' in open(path).read() and sorted(os.listdir(place.file("web"))) == [
        "a.bin",
        "m.jsonl",
    ]


def test_a_manifest_survives_a_power_cut(place):
    """A directory is synced after the last rename in it."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    shard, manifest, trace = place.shard("0.bin", 5000), place.file("to", "m"), place.file("calls")
    follow = ["strace", "-f", "-y", "-e", "trace=fsync,rename", "-o", trace]
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # LeakSanitizer traces, too
    code, _, err = run(*follow, TOKCTL, "manifest", shard, manifest, env=env)
    assert code == 0, err
    calls = open(trace).read().splitlines()
    last = max(i for i, call in enumerate(calls) if "rename(" in call)
    assert any(f"<{os.path.dirname(manifest)}>)" in call for call in calls[last:]), calls


# ---- shards that differ from their manifest ----

SHARDS = {"0.bin": 5000, "1.bin": 77, "2.bin": 12_345, "3.bin": 3001}


def config_of(place, **about):
    dataset = {"name": "d", "path": "data", "manifest": "m.jsonl"}
    return place.config(streams={"s": {"seed": 3, "seq_len": 128, "datasets": [dataset]}}, **about)


@pytest.fixture
def data(place):
    """A Place with four shards in a directory and their manifest."""
    for name, tokens in SHARDS.items():
        place.shard(f"data/{name}", tokens)
    write_manifest(place.file("m.jsonl"), place.file("data"))
    return place


def test_check_needs_shards_only_for_its_batch(data):
    """The printed windows are the same when the shards do not exist."""
    config = config_of(data)
    code, out, err = run(TOKEND, "--check", "-c", config)
    assert (code, err) == (0, "") and has(out.decode(), "4 shards", "  read ")
    os.rename(data.file("data"), data.file("away"))
    code, gone, err = run(TOKEND, "--check", "-c", config)
    assert code == 1 and err.count("No such file or directory\n") == 1, err
    windows = [line for line in out.decode().splitlines() if "never served" in line]
    assert windows and all(line in gone.decode() for line in windows), gone


@pytest.mark.parametrize("io", ["pread", "auto"])
def test_changed_shard_stops_the_stream(data, io):
    daemon, path = Daemon(data, config_of(data, io=io)), data.file("data/2.bin")
    before = open(path, "rb").read()
    command = [TOKCTL, "cat", "s", "--socket", daemon.socket, "--rank", 0, "--world", 1]
    command += ["--micro", 4, "--batches", 40]
    other = llmc(numpy.zeros((len(before) - 1024) // 2, "<u2"))  # of the same size
    for change, words in (
        (lambda: Path(path).write_bytes(other), "format is flat in the manifest and llmc in the"),
        (lambda: os.truncate(path, 1000), "size is 24690 in the manifest and 1000 in the"),
        (lambda: os.unlink(path), "No such file or directory"),
    ):
        change()
        code, _, err = run(*command)
        assert code == 1 and err.count("\n") == 1, err
        assert has(err, words, "shard 2.", " at token", "nothing was skipped"), err
        assert daemon.said(words), daemon.log()
    Path(path).write_bytes(before)
    code, out, err = run(*command)  # once restored, it is served by the same daemon
    assert code == 0 and len(out) == 40 * 4 * 129 * 2, err
    assert daemon.stop() == 0


def test_inspect_compares_with_the_manifest(data):
    """Only --deep finds other tokens of the same number."""
    config, root, path = config_of(data), data.file("data"), data.file("m.jsonl")
    before = open(path).read()
    os.unlink(path)  # the config may name the manifest that is to be written
    tokctl("manifest", "-c", config, root, path)
    assert open(path).read() == before
    tokctl("inspect", "--deep", "-c", config, root)
    data.shard("data/0.bin", SHARDS["0.bin"], seed=2)
    tokctl("inspect", "-c", config, root)
    out = tokctl("inspect", "--deep", "-c", config, "--json", root, code=1)
    seen = {line["path"]: line["problems"] for line in map(json.loads, out.splitlines())}
    assert "digest is" in seen[data.file("data/0.bin")][0], seen
    assert sum(map(len, seen.values())) == 1, seen


# ---- broken manifests ----


def line(path="a.bin", **about):
    flat = {"format": "flat", "dtype": "u16", "digest": "0123456789abcdef"}
    whole = {"path": path, **flat, "tokens": 20, "size": 40, **about}
    return json.dumps({k: v for k, v in whole.items() if v is not None}) + "\n"


def check(place, text, words, seq_len=8, **about):
    """The one line of the refusal has the words."""
    Path(place.file("m.jsonl")).write_bytes(text.encode())
    dataset = {"name": "d", "path": "d", "manifest": "m.jsonl", **about}
    streams = {"s": {"seed": 42, "seq_len": seq_len, "datasets": [dataset]}}
    code, _, err = run(TOKEND, "--check", "-c", place.config(streams=streams))
    assert code == 1 and has(err, *words) and err.count("\n") == 1, err


A, B = line(), line("deep/b.bin", tokens=9, size=18)
MANIFESTS = [  # the manifest, words after its name
    (A + '{"path":\n', [":2: invalid JSON at byte 9"]),
    (A + "\0\n", [":2: has no newline within 0 bytes; must be one object and a newline, at most"]),
    ("[]\n", [":1: is an array; must be a JSON object"]),
    ("x" * (1 << 16), [":1: has no newline within 32767 bytes"]),
    ('{"path":"a","path":"b"}\n', ["duplicate object key"]),
    (line(path=None), [":1: Object item not found: path; must have path, format, dtype,"]),
    (line(digest="0123456789ABCDEF"), ["digest is '0123456789ABCDEF'; must be 16 hexadecimal"]),
    (line(tokens=-1), ["has a number that is not an integer of 0 to 2^60 - 1"]),
    (line(tokens="20"), ["Expected integer, got string; must have path, format, dtype,"]),
    (line(tokens=1 << 63), ["too big integer"]),
    (line(sha=1), ["1 object item(s) left unpacked: sha; must have path, format, dtype, tokens"]),
    (line(sample_tokens=9), ["tokens is 20; must be a multiple of sample_tokens, 9, or"]),
    (line(row_tokens=5, sample_tokens=5), ["of row_tokens, 5; one of them must be absent"]),
    (line(frame_bytes=1 << 40), ["frame_bytes is 1099511627776; must be at most", "`memory`"]),
    (line(format="parquet"), ["format 'parquet' is unknown; must be one of: megatron"]),
    (line(dtype="f4"), ["dtype 'f4' is unknown; must be u8, i8"]),
    (line(etag='W/"abc"'), ["; must be a strong ETag (without W/) of up to"]),
    (line(etag="ab c"), ["etag is 'ab c'; must be", "printable characters, without spaces"]),
    (line(data_at=1), ["data_at is 1; must be", "at most 0, so that the tokens fit into size"]),
    (line(data_at=0, frame_bytes=80), ["data_at is 0; must be absent of a compressed shard"]),
    (line(side=[]), ["side is an array; must be an object"]),
    (line(side={"a.idx": 7}), ["side 'a.idx' is an integer; must be [SIZE, \"ETAG\"]"]),
    (line(side={"a.idx": [-1, "e"]}), ["side 'a.idx' is another array"]),
    (line(side={"../a.idx": [7, "e"]}), ["side '../a.idx' is too long, or has a part"]),
    *((line(path), [f":1: path '{path}' is too long, or has a part that is empty, . or"])
      for path in ("/etc/passwd", "../a.bin", "x/../../a.bin", "x//a.bin", "")),
    (line("a\0b"), ["JSON_ALLOW_NUL"]),
    (A + A, [":2: path 'a.bin' does not come after that of the line before; paths"]),
    (B + A, [":2: path 'a.bin' does not come after", "unique, and lines sorted"]),
    (A + line("b", format="npy"), [":2: format is npy, but that of the first shard, a.bin,"]),
    (line(column="ids") + line("b", column="x"), [":2: column is x, but that of the first shard"]),
    ("", [".manifest: ", "m.jsonl: is empty; must list at least one shard; must be a file writ"]),
    ("".join(line(f"{i:02}", tokens=2**60 - 1) for i in range(17)), ["more than 2^64 tokens in"]),
]  # fmt: skip
UNFIT = [  # the words, and keys of a dataset with the manifest A
    (["d/*.bin/a.bin: token 0: No such file"], {"path": "d/*.bin"}),
    (["format is flat, but the config sets npy"], {"format": "npy"}),
    (["dtype is u16, but the config sets u32"], {"dtype": "u32"}),
    ([".manifest: ", "none: No such file or directory; must be a"], {"manifest": "none"}),
    (["all have fewer than 41 tokens"], {"seq_len": 40}),
]


def test_broken_manifests_are_refused(place):
    for text, words in MANIFESTS:
        check(place, text, words)
    for words, about in UNFIT:
        check(place, A, words, **about)


# (the line, keys of the dataset, the window, the words)
DIFFER = [
    (line(tokens=19), {}, 8, "tokens is 19 in the manifest and 20 in the file"),
    (line(sample_tokens=10), {}, 9, "sample_tokens is 10 in the manifest and 0 in the file"),
    (line(column="ids"), {}, 8, "not in the file; if only the manifest is old, write"),
]


@pytest.mark.parametrize("text, about, seq_len, words", DIFFER)
def test_a_shard_that_differs_from_its_manifest_is_not_read(place, text, about, seq_len, words):
    numpy.arange(20, dtype="<u2").tofile(place.file("d/a.bin"))
    check(place, text, [words], seq_len, **about)
