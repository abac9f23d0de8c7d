"""Shared by all benchmarks: a daemon, the shape of a batch, children, lines of the report."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("TOKEND_BIN", ROOT / "build/bin"))
PEERS = ROOT / "build/trainers/peers/bin/python"  # bench/peers.txt
SHAPE = "BENCH_SHAPE"  # in the environment of a child: seq_len and micro_batch
SEQ, MICRO = map(int, os.environ.get(SHAPE, "2048 8").split())
WIN = SEQ + 1
BATCH_TOKENS = MICRO * WIN


# ---- children ----


class CannotRun(Exception):
    """Why a contestant has no figures."""


def fresh(module, name, python=sys.executable, limit=120, shape=(SEQ, MICRO), env=None, **given):
    """Calls function @name of the file @module, which ends with answer(), in a new process.

    Returns its answer. @shape: seq_len and micro_batch. CannotRun: it failed, or took longer than
    @limit seconds.
    """
    env = (env or os.environ) | {"PYTHONWARNINGS": "ignore", SHAPE: " ".join(map(str, shape))}
    env |= {"PYTHONPATH": str(ROOT / "build/python")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # starts are measured
    command = [python, module, name, json.dumps(given, default=str)]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"no result within {limit} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):  # workers that outlive it, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        lines = error.decode(errors="replace").strip().splitlines() or ["no message"]
        raise CannotRun(lines[-1])
    return json.loads(out.splitlines()[-1])


def answer(*functions):
    """The other side of fresh()."""
    by_name = {function.__name__: function for function in functions}
    print(json.dumps(by_name[sys.argv[1]](SimpleNamespace(**json.loads(sys.argv[2])))))


def told(*command, env=None):
    """The lines of JSON that a command prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, env=env)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise SystemExit(f"bench: {' '.join(words)}: exit status {done.returncode}: {said}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def micro(*words, env=None):
    """What bench-micro prints (bench/micro.c)."""
    return told(BIN / "bench-micro", *words, env=env)[-1]


# ---- processes ----


def process_cpu(pid):
    """CPU seconds of a process and its threads, in nanoseconds: its CLOCK_PROCESS_CPUTIME_ID."""
    return time.clock_gettime(~pid << 3 | 2)


def descendants(pid):
    """The processes that @pid and its children started and that still run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def private_mib(pid):
    """Resident memory without what is shared by memfd: of a daemon, without the rings."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Vm", "Rss"))}
    return (int(kib["VmRSS"]) - int(kib["RssShmem"])) / 1024


def pss_mib(pids, file):
    """The processes' share of memory, without the mappings of @file."""
    total, counts = 0, True
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            key = line.split(None, 1)[0]
            if not key.endswith(":"):
                counts = not line.endswith(str(file))
            elif counts and key == "Pss:":
                total += int(line.split()[1])
    return total / 1024


@contextlib.contextmanager
def busy_cores():
    """Keeps every core busy with a process of its own, at nice 0."""
    loop = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    command = [sys.executable, "-S", "-c", loop]
    cores = os.sched_getaffinity(0)
    loops = [subprocess.Popen([*command, str(core)]) for core in cores]
    time.sleep(0.1)  # until Python has started
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


# ---- the daemon ----


def train_stream(path, seq_len=SEQ, **keys):
    about = {"name": "web", "path": str(path), "dtype": "u16"} | keys
    return {"train": {"seed": 42, "seq_len": seq_len, "datasets": [about]}}


class Daemon:
    """A daemon in @directory, which it makes. @keys: of its config. It ends with the block."""

    def __init__(self, directory, streams, env=None, **keys):
        self.directory, self.env = Path(directory), env
        self.directory.mkdir(parents=True, exist_ok=True)
        self.socket, self.config = self.directory / "s.sock", self.directory / "tokend.yaml"
        places = {"socket": str(self.socket), "state_dir": str(self.directory / "state")}
        self.config.write_text(json.dumps(places | {"streams": streams} | keys))

    def begin(self):
        # In a session of its own, as a service and an embedded daemon are: the kernel divides busy
        # cores between sessions first.
        command = [BIN / "tokend", "-c", self.config]
        with open(self.directory / "log", "w") as log:
            self.process = subprocess.Popen(
                command, stderr=log, env=self.env, start_new_session=True
            )
        return self

    def __enter__(self):
        self.begin()
        try:
            self.wait()
        except BaseException:  # the block and its end do not follow
            self.end()
            raise
        return self

    def wait(self, seconds=20):
        until = time.monotonic() + seconds
        while "ready at" not in (self.directory / "log").read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                log = (self.directory / "log").read_text()[-500:]
                raise SystemExit(f"bench: the daemon did not start: {log}")
            time.sleep(0.005)

    def end(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    __exit__ = end

    def cpu(self):
        return process_cpu(self.process.pid)

    def memory(self):
        """MiB, without the rings."""
        return private_mib(self.process.pid)

    def status(self):
        """The lines of `tokctl status`: sessions, then the daemon."""
        return told(BIN / "tokctl", "status", "--socket", self.socket, "--json")

    def next(self, position, batches, *options, stream="train"):
        return micro("next", self.socket, stream, position, batches, *options)

    def polite(self, seconds, *options, user=None):
        """Starts a trainer in C; result() waits for its figures."""
        command = [BIN / "bench-micro", "polite", self.socket, "train", seconds, *options]
        return subprocess.Popen([str(w) for w in command], stdout=subprocess.PIPE, user=user)


def result(trainer):
    out, _ = trainer.communicate(timeout=120)
    if trainer.returncode:
        raise SystemExit(f"bench: the trainer failed: exit {trainer.returncode}")
    return json.loads(out)


# ---- files and the report ----


def write_tokens(path, tokens, seed=1):
    import numpy

    random = numpy.random.default_rng(seed)
    with open(path, "wb") as file:
        while tokens > 0:
            n = min(tokens, 20_000_000)
            random.integers(0, 50257, n, dtype=numpy.uint16).tofile(file)
            tokens -= n


def sparse(directory, shards, tokens, width=2):
    directory.mkdir(parents=True)
    for number in range(shards):
        with open(directory / f"{number:05}.bin", "wb") as file:
            file.truncate(width * tokens)


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def medians(rounds):
    """{key: median} of rounds with the same numbers."""
    return {key: median(rounds, key) for key in rounds[0] if not isinstance(rounds[0][key], str)}


def row(what, value, wanted=""):
    print(f"  {what:<66} {value:>14}   {wanted}".rstrip())
