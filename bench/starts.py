"""From the start of a trainer's process to its first batch; and every position costs the same.

The clock starts when the process has imported torch, and stops when it has its first input_ids and
labels: it includes importing tokend. Without a running daemon, Loader(config=…) starts a private
one. Shards are sparse files. Zeros do not show their type, so the daemon reads them at 8 places of
each shard, where one place of real tokens is enough.
"""

import os
import signal
import statistics
import time

from common import BIN, MICRO, SEQ, Daemon, answer, fresh, row, sparse, told, train_stream

# samples: shards. A file of ext4 has at most 16 TiB.
SIZES = {"1e6": (10**6, 1), "1e8": (10**8, 10), "1e10": (10**10, 100)}
NAMES = {"1e6": "10⁶", "1e8": "10⁸", "1e10": "10¹⁰"}
SHARDS, TOKENS, LONG = 10_000, 10**10, 4096  # of positions(), and its seq_len


def first_batch(args):
    """Milliseconds of importing torch, and from then to the first batch."""
    begin = time.perf_counter()
    import torch

    imported = time.perf_counter()
    from tokend import Loader

    batch = next(Loader("train", MICRO, start="begin", **args.where))
    end = time.perf_counter()
    assert batch["input_ids"].dtype == torch.int64
    return {"torch_ms": 1e3 * (imported - begin), "first_ms": 1e3 * (end - imported)}


def end_private_daemon(runtime):
    for socket in (runtime / "tokend").glob("*.sock"):
        pid = told(BIN / "tokctl", "status", "--socket", socket, "--json")[-1]["pid"]
        os.kill(pid, signal.SIGTERM)
        while socket.exists():
            time.sleep(0.01)


def of_size(directory, size, rounds):
    """Results of first_batch(), by whether a daemon runs."""
    samples, shards = SIZES[size]
    sparse(directory / "data", shards, samples // shards * SEQ + 1)
    found = {True: [], False: []}
    with Daemon(directory, train_stream("data")) as daemon:
        for _ in range(rounds):
            found[True].append(fresh(__file__, "first_batch", where={"socket": str(daemon.socket)}))
    for number in range(rounds):
        runtime = directory / str(number)
        runtime.mkdir(mode=0o700)
        env = os.environ | {"XDG_RUNTIME_DIR": str(runtime)}
        run = fresh(__file__, "first_batch", env=env, where={"config": str(daemon.config)})
        found[False].append(run)
        end_private_daemon(runtime)
    return found


def starts(directory, args):
    sizes, figures = ["1e8"] if args.quick else list(SIZES), {}
    found = {size: of_size(directory / f"starts{size}", size, args.rounds) for size in sizes}
    torch = [run["torch_ms"] for each in found.values() for runs in each.values() for run in runs]
    print(
        f"\nProcess → first batch in Python, without importing torch, which took "
        f"{statistics.median(torch):.0f} ms: medians of {args.rounds}, and the range"
    )
    print(f"  {'samples, shards':<26}{'daemon runs, ≤ 5 ms':>26}{'not, ≤ 40 ms':>26}")
    for size, each in found.items():
        cells = ""
        for running, runs in each.items():
            times = [run["first_ms"] for run in runs]
            middle = statistics.median(times)
            cells += f"{f'{middle:.1f} ms ({min(times):.1f}–{max(times):.1f})':>26}"
            figures[f"start_{'running' if running else 'cold'}_ms_{size}"] = middle
        print(f"  {f'{NAMES[size]}, {SIZES[size][1]}':<26}{cells}")
    return figures


# ---- 100 T tokens ----


def positions(directory, args):
    """10,000 sparse shards of 10 G tokens: the beginning, the middle, the end, and 2^62."""
    sparse(directory / "many", SHARDS, TOKENS, width=4)
    every = SHARDS * ((TOKENS - LONG - 1) // LONG + 1)
    places = {"0": 0, "middle": every // 2, "end": every - 64, "2^62": 2**62}
    costs = {what: {name: [] for name in places} for what in ("plan", "when", "attach")}
    rounds = 3 if args.quick else 15
    with Daemon(directory, train_stream("many", LONG, dtype="u32")) as daemon:
        before = daemon.memory()

        def timed(what, name, run):
            begin = time.monotonic()
            found = run()
            costs[what][name].append((time.monotonic() - begin) * 1e3)
            return found

        def offline(command, *options):
            words = [BIN / "tokctl", command, "-c", daemon.config, "train", "--json", *options]
            return told(*words)[-1]

        for name, position in list(places.items()) * rounds:
            where = ("--from", position, "--count", 1)
            at = timed("plan", name, lambda: offline("plan", *where))  # noqa: B023
            where = ("--dataset", "web", "--shard", at["shard"], "--epoch", at["epoch"])
            where += ("--offset", at["offset"] + 1)
            back = timed("when", name, lambda: offline("when", *where))  # noqa: B023
            assert back["position"] == position, (back, at)
            costs["attach"][name].append(daemon.next(position, 0)["first_ms"])
        after = daemon.memory()
        for position in list(places.values()) * rounds:
            daemon.next(position + 10**6, 0)
        last = daemon.memory()
    print("\n100 T tokens: 10,000 sparse shards of 10 G u32 tokens")
    named = {"plan": "tokctl plan", "when": "tokctl when", "attach": "attach → first batch"}
    figures = {}
    for what, cost in costs.items():
        base = statistics.median(cost["0"])
        ratio = {name: statistics.median(cost[name]) / base for name in places if name != "0"}
        said = ", ".join(f"{name} {each:.2f}" for name, each in ratio.items())
        what_at = f"{named[what]} at position 0; elsewhere ÷ that"
        row(what_at, f"{base:.2f} ms", f"{said}; wanted ≤ 1.2")
        figures[f"{what}_elsewhere"] = max(ratio.values())
    what = f"daemon's RSS without rings: opened, after {4 * rounds} sessions, after {8 * rounds}"
    row(what, f"{before:.1f} {after:.1f} {last:.1f} MiB", "wanted flat")
    return figures


if __name__ == "__main__":
    answer(first_batch)
