"""With a `manifest:`, a dataset serves the same bytes by the same cursors as without, and opens no
shard before it is read. A shard that differs from its manifest stops the stream, which names it.
"""

import json
import os
import resource
import shutil

import numpy
import pytest

from lib import TOKCTL, TOKEND, Daemon, run, with_parent
from lib.shard_writers import arrow, datatrove, llmc, mds, megatron, npy, put, raw, seekable

SHARDS = [5000, 77, 12_345, 0, 3001]  # tokens; one shard has less than a window, one has none
SEQ_LEN = 128
WINDOW = SEQ_LEN + 1
BATCHES = 2 * sum(SHARDS) // SEQ_LEN // 4  # almost two epochs

# name: (stored dtype, keys, writer)
FORMATS = {
    "flat": ("<u2", {}, put(".bin", raw)),
    "flat-u32": ("<u4", {"dtype": "u32"}, put(".bin", raw)),
    "npy-i32": ("<i4", {}, put(".npy", npy)),
    "npy-i64": ("<i8", {"dtype": "u16"}, put(".npy", npy)),
    "llmc": ("<u2", {}, put(".bin", llmc)),
    "datatrove": ("<u2", {}, datatrove),
    "megatron": ("<u2", {}, megatron),
    "arrow": ("<u2", {}, arrow),
    "zstd": ("<u2", {}, seekable(".bin.zst", raw, 1000)),
}
DIRECTORIES = [*FORMATS, "rows", "mds"]


def tokens_of(number, dtype):
    return numpy.random.default_rng([7, number]).integers(0, 1 << 15, SHARDS[number]).astype(dtype)


def write_all(place):
    for name, (dtype, _, write) in FORMATS.items():
        for i in range(len(SHARDS)):
            write(place.file("data", name, "deep" if i % 2 else "", f"{i}"), tokens_of(i, dtype))
    rows = numpy.random.default_rng(9).integers(0, 1 << 15, (300, WINDOW)).astype("<i4")
    numpy.save(place.file("data", "rows", "a.npy"), rows[:200])
    numpy.save(place.file("data", "rows", "b.npy"), rows[200:])
    mds(place.file("data", "mds"), rows, 40_000)


def write_manifest(place, name):
    more = ["--input-dtype", FORMATS[name][1]["dtype"]] if name == "flat-u32" else []
    code, _, err = run(
        TOKCTL,
        "inspect",
        "--manifest",
        place.file(f"{name}.jsonl"),
        *more,
        place.file("data", name),
    )
    assert code == 0, err
    return [json.loads(line) for line in open(place.file(f"{name}.jsonl"))]


def config_of(place, file, manifests, **keys):
    streams = {}
    for name in DIRECTORIES:
        more = dict(FORMATS[name][1]) if name in FORMATS else {}
        if manifests:
            more["manifest"] = f"{name}.jsonl"
        streams[name] = {
            "seed": 3,
            "seq_len": SEQ_LEN,
            "datasets": [{"name": "d", "path": f"data/{name}", **more}],
        }
    return place.config(file, memory=64 << 20, streams=streams, **keys)


def cat(daemon, stream, *more):
    return run(
        TOKCTL,
        "cat",
        stream,
        "--socket",
        daemon.socket,
        "--rank",
        0,
        "--world",
        1,
        "--micro",
        4,
        "--batches",
        BATCHES,
        *more,
    )


def direct_files(daemon, below):
    """The number of shards open with O_DIRECT, and without."""
    flags = []
    for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
        try:
            if os.readlink(f"/proc/{daemon.pid}/fd/{fd}").startswith(below):
                text = open(f"/proc/{daemon.pid}/fdinfo/{fd}").read()
                flags.append(bool(int(text.split("flags:")[1].split()[0], 8) & os.O_DIRECT))
        except FileNotFoundError:
            pass
    return sum(flags), len(flags) - sum(flags)


def test_inspect_writes_the_facts(data):
    """`inspect --manifest` lists the facts of each shard."""
    place = data
    for name in DIRECTORIES:
        lines = write_manifest(place, name)
        extra = {key for line in lines for key in line} - {
            "path",
            "format",
            "dtype",
            "tokens",
            "size",
            "digest",
        }
        wanted = {"rows": {"row_tokens"}, "mds": {"sample_tokens"}, "zstd": {"frame_bytes"}}.get(
            name, set()
        )
        if name not in ("npy-i64", "arrow", "zstd", "mds"):  # these are not plain
            wanted = wanted | {"data_at"}
        if name in ("datatrove", "megatron", "mds"):
            wanted = wanted | {"side"}
        assert extra == wanted, f"{name}: the other members of its lines"
    paths = [place.file("data", "flat", f"{i}.bin") for i in (4, 0, 2)]
    code, _, err = run(TOKCTL, "inspect", "--manifest", place.file("some.jsonl"), *paths)
    names = [json.loads(line)["path"] for line in open(place.file("some.jsonl"))]
    assert (code, names) == (0, ["0.bin", "2.bin", "4.bin"]), (
        "files named in any order are listed in order"
    )
    code, out, err = run(
        TOKCTL, "inspect", "--manifest", place.file("twice.jsonl"), paths[0], paths[0]
    )
    assert (
        code == 1 and b"is named twice" in out and not os.path.exists(place.file("twice.jsonl"))
    ), ("a file named twice is a problem", (code, out, err))
    odd = os.fsencode(place.file("odd", "x"))[:-1] + b"\xff.bin"
    with open(odd, "wb") as f:
        f.write(bytes(100))
    code, out, _ = run(TOKCTL, "inspect", "--manifest", place.file("odd.jsonl"), place.file("odd"))
    assert code == 1 and b"is not UTF-8" in out, (
        "a name that is not UTF-8 is refused",
        (code, out),
    )


def test_check_needs_shards_only_for_its_batch(data, configs):
    """tokend --check prints the same plan with manifests when the shards do not exist."""
    place, (with_, without) = data, configs
    plans = []
    for config in (without, with_):
        code, out, err = run(TOKEND, "--check", "-c", config)
        assert (code, err) == (0, "") and out.count(b"  read ") == len(DIRECTORIES), config
    plans.append(out.decode())
    os.rename(place.file("data"), place.file("away"))
    code, out, err = run(TOKEND, "--check", "-c", with_)
    os.rename(place.file("away"), place.file("data"))
    plans.append(out.decode())
    assert code == 1 and err.count("No such file or directory\n") == len(DIRECTORIES), err
    said = [
        [
            line
            for line in plan.splitlines()
            if "its shards are" not in line and "  read " not in line
        ]
        for plan in plans
    ]
    assert said[0] == said[1] and len(said[0]) > 2 * len(DIRECTORIES), said
    _, out, _ = run(TOKEND, "--check", "-c", without)
    tables = [
        [line for line in plan.splitlines() if "never served" in line or line.startswith("stream")]
        for plan in (out.decode(), plans[0])
    ]
    assert tables[0] == tables[1], "without manifests"


def test_order_is_the_same(data, configs):
    place, (with_, without) = data, configs
    for name in DIRECTORIES:
        cursors = []
        for config in (with_, without):
            run(TOKCTL, "cursor", "new", "-c", config, name, "-o", place.file("cursor"))
            cursors.append(open(place.file("cursor"), "rb").read())
        assert cursors[0] == cursors[1] and len(cursors[0]) > 0, f"{name}: the same cursor"
        plans = [
            run(TOKCTL, "plan", "-c", c, name, "--from", 7, "--count", 300, "--tokens", "--json")
            for c in (with_, without)
        ]
        assert plans[0] == plans[1] and plans[0][0] == 0, (
            f"{name}: the same plan, tokens and all",
            plans[0][2],
        )
    answers = [
        run(TOKCTL, "when", "-c", c, "flat", "--dataset", "d", "--shard", "2.bin", "--offset", 777)
        for c in (with_, without)
    ]
    assert answers[0] == answers[1] and answers[0][0] == 0 and answers[0][1], (
        "when prints the same",
        answers,
    )


def test_bytes_are_the_same(data, mode):
    place, (mode, direct) = data, mode
    got = {}
    for manifests in (False, True):
        config = config_of(
            place, f"{mode}{direct}{manifests}.yaml", manifests, io=mode, direct=direct
        )
        daemon = Daemon(place, config)
        for name in DIRECTORIES:
            got[name, manifests] = cat(daemon, name)
        if direct and manifests:
            direct_reads = direct_files(daemon, place.file("data", "flat"))[0] > 0
            assert direct_reads or daemon.said("refuses O_DIRECT"), (
                f"{mode}: plain shards are read with O_DIRECT"
            )
            assert direct_files(daemon, place.file("data", "zstd"))[0] == 0, (
                f"{mode}: compressed shards are read without"
            )
        assert daemon.stop() == 0, (
            f"{mode}, direct {direct}, manifests {manifests}: the daemon ends with 0"
        )
    for name in DIRECTORIES:
        one, two = got[name, False], got[name, True]
        assert one == two and one[0] == 0 and len(one[1]) > 80_000, (
            f"{mode}, direct {direct}: {name}: the same bytes",
            (one[2], two[2]),
        )


def test_run_continues_with_and_without(data, configs):
    """A run that began with a manifest continues without one, and the other way round; verify finds
    no fault.
    """
    place, (with_, without) = data, configs
    for first, second in ((with_, without), (without, with_)):
        records = [place.file(f"record-{i}") for i in range(2)]
        out = b""
        for i, config in enumerate((first, second)):
            daemon = Daemon(place, config)
            start = ["--cursor", place.file("at")] if i else ["--start", "begin"]
            code, more, err = cat(
                daemon,
                "flat",
                *start,
                "--cursor-out",
                place.file("at"),
                "--record",
                records[i],
                "--run",
                "r",
            )
            assert code == 0, (f"part {i} of a run is served", err)
            out += more
            daemon.stop()
        code, plan, err = run(
            TOKCTL, "plan", "-c", without, "flat", "--from", 0, "--count", 8 * BATCHES, "--json"
        )
        rows = [
            (int(os.path.basename(row["shard"])[0]), row["offset"])
            for row in map(json.loads, plan.splitlines())
        ]
        want = b"".join(
            tokens_of(i, "<u2")[offset : offset + WINDOW].tobytes() for i, offset in rows
        )
        assert out == want, ("its tokens are the order's", (len(out), len(want)))
        code, _, err = run(TOKCTL, "verify", "-c", with_, "flat", *records)
        assert code == 0, ("verify, with a manifest", err)
        for record in records:
            os.unlink(record)


# ---- shards that differ from the manifest ----


def replace(path, name):
    """Replaces the file with one of the same size, and of another format if possible."""
    size = os.path.getsize(path)
    if name == "flat":
        with open(path, "wb") as f:
            f.write(llmc(numpy.zeros((size - 1024) // 2, "<u2")))
    else:
        os.truncate(path, size - 2)


@pytest.mark.parametrize("mode", ["pread", "auto"])
def test_changed_shard_stops_the_stream(data, mode):
    place = data
    flat = place.file("data", "flat", "2.bin")
    config = config_of(place, "stops.yaml", True, io=mode)
    daemon = Daemon(place, config)

    def told(what, stream, *words):
        code, _, err = cat(daemon, stream)
        good = (
            code == 1
            and all(word in err for word in words)
            and err.count("\n") == 1
            and "nothing was skipped" in err
        )
        assert good, (f"{mode}: {what}", (code, err))
        assert daemon.said(words[0]), (f"{mode}: {what}: the log reports it", daemon.log())

    replace(flat, "flat")
    told(
        "a shard replaced by one of the same size",
        "flat",
        "shard 2.bin at token",
        "format is flat in the manifest and llmc in the file",
    )
    code, _, err = run(
        TOKCTL, "plan", "-c", config, "flat", "--from", 0, "--count", 200, "--tokens"
    )
    assert code == 1 and "format is flat in the manifest and llmc in the file" in err, (
        f"{mode}: plan --tokens reports it too",
        (code, err),
    )
    os.truncate(flat, 1000)
    told(
        "a shard cut short",
        "flat",
        "shard 2.bin at token",
        "size is 24690 in the manifest and 1000 in the file",
    )
    os.unlink(flat)
    told("a shard that is not there", "flat", "shard 2.bin at token", "No such file or directory")
    put(".bin", raw)(flat[:-4], tokens_of(2, "<u2"))
    code, out, err = cat(daemon, "flat")
    assert code == 0 and len(out) > 80_000, (
        f"{mode}: once restored, it is served by the same daemon",
        err,
    )
    path = place.file("data", "npy-i32", "2.npy")
    npy_bytes = open(path, "rb").read()
    with open(path, "wb") as f:  # the same size, other tokens
        f.write(npy_bytes.replace(b"'<i4'", b"'<u4'"))
    told(
        "another dtype",
        "npy-i32",
        "shard 2.npy at token",
        "dtype is i32 in the manifest and u32 in the file",
    )
    with open(path, "wb") as f:
        f.write(npy_bytes)
    assert cat(daemon, "zstd")[0] == 0, f"{mode}: another stream goes on"
    assert daemon.stop() == 0, f"{mode}: the daemon ends with 0"


def test_each_shard_is_compared_once(data):
    """With more shards than can be open at once, each is compared with the manifest once, and must
    stay the same file after that.
    """
    place = data
    for i in range(200):
        place.shard(f"data/many/{i:03}.bin", 300)
    code, _, err = run(
        TOKCTL, "inspect", "--manifest", place.file("many.jsonl"), place.file("data", "many")
    )
    assert (code, err) == (0, ""), "a manifest of 200 shards"

    def few_descriptors():
        with_parent()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    got, cat = (
        [],
        [
            TOKCTL,
            "cat",
            "many",
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            4,
            "--batches",
            200,
            "--socket",
        ],
    )
    for manifest in {"manifest": "many.jsonl"}, {}:
        for direct in (False, True):
            streams = {
                "many": {
                    "seed": 3,
                    "seq_len": SEQ_LEN,
                    "datasets": [{"name": "d", "path": "data/many", **manifest}],
                }
            }
            daemon = Daemon(
                place,
                place.config("many.yaml", streams=streams, direct=direct),
                preexec_fn=few_descriptors,
            )
            code, out, err = run(*cat, daemon.socket)
            assert code == 0 and len(out) == 800 * WINDOW * 2, (
                f"two epochs, {manifest}, direct {direct}",
                err,
            )
            got.append(out)
            if manifest:
                path = place.file("data", "many", "100.bin")
                data = open(path, "rb").read()
                with open(path + "-", "wb") as f:
                    f.write(data)
                os.rename(path + "-", path)
                code, _, err = run(*cat, daemon.socket)
                # Opened again, the shard has another inode; still open, its name leads elsewhere.
                said = "inode was" in err or "removed or replaced while it was open" in err
                assert code == 1 and "100.bin" in err and said, (
                    "a file put in a shard's place, the same to the byte",
                    err,
                )
            daemon.stop()
    assert len(set(got)) == 1, "the bytes are the same with and without a manifest"


def test_inspect_compares_with_the_manifest(data):
    """`inspect -c` compares shards with the manifest; only --deep finds other tokens of the same
    number.
    """
    place = data
    config, shard = config_of(place, "inspect.yaml", True), place.file("data", "flat", "0.bin")
    before = open(place.file("flat.jsonl")).read()
    os.unlink(place.file("flat.jsonl"))
    code, out, err = run(
        TOKCTL,
        "inspect",
        "-c",
        config,
        "--manifest",
        place.file("flat.jsonl"),
        place.file("data", "flat"),
    )
    assert code == 0 and err == "" and open(place.file("flat.jsonl")).read() == before, (
        ("the config may name the manifest that is to be written"),
        (code, out, err),
    )
    code, out, _ = run(TOKCTL, "inspect", "--deep", "-c", config, place.file("data", "flat"))
    assert code == 0, "inspect --deep -c finds no fault"
    with open(shard, "r+b") as f:
        f.seek(1234)
        byte = f.read(1)[0]
        f.seek(1234)
        f.write(bytes([byte ^ 1]))
    code, out, _ = run(TOKCTL, "inspect", "-c", config, place.file("data", "flat"))
    assert code == 0, "without --deep an altered token is not found"
    code, out, _ = run(
        TOKCTL, "inspect", "--deep", "-c", config, "--json", place.file("data", "flat")
    )
    seen = {json.loads(line)["path"]: json.loads(line)["problems"] for line in out.splitlines()}
    assert code == 1 and "digest is" in seen[shard][0] and sum(map(len, seen.values())) == 1, (
        "--deep finds it",
        seen,
    )
    with open(place.file("flat.jsonl"), "a") as f:
        f.write('{"path":"../x"}\n')
    code, out, err = run(TOKCTL, "inspect", "-c", config, place.file("data", "flat"))
    assert code == 1 and "flat.jsonl:6: format is missing" in err and err.count("\n") == 1, (
        "a broken manifest is reported in one line",
        err,
    )
    code, out, err = run(TOKEND, "--check", "-c", config)
    assert code == 1 and "flat.jsonl:6: format is missing" in err and err.count("\n") == 1, (
        "by --check too",
        err,
    )


@pytest.fixture(scope="module")
def data(shared):
    """A Place with a directory of shards and a manifest for each format."""
    write_all(shared)
    for name in DIRECTORIES:
        write_manifest(shared, name)
    return shared


@pytest.fixture(scope="module")
def configs(data):
    """The configs with and without manifests."""
    return config_of(data, "with.yaml", True), config_of(data, "without.yaml", False)


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
