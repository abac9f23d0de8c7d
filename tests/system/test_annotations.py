"""The C library gives each row's document starts and loss mask. test_formats.py shows that they are
right in every format.
"""

import ctypes
import json
import os

import pytest

from lib import REPO, Daemon, has
from lib.corpus import FORMATS, corpus, plan
from lib.declarations import Batch, Options

pytestmark = pytest.mark.asan

EREFUSED = -3
MICRO, HELD = 3, 3


@pytest.fixture(scope="module")
def lib():
    lib = ctypes.CDLL(os.path.join(REPO, "build/lib/libtokend.so.1"))
    lib.tokend_why.restype = ctypes.c_char_p
    lib.tokend_loss_mask.restype = ctypes.POINTER(ctypes.c_uint8)
    lib.tokend_documents.restype = ctypes.POINTER(ctypes.c_uint32)
    return lib


@pytest.fixture
def daemon(place):
    root = str(corpus()[0] / "npy-listed")
    streams = {name: FORMATS["npy-listed"].config(root, name == "marked")
               for name in ("marked", "plain")}  # fmt: skip
    daemon = Daemon(place, place.config(streams=streams))
    yield daemon
    daemon.stop()


def attach(lib, daemon, stream):
    t, why = ctypes.c_void_p(), ctypes.create_string_buffer(1000)
    options = Options(size=ctypes.sizeof(Options), socket=daemon.socket.encode())
    options.stream, options.world, options.slots = stream.encode(), 1, 4
    options.micro_batch = MICRO
    assert not lib.tokend_attach(ctypes.byref(t), ctypes.byref(options), why, len(why)), why.value
    return t


def test_each_row_has_its_annotations(lib, daemon):
    """With several batches held; a row that does not exist has none."""
    about, shards = FORMATS["npy-listed"], corpus()[1]["npy-listed"]
    t, batch, held = attach(lib, daemon, "marked"), Batch(), []
    for number, at in enumerate(plan(daemon.config, "marked", 60)):
        if number % MICRO == 0:
            batch = Batch()
            assert lib.tokend_next(t, ctypes.byref(batch)) == 1
            held.append(batch)
        count, here = ctypes.c_uint32(), (t, ctypes.byref(batch), number % MICRO)
        starts = lib.tokend_documents(*here, ctypes.byref(count))[: count.value]
        mask = lib.tokend_loss_mask(*here)[: batch.window_tokens]
        want = about.window(shards[at["shard"]], at["offset"], batch.window_tokens)
        assert (starts, mask) == want[1:], at
        if len(held) == HELD:
            lib.tokend_release(t, ctypes.byref(held.pop(0)))
    rows = (0, MICRO - 1, MICRO, 2**32 - 1)
    some = [bool(lib.tokend_loss_mask(t, ctypes.byref(batch), row)) for row in rows]
    assert some == [True, True, False, False]
    lib.tokend_detach(t)
    t = attach(lib, daemon, "plain")
    assert lib.tokend_next(t, ctypes.byref(batch)) == 1
    assert not lib.tokend_loss_mask(t, ctypes.byref(batch), 0), "a stream without masks has none"
    lib.tokend_detach(t)


def test_a_restarted_daemon_without_masks_is_refused(lib, daemon):
    t = attach(lib, daemon, "marked")
    config = json.load(open(daemon.config))
    config["streams"]["marked"] = {**config["streams"]["plain"], "documents": True}
    daemon.kill()
    with open(daemon.config, "w") as f:
        json.dump(config, f)
    daemon.start()
    batch = Batch()
    while (code := lib.tokend_next(t, ctypes.byref(batch))) == 1:
        lib.tokend_release(t, ctypes.byref(batch))
    why = "loss_mask: the restarted daemon's config no longer has it for stream marked"
    assert code == EREFUSED and has(lib.tokend_why(t).decode(), why)
    lib.tokend_detach(t)
