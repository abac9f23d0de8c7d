"""Single calls, without waiting: a ready next(), a position of the order. "Ready" means that the
batch is in the ring already.
"""

import statistics
import time

from common import MICRO, Daemon, answer, fresh, median, medians, micro, row
from common import train_stream


def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        lines = [line.split() for line in file]
    return 1024 * sum(int(l[1]) for l in lines if l[0] in ("Private_Clean:", "Private_Dirty:"))


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

    found, before = {"import_ms": 1e3 * (time.perf_counter() - begin)}, private_bytes()
    about = {"micro_batch": MICRO, "socket": args.socket}
    with Loader("train", **about) as loader:
        found["next_us"] = ready_us(loader)
        found["private"] = private_bytes() - before
        found["lost_wakes"] = loader.stats()["lost_wakes"]
    return found


def ready(directory, args):
    """A ready next() in C and in Python, what a loader needs, and both backends of reads."""
    streams, of = train_stream("tokens.bin"), {"python": [], "uring": [], "pread": []}
    for _ in range(args.rounds):
        for io in ("uring", "pread"):
            with Daemon(directory, streams, io=io) as daemon:
                of[io].append(daemon.next(0, 20000))
                if io == "uring":
                    of["python"].append(fresh(__file__, "in_python", socket=daemon.socket))
    found, c = medians(of["python"]), of["uring"] + of["pread"]
    found["c_ns"] = median(c, "ready_ns")
    lost = max(r["lost_wakes"] for r in of["python"] + c)
    pread = median(of["pread"], "tokens_s") / median(of["uring"], "tokens_s")
    print("\nOne call of a loader")
    row(f"ready next() in C, p50 of {len(c)} calls", f"{found['c_ns']:.0f} ns")
    row("ready next() in Python, p50", f"{found['next_us']:.1f} µs", "wanted ≤ 20 µs")
    row("import tokend, after torch", f"{found['import_ms']:.0f} ms", "wanted ≤ 50 ms")
    row("private memory of a loader", f"{found['private'] / 2**20:.1f} MiB", "wanted ≤ 8 MiB")
    row("tokens/s in C, pread pool ÷ io_uring", f"{pread:.2f}")
    row("lost wake-ups", str(lost), "wanted 0")
    return {"next_c_ns": found["c_ns"], "next_python_us": found["next_us"]}


def order(directory, args):
    """CPU time of a position, next to a yardstick of the same run: machines differ."""
    found = micro("order")
    far = found["far_read_ns"]
    names = {
        "one": "one dataset",
        "mix8": "8 datasets",
        "mix8_block": "8 datasets in blocks",
        "mix1000": "1,000 datasets",
        "mix8_shards_1e6": "8 datasets of 10⁶ shards in all, sliding",
    }
    print(f"\nPosition → window, and → shard and offset; a read past all caches: {far:.0f} ns")
    for key, name in names.items():
        window, token = found[key]["window_ns"], found[key]["token_ns"]
        reads = f"{window / far:.2f} → {token / far:.2f} such reads"
        row(name, f"{window:.0f} → {token:.0f} ns", f"{reads}; wanted ≤ 300 ns to the window")
    return {
        f"window_ns_{n}": found[key]["window_ns"]
        for n, key in ((1, "one"), (8, "mix8"), (1000, "mix1000"))
    }


if __name__ == "__main__":
    answer(in_python)
