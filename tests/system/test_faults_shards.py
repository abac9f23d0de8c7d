"""Shards that are changed, truncated or deleted while they are served."""

import os
import re
import shutil
import subprocess
import time

import numpy
import pytest
from faults import SEQ_LEN, SHARD_TOKENS, SHARDS, simple_streams

from lib import TOKCTL, Client, Daemon, Refused, Witness, datasets, rank_rows, refusal, rows_at
from lib.injected import injected

WINDOW = SEQ_LEN + 1
MICRO, WORLD = 2, 2


# ---- shards that change ----


def cut_open(path):
    os.truncate(path, os.path.getsize(path) // 4 * 2)


def replace(path):
    numpy.zeros(SHARD_TOKENS, "<u2").tofile(path + ".tmp")
    os.rename(path + ".tmp", path)


def rewrite(path):
    """Other bytes, with the same inode and size."""
    with open(path, "r+b") as f:
        f.write(bytes(1000))
    os.utime(path, ns=(0, time.time_ns() + 1))


def put_fifo(path):
    os.unlink(path)
    os.mkfifo(path)


# fault: (action, shard, words of the error). Shard 0 is open then, shard 3 is not.
SHARD_FAULTS = {
    "truncated while open": (cut_open, 0, ["truncated"]),
    "truncated before it is opened": (cut_open, 3, ["not the file that tokend", "size was"]),
    "replaced": (replace, 3, ["not the file that tokend", "inode was"]),
    "written to": (rewrite, 3, ["not the file that tokend", "mtime"]),
    "deleted": (os.unlink, 3, ["No such file"]),
    "replaced by a FIFO": (put_fifo, 3, ["not the file that tokend listed"]),
}


class Trainer:
    """A rank that reads until an error."""

    def __init__(self, daemon, rows, rank):
        self.client = Client(daemon.socket).attach(micro=MICRO, rank=rank, world=WORLD)
        self.want = rank_rows(rows, rank, WORLD, MICRO)
        self.read, self.wrong, self.error = 0, 0, None

    def step(self):
        self.wrong += not numpy.array_equal(self.client.next(), self.want[self.read])
        self.read += 1

    def to_the_error(self):
        try:
            while self.read < len(self.want):
                self.step()
        except Refused as e:
            self.error = e.packet
        more = self.client.last_words() if self.error else []
        self.client.close()
        return len(more) == 0


class Cat:
    """tokctl cat as a trainer. A full pipe stops it until read() is called."""

    def __init__(self, place, daemon, *more):
        self.cursor = place.file("cat.cursor")
        arguments = [
            "--rank",
            "0",
            "--world",
            "1",
            "--micro",
            "2",
            "--slots",
            "4",
            "--cursor-out",
            self.cursor,
        ]
        self.process = place.spawn(
            [TOKCTL, "cat", "train", "--socket", daemon.socket, *arguments, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=4096,
        )
        self.first = os.read(self.process.stdout.fileno(), 1)

    def read(self):
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, self.first + out, err.decode()


def shard_fault(place, io, direct, fault):
    """Injects one fault. Returns a list of what went wrong."""
    action, number, words = SHARD_FAULTS[fault]
    name = f"{io}{direct}-{fault.replace(' ', '-')}"
    os.makedirs(place.file(name, "x"))
    for i in range(SHARDS):
        place.shard(f"{name}/seq/{i}.bin", SHARD_TOKENS)
    streams = {
        "train": {
            "seed": 3,
            "seq_len": SEQ_LEN,
            "datasets": [{"name": "seq", "path": "seq", "shuffle": "none"}],
        },
        "other": {"seed": 3, "seq_len": 64, "datasets": [{"name": "o", "path": "../small"}]},
    }
    config = place.config(
        f"{name}/tokend.yaml",
        io=io,
        direct=direct,
        socket=place.file("shards.sock"),
        streams=streams,
    )
    daemon = Daemon(place, config)
    total = (SHARD_TOKENS - WINDOW) // SEQ_LEN + 1
    rows = rows_at(config, "train", 0, total * SHARDS)
    trainers = [Trainer(daemon, rows, rank) for rank in range(WORLD)]
    cat = Cat(place, daemon, "--batches", str(total * SHARDS // 2))
    other = Witness(daemon, rows_at(config, "other", 0, 1000), stream="other")
    for trainer in trainers:
        trainer.step()
    shard = place.file(name, "seq", f"{number}.bin")
    shutil.copy2(shard, shard + ".kept")
    os.rename(shard + ".kept", place.file(name, "kept"))
    action(shard)
    injected(10 if action is cut_open else 12)
    sound = os.path.getsize(shard) // 2 if "while open" in fault else 0
    bad = number * total + max(0, (sound - WINDOW) // SEQ_LEN + 1)  # the first window that is lost

    faults = []
    for rank, trainer in enumerate(trainers):
        once = trainer.to_the_error()
        e = trainer.error or {}
        if trainer.wrong or trainer.read > -(-bad // (WORLD * MICRO)):
            faults.append(
                f"rank {rank}: {trainer.wrong} of {trainer.read} batches wrong, position "
                f"{bad} is the first lost one"
            )
        if not once or e.get("code") != "data" or e.get("field") != "dataset seq":
            faults.append(f"rank {rank}: {e}")
        at = re.search(rf"shard {number}\.bin at token (\d+)\b", e.get("text", ""))
        if not at or "\n" in e["text"] or any(w not in e["text"] for w in [*words, "stops here"]):
            faults.append(f"rank {rank}: the error is {e}")
    code, out, err = cat.read()
    if (
        code != 1
        or err.count("\n") != 1
        or f"{number}.bin" not in err
        or not rows.tobytes().startswith(out)
        or len(out) > bad * WINDOW * 2
    ):
        faults.append(f"cat: exit {code} after {len(out)} bytes: {err}")
    if not daemon.alive() or not other.step(10):
        faults.append("the other stream does not continue")
    other.close()
    if daemon.stop() != 0:
        faults.append("the daemon did not end with 0")

    if os.path.lexists(shard):
        os.unlink(shard)
    os.rename(place.file(name, "kept"), shard)
    daemon.start()
    left = total * SHARDS // 2 - len(out) // (2 * WINDOW * 2)
    code, rest, err = Cat(place, daemon, "--cursor", cat.cursor, "--batches", str(left)).read()
    if code != 0 or out + rest != rows.tobytes():
        faults.append(
            f"restored: {code}, {len(out)} + {len(rest)} bytes, wanted {rows.nbytes}: {err}"
        )
    daemon.stop()
    return faults


def reads_direct(daemon, shard):
    """Does the daemon have @shard open with O_DIRECT?"""
    for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
        try:
            if os.readlink(f"/proc/{daemon.pid}/fd/{fd}") == shard:
                flags = open(f"/proc/{daemon.pid}/fdinfo/{fd}").read().split("flags:")[1].split()[0]
                return bool(int(flags, 8) & os.O_DIRECT)
        except FileNotFoundError:
            continue
    return None


def open_shard_faults(place, io, direct):
    """An open shard that lost its name stops the stream. Returns what went wrong."""
    faults = []
    for action in (replace, os.unlink):
        name = f"open-{io}{direct}-{action.__name__}"
        place.shard(f"{name}/one/0.bin", SHARD_TOKENS)
        streams = {"train": {"seed": 3, "seq_len": SEQ_LEN, "datasets": datasets("one")}}
        config = place.config(
            f"{name}/tokend.yaml",
            io=io,
            direct=direct,
            socket=place.file("shards.sock"),
            streams=streams,
        )
        daemon = Daemon(place, config)
        witness = Witness(daemon, rows_at(config, "train", 0, 400))
        witness.step()
        shard = place.file(name, "one", "0.bin")
        if reads_direct(daemon, shard) != direct and "refuses O_DIRECT" not in daemon.log():
            faults.append(
                f"O_DIRECT: {reads_direct(daemon, shard)}, but not in the log: {daemon.log()}"
            )
        action(shard)
        text = refusal(lambda w=witness: w.step(150))
        if "0.bin" not in text or "removed or replaced" not in text or witness.wrong:
            faults.append(f"{action.__name__}: {witness.wrong} batches wrong: {text}")
        witness.close()
        daemon.stop()
    return faults


@pytest.fixture(scope="module")
def small(shared):
    """The shared Place, with the shards of simple_streams()."""
    simple_streams(shared)
    return shared


@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_every_trainer_stops_at_a_damaged_shard(small, mode, fault):
    """The error names the shard; a trainer can continue when the shard is restored."""
    faults = shard_fault(small, *mode, fault)
    assert not faults


def test_an_open_shard_that_is_replaced_or_deleted_stops_the_stream(small, mode):
    faults = open_shard_faults(small, *mode)
    assert not faults
