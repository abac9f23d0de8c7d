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
BUCKET = "tokens"
KEY, SECRET, REGION = "TOKENDKEY", "tokendsecret0123456789", "us-east-1"


def done(*command):
    """Runs a command to its end. Returns its output."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"FAILED: {words[0]}: {ended.stderr or ended.stdout}")
    return ended.stdout


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def package(name):
    """The directory of an installed package, which is not imported."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def prepare(data):
    """Makes the directory DATA, once. Returns {dataset: directory of shards}."""
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
        subprocess.run([*command, "--tokenizer", ranks, "--most", str(MIB)], cwd=part, check=True)
        part.rename(data)
    return {name: data / "tokens" / source.resolve().name for name, source in sources.items()}


class Store:
    """Ceph's gateway, whose objects stay in another process if it is killed."""

    def __init__(self, directory):
        self.directory, self.endpoint = directory, f"http://127.0.0.1:{free_port()}"

    def script(self, word, *more):
        command = [REPO / "tests" / "objects" / "radosgw.sh", word, self.directory, *more]
        # not a pipe: the store's processes would keep it open
        with open(self.directory.with_suffix(".log"), "a") as log:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)

    def start(self, shards):
        """Puts the shards of {dataset: directory} into a bucket. Returns {dataset: keys for the
        config}: the daemon reads names and sizes from a manifest, and never lists.
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
        return {
            name: f'path: "s3://{BUCKET}/{name}/", manifest: store/{name}.jsonl' for name in shards
        }
