"""Every format is served from radosgw, and from nginx over TLS, by windows and by pieces, as from
the disk: tokens, document starts and loss masks. A run moves from the disk to a store and back at
any position.
"""

import json

import numpy
import pytest
import test_annotations
import test_formats
from jobs import BUCKET

from lib import TOKCTL, Daemon, run
from lib.shard_writers import mds
from lib.stores import Nginx, Radosgw

BATCHES = test_formats.BATCHES
SAMPLES = {"mds": {}, "mds-zstd": {"compression": "zstd"}}
PACKED = {"rows-flat": "flat", "rows-zstd": "zstd"}  # by `tokctl pack --fit`


@pytest.fixture(scope="module")
def written(shared):
    """Directories below root/corpus, one a format, and local manifests."""
    place = shared
    root = place.file("root", BUCKET, "")
    inner = InPlace(place, root)
    test_formats.write_all(inner)
    rows = numpy.random.default_rng(9).integers(0, 1 << 31, (500, 129), dtype=numpy.int32)
    for name, how in SAMPLES.items():
        mds(inner.file(name), rows, 40_000, **how)
    (rows.astype("<u2") % 1000).tofile(place.file("documents.bin"))
    for name, how in PACKED.items():
        options = ["--fit", 129, "--eos", 7, "--format", how]
        code, _, err = run(
            TOKCTL, "pack", place.file("documents.bin"), inner.file(name), *map(str, options)
        )
        assert code == 0, err
    return place


class InPlace:
    """A Place whose files are below a directory."""

    def __init__(self, place, root):
        self.path, self.place = root, place

    def file(self, *parts):
        return self.place.file("root", BUCKET, *parts)


def names():
    keys = {name: more for name, (_, _, more, _) in test_formats.FORMATS.items()}
    return {**keys, **{name: {} for name in (*SAMPLES, *PACKED)}}


def inspect(place, name, out, *arguments, env=None):
    wide = ["--input-dtype", "u32"] if name == "flat-u32" else []
    path = place.file(out, f"{name}.jsonl")
    code, text, err = run(TOKCTL, "inspect", "--manifest", path, *wide, *arguments, env=env)
    assert code == 0, (name, text, err)
    return path


@pytest.fixture(scope="module")
def local(written):
    """The daemon that reads from the disk, and what it serves."""
    streams = {
        name: test_formats.stream(written.file("root", BUCKET, name), **more)
        for name, more in names().items()
    }
    config = written.config("local.yaml", memory=64 << 20, streams=streams)
    daemon = Daemon(written, config)
    served = {name: cat(daemon, name) for name in streams}
    yield daemon, served
    assert daemon.stop() == 0


def cat(daemon, name, *more, batches=BATCHES):
    code, out, err = run(
        TOKCTL, "cat", name, "--socket", daemon.socket, *"--rank 0 --world 1 --micro 4".split(),
        "--batches", batches, *more,
    )  # fmt: skip
    assert code == 0 and len(out) > 0, (name, err)
    return out


def some(place):
    """The streams of a config that only names a store."""
    return {"flat": test_formats.stream(place.file("root", BUCKET, "flat"))}


def serve_all(place, store, environment, manifests, label, by="window"):
    streams = {
        name: test_formats.stream(store.url + f"{name}/", manifest=manifests[name], **more)
        for name, more in names().items()
    }
    cache = {}
    if by == "piece":
        cache = {"cache": {"dir": place.file(f"{label}.cache"), "size": 64 << 20}}
        for about in streams.values():
            about["datasets"][0].update(fetch="piece", piece=64 << 10)
    config = place.config(
        f"{label}.yaml",
        memory=64 << 20,
        **cache,
        socket=place.file(f"{label}.sock"),
        state_dir=place.file(f"{label}.state", ""),
        stores=store.settings,
        streams=streams,
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
    with Radosgw(written) as store:
        store.upload(BUCKET, written.file("root", BUCKET))
        store.settings = {"lab": {"endpoint": store.endpoint}}
        store.url = f"lab://{BUCKET}/"
        yield store


@pytest.fixture(scope="module")
def in_radosgw(written, radosgw):
    """A daemon that reads windows from radosgw, and one that reads pieces, by manifests that
    `inspect` made from a listing.
    """
    env = radosgw.environment()
    config = written.config(
        "lab.yaml", stores={"lab": {"endpoint": radosgw.endpoint}}, streams=some(written)
    )
    manifests = {
        name: inspect(written, name, "listed", "-c", config, f"lab://{BUCKET}/{name}/", env=env)
        for name in names()
    }
    daemons = {
        by: serve_all(written, radosgw, env, manifests, f"radosgw-{by}", by)
        for by in ("window", "piece")
    }
    yield daemons
    for daemon in daemons.values():
        assert daemon.stop() == 0


@pytest.mark.parametrize("by", ["window", "piece"])
def test_every_format_from_radosgw(in_radosgw, local, by):
    same_bytes(in_radosgw[by], local[1], by)


def test_every_format_from_nginx_with_tls(written, local):
    with Nginx(written, written.file("root", "")) as store:
        store.settings = {"https": {"ca": store.ca, "anonymous": True}}
        store.url = f"{store.endpoint}/{BUCKET}/"
        env = store.environment()
        config = written.config("https.yaml", stores=store.settings, streams=some(written))
        manifests = {}
        for name in names():
            here = inspect(written, name, "here", written.file("root", BUCKET, name))
            url = store.url + f"{name}/"
            manifests[name] = inspect(
                written, name, "https", "-c", config, "--from", here, url, env=env
            )
        for by in "window", "piece":
            daemon = serve_all(written, store, env, manifests, f"nginx-{by}", by)
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


def test_annotations_from_radosgw(written, radosgw):
    """As in system/test_annotations.py, whose readers compute them from what the writers got."""
    kinds = [test_annotations.Kind(written, name) for name in test_annotations.KINDS]
    local = written.config("annotated.yaml", streams={kind.name: kind.config() for kind in kinds})
    env, streams = radosgw.environment(), {}
    for kind in kinds:
        radosgw.upload(BUCKET, written.file(kind.name), f"annotated/{kind.name}/")
        url = f"lab://{BUCKET}/annotated/{kind.name}/"
        about = kind.config()
        (dataset,) = about["datasets"]
        dataset["path"] = url + "data/"
        if "label_mask" in dataset:
            dataset["label_mask"] = url + "masks/"
        dataset["manifest"] = written.file("annotated", f"{kind.name}.jsonl")
        streams[kind.name] = about
    lab = {"lab": {"endpoint": radosgw.endpoint}}
    for kind in kinds:
        one = {kind.name: streams[kind.name]}
        config = written.config(f"one-{kind.name}.yaml", stores=lab, streams=one)
        wide = ["--input-dtype", "u32"] if "dtype" in kind.dataset else []
        (dataset,) = streams[kind.name]["datasets"]
        path, url = dataset["manifest"], dataset["path"]
        code, text, err = run(
            TOKCTL, "inspect", "--manifest", path, "-c", config, *wide, url, env=env
        )
        assert code == 0, (kind.name, text, err)
    config = written.config(
        "annotated-lab.yaml", socket=written.file("a.sock"), stores=lab, streams=streams
    )
    daemon = Daemon(written, config, env=env)
    for kind in kinds:
        test_annotations.check_kind("radosgw", daemon, local, kind)
    assert daemon.stop() == 0
