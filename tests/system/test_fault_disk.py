"""A disk that fails: the fsync() of a snapshot fails, because the block device below the file
system has no room. The save fails, and each acknowledged snapshot is on the disk afterwards.
"""

import os
import subprocess

import pytest
from faults import fill

from lib import Client, Daemon, Witness, datasets, has, refusal, rows_at
from lib.cat import moved
from lib.injected import injected


def mounted(*command, at):
    os.makedirs(at, exist_ok=True)
    done = subprocess.run(["mount", *command, at], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    return at


class Disk:
    """ext4 without a journal in a sparse file on a small tmpfs, which `fill()` leaves full."""

    def __init__(self, place):
        self.host = mounted("-t", "tmpfs", "-o", "size=8m", "tokend-test", at=place.file("host"))
        self.image, self.at = f"{self.host}/image", place.file("disk")
        with open(self.image, "wb") as f:
            f.truncate(64 << 20)
        make = ["mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-m", "0", "-N", "128"]
        if subprocess.run([*make, self.image], capture_output=True).returncode:
            pytest.skip("needs mkfs.ext4")
        self.mount()

    def mount(self):
        mounted("-o", "loop,errors=continue", self.image, at=self.at)

    def fill(self):
        """After it no block that a file needs anew can be written: the blocks of removed files are
        gone from the image, and a block is a page of the tmpfs, which none shares with another.
        """
        subprocess.run(["sync", "-f", self.at], check=True)
        subprocess.run(["fstrim", self.at], check=True)
        fill(f"{self.host}/filler")

    def empty(self):
        os.unlink(f"{self.host}/filler")

    def umount(self):
        subprocess.run(["umount", self.at], check=True)


@pytest.fixture
def disk(place):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a disk")
    disk = Disk(place)
    yield disk
    subprocess.run(["umount", "-l", disk.at, disk.host], capture_output=True)


def test_acknowledged_snapshots_survive_a_failed_fsync(place, disk):
    place.shard("web/a.bin", 60_000)
    config = place.config(
        "tokend.yaml",
        streams={"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}},
        state_dir=disk.at,
    )
    daemon = Daemon(place, config)
    witness = Witness(daemon, rows_at(config, "train", 0, 400), run="job")
    client = witness.client
    cursors = [moved(place, client.feed["cursor"], 8 * n) for n in range(40)]
    save = lambda tag, cursor: refusal(lambda: client.ask(op="checkpoint", tag=tag, cursor=cursor))
    assert has(save("a", cursors[0]), "not refused"), "a save on a sound disk succeeds"

    disk.fill()
    told, acknowledged = [], cursors[0]
    for cursor in cursors[1:]:
        said = save("a", cursor)
        saved = "not refused" in said
        told += [] if saved else [said]
        acknowledged = cursor if saved else acknowledged
        if len(told) >= 3:
            break
    assert len(told) >= 3, ("saves on the failing disk fail", told)
    free = os.statvfs(disk.at)
    assert free.f_bavail * free.f_frsize > 32 << 20, "  not of the file system, which has room"
    assert all(has(t, "No space left") for t in told), ("  with errno", told)
    injected(14, len(told))
    assert witness.step(20), "  the session continues"
    other = Client(daemon.socket).attach(run="other")
    assert other.next() is not None, "  another run can attach, although its cursor is not saved"
    other.close()
    assert daemon.said("run other: its cursor is not saved")

    disk.empty()
    assert has(save("b", cursors[-1]), "not refused"), "a save succeeds once the disk is sound"
    witness.close()
    daemon.kill()
    disk.umount()
    disk.mount()
    saved = {tag: open(f"{disk.at}/train/job/{tag}.cursor", "rb").read() for tag in "ab"}
    assert saved["b"] == cursors[-1], "the disk has the new snapshot"
    assert saved["a"] == acknowledged, "  and the last acknowledged one of the other tag"
    daemon.start()
    client = Client(daemon.socket)
    client.attach(tag="a", run="job")
    assert client.next() is not None, "  at which a trainer attaches"
    client.close()
    assert daemon.stop() == 0, "  exit 0"
