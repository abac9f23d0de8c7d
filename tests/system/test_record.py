"""Records as real sessions write them: torn ends, other files, full disks. No batch is taken
without its rows in the file.
"""

import os
import resource
import signal

import numpy
import pytest
from lib import TOKCTL, has, run
from tokend import ArgumentError, Loader
from verifying import SEQ_LEN, SHARD, WINDOW, Scene, entries, proves, timeless

BATCH = 4 * 16  # bytes


@pytest.fixture(scope="module")
def scene(shared):
    return Scene(shared)


class Session:
    """A Loader that records to @path, and the room on its disk."""

    def __init__(self, scene, path, start=0):
        self.path = path
        keys = {"socket": scene.daemon.socket, "framework": "numpy"}
        self.loader = Loader("train", 4, rank=0, world=1, start=start, **keys)
        self.record(path)

    def __enter__(self):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return self

    def __exit__(self, *_):
        self.room()
        self.loader.close()

    def record(self, path):
        self.loader._client.record(os.fsencode(path))

    def take(self, batches=1):
        for _ in range(batches):
            next(self.loader)

    def room(self, left=None):
        """@left: this many bytes more fit into the file; None: as many as you want."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        most = hard if left is None else os.path.getsize(self.path) + left
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def is_made(scene, path, lives):
    """The record is the one that is made of @lives, but for the times."""
    (want,) = scene.made(lives, together=True).values()
    got = entries(path)
    assert os.path.getsize(path) == 16 * len(got)
    assert numpy.array_equal(timeless(got), timeless(want)), (len(got), len(want))


def test_torn_ends_are_cut_off(scene):
    """The next writer keeps complete rows after a complete beginning."""
    path = scene.place.file("torn.record")
    whole = scene.made("1x4@0+2")["0-0"].tobytes()
    spare, head = scene.place.file("spare.record"), scene.head
    with Session(scene, spare, 1000) as session:
        for n in range(0, len(whole) + head, 3):
            with open(path, "wb") as file:
                file.write((whole + whole)[:n])
            session.loader.seek(position=1000)
            session.record(path)
            session.take()
            session.record(spare)
            stays = 0 if n < head else n // 16 * 16 if n < len(whole) else len(whole)
            written = open(path, "rb").read()
            assert written[:stays] == whole[:stays] and len(written) == stays + head + BATCH, n
            assert int(entries(path)[stays // 16 + 1, 1]) == 1000, n


@pytest.mark.asan
def test_other_files_are_refused_and_unchanged(scene):
    path = scene.place.file("other.record")
    cat = [TOKCTL, "cat", "train", *"--rank 0 --world 1 --micro 1 --batches 1".split()]
    cat += ["--socket", scene.daemon.socket, "--record"]
    for text in (b"no record of anything, but long", b"\xff" * 8 + bytes(8)):
        with open(path, "wb") as file:
            file.write(text)
        code, out, err = run(*cat, path)
        assert (code, out, open(path, "rb").read()) == (1, b"", text), err
        assert has(err, path, "is not a record of this version") and err.count("\n") == 1, err
    code, _, err = run(*cat, "/dev/full")
    assert code == 1 and "regular" in err, err


def test_a_record_follows_the_session(scene):
    """It is switched and appended to. A file that is refused does not end the old record."""
    path, other = scene.place.file("switched.record"), scene.place.file("also.record")
    with Session(scene, path) as session:
        session.loader.seek(position=80)
    assert os.path.getsize(path) == 0, "a session without a batch or skip leaves no trace"
    with Session(scene, path) as session:
        session.loader._client.obey("skip", "samples 40\n")
    is_made(scene, path, "1x4@0>40+0")
    with Session(scene, path) as session:
        session.loader._client.obey("skip", "samples 40\n")
        session.loader.seek(position=80)
        session.loader._client.obey("skip", "samples 20\n")
        session.loader.seek(position=0)
        session.take()
    os.truncate(path, 0)
    with Session(scene, path) as session:
        session.take()
        with pytest.raises(ArgumentError):
            session.record("/nowhere/x.record")
        for to in (path, other):
            session.take()
            session.record(to)
        session.take()
    with Session(scene, path, 40) as session:
        session.take()
    is_made(scene, path, "1x4@0+2 1x4@8+1=0 1x4@40+1")
    is_made(scene, other, "1x4@12+1=0")


# ---- full disks ----


def test_nothing_is_taken_that_cannot_be_recorded(scene):
    """The disk is full at each byte of a batch; once there is room, all of it is recorded. Two
    skips that could not be written become one, from the last row to the present position.
    """
    path = scene.place.file("full.record")
    with Session(scene, path) as session:
        session.take()
        for n in range(BATCH):
            session.room(n)
            size = os.path.getsize(path)
            for _ in range(2):
                with pytest.raises(ArgumentError, match=f"{path}.*File too large.*nothing was tak"):
                    session.take()
            assert (session.loader.position, os.path.getsize(path)) == (4 * (n + 1), size)
            session.room()
            session.take()
        session.room(40)
        for position in (400, 500):
            session.loader.seek(position=position)
            with pytest.raises(ArgumentError, match="File too large"):
                session.take()
        session.room()
        session.take()
    is_made(scene, path, f"1x4@0+{1 + BATCH} 1x4@{4 + 4 * BATCH}>500+1=0")


def test_nothing_is_committed_that_cannot_be_recorded(scene):
    """Batches and skips are written in order, when they are committed; others never."""
    path = scene.place.file("committed.record")
    with Session(scene, path) as session:
        session.loader.commit()
        session.take(3)
        session.loader._client.obey("skip", "samples 88\n")
        session.take()
        assert os.path.getsize(path) == 0
        session.loader.commit(4)
        is_made(scene, path, "1x4@0+1")
        session.room(40)
        with pytest.raises(ArgumentError, match="nothing was committed"):
            session.loader.commit(8)
        is_made(scene, path, "1x4@0+1")
        session.room()
        session.loader.commit(12)
        session.loader.commit(104)
    is_made(scene, path, "1x4@0+3 1x4@12>100+1=0")


# ---- what verify says of real sessions ----


def test_finite_stream_with_padding(scene):
    end = sum((n - WINDOW) // SEQ_LEN + 1 for n in (SHARD, SHARD // 2))
    assert end % 21 != 0, "it has padding"
    name = scene.directory("finite")
    record = scene.phase("finite", 3, 7, 1 << 40, stream="finite")
    proves(scene.verify(name, stream="finite"), 0, end)
    command = TOKCTL, "verify", "-c", scene.config, "finite", name, "--to", end + 1
    code, _, err = run(*command)
    assert code == 1 and f"--to {end + 1}: the stream ends at position {end}" in err, err
    with open(f"{record}-0.record", "ab") as file:
        numpy.array([end + 3, 1], "<u8").tofile(file)
    said = scene.verify(name, code=1, stream="finite")
    assert (said["altered"], said["faults"][0]["position"]) == (1, end + 3)


def test_altered_shard_alters_its_windows(scene):
    """Tokens of a shard are changed after the run: exactly the windows with them are altered."""
    scene.phase("altered", 2, 5, 150)  # to 1500
    name, shard = scene.directory("altered"), scene.place.file("code/a.bin")
    tokens, plan = numpy.fromfile(shard, "<u2"), scene.planned(1500)
    two = [row for row in plan if (row["dataset"], row["shard"]) == ("code", "a.bin")][7:9]
    changed = tokens.copy()
    for row in two:
        changed[row["offset"] + 11] ^= 1
    scene.daemon.stop()
    changed.tofile(shard)
    said = scene.verify(name, code=1)
    same = [position for position, row in enumerate(plan) if row in two]
    assert sorted(f["position"] for f in said["faults"]) == same
    assert (said["lost"], said["repeated"], said["altered"]) == (0, 0, len(same))
    assert has(said["verdict"], "than shard a.bin of dataset code", "restore that shard")
    tokens.tofile(shard)
    proves(scene.verify(name), 0, 1500)
    scene.daemon.start()
