"""Calls of a file system fail, once or for good, or read less than was asked for (a real FUSE file
system). One that passes is repeated. One that stays ends the stream, and no other.
"""

import errno
import os
import struct
import time

import numpy
import pytest

from lib import Client, Daemon, MODES, Refused, Witness, few_descriptors, has, mode_name, rows_at
from lib import wait_for
from lib.fuse import OPEN, READ, hanging
from lib.injected import injected
from lib.wire import DATA

SEQ_LEN, TOKENS, SHARDS = 512, 3_000, 40
DESCRIPTORS = 128  # limit of the daemon: at most 32 shards are open
RINGS = {"micro": 2, "slots": 4}
ROWS = {errno.EIO: 9, errno.EINTR: 13, errno.EAGAIN: 13, errno.ESTALE: 36}  # of the faults' table

# name: (call, error, times)
PASSING = {
    "EIO": (READ, errno.EIO, 3),
    "EINTR": (READ, errno.EINTR, 5),
    "EAGAIN": (READ, errno.EAGAIN, 3),
    "ESTALE": (READ, errno.ESTALE, 1),
    "EINTR of open()": (OPEN, errno.EINTR, 3),
    "ESTALE of open()": (OPEN, errno.ESTALE, 1),
}
# name: (call, error)
LASTING = {
    "EIO": (READ, errno.EIO),
    "ESTALE": (READ, errno.ESTALE),
    "EACCES of open()": (OPEN, errno.EACCES),
}


class Scene:
    """A daemon with the streams "train", on the mount, and "near", on a disk."""

    def __init__(self, place, io, direct):
        self.direct = direct
        for i in range(SHARDS):
            place.shard(f"near/{i:02}.bin", TOKENS)
            place.shard(f"served/{i:02}.bin", TOKENS)
            with open(place.file("served", f"{i:02}.idx"), "wb") as f:
                # Megatron's index: u16, one sequence, one document
                f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, TOKENS, 0, 0, 1))
        self.mount = hanging(place.file("served"), place.file("mount", ""))
        streams = {
            name: {"seed": 3, "seq_len": SEQ_LEN, "datasets": [{"name": "d", "path": path}]}
            for name, path in (("train", "mount"), ("near", "near"))
        }
        config = place.config(io=io, direct=direct, streams=streams)
        self.rows = {name: rows_at(config, name, 0, 4000) for name in streams}
        self.daemon = Daemon(place, config, preexec_fn=few_descriptors(DESCRIPTORS))

    def witness(self, stream="train"):
        return Witness(self.daemon, self.rows[stream], stream, run=f"of-{stream}", **RINGS)


@pytest.fixture(scope="module", params=MODES, ids=mode_name)
def scene(request, shared, uring):
    if request.param[0] == "uring" and uring:
        pytest.skip(f"io: uring: {uring}")
    made = Scene(shared, *request.param)
    yield made
    assert made.daemon.stop() == 0
    made.mount.close()


@pytest.mark.tsan  # the pool's threads, and the one that waits for them
@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_repeated(scene, name):
    call, error, times = PASSING[name]
    witness, before = scene.witness(), scene.mount.failed()
    witness.step()
    scene.mount.fail(error, call, times)
    while scene.mount.failed() < before + times:
        assert witness.step(), "no row is wrong"
    assert witness.step(20)
    injected(ROWS[error], times)
    witness.close()


@pytest.mark.tsan
def test_short_reads_are_continued(scene):
    witness, before = scene.witness(), scene.mount.failed()
    scene.mount.shorten(SEQ_LEN)
    assert witness.step(100)
    scene.mount.shorten(0)
    injected(13, scene.mount.failed() - before)
    assert scene.mount.failed() > before + 400, "each read came in parts"
    witness.close()


def rests(scene, near):
    """Each read in flight is tried three times, so the calls end seconds after the stream."""
    failed = scene.mount.failed()
    time.sleep(1.5)
    return near.step(20) and failed == scene.mount.failed()


@pytest.mark.parametrize("name", LASTING)
def test_what_stays_stops_its_stream_only(scene, name):
    call, error = LASTING[name]
    witness, near, before = scene.witness(), scene.witness("near"), scene.mount.failed()
    assert witness.step(10) and near.step(10)
    scene.mount.fail(error, call)
    with pytest.raises(Refused) as refused:
        witness.step(1000)
    packet = refused.value.packet
    assert packet["code"] == DATA and witness.wrong == 0
    assert has(packet["text"], ".bin at token ", os.strerror(error), "nothing was skipped")
    assert near.step(300), "the other stream continues"
    assert wait_for(lambda: rests(scene, near)), "it is not tried for ever"
    failed = scene.mount.failed() - before
    injected(ROWS.get(error, 9), failed)
    scene.mount.fail(0, times=0)
    witness.close()
    near.close()
    again = Client(scene.daemon.socket).attach(position=witness.checked * 2, **RINGS)
    assert numpy.array_equal(again.next(), witness.batches[witness.checked]), "nothing is lost"
    again.close()


def test_o_direct_that_is_refused_at_a_read(scene):
    """The file system accepts it in open(). Without O_DIRECT, EINVAL is an error."""
    witness = scene.witness()
    witness.step()
    noted = lambda: "its file system refuses O_DIRECT" in scene.daemon.log()
    while scene.direct and not wait_for(noted, 3):  # an index may be read instead
        before = scene.mount.failed()
        scene.mount.fail(errno.EINVAL, READ, 1)
        while scene.mount.failed() == before:
            assert witness.step()
    if scene.direct:
        assert witness.step(100), "shards are read through the page cache"
    else:
        scene.mount.fail(errno.EINVAL)
        with pytest.raises(Refused):
            witness.step(300)
    scene.mount.fail(0, times=0)
    assert witness.wrong == 0
    witness.close()
