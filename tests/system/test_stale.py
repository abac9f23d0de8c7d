"""A file server that forgets open files (ESTALE), with or without a hang. The daemon opens the
shard again, and continues only if it is the same file. Other streams do not notice.

The stream on the FUSE file system has a twin, which reads the same files without it.
"""

import os
import shutil

import numpy
import pytest

from lib import Client, Daemon, Refused, has, status, wait_for
from lib.fuse import READ, hanging
from lib.injected import injected
from lib.shard_writers import arrow, megatron, put, raw, seekable

SEQ_LEN, TOKENS, SHARDS = 256, 60_000, 3
RING = {"micro": 4, "slots": 4}

# name: (keys of the daemon, stored dtype, keys of the stream, writer)
KINDS = {
    "plain": ({}, "<u2", {}, put(".bin", raw)),
    "direct": ({"direct": True}, "<u2", {}, put(".bin", raw)),
    "pread": ({"io": "pread"}, "<u2", {}, put(".bin", raw)),
    "frames": ({"memory": 1 << 20}, "<u2", {}, seekable(".bin.zst", raw, 8_192)),
    "index": ({}, "<i4", {"documents": True}, megatron),
    "arrow": ({}, "<i4", {}, arrow),
}


class Scene:
    """A daemon with the streams "near" and "far", which are equal, and a session of each."""

    def __init__(self, place, kind):
        keys, dtype, more, write = KINDS[kind]
        self.files = place.file("files")
        for i in range(SHARDS):
            tokens = numpy.random.default_rng([7, i]).integers(0, 30_000, TOKENS)
            write(place.file("files", f"{i}"), tokens.astype(dtype))
        self.mount = hanging(self.files, place.file("mount", ""))
        streams = {
            name: {"seed": 3, "seq_len": SEQ_LEN, **more, "datasets": [{"name": "d", "path": path}]}
            for name, path in (("near", "files"), ("far", "mount"))
        }
        self.daemon = Daemon(place, place.config(streams=streams, **keys))
        self.near, self.far = self.attach("near"), self.attach("far")

    def attach(self, stream, position=0):
        client = Client(self.daemon.socket)
        return client.attach(stream=stream, run=f"at-{position}", position=position, **RING)

    def same(self, batches):
        """Are the next batches of both streams equal?"""
        return all((self.near.next() == self.far.next()).all() for _ in range(batches))


@pytest.fixture
def scene(place, request):
    made = Scene(place, request.param)
    try:
        assert made.same(30)
        yield made
        made.near.close()
        made.far.close()
        assert made.daemon.stop() == 0
    finally:
        made.mount.close()


@pytest.mark.parametrize("scene", KINDS, indirect=True)
def test_a_forgotten_file_is_opened_again(scene):
    for _ in range(5):
        before = scene.mount.stale()
        scene.mount.forget()
        assert scene.same(12)
        assert scene.mount.stale() > before, "a read has found it out"
    injected(36, scene.mount.stale())
    assert status(scene.daemon.socket)[1]["sessions"] == 2, "no stream was stopped"


@pytest.mark.parametrize("scene", ["plain", "index"], indirect=True)
def test_a_server_hangs_and_has_forgotten_the_files_afterwards(scene):
    scene.mount.hang(READ)
    with pytest.raises(TimeoutError):
        while True:
            scene.far.next(0.3)
    held = wait_for(scene.mount.held)
    for _ in range(100):
        scene.near.next()
    assert wait_for(lambda: status(scene.daemon.socket)[1]["slow_ms"]), "status names the hang"
    scene.mount.forget()
    scene.mount.answer()
    injected(36, held)
    assert wait_for(lambda: scene.mount.stale() > 0), "the reads that hung get ESTALE"
    scene.near.close()
    scene.near = scene.attach("near", position=scene.far.batch * RING["micro"])
    assert scene.same(30), "they are repeated: the stream goes on where it was"


@pytest.mark.parametrize("scene", ["plain", "frames"], indirect=True)
def test_another_file_under_the_name_of_a_forgotten_one_is_refused(scene, place):
    """The other file has the same size and mtime."""
    for name in os.listdir(scene.files):
        path = os.path.join(scene.files, name)
        shutil.copy2(path, path + ".other")
        os.rename(path, place.file("kept", name))
        os.rename(path + ".other", path)
    scene.mount.forget()
    at = scene.far.batch
    with pytest.raises(Refused) as refused:
        while True:
            scene.far.next()
    text = refused.value.packet["text"]
    assert has(text, "not the file that tokend listed", "nothing was skipped"), text
    assert scene.far.batch - at <= RING["slots"], "no batch of the other files was served"
    injected(36, scene.mount.stale())
    for client in (scene.near, scene.far):
        client.close()
    for name in os.listdir(scene.files):
        os.rename(place.file("kept", name), os.path.join(scene.files, name))
    scene.mount.forget()
    at = scene.far.batch * RING["micro"]
    scene.near, scene.far = scene.attach("near", at), scene.attach("far", at)
    assert scene.same(30), "with the files restored, an attach at the cursor goes on"
