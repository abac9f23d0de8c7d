"""Shared by the checks: paths, the report, a daemon, sessions, expected tokens."""

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "build/gpu"
BUILT = (ROOT / "build/gcc").exists() or not KIT.exists()
BIN = Path(os.environ.get("TOKEND_BIN", ROOT / "build/bin" if BUILT else KIT / "site/bin"))
CUDA_BIN = BIN if BUILT else KIT / "bin"
sys.path.insert(
    0, os.environ.get("TOKEND_PYTHON", str(ROOT / "build/python" if BUILT else KIT / "site"))
)
SEQ, WINDOW = 2048, 2049
STREAMS = """\
memory: 8GiB
streams:
  train:
    seed: 1
    seq_len: 2048
    vocab: 50000
    datasets:
      - {name: web, path: web.bin}
  papers:
    seed: 1
    seq_len: 2048
    vocab: 50000
    eos: 7
    documents: true
    loss_mask: true
    datasets:
      - {name: web, path: web.bin}
"""


def no_gpu():
    """Why the checks cannot run on this machine, or None."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    try:
        import torch
    except ImportError as error:
        return f"there is a driver, but {sys.executable} has no torch: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} of {sys.executable} finds none"
    return None


# ---- the report ----

failed = []  # names of failed statements


def ok(name, good, seen=""):
    if not good:
        failed.append(name)
    print(f"{'ok  ' if good else 'FAIL'}  {name}{f': {seen}' if seen != '' else ''}", flush=True)


def info(name, value):
    print(f"info  {name}: {value}", flush=True)


# ---- a daemon, sessions, expected tokens ----


class Daemon:
    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="tokend-gpu-"))
        self.socket = str(self.dir / "socket")
        import torch

        ids = torch.randint(50000, (64_000_000,), dtype=torch.int32)
        ids.to(torch.uint16).numpy().tofile(self.dir / "web.bin")
        (self.dir / "tokend.yaml").write_text(
            f"socket: {self.socket}\nstate_dir: {self.dir}/state\n{STREAMS}"
        )
        self.start()

    def start(self):
        if not (BIN / "tokend").exists():
            raise SystemExit(
                f"{BIN}/tokend does not exist; run `make all`, or copy build/gpu of `make gpu-kit` "
                "from another machine"
            )
        self.process = subprocess.Popen(
            [BIN / "tokend", "-c", self.dir / "tokend.yaml"], stderr=open(self.dir / "log", "a")
        )
        for _ in range(2000):
            if self.sessions() is not None:
                return
            time.sleep(0.005)
        raise SystemExit(f"the daemon did not start: {(self.dir / 'log').read_text()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def sessions(self):
        done = subprocess.run(
            [BIN / "tokctl", "status", "--json", "--socket", self.socket],
            capture_output=True,
            check=False,
        )
        return (
            json.loads(done.stdout.splitlines()[-1])["sessions"] if done.returncode == 0 else None
        )

    def end(self):
        self.kill()
        shutil.rmtree(self.dir)


class Session:
    """A client with buffers for its small arrays."""

    def __init__(self, daemon, micro=8, slots=4, position=0):
        import torch
        from tokend import _tokend

        self.client = _tokend.Client(
            "train", micro, socket=daemon.socket, slots=slots, deadline_ms=30000, position=position
        )
        self.micro, self.small = micro, torch.empty((2, micro), dtype=torch.int64)

    def take(self, tokens=0):
        return self.client.next_into(tokens, self.small.data_ptr())

    def fed(self, source):
        """The next batch of a feed, on the GPU."""
        tokens, (_, after) = source.next(lambda: self.client.look_into(0, self.small.data_ptr()))
        self.client.takes = source.takes(after)
        return tokens

    def on_cpu(self):
        import torch

        tokens = torch.empty((self.micro, WINDOW), dtype=torch.int64)
        assert self.take(tokens.data_ptr()) is not None
        return tokens

    def close(self):
        self.client.close()


def want(daemon, batches, micro=8, position=0):
    """The expected tokens, read without a GPU."""
    session = Session(daemon, micro, position=position)
    rows = [session.on_cpu() for _ in range(batches)]
    session.close()
    return rows


def same(seen, right):
    return len(seen) == len(right) and all(
        got.cpu().equal(tokens) for got, tokens in zip(seen, right, strict=True)
    )


def feed(session):
    from tokend import device

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a ring that is not registered is a failure here
        return device.Feed(session.client, session.client.shape(), "cuda")


def slow(torch, ms):
    """Keeps the current stream busy for about @ms milliseconds."""
    torch.cuda._sleep(int(ms * 1.5e6))  # cycles, at about 1.5 GHz


def median(values):
    return statistics.median(values)
