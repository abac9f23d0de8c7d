"""`make run`: trains a small GPT on real text, and kills daemon and trainers meanwhile.

    show.py             shards on disk
    show.py --store     shards in an object store on this machine, which is killed, too: Ceph's
                        gateway, with its objects in memory (make run-objects)

Starts the daemon and the trainers as an operator would, kills and restarts them, and compares the
recorded rows with the order at the end. The trainer is client/example/gpt/train.py.
"""

import importlib.util
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parents[1]
BIN, RUN, SHARDS = REPO / "build/bin", REPO / "build/run", REPO / "build/shards"
SAMPLES = 16  # of a step, on all ranks
KILL_DAEMON, KILL_STORE, KILL_TRAINERS, RESCALE, END = 60, 90, 133, 200, 300  # steps
STORE_AWAY_S = 20
SLOTS = 8  # with a store: the usual ring would hold the rest of this short run
ALONE = SLOTS // 2  # steps that are made without daemon or store
BUCKET, KEY, SECRET, REGION = "tokens", "TOKENDKEY", "tokendsecret0123456789", "us-east-1"
CONFIG = """\
state_dir: state
memory: 64MiB
streams:
  train:
    seed: 42
    seq_len: 128
    eos: 50256
    vocab: 50257
    datasets:
      - {{name: python, {python}, weight: 0.5}}
      - {{name: torch, {torch}, weight: 0.2, slide: true}}
      - {{name: headers, {headers}, weight: 0.3, shuffle: block, block: 16, group: 32}}
"""

processes = []  # all that were started


def act(title):
    print(f"\n{title}", flush=True)


def say(text):
    print("  " + text, flush=True)


def start(*command, stdout=None, **environment):
    """Starts a process that gets no Ctrl-C."""
    environment = os.environ | {name: str(value) for name, value in environment.items()}
    with open(RUN / "log", "a") as log:
        keys = {"stdin": subprocess.DEVNULL, "stdout": stdout or log, "stderr": log}
        keys |= {"env": environment, "cwd": RUN, "text": True, "start_new_session": True}
        processes.append(subprocess.Popen([str(word) for word in command], **keys))
    return processes[-1]


def kill(*victims):
    for process in victims:
        process.kill()
    for process in victims:
        process.wait()


def done(*command):
    """Runs a command to its end. Returns its output."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"FAILED: {words[0]}: {ended.stderr or ended.stdout}")
    return ended.stdout


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def package(name):
    """The directory of an installed package, which is not imported."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def prepare():
    """Makes token shards, once, in place of a team's own tokenising job. The text is what each
    machine with torch has. Returns {dataset: directory of shards}.
    """
    sources = {
        "python": pathlib.Path(sysconfig.get_path("stdlib")),
        "torch": package("torch") / "distributed",
        "headers": package("torch") / "include",
    }
    if not SHARDS.is_dir():
        part = SHARDS.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        # openai-whisper is installed for one file, GPT-2's vocabulary
        ranks = package("whisper") / "assets" / "gpt2.tiktoken"
        command = [sys.executable, "-m", "tokend", "init", *sources.values()]
        # at most 10 MiB of each dataset
        subprocess.run([*command, "--tokenizer", ranks, "--most", "10"], cwd=part, check=True)
        part.rename(SHARDS)
    return {name: SHARDS / "tokens" / source.resolve().name for name, source in sources.items()}


class Store:
    """Ceph's gateway, whose objects stay in another process if it is killed."""

    def __init__(self):
        self.directory, self.port = RUN / "store", free_port()

    def script(self, word, *more):
        command = [REPO / "tests/objects/radosgw.sh", word, self.directory, *map(str, more)]
        # not a pipe: the store's processes would keep it open
        with open(RUN / "store.log", "a") as log:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)

    def start(self, shards):
        """Puts the shards of {dataset: directory} into a bucket. Returns {dataset: keys for the
        config}: the daemon reads names and sizes from a manifest, and never lists.
        """
        self.script("start", self.port)
        endpoint = f"http://127.0.0.1:{self.port}"
        os.environ |= {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": endpoint,
        }
        signed = ["curl", "-fsS", "--noproxy", "*", "--aws-sigv4", f"aws:amz:{REGION}:s3"]
        signed += ["--user", f"{KEY}:{SECRET}", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        done(*signed, "-X", "PUT", f"{endpoint}/{BUCKET}/")
        for name, directory in shards.items():
            for path in sorted(directory.glob("*.bin")):
                done(*signed, "-T", path, f"{endpoint}/{BUCKET}/{name}/{path.name}")
            manifest = self.directory / f"{name}.jsonl"
            done(BIN / "tokctl", "manifest", f"s3://{BUCKET}/{name}/", manifest)
        return {
            name: f'path: "s3://{BUCKET}/{name}/", manifest: store/{name}.jsonl' for name in shards
        }


def start_daemon():
    """Returns the daemon when it answers."""
    began, daemon = time.monotonic(), start(BIN / "tokend", "-c", RUN / "tokend.yaml")
    while subprocess.run([BIN / "tokctl", "status"], capture_output=True, check=False).returncode:
        if daemon.poll() is not None:
            sys.exit(f"FAILED: tokend did not start; see {RUN}/log")
    say(f"it answers {1000 * (time.monotonic() - began):.0f} ms after its start")
    return daemon


class Job:
    """The ranks of train.py, with the variables that torchrun sets. Rank 0 prints each step."""

    def __init__(self, world, until, *slots):
        self.losses = []  # of all steps
        self.step = self.resumed = None
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": world,
            "OMP_NUM_THREADS": max(1, len(os.sched_getaffinity(0)) // world),
            "OMP_WAIT_POLICY": "PASSIVE",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = sys.executable, REPO / "client/example/gpt/train.py", until, *slots
        outputs = [subprocess.PIPE] + [None] * (world - 1)
        self.ranks = [
            start(*command, stdout=output, RANK=rank, **environment)
            for rank, output in enumerate(outputs)
        ]

    def follow(self, until):
        """Waits until a step is done."""
        while self.step != until:
            line = self.ranks[0].stdout.readline()
            if not line:
                sys.exit(f"FAILED: a trainer ended early; see {RUN}/log")
            _, step, _, loss, *_ = line.split()  # "step 1 loss 10.8 …"
            self.step = int(step)
            self.resumed = self.step - 1 if self.resumed is None else self.resumed
            self.losses.append(float(loss))
            if self.step % 20 == 0:
                say(line.strip())


def kill_daemon(daemon, job):
    kill(daemon)
    say(f"step {job.step}: SIGKILL to the daemon")
    job.follow(job.step + ALONE)
    say(f"step {job.step}: {ALONE} steps were made without one; a new daemon starts")
    start_daemon()


def kill_store(store, job):
    store.script("stop-gateway")
    say(f"step {job.step}: SIGKILL to the store")
    job.follow(job.step + ALONE)
    say(f"step {job.step}: {ALONE} steps were made without it; soon all ranks wait")
    time.sleep(STORE_AWAY_S)
    status = done(BIN / "tokctl", "status").splitlines()
    say("tokctl status:" + "".join([line for line in status if line.startswith("  waiting ")][:1]))
    store.script("start-gateway")
    began = time.monotonic()
    job.follow(job.step + SLOTS)
    say(f"step {job.step}: training continued {time.monotonic() - began:.0f} s after its return")


def train(store):
    """Returns the first job and the last."""
    act("Code of Python and torch becomes token shards, by GPT-2's tokenizer")
    shards = prepare()
    paths, slots = {name: f'path: "{directory}"' for name, directory in shards.items()}, []
    if store:
        act("The shards move into an object store: Ceph's gateway")
        paths, slots = store.start(shards), [SLOTS]
        say(f"port {store.port}; the trainers never see a local shard")
    (RUN / "tokend.yaml").write_text(CONFIG.format(**paths))

    act("The daemon starts: three datasets mixed 50:20:30, seed 42; no index is built")
    daemon = start_daemon()

    act("Two processes train; the daemon is killed, and they continue with their rings")
    first = Job(2, END, *slots)
    first.follow(KILL_DAEMON)
    kill_daemon(daemon, first)
    if store:
        act(f"The store is killed; trainers continue with the {SLOTS} batches in their rings")
        first.follow(KILL_STORE)
        kill_store(store, first)

    act("All trainers are killed between two checkpoints, one every 40 steps")
    first.follow(KILL_TRAINERS)
    kill(*first.ranks)
    say(f"step {first.step}: SIGKILL to both trainers")

    act(f"They resume from the last checkpoint, until a planned stop at step {RESCALE}")
    second = Job(2, RESCALE, *slots)
    second.follow(RESCALE)
    undone = first.step - second.resumed
    say(f"resumed at step {second.resumed}: {undone} steps were undone by the kill")

    act("One process continues where two stopped, with the same global batches")
    for rank in second.ranks:
        rank.wait()
    third = Job(1, END, *slots)
    third.follow(END)
    third.ranks[0].wait()
    say(f"resumed at step {third.resumed} on 1 rank instead of 2; stopped at step {third.step}")
    return first, third


def prove(first, last):
    act("tokctl verify compares the records of all ranks with the order and the shards")
    command = BIN / "tokctl", "verify", "-c", RUN / "tokend.yaml", "train", RUN / "records"
    said = done(*command).splitlines()
    for line in said:
        say(line)
    begin, end = sum(first.losses[:3]) / 3, sum(last.losses[-20:]) / 20
    say(f"loss {begin:.2f} -> {end:.2f}")
    exact = said[0].startswith(f"OK: every sample from 0 to {END * SAMPLES - 1} once")
    if not exact or end > begin - 2:
        sys.exit("FAILED: not as promised")


def main():
    began = time.monotonic()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir()
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    store = Store() if "--store" in sys.argv[1:] else None
    # a checkout's path may be too long for a socket
    with tempfile.TemporaryDirectory(prefix="tokend-", dir="/tmp") as directory:
        os.environ |= {
            "TOKEND_SOCKET": f"{directory}/tokend.sock",
            "TOKEND_BIN": str(BIN),
            "PYTHONPATH": str(REPO / "build" / "python"),
        }
        try:
            prove(*train(store))
            say(f"{time.monotonic() - began:.0f} s")
        finally:
            kill(*processes)
            if store:
                store.script("stop")


if __name__ == "__main__":
    main()
