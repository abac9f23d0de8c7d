"""Real object stores for the tests, as processes on this machine's loopback interface.

radosgw   Ceph's gateway: verifies signatures (tests/objects/radosgw.sh)
moto      verifies signatures, and has STS, web identity and the metadata service of an instance
nginx     an HTTPS server without listings, with a certificate of our own authority
hadro     verifies signatures, serves a directory
nanio     verifies signatures

with Moto(place) as store:
    store.fill("corpus", {"web/a.bin": b"…"})
    Daemon(place, config_of(store), env=store.environment())
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

from .process import REPO, TESTS, TOKCTL, free_port, run
from .wait import wait_for

SERVERS = REPO / "build/trainers/servers"  # tests/deps.sh test
REGION = "us-east-1"
READY_S = 60
# Nothing outside a test may give its processes credentials.
ALIEN = ("AWS_", "GOOGLE_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def _packages():
    """Makes the packages of SERVERS importable, after those of this interpreter."""
    found = [str(path) for path in SERVERS.glob("lib/python3*/site-packages")]
    sys.path += [path for path in found if path not in sys.path]


class Store:
    """A server. start(), stop() and kill() may alternate; its port stays the same."""

    scheme = "http"
    access_key, secret_key = "TOKENDKEY", "tokendsecret0123456789"

    def __init__(self, place, name=None):
        self.place = place
        self.port = free_port()
        self.directory = place.file(name or type(self).__name__.lower(), "")
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def endpoint(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def environment(self, **more):
        """The environment of a process that has this store's credentials, and no others."""
        mine = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        nobody = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": self.directory}
        clean = {k: v for k, v in os.environ.items() if not k.upper().startswith(ALIEN)}
        return {**clean, **nobody, "AWS_REGION": REGION, **mine, **more}

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = self.place.spawn(
                self.command(), stdout=log, stderr=log, env=self.server_environment()
            )
        if not wait_for(lambda: self.answers() or self.process.poll() is not None, READY_S, 0.02):
            raise RuntimeError(f"{self.endpoint} does not answer: {self.log()}")
        if self.process.poll() is not None:
            raise RuntimeError(f"{type(self).__name__} ended: {self.log()}")

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def log_path(self):
        return os.path.join(self.directory, "log")

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()[-2000:]

    def server_environment(self):
        return dict(os.environ)

    def answers(self):
        """Does it answer an anonymous request, whatever the answer is?"""
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f"http://127.0.0.1:{self.port}/", timeout=5
            ).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def client(self, service="s3"):
        """boto3's client with this store's credentials."""
        _packages()
        import boto3
        from botocore.config import Config

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                proxies={},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def fill(self, bucket, objects):
        """Makes the bucket, if needed, and puts the objects {key: bytes} into it."""
        s3 = self.client()
        with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
            s3.create_bucket(Bucket=bucket)
        for key, body in objects.items():
            s3.put_object(Bucket=bucket, Key=key, Body=body)
        return s3

    def upload(self, bucket, directory, prefix=""):
        """Puts all files below a directory into the bucket."""
        return self.fill(bucket, {prefix + key: body for key, body in files_below(directory)})

    def manifest(self, prefix, out, *options):
        """Writes a manifest of the objects below `BUCKET/PREFIX/`, as an operator does."""
        env = self.environment(AWS_ENDPOINT_URL_S3=self.endpoint)
        command = (TOKCTL, "manifest", *options, f"s3://{prefix}", out)
        code, text, err = run(*command, env=env)
        assert code == 0, (text, err)
        return out


def files_below(directory):
    for parent, _, names in os.walk(directory):
        for name in sorted(names):
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                yield os.path.relpath(path, directory), file.read()


EVERYTHING = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
)


class Moto(Store):
    """Its objects are lost when it is killed."""

    def command(self):
        return [str(SERVERS / "bin/moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def server_environment(self):
        return {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1000"}

    def start(self):
        super().start()
        iam = self.client("iam")
        iam.create_user(UserName="test")
        key = iam.create_access_key(UserName="test")["AccessKey"]
        iam.put_user_policy(UserName="test", PolicyName="all", PolicyDocument=EVERYTHING)
        self.access_key, self.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        self.verify(True)

    def verify(self, on):
        """From now on, signatures are verified, or not."""
        count = b"0" if on else b"1000000000"
        kind = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", count, kind)
        urllib.request.urlopen(request).close()


class Hadro(Store):
    """Serves a directory, read-only; each directory in it is a bucket."""

    def __init__(self, place, root):
        super().__init__(place)
        self.root = root

    def command(self):
        options = f"""--access-key {self.access_key} --secret-key {self.secret_key}
            --region {REGION} --port {self.port} --log-level warning""".split()
        return [str(SERVERS / "bin/hadro"), *options, self.root]


class Nanio(Store):
    """Keeps its objects in a directory."""

    def command(self):
        data = os.path.join(self.directory, "data")
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--data-dir", data]
        return [str(SERVERS / "bin/nanio"), "serve", *options, "--no-access-log"]

    def server_environment(self):
        keys = {"NANIO_ACCESS_KEY": self.access_key, "NANIO_SECRET_KEY": self.secret_key}
        return {**os.environ, **keys, "NANIO_REGION": REGION}


class Radosgw(Store):
    """Its objects are in memory: kill_gateway() keeps them, kill() loses them."""

    SCRIPT = str(TESTS / "objects/radosgw.sh")

    def start(self):
        code, _, err = run(self.SCRIPT, "start", os.path.join(self.directory, "ceph"), self.port)
        if code:
            raise RuntimeError(err)

    def kill(self):
        run(self.SCRIPT, "stop", os.path.join(self.directory, "ceph"))

    def kill_gateway(self):
        run(self.SCRIPT, "stop-gateway", os.path.join(self.directory, "ceph"))

    def start_gateway(self):
        code, _, err = run(self.SCRIPT, "start-gateway", os.path.join(self.directory, "ceph"))
        if code:
            raise RuntimeError(err)


class Nginx(Store):
    """Serves a directory over TLS; `ca` is the certificate of its authority. Clients name it
    localhost.
    """

    scheme = "https"

    def __init__(self, place, root):
        super().__init__(place)
        self.root = root
        self.ca, certificate, key = make_certificates(self.directory)
        os.makedirs(os.path.join(self.directory, "temp"), exist_ok=True)
        with open(os.path.join(self.directory, "nginx.conf"), "w") as file:
            file.write(NGINX.format(store=self, certificate=certificate, key=key))

    @property
    def endpoint(self):
        return f"https://localhost:{self.port}"

    def environment(self, **more):
        mine = super().environment(**more)
        return {
            k: v for k, v in mine.items() if k not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        }

    def command(self):
        nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        config = os.path.join(self.directory, "nginx.conf")
        return [nginx, "-p", self.directory, "-c", config, "-e", self.log_path]


NGINX = """\
# A plain process: no daemon, no root, everything below its directory.
daemon off;
master_process off;
pid {store.directory}pid;
error_log {store.log_path} warn;
events {{ worker_connections 512; }}
http {{
	access_log off;
	client_body_temp_path {store.directory}temp;
	proxy_temp_path {store.directory}temp;
	fastcgi_temp_path {store.directory}temp;
	uwsgi_temp_path {store.directory}temp;
	scgi_temp_path {store.directory}temp;
	default_type application/octet-stream;
	keepalive_requests 1000000;
	server {{
		listen 127.0.0.1:{store.port} ssl;
		ssl_certificate {certificate};
		ssl_certificate_key {key};
		ssl_protocols TLSv1.2 TLSv1.3;
		root {store.root};
	}}
}}
"""


def make_certificates(directory, names="DNS:localhost,IP:127.0.0.1"):
    """An authority and a server's certificate signed by it: the paths of both, and of the key."""
    authority, certificate, key = (
        os.path.join(directory, n) for n in ("ca.pem", "server.pem", "server.key")
    )
    signing = os.path.join(directory, "ca.key")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl("req", "-x509", *new_key, "-subj", "/CN=tests", "-keyout", signing, "-out", authority)
    openssl(
        "req", "-x509", *new_key, "-subj", "/CN=localhost", "-addext", f"subjectAltName={names}",
        "-addext", "basicConstraints=critical,CA:FALSE", "-CA", authority, "-CAkey", signing,
        "-keyout", key, "-out", certificate,
    )  # fmt: skip
    return authority, certificate, key
