"""One trainer relative to torch's DataLoader; transforms; an operator's requests."""

import concurrent.futures
import os

from common import MICRO, WIN, train_stream, Daemon, next_from_c, median, row
from contests import contest


def throughput(directory, args):
    path = directory / "tokens.bin"
    streams = train_stream("tokens.bin")
    rounds = {"tokend": [], "memmap0": [], "memmap2": [], "c": []}
    for io in ("uring", "pread"):
        rounds[io] = []
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        for _ in range(args.rounds):
            rounds["tokend"].append(
                contest(
                    "tokend", socket=daemon.socket, daemon=daemon.process.pid, seconds=args.seconds
                )
            )
            rounds["memmap0"].append(contest("memmap", file=path, workers=0, seconds=args.seconds))
            rounds["memmap2"].append(contest("memmap", file=path, workers=2, seconds=args.seconds))
            rounds["c"].append(next_from_c(daemon, "train", 0, 20000))
    for _ in range(args.rounds):
        for io in ("uring", "pread"):
            with Daemon(directory, streams, f"io: {io}\n") as daemon:
                daemon.wait()
                rounds[io].append(next_from_c(daemon, "train", 0, 20000))
    t, m0, m2 = rounds["tokend"], rounds["memmap0"], rounds["memmap2"]
    print(
        f"\nOne trainer, {args.tokens / 1e6:.0f} M u16 tokens in the page cache, int64 tensors of "
        f"{MICRO}×{WIN}"
    )
    print(
        f"  {'':<34}{'M tokens/s':>12}{'trainer CPU s':>16}{'all CPU s':>12}   (CPU per 10⁹ tokens)"
    )
    for name, r in (
        ("tokend", t),
        ("DataLoader over memmap, 0 workers", m0),
        ("DataLoader over memmap, 2 workers", m2),
    ):
        print(
            "  "
            f"{name:<34}{median(r, 'rate') / 1e6:>12.1f}"
            f"{median(r, 'thread_cpu'):>16.2f}{median(r, 'all_cpu'):>12.2f}"
        )
    print()
    row(
        "tokens/s ÷ DataLoader with 0 workers",
        f"{median(t, 'rate') / median(m0, 'rate'):.2f}",
        "wanted ≥ 2",
    )
    row(
        "tokens/s ÷ DataLoader with 2 workers",
        f"{median(t, 'rate') / median(m2, 'rate'):.1f}",
        "wanted ≥ 20",
    )
    row(
        "CPU of the trainer's thread ÷ DataLoader with 0 workers",
        f"{median(t, 'thread_cpu') / median(m0, 'thread_cpu'):.3f}",
        "wanted ≤ 0.33",
    )
    row(
        "CPU of all processes ÷ DataLoader with 2 workers",
        f"{median(t, 'all_cpu') / median(m2, 'all_cpu'):.3f}",
        "wanted ≤ 0.1",
    )
    row(
        "ready next() in C, p50, clock included",
        f"{median(rounds['c'], 'ready_ns'):.0f} ns",
        "wanted ≤ 200 ns",
    )
    row(
        "ready next() in Python to torch int64, p50: input_ids and labels",
        f"{median(t, 'pair_us'):.1f} µs",
        "wanted ≤ 20 µs",
    )
    row("the same, tokens=True", f"{median(t, 'ready_us'):.1f} µs", "wanted ≤ 20 µs")
    row(
        "input_ids and labels ÷ tokens=True",
        f"{median(t, 'pair_us') / median(t, 'ready_us'):.2f}",
        "wanted ≤ 1.5",
    )
    row(
        "  without the copy that widens to int64",
        f"{median(t, 'beyond_us'):.1f} µs",
        "wanted ≤ 5 µs",
    )
    row("import tokend, after torch", f"{median(t, 'import_ms'):.0f} ms", "wanted ≤ 50 ms")
    row("private memory of a loader", f"{median(t, 'private') / 2**20:.1f} MiB", "wanted ≤ 8 MiB")
    row(
        "tokens/s in C, pread pool ÷ io_uring",
        f"{median(rounds['pread'], 'tokens_s') / median(rounds['uring'], 'tokens_s'):.2f}",
        "",
    )
    row("lost wake-ups", str(max(r["lost_wakes"] for r in t + rounds["c"])), "wanted 0")


def transforms(directory, args):
    streams = train_stream("tokens.bin")
    cores = len(os.sched_getaffinity(0))
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        rates = {1: [], cores: []}
        for n in sorted(rates) * args.rounds:
            rates[n].append(
                contest("transform", socket=daemon.socket, workers=n, seconds=args.seconds)
            )
    each = {n: median(rates[n], "rate") / n for n in rates}
    print(f"\nA transform of 2 ms a row, {cores} cores")
    row(
        f"rows/s of {cores} workers ÷ {cores} × those of one",
        f"{each[cores] / each[1]:.2f}",
        "wanted ≥ 0.8",
    )


def control(directory, args):
    streams = train_stream("tokens.bin")
    rounds = []
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        for i in range(args.rounds):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                ranks = [
                    pool.submit(
                        contest,
                        "control",
                        socket=daemon.socket,
                        file=directory / f"meet{i}",
                        rank=rank,
                    )
                    for rank in range(2)
                ]
                rounds += [rank.result() for rank in ranks]
    print("\nAn operator's requests, 2 ranks, steps of 10 ms")
    row(
        "loader.control() with nothing to do, mean over the steps",
        f"{median(rounds, 'mean_us'):.0f} µs",
        "wanted ≤ 50 µs",
    )
    row(
        "  the same, p50: few steps start or read an all-reduce",
        f"{median(rounds, 'median_us'):.0f} µs",
        "",
    )
