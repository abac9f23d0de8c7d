"""`make run`: trains a small GPT on real text, and kills daemon and trainers meanwhile.

Starts the daemon and the trainers as an operator would, kills and restarts them, and compares the
recorded rows with the order at the end. train.py is an example for users; this file is not.
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

REPO = pathlib.Path(__file__).resolve().parents[3]
BIN, RUN, SHARDS = REPO / "build/bin", REPO / "build/run", REPO / "build/shards"
SAMPLES = 16  # of a step, on all ranks
KILL_DAEMON, KILL_TRAINERS, RESCALE, END = 60, 133, 200, 300  # steps
ALONE = 4  # steps that are made without a daemon
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
      - {{name: python, path: "{python}", weight: 0.5}}
      - {{name: torch, path: "{torch}", weight: 0.2, slide: true}}
      - {{name: headers, path: "{headers}", weight: 0.3, shuffle: block, block: 16, group: 32}}
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

    def __init__(self, world, until):
        self.losses = []  # of all steps
        self.step = self.resumed = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": world,
            "OMP_NUM_THREADS": max(1, len(os.sched_getaffinity(0)) // world),
            "OMP_WAIT_POLICY": "PASSIVE",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = sys.executable, REPO / "client/example/gpt/train.py", until
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


def train():
    """Returns the first job and the last."""
    act("Code of Python and torch becomes token shards, by GPT-2's tokenizer")
    (RUN / "tokend.yaml").write_text(CONFIG.format(**prepare()))

    act("The daemon starts: three datasets mixed 50:20:30, seed 42; no index is built")
    daemon = start_daemon()

    act("Two processes train; the daemon is killed, and they continue with their rings")
    first = Job(2, END)
    first.follow(KILL_DAEMON)
    kill_daemon(daemon, first)

    act("All trainers are killed between two checkpoints, one every 40 steps")
    first.follow(KILL_TRAINERS)
    kill(*first.ranks)
    say(f"step {first.step}: SIGKILL to both trainers")

    act(f"They resume from the last checkpoint, until a planned stop at step {RESCALE}")
    second = Job(2, RESCALE)
    second.follow(RESCALE)
    undone = first.step - second.resumed
    say(f"resumed at step {second.resumed}: {undone} steps were undone by the kill")

    act("One process continues where two stopped, with the same global batches")
    for rank in second.ranks:
        rank.wait()
    third = Job(1, END)
    third.follow(END)
    third.ranks[0].wait()
    say(f"resumed at step {third.resumed} on 1 rank instead of 2; stopped at step {third.step}")
    return first, third


def prove(first, last):
    act("tokctl verify compares the records of all ranks with the order and the shards")
    command = [BIN / "tokctl", "verify", "-c", RUN / "tokend.yaml", "train", RUN / "records"]
    verified = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    said = verified.stdout.splitlines()
    for line in said:
        say(line)
    begin, end = sum(first.losses[:3]) / 3, sum(last.losses[-20:]) / 20
    say(f"loss {begin:.2f} -> {end:.2f}")
    exact = said[:1] == [f"OK: every sample from 0 to {END * SAMPLES - 1} once"]
    if verified.returncode or not exact or end > begin - 2:
        sys.exit("FAILED: not as promised")


def main():
    began = time.monotonic()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir()
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    # a checkout's path may be too long for a socket
    with tempfile.TemporaryDirectory(prefix="tokend-", dir="/tmp") as directory:
        os.environ |= {
            "TOKEND_SOCKET": f"{directory}/tokend.sock",
            "TOKEND_BIN": str(BIN),
            "PYTHONPATH": str(REPO / "build" / "python"),
        }
        try:
            prove(*train())
            say(f"{time.monotonic() - began:.0f} s")
        finally:
            kill(*processes)


if __name__ == "__main__":
    main()
