"""Shared by the checks: paths, the report, a daemon, sessions, expected tokens."""

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "build/gpu"
BUILT = (ROOT / "build/gcc").exists() or not KIT.exists()
BIN = ROOT / "build/bin" if BUILT else KIT / "site/bin"
CUDA_BIN = BIN if BUILT else KIT / "bin"
sys.path.insert(0, str(ROOT / "build/python" if BUILT else KIT / "site"))
SEQ, WINDOW = 2048, 2049
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


class Session:
    """A client with buffers for its small arrays."""

    def __init__(self, daemon, micro=8, slots=4):
        import torch
        from tokend import _tokend

        keys = {"socket": daemon.socket, "slots": slots, "deadline_ms": 30000, "position": 0}
        self.client = _tokend.Client("train", micro, **keys)
        self.micro = micro
        self.fields = [torch.empty(micro, dtype=torch.int64) for _ in range(2)]

    def look(self, tokens=0):
        places = [field.data_ptr() for field in self.fields]
        version = self.client.shape()["version"]
        return self.client.look_into(version, tokens, 8, WINDOW, 0, 8, 0, 0, *places)

    def take(self, tokens=0):
        found = self.look(tokens)
        self.client.takes = found[1], False

    def slot(self):
        """The next batch's slot, as a tensor over the ring."""
        import torch

        self.look()
        address, rows, window, width, _ = self.client.slot()
        memory = (ctypes.c_char * (rows * window * width)).from_address(address)
        return torch.frombuffer(memory, dtype=torch.int16).view(rows, window)

    def fed(self, source):
        """The next batch of a feed, on the GPU."""
        import torch

        tokens, found = source.next(self.look, SEQ, 2)
        self.client.takes = found[1], True
        return torch.cat((tokens[0], tokens[1, :, -1:]), 1)

    def close(self):
        self.client.close()


def want(daemon, batches, micro=8):
    """The expected tokens, read without a GPU."""
    import torch

    session, rows = Session(daemon, micro), []
    for _ in range(batches):
        rows.append(torch.empty((micro, WINDOW), dtype=torch.int64))
        session.take(rows[-1].data_ptr())
    session.close()
    return rows


def wrong(seen, right):
    """The numbers of the batches that differ."""
    pairs = zip(seen, right, strict=True)
    return [i for i, (got, tokens) in enumerate(pairs) if not got.cpu().equal(tokens)]


def unsigned(torch, slots):
    """Batches as they are in the ring, in 16 bits."""
    return [tokens.to(torch.int64) & 0xFFFF for tokens in slots]


def cuda(torch):
    from tokend import device

    return device.Cuda(torch, torch.device("cuda", 0))


def feed(session):
    import torch
    from tokend import device

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a ring that is not registered is a failure here
        types = {"input_ids": "int64", "labels": "int64"}
        return device.Feed(session.client, cuda(torch), types)


def slow(torch, ms):
    """Keeps the current stream busy for about @ms milliseconds."""
    torch.cuda._sleep(int(ms * 1.5e6))  # cycles, at about 1.5 GHz
