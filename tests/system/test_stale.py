"""A file server that forgets open files (ESTALE), with or without a hang. The daemon opens the
shard again, and continues only if it is the same file. Other streams do not notice.

Each stream on the FUSE file system has a twin, which reads the same files without it.
"""

import os
import time

import numpy
import pytest

from lib import Client, Daemon, Refused, has, status, wait_for
from lib.fuse import READ, hanging
from lib.injected import injected
from lib.shard_writers import arrow, megatron, npy, put, raw, seekable

SEQ_LEN, TOKENS, SHARDS = 256, 60_000, 3
RING = {"micro": 4, "slots": 4}

# name: (keys of the daemon, stored dtype, keys of the stream, writer)
KINDS = {
    "plain": ({}, "<u2", {}, put(".bin", raw)),
    "direct": ({"direct": True}, "<u2", {}, put(".bin", raw)),
    "pread": ({"io": "pread"}, "<u2", {}, put(".bin", raw)),
    "frames": ({}, "<u2", {}, seekable(".bin.zst", raw, 8_192)),
    "npy": ({}, "<i4", {}, put(".npy", npy)),
    "index": ({}, "<i4", {"documents": True}, megatron),
    "arrow": ({}, "<i4", {}, arrow),
}


def write_all(place, write, dtype):
    for i in range(SHARDS):
        tokens = numpy.random.default_rng([7, i]).integers(0, 30_000, TOKENS).astype(dtype)
        write(place.file("files", f"{i}"), tokens)
    return place.file("files")


class Scene:
    """A daemon with the streams "near" and "far", which are equal, and a session of each."""

    def __init__(self, place, kind):
        keys, dtype, more, write = KINDS[kind]
        self.place, self.files = place, write_all(place, write, dtype)
        self.mount = hanging(self.files, place.file("mount", ""))
        streams = {
            name: {"seed": 3, "seq_len": SEQ_LEN, **more, "datasets": [{"name": "d", "path": path}]}
            for name, path in (("near", "files"), ("far", "mount"))
        }
        self.daemon = Daemon(place, place.config(streams=streams, **keys))
        self.near = Client(self.daemon.socket).attach(stream="near", **RING)
        self.far = Client(self.daemon.socket).attach(stream="far", **RING)

    def same(self, batches):
        """Are the next batches of both streams equal?"""
        return all((self.near.next() == self.far.next()).all() for _ in range(batches))

    def end(self):
        self.near.close()
        self.far.close()
        assert self.daemon.stop() == 0, "the daemon ends with 0"

    def close(self):
        self.mount.close()


@pytest.fixture
def scene(place, request):
    made = Scene(place, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("scene", KINDS, indirect=True)
def test_a_forgotten_file_is_opened_again(scene):
    assert scene.same(30), "both streams have the same batches"
    for _ in range(5):
        before = scene.mount.stale()
        scene.mount.forget()
        assert scene.same(12), "  also after the server forgot its files"
        assert scene.mount.stale() > before, "  which a read has found out"
    injected(36, scene.mount.stale())
    assert status(scene.daemon.socket)[1]["sessions"] == 2, "no stream was stopped"
    scene.end()


def states(pid):
    """{name: state} of the daemon's control and data threads: D waits for storage."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/stat") as f:
            name, _, rest = f.read().partition(") ")
        if int(tid) == pid or "tokend-data" in name:
            found[tid] = rest.split()[0]
    return found


@pytest.mark.parametrize("scene", ["plain", "index"], indirect=True)
def test_a_server_hangs_and_has_forgotten_the_files_afterwards(scene):
    assert scene.same(30), "both streams have the same batches"
    scene.mount.hang(READ)
    ready = scene.far.slots + 1
    for _ in range(ready):
        try:
            scene.far.next(0.3)
        except TimeoutError:
            break
    assert wait_for(scene.mount.held), "reads hang"
    seen = set()
    for _ in range(100):
        scene.near.next()
        seen |= set(states(scene.daemon.pid).values())
    assert "D" not in seen, ("threads of the pool wait, not the control or data thread", seen)
    assert wait_for(lambda: status(scene.daemon.socket)[1]["slow_ms"]), "status names the hang"
    held = scene.mount.held()
    scene.mount.forget()
    scene.mount.answer()
    injected(36, held)
    assert wait_for(lambda: scene.mount.stale() > 0), "  the reads that hung get ESTALE"
    rows = Client(scene.daemon.socket).attach(
        stream="near", position=scene.far.batch * RING["micro"], **RING
    )
    assert all((rows.next() == scene.far.next()).all() for _ in range(30)), (
        "  and are repeated: the stream goes on where it was"
    )
    rows.close()
    scene.end()


def error_of(client):
    """The error that ends a session, and the number of batches before it."""
    taken = 0
    try:
        while taken < 1000:
            client.next()
            taken += 1
    except Refused as e:
        return e.packet, taken
    return {}, taken


@pytest.mark.parametrize("scene", ["plain", "frames"], indirect=True)
def test_another_file_under_the_name_of_a_forgotten_one_is_refused(scene):
    """The other file has the same size and mtime."""
    assert scene.same(30), "both streams have the same batches"
    names = sorted(os.listdir(scene.files))
    kept = scene.place.file("kept", names[0])
    for name in names:
        path, about = os.path.join(scene.files, name), os.stat(os.path.join(scene.files, name))
        other = bytearray(open(path, "rb").read())
        other[len(other) // 2] ^= 1
        os.rename(path, os.path.join(os.path.dirname(kept), name))
        with open(path, "wb") as f:
            f.write(other)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    scene.mount.forget()
    begun = time.monotonic()
    packet, taken = error_of(scene.far)
    assert packet.get("code") == "data", ("the stream stops", packet)
    assert has(packet["text"], "not the file that tokend listed", "nothing was skipped"), packet
    assert taken <= RING["slots"], ("  no batch of the other files was served", taken)
    assert time.monotonic() - begun < 10, "  at once"
    injected(36, scene.mount.stale())
    at = scene.far.batch * RING["micro"]
    scene.far.close()
    for name in names:
        os.rename(os.path.join(os.path.dirname(kept), name), os.path.join(scene.files, name))
    scene.mount.forget()
    again = Client(scene.daemon.socket).attach(stream="far", position=at, **RING)
    near = Client(scene.daemon.socket).attach(stream="near", position=at, **RING)
    assert all((near.next() == again.next()).all() for _ in range(30)), (
        "with the files restored, an attach at the cursor goes on"
    )
    again.close()
    near.close()
    scene.end()
