"""Killed daemons and trainers, trainers that exit, a daemon without CUDA, and the C programs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from check_common import CUDA_BIN, Session, feed, info, ok, slow, want, wrong

BEGIN = f"""
import os, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import torch
from check_common import Session, feed, slow
import tokend
"""
VICTIM = """
class D: socket = sys.argv[1]
session = Session(D)
source = feed(session)
for i in range(8):
    with torch.cuda.stream(source._gpu.side):
        slow(torch, 500)
    if i == 7: print("now", flush=True)
    session.fed(source)
torch.cuda.synchronize()
"""
LEAVER = """
how = sys.argv[2]
loader = tokend.Loader("train", 8, socket=sys.argv[1], rank=0, world=1, device="cuda")
first = [next(loader) for _ in range(3)]
if how == "fork":
    child = os.fork()
    if child == 0:
        try:
            next(loader)
        except tokend.Error:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the child was not rejected"
    next(loader)
if how == "queued copies":
    slow(torch, 200)
    next(loader)
print("end", flush=True)
"""
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def check_daemon_killed(torch, daemon):
    right, session = want(daemon, 30), Session(daemon)
    source, seen = feed(session), []
    for i in range(30):
        if i == 10:
            with torch.cuda.stream(source._gpu.side):
                slow(torch, 300)
        if i == 13:
            daemon.kill()  # copies are queued after the delay
            threading.Timer(0.3, daemon.start).start()
        seen.append(session.fed(source))
    torch.cuda.synchronize()
    bad, attached = wrong(seen, right), session.client.shape()["reattached"]
    ok("daemon killed mid-copy: the same tokens", not bad, bad)
    ok("daemon killed mid-copy: the new ring is registered", source.pinned_bytes > 0)
    ok("daemon killed mid-copy: attached again once", attached == 1)
    session.close()


def check_trainer_killed(torch, daemon):
    for _ in range(3):
        command = [sys.executable, "-c", BEGIN + VICTIM, daemon.socket]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert victim.stdout.readline() == "now\n"
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL, "the trainer exited before it was killed"
        until = time.monotonic() + 10
        while daemon.sessions() and time.monotonic() < until:
            time.sleep(0.01)
    ok("trainer killed mid-copy: its sessions have ended", daemon.sessions() == 0)
    right, session = want(daemon, 10), Session(daemon)
    source = feed(session)
    bad = wrong([session.fed(source) for _ in right], right)
    ok("trainer killed mid-copy: the next one gets the right tokens", not bad, bad)
    session.close()


def check_leaving(torch, daemon):
    """A process that exits without closing anything ends without errors."""
    for how in ("nothing more", "queued copies", "fork"):
        command = [sys.executable, "-W", "ignore", "-c", BEGIN + LEAVER, daemon.socket, how]
        done = subprocess.run(command, check=False, timeout=120, **PIPES)
        good = done.returncode == 0 and done.stdout == "end\n" and "rror" not in done.stderr
        ok(f"leaving, {how}: ends without errors", good, (done.returncode, done.stderr))


def check_daemon_without_cuda(torch, daemon):
    session = Session(daemon)
    source = feed(session)
    session.fed(source)
    process = Path(f"/proc/{daemon.process.pid}")
    maps = (process / "maps").read_text()
    ok("the daemon has no CUDA library mapped", "libcuda" not in maps and "/dev/nvidia" not in maps)
    opened = [os.readlink(fd) for fd in (process / "fd").iterdir()]
    ok("the daemon has no NVIDIA device open", not any("nvidia" in name for name in opened), opened)
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        done = subprocess.run(query, check=False, **PIPES)
        good = done.returncode == 0 and str(daemon.process.pid) not in done.stdout.split()
        ok("the daemon is not among nvidia-smi's processes", good, done.stdout + done.stderr)
    session.close()


def run_program(name, *arguments):
    """What it prints, or None: a C program with the CUDA runtime."""
    if not (CUDA_BIN / name).exists():
        info(name, "cuda_runtime.h or libcudart_static.a was missing; make cuda-programs CUDA=…")
        return None
    done = subprocess.run([CUDA_BIN / name, *arguments], check=False, timeout=120, **PIPES)
    ok(name, done.returncode == 0, (done.stdout + done.stderr).strip())
    return done.stdout if done.returncode == 0 else None


def check_programs(torch, daemon):
    said = run_program("example-gpu-trainer", "train", daemon.socket)
    if said is not None:
        good = "100 steps, ring registered" in said
        ok("example-gpu-trainer: all steps, from a registered ring", good)
    said = run_program("bench-h2d", daemon.socket, "train", "4096")
    if said is not None:
        seen = json.loads(said)
        whole = seen["pinned_bytes"] >= 4 * seen["slot_bytes"]
        fast = seen["ring_gb_s"] >= 0.95 * seen["cuda_pinned_gb_s"]
        ok("bench-h2d: the whole ring was registered", whole)
        ok("bench-h2d: ring ≥ 0.95 of CUDA's own pinned memory", fast)
