"""Bugs that other loaders had, one test each: orders that repeat, documents that vanish, resumes
that are not exact or not quick.
"""

import struct

import numpy
import pytest
from loading import check_run, make

import tokend
from lib import TOKCTL, Daemon, run

BIJECTIONS = [4**4 + 1, 4**8 + 1, 4**8]  # windows; the first two are one more than a power of 4
WINDOW = 4


@pytest.mark.parametrize("windows", BIJECTIONS)
def test_every_epoch_has_every_window_once_in_another_order(place, windows):
    """An order's cipher works on a power of 4: one window more was lost or repeated elsewhere. And
    an order without the epoch in its key is the same in every epoch.
    """
    numpy.arange(windows * WINDOW, dtype="<u4").tofile(place.file("a.bin"))
    stream = {"seed": 7, "seq_len": WINDOW, "extra": 0, "epochs": 2}
    stream["datasets"] = [{"name": "d", "path": "a.bin", "dtype": "u32"}]
    daemon = Daemon(place, place.config(streams={"train": stream}))
    code, out, err = run(
        *(TOKCTL, "cat", "train", "--socket", daemon.socket, "--rank", 0, "--world", 1),
        *("--micro", 64),
    )
    assert code == 0, err
    rows = numpy.frombuffer(out, "<u4").reshape(-1, WINDOW)[: 2 * windows]
    served = rows[:, 0] // WINDOW
    assert (rows == served[:, None] * WINDOW + numpy.arange(WINDOW)).all()
    first, second = served[:windows], served[windows:]
    for epoch in (first, second):
        assert numpy.array_equal(numpy.sort(epoch), numpy.arange(windows))
    assert (first == second).sum() < 20, "as many as by chance"
    assert daemon.stop() == 0


def test_an_empty_document_leaves_its_neighbours(place):
    """Megatron's index may have documents without tokens."""
    lengths = [30, 0, 50, 0, 0, 48, 1, 0, 128]
    tokens = numpy.arange(sum(lengths), dtype="<u2")
    tokens.tofile(place.file("web", "a.bin"))
    n = len(lengths)
    at = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]]) * 2
    with open(place.file("web", "a.idx"), "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1))
        f.write(struct.pack(f"<{n}i", *lengths) + struct.pack(f"<{n}q", *at))
        f.write(struct.pack(f"<{n + 1}q", *range(n + 1)))
    stream = {"seed": 7, "seq_len": 32, "extra": 0, "epochs": 1, "documents": True}
    stream["datasets"] = [{"name": "web", "path": "web", "shuffle": "none"}]
    daemon = Daemon(place, place.config(streams={"train": stream}))
    begins = {0, 30, 80, 128, 129}
    with make(daemon, documents=True, framework="numpy") as loader:
        seen = list(loader)
    rows = numpy.concatenate([batch["input_ids"] for batch in seen])[: len(tokens) // 32]
    assert numpy.array_equal(rows.ravel(), tokens[: rows.size]), "no token is lost"
    places = numpy.concatenate([batch["position_ids"] for batch in seen])[: len(rows)]
    found = {int(i) for i in numpy.flatnonzero(places.ravel() == 0)}
    assert found == {b for b in begins if b < rows.size} | set(range(0, rows.size, 32))
    assert daemon.stop() == 0


def test_a_resume_is_exact_at_any_position(daemon):
    """Not rounded down to a batch, a block or a shard."""
    for taken in (1, 37, 63, 1023, 1025):
        with make(daemon, micro=1, start=taken) as loader:
            check_run(daemon, loader, 3, start=taken, micro=1)
            state = loader.state_dict()
        with make(daemon, micro=8) as loader:
            loader.load_state_dict(state)
            assert loader.position == taken + 3
            check_run(daemon, loader, 2, start=taken + 3, micro=8)


def test_nothing_is_lost_with_the_ranks_that_vanish(daemon):
    """No part of a job's state belongs to one rank."""
    states = []
    for rank in range(6):
        with make(daemon, rank=rank, world=6) as loader:
            check_run(daemon, loader, 5, rank=rank, world=6)
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    for rank in range(2):
        with make(daemon, rank=rank, world=2) as loader:
            loader.load_state_dict(states[0])
            check_run(daemon, loader, 5, start=5 * 6 * 4, rank=rank, world=2)


def test_new_weights_in_the_config_change_no_position_of_a_run(daemon):
    """They would serve samples again that the run has had, and never serve others."""
    with make(daemon) as loader:
        check_run(daemon, loader, 100)
        state = loader.state_dict()
    cursor = tokend.Cursor(state["cursor"])
    old = daemon.plan("train", 0, 3000)
    daemon.stop()
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace("0.7", "0.2").replace("0.3", "0.8"))
    daemon.start()
    assert daemon.plan("train", 0, 3000, bytes(cursor)) == old != daemon.plan("train", 0, 3000)
    with make(daemon) as loader:
        loader.load_state_dict(state)
        check_run(daemon, loader, 100, start=400, cursor=bytes(cursor))


def test_a_resume_reads_only_what_it_serves(daemon):
    """A resume far into a run does not read, and throw away, what came before."""
    with make(daemon, slots=4, start=10**12) as loader:
        check_run(daemon, loader, 2, start=10**12)
        (session,) = daemon.tokctl("status", "--socket", daemon.socket, "--json")[:-1]
        assert session["published"] <= 2 + 4
