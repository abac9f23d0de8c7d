"""Start-up, the order, a million shards, 10¹⁴ tokens."""

import json
import os
import shutil
import statistics
import subprocess
import time

from common import (
    BIN,
    MICRO,
    SEQ,
    WIN,
    train_stream,
    memory_of,
    cpu_of,
    Daemon,
    next_from_c,
    row,
    rss,
)

TRAINER_TOKENS_S = 1_000_000  # of a node: eight GPUs that train a model of 10⁹ weights


def start_up(directory, args):
    sparse = directory / "sparse.bin"
    tokens = 10**12
    with open(sparse, "wb") as file:
        file.truncate(2 * tokens)
    windows = (tokens - WIN) // SEQ + 1
    streams = train_stream("sparse.bin")
    first = {}
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        next_from_c(daemon, "train", 0, 0)
        for _ in range(20):
            for name, position in (
                ("0", 0),
                ("middle", windows // 2),
                ("end", windows - 8),
                ("2^62", 2**62),
            ):
                first.setdefault(name, []).append(
                    next_from_c(daemon, "train", position, 0)["first_ms"]
                )
        memory = memory_of(daemon.process.pid)
    cold = []
    for _ in range(10):
        begin = time.monotonic()
        with Daemon(directory, streams) as daemon:
            next_from_c(daemon, "train", 0, 0)
            cold.append((time.monotonic() - begin) * 1e3)
    base = statistics.median(first["0"])
    print("\nStart-up on one dataset of 10¹² tokens (a sparse file)")
    row("attach → first batch at position 0", f"{base:.2f} ms", "wanted ≤ 20 ms")
    for name in ("middle", "end", "2^62"):
        row(f"  at {name} ÷ at 0", f"{statistics.median(first[name]) / base:.2f}", "wanted ≤ 1.2")
    row(
        "tokend exec → first batch (processes included)",
        f"{statistics.median(cold):.0f} ms",
        "wanted ≤ 100 ms",
    )
    private = memory["VmRSS"] - memory["RssShmem"]
    row("daemon's RSS without rings", f"{private:.1f} MiB", "wanted ≤ 16 MiB + 64 B a shard")


def order(directory, args):
    """CPU time of a position, next to yardsticks of the same run: machines differ."""
    result = json.loads(
        subprocess.run([BIN / "bench-order"], check=True, capture_output=True).stdout
    )
    far = result["far_read_ns"]
    names = {
        "one": "one dataset",
        "mix8": "8 datasets",
        "mix8_block": "8 datasets in blocks",
        "mix8_slide": "8 datasets that slide",
        "mix1000": "1,000 datasets",
        "shards_1e6": "one dataset of 10⁶ shards",
        "mix8_shards_1e6": "8 datasets of 10⁶ shards in all, sliding",
    }
    print(
        f"\nPosition → window, and → shard and offset; a read past all caches: {far:.0f} ns, a "
        f"division: {result['division_ns']:.1f} ns"
    )
    for key, name in names.items():
        window, token = result[key]["window_ns"], result[key]["token_ns"]
        row(
            name,
            f"{window:.0f} → {token:.0f} ns",
            f"{window / far:.2f} → {token / far:.2f} such reads; wanted ≤ 300 ns to the window",
        )
    return {
        f"window_ns_{n}": result[key]["window_ns"]
        for n, key in ((1, "one"), (8, "mix8"), (1000, "mix1000"))
    }


def opened(directory, streams):
    """Starts a daemon; returns the seconds to its first session, and its MiB without rings."""
    begin = time.monotonic()
    with Daemon(directory, streams) as daemon:
        out = subprocess.run(
            [BIN / "bench-next", daemon.socket, "train", "0", "0"], capture_output=True
        )
        while out.returncode:  # it waits for 5 s only
            if daemon.process.poll() is not None or time.monotonic() - begin > 600:
                raise SystemExit(f"bench: {out.stderr.decode()}")
            out = subprocess.run(
                [BIN / "bench-next", daemon.socket, "train", "0", "0"], capture_output=True
            )
        return time.monotonic() - begin, rss(daemon)


def small_shards(directory, count):
    directory.mkdir(parents=True)
    at = os.open(directory, os.O_RDONLY)
    for s in range(count):
        file = os.open(f"{s:07}.bin", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=at)
        os.truncate(file, 64)
        os.close(file)
    os.close(at)
    os.sync()


def looks(directory, args, shards=1000, batches=20000):
    """The looks at open shards, when each window is of another shard than the one before it."""
    place = directory / "looks"
    place.mkdir()
    paths = [place / f"{i:04}.bin" for i in range(shards)]
    for path in paths:
        path.write_bytes(os.urandom(1 << 10) * (2 * WIN * 50 >> 10))
    look_ns = json.loads(
        subprocess.run(
            [BIN / "bench-look", str(2 * WIN), *paths], check=True, capture_output=True
        ).stdout
    )["look_ns"]
    with Daemon(directory, train_stream("looks")) as daemon:
        daemon.wait()
        next_from_c(daemon, "train", 0, 2000)  # opens the shards
        begin = cpu_of(daemon.process.pid)
        next_from_c(daemon, "train", 0, batches)
        window_ns = (cpu_of(daemon.process.pid) - begin) / batches / MICRO * 1e9
    shutil.rmtree(place)
    print(f"\nThe recheck of open shards: {shards} shards, each window of another one")
    row("CPU time a window", f"{look_ns:.0f} ns", "")
    row(
        f"share of a CPU at a trainer's {TRAINER_TOKENS_S / 1e6:g} M tokens/s",
        f"{look_ns * TRAINER_TOKENS_S / SEQ / 1e7:.3f} %",
        "wanted ≤ 0.1 %",
    )
    row("share of the daemon's CPU at full speed", f"{look_ns / window_ns:.0%}", "")


def opening(directory, args):
    """The start with many shards and with many datasets, whose metadata is cached."""
    small_shards(directory / "many", args.shards)
    for d in range(1000):
        small_shards(directory / f"sets/{d}", 1)
    stream = "  train:\n    seed: 42\n    seq_len: 8\n    datasets:\n"
    least = opened(directory, stream + "      - {name: d0, path: sets/0}\n")
    many = min(opened(directory, stream + "      - {name: web, path: many}\n") for _ in range(3))
    sets = opened(
        directory,
        stream + "".join(f"      - {{name: d{d}, path: sets/{d}}}\n" for d in range(1000)),
    )
    print("\nOpening many shards, metadata cached")
    each = (many[0] - least[0]) / args.shards * 1e6
    row(
        f"exec → first batch, one dataset of {args.shards} shards",
        f"{many[0]:.2f} s",
        f"{each:.1f} µs a shard",
    )
    row(
        "  daemon's memory a shard, names of 12 bytes included",
        f"{(many[1] - least[1]) * 2**20 / args.shards:.0f} B",
        "wanted ≤ 64 B",
    )
    row(
        "exec → first batch, 1,000 datasets in one mix",
        f"{sets[0] * 1e3:.0f} ms",
        f"one dataset: {least[0] * 1e3:.0f} ms",
    )
    shutil.rmtree(directory / "many")


def hundred_t(directory, args):
    """10,000 sparse shards of 10 G tokens: compares positions at the beginning, middle and end."""
    win, shards, tokens = 4097, 10_000, 10**10
    (directory / "sparse").mkdir()
    for s in range(shards):
        with open(directory / f"sparse/{s:05}.bin", "wb") as file:
            file.truncate(4 * tokens)
    every = shards * ((tokens - win) // 4096 + 1)
    places = {"0": 0, "middle": every // 2, "end": every - 64, "2^62": 2**62}
    costs = {
        what: {name: [] for name in places}
        for what in ("tokctl plan", "tokctl when", "attach → first batch")
    }
    streams = train_stream("sparse, dtype: u32", 4096)
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        before = rss(daemon)
        for _ in range(15):
            for name, position in places.items():
                begin = time.monotonic()
                plan = [
                    BIN / "tokctl",
                    "plan",
                    "-c",
                    daemon.config,
                    "train",
                    "--from",
                    str(position),
                    "--count",
                    "1",
                    "--json",
                ]
                at = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
                costs["tokctl plan"][name].append((time.monotonic() - begin) * 1e3)
                begin = time.monotonic()
                when = [
                    BIN / "tokctl",
                    "when",
                    "-c",
                    daemon.config,
                    "train",
                    "--dataset",
                    "web",
                    "--shard",
                    at["shard"],
                    "--offset",
                    str(at["offset"] + 1),
                    "--epoch",
                    str(at["epoch"]),
                    "--json",
                ]
                subprocess.run(when, check=True, capture_output=True)
                costs["tokctl when"][name].append((time.monotonic() - begin) * 1e3)
                costs["attach → first batch"][name].append(
                    next_from_c(daemon, "train", position, 0)["first_ms"]
                )
        after = rss(daemon)
        for _ in range(15):
            for position in places.values():
                next_from_c(daemon, "train", position + 10**6, 0)
        last = rss(daemon)
    print("\n100 T tokens: 10,000 sparse shards of 10 G u32 tokens")
    for what, cost in costs.items():
        base = statistics.median(cost["0"])
        ratios = ", ".join(
            f"{name} {statistics.median(cost[name]) / base:.2f}" for name in places if name != "0"
        )
        row(f"{what} at position 0; elsewhere ÷ that", f"{base:.2f} ms", f"{ratios}; wanted ≤ 1.2")
    row(
        "daemon's RSS without rings: opened, after 60 sessions, after 120",
        f"{before:.1f} {after:.1f} {last:.1f} MiB",
        "wanted flat",
    )
