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
from prepare import prepare
from store import BUCKET, Store, free_port

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[2]
BIN, RUN = REPO / "build" / "bin", REPO / "build" / "run"
CONFIG, RECORDS = RUN / "tokend.yaml", RUN / "records"

TOKENS_PER_STEP = 16 * 128
KILL_DAEMON, KILL_STORE, KILL_TRAINERS, RESCALE, END = 60, 90, 133, 200, 300  # steps
STORE_AWAY_S = 20
SLOTS = 8  # with a store: the usual ring would hold the rest of this short run
STALLED_S = 180

STREAMS = """\
socket: {socket}
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


class Failure(Exception):
    """A message for the user."""


began = time.monotonic()


def act(title, *why):
    print(f"\n{title}   ({time.monotonic() - began:.0f} s)", *why, sep="\n    ", flush=True)


def say(text):
    print("  " + text, flush=True)


# ---- processes ----

processes = []  # all that were started


def start(command, log, environment):
    """Starts a process that gets no Ctrl-C, and SIGTERM if this one dies."""
    command = ["setpriv", "--pdeathsig", "TERM", *map(str, command)]
    with open(log, "a") as output:
        keys = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        environment = {**os.environ, **environment}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **keys)
    processes.append(process)
    return process


class Daemon:
    def __init__(self, path, environment):
        self.path, self.environment, self.log = path, environment, RUN / "tokend.log"

    def start(self):
        """Starts tokend. Returns the milliseconds until it answered."""
        began = time.monotonic()
        self.process = start([BIN / "tokend", "-c", CONFIG], self.log, self.environment)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            while probe.connect_ex(self.path) != 0:
                if self.process.poll() is not None or time.monotonic() - began > 10:
                    raise Failure(f"tokend did not start; see {self.log}")
                time.sleep(0.001)
        return 1000 * (time.monotonic() - began)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Job:
    """The ranks of train.py, with the variables that torchrun sets; rank 0 notes each step."""

    def __init__(self, daemon, name, world, until, *options):
        self.daemon, self.log = daemon, RUN / f"trainers-{name}.log"
        self.notes, self.steps = RUN / f"steps-{name}.jsonl", []
        self.shown, self.moved = 0, time.monotonic()
        command = [sys.executable, HERE / "train.py", "--socket", daemon.path, "--directory", RUN]
        command += ["--notes", self.notes, "--until", until, *options]
        environment = {
            "PYTHONPATH": REPO / "build" / "python",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": world,
            "OMP_NUM_THREADS": max(1, len(os.sched_getaffinity(0)) // world),
            "OMP_WAIT_POLICY": "PASSIVE",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        environment = {name: str(value) for name, value in environment.items()}
        ranks = range(world)
        self.ranks = [start(command, self.log, environment | {"RANK": str(r)}) for r in ranks]

    @property
    def step(self):
        return self.steps[-1]["step"] if self.steps else 0

    def look(self):
        """Reads the notes."""
        text = self.notes.read_text() if self.notes.exists() else ""
        steps = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        if len(steps) > len(self.steps):
            self.moved = time.monotonic()
        self.steps = steps
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
                raise Failure(f"a trainer ended early ({codes}); see {self.log}")
            if time.monotonic() - self.moved > STALLED_S:
                raise Failure(f"the trainers made no step for {STALLED_S} s; see {self.log}")
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


# ---- the story ----


def done(environment, *command):
    """Runs a command to its end. Returns its output."""
    keys = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    words, environment = [str(word) for word in command], {**os.environ, **environment}
    return subprocess.run(words, env=environment, check=True, **keys).stdout


def kill_daemon(daemon, job):
    """Returns the step."""
    job.follow(step=KILL_DAEMON)
    killed, at = time.time(), job.step
    daemon.kill()
    say(f"step {at}: SIGKILL to the daemon")
    job.follow(seconds=2.0)
    answers = daemon.start()
    job.look()
    alone = sum(step["at"] > killed for step in job.steps)
    say(
        f"step {job.step}: a new daemon answers {answers:.0f} ms after its start; "
        f"{alone} steps were made without one"
    )
    return at


def kill_store(store, job):
    """Returns the step."""
    job.follow(step=KILL_STORE)
    at = job.step
    store.script("stop-gateway")
    say(f"step {at}: SIGKILL to the store")
    job.follow(seconds=STORE_AWAY_S)
    status = done({}, BIN / "tokctl", "status", "--socket", job.daemon.path).splitlines()
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
    return at


def story(path, store):
    """Returns the environment of commands that read shards, the jobs, and {step: event}."""
    act("Real text becomes token shards", "GPT-2's tokenizer over code of Python and torch.")
    shards, tokens = prepare(RUN / "shards")
    say(f"{tokens:,} tokens in three datasets: {', '.join(shards)}")
    for old in (RECORDS, RUN / "checkpoints", RUN / "state"):
        shutil.rmtree(old, ignore_errors=True)
    for old in (*RUN.glob("*.log"), *RUN.glob("steps-*"), RUN / "loss.svg"):
        old.unlink(missing_ok=True)
    paths = {name: f'path: "{directory}"' for name, directory in shards.items()}
    environment, options = {}, []
    if store:
        act("The shards move into an object store", "Ceph's gateway, with its objects in memory.")
        store.start()
        store.put(shards)
        environment, options = store.environment, ["--slots", SLOTS]
        for name in shards:
            paths[name] = f'path: "s3://{BUCKET}/{name}/", manifest: store/{name}.jsonl'
        say(f"{store.endpoint}, bucket {BUCKET}; the trainers never see a local shard")
    CONFIG.write_text(STREAMS.format(socket=json.dumps(path), **paths))

    act(
        "The daemon starts",
        f"tokend -c {CONFIG.relative_to(REPO)}: three datasets mixed 50:20:30, seed 42; no index "
        "is built.",
    )
    daemon, events = Daemon(path, environment), {}
    say(f"it answers after {daemon.start():.0f} ms")

    act(
        "Two processes train; the daemon is killed",
        "DDP over gloo, a small GPT. The daemon keeps no state of the run: trainers continue with",
        "the batches in their rings, then attach again at their position.",
    )
    first = Job(daemon, "1", 2, END, *options)
    events[kill_daemon(daemon, first)] = "daemon killed"
    if store:
        act(
            "The store is killed, and started again",
            f"It is away for {STORE_AWAY_S} s. Trainers continue with the {SLOTS} batches in their "
            "rings, then wait.",
        )
        events[kill_store(store, first)] = "store killed"

    act(
        "All trainers are killed between two checkpoints",
        "A checkpoint every 40 steps contains model, optimizer and loader; later steps are undone.",
    )
    first.follow(step=KILL_TRAINERS)
    first.kill()
    events[first.step] = "all trainers killed"
    say(f"step {first.step}: SIGKILL to both trainers")

    act(
        "They resume from the last checkpoint",
        f"Two processes again, until a planned stop at step {RESCALE}.",
    )
    second = Job(daemon, "2", 2, RESCALE, *options)
    second.follow()
    resumed = second.steps[0]["step"] - 1
    say(
        f"resumed at step {resumed}: {first.step - resumed} steps were undone by the kill; "
        f"stopped at step {second.step}"
    )

    act("One process continues where two stopped", "It reads the same global batches.")
    third = Job(daemon, "3", 1, END, *options)
    third.follow()
    resumed = third.steps[0]["step"] - 1
    events[resumed] = "resumed on 1 rank instead of 2"
    say(f"resumed at step {resumed} on 1 rank instead of 2; stopped at step {third.step}")
    return environment, (first, second, third), events


def proof(environment, jobs, events):
    act(
        "The proof",
        "tokctl verify compares the records of all ranks with the order and the shards.",
    )
    verify = BIN / "tokctl", "verify", "-c", CONFIG, "train", RECORDS, "--json"
    found = json.loads(done(environment, *verify))
    # A restart undoes the steps after its checkpoint.
    ends = [job.steps[0]["step"] - 1 for job in jobs[1:]] + [END]
    kept = [step for job, end in zip(jobs, ends) for step in job.steps if step["step"] <= end]
    undone = [step for step in jobs[0].steps if step["step"] > ends[0]]
    picture.draw(RUN / "loss.svg", kept, undone, events)

    first, last = mean(kept[:3], "loss"), mean(kept[-20:], "loss")
    mix = (f"{d['name']} {100 * d['samples'] / found['samples']:.1f} %" for d in found["datasets"])
    say(f"loss               {first:.2f} -> {last:.2f}")
    say(f"picture            {(RUN / 'loss.svg').relative_to(REPO)}")
    say(f"mix                {', '.join(mix)}")
    say(f"undone             {found['void']} rows after the kill, which were trained on again")
    say(
        f"waiting for data   {100 * mean(kept, 'waited') / mean(kept, 'took'):.2f} % of all steps\n"
    )
    verdict = "samples {samples:,}, repeated {repeated}, lost {lost}, altered {altered}"
    say(verdict.format(**found))
    wrong = [name for name in ("repeated", "lost", "altered") if found[name]]
    if found["samples"] != END * TOKENS_PER_STEP // 128:
        wrong.append("samples")
    if last > first - 2:
        wrong.append("the loss did not fall")
    if wrong:
        raise Failure("not as promised: " + ", ".join(wrong))


def main():
    RUN.mkdir(parents=True, exist_ok=True)
    lock = open(RUN / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return f"run.py: another run is using {RUN}; wait for it, or stop it"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    store = Store(RUN / "store") if "--store" in sys.argv[1:] else None
    # a checkout's path may be too long for a socket
    directory = tempfile.mkdtemp(prefix="tokend-", dir="/tmp")
    try:
        proof(*story(f"{directory}/tokend.sock", store))
        say(f"{time.monotonic() - began:.0f} s")
    except Failure as failure:
        return f"FAILED: {failure}"
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
