"""What calls of tokend's loader cost beyond the tokens: a ready next(), control(), transforms.

Run in processes of their own. "Ready" means that the batch is in the ring already: the figure is
the cost of one call, without waiting.
"""

import concurrent.futures
import os
import statistics
import time

from common import MICRO, Daemon, answer, fresh, median, next_from_c, row, train_stream

CONTROL_BATCHES = 500


def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(
            int(line.split()[1])
            for line in file
            if line.startswith(("Private_Clean", "Private_Dirty"))
        )


# ---- in a process of its own ----


def ready_us(loader):
    """Median µs of next() on a full ring."""
    times = []
    for _ in range(100):
        time.sleep(0.003)
        for _ in range(16):
            begin = time.perf_counter()
            next(loader)
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def in_python(args):
    import torch

    torch.set_num_threads(1)
    begin = time.perf_counter()
    from tokend import Loader

    imported, before = time.perf_counter() - begin, private_bytes()
    loader = Loader("train", micro_batch=MICRO, socket=args.socket, tokens=True)
    found = {"ready_us": ready_us(loader), "import_ms": 1e3 * imported}
    found["private"] = private_bytes() - before
    with Loader("train", micro_batch=MICRO, socket=args.socket, run="pair") as pair:
        found["pair_us"] = ready_us(pair)  # input_ids and labels
    more = loader._batches._more_arrays
    loader._batches._more_arrays = lambda: [(0, *arrays) for _, *arrays in more()]  # no copy
    found["beyond_us"] = ready_us(loader)
    found["lost_wakes"] = loader.stats()["lost_wakes"]
    loader.close()
    return found


def busy(tokens, position, rng):
    """A transform of 2 ms of a core."""
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        pass
    return tokens


def transformed(args):
    from tokend import Loader

    with Loader(
        "train", micro_batch=MICRO, socket=args.socket, transform=busy, workers=args.workers
    ) as loader:
        for _ in range(8 * args.workers):  # batches made before the clock starts
            next(loader)
        begin, batches = time.monotonic(), 0
        while time.monotonic() - begin < args.seconds or batches % args.workers:
            next(loader)
            batches += 1
        return {"rate": batches / (time.monotonic() - begin)}


def controlled(args):
    """One of two processes with steps of 10 ms: the time of control() without a request."""
    import torch
    import torch.distributed as distributed
    from tokend import Loader

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{args.file}", rank=args.rank, world_size=2
    )
    loader = Loader("train", micro_batch=MICRO, socket=args.socket)
    noise, times = torch.rand(256, 256), []
    for _ in range(50 + CONTROL_BATCHES):
        next(loader)
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            noise @ noise
        begin = time.perf_counter()
        loader.control()
        times.append(time.perf_counter() - begin)
    loader.close()
    distributed.destroy_process_group()
    slow = CONTROL_BATCHES // 100  # in the slowest 1 %, another process had the CPU
    times = sorted(times[50:])[:-slow]
    return {"mean_us": statistics.mean(times) * 1e6, "median_us": statistics.median(times) * 1e6}


# ---- the parts ----


def ready(directory, args):
    """A ready next() in C and in Python, what a loader needs, and both backends of reads."""
    streams, of = train_stream("tokens.bin"), {"python": [], "uring": [], "pread": []}
    for _ in range(args.rounds):
        for io in ("uring", "pread"):
            with Daemon(directory, streams, f"io: {io}\n") as daemon:
                daemon.wait()
                of[io].append(next_from_c(daemon, "train", 0, 20000))
                if io == "uring":
                    of["python"].append(fresh(__file__, "in_python", socket=daemon.socket))
    python, c = of["python"], of["uring"] + of["pread"]
    found = {key: median(python, key) for key in python[0]}
    found["ready_c_ns"] = median(c, "ready_ns")
    found["pread_uring"] = median(of["pread"], "tokens_s") / median(of["uring"], "tokens_s")
    found["lost_wakes"] = max(r["lost_wakes"] for r in python + c)
    print("\nOne call of a loader")
    row("ready next() in C, p50 of 15 calls", f"{found['ready_c_ns']:.0f} ns", "")
    pair, tokens = found["pair_us"], found["ready_us"]
    row("ready next() in Python, p50: input_ids and labels", f"{pair:.1f} µs", "wanted ≤ 20 µs")
    row("the same, tokens=True", f"{tokens:.1f} µs", "wanted ≤ 20 µs")
    row("input_ids and labels ÷ tokens=True", f"{pair / tokens:.2f}", "wanted ≤ 1.5")
    row("  without the copy that widens to int64", f"{found['beyond_us']:.1f} µs", "")
    row("import tokend, after torch", f"{found['import_ms']:.0f} ms", "wanted ≤ 50 ms")
    row("private memory of a loader", f"{found['private'] / 2**20:.1f} MiB", "wanted ≤ 8 MiB")
    row("tokens/s in C, pread pool ÷ io_uring", f"{found['pread_uring']:.2f}", "")
    row("lost wake-ups", str(found["lost_wakes"]), "wanted 0")
    return found | {"next_c_ns": found["ready_c_ns"], "next_python_us": found["beyond_us"]}


def transforms(directory, args):
    cores = len(os.sched_getaffinity(0))
    rates = {1: [], cores: []}
    with Daemon(directory, train_stream("tokens.bin")) as daemon:
        daemon.wait()
        for n in sorted(rates) * args.rounds:
            given = {"socket": daemon.socket, "workers": n, "seconds": args.seconds}
            rates[n].append(fresh(__file__, "transformed", **given))
    scaled = median(rates[cores], "rate") / cores / median(rates[1], "rate")
    print(f"\nA transform of 2 ms a row, {cores} cores")
    row(f"rows/s of {cores} workers ÷ {cores} × those of one", f"{scaled:.2f}", "wanted ≥ 0.8")
    return {"transform_workers": scaled}


def control(directory, args):
    rounds = []
    with Daemon(directory, train_stream("tokens.bin")) as daemon:
        daemon.wait()
        for number in range(min(3, args.rounds)):
            given = {"socket": daemon.socket, "file": directory / f"meet{number}"}
            with concurrent.futures.ThreadPoolExecutor() as pool:
                ranks = [
                    pool.submit(fresh, __file__, "controlled", rank=rank, **given)
                    for rank in range(2)
                ]
                rounds += [rank.result() for rank in ranks]
    mean, middle = median(rounds, "mean_us"), median(rounds, "median_us")
    print("\nAn operator's requests, 2 ranks, steps of 10 ms")
    what = "loader.control() with nothing to do, mean over the steps"
    row(what, f"{mean:.0f} µs", "wanted ≤ 50 µs")
    row("  the same, p50: few steps start or read an all-reduce", f"{middle:.0f} µs", "")
    return {"control_us": mean}


if __name__ == "__main__":
    answer([in_python, transformed, controlled])
