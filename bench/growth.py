"""How figures grow with dataset size, datasets, sessions and seq_len.

    build/venv/bin/python bench/run.py growth

Files that do not fit into the page cache are sparse: of these, starts and memory are measured, not
rates. The loaders are those of contest.py. pages.py draws a log-log plot of each.
"""

import shutil
import statistics
import sys
import time
from pathlib import Path

import loaders
from common import MICRO, PEERS, SEQ, CannotRun, Daemon, fresh, medians, result, sparse
from common import train_stream, write_tokens

sys.path.append(str(Path(__file__).parent / "pictures"))
from plot import plot  # noqa: E402

SHARD = 10**10  # tokens of a sparse shard, u16
SIZES = (10**9, 10**10, 10**11, 10**12, 10**13, 10**14)
DATASETS = (1, 10, 100, 1000)
SESSIONS = (1, 8, 64)
SEQ_LENS = (512, 2048, 8192, 32768, 131072)
PEER_SEQ_LENS = (512, 8192, 131072)  # of Megatron and Mosaic, which have PEER_TOKENS
TOKENS, PEER_TOKENS = 100_000_000, 50_000_000  # taken for one rate; of a file
START_S = 60  # a start that takes longer has no figure
START_SAMPLES = {"torch": 10**8, "megatron": 10**7}  # more do not fit or take too long
ROUNDS, SECONDS = 3, 0.7


def starts(directory, streams, position=0):
    """Milliseconds from exec and from attach to the first batch, and the daemon's MiB."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.monotonic()
        daemon = Daemon(directory, streams).begin()
        try:
            daemon.next(0, 0)
            start = (time.monotonic() - begin) * 1e3
            attach = [daemon.next(position, 0)["first_ms"] for _ in range(5)]
            about = {"attach_ms": statistics.median(attach), "memory": daemon.memory()}
            rounds.append({"start_ms": start} | about)
        finally:
            daemon.end()
    return medians(rounds)


def rates(directory, streams, seq_len=SEQ):
    """Tokens/s as stored and into int64, CPU seconds per 10⁹ tokens as stored."""
    batches = max(20, TOKENS // (MICRO * (seq_len + 1)))
    giga, rounds = batches * MICRO * (seq_len + 1) / 1e9, []
    with Daemon(directory, streams) as daemon:
        for _ in range(ROUNDS):
            cpu = daemon.cpu()
            stored = daemon.next(0, batches, "stored")
            cpu = (daemon.cpu() - cpu) / giga + stored["cpu_s_per_1e9"]
            int64 = daemon.next(0, batches, "int64")["tokens_s"]
            rounds.append({"stored": stored["tokens_s"], "int64": int64, "cpu": cpu})
    return medians(rounds)


def peers(name, file, what="rate", shape=(SEQ, MICRO), write=True):
    """A figure of another loader, without workers, after it wrote its files. None: it has none."""
    about = {"file": file, "shape": shape, "limit": START_S}
    try:
        if write and name != "torch_dataloader":
            fresh(loaders.__file__, f"write_{name}", PEERS, **about)
        about |= {"loader": name, "workers": 0, "seconds": SECONDS}
        return fresh(loaders.__file__, what, PEERS, **about)
    except CannotRun as why:
        print(f"  {name}, {file.name}, {shape[0]} × {shape[1]}: {why}")
        return {}


# ---- the curves ----


def against_size(directory, size):
    place, other = directory / f"sparse-{size}", directory / f"other-{size}"
    sparse(place, max(1, size // SHARD), min(size, SHARD))
    found = starts(directory, train_stream(place.name), size // 4096)
    shutil.rmtree(place)
    names = {"torch": "torch_dataloader", "megatron": "megatron"}
    names = {name: one for name, one in names.items() if size // SEQ <= START_SAMPLES[name]}
    if names:  # else the file is larger than file systems allow
        sparse(other, 1, size)
    for name, one in names.items():
        first = peers(one, other / "00000.bin", "start")
        again = peers(one, other / "00000.bin", "start", write=False) if one == name else {}
        found |= {f"{name}_{key}": value for key, value in first.items()}
        found |= {f"{name}_again_ms": again["start_ms"]} if again else {}
    shutil.rmtree(other, ignore_errors=True)
    return found


def against_datasets(directory, count):
    """Files of 20 windows in the page cache."""
    (directory / "sets").mkdir(exist_ok=True)
    for n in range(count):
        write_tokens(directory / f"sets/{n}.bin", 20 * (SEQ + 1), seed=n)
    data = [{"name": f"d{n}", "path": f"sets/{n}.bin", "dtype": "u16"} for n in range(count)]
    streams = {"train": {"seed": 42, "seq_len": SEQ, "datasets": data}}
    return starts(directory, streams) | rates(directory, streams)


def against_sessions(directory, sessions):
    """Trainers in C that take batches as fast as they come: the rate of all, the share of a core
    that the daemon has, its memory, and the slowest ÷ the fastest.
    """
    rounds, seconds = [], 3
    with Daemon(directory, train_stream("tokens.bin"), memory=64 * 6 << 20) as daemon:
        for _ in range(ROUNDS):
            trainers = [daemon.polite(seconds, peer, 0) for peer in range(sessions)]
            time.sleep(seconds / 2)
            begin, cpu = time.monotonic(), daemon.cpu()
            time.sleep(seconds / 4)
            share = (daemon.cpu() - cpu) / (time.monotonic() - begin)
            about = {"share": share, "memory": daemon.memory()}
            each = [result(trainer)["rate"] for trainer in trainers]
            about |= {"fairness": min(each) / max(each)}
            rounds.append(about | {"stored": sum(each) * MICRO * (SEQ + 1)})
    return medians(rounds)


def against_seq_len(directory, seq_len):
    tokens, shape = directory / "tokens.bin", (seq_len, MICRO)
    found = rates(directory, train_stream(tokens.name, seq_len), seq_len)
    names = ("megatron", "mosaic") if seq_len in PEER_SEQ_LENS else ()
    for name in ("torch", *names):
        file, one = tokens, "torch_dataloader" if name == "torch" else name
        if one == name:
            file = directory / f"{name}-{seq_len}/tokens.bin"
            file.parent.mkdir()
            with open(tokens, "rb") as whole:
                file.write_bytes(whole.read(2 * PEER_TOKENS))
        if rate := peers(one, file, shape=shape):
            found[f"{name}_int64"] = rate["rate"]
        if one == name:
            shutil.rmtree(file.parent)
    return found


CURVES = {
    "size": (against_size, SIZES),
    "datasets": (against_datasets, DATASETS),
    "sessions": (against_sessions, SESSIONS),
    "seq_len": (against_seq_len, SEQ_LENS),
}


def growth(directory, args):
    """The part of run.py."""
    every, found = slice(None, None, 3 if args.quick else 1), {}
    for axis, (measure, places) in CURVES.items():
        found[axis] = {place: measure(directory, place) for place in places[every]}
    print("\nGrowth")
    for axis, points in found.items():
        keys = list(dict.fromkeys(key for point in points.values() for key in point))
        print(f"\n  {axis:>19} " + " ".join(f"{key:>17}" for key in keys))
        for n, point in points.items():
            cells = (point.get(key) for key in keys)
            shown = (
                "–" if c is None else f"{c / 1e6:,.0f} M" if c > 1e5 else f"{c:.3g}" for c in cells
            )
            print(f"  {n:>19,} " + " ".join(f"{cell:>17}" for cell in shown))
    sessions, figures = found["sessions"], {"growth": found}
    if 64 in sessions:  # where trainers take the cores, the daemon gets fewer of them
        one, many = sessions[1], sessions[64]
        cores = min(1, many["share"] / one["share"])
        figures["sessions_64"] = many["stored"] / one["stored"] / cores
        figures["fairness"] = sessions[8]["fairness"]
    return figures


# ---- plots ----

INT64 = {
    "int64": "tokend, int64",
    "stored": "tokend, as stored",
    "torch_int64": "torch",
    "megatron_int64": "Megatron",
    "mosaic_int64": "Mosaic",
}
STARTS = {
    "attach_ms": "tokend, attach",
    "start_ms": "tokend",
    "torch_start_ms": "torch",
    "megatron_start_ms": "Megatron",
}
MEMORY = {"memory": "tokend", "torch_memory": "torch", "megatron_memory": "Megatron"}
SETS = {"attach_ms": "daemon runs", "start_ms": "daemon starts"}
# file: (axis, its name, title, y axis, {key: name of a curve})
PLOTS = {
    "size-start": ("size", "tokens of the dataset", "Start", "milliseconds to first batch", STARTS),
    "size-memory": ("size", "tokens of the dataset", "Memory of a start", "MiB", MEMORY),
    "datasets": ("datasets", "datasets", "Datasets of a mix", "milliseconds to first batch", SETS),
    "sessions": ("sessions", "sessions", "Rate of all sessions", "tokens/s", {"stored": "tokend"}),
    "seq_len": ("seq_len", "seq_len", "Rate of one trainer", "tokens/s", INT64),
}


def plots(found):
    """{file name: SVG}. @found: the figures of growth(), maybe from JSON: numbers are strings."""
    svgs = {}
    for file, (axis, x, title, y, keys) in PLOTS.items():
        points = found[axis].items()
        curves = {
            name: [(int(n), p[key]) for n, p in points if p.get(key)] for key, name in keys.items()
        }
        svgs[f"{file}.svg"] = plot(title, x, y, {n: c for n, c in curves.items() if c})
    return svgs
