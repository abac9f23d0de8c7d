"""How trainers share one daemon: fairness, many sessions, and the CPU that a real rate costs."""

import json
import statistics
import subprocess
import time

from common import BIN, MICRO, SEQ, Daemon, cpu_ns, in_child, row, serve_child, train_stream

FEW, MANY = 8, 64
TRAINERS, TOKENS_S = 8, 90_000


def taken(daemon):
    """The time, and the batches that each session has released."""
    command = [BIN / "tokctl", "status", "--socket", daemon.socket, "--json"]
    lines = subprocess.run(command, check=True, capture_output=True).stdout.splitlines()
    now = time.monotonic()
    return now, {line["session"]: line["released"] for line in map(json.loads, lines[:-1])}


def rates(daemon, count, seconds):
    """Batches per second of each of @count C trainers, which take them as fast as they come. Also
    the share of a core that the daemon had in these seconds."""
    command = [BIN / "bench-polite", daemon.socket, "train", "60"]
    trainers = [
        subprocess.Popen([*command, str(peer), "0"], stdout=subprocess.DEVNULL)
        for peer in range(count)
    ]
    try:
        while len(taken(daemon)[1]) < count:
            time.sleep(0.05)
        time.sleep(0.3)
        used, (begin, before) = cpu_ns(daemon.process.pid), taken(daemon)
        time.sleep(seconds)
        end, after = taken(daemon)
        share = (cpu_ns(daemon.process.pid) - used) / 1e9 / (end - begin)
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
    while taken(daemon)[1]:
        time.sleep(0.05)
    return [(after[each] - before[each]) / (end - begin) for each in before], share


def sessions(directory, args):
    found = {1: [], FEW: [], MANY: []}
    seconds = 1 if args.quick else 3
    extra = f"memory: {MANY * 6 << 20}\n"
    with Daemon(directory, train_stream(directory / "tokens.bin"), extra) as daemon:
        daemon.wait()
        for _ in range(1 if args.quick else 3):
            for count in found:
                found[count].append(rates(daemon, count, seconds))
    total = {n: statistics.median(sum(each) for each, _ in runs) for n, runs in found.items()}
    share = {n: statistics.median(used for _, used in runs) for n, runs in found.items()}
    fair = {n: statistics.median(min(each) / max(each) for each, _ in found[n]) for n in found}
    print(f"\nSessions of one daemon that take batches of {MICRO}×{SEQ} as fast as they come, in C")
    heads = f"{'batches/s':>14}{'÷ one':>10}{'daemon, of a core':>20}{'min ÷ max':>12}"
    print(f"  {'sessions':<20}{heads}")
    for n in found:
        print(
            f"  {n:<20}{total[n]:>14,.0f}{total[n] / total[1]:>10.2f}{share[n]:>20.2f}"
            f"{fair[n]:>12.3f}"
        )
    # Where trainers take the cores, the daemon cannot be faster than the cores that it gets.
    cores = min(1, share[MANY] / share[1])
    row(
        f"{MANY} sessions ÷ (one × its cores' share, {cores:.2f})",
        f"{total[MANY] / total[1] / cores:.2f}",
        "wanted ≥ 0.9",
    )
    row(f"slowest ÷ fastest of {FEW}", f"{fair[FEW]:.3f}", "wanted ≥ 0.9")
    return {"sessions_64": total[MANY] / total[1] / cores, "fairness": fair[FEW]}


def paced(socket, daemon, seconds):
    """CPU seconds of all next() calls and of the daemon, of trainers at a real rate."""
    import torch
    from tokend import Loader

    torch.set_num_threads(1)
    ranks = [Loader("train", MICRO, socket=socket, rank=r, world=TRAINERS) for r in range(TRAINERS)]
    for rank in ranks * 200:  # until the tensors and rings have been used once
        next(rank)
    period, inside, batches = MICRO * SEQ / TOKENS_S / TRAINERS, 0, 0
    begin, used = time.monotonic(), cpu_ns(daemon)
    while time.monotonic() - begin < seconds:
        time.sleep(max(0, begin + batches * period - time.monotonic()))
        at = time.thread_time_ns()
        next(ranks[batches % TRAINERS])
        inside += time.thread_time_ns() - at
        batches += 1
    wall = time.monotonic() - begin
    return {
        "rate": batches * MICRO * SEQ / wall,
        "next": inside / 1e9 / wall,
        "daemon": (cpu_ns(daemon) - used) / 1e9 / wall,
    }


def rate(directory, args):
    with Daemon(directory, train_stream(directory / "tokens.bin")) as daemon:
        daemon.wait()
        about = {"socket": daemon.socket, "daemon": daemon.process.pid}
        found = in_child(__file__, "paced", seconds=5 if args.quick else 20, **about)
    share = found["next"] + found["daemon"]
    print(f"\n{TRAINERS} trainers × {TOKENS_S:,} tokens/s, int64 input_ids and labels")
    row(
        f"all next() in Python, of a core, at {found['rate']:,.0f} tokens/s",
        f"{found['next']:.3%}",
        "",
    )
    row("the daemon, of a core", f"{found['daemon']:.3%}", "")
    row("together", f"{share:.3%}", "wanted ≤ 0.15 %")
    return {"rate_core_share": 100 * share}


if __name__ == "__main__":
    serve_child({"paced": paced})
