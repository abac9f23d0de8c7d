#!/usr/bin/env python3
"""What only a real GPU can show of copies out of the ring. `make check-gpu PYTHON=…`, with a Python
whose torch sees the GPU.

Takes what was built here, else what was carried here (`make gpu-kit`): it needs torch and a driver,
nothing else and no network.

check.py [PATTERN…] runs the checks whose names hold one. Each prints lines "ok", "FAIL" or "info"
(a figure that is no promise). Exit status: 0 all ok, 77 there is no GPU (the last line is "skipped:
why"), else 1. What was seen goes into RESULTS.md, by hand, with the machine's name: until it stands
there nothing is claimed.
"""

import contextlib
import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "build/gpu"
BUILT = (ROOT / "build/gcc").exists() or not KIT.exists()
BIN = Path(os.environ.get("TOKEND_BIN", ROOT / "build/bin" if BUILT else KIT / "site/tokend/bin"))
CUDA_BIN = BIN if BUILT else KIT / "bin"
sys.path.insert(
    0, os.environ.get("TOKEND_PYTHON", str(ROOT / "build/python" if BUILT else KIT / "site"))
)
SEQ, WINDOW, GIB = 2048, 2049, 1 << 30
STREAMS = """\
memory: 8GiB
streams:
  train:
    seed: 1
    seq_len: 2048
    datasets:
      - {name: web, path: web.bin}
  papers:
    seed: 1
    seq_len: 2048
    eos: 7
    documents: true
    datasets:
      - {name: web, path: web.bin}
"""


def no_gpu():
    """Why nothing can be run here, or None."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    try:
        import torch
    except ImportError as error:
        return f"a driver, but no torch in {sys.executable}: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} of {sys.executable} sees none"
    return None


# ---- what is reported ----

failed = 0


def ok(name, good, seen=""):
    global failed
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'}  {name}{f': {seen}' if seen != '' else ''}", flush=True)


def info(name, value):
    print(f"info  {name}: {value}", flush=True)


# ---- a daemon, sessions, what must arrive ----


class Daemon:
    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="tokend-gpu-"))
        self.socket = str(self.dir / "socket")
        (self.dir / "web.bin").write_bytes(random.Random(1).randbytes(128_000_000))
        (self.dir / "tokend.yaml").write_text(
            f"socket: {self.socket}\nstate_dir: {self.dir}/state\n{STREAMS}"
        )
        self.start()

    def start(self):
        if not (BIN / "tokend").exists():
            raise SystemExit(
                f"no {BIN}/tokend: `make all` here, or carry build/gpu here, which `make "
                "gpu-kit` makes elsewhere"
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
    """A client with places for its small arrays."""

    def __init__(self, daemon, micro=8, slots=4, position=0):
        import torch
        from tokend import _tokend

        self.client = _tokend.Client(
            "train", micro, socket=daemon.socket, slots=slots, deadline_ms=30000, position=position
        )
        self.micro, self.small = micro, torch.empty((2, micro), dtype=torch.int64)

    def take(self, tokens=0):
        return self.client.next_into(tokens, self.small.data_ptr())

    def on_cpu(self):
        import torch

        tokens = torch.empty((self.micro, WINDOW), dtype=torch.int64)
        assert self.take(tokens.data_ptr()) is not None
        return tokens

    def close(self):
        self.client.close()


def want(daemon, batches, micro=8, position=0):
    """The tokens that must arrive, by the way that knows no GPU."""
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
        warnings.simplefilter("error")  # not to be registered is a failure here
        return device.Feed(session.client, session.client.shape(), "cuda")


def slow(torch, ms):
    """Keeps the current stream busy for about so long."""
    torch.cuda._sleep(int(ms * 1.5e6))  # cycles, at some 1.5 GHz


def median(values):
    return statistics.median(values)


def rates(torch, sources, rounds=25, copies=20):
    """GB/s of copies of each tensor to the device, in turns."""
    to, seen = (
        torch.empty_like(next(iter(sources.values())), device="cuda"),
        {name: [] for name in sources},
    )
    for turn in range(rounds + 1):
        for name, source in sources.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(copies):
                to.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            if turn:
                seen[name].append(source.nbytes * copies / begin.elapsed_time(end) / 1e6)
    return {name: median(values) for name, values in seen.items()}


# ---- the checks ----


def check_is_pinned(torch, daemon):
    session = Session(daemon)
    session.client.lend(2)
    session.take()
    before = torch.from_dlpack(session.client.view())
    ok("is_pinned: not before it is registered", not before.is_pinned())
    session.client.pin(0)
    ok("is_pinned: a tensor over a slot", before.is_pinned())
    session.take()
    tensor = torch.from_dlpack(session.client.view())
    ok(
        "is_pinned: at interior pointers",
        all(tensor.view(torch.int16)[row:, 7:].is_pinned() for row in range(8)),
    )
    del before, tensor
    session.close()
    ok(
        "is_pinned: nothing is left registered",
        "tokend-data" not in Path("/proc/self/maps").read_text(),
    )


def check_rate(torch, daemon):
    for micro in (8, 4096):
        session = Session(daemon, micro)
        session.client.lend(2)
        session.client.pin(0)
        session.take()
        ring = torch.from_dlpack(session.client.view()).view(torch.int16)
        pinned, pageable = torch.empty_like(ring, pin_memory=True).copy_(ring), ring.clone()
        seen = rates(torch, {"ring": ring, "torch pinned": pinned, "pageable": pageable})
        size = f"{ring.nbytes / 1e6:.2f} MB a slot"
        info(f"rate, {size}", ", ".join(f"{name} {value:.1f} GB/s" for name, value in seen.items()))
        ok(
            f"rate, {size}: ring ≥ 0.95 of torch's own pinned memory",
            seen["ring"] >= 0.95 * seen["torch pinned"],
        )
        del ring
        session.close()


def check_early_return(torch, daemon):
    session = Session(daemon, 4096)
    session.client.lend(2)
    session.client.pin(0)
    session.take()
    ring = torch.from_dlpack(session.client.view()).view(torch.int16)
    to = torch.empty_like(ring, device="cuda")
    took = {}
    for name, source in (("ring", ring), ("pageable", ring.clone())):
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        slow(torch, 200)
        begin = time.perf_counter()
        to.copy_(source, non_blocking=True)
        took[name] = (time.perf_counter() - begin) * 1e3
        torch.cuda.synchronize()
    info(
        "early return behind a stream that is busy for some 200 ms",
        ", ".join(f"{k} {v:.3f} ms" for k, v in took.items()),
    )
    ok("early return: from the ring within 2 ms", took["ring"] < 2, f"{took['ring']:.3f} ms")
    del ring
    session.close()


def check_reuse(torch, daemon):
    """Slots come back at their event, not before, behind streams that are late; and a control that
    gives them back early.
    """
    batches, micro = 60, 8
    right = want(daemon, batches, micro)
    session = Session(daemon, micro, slots=3)
    source, seen = feed(session), []
    for _ in range(batches):
        with torch.cuda.stream(source._gpu.side):
            slow(torch, 5)  # each copy is late
        seen.append(source.next(session.take)[0])
    torch.cuda.synchronize()
    wrong = [
        i
        for i, (got, tokens) in enumerate(zip(seen, right, strict=True))
        if not torch.equal(got.cpu(), tokens)
    ]
    ok(f"reuse: {batches} late batches arrive as they are", not wrong, wrong)
    session.close()

    session, cudart = Session(daemon, micro, slots=3), torch.cuda.cudart()
    session.client.lend(1)
    session.take()
    line = next(
        line for line in Path("/proc/self/maps").read_text().splitlines() if "tokend-data" in line
    )
    begin, end = (int(word, 16) for word in line.split()[0].split("-"))
    error = int(cudart.cudaHostRegister(begin, end - begin, 0))  # behind our back: nobody waits
    assert error == 0, f"cudaHostRegister: {error}"
    side, seen = torch.cuda.Stream(), []
    for i in range(batches):
        if i:
            session.take()
        with torch.cuda.stream(side):
            slow(torch, 5)
            seen.append(
                torch.from_dlpack(session.client.view())
                .view(torch.int16)
                .to("cuda", non_blocking=True)
            )
    torch.cuda.synchronize()
    wrong = sum(
        not torch.equal(got.cpu().to(torch.int64) & 0xFFFF, tokens)
        for got, tokens in zip(seen, right, strict=True)
    )
    ok(
        "reuse: the negative control (slots given back early) arrives wrong",
        wrong > 0,
        f"{wrong} of {batches} batches wrong",
    )
    cudart.cudaHostUnregister(begin)
    session.close()


def check_view(torch, daemon):
    """Lent slots are not registered, so a driver has what it copies of them before it returns, and
    they may go back at once: relied on by whoever moves a view behind a stream that is late. Where
    a GPU reads pageable memory by itself (HMM, ATS), too.
    """
    from tokend import Loader

    right, side, seen = want(daemon, 60), torch.cuda.Stream(), []
    with Loader(
        "train", 8, socket=daemon.socket, rank=0, world=1, slots=3, view=True, hold=1
    ) as loader:
        for _ in right:
            with torch.cuda.stream(side):
                slow(torch, 5)
                seen.append(next(loader)["tokens"].view(torch.int16).to("cuda", non_blocking=True))
        torch.cuda.synchronize()
    wrong = [
        i
        for i, (got, tokens) in enumerate(zip(seen, right, strict=True))
        if not torch.equal(got.cpu().to(torch.int64) & 0xFFFF, tokens)
    ]
    ok(
        "view: moved behind a late stream and given back at once, it arrives as it is",
        not wrong,
        wrong,
    )


def check_daemon_killed(torch, daemon):
    right = want(daemon, 30)
    session = Session(daemon)
    source, seen = feed(session), []
    for i in range(30):
        if i == 10:
            with torch.cuda.stream(source._gpu.side):
                slow(torch, 300)
        if i == 13:
            daemon.kill()  # copies are queued behind the delay
            threading.Timer(0.3, daemon.start).start()
        seen.append(source.next(session.take)[0])
    torch.cuda.synchronize()
    ok("daemon killed mid-copy: the same tokens", same(seen, right))
    ok(
        "daemon killed mid-copy: the new ring is registered",
        session.client.shape()["pinned_bytes"] > 0,
    )
    ok("daemon killed mid-copy: lost and found once", session.client.shape()["reattached"] == 1)
    session.close()


VICTIM = """
import sys
sys.path[:0] = [{here!r}]
import torch, check
class D: socket = {socket!r}
session = check.Session(D)
source = check.feed(session)
for i in range(8):
    with torch.cuda.stream(source._gpu.side):
        check.slow(torch, 500)
    if i == 7: print("now", flush=True)
    source.next(session.take)
torch.cuda.synchronize()
"""


def check_trainer_killed(torch, daemon):
    code = VICTIM.format(here=str(Path(__file__).parent), socket=daemon.socket)
    for _ in range(3):
        victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        said = victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL and said == "now\n", (
            f"the trainer ended by itself: {victim.returncode}"
        )
        until = time.monotonic() + 10
        while daemon.sessions() and time.monotonic() < until:
            time.sleep(0.01)
    ok("trainer killed mid-copy: its sessions are gone", daemon.sessions() == 0, daemon.sessions())
    right, session = want(daemon, 10), Session(daemon)
    source = feed(session)
    got = [source.next(session.take)[0] for _ in range(10)]
    ok("trainer killed mid-copy: the next one has its tokens", same(got, right))
    session.close()


LEAVER = """
import os, sys
sys.path[:0] = [{here!r}]
import torch, check, tokend
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
    assert os.waitpid(child, 0)[1] == 0, "the child was not refused"
    next(loader)
if {work}:
    check.slow(torch, 200)
    next(loader)
print("end", flush=True)
"""


def check_leaving(torch, daemon):
    """A process that ends as most do: nothing is closed, the interpreter and the driver come down
    as they like.
    """
    for name, fork, work in (
        ("a process", False, False),
        ("one with copies under way", False, True),
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
            f"leaving: {name} ends well",
            good,
            (done.returncode, done.stderr) if not good else f"{time.perf_counter() - begin:.1f} s",
        )


def check_daemon_without_cuda(torch, daemon):
    session = Session(daemon)
    source = feed(session)
    source.next(session.take)
    process = Path(f"/proc/{daemon.process.pid}")
    maps = (process / "maps").read_text()
    ok("the daemon has no CUDA library mapped", "libcuda" not in maps and "/dev/nvidia" not in maps)
    opened = [os.readlink(fd) for fd in (process / "fd").iterdir()]
    ok("the daemon has no device of it open", not any("nvidia" in name for name in opened), opened)
    if shutil.which("nvidia-smi") is None:
        info("the daemon is not among nvidia-smi's processes", "there is no nvidia-smi here")
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


def check_registration(torch, daemon):
    """Seconds a GiB, of a ring and of memory with and without huge pages."""
    session = Session(daemon, 4096, slots=64)
    torch.empty(1, device="cuda")
    begin = time.perf_counter()
    session.client.pin(0)
    took, size = time.perf_counter() - begin, session.client.shape()["pinned_bytes"]
    info("registration, the ring", f"{took / size * GIB:.3f} s/GiB ({size / GIB:.2f} GiB)")
    session.close()
    libc, cudart = ctypes.CDLL(None, use_errno=True), torch.cuda.cudart()
    with contextlib.suppress(OSError):
        info(
            "shmem_enabled",
            Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text().strip(),
        )
    kinds = {
        "4 KiB pages": (0, 15),
        "THP": (0, 14),
        "hugetlb": (4, None),
    }  # MFD_HUGETLB; MADV_NOHUGEPAGE, MADV_HUGEPAGE
    for name, (flags, advice) in kinds.items():
        fd = os.memfd_create("probe", flags)
        try:
            os.ftruncate(fd, GIB)
            memory = mmap.mmap(fd, GIB)
        except OSError as error:
            info(f"registration, memfd of {name}", f"none to be had: {error.strerror}")
            continue
        finally:
            os.close(fd)
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if advice is not None:
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(GIB), advice)
        libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(GIB), 23)  # MADV_POPULATE_WRITE
        begin = time.perf_counter()
        error = int(cudart.cudaHostRegister(at, GIB, 3))
        info(
            f"registration, memfd of {name}",
            f"{time.perf_counter() - begin:.3f} s/GiB" if error == 0 else f"error {error}",
        )
        if error == 0:
            cudart.cudaHostUnregister(at)


def model(torch, width=1024, layers=6):
    torch.manual_seed(0)
    blocks = [
        torch.nn.TransformerEncoderLayer(width, 16, 4 * width, 0.0, batch_first=True)
        for _ in range(layers)
    ]
    return (
        torch.nn.Sequential(
            torch.nn.Embedding(65536, width), *blocks, torch.nn.Linear(width, 65536)
        )
        .cuda()
        .bfloat16()
    )


def loss_of(torch, net, tokens):
    logits = net(tokens[:, :SEQ])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def check_step_time(torch, daemon):
    """Against synthetic tokens made on the device, in pairs of which each begins the other way
    round.
    """
    micro, steps, pairs = 4, 10, 40
    net = model(torch)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    session = Session(daemon, micro, slots=8)
    source = feed(session)

    def seconds(batch):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            loss_of(torch, net, batch()).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps

    ways = {
        "synthetic": lambda: torch.randint(65536, (micro, WINDOW), device="cuda"),
        "tokend": lambda: source.next(session.take)[0],
    }
    seen = {name: [] for name in ways}
    for turn in range(pairs + 3):
        for name in sorted(ways, reverse=turn % 2 == 0):
            took = seconds(ways[name])
            if turn >= 3:  # the first ones warm up
                seen[name].append(took)
    more = sorted(a / b - 1 for a, b in zip(seen["tokend"], seen["synthetic"], strict=True))
    low, high = (
        more[pairs // 2 - 7],
        more[pairs // 2 + 6],
    )  # of 40, between them the median lies in 96 of 100 cases
    info(
        "step time",
        ", ".join(f"{name} {median(times) * 1e3:.3f} ms" for name, times in seen.items()),
    )
    said = f"{median(more) * 100:+.3f} %, between {low * 100:+.3f} and {high * 100:+.3f}"
    ok("step time: at most 0.1 % over synthetic tokens on the device", median(more) <= 0.001, said)
    session.close()


def check_loader(torch, daemon):
    """All that a loader makes on a device, beside the same on the CPU; the state of one goes on in
    the other.
    """
    from tokend import Loader

    ways = {
        "plain": {},
        "documents, masks, provenance": {
            "stream": "papers",
            "documents": True,
            "loss_mask": True,
            "provenance": True,
        },
        "a slice": {"cp": (1, 2, "zigzag"), "loss_mask": True},
        "int32": {"dtype": torch.int32},
        "transformed": {"transform": backwards},
    }
    for name, ask in ways.items():
        ask = {
            "stream": "train",
            "micro_batch": 8,
            "socket": daemon.socket,
            "rank": 0,
            "world": 1,
            **ask,
        }
        with Loader(**ask) as plain, Loader(**ask, device="cuda") as there:
            pairs = [(next(plain), next(there)) for _ in range(6)]
            there.load_state_dict(plain.state_dict())
            pairs += [(next(plain), next(there)) for _ in range(3)]
        wrong = {
            key
            for a, b in pairs
            for key in a.keys() | b.keys()
            if not (
                torch.equal(a[key], b[key].cpu()) if hasattr(a[key], "cpu") else a[key] == b[key]
            )
        }
        on = {key for key, value in pairs[0][1].items() if getattr(value, "is_cuda", False)}
        ok(f"loader, {name}: as on the CPU", not wrong, sorted(wrong) or "")
        ok(
            f"loader, {name}: on the device",
            on >= {"input_ids", "labels"} and ("documents" not in ask or "cu_seqlens" in on),
            on,
        )


def backwards(tokens, position, rng):
    return tokens[::-1].copy()


def check_capture(torch, daemon):
    """Graphs are captured in one thread, in the mode that minds all others, while batches are taken
    in another. What torch has to allocate for them is large enough to be got from the driver now
    and again.
    """
    right = want(daemon, 100, 128)
    session = Session(daemon, 128)
    source, graphs, stop = feed(session), [], threading.Event()

    def capture():
        side, x = torch.cuda.Stream(), torch.ones(1024, device="cuda")
        while not stop.is_set() and len(graphs) < 200:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=side, capture_error_mode="global"):
                    y = x * 2
                    time.sleep(0.002)
                    y += 1
                graphs.append("good")
            except RuntimeError as error:
                graphs.append(str(error).splitlines()[0])

    source.next(session.take)  # what is made once is made
    thread = threading.Thread(target=capture)
    thread.start()
    seen, raised = [], []
    try:
        seen = [source.next(session.take)[0] for _ in right[1:]]
    except Exception as error:
        raised.append(error)
    stop.set()
    thread.join()
    torch.cuda.synchronize()
    bad = [g for g in graphs if g != "good"]
    ok(f"capture elsewhere: {len(graphs)} graphs, none spoiled", graphs and not bad, bad[:1])
    ok("capture elsewhere: batches arrive", not raised and same(seen, right[1:]), raised)
    session.close()


def check_compile(torch, daemon):
    """Compiled steps, with graphs of their own, on batches of a feed and on the same ones made on
    the CPU.
    """
    net, right, losses = model(torch, 256, 2), want(daemon, 12, 4), {}
    step = torch.compile(
        lambda tokens: loss_of(torch, net, tokens), mode="reduce-overhead", fullgraph=True
    )

    def trained(tokens):
        loss = step(tokens)
        loss.backward()  # else its graphs are never let go, and are not used again
        net.zero_grad()
        return loss.item()

    losses["cpu"] = [trained(tokens.cuda()) for tokens in right]
    session = Session(daemon, 4)
    source = feed(session)
    losses["feed"] = [trained(source.next(session.take)[0]) for _ in right]
    near = all(
        abs(a - b) <= 1e-3 * abs(a) for a, b in zip(losses["cpu"], losses["feed"], strict=True)
    )
    ok(
        "torch.compile, reduce-overhead: the same losses",
        near and len(set(losses["cpu"])) > 1,
        losses,
    )
    session.close()


def check_programs(torch, daemon):
    """The C example and the benchmark, against the CUDA runtime."""
    commands = {
        "example-gpu-trainer": [CUDA_BIN / "example-gpu-trainer", "train", daemon.socket],
        "bench-h2d": [CUDA_BIN / "bench-h2d", daemon.socket, "train", "4096"],
    }
    for name, command in commands.items():
        if not command[0].exists():
            info(
                name,
                (
                    "not built: there was no cuda_runtime.h, or no libcudart_static.a (make "
                    "cuda-programs CUDA=…)"
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


def main():
    why = no_gpu()
    if why:
        print(f"skipped: no NVIDIA GPU here ({why})")
        return 77
    import torch

    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Linux {os.uname().release}"
    info("machine", f"{torch.cuda.get_device_name(0)}, {versions}")
    torch.empty(1, device="cuda")  # the device's context, torch's own
    daemon = Daemon()
    try:
        for name, check in list(globals().items()):
            if name.startswith("check_") and (
                not sys.argv[1:] or any(word in name for word in sys.argv[1:])
            ):
                try:
                    check(torch, daemon)
                except Exception as error:
                    ok(name, False, repr(error))
                    traceback.print_exc()
    finally:
        daemon.end()
    print(f"{failed} failed" if failed else "all ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
