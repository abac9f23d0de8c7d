"""Batches lent without a copy: they stay unchanged while held, and their slots come back."""

import os
import queue
import subprocess
import sys
import threading
import time

import numpy
import pytest
from lib import BIN, child_environment, wait_until
from tokend import ArgumentError, HeldError, Loader, _tokend, view

torch = pytest.importorskip("torch")

MICRO, WINDOW, SLOTS, HOLD = 4, 65, 4, 3


class Lender:
    def __init__(self, daemon, stream="train", slots=SLOTS, hold=HOLD):
        self.client = _tokend.Client(
            stream, MICRO, socket=daemon.socket, slots=slots, deadline_ms=20000
        )
        self.client.lend(hold)

    def take(self):
        self.rows = numpy.empty((2, MICRO), numpy.int64)
        at = self.rows.ctypes.data
        return self.client.next_into(0, at)

    def tensor(self):
        assert self.take() is not None
        return torch.from_dlpack(self.client.view())


def right(daemon, tensor, batch, stream="train", start=0):
    rows = daemon.plan(stream, start + batch * MICRO, MICRO)
    want = numpy.stack([daemon.tokens(row, WINDOW) for row in rows])
    return numpy.array_equal(tensor.to(torch.int64).numpy(), want)


def rings():
    """The number of rings that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return maps.read().count("/memfd:tokend-data")


def test_a_view_is_the_slot(daemon):
    lender = Lender(daemon)
    addresses = []
    for batch in range(20):
        tensor = lender.tensor()
        assert tensor.shape == (MICRO, WINDOW) and tensor.dtype == torch.uint16
        assert right(daemon, tensor, batch)
        addresses.append(tensor.data_ptr())
        assert lender.rows[0].tolist() == list(range(batch * MICRO, batch * MICRO + MICRO))
        del tensor
    assert (
        len(set(addresses)) == SLOTS and addresses[0] == addresses[SLOTS]
    )  # no copy: the same few addresses again and again


def test_tokens_of_four_bytes(daemon):
    tensor = Lender(daemon, "wide").tensor()
    assert tensor.dtype == torch.uint32 and right(daemon, tensor, 0, "wide")


def test_numpy(daemon):
    lender = Lender(daemon)
    for batch in range(10):
        assert lender.take() is not None
        array = numpy.from_dlpack(view.Lent(lender.client.view()))
        assert array.dtype == numpy.uint16 and right(
            daemon, torch.from_numpy(array.astype(numpy.int64)), batch
        )
        assert not array.flags.writeable


def test_a_held_batch_does_not_change(daemon):
    lender = Lender(daemon)
    held = [lender.tensor() for _ in range(HOLD)]
    for batch in range(HOLD, 30):
        held.append(lender.tensor())
        assert all(right(daemon, tensor, batch - HOLD + i) for i, tensor in enumerate(held))
        held.pop(0)


def test_slices_and_aliases_hold_a_batch(daemon):
    """Everything made from a view without a copy keeps its slot: a slice, an alias, an array."""
    lender = Lender(daemon, slots=64, hold=50)
    kept = [lender.tensor()[1:3, 5:9], lender.tensor().view(torch.int16), lender.tensor().numpy()]
    tokens = [torch.as_tensor(part).to(torch.int64).clone() for part in kept]
    for _ in range(40):
        lender.tensor()
    assert all(
        torch.equal(torch.as_tensor(part).to(torch.int64), was)
        for part, was in zip(kept, tokens, strict=True)
    )


def test_held_too_deep_names_the_depth_needed(daemon):
    lender = Lender(daemon, slots=8, hold=2)
    held = [lender.tensor() for _ in range(3)]
    with pytest.raises(
        HeldError, match=r"hold: the batch 3 steps back .* hold is 2; use hold=3, slots=4 or more"
    ):
        lender.take()
    held.pop(1)  # the age counts: a ring is filled in order
    with pytest.raises(HeldError, match="use hold=3"):
        lender.take()
    held.pop(0)
    held.append(lender.tensor())
    assert right(daemon, held[-1], 3)  # the refusals took nothing


def test_a_ring_that_is_too_shallow_is_refused_at_once(daemon):
    with pytest.raises(
        HeldError, match="hold: 4 held batches and the next one need more .* 4 slots; use slots=5"
    ):
        Lender(daemon, slots=4, hold=4)
    for hold in (2**32 + 1, 2**64 + 1):
        with pytest.raises(ValueError, match=f"hold: {hold}; must be 0 to"):
            Lender(daemon, slots=4, hold=hold)


def test_views_may_be_dropped_in_any_thread(daemon):
    """Other threads drop views while this one takes more: none is lost, none comes back early."""
    batches, wrong, work = 200, [], queue.Queue(maxsize=4)
    want = numpy.stack(
        [daemon.tokens(row, WINDOW) for row in daemon.plan("train", 0, batches * MICRO)]
    ).reshape(-1, MICRO, WINDOW)
    lender = Lender(daemon, slots=16, hold=12)

    def consume():
        while (item := work.get()) is not None:
            batch, tensor = item
            time.sleep(0.001 * (batch % 3))
            if not numpy.array_equal(tensor.numpy(), want[batch]):
                wrong.append(batch)
            del tensor, item

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for batch in range(batches):
        while True:
            try:
                work.put((batch, lender.tensor()), timeout=20)
                break
            except HeldError:  # a slow consumer holds an old one
                time.sleep(0.001)
    for _ in threads:
        work.put(None, timeout=20)
    for thread in threads:
        thread.join(20)
    assert wrong == []


def test_an_unused_capsule_gives_its_slot_back(daemon):
    lender = Lender(daemon)
    for _ in range(5 * SLOTS):
        assert lender.take() is not None
        lender.client.view()
    for _ in range(5 * SLOTS):
        assert lender.take() is not None  # nor is a view requested
    with pytest.raises(ArgumentError, match="view: no batch"):
        lender.client.view(), lender.client.view()


def test_views_outlive_the_loader(daemon):
    before = rings()
    lender = Lender(daemon)
    held = [lender.tensor() for _ in range(2)]
    lender.client.close()
    wait_until(
        lambda: daemon.tokctl("status", "--json", "--socket", daemon.socket)[-1]["sessions"] == 0,
        "the session's end",
    )
    assert rings() == before + 1
    assert right(daemon, held[0], 0) and right(daemon, held[1], 1)
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert rings() == before


def test_views_outlive_a_seek_and_the_daemon(daemon):
    before = rings()
    lender = Lender(daemon)
    first = lender.tensor()
    lender.client.seek(_tokend.cursor_seek(lender.client.cursor(), 400), 0, 1, MICRO)
    second, third = lender.tensor(), lender.tensor()
    daemon.kill()
    assert right(daemon, first, 0) and right(daemon, second, 100) and right(daemon, third, 101)
    del second
    daemon.start()
    batch, later = 102, lender.tensor()
    while lender.client.shape()["reattached"] == 0:  # published batches come first
        later, batch = lender.tensor(), batch + 1
    assert rings() == before + 3
    assert right(daemon, first, 0) and right(daemon, third, 101) and right(daemon, later, batch)
    del first, third, later
    lender.tensor()
    assert rings() == before + 1


def test_a_forked_child_does_not_release_a_view(daemon):
    lender = Lender(daemon)
    tensor = lender.tensor()
    child = os.fork()
    if child == 0:
        try:
            del tensor  # its slot belongs to the parent
            lender.client.close()
            lender.take()
        except _tokend.ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert right(daemon, tensor, 0)
    del tensor
    for batch in range(1, 3 * SLOTS):
        assert right(daemon, lender.tensor(), batch)


# ---- a trainer's own copies of a view to a GPU: the fake libcuda.so.1, in another process ----

JOB = """
import ctypes as c, sys, torch
from tokend import _tokend

path, pins, MICRO, BYTES = sys.argv[1], sys.argv[2] == "pins", 4, 4 * 65 * 2
cu = c.CDLL("libcuda.so.1")
context, stream = c.c_void_p(), c.c_void_p()
assert cu.cuInit(0) == 0 and cu.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0 and cu.cuStreamCreate(c.byref(stream), 1) == 0
client = _tokend.Client("train", MICRO, socket=path, slots=4)
client.lend(1)
if pins:
    client.pin(0)
else:  # registered behind our back: nothing of ours waits for the copies
    tensor, rows = None, torch.empty((2, MICRO), dtype=torch.int64)
    ring = next(line for line in open("/proc/self/maps") if "/memfd:tokend-data" in line)
    begin, end = (int(word, 16) for word in ring.split()[0].split("-"))
    assert cu.cuMemHostRegister_v2(c.c_void_p(begin), c.c_size_t(end - begin), 3) == 0
rows, arrived = torch.empty((2, MICRO), dtype=torch.int64), []
for _ in range(30):
    at = c.c_uint64()
    assert cu.cuMemAlloc_v2(c.byref(at), c.c_size_t(BYTES)) == 0
    assert client.next_into(0, rows.data_ptr())
    tensor = torch.from_dlpack(client.view())
    assert (
        cu.cuMemcpyHtoDAsync_v2(at, c.c_void_p(tensor.data_ptr()), c.c_size_t(BYTES), stream) == 0
    )
    arrived.append(at.value)
    tensor = None
assert cu.cuStreamSynchronize(stream) == 0
sys.stdout.buffer.write(b"".join(c.string_at(at, BYTES) for at in arrived))
if not pins:
    cu.cuMemHostUnregister(c.c_void_p(begin))
client.close()
assert cu.fakeRegistered() == 0 and cu.fakeFaults() == 0
"""


def copied(daemon, how, job=JOB, **environment):
    env = child_environment(
        LD_LIBRARY_PATH=str(BIN.parent / "check" / "fake"), FAKE_CUDA_DELAY_MS="10", **environment
    )
    done = subprocess.run(
        [sys.executable, "-c", job, daemon.socket, how],
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    got = torch.from_numpy(numpy.frombuffer(done.stdout, numpy.uint16).astype(numpy.int64)).view(
        -1, MICRO, WINDOW
    )
    assert len(got) == (30 if job is JOB else 1)
    return [i for i, batch in enumerate(got) if not right(daemon, batch, i)]


@pytest.mark.parametrize("environment", [{}, {"FAKE_CUDA_NO_RECORD": "1"}], ids=["event", "sync"])
def test_a_slot_waits_for_copies_on_other_streams(daemon, environment):
    """A registered ring, copies from a view on the trainer's stream, and the view dropped before
    they are made.
    """
    assert copied(daemon, "pins", **environment) == []


def test_a_slot_that_does_not_wait_gives_wrong_copies(daemon):
    """The negative control of the test before."""
    assert len(copied(daemon, "does not")) > 1


LAST_JOB = (
    JOB.split("rows, arrived =")[0]
    + """
rows, at = torch.empty((2, MICRO), dtype=torch.int64), c.c_uint64()
assert cu.cuMemAlloc_v2(c.byref(at), c.c_size_t(BYTES)) == 0
assert client.next_into(0, rows.data_ptr())
tensor = torch.from_dlpack(client.view())
client.close()
assert cu.cuMemcpyHtoDAsync_v2(at, c.c_void_p(tensor.data_ptr()), c.c_size_t(BYTES), stream) == 0
tensor = None  # and with it goes the ring
assert cu.cuStreamSynchronize(stream) == 0
sys.stdout.buffer.write(c.string_at(at.value, BYTES))
assert cu.fakeRegistered() == 0 and cu.fakeFaults() == 0
"""
)


@pytest.mark.parametrize("environment", [{}, {"FAKE_CUDA_NO_RECORD": "1"}], ids=["event", "sync"])
def test_the_last_view_of_a_closed_loader_waits_for_its_copies(daemon, environment):
    """The ring is freed with the last view, but not before the copies queued from it are made."""
    assert len(copied(daemon, "pins", LAST_JOB, **environment)) == 0


SEEK_JOB = (
    LAST_JOB.split("client.close()")[0]
    + """
assert cu.cuMemcpyHtoDAsync_v2(at, c.c_void_p(tensor.data_ptr()), c.c_size_t(BYTES), stream) == 0
tensor = None
client.seek(_tokend.cursor_seek(client.cursor(), 400), 0, 1, MICRO)
for _ in range(100):
    assert client.next_into(0, rows.data_ptr())
    if open("/proc/self/maps").read().count("/memfd:tokend-data") == 1:
        break
    __import__("time").sleep(0.01)
else:
    sys.exit("the ring of before the seek is still there")
sys.stdout.buffer.write(c.string_at(at.value, BYTES))
client.close()
assert cu.fakeRegistered() == 0 and cu.fakeFaults() == 0
"""
)


@pytest.mark.parametrize("environment", [{}, {"FAKE_CUDA_NO_RECORD": "1"}], ids=["event", "sync"])
def test_the_ring_before_a_seek_is_freed_after_its_last_copy(daemon, environment):
    assert len(copied(daemon, "pins", SEEK_JOB, **environment)) == 0


# ---- Loader(view=True) ----


def test_a_loader_lends(daemon):
    with Loader(
        "train",
        MICRO,
        socket=daemon.socket,
        rank=0,
        world=1,
        slots=SLOTS,
        view=True,
        hold=HOLD,
        provenance=True,
    ) as loader:
        for number, batch in zip(range(20), loader, strict=False):
            assert right(daemon, batch["tokens"], number) and "labels" not in batch
            assert batch["position"].tolist() == list(range(number * MICRO, number * MICRO + MICRO))
            assert loader.position == (number + 1) * MICRO and batch["offset"].shape == (MICRO,)
        held = [batch, *(next(loader) for _ in range(HOLD))]
        with pytest.raises(HeldError, match=f"use hold={HOLD + 1}, slots={HOLD + 2}"):
            next(loader)
        del batch, held[:2]
        loader.seek(position=400)
        assert right(daemon, next(loader)["tokens"], 100)
        last = next(loader)
    assert right(daemon, last["tokens"], 101)  # the loader is closed


def test_numpy_loaders_lend(daemon):
    with Loader(
        "wide",
        MICRO,
        socket=daemon.socket,
        rank=0,
        world=1,
        framework="numpy",
        slots=SLOTS,
        view=True,
        hold=1,
    ) as loader:
        for number, batch in zip(range(10), loader, strict=False):
            assert batch["tokens"].dtype == numpy.uint32
            assert right(
                daemon, torch.from_numpy(batch["tokens"].astype(numpy.int64)), number, "wide"
            )


def test_options_that_need_copies_are_refused(daemon):
    def refused(**wanted):
        with pytest.raises((ValueError, HeldError)) as error:
            Loader("train", MICRO, socket=daemon.socket, rank=0, world=1, slots=SLOTS, **wanted)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "hold: None is not a number of batches" in refused(view=True)
    assert "hold: 0 is not" in refused(view=True, hold=0)
    assert "hold: 3 without view=True" in refused(hold=3)
    assert "use slots=5" in refused(view=True, hold=4)
    assert "without dtype, cp;" in refused(
        view=True, hold=1, dtype=torch.int32, cp=(0, 2, "zigzag")
    )
