"""The contest: tokend, other loaders and the machine's limits, on the same tokens; and memory.

Each contestant of loaders.py runs in a process of its own, in turn with all others, for some
rounds. It takes batches for args.seconds on free cores, and again while another process keeps each
core busy. A contestant that fails or takes too long says why in its row; the others go on.

    build/venv/bin/python bench/run.py contest [--quick]
"""

import concurrent.futures
import shutil
import statistics
import subprocess
import sys

import loaders
from common import MICRO, PEERS, WIN, CannotRun, Daemon, fresh, medians, row, train_stream

WRITE_S, RUN_S = 240, 40  # limits
WRITERS = ("mosaic", "litdata", "megatron")
TRAINERS = 8  # of a node


def write_shards(path, names):
    """Writes the tokens in the formats of the loaders that need one; {loader: why it has none}."""
    failed = {}
    for name in sorted(names & set(WRITERS)):
        try:
            fresh(loaders.__file__, f"write_{name}", PEERS, WRITE_S, file=path)
        except CannotRun as why:
            failed[name] = f"cannot run: its shards: {why}"
    subprocess.run(["sync"], check=True)  # so that nothing is written back while others run
    return failed


def run_one(function, workers, package, more, daemon, file, seconds, **about):
    """The figures of one contestant, in a process of its own."""
    about |= {"file": file, "seconds": seconds, "busy": True, "workers": workers, **more}
    if function in (loaders.in_c, loaders.memcpy, loaders.fio):
        about |= {"socket": daemon.socket, "daemon": daemon.process.pid}
        return fresh(loaders.__file__, function.__name__, limit=RUN_S, **about)
    about |= {"loader": function.__name__, "package": package}
    if workers is None:
        about |= {"socket": daemon.socket, "daemon": daemon.process.pid}
    python = sys.executable if workers is None else PEERS
    return fresh(loaders.__file__, "rate", python, RUN_S, **about)


def run_all(path, table, args):
    """({(name, workers): the figures of each round}, {(name, workers): why it has no more})."""
    failed = write_shards(path, {function.__name__ for _, _, _, function, *_ in table})
    found = {(name, workers): [] for name, workers, *_ in table}
    why = {(n, w): failed[f.__name__] for n, w, _, f, *_ in table if f.__name__ in failed}
    with Daemon(path.parent, train_stream(path.name)) as daemon:
        for number in range(args.rounds):
            for name, workers, _, *contestant in table:
                function, package, more = contestant
                if (name, workers) in why:
                    continue
                try:
                    run = run_one(function, workers, package, more, daemon, path, args.seconds)
                    found[name, workers].append(run)
                except CannotRun as error:
                    said = f"failed in round {number + 1}: " if number else "cannot run: "
                    why[name, workers] = said + str(error)
    return found, why


def spread(runs, key):
    values = [run[key] / 1e6 for run in runs]
    return statistics.median(values), f"{min(values):,.0f}–{max(values):,.0f}"


def print_table(found, why, args):
    print(
        f"\nOne trainer takes {MICRO} × {WIN} tokens, {args.tokens / 1e6:.0f} M u16 tokens in the "
        f"page cache, {args.rounds} rounds\nM tokens/s: median, lowest–highest; CPU s per 10⁹ "
        "tokens: all processes, the trainer's thread"
    )
    print(
        f"  {'':<30}{'w':>2}{'free cores':>12}{'':>18}{'busy cores':>12}{'':>18}{'all':>8}"
        f"{'thread':>8}  version"
    )
    for (name, workers), runs in found.items():
        line = f"  {name:<30}{'' if workers is None else workers:>2}"
        said = why.get((name, workers), "")
        if not runs:
            print(f"{line}  {said}")
            continue
        rate, of_rate = spread(runs, "rate")
        busy, of_busy = spread(runs, "busy")
        cpu = medians(runs)
        print(
            f"{line}{rate:>12,.1f}{of_rate:>18}{busy:>12,.1f}{of_busy:>18}{cpu['all']:>8.2f}"
            f"{cpu['thread']:>8.2f}  {runs[-1]['version']} {said}".rstrip()
        )


def label(who):
    name, workers = who
    return name if workers is None else f"{name}, {workers} workers"


def best(middle, key, in_thread):
    """The fastest peer without workers, or with some; None: there is none."""
    peers = {(name, workers) for name, workers, *_ in loaders.PEERS} & middle.keys()
    among = [who for who in peers if (who[1] == 0) == in_thread]
    return max(among, key=lambda who: middle[who][key], default=None)


def figures(middle):
    """The goals' figures: ratios of medians."""

    def ratio(name, key, other):
        mine = middle.get((name, None))
        return mine[key] / middle[other][key] if mine and other in middle else None

    inthread, torch = best(middle, "rate", True), ("torch DataLoader", 0)
    found = {
        "hot_inthread": ratio("tokend", "rate", inthread),
        "hot_torch": ratio("tokend", "rate", torch),
        "hot_workers": ratio("tokend", "rate", best(middle, "rate", False)),
        "busy_inthread": ratio("tokend", "busy", best(middle, "busy", True)),
        "busy_torch": ratio("tokend", "busy", torch),
        "busy_workers": ratio("tokend", "busy", best(middle, "busy", False)),
        "int32": ratio("tokend, int32", "rate", inthread),
        "c_fio": ratio("tokend in C, stored width", "rate", ("fio, io_uring", None)),
        "cpu_all": ratio("tokend", "all", torch),
        "cpu_thread": ratio("tokend", "thread", torch),
    }
    return {name: value for name, value in found.items() if value is not None}


def contest(directory, args):
    every = loaders.LIMITS + loaders.OURS + loaders.PEERS
    table = [each for each in every if each[2] or not args.quick]
    try:
        found, why = run_all(directory / "tokens.bin", table, args)
    finally:
        shutil.rmtree(directory / "contest", ignore_errors=True)
    print_table(found, why, args)
    middle = {who: medians(runs) for who, runs in found.items() if runs}
    for key, cores in ("rate", "free"), ("busy", "busy"):
        of = [best(middle, key, in_thread) for in_thread in (True, False)]
        without, with_some = [label(who) if who else "none" for who in of]
        print(f"  best peer on {cores} cores, without workers: {without}; with: {with_some}")
    return figures(middle) | {"contest": {label(who): runs for who, runs in found.items()}}


# ---- memory of a node ----


def grown(world, **about):
    """The figures of @world trainers that run at once."""
    with concurrent.futures.ThreadPoolExecutor(world) as pool:
        runs = [
            pool.submit(fresh, loaders.__file__, "rate", rank=(rank, world), seconds=4, **about)
            for rank in range(world)
        ]
        return [run.result() for run in runs]


def memory(directory, args):
    """1 and 8 trainers: by how much they grow after they have imported torch, workers included.
    The pages of the token file are the page cache's. tokend's sum has daemon and rings.
    """
    file, ours, torch, private = directory / "tokens.bin", {}, {}, {}
    for world in (1, TRAINERS):
        with Daemon(directory, train_stream(file)) as daemon:
            about = {"loader": "tokend", "socket": daemon.socket, "file": file}
            runs = grown(world, daemon=daemon.process.pid, **about)
            private[world] = daemon.memory()
        ours[world] = sum(run["memory"] for run in runs) + medians(runs)["daemon"]
        runs = grown(world, loader="torch_dataloader", workers=2, file=file)
        torch[world] = sum(run["memory"] for run in runs)
    print(f"\nMemory of a node, private and shared, without importing torch; {MICRO} rows a batch")
    print(f"  {'':<66}{'1 trainer':>14}{f'{TRAINERS} trainers':>14}")
    for name, found in (
        ("tokend, daemon and rings included", ours),
        ("  the daemon without rings", private),
        ("torch DataLoader over memmap, 2 workers", torch),
    ):
        print(f"  {name:<66}" + "".join(f"{f'{mib:.1f} MiB':>14}" for mib in found.values()))
    ratios = {
        "memory_8": ours[TRAINERS] / torch[TRAINERS],
        "memory_growth": private[TRAINERS] / private[1],
    }
    row(f"{TRAINERS} trainers: tokend ÷ torch", f"{ratios['memory_8']:.3f}", "wanted ≤ 0.2")
    row(f"the daemon without rings, {TRAINERS} ÷ 1", f"{ratios['memory_growth']:.2f}")
    return ratios
