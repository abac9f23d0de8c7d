"""Every format is served from radosgw, and from nginx over TLS, by windows and by pieces, as from
the disk: tokens, document starts and loss masks. A run moves from the disk to a store and back at
any position.
"""

import gzip
import json
import os
import shutil

import numpy
import pytest
import pyzstd
import test_formats
from jobs import BUCKET

from lib import TOKCTL, Daemon, run
from lib.corpus import FORMATS, SEQ_LEN, Format, corpus
from lib.fault_proxy import FaultProxy
from lib.shard_writers import mds, npy, put, raw, seekable
from lib.stores import Nginx, Radosgw

MICRO, BATCHES = test_formats.MICRO, test_formats.BATCHES
PACKED = {f"rows-{how}": Format("flat", None) for how in ("flat", "zstd")}  # by `tokctl pack --fit`
RNG = numpy.random.default_rng(17)


def many_documents(path, tokens):
    """A .idx of several hundred KiB."""
    from megatron.core.datasets.indexed_dataset import _IndexWriter

    lengths = [8] * (len(tokens) // 8)
    tokens[: 8 * len(lengths)].tofile(path + ".bin")
    with _IndexWriter(path + ".idx", tokens.dtype.type) as index:
        index.write(lengths, None, list(range(len(lengths) + 1)))


def of_lengths(path, tokens):
    ends = numpy.cumsum(RNG.integers(1, 400, len(tokens) // 200))
    mds(path, numpy.split(tokens, ends[ends < len(tokens)])[:-1], 400_000)


def large(write):
    def all_(directory, dtype):
        for i, n in enumerate((300_000, 90_001)):
            os.makedirs(f"{directory}/{i}")
            write(f"{directory}/{i}/x", RNG.integers(6, 50_000, n).astype(dtype))

    return all_


LARGE = {  # indexes that take several GETs
    "flat-part": Format("flat", large(put(".bin", raw)), dataset={"part": [0.2, 0.7]}),
    "megatron-large": Format("megatron", large(many_documents)),
    "mds-large": Format("mds", large(of_lengths), "<i4", width=4),
    "zstd-large": Format("flat", large(seekable(".bin.zst", raw, 1 << 15))),
    "zstd-whole": Format("flat", large(put(".bin.zst", lambda t: pyzstd.compress(t.tobytes())))),
    "zstd-i64-large": Format("npy", large(seekable(".npy.zst", npy, 1 << 14)), "<i8", width=4),
}
ALL = FORMATS | LARGE | PACKED


@pytest.fixture(scope="module")
def written(shared):
    """Directories below root/corpus, one a format."""
    place, root = shared, shared.file("root", BUCKET)
    shutil.copytree(corpus()[0], root)
    for name, about in LARGE.items():
        about.write(f"{root}/{name}", numpy.dtype(about.dtype))
    rows = RNG.integers(0, 1000, (500, SEQ_LEN + 1))
    rows.astype("<u2").tofile(place.file("documents.bin"))
    for name in PACKED:
        options = ["--fit", SEQ_LEN + 1, "--eos", 7, "--format", name.removeprefix("rows-")]
        code, _, err = run(TOKCTL, "pack", place.file("documents.bin"), f"{root}/{name}", *options)
        assert code == 0, err
    return place


def inspect(place, name, out, *arguments, env=None):
    wide = ["--input-dtype", "u32"] if ALL[name].dataset.get("dtype") == "u32" else []
    path = place.file(out, f"{name}.jsonl")
    code, text, err = run(TOKCTL, "inspect", "--manifest", path, *wide, *arguments, env=env)
    assert code == 0, (name, text, err)
    return path


def streams(root, marks=("", "-marked"), **more):
    """Of all formats, and with annotations of those in the corpus. @more: keys of the dataset,
    which may be of each format.
    """
    return {
        name + marked: about.config(
            f"{root}{name}/", bool(marked),
            **{k: v[name] if isinstance(v, dict) else v for k, v in more.items()},
        )
        for name, about in ALL.items()
        for marked in marks
        if name in FORMATS or not marked
    }  # fmt: skip


@pytest.fixture(scope="module")
def local(written):
    """The daemon that reads from the disk, and what it serves."""
    root = written.file("root", BUCKET, "")
    config = written.config("local.yaml", memory=64 << 20, streams=streams(root))
    daemon = Daemon(written, config)
    served = {name: cat(daemon, name) for name in ALL}
    yield daemon, served
    assert daemon.stop() == 0


def cat(daemon, name, *more, batches=BATCHES):
    code, out, err = test_formats.cat(daemon, name, *more, batches=batches)
    assert code == 0 and len(out) > 0, (name, err)
    return out


def serve_all(place, store, environment, manifests, label, by, **marks):
    cache, more = {}, {}
    if by == "piece":
        cache = {"cache": {"dir": place.file(f"{label}.cache"), "size": 64 << 20}}
        more = {"fetch": "piece", "piece": 64 << 10}
    config = place.config(
        f"{label}.yaml",
        memory=64 << 20,
        **cache,
        socket=place.file(f"{label}.sock"),
        state_dir=place.file(f"{label}.state", ""),
        stores=store.settings,
        streams=streams(store.url, manifest=manifests, **more, **marks),
    )
    return Daemon(place, config, env=environment)


def same_bytes(daemon, served, by="window"):
    for name, want in served.items():
        out = cat(daemon, name)
        assert out == want, f"{name}: {len(out)} bytes, {len(want)} from the disk"
    code, listed, err = run(TOKCTL, "cache", "ls", "--json", "--socket", daemon.socket)
    cached = [json.loads(line)["pieces"] > 0 for line in listed.splitlines()]
    assert (code, cached) == ((0, [True] * len(served)) if by == "piece" else (1, [])), err


@pytest.fixture(scope="module")
def radosgw(written):
    with Radosgw(written) as store, FaultProxy(store.port) as store.proxy:
        store.upload(BUCKET, written.file("root", BUCKET))
        store.settings = {"lab": {"endpoint": store.proxy.endpoint}}
        store.url = f"lab://{BUCKET}/"
        yield store


@pytest.fixture(scope="module")
def in_radosgw(written, radosgw):
    """A daemon that reads windows from radosgw, and one that reads pieces, by manifests that
    `inspect` made from a listing.
    """
    env, manifests = radosgw.environment(), {}
    for name, about in ALL.items():
        url = f"{radosgw.url}{name}/"
        one = {name: about.config(url, True, manifest=written.file("listed", f"{name}.jsonl"))}
        config = written.config("lab.yaml", stores=radosgw.settings, streams=one)
        manifests[name] = inspect(written, name, "listed", "-c", config, url, env=env)
    daemons = {
        by: serve_all(written, radosgw, env, manifests, f"radosgw-{by}", by)
        for by in ("window", "piece")
    }
    yield daemons
    for daemon in daemons.values():
        assert daemon.stop() == 0


@pytest.mark.parametrize("by", ["window", "piece"])
def test_every_format_from_radosgw(in_radosgw, radosgw, local, by):
    """A side object is read once, however many shards and windows need it."""
    begin = len(radosgw.proxy.requests)
    same_bytes(in_radosgw[by], local[1], by)
    asked = [(r.path, r.range) for r in radosgw.proxy.requests[begin:]]
    sides = [a for a in asked if a[0].endswith((".idx", ".index", "index.json"))]
    assert sides and len(sides) == len(set(sides)), sorted(sides)


def test_doctor_reads_a_window_of_each_dataset(in_radosgw, radosgw):
    daemon = in_radosgw["window"]
    _, out, _ = run(TOKCTL, "doctor", "-c", daemon.config, env=radosgw.environment())
    lines = [line for line in out.decode().splitlines() if "the first window of" in line]
    assert len(lines) == len(streams("")), out


def test_every_format_from_nginx_with_tls(written, local):
    with Nginx(written, written.file("root", "")) as store:
        store.settings = {"https": {"ca": store.ca, "anonymous": True}}
        store.url = f"{store.endpoint}/{BUCKET}/"
        env = store.environment()
        some = {"flat": FORMATS["flat"].config(written.file("root", BUCKET, "flat"), False)}
        config = written.config("https.yaml", stores=store.settings, streams=some)
        manifests = {}
        for name in ALL:
            here = inspect(written, name, "here", written.file("root", BUCKET, name))
            url = store.url + f"{name}/"
            manifests[name] = inspect(
                written, name, "https", "-c", config, "--from", here, url, env=env
            )
        for by in "window", "piece":
            daemon = serve_all(written, store, env, manifests, f"nginx-{by}", by, marks=[""])
            same_bytes(daemon, local[1], by)
            assert daemon.stop() == 0


def test_a_run_moves_from_the_disk_to_the_store_and_back(written, local, in_radosgw):
    daemon, served = local
    for name in ("flat", "zstd", "megatron", "mds-zstd"):
        parts, cursor = [], None
        for i, where in enumerate((daemon, *in_radosgw.values(), daemon)):
            batches = (19, 13, 10, BATCHES - 19 - 23)[i]
            out = written.file(f"{name}.cursor{i}")
            more = ["--cursor", cursor] if cursor else []
            more += ["--cursor-out", out, "--run", f"moves-{name}"]
            parts.append(cat(where, name, *more, batches=batches))
            cursor = out
        assert b"".join(parts) == served[name], name


@pytest.mark.parametrize("by", ["window", "piece"])
def test_annotations_from_radosgw(in_radosgw, local, by):
    """They and the tokens are those that the writers got."""
    for name in FORMATS:
        test_formats.check_rows(by, in_radosgw[by], local[0].config, f"{name}-marked",
                                corpus()[1][name])  # fmt: skip


def test_a_side_object_that_changed_stops_the_stream(in_radosgw, written, radosgw):
    path = "olmo/a/0.csv.gz"
    with open(written.file("root", BUCKET, path), "rb") as file:
        other = gzip.compress(gzip.decompress(file.read())[:-7])
    daemon = in_radosgw["window"]
    daemon.kill()
    radosgw.fill(BUCKET, {path: other})
    daemon.start()
    code, _, err = test_formats.cat(daemon, "olmo-marked")
    assert code == 1 and path in err, err
