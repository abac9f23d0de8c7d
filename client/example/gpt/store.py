"""An object store on this machine for `make run-objects`: Ceph's gateway, objects in memory."""

import pathlib
import shutil
import socket
import subprocess
import sys
import time

REPO = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = REPO / "tests" / "objects" / "radosgw.sh"
PACKAGES = REPO / "build" / "trainers" / "servers"  # tests/deps.sh run-objects
BUCKET = "tokens"
KEYS = {
    "AWS_ACCESS_KEY_ID": "TOKENDKEY",
    "AWS_SECRET_ACCESS_KEY": "tokendsecret0123456789",
    "AWS_REGION": "us-east-1",
}


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


class Store:
    def __init__(self, directory):
        self.directory, self.port = directory, free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        shutil.rmtree(directory, ignore_errors=True)
        self.script("start", self.port)

    def script(self, *words):
        command = [SCRIPT, words[0], self.directory, *words[1:]]
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())

    def environment(self):
        """For processes that read from it: the daemon and tokctl. Trainers need nothing."""
        return {**KEYS, "AWS_ENDPOINT_URL_S3": self.endpoint}

    def put(self, data, names):
        """Puts the shards DATA/NAME/*.bin into the bucket, as NAME/*.bin."""
        sys.path += map(str, PACKAGES.glob("lib/python3*/site-packages"))
        import boto3
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=KEYS["AWS_REGION"],
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=Config(
                s3={"addressing_style": "path"},
                proxies={},
                request_checksum_calculation="when_required",
            ),
        )
        client.create_bucket(Bucket=BUCKET)
        for name in names:
            for path in sorted((data / name).glob("*.bin")):
                client.put_object(Bucket=BUCKET, Key=f"{name}/{path.name}", Body=path.read_bytes())

    def kill(self):
        """SIGKILL to the gateway. The objects stay in another process."""
        self.script("stop-gateway")

    def start(self):
        self.script("start-gateway")

    def stop(self):
        self.script("stop")


def waiting(daemon):
    """The line of `tokctl status` about a session that waits for the store, or None."""
    tokctl = REPO / "build" / "bin" / "tokctl"
    command = [tokctl, "status", "--socket", daemon.socket]
    lines = subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    found = [line.strip() for line in lines if line.startswith("  waiting ")]
    return found[0] if found else None


def kill_store(screen, store, job, seconds):
    """Kills the store for some seconds. Returns the step."""
    at, began = job.step, time.time()
    store.kill()
    screen.say(f"  step {at}: SIGKILL to the store")
    job.follow(seconds=seconds)
    said, away = waiting(job.daemon), time.time()
    store.start()
    answers = time.time()
    steps = sum(began < step["at"] < away for step in job.steps) // job.world
    if said:
        screen.say(f"  tokctl status: {said}")
    job.follow(step=job.step + 2)
    screen.say(
        f"  step {job.step}: the store was away for {answers - began:.0f} s, and {steps} steps "
        f"were made without it; training continued {time.time() - answers:.0f} s after its return"
    )
    return at
