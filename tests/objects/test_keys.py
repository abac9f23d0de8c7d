"""Keys with characters that need percent-encoding: four servers verify the signatures of GETs of
them, so wire and signature have one encoding. Hosts, and URLs that cannot be used.
"""

import json
import os
import socket

import pytest
from jobs import BUCKET, stream

from lib import REPO, TOKCTL, Daemon, Place, run
from lib.stores import Hadro, Moto, Nanio, Radosgw, files_below

CAT = REPO / "build/gcc/check/store-cat"
NAMES = [
    "a b", "a+b", "a=b&c", "a?b", "a~b", "ü", "日本", "a%20b", "a%2Fb", "a#b", "(a)!*'", "a:b@c",
    "a;b,c", "$a", "[a]", "{a}", "a^b`c|d", "deep/er/and/er", "x" * 200 + "/" + "y" * 200, "-._",
]  # fmt: skip


@pytest.fixture(scope="module")
def shards():
    with Place() as place:
        for i, name in enumerate(NAMES):
            place.shard(f"root/{BUCKET}/d/{name}.bin", 3000 + i, seed=i)
        yield place


@pytest.mark.parametrize("kind", [Radosgw, Moto, Hadro, Nanio])
def test_unusual_keys(place, shards, kind):
    root = shards.file("root", "")
    names = [name for name in NAMES if kind is not Nanio or "%" not in name]  # it decodes twice
    with kind(place, root) if kind is Hadro else kind(place) as store:
        if kind is not Hadro:
            objects = dict(files_below(root + BUCKET))
            store.fill(BUCKET, {f"d/{name}.bin": objects[f"d/{name}.bin"] for name in names})
        lab = {"lab": {"endpoint": store.endpoint}}
        url, manifest = f"lab://{BUCKET}/d/", place.file("d.jsonl")
        env = store.environment()
        some = {"some": stream(os.path.join(root, BUCKET, "d"))}
        config = place.config("inspect.yaml", stores=lab, streams=some)
        code, out, err = run(TOKCTL, "manifest", url, manifest, "-c", config, env=env)
        assert code == 0, (out, err)
        listed = {json.loads(line)["path"] for line in open(manifest)}
        assert listed == {f"{name}.bin" for name in names}
        in_order = {"shuffle": "none"}
        remote = place.config(
            stores=lab,
            memory=64 << 20,
            streams={"train": stream(url, manifest=manifest, dataset=in_order, epochs=1)},
        )
        for name in set(NAMES) - set(names):
            os.remove(os.path.join(root, BUCKET, "d", f"{name}.bin"))
        local = place.config(
            "local.yaml",
            socket=place.file("local.sock"),
            state_dir=place.file("local", ""),
            streams={"train": stream(os.path.join(root, BUCKET, "d"), dataset=in_order, epochs=1)},
        )
        served = []
        for config, keys in ((remote, {"env": env}), (local, {})):
            daemon = Daemon(place, config, **keys)
            code, out, err = run(
                TOKCTL, "cat", "train", "--socket", daemon.socket, *"--rank 0 --world 1".split(),
                "--micro", 4,
            )  # fmt: skip
            assert code == 0, err
            served.append(out)
            assert daemon.stop() == 0
        assert served[0] == served[1] and len(served[0]) > len(NAMES) * 4000


HOSTS = [
    ("s3://corpus/x", {}, "corpus.s3.us-east-1.amazonaws.com:443"),
    ("s3://corpus/x", {"AWS_REGION": "cn-north-1"}, "corpus.s3.cn-north-1.amazonaws.com.cn:443"),
    ("s3://corpus/x", {"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-west-1"},
     "corpus.s3.eu-west-1.amazonaws.com:443"),
    ("s3://my.corpus/x", {"AWS_ENDPOINT_URL": "https://minio.lab:9000"}, "minio.lab:9000"),
    ("s3://corpus/x", {"AWS_ENDPOINT_URL": "https://a", "AWS_ENDPOINT_URL_S3": "https://s3.lab/"},
     "s3.lab:443"),
    ("near://corpus/x", {"AWS_ENDPOINT_URL_S3": "https://s3.lab/"}, "corpus.near.lab:8443"),
    ("far://a.b.c/x", {}, "s3.us-east-1.amazonaws.com:443"),
    ("gs://corpus/x", {}, "storage.googleapis.com:443"),
    ("https://Data.example.org:8443/a", {}, "Data.example.org:8443"),
]  # fmt: skip


def test_hosts(place):
    """By URL, config and environment: what a proxy is asked for."""
    near = {"endpoint": "https://near.lab:8443", "style": "virtual"}
    config = place.config(
        stores={"far": {"style": "path"}, "near": near}, streams={"some": stream("web")}
    )
    base = Moto(place).environment()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        base |= {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        for url, more, host in HOSTS:
            env = {k: v for k, v in {**base, **more}.items() if v}
            reader = place.spawn([CAT, "-c", config, "load", url], env=env)
            proxy.settimeout(20)
            with proxy.accept()[0] as asked:
                assert asked.recv(4096).startswith(f"CONNECT {host} ".encode()), (url, more)
                reader.kill()  # before it connects again
                reader.wait()


@pytest.mark.parametrize(
    "url, words",
    [
        ("s3://AKIA:SECRET@corpus/web/", "without user, password or port"),
        ("s3://a/x", "3 to 63"),
        ("https:///a", "no valid host"),
        ("https://example.org:0/a", "no valid host"),
        ("s3://corpus/a\nb", "control characters"),
        ("s3://corpus/" + "k" * 1025, "1024"),
        ("averyveryveryveryveryverylongscheme://b/", "unknown"),
        ("s3://corpus/x", "AWS_ENDPOINT_URL_S3"),
    ],
)
def test_urls_that_cannot_be_used(place, url, words):
    named = {words: "minio:9000"} if words.startswith("AWS") else {}
    code, out, err = run(CAT, "load", url, env=Moto(place).environment(**named))
    assert (code, out, err.count("\n")) == (1, b"", 1), (code, out, err)
    assert words in err and "SECRET" not in err, err
