"""The wait of a trainer with steps of 20 ms on storage that stalls: a real file system (FUSE) that
does not answer reads for 100 ms now and then, or for 2 s.

A ring of N batches lasts for N steps. So a stall makes a wait inevitable that is the stall without
those steps: tokend's waits are compared with it. Root mounts the file system.
"""

import sys
import time

from common import ROOT, Daemon, await_phase, next_phase, result_of, row, serve_child, start_child
from common import train_stream
from steps import NAMES, print_waits, train

sys.path.insert(0, str(ROOT / "tests"))
from lib.fuse import READ, Hanging  # noqa: E402

SHORT_S, LONG_S, SLOTS = 0.1, 2, 32
DEFAULT_SLOTS = 64  # of 8 rows of 2049 u16 tokens
CONTESTANTS = {
    "tokend": "tokend",
    "few": f"tokend, slots={SLOTS}",
    "read0": NAMES["torch0"],
    "read2": NAMES["torch2"],
}


def stalled(child, mount, plan):
    """A child's steps (begin, wait), and when the file system stalled: (begin, end). @plan: seconds
    before each stall, and of the stall."""
    stalls = []
    await_phase([child])
    next_phase([child])
    for pause, stall in plan:
        time.sleep(pause)
        begin = time.perf_counter()
        mount.hang(READ)
        time.sleep(stall)
        mount.answer()
        stalls.append((begin, time.perf_counter()))
    return result_of(child), stalls


def inevitable(steps, stalls, slots):
    """Waits in and right after the stalls, and those that a ring of @slots batches cannot avoid."""
    waited = least = 0
    for begin, end in stalls:
        waited += sum(wait for at, wait in steps if begin - 0.02 < at < end)
        before = [at for at, _ in steps if at < begin][-50:]
        step = (before[-1] - before[0]) / (len(before) - 1)
        least += max(0, end - begin - slots * step)
    return waited, least


def run(contestant, file, socket, mount, plan):
    options = {"file": file, "socket": socket, "contestant": contestant}
    if contestant == "few":
        options |= {"contestant": "tokend", "slots": SLOTS}
    steps = int(sum(map(sum, plan)) / 0.02) + 50
    return stalled(
        start_child(__file__, "train", steps=steps, announce=True, **options), mount, plan
    )


def stalls(directory, args):
    short = [(0.9, SHORT_S)] * 8
    long = [(2.7, LONG_S)] * (1 if args.quick else 3)
    (directory / "stalls").mkdir()
    (directory / "stalls/tokens.bin").hardlink_to(directory / "tokens.bin")
    try:
        mount = Hanging(str(directory / "stalls"), str(directory / "stalls-mount"))
    except OSError as error:
        raise SystemExit(f"a FUSE file system cannot be mounted: {error}") from error
    file = directory / "stalls-mount/tokens.bin"
    names = ("tokend", "few") if args.quick else CONTESTANTS
    try:
        with Daemon(directory, train_stream(file)) as daemon:
            daemon.wait()
            found = {
                what: {name: run(name, file, daemon.socket, mount, plan) for name in names}
                for what, plan in (("short", [] if args.quick else short), ("long", long))
                if plan
            }
    finally:
        mount.close()
    for what, seconds in (("short", SHORT_S), ("long", LONG_S)):
        if what in found:
            print(f"\nWait of steps of 20 ms on storage that stalls for {seconds:g} s")
            waits = {name: [wait for _, wait in steps] for name, (steps, _) in found[what].items()}
            print_waits(CONTESTANTS, waits, "ms", 1e3)
    ratio = {}
    for name, slots in (("tokend", DEFAULT_SLOTS), ("few", SLOTS)):
        waited, least = inevitable(*found["long"][name], slots)
        ratio[name] = waited / least
        row(
            f"stalls of {LONG_S} s, {slots} slots: waited, and inevitable",
            f"{waited:.2f} s",
            f"{least:.2f} s",
        )
    return {"stall_2s": ratio["tokend"], f"stall_2s_{SLOTS}": ratio["few"]}


if __name__ == "__main__":
    serve_child({"train": train})
