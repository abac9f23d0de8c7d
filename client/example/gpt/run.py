"""`make run`: trains a small GPT on real text, and kills daemon and trainers meanwhile.

Starts the daemon and the trainers as an operator would, kills and restarts them, and compares the
recorded rows with the order at the end. train.py is an example for users; this file is not.
"""

import contextlib
import fcntl
import glob
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time

import picture

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[2]
BIN, RUN = REPO / "build" / "bin", REPO / "build" / "run"
CONFIG, DATA, RECORDS = RUN / "tokend.yaml", RUN / "data", RUN / "records"
TEXT_BYTES = 10_000_000  # about, per dataset
TOKENS_PER_STEP = 16 * 128
KILL_DAEMON, KILL_TRAINERS, RESCALE, END = 60, 133, 200, 300  # steps

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
      - {{name: python, path: data/python, weight: 0.5, part: [0, 0.99]}}
      - {{name: torch, path: data/torch, weight: 0.2, slide: true}}
      - {{name: headers, path: data/headers, weight: 0.3, shuffle: block, block: 16, group: 32}}
  valid:
    seed: 42
    seq_len: 128
    epochs: 1
    datasets:
      - {{name: held-out, path: data/python, part: [0.99, 1]}}
"""

began = time.monotonic()
processes = []


class Failure(Exception):
    """A message for the user."""


def act(title, *why):
    print(f"\n{title}   ({time.monotonic() - began:.0f} s)", *why, sep="\n    ", flush=True)


def say(text):
    print("  " + text, flush=True)


def mean(steps, name):
    return sum(step[name] for step in steps) / len(steps)


# ---- processes ----


def start(log, *command, **environment):
    """Starts a process in a session of its own: Ctrl-C is for this one."""
    keys = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "start_new_session": True}
    keys |= {"env": {**os.environ, **environment}, "text": True}
    with open(log, "a") as errors:
        processes.append(subprocess.Popen(list(map(str, command)), stderr=errors, **keys))
    return processes[-1]


def done(*command, **environment):
    """Runs a command to its end. Returns its output."""
    keys = {"env": {**os.environ, **environment}, "capture_output": True, "text": True}
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, **keys)
    if done.returncode:
        raise Failure(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout


def kill(process):
    """Kills it and its children: torchrun's have sessions of their own. Returns their number."""
    pids = [process.pid]
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(open(path).read().rpartition(")")[2].split()[1]) == process.pid:
                pids.append(int(path.split("/")[2]))
    for pid in pids if process.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return len(pids)


def start_daemon(socket):
    """Returns the process, and the milliseconds until it answered."""
    began = time.monotonic()
    process = start(RUN / "tokend.log", BIN / "tokend", "-c", CONFIG)
    look = [BIN / "tokctl", "status", "--socket", socket]
    while subprocess.run(look, capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() - began > 10:
            raise Failure(f"tokend did not start: see {RUN / 'tokend.log'}")
    return process, f"{1000 * (time.monotonic() - began):.0f} ms"


class Job:
    """One torchrun of train.py, which prints a line at each step."""

    def __init__(self, socket, world, until):
        self.steps, self.valid, self.log = [], None, RUN / f"trainers-{world}x{until}.log"
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        self.process = start(
            self.log,
            *(*torchrun, "--nproc-per-node", world, HERE / "train.py", RUN, until),
            TOKEND_SOCKET=socket,
            PYTHONPATH=str(REPO / "build" / "python"),
            OMP_NUM_THREADS=str(max(1, len(os.sched_getaffinity(0)) // world)),
            OMP_WAIT_POLICY="PASSIVE",
            GLOO_SOCKET_IFNAME="lo",
        )

    def follow(self, step=None, killed=False):
        """Reads and shows steps, until @step is done or the job ends. Returns the last one."""
        for line in self.process.stdout:
            note = json.loads(line)
            if "valid" in note:
                self.valid = note["valid"]
                continue
            self.steps.append(note)
            if note["step"] % 20 == 0:
                loss, took, waited = (mean(self.steps[-10:], x) for x in ("loss", "took", "waited"))
                say(
                    f"step {note['step']:3}/{END}  loss {loss:6.3f}  {TOKENS_PER_STEP / took:6,.0f}"
                    f" tokens/s  waiting for data {100 * waited / took:5.2f} %"
                )
            if note["step"] == step:
                return step
        if not killed and (self.process.wait() or step):
            lines = self.log.read_text().splitlines()
            begin = next((n for n, line in enumerate(lines) if "Traceback" in line), -25)
            print(f"From {self.log}:", *lines[begin:][:25], sep="\n    ")
            raise Failure(f"the trainers ended early ({self.process.returncode})")
        return self.steps[-1]["step"]

    @property
    def resumed(self):
        return self.steps[0]["step"] - 1


# ---- the story ----


def package(name):
    """The directory of an installed package, which is not imported."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def prepare():
    """Makes DATA/NAME once, in place of a team's own tokenising job. Returns {name: tokens}. The
    text is what each machine with torch has.
    """
    tokens = {}
    for name, directory, suffix in (
        ("python", pathlib.Path(sysconfig.get_path("stdlib")), ".py"),
        ("torch", package("torch"), ".py"),
        ("headers", package("torch") / "include", ".h"),
    ):
        if not (DATA / name).is_dir():
            files, size, part = [], 0, DATA / f"{name}.part"
            for path in sorted(directory.rglob("*" + suffix)):
                if size < TEXT_BYTES and path.is_file() and path.stat().st_size:
                    files.append(path)
                    size += path.stat().st_size
            shutil.rmtree(part, ignore_errors=True)
            # openai-whisper is installed for one file, GPT-2's vocabulary
            ranks = package("whisper") / "assets" / "gpt2.tiktoken"
            options = ("-o", part, "--text", "--tokenizer", ranks, "--shard-tokens", 2_000_000)
            here = {"PYTHONPATH": str(REPO / "build" / "python")}
            done(sys.executable, "-m", "tokend", "tokenize", *files, *options, **here)
            part.rename(DATA / name)
        tokens[name] = sum(path.stat().st_size for path in (DATA / name).glob("*.bin")) // 2
    return tokens


def story(socket):
    act("Real text becomes token shards", "GPT-2's tokenizer over code of Python and torch.")
    tokens = prepare()
    say(f"{sum(tokens.values()):,} tokens: " + ", ".join(f"{n} {t:,}" for n, t in tokens.items()))
    for old in (RECORDS, RUN / "checkpoints", RUN / "state"):
        shutil.rmtree(old, ignore_errors=True)
    for old in (*RUN.glob("*.log"), RUN / "loss.svg"):
        old.unlink(missing_ok=True)
    CONFIG.write_text(STREAMS.format(socket=json.dumps(socket)))

    act(
        "The daemon starts",
        f"tokend -c {CONFIG.relative_to(REPO)}: three datasets mixed 50:20:30, seed 42; no index "
        "is built.",
    )
    daemon, answers = start_daemon(socket)
    say(f"it answers after {answers}")

    act(
        "Two processes train; the daemon is killed",
        "torchrun, DDP over gloo, a small GPT. The daemon keeps no state of the run: trainers",
        "continue with the batches in their rings, then attach again at their position.",
    )
    first, events = Job(socket, 2, END), {}
    at = first.follow(KILL_DAEMON)
    events[at], gone = "daemon killed", time.time()
    kill(daemon)
    say(f"step {at}: SIGKILL to the daemon")
    time.sleep(2)
    daemon, answers = start_daemon(socket)
    back = time.time()
    while first.steps[-1]["at"] < back:
        at = first.follow(at + 1)
    alone = sum(gone < step["at"] < back for step in first.steps)
    say(f"step {at}: a new daemon answers {answers} after its start; {alone} steps were made "
        "without one")  # fmt: skip

    act(
        "All trainers are killed between two checkpoints",
        "A checkpoint every 40 steps contains model, optimizer and loader; later steps are undone.",
    )
    first.follow(KILL_TRAINERS)
    number = kill(first.process)
    at = first.follow(killed=True)
    events[at] = "all trainers killed"
    say(f"step {at}: SIGKILL to torchrun and its ranks, {number} processes")

    act(
        "They resume from the last checkpoint",
        f"Two processes again, until a planned stop at step {RESCALE}.",
    )
    second = Job(socket, 2, RESCALE)
    end = second.follow()
    say(f"resumed at step {second.resumed}: {at - second.resumed} steps were undone by the kill; "
        f"stopped at step {end}")  # fmt: skip

    act("One process continues where two stopped", "It reads the same global batches.")
    third = Job(socket, 1, END)
    end = third.follow()
    events[third.resumed] = "resumed on 1 rank instead of 2"
    say(f"resumed at step {third.resumed} on 1 rank instead of 2; stopped at step {end}")
    return (first, second, third), events


def proof(jobs, events):
    act(
        "The proof",
        "tokctl verify compares the records of all ranks with the order and the shards.",
    )
    found = json.loads(done(BIN / "tokctl", "verify", "-c", CONFIG, "train", RECORDS, "--json"))
    ends = [*(job.resumed for job in jobs[1:]), END]  # a restart undoes the steps after it
    kept = [step for job, end in zip(jobs, ends) for step in job.steps if step["step"] <= end]
    undone = [step for step in jobs[0].steps if step["step"] > ends[0]]
    valid = [(job.steps[-1]["step"], job.valid) for job in jobs if job.valid]
    picture.draw(RUN / "loss.svg", kept, undone, valid, events)

    first, last = mean(kept[:3], "loss"), mean(kept[-20:], "loss")
    waited = 100 * mean(kept, "waited") / mean(kept, "took")
    held_out = ", ".join(f"{loss:.2f} at step {step}" for step, loss in valid)
    mix = (f"{d['name']} {100 * d['samples'] / found['samples']:.1f} %" for d in found["datasets"])
    say(f"loss               {first:.2f} -> {last:.2f}; held-out text {held_out}")
    say(f"picture            {(RUN / 'loss.svg').relative_to(REPO)}")
    say(f"mix                {', '.join(mix)}")
    say(f"undone             {found['void']} rows after the kill, which were trained on again")
    say(f"waiting for data   {waited:.2f} % of all steps\n")
    say("samples {samples:,}, repeated {repeated}, lost {lost}, altered {altered}".format(**found))
    wrong = [name for name in ("repeated", "lost", "altered") if found[name]]
    if found["samples"] != END * TOKENS_PER_STEP // 128:
        wrong.append("samples")
    if last > first - 2:
        wrong.append("the loss did not fall")
    if wrong:
        raise Failure("not as promised: " + ", ".join(wrong))


def main():
    DATA.mkdir(parents=True, exist_ok=True)
    lock = open(RUN / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return f"run.py: another run is using {RUN}; wait for it, or stop it"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))
    # a checkout's path may be too long for a socket
    directory = tempfile.mkdtemp(prefix="tokend-", dir="/tmp")
    try:
        proof(*story(f"{directory}/tokend.sock"))
        say(f"{time.monotonic() - began:.0f} s")
    except Failure as failure:
        return f"FAILED: {failure}"
    except KeyboardInterrupt:
        return "stopped"
    finally:
        for process in processes:
            kill(process)
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
