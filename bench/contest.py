"""The contest: tokend, other loaders and the machine's limits, on the same tokens.

Each contestant of loaders.py runs in a process of its own, in turn with all others, for some
rounds. It takes batches for args.seconds on free cores, and again while another process keeps each
core busy. A contestant that fails or takes too long says why in its row; the others go on.

    build/venv/bin/python bench/run.py contest [--quick]
"""

import shutil
import statistics
import subprocess
import sys

import loaders
from common import BIN, MICRO, ROOT, WIN, CannotRun, Daemon, fresh, train_stream

PEERS = ROOT / "build/trainers/peers/bin/python"
WRITE_S, RUN_S = 240, 40  # limits
NEEDS = {loaders.mosaic: "mosaic", loaders.litdata: "litdata", loaders.megatron: "megatron"}


def chosen(quick):
    """(kind, name, function, workers) of the contestants of this run."""
    for kind in ("LIMITS", "OURS", "PEERS"):
        for name, function, workers, in_quick in getattr(loaders, kind):
            if in_quick or not quick:
                yield kind, name, function, workers


def write_shards(path, functions):
    """The tokens in the formats of those loaders that need one; {loader: why it has none}."""
    failed = {}
    for function in functions:
        if function in NEEDS:
            try:
                fresh(loaders.__file__, f"write_{NEEDS[function]}", PEERS, WRITE_S, file=path)
            except CannotRun as why:
                failed[function] = str(why)
    subprocess.run(["sync"], check=True)  # so that nothing is written back while others run
    return failed


def run_all(path, table, args):
    """{(name, workers): the figures of its rounds, or why it cannot run}."""
    failed = write_shards(path, {function for _, _, function, _ in table})
    found = {(name, workers): failed.get(function, []) for _, name, function, workers in table}
    with Daemon(path.parent, train_stream(path.name)) as daemon:
        daemon.wait()
        given = {"file": path, "seconds": args.seconds, "socket": daemon.socket}
        given["daemon"] = daemon.process.pid
        for _ in range(args.rounds):
            for kind, name, function, workers in table:
                if isinstance(found[name, workers], str):
                    continue
                python = sys.executable if kind == "OURS" else PEERS
                mine = given | {"workers": workers}
                if kind != "OURS":
                    del mine["daemon"]  # its CPU belongs to tokend's contestants only
                try:
                    run = fresh(loaders.__file__, function.__name__, python, RUN_S, **mine)
                    found[name, workers].append(run)
                except CannotRun as why:
                    found[name, workers] = f"cannot run: {why}"
    return found


def spread(runs, key):
    values = [run[key] / 1e6 for run in runs]
    return statistics.median(values), f"{min(values):,.0f}–{max(values):,.0f}"


def print_table(found, args):
    print(
        f"\nOne trainer takes {MICRO} × {WIN} tokens, {args.tokens / 1e6:.0f} M u16 tokens in the "
        f"page cache, {args.rounds} rounds\nM tokens/s: median, lowest–highest; CPU s per 10⁹ "
        "tokens: all processes, the trainer's thread"
    )
    print(
        f"  {'':<28}{'w':>2}{'free cores':>12}{'':>14}{'busy cores':>12}{'':>14}{'all':>8}"
        f"{'thread':>8}  version"
    )
    for (name, workers), runs in found.items():
        label = f"  {name:<28}{'' if workers is None else workers:>2}"
        if isinstance(runs, str):
            print(f"{label}  {runs}")
            continue
        rate, of_rate = spread(runs, "rate")
        busy, of_busy = spread(runs, "busy")
        cpu = [statistics.median(run[key] for run in runs) for key in ("all", "thread")]
        print(
            f"{label}{rate:>12,.1f}{of_rate:>14}{busy:>12,.1f}{of_busy:>14}{cpu[0]:>8.2f}"
            f"{cpu[1]:>8.2f}  {runs[-1]['version']}"
        )


def medians(found):
    """{(name, workers): {key: median}} of those that ran."""
    return {
        who: {
            key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "version"
        }
        for who, runs in found.items()
        if not isinstance(runs, str)
    }


def figures(found):
    """The goals' figures, as ratios."""
    middle = medians(found)
    peers = {(name, workers) for name, _, workers, _ in loaders.PEERS} & middle.keys()

    def best(key, in_thread):
        among = [who for who in peers if (who[1] == 0) == in_thread]
        return max((middle[who][key] for who in among), default=None)

    def ratio(name, key, other):
        mine = middle.get((name, None))
        return mine[key] / other if mine and other else None

    torch = middle.get(("torch DataLoader", 0), {})
    uring = middle.get(("fio, io_uring", None), {})
    return {
        "hot_inthread": ratio("tokend", "rate", best("rate", True)),
        "hot_workers": ratio("tokend", "rate", best("rate", False)),
        "busy_inthread": ratio("tokend", "busy", best("busy", True)),
        "busy_workers": ratio("tokend", "busy", best("busy", False)),
        "int32": ratio("tokend, int32", "rate", best("rate", True)),
        "view": ratio("tokend, views", "rate", best("rate", True)),
        "c_fio": ratio("tokend in C, stored width", "rate", uring.get("rate")),
        "cpu_all": ratio("tokend", "all", torch.get("all")),
        "cpu_thread": ratio("tokend", "thread", torch.get("thread")),
    }


def counters():
    """Whether this machine counts instructions, in one line."""
    try:
        done = subprocess.run(
            ["perf", "stat", "-x,", "-e", "instructions:u", "true"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return "instructions: not counted, because perf is not installed"
    if done.returncode or "not supported" in done.stderr:
        return "instructions: not counted, because this machine has no hardware counters"
    return "instructions: this machine counts them; see `perf stat`"


def contest(directory, args):
    table = list(chosen(args.quick))
    (directory / "contest").mkdir(exist_ok=True)
    try:
        found = run_all(directory / "tokens.bin", table, args)
    finally:
        shutil.rmtree(directory / "contest", ignore_errors=True)
    print_table(found, args)
    version = subprocess.run([BIN / "tokend", "--version"], capture_output=True, text=True).stdout
    print(f"  {version.strip()}; {counters()}")
    everything = {
        f"{name}, {workers} workers" if workers is not None else name: runs
        for (name, workers), runs in found.items()
    }
    return {name: value for name, value in figures(found).items() if value is not None} | {
        "contest": everything
    }
