"""`make run`: trains a small GPT on real text, and kills daemon and trainers meanwhile.

    run.py              shards on disk
    run.py --store      shards in an object store on this machine, which is killed, too
                        (make run-objects)

Starts the daemon and the trainers as an operator would, kills and restarts them, and compares the
recorded rows with the order at the end. train.py is an example for users; this file is not.
"""

import ctypes
import fcntl
import glob
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
from store import BUCKET, Store

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[2]
BIN, RUN = REPO / "build" / "bin", REPO / "build" / "run"
CONFIG, DATA, RECORDS = RUN / "tokend.yaml", RUN / "data", RUN / "records"

TOKENS_PER_STEP = 16 * 128
KILL_DAEMON, KILL_STORE, KILL_TRAINERS, RESCALE, END = 60, 90, 133, 200, 300  # steps
STORE_AWAY_S = 20
SLOTS = 8  # with a store: the usual ring would hold the rest of this short run
STALLED_S = 180
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

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
      - {{name: python, {python}, weight: 0.5, part: [0, 0.99]}}
      - {{name: torch, {torch}, weight: 0.2, slide: true}}
      - {{name: headers, {headers}, weight: 0.3, shuffle: block, block: 16, group: 32}}
  valid:
    seed: 42
    seq_len: 128
    epochs: 1
    datasets:
      - {{name: held-out, {python}, part: [0.99, 1]}}
"""


class Failure(Exception):
    """A message for the user, and the log file whose last lines are shown, or None."""

    def __init__(self, text, log=None):
        super().__init__(text)
        self.log = log


# ---- output ----

began = time.monotonic()


def act(title, *why):
    print(f"\n{title}   ({time.monotonic() - began:.0f} s)", *why, sep="\n    ", flush=True)


def say(text):
    print("  " + text, flush=True)


# ---- processes ----

libc = ctypes.CDLL(None)


def start(command, log, environment):
    """Starts a process. It gets SIGTERM if this one dies, and no Ctrl-C, which is for this one."""
    with open(log, "a") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )


def descendants(of):
    """All living processes below @of. torchrun's workers have sessions of their own."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            state, parent = open(path).read().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended
        if state != "Z":
            parents[int(path.split("/")[2])] = int(parent)
    found, generation = [], {of}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found += generation
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Daemon:
    def __init__(self, path, environment):
        self.path, self.environment, self.log = path, environment, RUN / "tokend.log"
        self.cpu_s, self.peak_mib = 0.0, 0.0

    def start(self):
        """Starts tokend. Returns the milliseconds until it answered."""
        began = time.monotonic()
        self.process = start([BIN / "tokend", "-c", CONFIG], self.log, self.environment)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            while probe.connect_ex(self.path) != 0:
                if self.process.poll() is not None or time.monotonic() - began > 10:
                    raise Failure("tokend did not start", self.log)
                time.sleep(0.001)
        return 1000 * (time.monotonic() - began)

    def end(self, number):
        """Sends a signal and waits for the end."""
        self.process.send_signal(number)
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        self.cpu_s += used.ru_utime + used.ru_stime
        self.peak_mib = max(self.peak_mib, used.ru_maxrss / 1024)
        if code != (0 if number == signal.SIGTERM else -number):
            raise Failure(f"tokend ended unexpectedly ({code})", self.log)


class Job:
    """One torchrun of train.py, followed through its log."""

    def __init__(self, daemon, name, world, until, *options):
        self.daemon, self.log = daemon, RUN / f"trainers-{name}.log"
        self.path, self.steps, self.valid = RUN / f"steps-{name}.jsonl", [], None
        self.shown, self.read, self.moved = 0, 0, time.monotonic()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        train = [
            HERE / "train.py",
            "--socket",
            daemon.path,
            "--directory",
            RUN,
            "--notes",
            self.path,
        ]
        self.process = start(
            [*torchrun, "--nproc-per-node", world, *train, "--until", until, *options],
            self.log,
            {
                "PYTHONPATH": str(REPO / "build" / "python"),
                "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // world)),
                "OMP_WAIT_POLICY": "PASSIVE",
                "GLOO_SOCKET_IFNAME": "lo",
            },
        )

    @property
    def step(self):
        return self.steps[-1]["step"] if self.steps else 0

    def look(self):
        """Reads the lines that were added to the log."""
        if not self.path.exists():
            return
        with open(self.path) as file:
            file.seek(self.read)
            whole = file.read().rpartition("\n")[0]
        self.read += len(whole) + bool(whole)
        for told in map(json.loads, whole.splitlines()):
            self.valid = told.get("valid")
            if "step" in told:
                self.steps.append(told)
                self.moved = time.monotonic()

    def show(self):
        if self.step < self.shown + 20:
            return
        self.shown = self.step
        recent = self.steps[-10:]
        loss, took, waited = (mean(recent, name) for name in ("loss", "took", "waited"))
        say(
            f"step {self.step:3}/{END}  loss {loss:6.3f}  {TOKENS_PER_STEP / took:6,.0f} tokens/s  "
            f"waiting for data {100 * waited / took:5.2f} %"
        )

    def follow(self, step=None, seconds=None, alone=False):
        """Waits until a step is done, for some seconds, or until the job ends. @alone: without a
        daemon.
        """
        until = time.monotonic() + seconds if seconds else None
        while not (step and self.step >= step) and not (until and time.monotonic() > until):
            time.sleep(0.1)
            ended = self.process.poll() is not None
            self.look()
            self.show()
            if not alone and self.daemon.process.poll() is not None:
                raise Failure("tokend ended unexpectedly", self.daemon.log)
            if time.monotonic() - self.moved > STALLED_S:
                raise Failure(f"the trainers made no step for {STALLED_S} s", self.log)
            if ended and (self.process.returncode or step or seconds):
                raise Failure(f"the trainers ended early ({self.process.returncode})", self.log)
            if ended:
                return

    def kill(self):
        """Kills torchrun and its ranks. Returns their number."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        kill(pids)
        self.process.wait()
        while set(pids) & set(descendants(os.getpid())):
            time.sleep(0.005)
        self.look()
        return len(pids)


def mean(steps, name):
    return sum(step[name] for step in steps) / len(steps)


# ---- the story ----


def done(environment, *command):
    """Runs a command to its end. Returns its output."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise Failure(done.stdout.strip())
    return done.stdout


def kill_daemon(daemon, job):
    """Returns the step."""
    job.follow(step=KILL_DAEMON)
    killed, at = time.time(), job.step
    daemon.end(signal.SIGKILL)
    say(f"step {at}: SIGKILL to the daemon")
    job.follow(seconds=2.0, alone=True)
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
    for line in status:
        if line.startswith("  waiting "):
            say("tokctl status: " + line.strip())
            break
    steps = job.step - at
    store.script("start-gateway")
    answers = time.time()
    job.follow(step=job.step + 2)
    say(
        f"step {job.step}: the store was away for {STORE_AWAY_S} s, and {steps} steps were made "
        f"without it; training continued {time.time() - answers:.0f} s after its return"
    )
    return at


def story(path, with_store):
    act("Real text becomes token shards", "GPT-2's tokenizer over code of Python and torch.")
    tokens = prepare(DATA)
    say(f"{sum(tokens.values()):,} tokens: " + ", ".join(f"{n} {t:,}" for n, t in tokens.items()))

    for old in (RECORDS, RUN / "checkpoints", RUN / "state"):
        shutil.rmtree(old, ignore_errors=True)
    for old in (*RUN.glob("*.log"), *RUN.glob("steps-*"), RUN / "loss.svg"):
        old.unlink(missing_ok=True)
    store, environment, options = None, {}, []
    paths = {name: f"path: data/{name}" for name in tokens}
    if with_store:
        act("The shards move into an object store", "Ceph's gateway, with its objects in memory.")
        store = Store(RUN / "store")
        store.put(DATA, tokens)
        environment, options = store.environment, ["--slots", SLOTS]
        for name in tokens:
            paths[name] = f'path: "s3://{BUCKET}/{name}/", manifest: data/{name}.jsonl'
        say(f"{store.endpoint}, bucket {BUCKET}; the trainers never see a local shard")
    CONFIG.write_text(STREAMS.format(socket=json.dumps(path), **paths))

    act(
        "The daemon starts",
        f"tokend -c {CONFIG.relative_to(REPO)}: three datasets mixed 50:20:30, seed 42; no index "
        "is built.",
    )
    done(environment, BIN / "tokend", "-c", CONFIG, "--check")
    daemon, events = Daemon(path, environment), {}
    say(f"it answers after {daemon.start():.0f} ms")

    act(
        "Two processes train; the daemon is killed",
        "torchrun, DDP over gloo, a small GPT. The daemon keeps no state of the run: trainers",
        "continue with the batches in their rings, then attach again at their position.",
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
    number = first.kill()
    events[first.step] = "all trainers killed"
    say(f"step {first.step}: SIGKILL to torchrun and its ranks, {number} processes")

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
    daemon.end(signal.SIGTERM)
    return daemon, (first, second, third), events


def proof(daemon, jobs, events):
    act(
        "The proof",
        "tokctl verify compares the records of all ranks with the order and the shards.",
    )
    verify = (BIN / "tokctl", "verify", "-c", CONFIG, "train", RECORDS, "--json")
    found = json.loads(done(daemon.environment, *verify))
    # A restart undoes the steps after its checkpoint.
    ends = [job.steps[0]["step"] - 1 for job in jobs[1:]] + [END]
    kept = [step for job, end in zip(jobs, ends) for step in job.steps if step["step"] <= end]
    undone = [step for step in jobs[0].steps if step["step"] > ends[0]]
    valid = [(job.step, job.valid) for job in jobs if job.valid]
    picture.draw(RUN / "loss.svg", kept, undone, valid, events)

    first, last = mean(kept[:3], "loss"), mean(kept[-20:], "loss")
    waited = 100 * mean(kept, "waited") / mean(kept, "took")
    held_out = ", ".join(f"{loss:.2f} at step {step}" for step, loss in valid)
    mix = (f"{d['name']} {100 * d['samples'] / found['samples']:.1f} %" for d in found["datasets"])
    say(f"loss               {first:.2f} -> {last:.2f}; held-out text {held_out}")
    say(f"picture            {(RUN / 'loss.svg').relative_to(REPO)}")
    say(f"mix                {', '.join(mix)}")
    say(f"undone             {found['void']} rows after the kill, which were trained on again")
    say(f"waiting for data   {waited:.2f} % of all steps")
    say(
        f"the daemon         {daemon.peak_mib:.0f} MiB with its rings, {daemon.cpu_s:.2f} s of CPU "
        "time\n"
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
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))
    # Orphaned descendants become our children, so that none is left behind.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # a checkout's path may be too long for a socket
    directory = tempfile.mkdtemp(prefix="tokend-", dir="/tmp")
    try:
        proof(*story(f"{directory}/tokend.sock", "--store" in sys.argv[1:]))
        say(f"{time.monotonic() - began:.0f} s")
    except Failure as failure:
        if failure.log:
            lines = failure.log.read_text().splitlines()
            traced = [n for n, line in enumerate(lines) if "Traceback" in line]
            begin = traced[0] if traced else max(0, len(lines) - 25)
            print(f"From {failure.log}:", *lines[begin : begin + 25], sep="\n    ")
        return f"FAILED: {failure}"
    except subprocess.CalledProcessError as failure:
        return f"FAILED: {failure.cmd[0]}: {failure.stderr or failure.returncode}"
    except KeyboardInterrupt:
        return "stopped"
    finally:
        while left := descendants(os.getpid()):
            kill(left)
            time.sleep(0.01)
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
