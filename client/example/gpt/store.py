"""An object store on this machine for `make run-objects`: Ceph's gateway, objects in memory."""

import pathlib
import shutil
import socket
import subprocess

REPO = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = REPO / "tests" / "objects" / "radosgw.sh"
TOKCTL = REPO / "build" / "bin" / "tokctl"
BUCKET = "tokens"
KEY, SECRET, REGION = "TOKENDKEY", "tokendsecret0123456789", "us-east-1"


def run(*command, **more):
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


class Store:
    def __init__(self, directory):
        self.directory, self.port = directory, free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        # for processes that read from it: the daemon and tokctl; trainers need nothing
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }

    def start(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        self.script("start", self.port)

    def script(self, word, *more):
        """stop-gateway: SIGKILL to the gateway. The objects stay in another process."""
        # not a pipe: the store's processes would keep it open
        with open(self.directory.with_suffix(".log"), "a") as log:
            subprocess.run(
                [str(word) for word in (SCRIPT, word, self.directory, *more)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

    def put(self, shards):
        """Puts the shards of {dataset: directory} into the bucket, and writes DATASET.jsonl, their
        manifests. The daemon never lists.
        """
        signed = ["curl", "-fsS", "--noproxy", "*", "--aws-sigv4", f"aws:amz:{REGION}:s3"]
        signed += ["--user", f"{KEY}:{SECRET}", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        run(*signed, "-X", "PUT", f"{self.endpoint}/{BUCKET}/")
        for name, directory in shards.items():
            for path in sorted(directory.glob("*.bin")):
                run(*signed, "-T", path, f"{self.endpoint}/{BUCKET}/{name}/{path.name}")
            manifest = self.directory / f"{name}.jsonl"
            run(TOKCTL, "manifest", f"s3://{BUCKET}/{name}/", manifest, env=self.environment)
