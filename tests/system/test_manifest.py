"""With a `manifest:`, a dataset has the same order and cursors as without, and no shard is opened
before it is read. A shard that differs from its manifest stops the stream, which names it.
test_formats.py serves all formats with manifests, test_datasets.py has broken ones.
"""

import json
import os
import resource
import shutil

import numpy
import pytest
import xxhash

from lib import TOKCTL, TOKEND, Daemon, has, run, with_parent
from lib.corpus import FORMATS, SEQ_LEN, corpus
from lib.shard_writers import llmc, npy, put, raw

SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens; one shard has less than a window, one has none
WINDOW = SEQ_LEN + 1
BATCHES = 2 * sum(SHARDS) // SEQ_LEN // 4  # almost two epochs
LOCAL = {"flat": (put(".bin", raw), "<u2"), "npy-i32": (put(".npy", npy), "<i4")}


def tokens_of(number, dtype="<u2"):
    return numpy.random.default_rng([7, number]).integers(0, 1 << 15, SHARDS[number]).astype(dtype)


def inspect(*arguments, code=0):
    got, out, err = run(TOKCTL, "inspect", *arguments)
    assert got == code, (arguments, out, err)
    return out


def write_manifest(path, *shards):
    inspect("--manifest", path, *shards)
    return [json.loads(line) for line in open(path)]


@pytest.fixture(scope="module")
def manifests(shared):
    """(directory, manifest, its lines) of each format of the corpus, by name."""
    root, found = corpus()[0], {}
    for name, about in FORMATS.items():
        wide = ["--input-dtype", "u32"] if about.dataset.get("dtype") == "u32" else []
        path = shared.file("corpus", f"{name}.jsonl")
        found[name] = (root / name, path, write_manifest(path, *wide, root / name))
    return found


def digest(tokens):
    """As scan.h defines it."""
    pieces = (tokens[at : at + (1 << 20)] for at in range(0, len(tokens), 1 << 20))
    sums = (
        xxhash.xxh3_64_intdigest(piece.astype("<u4").tobytes(), seed=i)
        for i, piece in enumerate(pieces)
    )
    return f"{sum(sums) % (1 << 64):016x}"


def test_inspect_writes_the_facts(manifests):
    always = {"path", "format", "dtype", "tokens", "size", "digest"}
    for name, (root, _, lines) in manifests.items():
        shards = corpus()[1][name]
        assert [line["path"] for line in lines] == sorted(shards)
        for line in lines:
            tokens = shards[line["path"]].tokens
            assert (line["tokens"], line["digest"]) == (len(tokens), digest(tokens)), (name, line)
            assert line["size"] == os.path.getsize(root / line["path"])
        about = FORMATS[name]
        wanted = {"npy-rows": {"row_tokens"}, "mds": {"sample_tokens"}}.get(name, set())
        wanted |= {"sample_tokens", "frame_bytes"} if name == "mds-zstd" else set()
        wanted |= {"frame_bytes"} if name.startswith("zstd") else set()
        if not name.startswith(("zstd", "arrow", "mds")) and "i64" not in name:
            wanted |= {"data_at"}
        if about.bounds == "listed" or about.name in ("datatrove", "megatron", "mds"):
            wanted |= {"side"}
        got = {key for line in lines for key in line} - always
        assert got - {"data_at"} == wanted - {"data_at"}, name
        assert "data_at" in got or "data_at" not in wanted, name


def test_large_shards_are_digested_in_pieces(place):
    tokens = numpy.random.default_rng(6).integers(0, 50_000, 2_500_000).astype("<u2")
    tokens.tofile(place.file("a", "a.bin"))
    (line,) = write_manifest(place.file("m.jsonl"), place.file("a"))
    assert line["digest"] == digest(tokens)


def test_what_is_no_shard_is_not_listed(data):
    paths = [data.file("data", "flat", f"{i}.bin") for i in (4, 0, 2)]
    names = [line["path"] for line in write_manifest(data.file("some.jsonl"), *paths)]
    assert names == ["0.bin", "2.bin", "4.bin"]  # whatever the order of their names is
    odd = os.fsencode(data.file("odd", "x"))[:-1] + b"\xff.bin"
    with open(odd, "wb") as f:
        f.write(bytes(100))
    none = data.file("none.jsonl")
    for words, *shards in (
        (b"is named twice", paths[0], paths[0]),
        (b"is not UTF-8", data.file("odd")),
    ):
        assert words in inspect("--manifest", none, *shards, code=1)
        assert not os.path.exists(none)
    inspect("--manifest", none, data.file("data", "flat"), data.file("flat.jsonl"), code=2)
    with open(none, "w") as f:
        f.write("before")
    inspect("--manifest", none, data.file("odd"), code=1)
    assert open(none).read() == "before"
    assert [name for name in os.listdir(data.path) if name.startswith("none")] == ["none.jsonl"]


def test_order_is_the_same(shared, manifests):
    """The same cursor, and the same plan with all tokens, in each format."""
    for name, (root, path, _) in manifests.items():
        about = FORMATS[name]
        streams = {
            "with": about.config(str(root), False, manifest=path),
            "without": about.config(str(root), False),
        }
        cursors, plans = [], []
        for stream in streams.values():
            config = shared.config("order.yaml", streams={"s": stream})
            run(TOKCTL, "cursor", "new", "-c", config, "s", "-o", shared.file("cursor"))
            cursors.append(open(shared.file("cursor"), "rb").read())
            rows = ["s", "--from", 7, "--count", 300, "--tokens", "--json"]
            plans.append(run(TOKCTL, "plan", "-c", config, *rows))
        assert cursors[0] == cursors[1] and len(cursors[0]) > 0, name
        assert plans[0] == plans[1] and plans[0][0] == 0, (name, plans[0][2])


def config_of(place, file, listed, **keys):
    streams = {}
    for name in LOCAL:
        dataset = {"name": "d", "path": f"data/{name}"}
        dataset |= {"manifest": f"{name}.jsonl"} if listed else {}
        streams[name] = {"seed": 3, "seq_len": SEQ_LEN, "datasets": [dataset]}
    return place.config(file, streams=streams, **keys)


@pytest.fixture(scope="module")
def data(shared):
    """A Place with two datasets of its own, which tests change, and their manifests."""
    for name, (write, dtype) in LOCAL.items():
        for i in range(len(SHARDS)):
            write(shared.file("data", name, f"{i}"), tokens_of(i, dtype))
        write_manifest(shared.file(f"{name}.jsonl"), shared.file("data", name))
    return shared


@pytest.fixture(scope="module")
def configs(data):
    """The configs with and without manifests."""
    return config_of(data, "with.yaml", True), config_of(data, "without.yaml", False)


def cat(daemon, stream, *more):
    rank = ["--rank", 0, "--world", 1, "--micro", 4, "--batches", BATCHES]
    return run(TOKCTL, "cat", stream, "--socket", daemon.socket, *rank, *more)


def test_check_needs_shards_only_for_its_batch(data, configs):
    """The printed plan is the same when the shards do not exist."""
    with_, without = configs
    code, out, err = run(TOKEND, "--check", "-c", with_)
    assert (code, err) == (0, "") and out.count(b"  read ") == len(LOCAL)
    os.rename(data.file("data"), data.file("away"))
    code, gone, err = run(TOKEND, "--check", "-c", with_)
    os.rename(data.file("away"), data.file("data"))
    assert code == 1 and err.count("No such file or directory\n") == len(LOCAL), err

    def lines(text, among):
        return [line for line in text.decode().splitlines() if among(line)]

    asked = lines(out, lambda line: "its shards are" not in line and "  read " not in line)
    assert asked == lines(gone, lambda line: line in asked)
    tables = [
        lines(text, lambda line: "never served" in line or line.startswith("stream"))
        for text in (gone, run(TOKEND, "--check", "-c", without)[1])
    ]
    assert tables[0] == tables[1] and len(tables[0]) > len(LOCAL)


def test_run_continues_with_and_without(data, configs):
    """A run that began with a manifest continues without one, and the other way round; verify finds
    no fault.
    """
    for pair in (configs, configs[::-1]):
        records, out = [data.file("record-0"), data.file("record-1")], b""
        for i, config in enumerate(pair):
            daemon = Daemon(data, config)
            start = ["--cursor", data.file("at")] if i else ["--start", "begin"]
            keep = ["--cursor-out", data.file("at"), "--record", records[i], "--run", "r"]
            code, more, err = cat(daemon, "flat", *start, *keep)
            assert code == 0, err
            out += more
            daemon.stop()
        rows = ["flat", "--from", 0, "--count", 8 * BATCHES, "--json"]
        _, plan, _ = run(TOKCTL, "plan", "-c", configs[1], *rows)
        places = [
            (int(row["shard"][0]), row["offset"]) for row in map(json.loads, plan.splitlines())
        ]
        assert out == b"".join(tokens_of(i)[at : at + WINDOW].tobytes() for i, at in places)
        code, _, err = run(TOKCTL, "verify", "-c", configs[0], "flat", *records)
        assert code == 0, err
        for record in records:
            os.unlink(record)


# ---- shards that differ from the manifest ----


@pytest.mark.parametrize("mode", ["pread", "auto"])
def test_changed_shard_stops_the_stream(data, mode):
    flat, path = data.file("data", "flat", "2.bin"), data.file("data", "npy-i32", "2.npy")
    config = config_of(data, "stops.yaml", True, io=mode)
    daemon = Daemon(data, config)
    wide = open(path, "rb").read()

    def other_format():
        with open(flat, "wb") as f:  # of the same size
            f.write(llmc(numpy.zeros((2 * SHARDS[2] - 1024) // 2, "<u2")))

    def other_dtype():
        with open(path, "wb") as f:
            f.write(wide.replace(b"'<i4'", b"'<u4'"))

    for change, stream, words in (
        (other_format, "flat", "format is flat in the manifest and llmc in the file"),
        (lambda: os.truncate(flat, 1000), "flat", "size is 24690 in the manifest and 1000 in the"),
        (lambda: os.unlink(flat), "flat", "No such file or directory"),
        (other_dtype, "npy-i32", "dtype is i32 in the manifest and u32 in the file"),
    ):
        change()
        code, _, err = cat(daemon, stream)
        assert code == 1 and err.count("\n") == 1, err
        assert has(err, words, "shard 2.", " at token", "nothing was skipped"), err
        assert daemon.said(words), daemon.log()
    put(".bin", raw)(flat[:-4], tokens_of(2))
    with open(path, "wb") as f:
        f.write(wide)
    for stream in LOCAL:
        code, out, err = cat(daemon, stream)  # once restored, it is served by the same daemon
        assert code == 0 and len(out) > 80_000, err
    assert daemon.stop() == 0


def test_each_shard_is_compared_once(data):
    """With more shards than can be open at once, each is compared with the manifest once, and must
    stay the same file after that.
    """
    for i in range(200):
        data.shard(f"data/many/{i:03}.bin", 300)
    write_manifest(data.file("many.jsonl"), data.file("data", "many"))

    def few_descriptors():
        with_parent()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    got = set()
    rank = ["--rank", 0, "--world", 1, "--micro", 4, "--batches", 200]
    for manifest in {"manifest": "many.jsonl"}, {}:
        for direct in (False, True):
            dataset = {"name": "d", "path": "data/many", **manifest}
            streams = {"many": {"seed": 3, "seq_len": SEQ_LEN, "datasets": [dataset]}}
            config = data.config("many.yaml", streams=streams, direct=direct)
            daemon = Daemon(data, config, preexec_fn=few_descriptors)
            command = [TOKCTL, "cat", "many", *rank, "--socket", daemon.socket]
            code, out, err = run(*command)
            assert code == 0 and len(out) == 800 * WINDOW * 2, err
            got.add(out)
            if manifest:
                path = data.file("data", "many", "100.bin")
                shutil.copy(path, path + "-")
                os.rename(path + "-", path)
                code, _, err = run(*command)
                # Opened again, the shard has another inode; still open, its name leads elsewhere.
                said = "inode was" in err or "removed or replaced while it was open" in err
                assert code == 1 and "100.bin" in err and said, err
            daemon.stop()
    assert len(got) == 1


def test_inspect_compares_with_the_manifest(data):
    """Only --deep finds other tokens of the same number."""
    config, flat = config_of(data, "inspect.yaml", True), data.file("data", "flat")
    shard, path = data.file("data", "flat", "0.bin"), data.file("flat.jsonl")
    before = open(path).read()
    os.unlink(path)  # the config may name the manifest that is to be written
    inspect("-c", config, "--manifest", path, flat)
    assert open(path).read() == before
    inspect("--deep", "-c", config, flat)
    with open(shard, "r+b") as f:
        f.seek(1234)
        byte = f.read(1)[0]
        f.seek(1234)
        f.write(bytes([byte ^ 1]))
    inspect("-c", config, flat)
    out = inspect("--deep", "-c", config, "--json", flat, code=1)
    seen = {line["path"]: line["problems"] for line in map(json.loads, out.splitlines())}
    assert "digest is" in seen[shard][0] and sum(map(len, seen.values())) == 1, seen
    with open(path, "a") as f:
        f.write('{"path":"../x"}\n')
    for command in ([TOKCTL, "inspect", "-c", config, flat], [TOKEND, "--check", "-c", config]):
        code, _, err = run(*command)
        assert code == 1 and "flat.jsonl:6: format is missing" in err and err.count("\n") == 1, err


@pytest.mark.parametrize("more", [[], ["--sums"]])
def test_a_manifest_survives_a_power_cut(place, more):
    """A directory is synced after the last rename in it."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    shard, manifest, trace = place.shard("0.bin", 5000), place.file("to", "m"), place.file("calls")
    follow = ["strace", "-f", "-y", "-e", "trace=fsync,rename", "-o", trace]
    code, _, err = run(*follow, TOKCTL, "inspect", shard, "--manifest", manifest, *more)
    assert code == 0, err
    calls = open(trace).read().splitlines()
    last = max(i for i, call in enumerate(calls) if "rename(" in call)
    assert any(f"<{os.path.dirname(manifest)}>)" in call for call in calls[last:]), calls
