"""Shared by all benchmarks: a daemon, the shape of a batch, lines of the report."""

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
SHAPE = "BENCH_SHAPE"  # in the environment of a child: seq_len and micro_batch
SEQ, MICRO = map(int, os.environ.get(SHAPE, "2048 8").split())
WIN = SEQ + 1
BATCH_TOKENS = MICRO * WIN


def train_stream(path, seq_len=SEQ):
    return (
        f"  train:\n    seed: 42\n    seq_len: {seq_len}\n    datasets:\n"
        f"      - {{name: web, path: {path}, dtype: u16}}\n"
    )


def cpu_of(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


class CannotRun(Exception):
    """Why a contestant has no figures."""


def fresh(module, name, python=sys.executable, limit=60, shape=(SEQ, MICRO), **given):
    """Calls function @name of the file @module, which ends with answer(), in a new process.

    Returns its answer. @shape: seq_len and micro_batch. CannotRun: it failed, or took longer than
    @limit seconds.
    """
    env = os.environ | {"PYTHONPATH": str(ROOT / "build/python"), "PYTHONWARNINGS": "ignore"}
    env[SHAPE] = " ".join(map(str, shape))
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


def answer(functions):
    """The other side of fresh()."""
    by_name = {function.__name__: function for function in functions}
    print(json.dumps(by_name[sys.argv[1]](SimpleNamespace(**json.loads(sys.argv[2])))))


def cpu_ns(pid):
    """Of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def memory_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        l.split(":")[0]: int(l.split()[1]) / 1024
        for l in lines
        if l.startswith(("VmRSS", "RssAnon", "RssShmem", "RssFile"))
    }


def flat_windows(path):
    """A torch Dataset of the windows of a flat file, int64."""
    import numpy
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self):
            self.tokens = numpy.memmap(path, dtype="<u2", mode="r")

        def __len__(self):
            return (len(self.tokens) - WIN) // SEQ + 1

        def __getitem__(self, i):
            return torch.from_numpy(self.tokens[i * SEQ : i * SEQ + WIN].astype(numpy.int64))

    return Windows()


def forever(loader):
    while True:
        yield from loader


class Daemon:
    def __init__(self, directory, streams, extra="", env=None, before=()):
        self.env, self.before = env, before
        self.dir = Path(directory)
        self.socket = self.dir / "s.sock"
        self.config = self.dir / "tokend.yaml"
        self.config.write_text(
            f"socket: {self.socket}\nstate_dir: {self.dir}/state\n{extra}streams:\n{streams}"
        )
        self.process = None

    def __enter__(self):
        # In a session of its own, as a service and an embedded daemon are: the kernel divides busy
        # cores between sessions first.
        self.process = subprocess.Popen(
            [*self.before, BIN / "tokend", "-c", self.config],
            stderr=subprocess.DEVNULL,
            env=self.env,
            start_new_session=True,
        )
        return self

    def wait(self):
        for _ in range(2000):
            if (
                subprocess.run(
                    [BIN / "tokctl", "status", "--socket", self.socket], capture_output=True
                ).returncode
                == 0
            ):
                return self
            time.sleep(0.005)
        raise SystemExit("bench: the daemon did not start")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def next_from_c(daemon, stream, position, batches, *options):
    out = subprocess.run(
        [BIN / "bench-next", daemon.socket, stream, str(position), str(batches), *options],
        check=True,
        capture_output=True,
    )
    return json.loads(out.stdout)


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def row(what, value, wanted):
    print(f"  {what:<66} {value:>14}   {wanted}")


def write_tokens(path, tokens):
    import numpy

    random = numpy.random.default_rng(1)
    with open(path, "wb") as file:
        while tokens > 0:
            n = min(tokens, 20_000_000)
            random.integers(0, 50257, n, dtype=numpy.uint16).tofile(file)
            tokens -= n


def rss(daemon):
    memory = memory_of(daemon.process.pid)
    return memory["VmRSS"] - memory["RssShmem"]


def start_child(file, name, /, **arguments):
    """Starts function @name of the benchmark @file in a process of its own. @file ends with
    serve_child()."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(ROOT / "build/python")
    command = [sys.executable, file, name, json.dumps(arguments, default=str)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)


def result_of(process):
    """Returns what the function of start_child() returned. Its phases must be over."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"bench: {' '.join(map(str, process.args[1:3]))} failed")
    return json.loads(out.splitlines()[-1])


def in_child(file, name, /, **arguments):
    return result_of(start_child(file, name, **arguments))


def end_phase():
    """In a child: waits until its parent calls await_phase() and next_phase()."""
    print("phase", flush=True)
    sys.stdin.readline()


def await_phase(children):
    for child in children:
        if child.stdout.readline() != "phase\n":
            raise SystemExit(f"bench: {' '.join(map(str, child.args[1:3]))} failed")


def next_phase(children):
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()


def serve_child(functions):
    """The main program of a file whose functions run as children."""
    print(json.dumps(functions[sys.argv[1]](**json.loads(sys.argv[2]))))
