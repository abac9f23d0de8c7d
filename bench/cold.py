#!/usr/bin/env python3
"""Random windows that are not in the page cache, next to fio and torch's DataLoader.

    build/venv/bin/python bench/cold.py [DIRECTORY]

All read windows of 8 × 2049 tokens of one file, in turn, and before each the kernel drops what it
has cached of that file. "Device" is what the disk read, by its own counter, per byte delivered.
fio has as many reads in flight as the daemon. Direct reads need whole blocks of the disk: fio reads
as many as cover one window, and so does tokend.
"""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from common import (
    MICRO,
    SEQ,
    WIN,
    CannotRun,
    Daemon,
    answer,
    flat_windows,
    forever,
    fresh,
    train_stream,
)
from loaders import FIO_DEPTH, take

WINDOW_BYTES = 2 * WIN
TURNS = 200_000  # positions from one turn to the next: more than one can read
PEER_ROUNDS = 2  # the DataLoader's reading ahead caches the file: its rate says little


# ---- the disk ----


def disk_of(path):
    """The directory of the file's disk in /sys, and that of its partition."""
    device = os.stat(path).st_dev
    part = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if not (part / "stat").exists():
        raise SystemExit(f"{path} is not on a disk that counts its reads; set TMPDIR")
    return part if (part / "queue").exists() else part.parent, part


def disk_bytes(path):
    return 512 * int((disk_of(path)[1] / "stat").read_text().split()[2])


def about(path):
    disk = disk_of(path)[0]
    driver = (disk / "device/driver").resolve().name

    def queue(name):
        return (disk / "queue" / name).read_text().strip()

    scheduler = re.sub(r".*\[(.*)\].*", r"\1", queue("scheduler"))
    host = "; its host may have the file in memory" if driver.startswith("virtio") else ""
    return (
        f"{disk.name} ({driver}), blocks of {queue('logical_block_size')} bytes, read-ahead of "
        f"{queue('read_ahead_kb')} KiB, scheduler {scheduler}{host}"
    )


def write_file(path, gigabytes):
    import numpy

    tokens = numpy.random.default_rng(1).integers(0, 50257, 20_000_000, dtype=numpy.uint16)
    with open(path, "wb") as file:
        for _ in range(round(gigabytes * 25)):
            tokens.tofile(file)
        file.flush()
        os.fsync(file.fileno())


def forget(path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


# ---- contestants ----


def measured(args, batches, delivered):
    """Rate, CPU and device bytes after a warm-up. @delivered: bytes so far, or None to count."""
    for _ in range(64):
        next(batches)
    device, bytes_ = disk_bytes(args.file), delivered() if delivered else 0
    begin = time.monotonic()
    found = take(batches, args.seconds, getattr(args, "daemon", None))
    count = found["rate"] * (time.monotonic() - begin) * 2
    bytes_ = delivered() - bytes_ if delivered else count
    return {
        "rate": found["rate"],
        "cpu": found["all"],
        "device": (disk_bytes(args.file) - device) / bytes_,
    }


def tokend(args):
    from tokend import Loader

    def delivered():
        with urllib.request.urlopen(f"http://127.0.0.1:{args.metrics}/metrics") as page:
            found = re.findall(r"^tokend_read_bytes_total\{.* (\S+)$", page.read().decode(), re.M)
        return sum(map(float, found))

    with Loader("train", MICRO, socket=args.socket, tokens=True, start=args.start) as loader:
        return measured(args, iter(loader), delivered)


def memmap(args):
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(
        flat_windows(args.file), MICRO, shuffle=True, drop_last=True, num_workers=args.workers
    )
    return measured(args, forever(loader), None)


def fio(path, seconds, direct):
    block = int((disk_of(path)[0] / "queue/logical_block_size").read_text())
    # Windows begin at multiples of SEQ tokens.
    size, align = (-(-WINDOW_BYTES // block) * block, block) if direct else (WINDOW_BYTES, 2 * SEQ)
    command = ["fio", "--name=cold", f"--filename={path}", "--rw=randread", f"--bs={size}"]
    command += [f"--blockalign={align}", f"--direct={direct:d}", "--fadvise_hint=random"]
    command += ["--ioengine=io_uring", f"--iodepth={FIO_DEPTH}", "--registerfiles", "--thread"]
    command += ["--iodepth_batch_submit=64", "--iodepth_batch_complete_max=64"]
    command += ["--norandommap", "--randrepeat=0", "--invalidate=0", "--time_based"]
    command += [f"--runtime={round(seconds * 1000)}ms", "--gtod_reduce=1", "--output-format=json"]
    before = disk_bytes(path)
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotRun("fio is not installed") from None
    if done.returncode:
        raise CannotRun((done.stderr.strip().splitlines() or ["fio failed"])[-1])
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    reads, seconds = job["read"]["total_ios"], job["read"]["runtime"] / 1e3
    return {
        "rate": reads * WIN / seconds,
        "cpu": (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / (reads * WIN / 1e9),
        "device": (disk_bytes(path) - before) / (reads * WINDOW_BYTES),
    }


# ---- the contest ----


class Served:
    """A daemon over the file, and turns of its trainer, each at another position."""

    def __init__(self, directory, file, direct):
        directory.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.metrics = free.getsockname()[1]
        extra = f"metrics: 127.0.0.1:{self.metrics}\ndirect: {str(direct).lower()}\n"
        self.daemon = Daemon(directory, train_stream(file), extra)
        self.start, self.file = 0, file

    def __call__(self, seconds):
        self.start += TURNS
        return fresh(
            __file__,
            "tokend",
            file=self.file,
            socket=self.daemon.socket,
            daemon=self.daemon.process.pid,
            metrics=self.metrics,
            start=self.start,
            seconds=seconds,
        )


def rounds_of(contestants, path, args, cold=True):
    found, why = {name: [] for name in contestants}, {}
    for number in range(args.rounds):
        for name, run in contestants.items():
            if name in why or (name.startswith("torch") and number >= PEER_ROUNDS):
                continue
            if cold:
                forget(path)
            try:
                found[name].append(run(args.seconds))
            except CannotRun as error:
                why[name] = f"cannot run: {error}"
    return found, why


def print_rounds(found, why, suffix):
    for name, runs in found.items():
        line = f"  {name + suffix:<34}"
        if not runs:
            print(line, why[name])
            continue
        rates = [run["rate"] / 1e6 for run in runs]
        print(
            f"{line}{statistics.median(rates):>9.1f}{min(rates):>10.1f}–{max(rates):<8.1f}"
            f"{statistics.median(r['device'] for r in runs):>8.3f}"
            f"{statistics.median(r['cpu'] for r in runs):>8.2f}"
        )


def contest(directory, path, args):
    def peer(workers):
        return lambda s: fresh(__file__, "memmap", file=path, workers=workers, seconds=s)

    buffered, direct = (Served(directory / str(d), path, d) for d in (False, True))
    cold = {
        "tokend, direct": direct,
        "fio, direct": lambda s: fio(path, s, True),
        "tokend, buffered": buffered,
        "fio, buffered": lambda s: fio(path, s, False),
        "torch DataLoader, 0 workers": peer(0),
        "torch DataLoader, 2 workers": peer(2),
    }
    hot = {name: cold[name] for name in ("tokend, buffered", "fio, buffered")}
    with buffered.daemon, direct.daemon:
        buffered.daemon.wait()
        direct.daemon.wait()
        result = rounds_of(cold, path, args)
        subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
        return result, rounds_of(hot, path, args, cold=False)


def cold(directory, args):
    directory = directory / "cold"
    directory.mkdir()
    path = directory / "cold.bin"
    gigabytes = 1 if args.quick else 4
    try:
        disk_of(directory)
        write_file(path, gigabytes)
        (found, why), (hot, why_hot) = contest(directory, path, args)
        disk = about(path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"\nWindows of {WINDOW_BYTES} bytes at random places of {gigabytes} GB, {args.rounds} "
        f"rounds of {args.seconds:g} s\n{disk}\n"
        "M tokens/s: median, lowest–highest; device bytes per byte; CPU s per 10⁹ tokens"
    )
    print(f"  {'':<34}{'rate':>9}{'':>19}{'device':>8}{'CPU':>8}")
    print_rounds(found, why, "")
    print_rounds(hot, why_hot, ", cached")

    def ratios(a, b):
        return [x["rate"] / y["rate"] for x, y in zip(found[a], found[b], strict=False)]

    def device(name):
        return statistics.median(run["device"] for run in found[name])

    figures = {
        "device_direct": device("tokend, direct"),
        "device_buffered": device("tokend, buffered"),
        "cold": {"cold": found, "hot": hot},
    }
    for name, how in ("cold_fio", "direct"), ("cold_fio_buffered", "buffered"):
        if found[f"fio, {how}"]:
            figures[name] = statistics.median(ratios(f"tokend, {how}", f"fio, {how}"))
            print(f"  {how}: tokend ÷ fio of the same round, median {figures[name]:.2f}")
    return figures


def main():
    if len(sys.argv) == 3 and sys.argv[1] in ("tokend", "memmap"):
        answer((tokend, memmap))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", nargs="?", help="on the disk to measure; default: TMPDIR")
    parser.add_argument("--quick", action="store_true", help="a smaller file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokend-bench-", dir=args.directory) as directory:
        cold(Path(directory), args)


if __name__ == "__main__":
    main()
