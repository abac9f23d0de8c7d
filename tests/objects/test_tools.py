"""tokctl reads stores without a daemon: `inspect` and its manifests, `pack`, `plan`, `verify`. Each
problem of a store is one line.
"""

import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time

import numpy
import pytest

from lib import TOKCTL, TOKEND, Client, Daemon, Place, Refused, has, run
from lib.corpus import FORMATS, SEQ_LEN, corpus
from lib.fault_proxy import Fault, FaultProxy
from lib.stores import Moto, Nginx, files_below, make_certificates
from lib.wait import wait_for

WINDOW = SEQ_LEN + 1
NAMES = [
    "flat", "npy", "npy-i64", "npy-i32", "llmc", "olmo", "datatrove", "megatron", "arrow", "zstd",
    "mds",
]  # fmt: skip
LARGE = 5 * (1 << 20) // 2  # tokens: two and a half units of the digest


class Scene:
    def __init__(self, place, store, proxy):
        self.place, self.store, self.proxy = place, store, proxy
        self.env = store.environment(AWS_ENDPOINT_URL_S3=proxy.endpoint)

    def file(self, *parts):
        return self.place.file(*parts)

    def data(self, name):
        return self.file("data", name)

    def tokctl(self, *arguments, **more):
        """(exit status, stdout lines, stderr lines)"""
        env = {**self.env, **more}
        code, out, err = run(TOKCTL, *arguments, env={k: v for k, v in env.items() if v})
        return code, out.decode().splitlines(), err.splitlines()

    def manifest(self, *arguments, name="out.jsonl"):
        path = self.file(name)
        code, out, err = self.tokctl("manifest", *arguments, path)
        assert code == 0, (out, err)
        return [json.loads(line) for line in open(path)]

    def config(self, name, path, **keys):
        stream = FORMATS["flat" if name == "large" else name].config(path, False, **keys)
        return self.place.config(f"{name}.yaml", streams={"s": stream})

    def gets(self, since=0):
        """(listings, other requests)"""
        asked = self.proxy.requests[since:]
        listed = sum("list-type=2" in r.query for r in asked)
        return listed, len(asked) - listed


@pytest.fixture(scope="module")
def scene():
    with Place() as place:
        for name in NAMES:  # without the shard that has no tokens
            ignored = shutil.ignore_patterns("3.*")
            shutil.copytree(corpus()[0] / name, place.file("data", name), ignore=ignored)
        place.shard("data/large/a.bin", LARGE)
        place.shard("data/large/b.bin", 1000)
        with Moto(place) as store, FaultProxy(store.port) as proxy:
            scene = Scene(place, store, proxy)
            for name in [*NAMES, "large"]:
                store.upload("corpus", scene.data(name), f"{name}/")
            yield scene


def dtype_of(name):
    dtype = name in FORMATS and FORMATS[name].dataset.get("dtype")
    return ["--input-dtype", dtype] if dtype else []


def without(line, *members):
    return {k: v for k, v in line.items() if k not in members}


@pytest.mark.parametrize("name", NAMES)
def test_manifests_of_a_store_and_of_the_disk_agree(scene, name):
    files = scene.data(name)
    local = scene.manifest(*dtype_of(name), files, name=f"{name}.local.jsonl")
    url = f"s3://corpus/{name}/"
    heads = scene.manifest(*dtype_of(name), url)
    deep = scene.manifest(*dtype_of(name), url, "--deep", name=f"{name}.deep.jsonl")
    copied = scene.manifest("--from", scene.file(f"{name}.local.jsonl"), url)

    assert [without(line, "etag", "side") for line in deep] == [
        without(line, "side") for line in local
    ]
    sides = [{k: v[0] for d in m for k, v in d.get("side", {}).items()} for m in (deep, local)]
    assert sides[0] == sides[1]
    assert [without(line, "digest") for line in deep] == heads
    assert copied == deep
    local = scene.file(f"{name}.local.jsonl")
    assert scene.manifest(*dtype_of(name), "--deep", "--from", local, url) == deep

    sides = {side: value for line in deep for side, value in line.get("side", {}).items()}
    for path, value in [*sides.items(), *((d["path"], [d["size"], d["etag"]]) for d in deep)]:
        body = open(os.path.join(files, path), "rb").read()
        assert value == [len(body), hashlib.md5(body).hexdigest()], path
    listed = {d["path"] for d in deep} | set(sides)
    unneeded = {".metadata", ".json"} if name != "mds" else set()
    for parent, _, names in os.walk(files):
        for other in names:
            path = os.path.relpath(os.path.join(parent, other), files)
            assert path in listed or os.path.splitext(path)[1] in unneeded, path


def test_records_of_the_disk_are_proved_by_the_store(scene):
    local = scene.config("flat", scene.data("flat"))
    daemon, record = Daemon(scene.place, local), scene.file("rec")
    rows = "--rank 0 --world 1 --micro 4 --batches 400 --record".split()
    code, _, err = run(TOKCTL, "cat", "s", "--socket", daemon.socket, *rows, record)
    daemon.stop()
    assert code == 0, err

    def verify(prefix):
        scene.manifest(f"s3://corpus/{prefix}/", name=f"{prefix}.jsonl")
        url = scene.config("flat", f"s3://corpus/{prefix}/", manifest=f"{prefix}.jsonl")
        since = len(scene.proxy.requests)
        code, out, err = scene.tokctl("verify", "s", record, "-c", url, "--json")
        result = json.loads(out[0])
        return code, result["samples"], result["altered"], scene.gets(since)[1], err

    code, samples, altered, gets, err = verify("flat")
    assert (code, samples, altered) == (0, 1600, 0) and gets <= 1600 * 1.01, err
    # A byte that differs in the store is found.
    objects = dict(files_below(scene.data("flat")))
    body = bytearray(objects["a/2.bin"])
    body[5000] ^= 1
    objects["a/2.bin"] = bytes(body)
    scene.store.fill("corpus", {f"other/{key}": value for key, value in objects.items()})
    code, _, altered, _, err = verify("other")
    assert code == 1 and altered > 0, err


@pytest.mark.parametrize(
    "key, body, problem",
    [
        ("a//b.bin", b"12", "empty"),
        ("../b.bin", b"12", "empty, . or .."),
        ("b/", b"12", "ends in '/'"),
        ("notes.txt", b"hello, this is no shard", "notes.txt"),
        ("x.idx", b"MMIDIDX\0\0", "x.idx"),
        ("a.bin.zst", b"12", "exists also as a.bin"),
    ],
)
def test_wrong_keys(scene, key, body, problem):
    prefix = f"wrong-{abs(hash(key))}/"
    scene.store.fill("corpus", {prefix + "a.bin": b"1234", prefix + key: body})
    out = scene.file("wrong.jsonl")
    code, lines, err = scene.tokctl("manifest", f"s3://corpus/{prefix}", out, "--json")
    found = [json.loads(line) for line in lines]
    problems = [p for f in found for p in f["problems"] + [f["path"]] if f["problems"]]
    assert code == 1 and len([f for f in found if f["problems"]]) == 1
    assert any(problem in p for p in problems), problems
    assert len(err) == 1 and not os.path.exists(out)


def test_what_consoles_and_editors_leave_is_skipped(scene):
    extra = {"": b"", "deep/": b"", ".hidden/x.bin": b"1", "deep/.y": b"1"}
    scene.store.fill("corpus", {f"odd/{k}": v for k, v in extra.items()})
    scene.store.fill("corpus", {"odd/a.bin": b"1234", "odd/empty.bin": b""})
    lines = scene.manifest("s3://corpus/odd/")
    assert [(d["path"], d["tokens"]) for d in lines] == [("a.bin", 2), ("empty.bin", 0)]
    # A shard without tokens has no digest, and needs none.
    deep = scene.manifest("--deep", "s3://corpus/odd/", name="odd.jsonl")
    again = scene.manifest("--deep", "--from", scene.file("odd.jsonl"), "s3://corpus/odd/")
    assert again == deep


LISTING = """<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>%s
</ListBucketResult>"""
ENTRY = "<Contents><Key>web/%s</Key><ETag>&quot;e&quot;</ETag><Size>%s</Size></Contents>"
A, B = (ENTRY % (key, 4) for key in ("a.bin", "b.bin"))
URL = "<EncodingType>url</EncodingType>"
# a page of a listing, and the words of its problem
PAGES = [
    (LISTING % (A + A), "a.bin"),
    (LISTING % (B + A), "a.bin"),
    (LISTING % ENTRY % ("a.bin", "-1"), "not a number"),
    (LISTING % ENTRY % ("a.bin", "9" * 20), "not a number"),
    (LISTING % "<Contents><Key>web/a.bin</Key></Contents>", "without a key or a size"),
    (LISTING % (URL + ENTRY % ("a%2", 4)), "not percent-encoded"),
    (LISTING % (URL + ENTRY % ("a%00b.bin", 4)), "not percent-encoded"),
    (LISTING % ENTRY % ("k" * 1100, 4), "key"),
    (LISTING % A.replace("web/", "we"), "does not begin with"),
    ((LISTING % A)[:-20], "not XML"),
    ("<html><body>Sign in</body></html>", "is something else: 'html'"),
]


@pytest.mark.parametrize("page, words", PAGES)
def test_listings_that_cannot_be_trusted(scene, page, words):
    scene.proxy.inject("listing", Fault(status=200, body=page.encode()), times=99)
    code, out, err = scene.tokctl("inspect", "s3://corpus/web/")
    scene.proxy.clear()
    assert code == 1 and len(out) == 2 and words in out[1] and not err, (out, err)


def test_listings_of_other_servers(scene):
    """Keys before their encoding, and plain keys."""
    other = LISTING % (ENTRY % ("a%20b%2B.bin", 10) + URL)
    plain = LISTING % ENTRY % ("a+b%20&amp;.bin", 10)
    for page, key in ((other, "a b+.bin"), (plain, "a+b%20&.bin")):
        scene.store.fill("corpus", {f"web/{key}": bytes(10)})
        etag = hashlib.md5(bytes(10)).hexdigest()
        page = page.replace("&quot;e&quot;", f"&quot;{etag}&quot;").encode()
        scene.proxy.inject("listing", Fault(status=200, body=page))
        (line,) = scene.manifest("s3://corpus/web/")
        assert (line["path"], line["tokens"], line["etag"]) == (key, 5, etag)


@pytest.mark.parametrize("etag", ["", "<ETag>W/&quot;x&quot;</ETag>"])
def test_objects_without_a_strong_etag_are_not_packed(scene, etag):
    """They could be replaced meanwhile."""
    entry = f"<Contents><Key>flat/a/0.bin</Key>{etag}<Size>10000</Size></Contents>"
    body = (LISTING % entry).encode()
    scene.proxy.inject("listing", Fault(status=200, body=body))
    out = scene.file("no-etag")
    code, lines, err = scene.tokctl("pack", "--format", "flat", "s3://corpus/flat/", out)
    assert (code, lines, len(err)) == (1, [], 1) and "ETag" in err[0], err
    assert "flat/a/0.bin" in err[0] and "manifest" not in err[0] and not os.path.exists(out), err


def test_a_copied_manifest_names_each_difference(scene):
    scene.manifest(scene.data("flat"), name="all.jsonl")
    body = dict(files_below(scene.data("flat")))
    part = {"a/0.bin": body["a/0.bin"], "a/2.bin": body["a/2.bin"][:-2], "z.bin": b"12"}
    scene.store.fill("corpus", {f"part/{key}": value for key, value in part.items()})
    out = scene.file("part.jsonl")
    arguments = ("--from", scene.file("all.jsonl"), "--json")
    code, lines, err = scene.tokctl("manifest", "s3://corpus/part/", out, *arguments)
    problems = {json.loads(x)["path"]: json.loads(x)["problems"] for x in lines}
    assert code == 1 and len(err) == 1 and not os.path.exists(out)
    wrong = ("a/2.bin", "a/4.bin", "b/1.bin", "z.bin")
    assert set(problems) == {f"s3://corpus/part/{name}" for name in wrong}
    assert all(len(p) == 1 for p in problems.values())
    assert str(len(body["a/2.bin"])) in problems["s3://corpus/part/a/2.bin"][0]


def test_other_contents_of_the_same_size_are_found(scene):
    """`--from` believes an upload; with --deep it compares the digests of all tokens."""
    scene.manifest("--input-dtype", "u32", scene.data("large"), name="wide.jsonl")
    bodies = {
        n: bytearray(open(scene.file("data", "large", n), "rb").read()) for n in ("a.bin", "b.bin")
    }
    bodies["b.bin"][-1] ^= 4
    scene.store.fill("corpus", {f"same/{n}": bytes(body) for n, body in bodies.items()})
    arguments = ("--from", scene.file("wide.jsonl"), "s3://corpus/same/", "--json")
    assert len(scene.manifest(*arguments)) == 2
    out = scene.file("same.jsonl")
    code, lines, err = scene.tokctl("manifest", *arguments, out, "--deep")
    problems = {d["path"]: d["problems"] for d in map(json.loads, lines)}
    assert code == 1 and len(err) == 1 and not os.path.exists(out)
    assert problems["s3://corpus/same/a.bin"] == []
    (problem,) = problems["s3://corpus/same/b.bin"]
    digest = [json.loads(line)["digest"] for line in open(scene.file("wide.jsonl"))][1]
    assert digest in problem and "store" in problem
    # A manifest without digests cannot show it.
    scene.manifest("--input-dtype", "u32", "s3://corpus/same/", name="heads.jsonl")
    arguments = ("--from", scene.file("heads.jsonl"), "s3://corpus/same/", "--json")
    code, lines, err = scene.tokctl("manifest", *arguments, out, "--deep")
    (found,) = map(json.loads, lines)
    assert code == 1 and found["path"] == scene.file("heads.jsonl")
    assert len(found["problems"]) == 1 and "digest" in found["problems"][0]


def test_stores_that_refuse(scene):
    secret = "wJalrXUtnFEMIsecret"
    for url, more in (
        ("s3://corpus/flat/", {"AWS_SECRET_ACCESS_KEY": secret}),
        ("s3://nobody/flat/", {}),
        ("s3://corpus/nothing/", {}),
        ("s3://corpus/flat", {}),
        ("s3://corpus/flat/9.bin", {}),
        ("s4://corpus/flat/", {}),
        ("https://localhost/web/", {}),
    ):
        code, out, err = scene.tokctl("pack", "--format", "flat", url, scene.file("no"), **more)
        assert code == 1 and len(err) == 1 and not out, (url, out, err)
        bucket = url[: url.index("/", 5)]
        assert err[0].startswith(f"tokctl: {bucket}") and err[0].count(bucket) == 1, err
        since = len(scene.proxy.requests)
        code, out, err = scene.tokctl("inspect", url, **more)
        # Without its '/', a prefix is refused, and the bucket is not listed.
        assert url != "s3://corpus/flat" or scene.gets(since)[0] == 0
        assert code == 1 and len(out) == 2 and not err, (url, out, err)
        assert out[1].count(url) == 1 and secret not in out[1], out


def test_urls_that_cannot_be_used(scene):
    local = scene.data("flat")
    for arguments in (
        ("manifest", "s3://corpus/flat/", "s3://corpus/m.jsonl"),
        ("manifest", "s3://corpus/flat/", local, scene.file("n")),
        ("manifest", local, scene.file("n"), "--from", "x.jsonl"),
        ("manifest", "s3://corpus/flat", scene.file("n"), "--from", "x.jsonl"),
        ("pack", "--format", "flat", local, "s3://corpus/packed/"),
    ):
        code, out, err = scene.tokctl(*arguments)
        assert (code, out, len(err)) == (2, [], 1), (arguments, err)


@pytest.mark.parametrize("name", [*NAMES, "large"])
def test_packs_of_a_store_are_those_of_the_disk(scene, name):
    """Bytes, digests, and the lines about what is lost."""
    _, lines, _ = scene.tokctl("inspect", "--json", "--deep", *dtype_of(name), scene.data(name))
    one = ("--shards", 1, "--eos", json.loads(lines[0])["max_token"])  # it occurs in one output
    for format, more in (("flat", ()), ("zstd", ("--shards", 3)), ("megatron", one)):
        results = []
        for source in (scene.data(name), f"s3://corpus/{name}"):
            out = scene.file(f"{name}-{format}-{len(results)}")
            code, lines, err = scene.tokctl(
                *("pack", "--json", "--format", format, *dtype_of(name), *more),
                *(source + "/", out),
            )
            assert code == 0, (lines, err)
            lines = [line.replace(out, "OUT") for line in lines]
            results.append((dict(files_below(out)), lines, [e.replace(source, "IN") for e in err]))
        assert results[0] == results[1]
        assert results[0][0] and results[0][1]
        lost = {"olmo": [1], "datatrove": [1, 2]}.get(name)
        assert not lost or len(results[0][2]) in lost


def test_a_pack_of_a_store_heals_continues_and_sees_changes(scene):
    for i in range(3):
        scene.place.shard(f"again-data/{i}.bin", 200_000, seed=i)
    scene.store.upload("corpus", scene.file("again-data"), "again/")
    out = scene.file("again")
    config = scene.place.config("lab.yaml", stores={"lab": {"endpoint": scene.proxy.endpoint}},
        streams={"s": {"seed": 1, "seq_len": 8, "datasets": [
            {"name": "d", "path": scene.file("again-data")}]}})  # fmt: skip
    command = ("pack", "--format", "flat", "-c", config, "lab://corpus/again/", out)
    environment = {"AWS_ENDPOINT_URL_S3": ""}
    assert scene.tokctl(*command, **environment)[0] == 0
    os.remove(os.path.join(out, "shard-00002.bin"))  # as if it had been killed
    body = numpy.fromfile(scene.file("again-data", "0.bin"), "<u2")
    scene.store.fill("corpus", {"again/0.bin": body[::-1].tobytes()})
    code, lines, err = scene.tokctl(*command, **environment)
    assert (code, lines, len(err)) == (1, [], 1) and "shard-00000.bin: exists" in err[0]
    # The same object has the same ETag.
    scene.store.fill("corpus", {"again/0.bin": body.tobytes()})
    scene.proxy.inject("503", Fault(status=503, code="SlowDown"), times=3, match=lambda r: r.range)
    code, lines, err = scene.tokctl(*command, **environment)
    assert code == 0 and len(lines) == 4, err
    both = (files_below(out), files_below(scene.file("again-data")))
    assert len({tuple(body for _, body in files) for files in both}) == 1
    # An object that is replaced while it is read is named once.
    scene.proxy.inject("412", Fault(status=412, code="PreconditionFailed"), times=99,
                       match=lambda r: r.range and r.path.endswith("/1.bin"))  # fmt: skip
    code, lines, err = scene.tokctl(*command[:-1], scene.file("replaced"), **environment)
    scene.proxy.clear()
    assert code == 1 and len(err) == 1 and err[0].count("lab://corpus/again/1.bin") == 1, err


def test_an_interrupt_leaves_no_file(scene):
    before = sorted(os.listdir(scene.place.path))
    scene.proxy.inject("hang", Fault(hang=True), times=1000, match=lambda r: r.range)
    since = len(scene.proxy.requests)
    command = [TOKCTL, "manifest", "s3://corpus/npy-i64/", scene.file("new.jsonl")]
    child = scene.place.spawn(command, env=scene.env)
    try:
        assert wait_for(lambda: len(scene.proxy.requests) >= since + 2)
        child.send_signal(signal.SIGINT)
        child.wait()
    finally:
        scene.proxy.clear()
    assert sorted(os.listdir(scene.place.path)) == before


@pytest.mark.parametrize("scheme", ["s3", "lab"])
def test_a_config_without_a_manifest_names_the_command(scene, scheme):
    """The command makes it, also for a store of `stores:`."""
    dataset = {"name": f"web-{scheme}", "path": f"{scheme}://corpus/flat/"}
    streams = {"s": {"seed": 3, "seq_len": SEQ_LEN, "datasets": [dataset]}}
    stores = {"lab": {"endpoint": scene.proxy.endpoint}}
    config = scene.place.config("c.yaml", stores=stores, streams=streams)
    code, _, err = run(TOKEND, "--check", "-c", config, env=scene.env)
    assert code == 1, err
    dataset["manifest"], command = re.search(r"set manifest: (\S+), and run `(.+)`", err).groups()
    scene.place.config("c.yaml", stores=stores, streams=streams)
    subprocess.run(
        command.replace("tokctl", str(TOKCTL), 1).split(),
        cwd=scene.place.path,
        env=scene.env,
        check=True,
        capture_output=True,
    )
    code, out, err = run(TOKEND, "--check", "-c", config, env=scene.env)
    assert code == 0, (out, err)


@pytest.fixture
def https(scene):
    with Nginx(scene.place, scene.file("data")) as server:
        yield server


def test_an_unknown_authority(scene, https):
    """It is named at once, not waited for."""
    other = {"SSL_CERT_FILE": make_certificates(scene.file("other", ""))[0]}
    web = {"seed": 3, "seq_len": SEQ_LEN, "datasets": [{"name": "d", "path": scene.data("flat")}]}
    out, url = scene.file("https.jsonl"), f"{https.endpoint}/flat/"
    scene.manifest(scene.data("flat"), name="flat.jsonl")
    arguments = ("--from", scene.file("flat.jsonl"), url, out)
    code, _, err = scene.tokctl("manifest", *arguments, SSL_CERT_FILE=https.ca)
    assert code == 0, err
    code, lines, err = scene.tokctl("manifest", *arguments, **other)
    said = "".join(lines)
    assert code == 1 and "`ca:`" in said and "for 60 s" not in said, (lines, err)
    for ca, works in (https.ca, True), (scene.file("flat.jsonl"), False):
        named = scene.place.config("named.yaml", stores={"https": {"ca": ca}}, streams={"s": web})
        code, lines, err = scene.tokctl("manifest", *arguments, "-c", named, **other)
        assert (code == 0) is works and works != ("correct `ca:`" in "".join(lines)), (lines, err)
    keys = {"socket": scene.file("ca.sock"), "state_dir": scene.file("ca.state", "")}
    dataset = {"name": "d", "path": url, "manifest": out}
    stream = {"seed": 3, "seq_len": SEQ_LEN, "datasets": [dataset]}
    config = scene.place.config("ca.yaml", streams={"s": stream}, **keys)
    daemon = Daemon(scene.place, config, env={**https.environment(), **other})
    with pytest.raises(Refused) as ended:
        Client(daemon.socket).attach(stream="s", begin=1).next(60)
    assert "`ca:`" in str(ended.value) and ".bin" in str(ended.value), ended.value
    assert daemon.stop() == 0


def test_rubbish_after_a_redirect_heals(scene):
    """The first answer of the server to which it redirects is not HTTP."""
    (line,), asked = scene.manifest(scene.data("large/b.bin"), name="one.jsonl"), []

    class Moved(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            if asked[1:] == ["/there"]:
                self.wfile.write(b"upstream connect error\n")
                return
            self.send_response(302 if self.path != "/there" else 200)
            headers = {"Location": "/there", "ETag": "e", "Content-Length": line["size"]}
            for header in headers.items():
                self.send_header(*header)
            self.end_headers()

    authority, *own = make_certificates(scene.file("moved", ""))
    with http.server.HTTPServer(("localhost", 0), Moved) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*own)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        url = f"https://localhost:{server.server_port}/"
        arguments = "--from", scene.file("one.jsonl"), url, scene.file("moved.jsonl")
        code, _, err = scene.tokctl("manifest", *arguments, SSL_CERT_FILE=authority)
        server.shutdown()
    assert code == 0 and asked.count("/there") == 2, (err, asked)


def test_a_manifest_in_a_store(scene):
    scene.manifest("s3://corpus/flat/", name="stored.jsonl")
    body = open(scene.file("stored.jsonl"), "rb").read()
    scene.store.fill("corpus", {"stored.jsonl": body})
    config = scene.config("flat", "s3://corpus/flat/", manifest="s3://corpus/stored.jsonl")
    large = Fault(body=bytes(10000), headers={"Content-Length": str(5 << 30)})
    for fault, words in (
        (Fault(stall=9), None),
        (Fault(cut=body.index(b"\n") + 1, headers={"Content-Length": None}), None),
        (large, f"stored.jsonl: {5 << 30} bytes, at most {4 << 30} are allowed"),
    ):
        scene.proxy.inject("manifest", fault, match=lambda r: r.method == "GET")
        begin = time.monotonic()
        code, out, err = run(TOKEND, "--check", "-c", config, env=scene.env)
        whole = b" %d shards" % body.count(b"\n") in out
        assert (code == 0 and whole) if words is None else (code == 1 and words in err), err
        assert time.monotonic() - begin < 8, "a small one is fetched again after 2 s"


def test_check_reads_a_window_of_each_dataset(scene):
    """One GET a dataset. One that fails is named by its line in the config, after one answer."""
    manifests = {name: f"{name}.check.jsonl" for name in ("flat", "llmc")}
    for name, manifest in manifests.items():
        scene.manifest(f"s3://corpus/{name}/", name=manifest)

    def check(flat):
        datasets = [
            {"name": name, "manifest": manifest, "path": f"s3://corpus/{path}/"}
            for (name, manifest), path in zip(manifests.items(), (flat, "llmc"), strict=True)
        ]
        config = scene.place.config(
            "check.yaml", streams={"s": {"seed": 3, "seq_len": SEQ_LEN, "datasets": datasets[::-1]}}
        )
        since = len(scene.proxy.requests)
        code, out, err = run(TOKEND, "--check", "-c", config, env=scene.env)
        words = "credentials: environment; ", "read by window: there is no cache"
        assert code or has(out.decode(), *words)
        line = [i for i, text in enumerate(open(config), 1) if f"/{flat}/" in text][0]
        return code, err.splitlines(), scene.gets(since)[1], f"{config}:{line}: "

    code, err, gets, _ = check("flat")
    assert (code, err, gets) == (0, [], 2)
    code, err, gets, where = check("none")
    assert code == 1 and len(err) == 1 and gets <= 2, (err, gets)
    assert where + "streams.s.datasets[1].path: " in err[0] and err[0].count("404") == 1
    assert err[0].count("s3://corpus/none/") == 1, err
