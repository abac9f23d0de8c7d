"""Random windows that are not in the page cache, next to fio and torch's DataLoader.

All read windows of 8 × 2049 tokens of one file, in turn, and before each the kernel drops what it
has cached of that file. "Device" is what the disk read, by its own counter, per byte delivered.
fio has as many reads in flight as the daemon. Direct reads need whole blocks of the disk: fio reads
as many as cover one window, and so does tokend. TMPDIR is on the disk that is measured.
"""

import os
import re
import shutil
import statistics
import subprocess
from pathlib import Path

import loaders
from common import BIN, PEERS, SEQ, WIN, CannotRun, Daemon, fresh, train_stream, write_tokens

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


def block_of(path):
    return int((disk_of(path)[0] / "queue/logical_block_size").read_text())


def about(path):
    disk = disk_of(path)[0]
    driver, ahead = (disk / "device/driver").resolve().name, disk / "queue/read_ahead_kb"
    host = "; its host may have the file in memory" if driver.startswith("virtio") else ""
    return (
        f"{disk.name} ({driver}), blocks of {block_of(path)} bytes, read-ahead of "
        f"{ahead.read_text().strip()} KiB{host}"
    )


def forget(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


# ---- contestants: seconds → figures, "bytes" delivered among them ----


class Served:
    """A daemon over the file, and turns of its trainer, each at another position."""

    def __init__(self, directory, file, direct):
        self.daemon = Daemon(directory, train_stream(file), direct=direct)
        self.position, self.file = 0, file

    def delivered(self):
        command = [BIN / "tokctl", "metrics", "--socket", self.daemon.socket]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = re.findall(r"^tokend_read_bytes_total\{.* (\S+)$", text, re.M)
        return sum(map(float, found))

    def __call__(self, seconds):
        self.position += TURNS
        mine = {"socket": self.daemon.socket, "daemon": self.daemon.process.pid}
        mine |= {"position": self.position, "loader": "tokend", "file": self.file}
        before = self.delivered()
        found = fresh(loaders.__file__, "rate", seconds=seconds, **mine)
        return found | {"bytes": self.delivered() - before}


def torch(file, workers):
    def run(seconds):
        mine = {"loader": "torch_dataloader", "file": file, "workers": workers}
        found = fresh(loaders.__file__, "rate", PEERS, seconds=seconds, **mine)
        return found | {"bytes": 2 * found["taken"]}

    return run


def fio(file, direct):
    # Windows begin at multiples of SEQ tokens.
    block = block_of(file)
    size, align = (-(-2 * WIN // block) * block, block) if direct else (2 * WIN, 2 * SEQ)
    options = (size, align, f"--direct={direct:d}", "--fadvise_hint=random")

    def run(seconds):
        found = loaders.run_fio(file, seconds, *options)
        return found | {"bytes": 2 * found["taken"]}

    return run


# ---- the contest ----


def rounds_of(contestants, path, args):
    found, why = {name: [] for name in contestants}, {}
    for number in range(args.rounds):
        for name, run in contestants.items():
            if name in why or (name.startswith("torch") and number >= PEER_ROUNDS):
                continue
            forget(path)
            before = disk_bytes(path)
            try:
                one = run(args.seconds)
            except CannotRun as error:
                why[name] = f"cannot run: {error}"
                continue
            found[name].append(one | {"device": (disk_bytes(path) - before) / one["bytes"]})
    return found, why


def print_rounds(found, why):
    for name, runs in found.items():
        line = f"  {name:<34}"
        if not runs:
            print(line, why[name])
            continue
        rates = [run["rate"] / 1e6 for run in runs]
        print(
            f"{line}{statistics.median(rates):>9.1f}{min(rates):>10.1f}–{max(rates):<8.1f}"
            f"{statistics.median(r['device'] for r in runs):>8.3f}"
            f"{statistics.median(r['all'] for r in runs):>8.2f}"
        )


def contest(directory, path, args):
    buffered, direct = (Served(directory / str(d), path, d) for d in (False, True))
    cold = {
        "tokend, direct": direct,
        "fio, direct": fio(path, True),
        "tokend, buffered": buffered,
        "fio, buffered": fio(path, False),
        "torch DataLoader, 0 workers": torch(path, 0),
        "torch DataLoader, 2 workers": torch(path, 2),
    }
    with buffered.daemon, direct.daemon:
        return rounds_of(cold, path, args)


def cold(directory, args):
    directory = directory / "cold"
    directory.mkdir()
    path, gigabytes = directory / "cold.bin", 1 if args.quick else 4
    try:
        disk_of(directory)
        write_tokens(path, gigabytes * 500_000_000)
        found, why = contest(directory, path, args)
        disk = about(path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"\nWindows of {2 * WIN} bytes at random places of {gigabytes} GB, {args.rounds} "
        f"rounds of {args.seconds:g} s\n{disk}\n"
        "M tokens/s: median, lowest–highest; device bytes per byte; CPU s per 10⁹ tokens"
    )
    print(f"  {'':<34}{'rate':>9}{'':>19}{'device':>8}{'CPU':>8}")
    print_rounds(found, why)
    figures = {
        f"device_{how}": statistics.median(run["device"] for run in found[f"tokend, {how}"])
        for how in ("direct", "buffered")
    }
    for name, how in ("cold_fio", "direct"), ("cold_fio_buffered", "buffered"):
        pairs = zip(found[f"tokend, {how}"], found[f"fio, {how}"], strict=False)
        ratios = [mine["rate"] / theirs["rate"] for mine, theirs in pairs]
        if ratios:
            figures[name] = statistics.median(ratios)
            print(f"  {how}: tokend ÷ fio of the same round, median {figures[name]:.2f}")
    return figures
