"""Shards that are overwritten while a stream serves them: a trainer gets the original tokens or an
error, never other tokens.

Every token is compared. Each fault is injected into a file that the daemon has open, according to
/proc.
"""

import os
import shutil
import struct

import numpy
import pytest
import zstandard

from lib import MODES, Client, Daemon, Refused, mode_name, rows_at, wait_for
from lib.injected import injected

SEQ_LEN, TOKENS = 512, 400_000
WINDOW = SEQ_LEN + 1
MICRO = 2


class Kind:
    """A dataset of one shard. `victim` is its file that is overwritten."""

    def __init__(self, place, name, shuffle):
        self.name, self.shuffle = name, shuffle
        self.directory = os.path.dirname(place.file(name, "data", "x"))
        self.stream, self.dataset = {}, {"name": "d", "path": "data", "shuffle": shuffle}
        self.shard = self.victim = place.shard(f"{name}/data/0.bin", TOKENS)
        self.tokens = numpy.fromfile(self.shard, "<u2")

    def config(self, place, mode):
        io, direct = mode
        stream = {
            "seed": 3,
            "seq_len": SEQ_LEN,
            "epochs": 100,
            "datasets": [self.dataset],
            **self.stream,
        }
        return place.config(
            f"{self.name}/tokend.yaml",
            io=io,
            direct=direct,
            socket=place.file("s.sock"),
            streams={"train": stream},
        )


class Masked(Kind):
    """With a loss mask; the mask's file is overwritten."""

    def __init__(self, place, name, shuffle):
        super().__init__(place, name, shuffle)
        self.victim = place.file(name, "masks", "0.bin")
        numpy.ones(TOKENS, "u1").tofile(self.victim)
        self.stream, self.dataset = {"loss_mask": True}, {**self.dataset, "label_mask": "masks"}


class Indexed(Kind):
    """A Megatron shard with documents of 1,000 tokens; the index is overwritten."""

    def __init__(self, place, name, shuffle):
        super().__init__(place, name, shuffle)
        self.victim, self.stream = place.file(name, "data", "0.idx"), {"documents": True}
        n = TOKENS // 1000
        with open(self.victim, "wb") as f:
            f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1))
            f.write(
                struct.pack(f"<{n}i", *[1000] * n)
                + struct.pack(f"<{n}q", *range(0, 2 * TOKENS, 2000))
            )
            f.write(struct.pack(f"<{n + 1}q", *range(n + 1)))


class Compressed(Kind):
    def __init__(self, place, name, shuffle):
        super().__init__(place, name, shuffle)
        with open(self.shard, "rb") as f:
            frames = b"".join(zstandard.compress(part) for part in iter(lambda: f.read(65536), b""))
        os.rename(self.shard, place.file(name, "raw", "data", "0.bin"))
        self.victim = f"{self.shard}.zst"
        with open(self.victim, "wb") as f:
            f.write(frames)


# ---- faults in the open file ----


def inverted(path, part=slice(None)):
    """Inverts the bytes in place, and sets the mtime back."""
    st = os.stat(path)
    with open(path, "r+b") as f:
        whole = bytearray(f.read())
        whole[part] = bytes(255 - b for b in whole[part])
        f.seek(0)
        f.write(whole)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def masked(path):
    """Sets the whole mask to 0, and sets the mtime back."""
    st = os.stat(path)
    with open(path, "r+b") as f:
        f.write(bytes(st.st_size))
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def written(path):
    with open(path, "r+b") as f:
        f.write(bytes(os.path.getsize(path) // 2))


def copied_over(path):
    """As `cp -p other shard` does: truncated, then written to the same length."""
    st = os.stat(path)
    with open(path + ".other", "wb") as f:
        f.write(bytes(st.st_size))
    os.utime(path + ".other", ns=(st.st_atime_ns, st.st_mtime_ns))
    shutil.copy2(path + ".other", path)
    os.unlink(path + ".other")


def regrown(path):
    size = os.path.getsize(path)
    os.truncate(path, 0)
    os.truncate(path, size)


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


FAULTS = {"inverted, its mtime set back": inverted, "half written to": written,
    "copied over with its mtime": copied_over,
          "cut and grown again": regrown, "cut": cut}  # fmt: skip


def is_open(daemon, path):
    def seen():
        links = (f"/proc/{daemon.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{daemon.pid}/fd"))
        return any(os.path.lexists(link) and os.readlink(link) == path for link in links)

    return wait_for(seen, 5)


class Trainer:
    def __init__(self, daemon, rows, masks=None, **start):
        self.client = Client(daemon.socket).attach(micro=MICRO, slots=4, **start)
        self.rows, self.masks, self.at, self.wrong, self.error = (
            rows,
            masks,
            start.get("position", 0),
            0,
            None,
        )

    def step(self, count):
        for _ in range(count):
            number = self.client.batch
            self.client.wait()
            mask = self.client.row_masks(number) if self.masks else None
            documents = self.client.row_documents(number) if self.client.documents else None
            got = self.client.next()
            want = self.rows[self.at : self.at + MICRO]
            self.wrong += not numpy.array_equal(got, want)
            self.wrong += mask is not None and not mask.all()
            self.wrong += documents is not None and any(
                b - a != 1000 for row in documents for a, b in zip(row, row[1:])
            )
            self.at += MICRO

    def to_the_error(self):
        try:
            while self.at + MICRO <= len(self.rows):
                self.step(1)
        except Refused as e:
            self.error = e.packet
        self.client.close()


def rows_of(kind, config):
    if not isinstance(kind, Compressed):
        return rows_at(config, "train", 0, 4000)
    # rows_at() cannot decompress; without a shuffle the rows are easy to compute.
    n = (TOKENS - WINDOW) // SEQ_LEN + 1
    tokens = kind.tokens
    return numpy.stack([tokens[i % n * SEQ_LEN :][:WINDOW] for i in range(4000)])


def one_fault(place, mode, kind, name, action):
    """Injects one fault into an open file. Returns a list of what went wrong."""
    config = kind.config(place, mode)
    daemon = Daemon(place, config)
    rows = rows_of(kind, config)
    kept = kind.victim + ".kept"
    faults = []
    trainer = Trainer(daemon, rows, masks=isinstance(kind, Masked))
    trainer.step(20)
    if not is_open(daemon, kind.victim):
        faults.append("the file is not open")
    before = os.stat(kind.victim)
    shutil.copy2(kind.victim, kept)
    os.rename(kept, place.file("aside"))
    action(kind.victim)
    if (
        os.stat(kind.victim).st_ino != before.st_ino
        or os.stat(kind.victim).st_ctime_ns == before.st_ctime_ns
    ):
        faults.append("the fault was not injected")
    else:
        injected(12)
    trainer.to_the_error()
    text = (trainer.error or {}).get("text", "")
    if trainer.wrong or not trainer.error or trainer.at > 40 + 4 * MICRO + MICRO:
        faults.append(f"{trainer.wrong} batches wrong of {trainer.at // MICRO}: {trainer.error}")
    if (
        "0.bin" not in text
        or "while it was open" not in text
        or f"before {trainer.at} are sound" not in text
        or "\n" in text
    ):
        faults.append(f"the error: {trainer.error}")
    try:
        again = Trainer(daemon, rows, masks=isinstance(kind, Masked), position=trainer.at)
        again.to_the_error()
        if again.wrong or not again.error or again.at != trainer.at:
            faults.append(f"attached again: {again.wrong} wrong, at {again.at}, {again.error}")
    except Refused as e:  # already at the attach, if size or mtime differ
        if "kill -HUP" not in e.packet["text"] or "0.bin" not in e.packet["text"]:
            faults.append(f"attached again: {e.packet}")
    if daemon.stop() != 0:
        faults.append("the daemon did not end with 0")
    os.rename(place.file("aside"), kind.victim)
    return faults


def touch_mode(path):
    os.chmod(path, 0o600 if os.stat(path).st_mode & 0o077 else 0o644)


def touch_links(path):
    link = os.path.join(os.path.dirname(path), "..", "link")
    os.link(path, link)
    os.unlink(link)


def touch_name(path):
    aside = os.path.join(os.path.dirname(path), "..", "renamed")
    os.rename(path, aside)
    os.rename(aside, path)


def touched(place, mode, kind, action):
    """Only metadata changes: the stream continues, with one line in the log. Returns a list of what
    went wrong.
    """
    daemon = Daemon(place, kind.config(place, mode))
    rows, faults = rows_of(kind, daemon.config), []
    trainer = Trainer(daemon, rows, masks=isinstance(kind, Masked))
    trainer.step(20)
    before = os.stat(kind.victim)
    action(kind.victim)
    if os.stat(kind.victim).st_ctime_ns == before.st_ctime_ns:
        faults.append("the ctime is the same")
    else:
        injected(12)
    trainer.step(400)
    changed = "its ctime changed while it was open"
    daemon.said(changed)
    trainer.step(100)
    said = daemon.said(changed)
    if trainer.wrong or len(said) != 1 or "0.bin" not in said[0]:
        faults.append(f"{trainer.wrong} wrong, said {said}")
    trainer.client.close()
    daemon.stop()
    return faults


OTHERS = [
    (Masked, masked),
    (Masked, copied_over),
    (Indexed, inverted),
    (Compressed, inverted),
    (Compressed, copied_over),
]
buffered = pytest.mark.parametrize("mode", MODES[:2], ids=mode_name, indirect=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_no_token_of_an_overwritten_shard_is_served(place, mode, fault):
    faults = one_fault(place, mode, Kind(place, "flat", "none"), fault, FAULTS[fault])
    assert not faults


@buffered
@pytest.mark.parametrize("fault", FAULTS)
def test_no_token_of_an_overwritten_shard_is_served_in_a_global_order(place, mode, fault):
    faults = one_fault(place, mode, Kind(place, "flat", "global"), fault, FAULTS[fault])
    assert not faults


@pytest.mark.parametrize("action", [touch_mode, touch_links, touch_name])
def test_a_shard_that_is_only_touched(place, mode, action):
    faults = touched(place, mode, Kind(place, "flat", "none"), action)
    assert not faults


@buffered
@pytest.mark.parametrize("kind, action", OTHERS)
def test_no_token_of_a_shard_with_an_overwritten_side_file_is_served(place, mode, kind, action):
    faults = one_fault(place, mode, kind(place, "other", "none"), action.__name__, action)
    assert not faults


@buffered
def test_a_mask_that_is_only_touched(place, mode):
    faults = touched(place, mode, Masked(place, "masked", "none"), touch_mode)
    assert not faults
