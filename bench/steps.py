"""A trainer with steps of 20 ms: the wait for all of next(), also on storage that stalls. And the
CPU time at a real rate.
"""

import concurrent.futures
import sys
import time

import loaders
from common import MICRO, PEERS, ROOT, SEQ, Daemon, answer, fresh, process_cpu, row, train_stream

sys.path.append(str(ROOT / "tests"))

from lib.fuse import READ, Hanging  # noqa: E402

TRAINERS, TOKENS_S = 8, 90_000
CONTESTANTS = {
    "tokend": ("tokend", None),
    "torch DataLoader, 0 workers": ("torch_dataloader", 0),
    "torch DataLoader, 2 workers": ("torch_dataloader", 2),
}
SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1}
STALL_S, PAUSE_S = 2, 2.7  # the pause fills the ring


def percentiles(waits):
    """In µs."""
    ordered = sorted(waits)
    last = len(ordered) - 1
    return {name: ordered[min(last, int(s * len(ordered)))] * 1e6 for name, s in SHARES.items()}


def steps(directory, args):
    number, rounds = (150, 1) if args.quick else (350, 3)
    found, file = {name: [] for name in CONTESTANTS}, directory / "tokens.bin"
    with Daemon(directory, train_stream(file)) as daemon:
        for _ in range(rounds):
            for name, (loader, workers) in CONTESTANTS.items():
                about = {"loader": loader, "workers": workers, "steps": number, "file": file}
                python = PEERS if loader == "torch_dataloader" else sys.executable
                about["socket"] = daemon.socket
                each = fresh(loaders.__file__, "waits", python, **about)
                found[name] += [wait for _, wait in each]
    print(
        f"\nWait of {rounds} × {number} steps of {loaders.STEP_S * 1e3:.0f} ms: all of next(), "
        f"{MICRO}×{SEQ} tokens in the page cache, int64"
    )
    print(f"  {'':<40}" + "".join(f"{name:>11}" for name in SHARES))
    waits = {name: percentiles(each) for name, each in found.items()}
    for name, each in waits.items():
        print(f"  {name:<40}" + "".join(f"{us:>11,.0f}" for us in each.values()) + " µs")
    print("  goals for tokend: p50 15, p99.9 60, max 400 µs")
    return {f"step_{name}_us": us for name, us in waits["tokend"].items()} | {"waits": waits}


# ---- storage that stalls ----


def stalled(mount, warm, count, **about):
    """Seconds that a trainer waited, and those that its ring could not avoid: a stall, less a step
    for each of its batches.
    """
    steps, spans = int(count * (STALL_S + PAUSE_S) / loaders.STEP_S) + 50, []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        about |= {"loader": "tokend", "steps": steps, "warm": warm}
        trainer = pool.submit(fresh, loaders.__file__, "waits", **about)
        while not (warm.exists() or trainer.done()):
            time.sleep(0.01)
        for _ in range(count):
            time.sleep(PAUSE_S)
            begin = time.perf_counter()
            mount.hang(READ)
            time.sleep(STALL_S)
            mount.answer()
            spans.append((begin, time.perf_counter()))
        steps = trainer.result()
    waited = least = 0
    for begin, end in spans:
        waited += sum(wait for at, wait in steps if begin - loaders.STEP_S < at < end)
        before = [at for at, _ in steps if at < begin][-50:]
        step = (before[-1] - before[0]) / (len(before) - 1)
        least += max(0, end - begin - about["slots"] * step)
    return waited, least


def stalls(directory, args):
    """A file system (FUSE, mounted by root) that does not answer reads for 2 s, now and then."""
    data, mount, ratio = directory / "stalls", None, {}
    data.mkdir()
    (data / "tokens.bin").hardlink_to(directory / "tokens.bin")
    try:
        mount = Hanging(str(data), str(directory / "stalls-mount"))
        print(f"\nSteps of 20 ms on storage that stalls for {STALL_S} s")
        with Daemon(directory, train_stream(f"{mount.mount}/tokens.bin")) as daemon:
            for slots in (64, 32):
                about = {"slots": slots, "socket": daemon.socket, "file": "tokens.bin"}
                count, warm = 1 if args.quick else 3, directory / f"warm-{slots}"
                waited, least = stalled(mount, warm, count, **about)
                ratio[slots] = waited / least
                what = f"{slots} slots: waited, and inevitable; their ratio"
                row(what, f"{waited:.2f} s", f"{least:.2f} s; {ratio[slots]:.2f}, wanted ≤ 1.1")
    except PermissionError as error:
        raise SystemExit(f"a FUSE file system cannot be mounted: {error}") from error
    finally:
        if mount:
            mount.close()
    return {"stall_2s": ratio[64], "stall_2s_32": ratio[32]}


# ---- the rate of a real job ----


def paced(args):
    """CPU seconds of all next() calls and of the daemon, of trainers at a real rate."""
    import torch
    from tokend import Loader

    torch.set_num_threads(1)
    about = {"socket": args.socket, "world": TRAINERS}
    ranks = [Loader("train", MICRO, rank=rank, **about) for rank in range(TRAINERS)]
    for rank in ranks * 200:  # until the tensors and rings have been used once
        next(rank)
    period, inside, batches = MICRO * SEQ / TOKENS_S / TRAINERS, 0, 0
    begin, used = time.monotonic(), process_cpu(args.daemon)
    while time.monotonic() - begin < args.seconds:
        time.sleep(max(0, begin + batches * period - time.monotonic()))
        at = time.thread_time_ns()
        next(ranks[batches % TRAINERS])
        inside += time.thread_time_ns() - at
        batches += 1
    wall = time.monotonic() - begin
    return {
        "rate": batches * MICRO * SEQ / wall,
        "next": inside / 1e9 / wall,
        "daemon": (process_cpu(args.daemon) - used) / wall,
    }


def rate(directory, args):
    with Daemon(directory, train_stream(directory / "tokens.bin")) as daemon:
        about = {"socket": daemon.socket, "daemon": daemon.process.pid}
        found = fresh(__file__, "paced", seconds=5 if args.quick else 20, **about)
    share = found["next"] + found["daemon"]
    print(f"\n{TRAINERS} trainers × {TOKENS_S:,} tokens/s, int64 input_ids and labels")
    what = f"all next() in Python, of a core, at {found['rate']:,.0f} tokens/s"
    row(what, f"{found['next']:.3%}")
    row("the daemon, of a core", f"{found['daemon']:.3%}")
    row("together", f"{share:.3%}", "wanted ≤ 0.15 %")
    return {"rate_core_share": 100 * share}


if __name__ == "__main__":
    answer(paced)
