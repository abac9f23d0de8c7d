"""Shards that are written again while a daemon lives: the next attach gets the new ones, or is
refused while a session reads the former ones. A stream whose open shard lost its name stops.
"""

import contextlib
import errno
import gzip
import os
import shutil
import signal
import time

import numpy
import pytest

from lib import TOKCTL, Client, Closed, Daemon, Refused, has, refusal, rows_at, run, wait_for
from lib.fuse import LOOKUP, hanging

pytestmark = pytest.mark.asan


def rest(client):
    """Waits until its ring is full: its session reads nothing more."""
    assert wait_for(lambda: client.published() == client.batch + client.slots)
    return client


class Scene:
    """A daemon with a stream for each of two directories of three shards."""

    def __init__(self, place, stream=None, **paths):
        self.place = place
        for name in ("web", "code"):
            self.write(name)
        streams = {
            name: {
                "seed": 1, "seq_len": 7, **(stream or {}),
                "datasets": [{"name": name, "path": name, **about}],
            }
            for name, about in (paths or {"web": {}, "code": {}}).items()
        }  # fmt: skip
        self.config = place.config(streams=streams)
        self.daemon = Daemon(place, self.config)

    def write(self, name, seed=0, shards=3):
        """Writes the shards, under new inodes."""
        shutil.rmtree(self.place.file(name, ""), ignore_errors=True)
        for i in range(shards):
            self.place.shard(f"{name}/{i}.bin", 6_000, seed=10 * seed + i)

    def attach(self, stream="web", **keys):
        """As the library: tries again after a refusal that passes, and in a reload."""
        while True:
            try:
                return Client(self.daemon.socket).attach(stream=stream, micro=2, slots=4, **keys)
            except Refused as refused:
                if not refused.packet.get("passing"):
                    raise
            except (Closed, OSError):
                pass
            time.sleep(0.01)

    def serves(self, stream="web", position=0):
        """Does a new session get the tokens of the files as they are now?"""
        rows = rows_at(self.config, stream, position, 40)
        client = self.attach(stream, position=position)
        got = numpy.concatenate([client.next() for _ in range(20)])
        rest(client).close()
        return numpy.array_equal(got, rows)


@pytest.fixture
def scene(place):
    return Scene(place)


def linked(scene):
    os.rename(scene.place.file("web", "")[:-1], scene.place.file("former"))
    scene.write("other", 4)
    os.symlink("other", scene.place.file("web"))


def written(scene):
    scene.write("web", 1, shards=5)


@pytest.mark.parametrize("change", [linked, written])
def test_the_next_session_gets_what_the_path_holds(scene, change):
    assert scene.serves()
    change(scene)
    assert scene.serves() and scene.serves("code")


def test_an_attach_is_refused_while_another_session_reads_the_former_shards(scene):
    first, other = rest(scene.attach()), scene.attach("code")
    scene.place.shard("web/3.bin", 6_000)
    text = refusal(scene.attach)
    assert has(text, "had 3 shards and has 4; the first", " 3.bin", f"pid {os.getpid()}")
    os.remove(scene.place.file("web", "3.bin"))
    rest(scene.attach()).close()
    scene.write("web", 1)
    assert "still reads the former shards of stream web" in refusal(scene.attach)
    assert scene.serves("code"), "another stream is not concerned"
    first.close()
    assert wait_for(scene.serves)
    other.close()


def test_a_list_of_document_bounds_is_compared(place):
    """Added, replaced and removed."""
    scene = Scene(place, {"eos": 7, "documents": True})
    sides = [place.file(f"web/{i}.csv.gz") for i in range(3)]  # all have one, or none
    for rows in (b"0,30\n50,6000\n", b"0,77\n90,6000\n", None):
        first = rest(scene.attach())
        for side in sides:
            if rows:
                with gzip.open(place.file("new"), "wb") as file:
                    file.write(rows)
                os.rename(place.file("new"), side)
            else:
                os.remove(side)
        text = refusal(scene.attach)
        assert has(text, "web/0.bin: its side files", f"pid {os.getpid()}"), text
        first.close()
        assert wait_for(scene.serves)


def test_a_loss_mask_that_cannot_be_looked_at_has_not_changed(place):
    for i in range(3):
        numpy.zeros(6_000, "u1").tofile(place.file("masks", f"{i}.bin"))
    with contextlib.closing(hanging(place.file("masks"), place.file("at", ""))) as mount:
        scene = Scene(place, {"loss_mask": True}, web={"label_mask": "at"})
        first = rest(scene.attach())
        mount.fail(errno.EIO, LOOKUP)
        scene.attach().next()
        assert mount.failed()
        first.close()


def test_a_running_stream_stops_until_a_reload(scene):
    client = scene.attach()
    client.next()
    linked(scene)
    with pytest.raises(Refused) as refused:
        while True:
            client.next()
            time.sleep(0.01)
    assert has(refused.value.packet["text"], ".bin", "no longer leads to the file")
    client.close()
    text = refusal(scene.attach)
    assert has(text, "which stopped stream web", f"kill -HUP {scene.daemon.pid}"), text
    os.kill(scene.daemon.pid, signal.SIGHUP)
    assert scene.daemon.said("was read again") and scene.serves()


def test_a_manifest_is_compared_by_its_own_identity(place):
    def inspect():
        code, _, err = run(TOKCTL, "manifest", place.file("web"), place.file("m"))
        assert code == 0, err

    for i in range(3):
        place.shard(f"web/{i}.bin", 6_000, seed=i)
    inspect()
    scene = Scene(place, web={"manifest": "m"})
    scene.write("web", 1, shards=4)
    os.remove(place.file("m"))
    inspect()
    assert scene.serves()


def test_storage_that_hangs_does_not_stop_attaches(place):
    """Those of other streams; those of its own go on after some seconds."""
    names = ("one", "two")
    for name in names:
        place.shard(f"{name}/0.bin", 6_000)
    mounts = [hanging(place.file(name), place.file(f"at-{name}", "")) for name in names]
    paths = {"one": "at-one", "two": "at-two", "web": "web", "code": "code"}
    try:
        scene = Scene(place, **{name: {"path": path} for name, path in paths.items()})
        for mount in mounts:
            mount.hang()
        clients = [scene.attach(name) for name in names]
        begin = time.monotonic()
        assert scene.serves() and scene.serves("code")
        assert time.monotonic() < begin + 10
        for mount in mounts:
            mount.answer()
        for client in clients:
            client.next()
            client.close()
        assert scene.daemon.stop() == 0
    finally:
        for mount in mounts:
            mount.close()
