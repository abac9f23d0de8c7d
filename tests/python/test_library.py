"""libtokend by ctypes: calls that the Python loader never makes, because it copies every batch."""

import ctypes as c
import os
import random
import re
import time

import numpy
import pytest
from lib import BIN, REPO, wait_until
from lib.declarations import Batch, Options
from loading import rows_of
from test_state import rings

EARGUMENT, EHELD, EFORKED, EAGAIN = -1, -5, -8, -9
HEADER = REPO / "client/lib/tokend.h"
# (name, parameters after the handle) of the functions that return errors
FALLIBLE = re.compile(
    r"\bint(?:64_t)? (tokend_(?!forked|lost)\w+)\(\s*(?:const )?struct tokend \*t(,.*?)?\);", re.S
)
GONE = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_uint64)


@pytest.fixture(scope="module")
def library():
    lib = c.CDLL(str(BIN.parent / "lib/libtokend.so.1"))
    lib.tokend_why.restype = c.c_char_p
    return lib


def options_of(socket, **more):
    base = {"size": c.sizeof(Options), "socket": socket, "stream": b"train", "world": 1}
    return Options(**{**base, "micro_batch": 4, **more})


class Handle:
    """An attached handle; its methods are the library's functions."""

    def __init__(self, lib, daemon, **more):
        self.lib, self.t = lib, c.c_void_p()
        o = options_of(daemon.socket.encode(), **more)
        why = c.create_string_buffer(1000)
        self.error = lib.tokend_attach(c.byref(self.t), c.byref(o), why, len(why))
        self.why_not = why.value.decode()

    def __enter__(self):
        assert self.error == 0, self.why_not
        return self

    def __exit__(self, *exception):
        self.lib.tokend_detach(self.t)

    def why(self):
        return self.lib.tokend_why(self.t).decode()

    def next(self, function="tokend_next"):
        batch = Batch()
        r = getattr(self.lib, function)(self.t, c.byref(batch))
        return batch if r == 1 else r

    def take(self):
        batch = self.next()
        assert isinstance(batch, Batch), self.why()
        return batch

    def release(self, batch):
        self.lib.tokend_release(self.t, c.byref(batch))


def test_batches_are_released_in_any_order_and_unchanged_until_then(library, served):
    chance = random.Random(5)
    with Handle(library, served, slots=16) as handle:
        for _ in range(200):
            batches = [handle.take() for _ in range(chance.randrange(1, 16))]
            held = [(batch, batch.array().copy()) for batch in batches]
            chance.shuffle(held)
            for batch, tokens in held:
                assert numpy.array_equal(batch.array(), tokens)
                handle.release(batch)
        assert handle.why() == ""
        handle.release(batch)
        assert "already released" in handle.why()
        assert handle.take().position == batches[-1].position + 4


@pytest.mark.parametrize("function", ["tokend_next", "tokend_try_next"])
def test_one_free_slot_is_enough_and_none_is_an_error(library, served, function):
    """A client that holds all slots but one still gets the next batch, waiting or polling."""
    with Handle(library, served, slots=4) as handle:
        held = [handle.take() for _ in range(3)]
        for _ in range(200):
            deadline = time.monotonic() + 10
            while not isinstance(batch := handle.next(function), Batch):
                assert batch == EAGAIN and time.monotonic() < deadline, batch
            held.append(batch)
            handle.release(held.pop(0))
        held.append(handle.take())
        assert handle.next(function) == EHELD and "slots: all 4" in handle.why()
        handle.release(held[2])  # the oldest batch still blocks the ring
        assert handle.next(function) == EHELD
        handle.release(held[0])
        assert handle.take().position == 204 * 4


def test_a_held_batch_outlives_the_daemon(library, daemon):
    plan = daemon.plan("train", 0, 4 * 75)

    with Handle(library, daemon, slots=16) as handle:
        held, before = [], rings() - 2
        for generation in range(3):
            batches = [handle.take() for _ in range(5)]
            daemon.kill()
            daemon.start()
            for batch in batches[:2]:
                handle.release(batch)
            held += batches[2:]
            for step in range(20):  # more than the dead daemon's ring could contain
                batch = handle.take()
                assert batch.position == 4 * (25 * generation + 5 + step)
                handle.release(batch)
            for batch in held:
                want = rows_of(daemon, plan[batch.position : batch.position + 4])
                assert numpy.array_equal(batch.array(), want)
        assert rings() == before + 8
        for batch in reversed(held):
            handle.release(batch)
        assert rings() == before + 2


def test_try_next_never_waits_and_finds_a_new_daemon(library, daemon):
    with Handle(library, daemon, slots=4) as handle:
        daemon.freeze()
        taken = 0
        while isinstance(batch := handle.next("tokend_try_next"), Batch):
            handle.release(batch)
            taken += 1
        assert batch == EAGAIN
        daemon.kill()
        assert handle.next("tokend_try_next") == EAGAIN
        daemon.start()
        found = [EAGAIN]
        wait_until(
            lambda: found.append(handle.next("tokend_try_next")) or found[-1] != EAGAIN, "a batch"
        )
        assert found[-1].position == 4 * taken


def test_impossible_options_are_refused(library, served):
    for options, text in (
        ({"size": 8}, "size: 8"),
        ({"tag": b"x", "start_at_position": 1}, "start: 2 of cursor, tag and position"),
        ({"stream": None}, "stream: is missing"),
    ):
        handle = Handle(library, served, **options)
        assert handle.error == EARGUMENT and text in handle.why_not and not handle.t


def test_a_call_that_waits_warns_and_can_be_ended(library, directory):
    """After 2 s the callback gets one line; a result other than 0 ends the wait."""
    said = []

    def warn(context, line):
        said.append((context, line.decode()))
        return 1

    callback = dict(Options._fields_)["warn"](warn)
    o = options_of(bytes(directory / "none"), connect_ms=60_000, warn=callback, warn_context=5)
    t = c.c_void_p()
    assert library.tokend_attach(c.byref(t), c.byref(o), None, 0) == EAGAIN
    ((context, line),) = said
    assert context == 5 and re.search(rf"waiting \d s for a daemon at {directory}/none \(", line)


def test_a_later_versions_larger_struct_is_accepted_if_its_rest_is_0(library, served):
    class Later(c.Structure):
        _fields_ = [("options", Options), ("more", c.c_uint64)]

    for more, expected in ((0, 0), (1, EARGUMENT)):
        o = Later(options_of(served.socket.encode(), size=c.sizeof(Later)), more)
        t = c.c_void_p()
        assert library.tokend_attach(c.byref(t), c.byref(o), None, 0) == expected
        library.tokend_detach(t)


@pytest.mark.parametrize("held", [True, False])
def test_no_function_of_a_forked_child_acts_on_its_copy(library, served, tmp_path, held):
    """Each one that may fail does. The edit before the fork can still be undone in the parent."""
    calls, path, gone = FALLIBLE.findall(HEADER.read_text()), tmp_path / "record", []
    forget, base, size = GONE(lambda *_: gone.append(1)), c.c_void_p(), c.c_uint64()
    with Handle(library, served) as handle:
        assert library.tokend_record(handle.t, bytes(path)) == 0
        batch = handle.take()
        assert library.tokend_memory(handle.t, c.byref(base), c.byref(size), forget, None) == 1
        if not held:
            handle.release(batch)
        assert library.tokend_obey(handle.t, b"skip", b"samples 80\n", None) == 0
        written, child = path.read_bytes(), os.fork()
        if child == 0:
            some = c.create_string_buffer(1 << 17)
            told = {}
            for name, parameters in calls:
                each = re.sub(r"(\*\w*\))\(.*?\)", r"\1", parameters).split(",")[1:]
                arguments = [some if "*" in one else c.c_uint64(1) for one in each]
                told[name] = getattr(library, name)(handle.t, *arguments)
            handle.release(batch)
            library.tokend_detach(handle.t)
            os._exit(set(told.values()) != {EFORKED} or len(told) < 15 or gone != [])
        assert os.waitpid(child, 0)[1] == 0
        assert path.read_bytes() == written
        assert library.tokend_undo(handle.t) == 1
        handle.release(batch)
        assert [handle.take().position for _ in range(3)] == [4, 8, 12]
