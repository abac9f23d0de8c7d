"""Every format is served from radosgw by windows and by pieces, as from the disk: tokens, document
starts and loss masks; one of each kind from nginx over TLS. A run moves from the disk to a store
and back at any position.
"""

import gzip
import json
import os
import shutil

import numpy
import pytest
import test_formats
from jobs import BUCKET

from lib import TOKCTL, Daemon, run
from lib.corpus import FORMATS, Format, corpus, manifest
from lib.fault_proxy import FaultProxy
from lib.shard_writers import megatron
from lib.stores import Nginx, Radosgw

MICRO, BATCHES = test_formats.MICRO, test_formats.BATCHES


def many_documents(directory, dtype):
    """A .idx that takes several GETs."""
    os.makedirs(directory)
    tokens = numpy.random.default_rng(17).integers(6, 50_000, 300_000).astype(dtype)
    megatron(f"{directory}/x", numpy.split(tokens, len(tokens) // 8), dtype)


ALL = {**FORMATS, "megatron-large": Format("megatron", many_documents, bounds="documents")}


@pytest.fixture(scope="module")
def written(shared):
    """Directories below root/corpus, one a format."""
    place, root = shared, shared.file("root", BUCKET)
    shutil.copytree(corpus()[0], root)
    many_documents(f"{root}/megatron-large", numpy.dtype("<u2"))
    return place


def streams(root, manifests=None, **more):
    """Of all formats, and with annotations of those in the corpus. @more: keys of the dataset."""
    made = {}
    for name, about in ALL.items():
        keys = {**more, **({"manifest": manifests[name]} if manifests else {})}
        made[name] = about.config(f"{root}{name}/", False, **keys)
        if name in FORMATS:
            made[f"{name}-marked"] = about.config(f"{root}{name}/", True, **keys)
    return made


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


def serve_all(place, store, manifests, by):
    cache, more = {}, {}
    if by == "piece":
        cache = {"cache": {"dir": place.file("cache"), "size": 64 << 20}}
        more = {"fetch": "piece", "piece": 64 << 10}
    config = place.config(
        f"{by}.yaml",
        memory=64 << 20,
        socket=place.file(f"{by}.sock"),
        state_dir=place.file(f"{by}.state", ""),
        stores=store.settings,
        streams=streams(store.url, manifests, **more),
        **cache,
    )
    return Daemon(place, config, env=store.environment())


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
        listed = written.file("listed", f"{name}.jsonl")
        manifests[name] = manifest(listed, url, "-c", config, env=env)
    daemons = {by: serve_all(written, radosgw, manifests, by) for by in ("window", "piece")}
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


def test_formats_from_nginx_with_tls(written, local):
    names = ("flat", "zstd", "megatron", "mds-documents", "datatrove")
    with Nginx(written, written.file("root", "")) as store:
        stores = {"https": {"ca": store.ca, "anonymous": True}}
        env, config, about = store.environment(), {}, {}
        for name in names:
            url, here = f"{store.endpoint}/{BUCKET}/{name}/", written.file("root", BUCKET, name)
            about[name] = FORMATS[name].config(here, False)
            config = written.config("https.yaml", stores=stores, streams=about)
            listed = manifest(written.file("here.jsonl"), here)
            more = [url, "-c", config, "--from", listed]
            path = manifest(written.file(f"{name}.jsonl"), *more, env=env)
            about[name] = FORMATS[name].config(url, False, manifest=path)
        own = {"socket": written.file("https.sock"), "state_dir": written.file("https.state", "")}
        config = written.config("https.yaml", memory=64 << 20, stores=stores, streams=about, **own)
        daemon = Daemon(written, config, env=env)
        for name in names:
            assert cat(daemon, name) == local[1][name], name
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
