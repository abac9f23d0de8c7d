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

from check_common import CUDA_BIN, Session, feed, info, ok, same, slow, want


def check_daemon_killed(torch, daemon):
    right = want(daemon, 30)
    session = Session(daemon)
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
    ok("daemon killed mid-copy: the same tokens", same(seen, right))
    ok(
        "daemon killed mid-copy: the new ring is registered",
        session.client.shape()["pinned_bytes"] > 0,
    )
    ok("daemon killed mid-copy: attached again once", session.client.shape()["reattached"] == 1)
    session.close()


VICTIM = """
import sys
sys.path[:0] = [{here!r}]
import torch
from check_common import Session, feed, slow
class D: socket = {socket!r}
session = Session(D)
source = feed(session)
for i in range(8):
    with torch.cuda.stream(source._gpu.side):
        slow(torch, 500)
    if i == 7: print("now", flush=True)
    session.fed(source)
torch.cuda.synchronize()
"""


def check_trainer_killed(torch, daemon):
    code = VICTIM.format(here=str(Path(__file__).parent), socket=daemon.socket)
    for _ in range(3):
        victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        said = victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL and said == "now\n", (
            f"the trainer exited before it was killed: {victim.returncode}"
        )
        until = time.monotonic() + 10
        while daemon.sessions() and time.monotonic() < until:
            time.sleep(0.01)
    ok(
        "trainer killed mid-copy: its sessions have ended",
        daemon.sessions() == 0,
        daemon.sessions(),
    )
    right, session = want(daemon, 10), Session(daemon)
    source = feed(session)
    got = [session.fed(source) for _ in range(10)]
    ok("trainer killed mid-copy: the next one gets the right tokens", same(got, right))
    session.close()


LEAVER = """
import os, sys
sys.path[:0] = [{here!r}]
import torch
from check_common import slow
import tokend
loader = tokend.Loader("train", 8, socket={socket!r}, rank=0, world=1, device="cuda")
first = [next(loader) for _ in range(3)]
if {fork}:
    child = os.fork()
    if child == 0:
        try:
            next(loader)
        except tokend.ForkedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the child was not rejected"
    next(loader)
if {work}:
    slow(torch, 200)
    next(loader)
print("end", flush=True)
"""


def check_leaving(torch, daemon):
    """A process that exits without closing anything ends without errors."""
    for name, fork, work in (
        ("a process", False, False),
        ("one with queued copies", False, True),
        ("one that had forked", True, False),
    ):
        code = LEAVER.format(
            here=str(Path(__file__).parent), socket=daemon.socket, fork=fork, work=work
        )
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        good = done.returncode == 0 and done.stdout == "end\n" and "rror" not in done.stderr
        ok(
            f"leaving: {name} ends without errors",
            good,
            (done.returncode, done.stderr) if not good else f"{time.perf_counter() - begin:.1f} s",
        )


def check_daemon_without_cuda(torch, daemon):
    session = Session(daemon)
    source = feed(session)
    session.fed(source)
    process = Path(f"/proc/{daemon.process.pid}")
    maps = (process / "maps").read_text()
    ok("the daemon has no CUDA library mapped", "libcuda" not in maps and "/dev/nvidia" not in maps)
    opened = [os.readlink(fd) for fd in (process / "fd").iterdir()]
    ok("the daemon has no NVIDIA device open", not any("nvidia" in name for name in opened), opened)
    if shutil.which("nvidia-smi") is None:
        info("the daemon is not among nvidia-smi's processes", "nvidia-smi does not exist")
    else:
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        pids = [int(word) for word in done.stdout.split() if word.isdigit()]
        info(
            "nvidia-smi's compute processes",
            f"{pids}, trainer {os.getpid()}, daemon {daemon.process.pid}",
        )
        ok(
            "the daemon is not among nvidia-smi's processes",
            done.returncode == 0 and daemon.process.pid not in pids,
            done.stderr,
        )
    session.close()


def check_programs(torch, daemon):
    """The C example and the benchmark, with the CUDA runtime."""
    commands = {
        "example-gpu-trainer": [CUDA_BIN / "example-gpu-trainer", "train", daemon.socket],
        "bench-h2d": [CUDA_BIN / "bench-h2d", daemon.socket, "train", "4096"],
    }
    for name, command in commands.items():
        if not command[0].exists():
            info(
                name,
                (
                    "not built: cuda_runtime.h or libcudart_static.a was missing; run make "
                    "cuda-programs CUDA=…"
                ),
            )
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        ok(name, done.returncode == 0, (done.stdout + done.stderr).strip())
        if name == "example-gpu-trainer":
            ok(
                "example-gpu-trainer: all steps, from a registered ring",
                "100 steps, ring registered" in done.stdout,
            )
        if name == "bench-h2d" and done.returncode == 0:
            seen = json.loads(done.stdout)
            ok(
                "bench-h2d: the whole ring was registered",
                seen["pinned_bytes"] >= 4 * seen["slot_bytes"],
            )
            ok(
                "bench-h2d: ring ≥ 0.95 of CUDA's own pinned memory",
                seen["ring_gb_s"] >= 0.95 * seen["cuda_pinned_gb_s"],
            )
