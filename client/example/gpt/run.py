"""`make run`: trains a small GPT on real text, and kills daemon and trainers meanwhile.

    run.py              shards on disk
    run.py --store      shards in an object store on this machine, which is killed, too
                        (make run-objects)

Starts the daemon and the trainers as an operator would, kills and restarts them, and compares the
recorded rows with the order at the end. train.py is an example for users; this file is not.
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import picture
from shards import BUCKET, REPO, Store, done, free_port, prepare

BIN, RUN = REPO / "build" / "bin", REPO / "build" / "run"
CONFIG, RECORDS = RUN / "tokend.yaml", RUN / "records"

GLOBAL_BATCH, TOKENS_PER_STEP = 16, 16 * 128
KILL_DAEMON, KILL_STORE, KILL_TRAINERS, RESCALE, END = 60, 90, 133, 200, 300  # steps
STORE_AWAY_S = 20
SLOTS = 8  # with a store: the usual ring would hold the rest of this short run

STREAMS = """\
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


began = time.monotonic()
processes = []  # all that were started


def act(title):
    print(f"\n{title}   ({time.monotonic() - began:.0f} s)", flush=True)


def say(text):
    print("  " + text, flush=True)


def start(command, log, **environment):
    """Starts a process that gets no Ctrl-C, and SIGTERM if this one dies."""
    command = ["setpriv", "--pdeathsig", "TERM", *map(str, command)]
    environment = os.environ | {name: str(value) for name, value in environment.items()}
    with open(log, "a") as output:
        keys = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = subprocess.Popen(
            command, env=environment, cwd=RUN, start_new_session=True, **keys
        )
    processes.append(process)
    return process


def start_daemon():
    """Returns the daemon, and the milliseconds until it answered."""
    began, log = time.monotonic(), RUN / "tokend.log"
    daemon = start([BIN / "tokend", "-c", CONFIG], log)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        while probe.connect_ex(os.environ["TOKEND_SOCKET"]) != 0:
            if daemon.poll() is not None or time.monotonic() - began > 10:
                sys.exit(f"FAILED: tokend did not start; see {log}")
            time.sleep(0.001)
    return daemon, 1000 * (time.monotonic() - began)


class Job:
    """The ranks of train.py, with the variables that torchrun sets; rank 0 notes each step."""

    def __init__(self, name, world, until, *slots):
        self.log, self.notes = RUN / f"trainers-{name}.log", RUN / f"steps-{name}.jsonl"
        self.steps, self.shown = [], 0
        command = [sys.executable, pathlib.Path(__file__).with_name("train.py"), self.notes, until]
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": world,
            "OMP_NUM_THREADS": max(1, len(os.sched_getaffinity(0)) // world),
            "OMP_WAIT_POLICY": "PASSIVE",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.ranks = [
            start([*command, *slots], self.log, RANK=rank, **environment) for rank in range(world)
        ]

    @property
    def step(self):
        return self.steps[-1]["step"] if self.steps else 0

    def look(self):
        """Reads the notes."""
        text = self.notes.read_text() if self.notes.exists() else ""
        self.steps = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        if self.step >= self.shown + 20:
            self.shown, recent = self.step, self.steps[-10:]
            loss, took, waited = (mean(recent, name) for name in ("loss", "took", "waited"))
            say(
                f"step {self.step:3}/{END}  loss {loss:6.3f}  {TOKENS_PER_STEP / took:6,.0f} "
                f"tokens/s  waiting for data {100 * waited / took:5.2f} %"
            )

    def follow(self, step=None, seconds=None):
        """Waits until a step is done, for some seconds, or until the job ends."""
        until = time.monotonic() + seconds if seconds else None
        while not (step and self.step >= step) and not (until and time.monotonic() > until):
            time.sleep(0.1)
            codes = [rank.poll() for rank in self.ranks]
            self.look()
            if any(codes) or (0 in codes and (step or seconds)):
                sys.exit(f"FAILED: a trainer ended early ({codes}); see {self.log}")
            if None not in codes:
                return

    def kill(self):
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()
        self.look()


def mean(steps, name):
    return sum(step[name] for step in steps) / len(steps)


def kill_daemon(daemon, job):
    killed, at = time.time(), job.step
    daemon.kill()
    daemon.wait()
    say(f"step {at}: SIGKILL to the daemon")
    job.follow(seconds=2.0)
    _, answers = start_daemon()
    job.look()
    alone = sum(step["at"] > killed for step in job.steps)
    say(
        f"step {job.step}: a new daemon answers {answers:.0f} ms after its start; "
        f"{alone} steps were made without one"
    )


def kill_store(store, job):
    at = job.step
    store.script("stop-gateway")
    say(f"step {at}: SIGKILL to the store")
    job.follow(seconds=STORE_AWAY_S)
    status = done(BIN / "tokctl", "status").splitlines()
    waiting = next((line for line in status if line.startswith("  waiting ")), "")
    say(f"tokctl status: {waiting.strip()}")
    steps = job.step - at
    store.script("start-gateway")
    answers = time.time()
    job.follow(step=job.step + 2)
    say(
        f"step {job.step}: the store was away for {STORE_AWAY_S} s, and {steps} steps were made "
        f"without it; training continued {time.time() - answers:.0f} s after its return"
    )


def story(store):
    """Returns the jobs, and {step: event}."""
    act("Code of Python and torch becomes token shards, by GPT-2's tokenizer")
    shards, tokens = prepare(REPO / "build" / "shards")
    say(f"{tokens:,} tokens in three datasets: {', '.join(shards)}")
    paths, slots = {name: f'path: "{directory}"' for name, directory in shards.items()}, []
    if store:
        act("The shards move into an object store: Ceph's gateway")
        store.start(shards)
        for name in shards:
            paths[name] = f'path: "s3://{BUCKET}/{name}/", manifest: store/{name}.jsonl'
        slots = [SLOTS]
        say(f"{store.endpoint}, bucket {BUCKET}; the trainers never see a local shard")
    CONFIG.write_text(STREAMS.format(**paths))

    act("The daemon starts: three datasets mixed 50:20:30, seed 42; no index is built")
    daemon, answers = start_daemon()
    say(f"it answers after {answers:.0f} ms")

    act("Two processes train; the daemon is killed, and they continue with their rings")
    first, events = Job("1", 2, END, *slots), {}
    first.follow(step=KILL_DAEMON)
    events[first.step] = "daemon killed"
    kill_daemon(daemon, first)
    if store:
        act(f"The store is killed; trainers continue with the {SLOTS} batches in their rings")
        first.follow(step=KILL_STORE)
        events[first.step] = "store killed"
        kill_store(store, first)

    act("All trainers are killed between two checkpoints, one every 40 steps")
    first.follow(step=KILL_TRAINERS)
    first.kill()
    events[first.step] = "all trainers killed"
    say(f"step {first.step}: SIGKILL to both trainers")

    act(f"They resume from the last checkpoint, until a planned stop at step {RESCALE}")
    second = Job("2", 2, RESCALE, *slots)
    second.follow()
    resumed = second.steps[0]["step"] - 1
    say(
        f"resumed at step {resumed}: {first.step - resumed} steps were undone by the kill; "
        f"stopped at step {second.step}"
    )

    act("One process continues where two stopped, with the same global batches")
    third = Job("3", 1, END, *slots)
    third.follow()
    resumed = third.steps[0]["step"] - 1
    events[resumed] = "resumed on 1 rank instead of 2"
    say(f"resumed at step {resumed} on 1 rank instead of 2; stopped at step {third.step}")
    return (first, second, third), events


def proof(jobs, events):
    act("tokctl verify compares the records of all ranks with the order and the shards")
    found = json.loads(done(BIN / "tokctl", "verify", "-c", CONFIG, "train", RECORDS, "--json"))
    # A restart undoes the steps after its checkpoint.
    ends = [job.steps[0]["step"] - 1 for job in jobs[1:]] + [END]
    kept = [step for job, end in zip(jobs, ends) for step in job.steps if step["step"] <= end]
    undone = [step for step in jobs[0].steps if step["step"] > ends[0]]
    picture.draw(RUN / "loss.svg", kept, undone, events)

    first, last = mean(kept[:3], "loss"), mean(kept[-20:], "loss")
    waited = 100 * mean(kept, "waited") / mean(kept, "took")
    mix = (f"{d['name']} {100 * d['samples'] / found['samples']:.1f} %" for d in found["datasets"])
    say(f"loss               {first:.2f} -> {last:.2f}")
    say(f"picture            {(RUN / 'loss.svg').relative_to(REPO)}")
    say(f"mix                {', '.join(mix)}")
    say(f"undone             {found['void']} rows after the kill, which were trained on again")
    say(f"waiting for data   {waited:.2f} % of all steps\n")
    verdict = "samples {samples:,}, repeated {repeated}, lost {lost}, altered {altered}"
    say(verdict.format(**found))
    wrong = [name for name in ("repeated", "lost", "altered") if found[name]]
    if found["samples"] != END * GLOBAL_BATCH:
        wrong.append("samples")
    if last > first - 2:
        wrong.append("the loss did not fall")
    if wrong:
        sys.exit("FAILED: not as promised: " + ", ".join(wrong))


def main():
    lock = open(RUN.with_suffix(".lock"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return f"run.py: another run is using {RUN}; wait for it, or stop it"
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    store = Store(RUN / "store") if "--store" in sys.argv[1:] else None
    # a checkout's path may be too long for a socket
    directory = tempfile.mkdtemp(prefix="tokend-", dir="/tmp")
    os.environ |= {
        "TOKEND_SOCKET": f"{directory}/tokend.sock",
        "TOKEND_BIN": str(BIN),
        "PYTHONPATH": str(REPO / "build" / "python"),
    }
    try:
        proof(*story(store))
        say(f"{time.monotonic() - began:.0f} s")
    except subprocess.CalledProcessError as failure:
        return f"FAILED: {failure.cmd[0]}: {failure.stderr or failure.stdout}"
    except KeyboardInterrupt:
        return "stopped"
    finally:
        for process in processes:
            process.kill()
            process.wait()
        if store:
            store.script("stop")
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
