"""Token shards of real text, in place of a team's own tokenising job, and an object store for them.

The text is what each machine with torch has: code of Python's library and of torch. The tokenizer
is GPT-2's. The store of `make run-objects` is Ceph's gateway, with its objects in memory.
"""

import importlib.util
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import sysconfig

REPO = pathlib.Path(__file__).resolve().parents[3]
MIB = 10  # at most, of each dataset
TOKEN_BYTES = 2
BUCKET = "tokens"
KEY, SECRET, REGION = "TOKENDKEY", "tokendsecret0123456789", "us-east-1"


def done(*command, **more):
    """Runs a command to its end. Returns its output."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def package(name):
    """The directory of an installed package, which is not imported."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def prepare(data):
    """Makes the directory DATA, once. Returns {dataset: directory of shards}, and their tokens."""
    sources = {
        "python": pathlib.Path(sysconfig.get_path("stdlib")),
        "torch": package("torch") / "distributed",
        "headers": package("torch") / "include",
    }
    if not data.is_dir():
        part = data.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        # openai-whisper is installed for one file, GPT-2's vocabulary
        ranks = package("whisper") / "assets" / "gpt2.tiktoken"
        command = [sys.executable, "-m", "tokend", "init", *sources.values()]
        done(*command, "--tokenizer", ranks, "--most", MIB, cwd=part)
        part.rename(data)
    made = {name: data / "tokens" / source.resolve().name for name, source in sources.items()}
    sizes = [path.stat().st_size for shards in made.values() for path in shards.glob("*.bin")]
    return made, sum(sizes) // TOKEN_BYTES


class Store:
    def __init__(self, directory):
        self.directory, self.endpoint = directory, f"http://127.0.0.1:{free_port()}"

    def script(self, word, *more):
        """stop-gateway: SIGKILL to the gateway. The objects stay in another process."""
        command = [REPO / "tests" / "objects" / "radosgw.sh", word, self.directory, *more]
        # not a pipe: the store's processes would keep it open
        with open(self.directory.with_suffix(".log"), "a") as log:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)

    def start(self, shards):
        """Puts the shards of {dataset: directory} into the bucket, and writes DATASET.jsonl, their
        manifests: the daemon never lists. Daemon and tokctl read from it, not trainers.
        """
        self.script("start", self.endpoint.rpartition(":")[2])
        os.environ |= {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }
        signed = ["curl", "-fsS", "--noproxy", "*", "--aws-sigv4", f"aws:amz:{REGION}:s3"]
        signed += ["--user", f"{KEY}:{SECRET}", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        done(*signed, "-X", "PUT", f"{self.endpoint}/{BUCKET}/")
        for name, directory in shards.items():
            for path in sorted(directory.glob("*.bin")):
                done(*signed, "-T", path, f"{self.endpoint}/{BUCKET}/{name}/{path.name}")
            manifest = self.directory / f"{name}.jsonl"
            done(REPO / "build/bin/tokctl", "manifest", f"s3://{BUCKET}/{name}/", manifest)
