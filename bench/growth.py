#!/usr/bin/env python3
"""How figures grow with dataset size, sessions, datasets, seq_len and micro_batch.

    build/venv/bin/python bench/growth.py --out bench/results

Draws a log-log plot of each into --out, and writes the numbers to build/bench/growth.json. Files
that do not fit into the page cache are sparse: of these, starts and memory are measured, not rates.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import steps
from common import BIN, ROOT, Daemon, answer, fresh, in_child, next_from_c, process_cpu, rss
from common import CannotRun, write_tokens

sys.path.append(str(Path(__file__).parent / "pictures"))
from plot import plot  # noqa: E402

SHARD = 10**10  # tokens of a sparse shard, u16
SIZES = (10**9, 10**10, 10**11, 10**12, 10**13, 10**14)
SESSIONS = (1, 2, 4, 8, 16, 32, 64)
DATASETS = (1, 10, 100, 1000)
SEQ_LENS = (512, 2048, 8192, 32768, 131072)
MICRO_BATCHES = (1, 4, 16, 64, 256)
TORCH_SAMPLES = 10**8  # more do not fit: its list has 40 bytes a sample
TOKENS = 100_000_000  # taken for one rate
ROUNDS = 3
WAITS = (10**9, 10**11, 10**14, 512, 8192, 131072)  # sizes and seq_lens whose wait is measured
STEPS = 1000  # of 20 ms: the least of which p99.9 is not the longest


def stream(datasets, seq_len=2048):
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


def rates(directory, streams, seq_len=2048, micro=8, sessions=1, least=TOKENS):
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
    """p99.9 of all of next() in steps of 20 ms, in Python."""
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        options = {"file": file, "socket": daemon.socket, "steps": STEPS}
        found = in_child(steps.__file__, "train", contestant="tokend", **options)
    return steps.percentile([wait for _, wait in found], 0.999) * 1e6


# ---- torch, in a process of its own ----


def torch_start(args):
    """DataLoader's RandomSampler: milliseconds to the first index, MiB that it needs."""
    from common import memory_of
    import os

    import torch

    before = memory_of(os.getpid())["VmRSS"]
    begin = time.monotonic()
    iterator = iter(torch.utils.data.RandomSampler(range(args.samples)))
    next(iterator)
    seconds = time.monotonic() - begin
    return {"start_ms": seconds * 1e3, "memory": memory_of(os.getpid())["VmRSS"] - before}


def torch_rates(args):
    """Tokens/s of a DataLoader with 0 workers over a memmap, for each [seq_len, micro_batch]."""
    import numpy
    import torch

    torch.set_num_threads(1)
    data = numpy.memmap(args.file, dtype="<u2", mode="r")
    found = []
    for seq_len, micro in args.shapes:

        class Windows(torch.utils.data.Dataset):
            def __len__(self):
                return (len(data) - 1) // seq_len  # noqa: B023

            def __getitem__(self, i):
                window = data[i * seq_len : (i + 1) * seq_len + 1]  # noqa: B023
                return torch.from_numpy(window.astype(numpy.int64))

        loader = torch.utils.data.DataLoader(Windows(), batch_size=micro, shuffle=True)
        batches, tokens = iter(loader), 0
        next(batches)
        begin = time.monotonic()
        while time.monotonic() - begin < args.seconds:
            batch = next(batches, None)
            if batch is None:
                break
            tokens += batch.numel()
        found.append(tokens / (time.monotonic() - begin))
    return found


# ---- the curves ----


def against_size(directory, sizes):
    ours, torch = {}, {}
    for size in sizes:
        place = directory / f"sparse-{size:.0e}"
        sparse(place, size)
        ours[size] = starts(directory, stream([place.name]), size // 4096)
        if size in WAITS:
            ours[size]["wait_us"] = wait_us(directory, stream([place.name]), place)
        if size // 2048 <= TORCH_SAMPLES:
            torch[size] = fresh(__file__, "torch_start", samples=size // 2048)
    return {"tokend": ours, "torch": torch}


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


def measure(directory, args):
    every = slice(None, None, 3 if args.quick else 1)
    streams = stream(["tokens.bin"])
    found = {"size": against_size(directory, SIZES[every])}
    found["datasets"] = against_datasets(directory, DATASETS[every])
    found["sessions"] = {
        n: rates(directory, streams, sessions=n, least=4 * TOKENS) for n in SESSIONS[every]
    }
    found["seq_len"] = {
        n: rates(directory, stream(["tokens.bin"], n), seq_len=n) for n in SEQ_LENS[every]
    }
    for n in SEQ_LENS[every]:
        if n in WAITS:
            streams_of = stream(["tokens.bin"], n)
            found["seq_len"][n]["wait_us"] = wait_us(directory, streams_of, "tokens.bin")
    found["micro_batch"] = {n: rates(directory, streams, micro=n) for n in MICRO_BATCHES[every]}
    shapes = [(n, 8) for n in SEQ_LENS[every]] + [(2048, n) for n in MICRO_BATCHES[every]]
    try:
        torch = fresh(
            __file__, "torch_rates", file=directory / "tokens.bin", shapes=shapes, seconds=0.7
        )
    except CannotRun as error:
        print(f"torch: {error}")
        torch = [None] * len(shapes)
    points = [*found["seq_len"].values(), *found["micro_batch"].values()]
    for point, rate in zip(points, torch, strict=True):
        point["torch"] = rate
    return found


def column(points, key):
    return [(n, p[key]) for n, p in points.items() if p.get(key)]


def plots(found):
    """{file name: SVG}."""
    size, torch = found["size"]["tokend"], found["size"]["torch"]
    drawn = {
        "size-start": (
            "Start",
            "tokens of the dataset",
            "milliseconds to the first batch",
            {
                "tokend, daemon runs": column(size, "attach_ms"),
                "tokend, with the daemon's start": column(size, "start_ms"),
                "torch RandomSampler": column(torch, "start_ms"),
            },
        ),
        "size-memory": (
            "Memory",
            "tokens of the dataset",
            "MiB, without the batches",
            {
                "tokend's daemon": column(size, "memory"),
                "torch RandomSampler": column(torch, "memory"),
            },
        ),
        "datasets": (
            "Datasets of one mix",
            "datasets",
            "milliseconds to the first batch",
            {
                "daemon runs": column(found["datasets"], "attach_ms"),
                "with the daemon's start": column(found["datasets"], "start_ms"),
            },
        ),
        "sessions-memory": (
            "Memory of the daemon",
            "sessions",
            "MiB, without the rings",
            {"tokend's daemon": column(found["sessions"], "memory")},
        ),
    }
    for axis in ("seq_len", "micro_batch"):
        drawn[axis] = (
            "Rate of one trainer",
            axis,
            "tokens/s",
            {
                "tokend, as stored": column(found[axis], "stored"),
                "tokend, int64": column(found[axis], "int64"),
                "torch, 0 workers, int64": column(found[axis], "torch"),
            },
        )
    drawn["sessions"] = (
        "Rate of all sessions",
        "sessions",
        "tokens/s",
        {
            "as stored": column(found["sessions"], "stored"),
            "int64": column(found["sessions"], "int64"),
        },
    )
    drawn["cpu"] = (
        "CPU of daemon and trainer, as stored",
        "seq_len, micro_batch",
        "seconds per 10⁹ tokens",
        {axis: column(found[axis], "cpu") for axis in ("seq_len", "micro_batch")},
    )
    drawn["wait"] = (
        "Wait of a step of 20 ms, p99.9 of next()",
        "tokens of the dataset, or tokens of a batch",
        "microseconds",
        {
            "dataset": column(size, "wait_us"),
            "batch": [(8 * n, wait) for n, wait in column(found["seq_len"], "wait_us")],
        },
    )
    return {f"{name}.svg": plot(*about) for name, about in drawn.items()}


def growth(directory, args):
    """The part of run.py. Plots go to build/bench; growth.py --out chooses another directory."""
    if not (directory / "tokens.bin").exists():
        write_tokens(directory / "tokens.bin", 300_000_000)
    found = measure(directory, args)
    out = Path(getattr(args, "out", None) or ROOT / "build/bench")
    out.mkdir(parents=True, exist_ok=True)
    for name, svg in plots(found).items():
        (out / name).write_text(svg)
    numbers = ROOT / "build/bench/growth.json"
    numbers.parent.mkdir(parents=True, exist_ok=True)
    numbers.write_text(json.dumps(found, indent=1) + "\n")
    print("\nGrowth")
    tables(found)
    return {}


def tables(found):
    """The numbers as tables of Markdown."""
    torch = found["size"]["torch"]
    points = {
        n: p | {f"torch_{k}": v for k, v in torch.get(n, {}).items()}
        for n, p in found["size"]["tokend"].items()
    }
    for axis, rows in {"tokens": points, **{k: v for k, v in found.items() if k != "size"}}.items():
        keys = list(dict.fromkeys(key for point in rows.values() for key in point))
        print(f"\n| {axis} | {' | '.join(keys)} |\n|{'---|' * (len(keys) + 1)}")
        for n, point in rows.items():
            cells = (point.get(key) for key in keys)
            shown = " | ".join(
                "–" if c is None else f"{c / 1e6:,.0f} M" if c > 1e5 else f"{c:.3g}" for c in cells
            )
            print(f"| {n:,} | {shown} |")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].startswith("torch_"):
        answer((torch_start, torch_rates))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--out", help="where the plots go")
        parser.add_argument("--quick", action="store_true")
        given = parser.parse_args()
        with tempfile.TemporaryDirectory(prefix="tokend-bench-") as where:
            growth(Path(where), SimpleNamespace(**vars(given)))
