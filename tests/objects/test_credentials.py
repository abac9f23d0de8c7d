"""Each provider of credentials alone and in order, against a server that verifies signatures.

moto verifies signatures and is STS. A small server of our own is the agent of a container and the
metadata service of an instance, with keys that moto knows; it counts, hangs and denies.
"""

import contextlib
import http.server
import json
import os
import stat
import subprocess
import threading
import time

import pytest
from test_fault_clocks import SHIFTED
from test_fault_clocks import WORDS as CLOCK_WORDS

from lib import REPO
from lib.fault_proxy import Fault, FaultProxy
from lib.preload import Preload
from lib.stores import Moto
from lib.wait import wait_for

CAT = REPO / "build/gcc/check/store-cat"
BODY = b"0123456789"
PAGE = 20  # keys on a page of a listing
ROLE = "arn:aws:iam::123456789012:role/train"
GOOGLE = "/computeMetadata/v1/instance/service-accounts/default/token"


class Paged(Moto):
    """Its listings have small pages."""

    def server_environment(self):
        return {**super().server_environment(), "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)}


@pytest.fixture(scope="module")
def moto(shared):
    with Paged(shared) as store:
        store.fill("corpus", {"plain": BODY})
        yield store


class Metadata(http.server.ThreadingHTTPServer):
    """What a container's agent and the metadata service of an instance answer."""

    daemon_threads = True

    def __init__(self, store):
        super().__init__(("127.0.0.1", 0), Answer)
        self.store, self.lives, self.asked, self.away = store, 3600, [], 0
        self.token = ""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def keys(self):
        end = time.gmtime(time.time() + self.lives)
        return {
            "Code": "Success",
            "AccessKeyId": self.store.access_key,
            "SecretAccessKey": self.store.secret_key,
            "Token": None,
            "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", end),
        }


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("GET")

    def do_PUT(self):
        self.answer("PUT")

    def answer(self, method):
        server, roles = self.server, "/latest/meta-data/iam/security-credentials/"
        server.asked.append((method, self.path))
        with_token = self.headers.get("X-aws-ec2-metadata-token") == "session"
        status, body = 404, b""
        if server.away:
            status = server.away
        elif (method, self.path) == ("PUT", "/latest/api/token"):
            status, body = 200, b"session"
        elif self.path.startswith(roles) and not with_token:
            status = 401
        elif self.path == roles:
            status, body = 200, b"train\n"
        elif self.path == roles + "train":
            status, body = 200, json.dumps(server.keys()).encode()
        elif self.path == "/container":
            allowed = self.headers.get("Authorization") == "agent-token"
            status = 200 if allowed else 403
            body = json.dumps(server.keys()).encode() if allowed else b""
        elif self.path == GOOGLE and self.headers.get("Metadata-Flavor") == "Google":
            answer = {"access_token": server.token, "expires_in": server.lives}
            status, body = 200, json.dumps({**answer, "token_type": "Bearer"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata(moto):
    server = Metadata(moto)
    yield server
    server.shutdown()
    server.server_close()


class Chain:
    """An environment without credentials, with a home directory of its own."""

    def __init__(self, place, store):
        self.place, self.store = place, store
        self.home = place.file("home", "")
        os.makedirs(os.path.join(self.home, ".aws"), exist_ok=True)
        self.environment = store.environment(AWS_ENDPOINT_URL=store.endpoint, HOME=self.home)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del self.environment[name]

    def file(self, name, text, mode=0o600):
        path = os.path.join(self.home, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def keys(self):
        return (
            f"aws_access_key_id = {self.store.access_key}\n"
            f"aws_secret_access_key = {self.store.secret_key}\n"
        )

    def process(self, script):
        """A profile with this credential_process."""
        path = self.file("process.sh", "#!/bin/sh\n" + script, stat.S_IRWXU)
        self.file(".aws/config", f"[profile vault]\ncredential_process = {path} now\n")
        return {"AWS_PROFILE": "vault"}

    def json(self, lives=3600):
        end = f"$(date -u -d '+{lives} seconds' +%Y-%m-%dT%H:%M:%SZ)"
        return (
            f'echo \'{{"Version": 1, "AccessKeyId": "{self.store.access_key}", "SecretAccessKey": '
            f'"{self.store.secret_key}", "Expiration": "\'"{end}"\'"}}\'\n'
        )

    def cat(self, *arguments, **environment):
        return subprocess.run(
            [CAT, *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            timeout=60,
        )

    def provider(self, *arguments, **environment):
        """Which provider gave the credentials of a GET that succeeded."""
        done = self.cat(*(arguments or ("load", "s3://corpus/plain")), **environment)
        assert (done.returncode, done.stdout) == (0, BODY), done.stderr
        return done.stderr.decode().split(": ")[1]

    def fault(self, *options, **environment):
        done = self.cat("-w", "1", *options, "load", "s3://corpus/plain", **environment)
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1, done
        assert self.store.secret_key not in done.stderr.decode()
        return done.stderr.decode()


@pytest.fixture
def chain(place, moto):
    return Chain(place, moto)


def environment_keys(store):
    return {"AWS_ACCESS_KEY_ID": store.access_key, "AWS_SECRET_ACCESS_KEY": store.secret_key}


@contextlib.contextmanager
def unverified(moto):
    moto.verify(False)
    try:
        yield
    finally:
        moto.verify(True)


def test_a_listing_has_all_keys(chain, moto):
    moto.fill("many", {f"web/{i:05}+ü": b"x" * (i % 7) for i in range(3 * PAGE + 1)})
    done = chain.cat("list", "s3://many/web/", **environment_keys(moto))
    lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert [(k, int(n)) for k, n, _ in lines] == [
        (f"web/{i:05}+ü", i % 7) for i in range(3 * PAGE + 1)
    ], done.stderr
    assert b": 4 GETs" in done.stderr, done.stderr


def test_a_proxy(chain, moto):
    """It gets the URL with the store's name, which it looks up."""
    with FaultProxy(moto.port) as proxy:
        far = {"AWS_ENDPOINT_URL": "http://s3.amazonaws.com", "http_proxy": proxy.endpoint}
        done = chain.cat("load", "s3://corpus/plain", **environment_keys(moto), **far)
        assert (done.returncode, done.stdout) == (0, BODY), done.stderr
        (asked,) = {request.path for request in proxy.requests}
    assert asked == "http://s3.amazonaws.com/corpus/plain"


def test_a_session_token(chain, moto):
    sts = moto.client("sts").assume_role(RoleArn=ROLE, RoleSessionName="trainer")["Credentials"]
    session = {
        "AWS_ACCESS_KEY_ID": sts["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": sts["SecretAccessKey"],
        "AWS_SESSION_TOKEN": sts["SessionToken"],
    }
    permit(moto)
    assert chain.provider(**session) == "environment"


def permit(moto):
    """Lets the role do everything."""
    iam = moto.client("iam")
    if not [r for r in iam.list_roles()["Roles"] if r["RoleName"] == "train"]:
        iam.create_role(RoleName="train", AssumeRolePolicyDocument="{}")
        statement = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        iam.put_role_policy(
            RoleName="train",
            PolicyName="all",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        )


def test_shared_files(chain):
    chain.file(".aws/credentials", f"# a comment\n[other]\nx = y\n[default]\n{chain.keys()}")
    assert chain.provider() == "profile default"
    chain.file(".aws/credentials", "[default]\nregion = x\n")
    chain.file(".aws/config", f"[profile lab]\ns3 =\n  max_attempts = 2\n{chain.keys()}")
    assert chain.provider(AWS_PROFILE="lab") == "profile lab"


@pytest.mark.parametrize(
    "setting, words",
    [
        ("aws_access_key_id = a", "only one of"),
        ("aws_secret_access_key = a", "only one of"),
        ("role_arn = a\nsource_profile = b", "credential_process"),
        ("sso_session = a", "credential_process"),
    ],
)
def test_a_profile_of_no_use_is_not_passed_over(chain, metadata, setting, words):
    """The machine's role would be another identity than the user's."""
    chain.file(".aws/config", f"[default]\n{setting}\n")
    error = chain.fault(**instance(metadata))
    assert "(profile default): " in error and words in error and not metadata.asked


@pytest.mark.parametrize(
    "script, words",
    [
        ("echo rubbish", "not a JSON object"),
        ("exit 3", "status 3"),
        ("head -c 100000 /dev/zero", "more than"),
        ('echo \'{"AccessKeyId": "a b", "SecretAccessKey": "SECRET"}\'', "no valid"),
        ("echo SECRET; echo SECRET >&2; exit 1", "status 1"),
    ],
)
def test_a_process_that_fails(chain, script, words):
    error = chain.fault(**chain.process(script))
    assert words in error and "SECRET" not in error


def test_web_identity(chain, moto):
    permit(moto)
    token = chain.file("token", "an.identity.token\n")
    identity = {"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": ROLE}
    with unverified(moto):
        assert chain.provider(**identity) == "web identity"
    assert "500" in chain.fault(**identity), "moto fails with unsigned requests that it verifies"
    missing = {"AWS_WEB_IDENTITY_TOKEN_FILE": token + "s", "AWS_ROLE_ARN": ROLE}
    assert "tokens: No such file" in chain.fault(**missing)
    assert "set both" in chain.fault(AWS_WEB_IDENTITY_TOKEN_FILE=token)


def test_a_container(chain, metadata):
    uri = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{metadata.url}/container"}
    token = chain.file("token", "agent-token\n")
    # A proxy that does not exist: it must not be used.
    endpoint = chain.store.endpoint.replace("127.0.0.1", "localhost")
    proxy = {"http_proxy": "http://127.0.0.1:1", "no_proxy": "localhost"}
    for way in (
        {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "\nagent-token\n"},
        {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token},
    ):
        assert chain.provider(**uri, **way) == "container"
    assert chain.provider(**uri, **way, **proxy, AWS_ENDPOINT_URL=endpoint) == "container"
    assert "403" in chain.fault(**uri)
    for far in "192.0.2.1/container", "localhost:80@192.0.2.1/", "localhost:80\\@192.0.2.1/":
        far = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{far}"}
        assert "https://" in chain.fault(**far)


def instance(metadata):
    return {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url}


def test_the_order(chain, moto, metadata):
    """Each provider is asked only if those before it have nothing."""
    permit(moto)
    token = chain.file("token", "agent-token")
    chain.file(".aws/credentials", f"[default]\n{chain.keys()}")
    steps = [
        ("environment", environment_keys(moto)),
        ("profile default", {}),
        ("web identity", {"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": ROLE}),
        (
            "container",
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{metadata.url}/container",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "agent-token",
            },
        ),
        ("instance", instance(metadata)),
    ]
    for i, (name, _) in enumerate(steps):
        if name == "web identity":
            os.remove(os.path.join(chain.home, ".aws/credentials"))
        environment = {}
        for _, more in steps[i:]:
            environment.update(more)
        with unverified(moto):
            assert chain.provider(**environment) == name
    assert ("PUT", "/latest/api/token") in metadata.asked
    error = chain.fault()
    assert "no credentials" in error and "anonymous: true" in error


def test_ways_that_the_config_names(chain, moto):
    """anonymous, token_file, query_file and profile are used alone."""
    chain.file(".aws/credentials", f"[lab]\n{chain.keys()}")
    moto.client().put_object_acl(Bucket="corpus", Key="plain", ACL="public-read")
    token = chain.file("bearer", "hf_token\n")
    for way, provider in (
        ({"token_file": token}, "token file"),
        ({"anonymous": True}, "anonymous"),
        ({"profile": "lab"}, "profile lab"),
    ):
        config = stores(chain, lab={"endpoint": moto.endpoint, **way})
        with contextlib.nullcontext() if provider == "profile lab" else unverified(moto):
            used = chain.provider("-c", config, "load", "lab://corpus/plain", AWS_ACCESS_KEY_ID="x")
        assert used == provider


def stores(chain, **stores):
    """The config for `store-cat -c`."""
    web = {"seed": 1, "seq_len": 1, "datasets": [{"name": "web", "path": "web"}]}
    return chain.place.config("stores.yaml", stores=stores, streams={"t": web})


def test_an_address_of_ipv6(chain, moto):
    """It is signed with its brackets and its port."""
    with FaultProxy(moto.port, host="::1") as proxy:
        config = stores(chain, lab={"endpoint": proxy.endpoint})
        arguments = ("-c", config, "load", "lab://corpus/plain")
        assert chain.provider(*arguments, **environment_keys(moto)) == "environment"
        assert proxy.requests[-1].headers["host"] == f"[::1]:{proxy.port}"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_credentials_end_core_dumps(chain, moto):
    """The kernel gives the files of a process that may not be dumped to root."""
    moto.client().put_object_acl(Bucket="corpus", Key="plain", ACL="public-read")
    for way, region, owner in (
        ({"anonymous": True}, "us-east-1", 65534),
        ({"anonymous": True}, "", 0),  # the profile is read, which may say it
        ({"region": "us-east-1"}, "", 0),
    ):
        with FaultProxy(moto.port) as proxy, unverified(moto):
            config = stores(chain, lab={"endpoint": proxy.endpoint, **way})
            reader = chain.place.spawn(
                [CAT, "-c", config, "-s", "20", "load", "lab://corpus/plain"],
                env={**chain.environment, **environment_keys(moto), "AWS_REGION": region},
                stdout=subprocess.DEVNULL, user=65534,
            )  # fmt: skip
            assert wait_for(lambda asked=proxy.requests: len(asked) > 5), reader.poll()
            assert os.stat(f"/proc/{reader.pid}/status").st_uid == owner
            reader.kill()
            reader.wait()


@pytest.mark.parametrize("way", ["token file", "query file", "Google metadata"])
def test_a_token_that_is_renewed_too_late(chain, moto, metadata, way):
    """The server rejects the old one before the new one is there. No GET fails."""
    google, old, new = way == "Google metadata", "sig=first%2B", "sig=second%2B"
    key = way.replace(" ", "_")
    valid = [old]
    moto.client().put_object_acl(Bucket="corpus", Key="plain", ACL="public-read")

    def renew(token):
        metadata.token = token
        chain.file("new", f"{token}\n")
        os.replace(os.path.join(chain.home, "new"), os.path.join(chain.home, "token"))

    def reject(request):
        said = request.query if key == "query_file" else request.headers.get("authorization")
        code = "AuthenticationFailed" if key == "query_file" else "InvalidToken"
        right = valid[0] if key == "query_file" else f"Bearer {valid[0]}"
        return None if said == right else Fault(status=403, code=code)

    with unverified(moto), FaultProxy(moto.port) as proxy:
        renew(old)
        proxy.inject("rejected", reject, times=1 << 30)
        store = {"endpoint": proxy.endpoint}
        file = {} if google else {key: os.path.join(chain.home, "token")}
        config = stores(chain, **({"gs": store} if google else {"lab": {**store, **file}}))
        reader = chain.place.spawn(
            [CAT, "-c", config, "-s", "3", "load", f"{'gs' if google else 'lab'}://corpus/plain"],
            env={**chain.environment, "GCE_METADATA_HOST": metadata.url.removeprefix("http://")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert wait_for(lambda: len(proxy.requests) > 20 or reader.poll() is not None)
        assert reader.poll() is None, reader.communicate()
        assert proxy.injected["rejected"] == 0
        valid[0] = new
        assert wait_for(lambda: proxy.injected["rejected"] > 2)
        renew(new)
        out, err = reader.communicate(timeout=60)
    assert reader.returncode == 0 and int(out) > 20, err
    assert way.encode() in err and b"first" not in err + out and b"second" not in err + out, err
    said = proxy.requests[-1]
    assert new in said.query + said.headers.get("authorization", "")


def test_metadata_that_is_away_for_a_while(chain, metadata):
    """The old credentials serve until they expire; then GETs wait, and succeed later. Before and
    after that they are renewed, and no GET fails.
    """
    metadata.lives = 3
    timer = threading.Timer(1, lambda: setattr(metadata, "away", 503))
    back = threading.Timer(5, lambda: setattr(metadata, "away", 0))
    timer.start(), back.start()
    done = chain.cat("-s", "8", "load", "s3://corpus/plain", **instance(metadata))
    assert done.returncode == 0 and int(done.stdout) > 20, done.stderr
    assert len([asked for asked in metadata.asked if asked[0] == "PUT"]) >= 3


def test_metadata_that_stays_away(chain, metadata):
    """Reads wait for it; that there are no credentials would be untrue."""
    metadata.lives = 2
    threading.Timer(0.5, lambda: setattr(metadata, "away", 404)).start()
    error = chain.fault("-s", "8", **instance(metadata))
    assert "waited 1 s for credentials (instance): 404" in error, error


def test_a_process_that_hangs_delays_no_other_store(chain, moto):
    hang = chain.file("hang.sh", "#!/bin/sh\nsleep 60\n", stat.S_IRWXU)
    chain.process(f"echo x >>{chain.home}/count\n" + chain.json(lives=2))
    with open(os.path.join(chain.home, ".aws/config"), "a") as file:
        file.write(f"[profile hangs]\ncredential_process = {hang}\n")
    config = stores(
        chain, **{n: {"endpoint": moto.endpoint, "profile": n} for n in ("vault", "hangs")}
    )
    urls = "vault://corpus/plain", "hangs://corpus/plain"
    done = chain.cat("-c", config, "-w", "5", "-s", "4", "load", *urls)
    assert done.returncode == 0 and int(done.stdout) > 20, done.stderr
    assert b"vault://corpus: profile vault" in done.stderr, done.stderr
    assert os.path.getsize(os.path.join(chain.home, "count")) >= 4, "they were renewed"


def test_a_clock_that_is_set_makes_credentials_expire(chain):
    """They are renewed at once, not when the old clock would have said."""
    clock = Preload(chain.place, SHIFTED, CLOCK_WORDS, "clock")
    environment = clock.own | chain.process(f"echo x >>{chain.home}/count\n" + chain.json())
    timer = threading.Timer(1, lambda: clock.set(shift=2 * 3600))
    timer.start()
    done = chain.cat("-w", "5", "-s", "7203", "load", "s3://corpus/plain", **environment)
    assert done.returncode == 0 and int(done.stdout) > 20, done.stderr
    assert os.path.getsize(os.path.join(chain.home, "count")) >= 4, "they were renewed"


def test_a_busy_store_is_not_asked_more_often_for_new_keys(chain, moto):
    """There are new ones every second, and pauses grow to 20 s."""
    with FaultProxy(moto.port) as proxy:
        proxy.inject("503", Fault(status=503, code="SlowDown"), times=1 << 30)
        environment = {**chain.process(chain.json(lives=2)), "AWS_ENDPOINT_URL": proxy.endpoint}
        done = chain.cat("-w", "10", "load", "s3://corpus/plain", **environment)
        assert done.returncode == 1 and b"503 SlowDown, for 1" in done.stderr, done.stderr
        assert 4 <= len(proxy.requests) <= 12, [r.at for r in proxy.requests]


def test_a_note_about_readable_secrets(chain, moto):
    chain.file(".aws/credentials", f"[default]\n{chain.keys()}")
    far = chain.cat("-w", "1", "load", "s3://corpus/plain", AWS_ENDPOINT_URL="http://192.0.2.1")
    assert b"unencrypted" in far.stderr, far.stderr
