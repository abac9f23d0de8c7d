#!/usr/bin/env python3
"""The protocol of copies to a GPU, against a real daemon and a fake libcuda.so.1 (tests/gpu/fake_cuda.c): what arrives "on the
device" although it arrives late. No evidence of how a GPU behaves: that is tests/gpu/check.py's business.

Each scenario of tests/gpu/pin_trainer.c is a process of its own, for the library is chosen by LD_LIBRARY_PATH.
"""

import fcntl
import os
import subprocess
import time

import numpy
from harness import BIN, LONG, Checks, Daemon, Place, datasets, rows_at, wait_for

CHECK = os.path.join(os.path.realpath(BIN), "..", "check")
TRAINER, FAKE = os.path.join(CHECK, "pin-trainer"), os.path.join(CHECK, "fake")
SEQ_LEN, MICRO, BATCHES = 255, 4, 40


class Trainer:
    """A scenario under way."""

    def __init__(self, place, daemon, scenario, library=FAKE, **environment):
        self.out, self.err = place.file(f"{scenario}.out"), place.file(f"{scenario}.err")
        env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        if library is not None:
            env["LD_LIBRARY_PATH"] = library
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = place.spawn(
                [TRAINER, daemon.socket, scenario],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=env,
            )

    def said(self):
        with open(self.err, errors="replace") as f:
            return f.read()

    def says(self, word):
        return (
            wait_for(lambda: word in self.said() or self.process.poll() is not None)
            and word in self.said()
        )

    def tell(self):
        self.process.stdin.write(b"go")
        self.process.stdin.flush()

    def end(self):
        """Its exit status and what it said."""
        self.process.wait(LONG * 2)
        return self.process.returncode, self.said()

    def rows(self):
        return numpy.fromfile(self.out, "<u2").reshape(-1, SEQ_LEN + 1)


def arrives(checks, name, trainer, want):
    code, said = trainer.end()
    checks.ok(f"{name}: ends well", code == 0, (code, said))
    got = trainer.rows()
    wrong = [] if got.shape != want.shape else numpy.nonzero((got != want).any(axis=1))[0].tolist()
    checks.ok(
        f"{name}: the right {len(want)} rows",
        got.shape == want.shape and not wrong,
        (got.shape, wrong),
    )
    return said


def copies(checks, place, daemon, rows):
    for delay in (0, 3):
        for scenario in ("simple", "ahead", "small", "never_pinned", "capture", "forked"):
            trainer = Trainer(place, daemon, scenario, FAKE_CUDA_DELAY_MS=delay)
            arrives(checks, f"{scenario}, {delay} ms late", trainer, rows[: BATCHES * MICRO])


def control(checks, place, daemon, rows):
    """The same library, the same delay: whoever gives slots back early must be seen."""
    trainer = Trainer(place, daemon, "early", FAKE_CUDA_DELAY_MS=30)
    code, said = trainer.end()
    got = trainer.rows()
    checks.ok(
        "negative control: ends",
        code == 0 and got.shape == rows[: BATCHES * MICRO].shape,
        (code, said),
    )
    wrong = int((got != rows[: len(got)]).any(axis=1).sum())
    checks.ok("negative control: slots given back early arrive wrong", wrong >= MICRO, wrong)


def lost_daemon(checks, place, daemon, rows):
    trainer = Trainer(place, daemon, "killed")
    if checks.ok("killed: copies under way", trainer.says("killme"), trainer.said()):
        daemon.kill()
        trainer.tell()
        time.sleep(0.2)
        daemon.start()
        arrives(checks, "killed", trainer, rows[: BATCHES * MICRO])


def elsewhere(checks, place, daemon, rows):
    want = numpy.concatenate([rows[: 11 * MICRO], rows[8 : 8 + (BATCHES - 11) * MICRO]])
    arrives(checks, "seek", Trainer(place, daemon, "seek"), want)
    arrives(
        checks, "seek, copied ahead", Trainer(place, daemon, "seek_ahead"), rows[: BATCHES * MICRO]
    )
    arrives(
        checks,
        "detach",
        Trainer(place, daemon, "detach", FAKE_CUDA_DELAY_MS=150),
        rows[: 3 * MICRO],
    )


def without(checks, place, daemon, rows):
    said = arrives(
        checks,
        "unpinned",
        Trainer(place, daemon, "unpinned", FAKE_CUDA_REGISTER_FAILS=1),
        rows[: BATCHES * MICRO],
    )
    checks.has(
        "unpinned: says why, in one line",
        said,
        "cannot be registered",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "let memory be pinned",
    )
    checks.equal("unpinned: one line", said.count("\n"), 1)
    code, said = Trainer(place, daemon, "driverless", FAKE_CUDA_INIT=34).end()
    checks.ok("a stub for a driver: goes on", code == 0, said)
    checks.has("a stub for a driver: says so", said, "cuInit", "CUDA_ERROR_STUB_LIBRARY", "34")
    if os.path.exists("/proc/driver/nvidia"):
        checks.skip("no driver", "there is one here")
    else:
        code, said = Trainer(place, daemon, "driverless", library=None).end()
        checks.ok("no driver: goes on", code == 0, said)
        checks.has("no driver: says so", said, "no NVIDIA driver", "libcuda.so.1")


def rules(checks, place, daemon):
    for scenario, environment in (("contexts", {"FAKE_CUDA_DEVICES": 2}), ("refusals", {})):
        code, said = Trainer(place, daemon, scenario, **environment).end()
        checks.ok(scenario, code == 0, (code, said))


def turns(checks, place, daemon):
    """Trainers of a node register one after the other: the directory of the socket is their lock."""
    directory = os.open(os.path.dirname(daemon.socket), os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    trainer = Trainer(place, daemon, "turn")
    checks.ok("turns: wants to register", trainer.says("pinning"), trainer.said())
    time.sleep(0.2)
    waits = "pinned" not in trainer.said() and trainer.process.poll() is None
    checks.ok("turns: waits while another one does", waits, trainer.said())
    fcntl.flock(directory, fcntl.LOCK_UN)
    code, said = trainer.end()
    checks.ok("turns: then it does", code == 0 and "pinned" in said, (code, said))
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is free again, or this raises
    os.close(directory)


def main():
    checks = Checks()
    with Place() as place:
        place.shard("web/a.bin", 90_000)
        place.shard("web/b.bin", 90_000)
        config = place.config(
            streams={"train": {"seed": 5, "seq_len": SEQ_LEN, "datasets": datasets("web")}}
        )
        daemon = Daemon(place, config)
        rows = rows_at(config, "train", 0, 50 * MICRO)
        stuck = Trainer(
            place, daemon, "stuck"
        )  # takes the ten seconds after which memory is given up
        copies(checks, place, daemon, rows)
        control(checks, place, daemon, rows)
        elsewhere(checks, place, daemon, rows)
        without(checks, place, daemon, rows)
        rules(checks, place, daemon)
        turns(checks, place, daemon)
        arrives(checks, "stuck", stuck, rows[:MICRO])
        lost_daemon(checks, place, daemon, rows)
    checks.exit()


if __name__ == "__main__":
    main()
