"""What is left of the system tests' own harness, for those that are programs: lib/ and the counting of checks."""

import os
import signal
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import lib  # noqa: E402
from lib import *  # noqa: E402, F403


class Checks:
    """One line a check. A name that fails is shown with what was seen."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def ok(self, name, good, seen=""):
        if good:
            self.passed += 1
            print(f"ok    {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL  {name}: {seen}", flush=True)
        return bool(good)

    def equal(self, name, got, want):
        return self.ok(name, got == want, f"got {got!r}, want {want!r}")

    def has(self, name, text, *words):
        missing = [w for w in words if w not in text]
        return self.ok(name, not missing, f"{missing} not in {text!r}")

    def skip(self, name, why):
        self.skipped += 1
        print(f"skip  {name}: {why}", flush=True)

    def exit(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)


class Place(lib.Place):
    """The same, within the time that a test takes."""

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, lambda n, _: sys.exit(128 + n))
        signal.alarm(240)
        return super().__enter__()


def reading_modes(checks, place):
    place.shard("probe/a.bin", 30_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "datasets": lib.datasets("probe")}}
    config = place.config(
        "probe.yaml", io="uring", socket=place.file("probe.sock"), streams=streams
    )
    try:
        lib.Daemon(place, config).stop()
        return lib.MODES
    except RuntimeError as e:
        checks.skip("io: uring", str(e).strip())
        return [m for m in lib.MODES if m[0] == "pread"]
