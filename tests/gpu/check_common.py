"""Shared by the checks: paths, the report, a daemon, loaders, expected tokens."""

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "build/gpu"
BUILT = (ROOT / "build/gcc").exists() or not KIT.exists()
BIN = ROOT / "build/bin" if BUILT else KIT / "site/bin"
CUDA_BIN = BIN if BUILT else KIT / "bin"
sys.path.insert(0, str(ROOT / "build/python" if BUILT else KIT / "site"))
SEQ = 2048
STREAM = "seed: 1, seq_len: 2048, vocab: 50000, datasets: [{name: web, path: web.bin}]"
STREAMS = f"""
memory: 8GiB
streams:
  train: {{{STREAM}}}
  papers: {{{STREAM}, eos: 7, documents: true, loss_mask: true}}
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


failed = []  # names of failed statements


def ok(name, good, seen=""):
    if not good:
        failed.append(name)
    print(f"{'ok  ' if good else 'FAIL'}  {name}{f': {seen}' if seen != '' else ''}", flush=True)


def info(name, value):
    print(f"info  {name}: {value}", flush=True)


class Daemon:
    def __init__(self):
        import torch

        if not (BIN / "tokend").exists():
            raise SystemExit(
                f"{BIN}/tokend does not exist; run `make all`, or copy build/gpu of `make gpu-kit` "
                "from another machine"
            )
        self.dir = Path(tempfile.mkdtemp(prefix="tokend-gpu-"))
        self.socket = str(self.dir / "socket")
        ids = torch.randint(50000, (64_000_000,), dtype=torch.int32)
        ids.to(torch.uint16).numpy().tofile(self.dir / "web.bin")
        places = f"socket: {self.socket}\nstate_dir: {self.dir}/state"
        (self.dir / "tokend.yaml").write_text(places + STREAMS)
        self.start()

    def start(self):
        command = [BIN / "tokend", "-c", self.dir / "tokend.yaml"]
        self.process = subprocess.Popen(command, stderr=open(self.dir / "log", "a"))
        for _ in range(2000):
            if self.sessions() is not None:
                return
            time.sleep(0.005)
        raise SystemExit(f"the daemon did not start: {(self.dir / 'log').read_text()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def sessions(self):
        """Their number; None: it does not answer."""
        command = [BIN / "tokctl", "status", "--json", "--socket", self.socket]
        done = subprocess.run(command, capture_output=True, check=False)
        return None if done.returncode else json.loads(done.stdout.splitlines()[-1])["sessions"]

    def end(self):
        self.kill()
        shutil.rmtree(self.dir)


def make(daemon, micro=8, device="cuda", stream="train", **more):
    from tokend import Loader

    more = {"socket": daemon.socket, "rank": 0, "world": 1, "deadline": 30, **more}
    return Loader(stream, micro, device=device, **more)


def want(daemon, batches):
    """The expected input_ids and labels, read without a GPU."""
    with make(daemon, device="cpu") as loader:
        return [pair(next(loader)) for _ in range(batches)]


def pair(batch):
    return batch["input_ids"], batch["labels"]


def wrong(seen, right):
    """The numbers of the batches that differ."""
    same = lambda one, two: all(a.cpu().equal(b) for a, b in zip(one, two, strict=True))
    return [i for i, pairs in enumerate(zip(seen, right, strict=True)) if not same(*pairs)]


def slow(torch, ms):
    """Keeps the current stream busy for about @ms milliseconds."""
    torch.cuda._sleep(int(ms * 1.5e6))  # cycles, at about 1.5 GHz
