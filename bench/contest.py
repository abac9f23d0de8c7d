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
    """Writes the tokens in the formats of the loaders that need one; {loader: why it has none}."""
    failed = {}
    for function in functions & NEEDS.keys():
        try:
            fresh(loaders.__file__, f"write_{NEEDS[function]}", PEERS, WRITE_S, file=path)
        except CannotRun as why:
            failed[function] = f"cannot run: its shards: {why}"
    subprocess.run(["sync"], check=True)  # so that nothing is written back while others run
    return failed


def run_all(path, table, args):
    """({(name, workers): the figures of each round}, {(name, workers): why it has no more})."""
    failed = write_shards(path, {function for _, _, function, _ in table})
    why = {(name, w): failed[function] for _, name, function, w in table if function in failed}
    found = {(name, workers): [] for _, name, _, workers in table}
    with Daemon(path.parent, train_stream(path.name)) as daemon:
        daemon.wait()
        given = {"file": path, "seconds": args.seconds}
        ours = {"socket": daemon.socket, "daemon": daemon.process.pid}
        for number in range(args.rounds):
            for kind, name, function, workers in table:
                who = name, workers
                if who in why:
                    continue
                python = sys.executable if kind == "OURS" else PEERS
                mine = given | (ours if kind == "OURS" else {"workers": workers})
                try:
                    run = fresh(loaders.__file__, function.__name__, python, RUN_S, **mine)
                    found[who].append(run)
                except CannotRun as error:
                    why[who] = f"failed in round {number + 1}: " if number else "cannot run: "
                    why[who] += str(error)
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
        cpu = [statistics.median(run[key] for run in runs) for key in ("all", "thread")]
        print(
            f"{line}{rate:>12,.1f}{of_rate:>18}{busy:>12,.1f}{of_busy:>18}{cpu[0]:>8.2f}"
            f"{cpu[1]:>8.2f}  {runs[-1]['version']} {said}".rstrip()
        )


def medians(found):
    """{(name, workers): {key: median}} of those that ran."""
    return {
        who: {
            key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "version"
        }
        for who, runs in found.items()
        if runs
    }


def label(who):
    name, workers = who
    return name if workers is None else f"{name}, {workers} workers"


def best(middle, key, in_thread):
    """The fastest peer without workers, or with some; None: there is none."""
    peers = {(name, workers) for name, _, workers, _ in loaders.PEERS} & middle.keys()
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
        "view": ratio("tokend, views", "rate", inthread),
        "c_fio": ratio("tokend in C, stored width", "rate", ("fio, io_uring", None)),
        "cpu_all": ratio("tokend", "all", torch),
        "cpu_thread": ratio("tokend", "thread", torch),
    }
    return {name: value for name, value in found.items() if value is not None}


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
        found, why = run_all(directory / "tokens.bin", table, args)
    finally:
        shutil.rmtree(directory / "contest", ignore_errors=True)
    print_table(found, why, args)
    version = subprocess.run([BIN / "tokend", "--version"], capture_output=True, text=True).stdout
    print(f"  {version.strip()}; {counters()}")
    middle = medians(found)
    for key, cores in ("rate", "free"), ("busy", "busy"):
        of = [best(middle, key, in_thread) for in_thread in (True, False)]
        without, with_some = [label(who) if who else "none" for who in of]
        print(f"  best peer on {cores} cores, without workers: {without}; with: {with_some}")
    return figures(middle) | {"contest": {label(who): runs for who, runs in found.items()}}
