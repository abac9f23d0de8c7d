"""From the start of a trainer's process to its first batch, without importing torch.

The clock starts when the process has imported torch, and stops when it has its first
input_ids and labels: it includes importing tokend. Without a running daemon, Loader(config=…)
starts a private one. Samples are of sparse files. Zeros do not show their type, so the daemon
reads them at 8 places of each shard, where one place of real tokens is enough.
"""

import json
import os
import signal
import statistics
import subprocess
import time

from common import BIN, MICRO, SEQ, Daemon, in_child, serve_child, train_stream

# samples: shards. A file of ext4 has at most 16 TiB.
SIZES = {"1e6": (10**6, 1), "1e8": (10**8, 10), "1e10": (10**10, 100)}
NAMES = {"1e6": "10⁶", "1e8": "10⁸", "1e10": "10¹⁰"}


def first_batch(start, runtime=None, **options):
    """Milliseconds of importing torch, and from then to the first batch."""
    if runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
    begin = time.perf_counter()
    import torch

    imported = time.perf_counter()
    from tokend import Loader

    loader = Loader("train", MICRO, start=bytes.fromhex(start) or "begin", **options)
    batch = next(loader)
    end = time.perf_counter()
    assert batch["input_ids"].dtype == torch.int64
    return {"torch_ms": 1e3 * (imported - begin), "first_ms": 1e3 * (end - imported)}


def cursor_at(position, **options):
    from tokend import Loader

    with Loader("train", MICRO, start=position, **options) as loader:
        return loader.state_dict()["cursor"].hex()


def make_shards(directory, samples, shards):
    directory.mkdir(parents=True)
    for number in range(shards):
        with open(directory / f"{number:03}.bin", "wb") as file:
            file.truncate(2 * (samples // shards * SEQ + 1))


def end_private_daemons(runtime):
    for socket in (runtime / "tokend").glob("*.sock"):
        command = [BIN / "tokctl", "status", "--socket", socket, "--json"]
        lines = subprocess.run(command, check=True, capture_output=True).stdout.splitlines()
        os.kill(json.loads(lines[-1])["pid"], signal.SIGTERM)
        while socket.exists():
            time.sleep(0.01)


def of_size(directory, size, rounds, resume_too):
    """Results of first_batch(), by (does a daemon run, does the trainer resume)."""
    samples, shards = SIZES[size]
    make_shards(directory / "data", samples, shards)
    found = {}
    with Daemon(directory, train_stream("data")) as daemon:
        daemon.wait()
        position = samples * 9 // 10
        places = [""]
        if resume_too:
            places.append(in_child(__file__, "cursor_at", socket=daemon.socket, position=position))
        for _ in range(rounds):
            for start in places:
                run = in_child(__file__, "first_batch", socket=daemon.socket, start=start)
                found.setdefault((True, start != ""), []).append(run)
    for number in range(rounds):
        for start in places:
            runtime = directory / f"{number}{'r' if start else 'b'}"
            runtime.mkdir(mode=0o700)
            options = {"config": daemon.config, "runtime": runtime}
            run = in_child(__file__, "first_batch", start=start, **options)
            found.setdefault((False, start != ""), []).append(run)
            end_private_daemons(runtime)
    return found


def starts(directory, args):
    rounds, sizes = (2, ["1e8"]) if args.quick else (3, list(SIZES))
    found = {
        size: of_size(directory / f"starts{size}", size, rounds, not args.quick) for size in sizes
    }
    torch_ms = [
        run["torch_ms"] for runs in found.values() for each in runs.values() for run in each
    ]
    print(
        f"\nProcess → first batch in Python, without importing torch, which took "
        f"{statistics.median(torch_ms):.0f} ms: medians of {rounds}, and the range"
    )
    print(
        f"  {'samples, shards':<26}{'daemon':<14}{'from the beginning':>26}{'resume at 90 %':>26}"
    )
    figures = {}
    for size in sizes:
        for running, name in ((True, "running"), (False, "not running")):
            cells = ""
            for resumes in (False,) if args.quick else (False, True):
                times = [run["first_ms"] for run in found[size][running, resumes]]
                middle = statistics.median(times)
                cells += f"{f'{middle:.1f} ms ({min(times):.1f}–{max(times):.1f})':>26}"
                if not resumes:
                    key = f"start_{'running' if running else 'cold'}_ms_{size}"
                    figures[key] = middle
            print(f"  {f'{NAMES[size]}, {SIZES[size][1]}':<26}{name:<14}{cells}")
    print("  goals: 5 ms with a running daemon, 40 ms without")
    return figures


if __name__ == "__main__":
    serve_child({"first_batch": first_batch, "cursor_at": cursor_at})
