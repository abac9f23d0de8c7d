"""The contestants. Each runs in a fresh process, so CPU time and memory are its own."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import ROOT, MICRO, WIN, BATCH_TOKENS, cpu_of, flat_windows, forever


sys.path.insert(0, str(ROOT / "build/python"))


def measure(batches, seconds, workers_cpu=lambda: 0.0):
    """Takes batches, int64 [8, 2049], for @seconds after a warm-up.

    Returns tokens per second, and the CPU seconds per 10⁹ tokens of this thread and of all threads
    and processes.
    """
    for _ in range(64):
        tokens = next(batches)
    assert str(tokens.dtype) == "torch.int64" and tuple(tokens.shape) == (MICRO, WIN)
    n, begin, thread, other = 0, time.monotonic(), time.thread_time(), workers_cpu()
    while time.monotonic() - begin < seconds:
        for _ in range(16):
            next(batches)
        n += 16
    wall, thread, other = (
        time.monotonic() - begin,
        time.thread_time() - thread,
        workers_cpu() - other,
    )
    total = n * BATCH_TOKENS
    return {
        "rate": total / wall,
        "thread_cpu": thread / total * 1e9,
        "all_cpu": (thread + other) / total * 1e9,
    }


def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(
            int(line.split()[1])
            for line in file
            if line.startswith(("Private_Clean", "Private_Dirty"))
        )


def contest_tokend(args):
    import torch

    torch.set_num_threads(1)
    begin = time.perf_counter()
    from tokend import Loader

    imported, before = time.perf_counter() - begin, private_bytes()
    loader = Loader("train", micro_batch=MICRO, socket=args.socket, tokens=True)
    result = measure(
        (batch["tokens"] for batch in loader), args.seconds, lambda: cpu_of(args.daemon)
    )
    result["import_ms"], result["private"] = 1e3 * imported, private_bytes() - before

    def ready(loader):
        """Median µs of next() on a full ring."""
        times = []
        for _ in range(100):
            time.sleep(0.003)
            for _ in range(16):
                begin = time.perf_counter()
                next(loader)
                times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e6

    result["ready_us"] = ready(loader)
    with Loader(
        "train", micro_batch=MICRO, socket=args.socket, run="pair"
    ) as pair:  # input_ids and labels
        result["pair_us"] = ready(pair)
    next_into = loader._client.next_into
    loader._batches._next_into = lambda tokens, *more: next_into(0, *more)  # no copy
    result["beyond_us"] = ready(loader)
    result["lost_wakes"] = loader.stats()["lost_wakes"]
    loader.close()
    return result


def contest_memmap(args):
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(
        flat_windows(args.file),
        batch_size=MICRO,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )

    def workers():
        me = os.getpid()
        mine = resource.getrusage(resource.RUSAGE_SELF)
        pids = [int(p) for p in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
        # The other threads of this process (pinning, queues) belong to the DataLoader, too.
        return sum(cpu_of(p) for p in pids) + mine.ru_utime + mine.ru_stime - time.thread_time()

    return measure(forever(loader), args.seconds, workers)


def busy(tokens, position, rng):
    """A transform of 2 ms of a core."""
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        pass
    return tokens


def contest_transform(args):
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


def contest_control(args):
    """One of two processes with steps of 10 ms: the time of control() without a request."""
    import torch
    import torch.distributed as distributed
    from tokend import Loader

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{args.file}", rank=args.rank, world_size=2
    )
    loader, noise, times = (
        Loader("train", micro_batch=MICRO, socket=args.socket),
        torch.rand(256, 256),
        [],
    )
    for _ in range(850):
        next(loader)
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            noise @ noise
        begin = time.perf_counter()
        loader.control()
        times.append(time.perf_counter() - begin)
    loader.close()
    distributed.destroy_process_group()
    times = sorted(times[50:])[:-8]  # in the slowest 1 %, another process had the CPU
    return {"mean_us": statistics.mean(times) * 1e6, "median_us": statistics.median(times) * 1e6}


def contest(name, **args):
    command = [sys.executable, __file__, name] + [f"--{k}={v}" for k, v in args.items()]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("contest", choices=CONTESTS)
    for name in ("socket", "file"):
        parser.add_argument("--" + name)
    for name in ("daemon", "workers", "rank", "tokens"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    print(json.dumps(CONTESTS[args.contest](args)))


CONTESTS = {
    "tokend": contest_tokend,
    "memmap": contest_memmap,
    "control": contest_control,
    "transform": contest_transform,
}

if __name__ == "__main__":
    main()
