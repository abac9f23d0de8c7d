#!/usr/bin/env python3
"""How figures grow with dataset size, sessions, datasets, seq_len and micro_batch.

    build/venv/bin/python bench/run.py growth

Files that do not fit into the page cache are sparse: of these, starts and memory are measured, not
rates. pages.py draws a log-log plot of each.
"""

import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import growth_peers
import steps
from common import BIN, MICRO, SEQ, Daemon, in_child, next_from_c, process_cpu, rss

sys.path.append(str(Path(__file__).parent / "pictures"))
from plot import plot  # noqa: E402

SHARD = 10**10  # tokens of a sparse shard, u16
SIZES = (10**9, 10**10, 10**11, 10**12, 10**13, 10**14)
SESSIONS = (1, 4, 16, 64)
DATASETS = (1, 10, 100, 1000)
SEQ_LENS = (512, 2048, 8192, 32768, 131072)
MICRO_BATCHES = (1, 4, 16, 64, 256)
TOKENS = 100_000_000  # taken for one rate
ROUNDS = 3
WAITS = (10**9, 10**14, 512, 8192, 131072)  # sizes and seq_lens whose wait is measured
PEERS = (512, 8192, 131072)  # seq_lens of all peers
STEPS = 300  # of 20 ms


def stream(datasets, seq_len=SEQ):
    lines = "".join(f"      - {{name: d{n}, path: {path}}}\n" for n, path in enumerate(datasets))
    return f"  train:\n    seed: 42\n    seq_len: {seq_len}\n    datasets:\n{lines}"


def sparse(directory, tokens):
    directory.mkdir()
    for shard in range(max(1, tokens // SHARD)):
        with open(directory / f"{shard:05}.bin", "wb") as file:
            file.truncate(2 * min(tokens, SHARD))


def starts(directory, streams, position=0):
    """Milliseconds from exec and from attach to the first batch, and the daemon's MiB."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.monotonic()
        with Daemon(directory, streams) as daemon:
            next_from_c(daemon, "train", 0, 0)
            start = (time.monotonic() - begin) * 1e3
            attach = [next_from_c(daemon, "train", position, 0)["first_ms"] for _ in range(5)]
            rounds.append((start, statistics.median(attach), rss(daemon)))
    start, attach, memory = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"start_ms": start, "attach_ms": attach, "memory": memory}


def taken(daemon, batches, kind, micro, sessions):
    """Runs @sessions trainers at once. Returns answers, seconds, and the daemon's largest MiB."""
    command = [BIN / "bench-next", daemon.socket, "train", "0", str(batches), kind, str(micro)]
    begin = time.monotonic()
    trainers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(sessions)]
    memory, over = [rss(daemon)], threading.Event()

    def watch():
        while not over.wait(0.02):
            memory.append(rss(daemon))

    watcher = threading.Thread(target=watch)
    watcher.start()
    answers = [json.loads(trainer.communicate()[0]) for trainer in trainers]
    seconds = time.monotonic() - begin
    over.set()
    watcher.join()
    return answers, seconds, max(memory)


def rates(directory, streams, seq_len=SEQ, micro=MICRO, sessions=1, least=TOKENS):
    """Tokens/s as stored and into int64, CPU seconds per 10⁹ tokens as stored, MiB."""
    batches = max(20, least // (micro * (seq_len + 1) * sessions))
    tokens = batches * micro * (seq_len + 1) * sessions
    found = {"stored": [], "int64": [], "cpu": [], "memory": []}
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        for _ in range(ROUNDS):
            for kind in ("stored", "int64"):
                cpu = process_cpu(daemon.process.pid)
                answers, seconds, memory = taken(daemon, batches, kind, micro, sessions)
                cpu = (process_cpu(daemon.process.pid) - cpu) * 1e9 / tokens
                one = answers[0]["tokens_s"]  # without the processes' starts
                found[kind].append(one if sessions == 1 else tokens / seconds)
                if kind == "stored":
                    found["memory"].append(memory)
                    own = statistics.mean(a["cpu_s_per_1e9"] for a in answers)
                    found["cpu"].append(cpu + own)
    return {key: statistics.median(values) for key, values in found.items()}


def wait_us(directory, streams, file):
    """p99 of all of next() in steps of 20 ms, in Python."""
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        options = {"file": file, "socket": daemon.socket, "steps": STEPS}
        found = in_child(steps.__file__, "train", contestant="tokend", **options)
    return steps.percentile([wait for _, wait in found], 0.99) * 1e6


# ---- the curves ----


def against_size(directory, sizes):
    found = {}
    for size in sizes:
        place = directory / f"sparse-{size:.0e}"
        sparse(place, size)
        found[size] = starts(directory, stream([place.name]), size // 4096)
        order = subprocess.run([BIN / "bench-order", str(size)], check=True, capture_output=True)
        found[size]["window_ns"] = json.loads(order.stdout)["window_ns"]
        if size in WAITS:
            found[size]["wait_us"] = wait_us(directory, stream([place.name]), place)
        found[size] |= growth_peers.starts(directory / f"peers-{size:.0e}", size)
        shutil.rmtree(place)
    return found


def against_datasets(directory, counts):
    found = {}
    for count in counts:
        for n in range(count):
            path = directory / f"sets/{n}.bin"
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                path.write_bytes(bytes(2 * 2049 * 20))
        streams = stream([f"sets/{n}.bin" for n in range(count)])
        found[count] = starts(directory, streams) | rates(directory, streams)
    return found


def against_shape(directory, shapes, key):
    """Of one trainer, by seq_len or micro_batch. @key: which of a shape's numbers is the axis."""
    found, tokens = {}, directory / "tokens.bin"
    for shape in shapes:
        seq_len, micro = shape
        streams = stream([tokens.name], seq_len)
        point = found[shape[key]] = rates(directory, streams, seq_len, micro)
        if key == 0 and seq_len in WAITS:
            point["wait_us"] = wait_us(directory, streams, tokens.name)
        names = ("torch", "megatron", "mosaic") if key == 0 and seq_len in PEERS else ("torch",)
        point |= growth_peers.rates(directory, tokens, shape, names)
    return found


def measure(directory, args):
    every = slice(None, None, 3 if args.quick else 1)
    streams = stream(["tokens.bin"])
    return {
        "size": against_size(directory, SIZES[every]),
        "datasets": against_datasets(directory, DATASETS[every]),
        "sessions": {
            n: rates(directory, streams, sessions=n, least=4 * TOKENS) for n in SESSIONS[every]
        },
        "seq_len": against_shape(directory, [(n, MICRO) for n in SEQ_LENS[every]], 0),
        "micro_batch": against_shape(directory, [(SEQ, n) for n in MICRO_BATCHES[every]], 1),
    }


# ---- plots ----


def column(points, key):
    """@points may come from JSON, where numbers are strings."""
    return [(int(n), p[key]) for n, p in points.items() if p.get(key)]


def plots(found):
    """{file name: SVG}. @found: the figures that growth() returned."""
    dataset, size, sessions = "tokens of the dataset", found["size"], found["sessions"]
    one = {
        "int64": "tokend, int64",
        "stored": "tokend, as stored",
        "torch_int64": "torch",
        "megatron_int64": "Megatron",
        "mosaic_int64": "Mosaic",
    }
    drawn = {
        "size-start": ("Start", dataset, "milliseconds to the first batch", size, {
            "attach_ms": "tokend, attach",
            "start_ms": "tokend",
            "torch_start_ms": "torch",
            "megatron_start_ms": "Megatron",
            "mosaic_start_ms": "Mosaic",
        }),
        "size-memory": ("Memory of a start", dataset, "MiB", size, {
            "memory": "tokend",
            "torch_memory": "torch",
            "megatron_memory": "Megatron",
            "mosaic_memory": "Mosaic",
        }),
        "size-order": ("Position to window", dataset, "nanoseconds", size, {"window_ns": "tokend"}),
        "datasets": (
            "Datasets of one mix", "datasets", "milliseconds to the first batch", found["datasets"],
            {"attach_ms": "daemon runs", "start_ms": "daemon starts"},
        ),
        "sessions": ("Rate of all sessions", "sessions", "tokens/s", sessions,
            {"stored": "as stored", "int64": "int64"}),
        "sessions-memory": ("Memory of the daemon", "sessions", "MiB, without the rings", sessions,
            {"memory": "daemon"}),
        "seq_len": ("Rate of one trainer", "seq_len", "tokens/s", found["seq_len"], one),
        "micro_batch": (
            "Rate of one trainer", "micro_batch", "tokens/s", found["micro_batch"], one,
        ),
    }  # fmt: skip
    drawn = {
        name: (title, x, y, {said: column(points, key) for key, said in keys.items()})
        for name, (title, x, y, points, keys) in drawn.items()
    }
    axes = ("seq_len", "micro_batch")
    cpu = {axis: column(found[axis], "cpu") for axis in axes}
    title = "CPU of daemon and trainer, as stored"
    drawn["cpu"] = (title, ", ".join(axes), "seconds per 10⁹ tokens", cpu)
    waits = {
        "dataset": column(size, "wait_us"),
        "batch": [(MICRO * n, wait) for n, wait in column(found["seq_len"], "wait_us")],
    }
    tokens = "tokens of the dataset, or of a batch"
    drawn["wait"] = ("Wait of a step of 20 ms, p99", tokens, "microseconds", waits)
    svgs = {}
    for name, (title, x, y, curves) in drawn.items():
        curves = {said: curve for said, curve in curves.items() if curve}
        if curves:
            svgs[f"{name}.svg"] = plot(title, x, y, curves)
    return svgs


def growth(directory, args):
    """The part of run.py."""
    found = measure(directory, args)
    print("\nGrowth")
    for axis, points in found.items():
        keys = list(dict.fromkeys(key for point in points.values() for key in point))
        print(f"\n  {axis:>17} " + " ".join(f"{key:>17}" for key in keys))
        for n, point in points.items():
            cells = (point.get(key) for key in keys)
            shown = (
                "–" if c is None else f"{c / 1e6:,.0f} M" if c > 1e5 else f"{c:.3g}" for c in cells
            )
            print(f"  {n:>17,} " + " ".join(f"{cell:>17}" for cell in shown))
    return {"growth": found}
