"""`make run`: trains a small GPT on real text, and kills daemon and trainers meanwhile.

    run.py              shards on disk
    run.py --store      shards in an object store on this machine, which is killed, too
                        (make run-objects)

Starts the daemon and the trainers as an operator would, kills and restarts them, and compares the
recorded rows with the order at the end. train.py is an example for users; this file is not.
"""

import argparse
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

import prepare
import processes
import report
from store import BUCKET, Store, kill_store

REPO = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
BIN = REPO / "build" / "bin"
RUN = REPO / "build" / "run"
CONFIG, DATA, RECORDS, CHECKPOINTS = (
    RUN / "tokend.yaml",
    RUN / "data",
    RUN / "records",
    RUN / "checkpoints",
)

SEQ_LEN, GLOBAL_BATCH = 128, 16
CHECKPOINT_EVERY = 40
KILL_DAEMON, KILL_TRAINERS, RESCALE, END = 60, 133, 200, 300  # steps
KILL_STORE = 90, 230
STORE_AWAY_S = 5, 20
SLOTS = 8  # with a store: the usual ring would hold the rest of this short run
SOCKET_PATH_BYTES = 107
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
      - {{name: code, {code}, weight: 0.5}}
      - {{name: manual, {manual}, weight: 0.2, slide: true}}
      - {{name: kernel, {kernel}, weight: 0.3, shuffle: block, block: 16, group: 32}}
  valid:
    seed: 42
    seq_len: 128
    epochs: 1
    datasets:
      - {{name: held-out, {valid}}}
"""
DATASETS = ("code", "manual", "kernel", "valid")


class Failure(Exception):
    """A message for the user, and the log file whose last lines are shown, or None."""

    def __init__(self, text, log=None):
        super().__init__(text)
        self.log = log


class Stopped(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived."""


# ---- output ----


class Screen:
    def __init__(self):
        self.began, self.acts, self.live = time.monotonic(), 0, sys.stdout.isatty()
        self.shown, self.last = 0.0, ""

    def act(self, title, why):
        self.acts += 1
        self.say(f"\n[{self.acts}] {title}   ({time.monotonic() - self.began:.0f} s)")
        for line in why:
            self.say("    " + line)

    def say(self, text):
        print(("\r\033[K" if self.live else "") + text, flush=True)

    def progress(self, text):
        """Shows progress: one line, rewritten, on a terminal; otherwise a line every 5 s."""
        if self.live:
            print("\r\033[K  " + text[: shutil.get_terminal_size().columns - 3], end="", flush=True)
        elif time.monotonic() - self.shown > 5 and text != self.last:
            self.shown, self.last = time.monotonic(), text
            print("  " + text, flush=True)


# ---- the daemon ----


class Daemon:
    """The daemon, and its CPU time and memory over all its processes."""

    def __init__(self, socket_path, environment):
        self.environment = environment
        self.socket, self.process, self.cpu_s, self.private_kib, self.shared_kib = (
            socket_path,
            None,
            0.0,
            0,
            0,
        )

    def start(self):
        """Starts tokend. Returns the milliseconds until it answered."""
        began = time.monotonic()
        self.process = processes.start(
            [BIN / "tokend", "-c", CONFIG], RUN / "tokend.log", self.environment
        )
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() - began > 10:
                raise Failure("tokend did not start", RUN / "tokend.log")
            time.sleep(0.001)
        return 1000 * (time.monotonic() - began)

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def watch(self):
        if self.process and self.process.poll() is not None:
            raise Failure(
                f"tokend ended unexpectedly ({self.process.returncode})", RUN / "tokend.log"
            )
        if self.process:
            private, shared = processes.memory_kib(self.process.pid)
            self.private_kib, self.shared_kib = (
                max(self.private_kib, private),
                max(self.shared_kib, shared),
            )

    def end(self, number):
        """Sends a signal and waits for the end; after SIGTERM the exit status must be 0."""
        self.watch()
        self.cpu_s += processes.cpu_seconds(self.process.pid)
        self.process.send_signal(number)
        code = self.process.wait(timeout=10)
        self.process = None
        if number == signal.SIGTERM and code != 0:
            raise Failure(f"tokend did not end cleanly after SIGTERM ({code})", RUN / "tokend.log")


# ---- the trainers ----


class Tail:
    """The complete lines that were added to a file since the last call."""

    def __init__(self, path):
        self.path, self.at = path, 0

    def lines(self):
        if not self.path.exists():
            return []
        with open(self.path) as file:
            file.seek(self.at)
            whole = file.read().rpartition("\n")
        self.at += len(whole[0]) + len(whole[1])
        return [json.loads(line) for line in whole[0].splitlines()]


class Job:
    """One torchrun of train.py, followed through its ranks' records."""

    def __init__(self, screen, daemon, name, world, until, options):
        self.screen, self.daemon, self.world, self.until = screen, daemon, world, until
        self.log = RUN / f"trainers-{name}.log"
        self.tails = [Tail(RECORDS / f"{name}-{rank}.jsonl") for rank in range(world)]
        self.steps, self.step, self.moved = [], 0, time.monotonic()
        self.process = processes.start(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                world,
                HERE / "train.py",
                "--socket",
                daemon.socket,
                "--checkpoints",
                CHECKPOINTS,
                "--record",
                RECORDS / name,
                "--until",
                until,
                "--every",
                CHECKPOINT_EVERY,
                *options,
            ],
            self.log,
            {
                "PYTHONPATH": str(REPO / "build" / "python"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": str(RUN / "tmp"),
                "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // world)),
                "OMP_WAIT_POLICY": "PASSIVE",
                "GLOO_SOCKET_IFNAME": "lo",
            },
        )

    def look(self):
        for tail in self.tails:
            for line in tail.lines():
                if "step" in line:
                    self.steps.append(line)
                    self.step = max(self.step, line["step"] + 1)
                    self.moved = time.monotonic()
        if time.monotonic() - self.moved > STALLED_S:
            raise Failure(f"the trainers made no step for {STALLED_S} s", self.log)

    def show(self):
        recent = self.steps[-10 * self.world :]
        if not recent:
            self.screen.progress("the trainers are starting (most of it is importing torch) ...")
            return
        if self.step >= self.until:
            self.screen.progress(
                f"step {self.step}: the last checkpoint, and the held-out text ..."
            )
            return
        took, waited = sum(s["took"] for s in recent), sum(s["waited"] for s in recent)
        rate = sum(s["rows"] for s in recent) * SEQ_LEN * self.world / took
        loss = sum(s["loss"] for s in recent) / len(recent)
        self.screen.progress(
            f"step {self.step:3}/{END}  loss {loss:6.3f}  {rate:6,.0f} tokens/s  "
            f"waiting for data {100 * waited / took:5.2f} "
            f"%{'' if self.daemon.process else '  NO DAEMON'}"
        )

    def follow(self, step=None, seconds=None):
        """Waits until a step is done, for some seconds, or until the job ends."""
        until = time.monotonic() + seconds if seconds else None
        while not (step and self.step >= step) and not (until and time.monotonic() > until):
            time.sleep(0.2 if self.screen.live else 0.1)
            ended = self.process.poll() is not None
            self.look()
            self.show()
            self.daemon.watch()
            if ended:
                if self.process.returncode:
                    raise Failure(f"the trainers failed ({self.process.returncode})", self.log)
                if step or seconds:
                    raise Failure("the trainers ended too early", self.log)
                return


# ---- the story ----


def fresh_start(socket_path, store):
    for path in (RECORDS, CHECKPOINTS, RUN / "state", RUN / "tmp"):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    for path in (*RUN.glob("*.log"), RUN / "loss.svg"):
        path.unlink(missing_ok=True)
    place = (
        'path: "s3://{bucket}/{name}/", manifest: {name}.jsonl' if store else "path: data/{name}"
    )
    paths = {name: place.format(bucket=BUCKET, name=name) for name in DATASETS}
    CONFIG.write_text(STREAMS.format(socket=json.dumps(str(socket_path)), **paths))


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


def open_store(screen):
    """Starts a store with all shards in it, and writes the manifests. Returns the store."""
    screen.act(
        "The shards move into an object store",
        [
            "Ceph's gateway, with its objects in memory. The daemon never lists: the manifests are",
            "written once, by tokctl manifest.",
        ],
    )
    store = Store(RUN / "store")
    store.put(DATA, DATASETS)
    for name in DATASETS:
        manifest = RUN / f"{name}.jsonl"
        manifest.unlink(missing_ok=True)
        url = f"s3://{BUCKET}/{name}/"
        done(store.environment(), BIN / "tokctl", "manifest", url, manifest)
    screen.say(f"  {store.endpoint}, bucket {BUCKET}; the trainers never see a local shard")
    return store


def story(screen, socket_path, with_store):
    screen.act(
        "Real text becomes token shards",
        [
            "GPT-2's tokenizer over the Python library's code, Python's manual and the Linux "
            "kernel's."
        ],
    )
    tokens = prepare.prepare(DATA)
    total = sum(tokens.values())
    screen.say(f"  {total:,} tokens: " + ", ".join(f"{name} {n:,}" for name, n in tokens.items()))
    if total < 8e6:
        raise Failure(f"found only {total:,} tokens of text on this machine; need 8,000,000")

    store = open_store(screen) if with_store else None
    environment, options = ({}, []) if not store else (store.environment(), ["--slots", SLOTS])
    fresh_start(socket_path, store)
    daemon, events = Daemon(socket_path, environment), {}
    screen.act(
        "The daemon starts",
        [
            f"tokend -c {CONFIG.relative_to(REPO)}: three datasets mixed 50:20:30, seed 42; no "
            "index is built."
        ],
    )
    done(environment, BIN / "tokend", "-c", CONFIG, "--check")
    screen.say(f"  it answers after {daemon.start():.0f} ms")

    screen.act(
        "Two processes train; the daemon is killed",
        [
            "torchrun, DDP over gloo, a small GPT. The daemon keeps no state of the run: trainers",
            "continue with the batches in their rings, then attach again at their position.",
        ],
    )
    first = Job(screen, daemon, "1", 2, END, options)
    first.follow(step=KILL_DAEMON)
    killed, at = time.time(), first.step
    daemon.end(signal.SIGKILL)
    screen.say(f"  step {at}: SIGKILL to the daemon")
    first.follow(seconds=2.0)
    answers = daemon.start()
    meanwhile = sum(killed < step["at"] < time.time() for step in first.steps) // first.world
    screen.say(
        f"  step {first.step}: a new daemon answers {answers:.0f} ms after its start; "
        f"{meanwhile} steps were made without one"
    )

    if store:
        screen.act(
            "The store is killed, and started again",
            [
                f"It is away for {STORE_AWAY_S[0]} s. Trainers continue with the {SLOTS} batches "
                "in their rings, then wait."
            ],
        )
        first.follow(step=KILL_STORE[0])
        events[kill_store(screen, store, first, STORE_AWAY_S[0])] = "store killed"

    screen.act(
        "All trainers are killed between two checkpoints",
        [
            f"A checkpoint every {CHECKPOINT_EVERY} steps contains model, optimizer and loader; "
            "later steps are undone."
        ],
    )
    first.follow(step=KILL_TRAINERS)
    number = processes.kill_tree(first.process)
    first.look()
    screen.say(f"  step {first.step}: SIGKILL to torchrun and its ranks, {number} processes")

    screen.act(
        "They resume from the last checkpoint",
        [f"Two processes again, until a planned stop at step {RESCALE}."],
    )
    second = Job(screen, daemon, "2", 2, RESCALE, options)
    second.follow()
    resumed = second.steps[0]["step"]
    screen.say(
        f"  resumed at step {resumed}: {first.step - resumed} steps were undone by the kill; "
        f"stopped at step {second.step}"
    )

    screen.act(
        "One process continues where two stopped",
        ["Another number of ranks reads the same global batches."],
    )
    third = Job(screen, daemon, "3", 1, END, options)
    if store:
        third.follow(step=KILL_STORE[1])
        screen.act(
            "The store is killed again, for longer",
            [f"It is away for {STORE_AWAY_S[1]} s. tokctl status says what the trainer waits for."],
        )
        events[kill_store(screen, store, third, STORE_AWAY_S[1])] = "store killed"
    third.follow()
    begin = third.steps[0]["step"]
    screen.say(f"  resumed at step {begin} on 1 rank instead of 2; stopped at step {third.step}")
    daemon.end(signal.SIGTERM)
    events.update(
        {
            at: "daemon killed",
            first.step: "all trainers killed",
            third.steps[0]["step"]: "resumed on 1 rank instead of 2",
        }
    )
    return daemon, dict(sorted(events.items())), store


LETTERS = {"daemon killed": "D", "all trainers killed": "T", "store killed": "S"}


def proof(screen, daemon, events, store):
    screen.act(
        "The proof",
        ["tokctl verify compares the records of all ranks with the order and the shards."],
    )
    attempts = [
        report.Attempt(RECORDS, name, world) for name, world in (("1", 2), ("2", 2), ("3", 1))
    ]
    verify = [BIN / "tokctl", "verify", "-c", CONFIG, "train", RECORDS / "rows", "--json"]
    found = json.loads(done({} if not store else store.environment(), *verify))
    if store:
        store.stop()

    curve, undone = report.losses(attempts)
    valid = [
        (
            attempts[n + 1].start if n + 1 < len(attempts) else END,
            sum(rank["valid"]["loss"] for rank in attempt.last)
            / sum(rank["valid"]["tokens"] for rank in attempt.last),
        )
        for n, attempt in enumerate(attempts)
        if attempt.last
    ]
    report.picture(RUN / "loss.svg", curve, undone, valid, events)
    screen.say(
        report.text_plot(curve, {step: LETTERS.get(what, "1") for step, what in events.items()})
    )
    screen.say(
        "          D daemon killed, T trainers killed, 1 one process from here on"
        f"{', S store killed' if store else ''}\n"
    )

    entries = [entry for attempt in attempts for step in attempt.steps.values() for entry in step]
    took, waited = (
        sum(entry["took"] for entry in entries),
        sum(entry["waited"] for entry in entries),
    )
    first, last = (sum(loss for _, loss in part) / len(part) for part in (curve[:3], curve[-20:]))
    served = ", ".join(
        f"{each['name']} {100 * each['samples'] / found['samples']:.1f} %"
        for each in found["datasets"]
    )
    lines = (
        (
            "loss",
            f"{first:.2f} -> {last:.2f}; held-out text "
            + ", ".join(f"{loss:.2f} at step {step}" for step, loss in valid),
        ),
        ("picture", (RUN / "loss.svg").relative_to(REPO)),
        ("mix", served),
        ("undone", f"{found['void']} rows after the kill, which were trained on again"),
        (
            "waiting for data",
            f"{100 * waited / took:.2f} % of all steps; longest "
            f"{1000 * max(e['waited'] for e in entries):.0f} ms",
        ),
        (
            "the daemon",
            f"{daemon.private_kib / 1024:.1f} MiB private, {daemon.shared_kib / 1024:.1f} MiB in "
            "rings, "
            f"{daemon.cpu_s:.2f} s of CPU time",
        ),
    )
    for name, text in lines:
        screen.say(f"  {name:17} {text}")
    verdict = "samples {samples:,}, repeated {repeated}, lost {lost}, altered {altered}".format(
        **found
    )
    screen.say(f"\n  {verdict}")

    wrong = [name for name in ("repeated", "lost", "altered") if found[name]]
    if found["samples"] != END * GLOBAL_BATCH:
        wrong.append("samples")
    if last > first - 2:
        wrong.append("the loss did not fall")
    if wrong:
        raise Failure("not as promised: " + ", ".join(wrong))


def place_for_socket():
    """(path, directory to remove afterwards or None). The checkout's path may be too long for a
    Unix socket.
    """
    path = RUN / "tokend.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path, None
    for root in (os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):
        if root and os.access(root, os.W_OK) and len(os.fsencode(root)) < SOCKET_PATH_BYTES - 32:
            directory = pathlib.Path(tempfile.mkdtemp(prefix="tokend-", dir=root))
            return directory / "tokend.sock", directory
    raise Failure("cannot create a socket: neither $XDG_RUNTIME_DIR nor /tmp is writable")


def stop(number, _frame):
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # do not interrupt the cleanup
    raise Stopped(number)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", action="store_true", help="train from an object store")
    with_store = parser.parse_args().store
    RUN.mkdir(parents=True, exist_ok=True)
    lock = open(RUN / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f"run.py: another run is using {RUN}; wait for it, or stop it", file=sys.stderr)
        return 1
    screen, directory = Screen(), None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    processes.adopt()
    try:
        socket_path, directory = place_for_socket()
        proof(screen, *story(screen, socket_path, with_store))
        left = len(processes.descendants(os.getpid()))
        screen.say(f"  {time.monotonic() - screen.began:.0f} s; still running: {left} processes")
        return 1 if left else 0
    except Stopped as stopped:
        screen.say("\nStopped, with the daemon and the trainers.")
        return 128 + stopped.args[0]
    except (Failure, OSError, RuntimeError, subprocess.SubprocessError) as failure:
        screen.say(f"\nFAILED: {failure}")
        if getattr(failure, "log", None):
            lines = failure.log.read_text().splitlines()
            first = next(
                (n for n, line in enumerate(lines) if "Traceback" in line), max(0, len(lines) - 25)
            )
            print(f"From {failure.log}:", *lines[first : first + 25], sep="\n    ")
        return 1
    finally:
        processes.kill_all()
        (RUN / "tokend.sock").unlink(missing_ok=True)
        shutil.rmtree(RUN / "tmp", ignore_errors=True)
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
