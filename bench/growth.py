"""How figures grow: with the dataset, datasets in a mix, sessions, seq_len and micro-batch.

    build/venv/bin/python bench/growth.py [--out bench/results]    draws the plots there

Rates are of trainers with int64 batches, unless a plot says otherwise. Each loader runs in a new
process, and they take turns. Large datasets are sparse files: no figure of them depends on bytes.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import BIN, MICRO, ROOT, SEQ, Daemon, answer, fresh, next_from_c, write_tokens

sys.path.append(str(ROOT / "bench/pictures"))

from plot import plot  # noqa: E402

SHARD_TOKENS = 10**10
TORCH_MOST = 10**11  # tokens: its shuffle takes 30 bytes of memory a window or more
SIZES = [10**n for n in range(9, 15)]
SESSIONS = [1, 2, 4, 8, 16, 32, 64]
DATASETS = [1, 3, 10, 30, 100, 300, 1000]
SEQ_LENS = [512, 2048, 8192, 32768, 131072]
MICROS = [1, 4, 16, 64, 256]


# ---- in a new process ----


def rate(args):
    """Tokens per second; torch's with a shuffled DataLoader over numpy.memmap, without workers."""
    import torch

    torch.set_num_threads(1)
    if args.socket:
        from tokend import Loader

        batches = iter(Loader(args.stream, args.micro, socket=args.socket, tokens=True))
    else:
        batches = torch_batches(args)
    next(batches)
    count, begin, warm = 0, time.monotonic(), True
    while True:
        next(batches)
        count += 1
        now = time.monotonic()
        if warm and now > begin + args.seconds / 4:
            count, begin, warm = 0, now, False
        if not warm and now > begin + args.seconds:
            return count * args.micro * (args.seq + 1) / (now - begin)


def torch_batches(args):
    import numpy
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self):
            self.tokens = numpy.memmap(args.file, dtype="<u2", mode="r")

        def __len__(self):
            return (len(self.tokens) - args.seq - 1) // args.seq + 1

        def __getitem__(self, i):
            at = i * args.seq
            return torch.from_numpy(self.tokens[at : at + args.seq + 1].astype(numpy.int64))

    loader = torch.utils.data.DataLoader(
        Windows(), batch_size=args.micro, shuffle=True, drop_last=True
    )
    while True:
        yield from loader


def private_mib():
    with open("/proc/self/smaps_rollup") as file:
        lines = [l.split() for l in file if l.startswith("Private")]
    return sum(int(line[1]) for line in lines) / 1024


def start(args):
    """ms from the constructor to the first batch, all imports done, and MiB of private memory."""
    import numpy  # noqa: F401
    import torch.utils.data  # noqa: F401
    from tokend import Loader

    before, begin = private_mib(), time.perf_counter()
    if args.socket:
        batches = iter(Loader("train", MICRO, socket=args.socket))
    else:
        batches = torch_batches(args)
    batch = next(batches)
    return {
        "ms": 1e3 * (time.perf_counter() - begin),
        "mib": private_mib() - before,
        "n": len(batch),
    }


# ---- the figures ----


def stream(name, seq, *datasets):
    rows = "".join(f"      - {{name: d{i}, path: {path}}}\n" for i, path in enumerate(datasets))
    return f"  {name}:\n    seed: 42\n    seq_len: {seq}\n    datasets:\n{rows}"


def of_process(pid):
    """MiB of a daemon, with its rings."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(l.split()[1]) for l in file if l.startswith("Pss:")) / 1024


def sizes(directory, rounds):
    """Start and memory against the size of the dataset: {plot: {curve: [(x, y), …]}}."""
    found = {"start": {}, "memory": {}}

    def add(name, tokens, runs, more=0):
        ms = statistics.median(run["ms"] for run in runs)
        mib = statistics.median(run["mib"] for run in runs) + more
        found["start"].setdefault(name, []).append((tokens, ms))
        found["memory"].setdefault(name, []).append((tokens, mib))

    for tokens in SIZES:
        data = directory / "sized"
        data.mkdir()
        for shard in range(max(1, tokens // SHARD_TOKENS)):
            with open(data / f"{shard:05}.bin", "wb") as file:
                file.truncate(2 * min(tokens, SHARD_TOKENS))
        given = {"micro": MICRO, "seq": SEQ}
        with Daemon(directory, stream("train", SEQ, "sized")) as daemon:
            daemon.wait()
            runs = [fresh(__file__, "start", socket=daemon.socket, **given) for _ in range(rounds)]
            add("tokend", tokens, runs, of_process(daemon.process.pid))
        if tokens <= TORCH_MOST:
            one = directory / "one.bin"
            with open(one, "wb") as file:
                file.truncate(2 * tokens)
            torch_rounds = rounds if tokens < TORCH_MOST else 1
            runs = [
                fresh(__file__, "start", limit=120, socket=None, file=one, **given)
                for _ in range(torch_rounds)
            ]
            add("torch, memmap", tokens, runs)
            one.unlink()
        shutil.rmtree(data)
    return found


def sessions(daemon, seconds):
    """Batches of C clients that take as fast as they can, and the wait of each for a batch."""
    found = {"sessions": {"all together": [], "each": []}, "waits": {"p50": [], "p99.9": []}}
    for count in SESSIONS:
        command = [BIN / "bench-polite", daemon.socket, "train", str(seconds)]
        clients = [
            subprocess.Popen([*command, str(n), "0"], stdout=subprocess.PIPE) for n in range(count)
        ]
        runs = [json.loads(client.communicate()[0]) for client in clients]
        every = sum(run["rate"] for run in runs) * MICRO * (SEQ + 1)
        found["sessions"]["all together"].append((count, every))
        found["sessions"]["each"].append((count, every / count))
        for name, key in (("p50", "p50"), ("p99.9", "p999")):
            waited = statistics.median(run[key] for run in runs)
            found["waits"][name].append((count, waited))
    return found


def rates(daemon, points, args, file):
    """{curve: [(x, tokens per second), …]}. @points: (x, stream, seq, micro)."""
    found = {"tokend": [], **({"torch, memmap": []} if file else {})}
    for x, name, seq, micro in points:
        given = {"seq": seq, "micro": micro, "seconds": args.seconds / 2}
        runs = {curve: [] for curve in found}
        for _ in range(args.rounds):
            runs["tokend"].append(
                fresh(__file__, "rate", socket=daemon.socket, stream=name, **given)
            )
            if file:
                runs["torch, memmap"].append(
                    fresh(__file__, "rate", socket=None, file=file, **given)
                )
        for curve, values in runs.items():
            found[curve].append((x, statistics.median(values)))
    return found


TITLES = {
    "start": ("Start", "tokens in the dataset", "ms from the constructor to the first batch"),
    "memory": ("Memory", "tokens in the dataset", "MiB of a loader, with its daemon and ring"),
    "seq_len": ("Window length", "seq_len", "tokens/s, one trainer, batches of 8"),
    "micro_batch": ("Batch size", "rows of 2,049 tokens in a batch", "tokens/s, one trainer"),
    "sessions": ("Sessions", "sessions of one daemon, 2 cores in all", "tokens/s in C"),
    "waits": ("Waits", "sessions of one daemon, 2 cores in all", "µs of next() at full speed"),
    "datasets": ("Datasets", "datasets in the mix", "tokens/s, one trainer"),
    "attach": ("Attach", "datasets in the mix", "ms from attach to the first batch, in C"),
}


def measure(directory, args):
    found = sizes(directory, args.rounds)
    file = directory / "tokens.bin"
    streams = stream("train", SEQ, file)
    streams += "".join(stream(f"seq{n}", n, file) for n in SEQ_LENS)
    streams += "".join(stream(f"mix{n}", SEQ, *[file] * n) for n in DATASETS)
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        points = [(n, f"seq{n}", n, MICRO) for n in SEQ_LENS]
        found["seq_len"] = rates(daemon, points, args, file)
        points = [(n, "train", SEQ, n) for n in MICROS]
        found["micro_batch"] = rates(daemon, points, args, file)
        found |= sessions(daemon, args.seconds)
        points = [(n, f"mix{n}", SEQ, MICRO) for n in DATASETS]
        found["datasets"] = rates(daemon, points, args, None)
        found["attach"] = {"tokend": []}
        for n in DATASETS:
            times = [next_from_c(daemon, f"mix{n}", 0, 0)["first_ms"] for _ in range(5)]
            found["attach"]["tokend"].append((n, statistics.median(times)))
    return found


def growth(directory, args):
    found = measure(directory, args)
    out = Path(getattr(args, "out", None) or ROOT / "build/bench")
    out.mkdir(parents=True, exist_ok=True)
    print("\nHow figures grow; plots are in " + str(out))
    for name, curves in found.items():
        title, x_name, y_name = TITLES[name]
        print(f"  {title}: {y_name}")
        for curve, points in curves.items():
            cells = "  ".join(f"{x:g}: {y:.4g}" for x, y in points)
            print(f"    {curve:<16}{cells}")
        (out / f"{name}.svg").write_text(plot(title, x_name, y_name, curves))
    return {"curves": found}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", help="directory for the plots; build/bench by default")
    parser.add_argument("--tokens", type=int, default=300_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tokend-growth-"))
    try:
        write_tokens(directory / "tokens.bin", args.tokens)
        growth(directory, args)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main() if sys.argv[1:2] not in (["rate"], ["start"]) else answer([rate, start])
