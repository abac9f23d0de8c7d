"""A loader waits for a daemon that is starting, and for memory and connections in use. A mix or
skip never waits.
"""

import contextlib
import os
import re
import resource
import signal
import socket
import threading
import time

import numpy
import pytest
import tokend
from lib import few_descriptors, status, wait_until
from lib.injected import injected
from lib.users import As
from lib.stock import StockDaemon, another_daemon
from job import Job
from test_control import FOR_EVER, answer, ask, gap
from tokend import _tokend

SLOTS = 4


def client(daemon, **more):
    arguments = {"slots": SLOTS, "deadline_ms": 20000, **more}
    return _tokend.Client("train", 4, socket=daemon.socket, **arguments)


def take(client):
    """The positions of the next batch."""
    rows = numpy.empty((2, 4), numpy.int64)
    version, fields = client.shape()["version"], [row.ctypes.data for row in rows]
    found = client.look_into(version, 0, 8, 0, 0, 8, 0, 0, *fields)
    client.takes = found[1], False
    return rows[0].tolist()


def limit_memory(daemon, rings, **more):
    """Restarts the daemon with memory for exactly @rings rings of client()."""
    in_use = lambda: status(daemon.socket)[1]["memory_bytes"]
    empty = in_use()
    one = client(daemon, **more)
    ring = in_use() - empty
    one.close()
    daemon.stop()
    daemon.config.write_text(daemon.config.read_text().replace("64MiB", str(empty + rings * ring)))
    daemon.start()


@contextlib.contextmanager
def later(seconds, act):
    thread = threading.Timer(seconds, act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextlib.contextmanager
def once_warned(act, text):
    """Calls act() once a warning came, which must be @text."""
    with pytest.warns(RuntimeWarning, match=text) as said:
        warned = lambda: wait_until(lambda: len(said), "a warning") or act()
        thread = threading.Thread(target=warned)
        thread.start()
        yield said
        thread.join()


def test_a_first_attach_waits_for_memory_in_use(daemon):
    limit_memory(daemon, 2)
    others = [client(daemon) for _ in range(2)]
    text = r"waiting \d s for a session: .*; trying for another 1\d s"
    with once_warned(others[0].close, text):
        late = client(daemon)
    assert take(late) == [0, 1, 2, 3]
    injected(44)


def test_a_refusal_is_immediate_or_names_its_reason_at_the_deadline(daemon):
    limit_memory(daemon, 1)
    begin = time.monotonic()
    with pytest.raises(tokend.RefusedError, match="a ring of 4096 slots needs"):
        client(daemon, slots=4096)  # it never fits
    assert time.monotonic() - begin < 10
    other, begin = client(daemon), time.monotonic()
    with pytest.raises(tokend.RefusedError, match=r"raise memory: .*micro_batch \(tried for \d s"):
        client(daemon, deadline_ms=1200)
    assert time.monotonic() - begin >= 1.2
    assert take(other) == [0, 1, 2, 3]
    injected(44)


def test_a_connection_too_many_waits_for_one_that_ends(daemon):
    daemon.stop()
    daemon.start(preexec_fn=few_descriptors(64))
    held = []
    with pytest.raises(tokend.RefusedError, match="LimitNOFILE"):
        while len(held) < 10:
            held.append(client(daemon, deadline_ms=500))
    with later(1.0, held[0].close):
        late = client(daemon)
    assert take(late) == [0, 1, 2, 3]
    injected(44)


def test_a_process_without_descriptors_is_told_so_and_goes_on_with_more(daemon):
    """There is one for a connection, and none for a feed; with the lost session's, one of two."""
    ours = client(daemon, deadline_ms=500)
    rows = take(ours)
    daemon.kill()
    daemon.start()
    few, limits = os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(few)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few + 1, limits[1]))
    try:
        with pytest.raises(tokend.ResourceError, match="Too many open files"):
            client(daemon)
        with pytest.raises(tokend.ResourceError, match="Too many open files"):
            while True:
                rows += take(ours)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert rows + take(ours) == list(range(len(rows) + 4))


def test_a_loader_made_before_its_daemon_waits_for_it(directory):
    """The socket's path need not be UTF-8."""
    daemon, path = StockDaemon(directory), os.fsencode(directory / "link") + b"\xff"
    os.symlink(daemon.socket, path)
    with once_warned(daemon.start, r"waiting \d s for a daemon at .*/link\uFFFD") as said:
        loader = tokend.Loader("train", 4, socket=path, rank=0, world=1, framework="numpy")
    assert {warning.filename for warning in said} == {__file__}, "the user's line"
    with loader:
        assert next(loader)["position"].tolist() == [0, 1, 2, 3]
    injected(44)
    daemon.kill()


def test_the_wait_for_a_daemon_that_listens_is_longer_than_without_one(daemon):
    daemon.freeze()
    back = lambda: daemon.signal(signal.SIGCONT)
    with once_warned(back, r"waiting \d s for .* not answer .is it starting"):
        late = client(daemon, connect_ms=100)
    assert take(late) == [0, 1, 2, 3]
    injected(44)


def test_a_slow_batch_is_warned_of_once_a_minute_and_when_it_comes(daemon):
    ours, rows = client(daemon), []
    with pytest.warns(RuntimeWarning) as said:
        while ours.shape()["waited_s"] < 5:  # a busy machine may take long to empty the ring
            daemon.freeze()
            with later(3, lambda: daemon.signal(signal.SIGCONT)):
                rows.extend(take(ours)[0] for _ in range(2 * SLOTS))
    first, over = (str(warning.message) for warning in said)
    slow = r"stream train: waiting [2-9] s for position \d+: the daemon at .*/socket"
    assert re.match(f"tokend: {slow} .*; see tokctl status$", first), first
    assert re.match(r"tokend: socket: waited \d+ s for the daemon at .*/socket; goes on$", over)
    assert rows == [*range(0, 4 * len(rows), 4)]


def test_a_daemon_that_is_silent_is_waited_for_until_the_deadline(directory):
    path = str(directory / "silent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path)
        silent.listen()
        begin = time.monotonic()
        with pytest.raises(tokend.ConnectError, match="accepts connections, but does not answer"):
            tokend.Loader("train", 4, socket=path, rank=0, world=1, deadline=0.5, framework="numpy")
        assert time.monotonic() - begin < 10  # an answer may take 30 s


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_directory_that_one_may_not_enter_is_named(daemon):
    closed = daemon.directory / "closed"
    closed.mkdir(mode=0o700)
    said = f"uid 65534 may not enter directory {closed}; have its owner allow that"
    daemon.directory.chmod(0o755)
    os.chmod(daemon.socket, 0o600)
    for path, match in ((closed / "in/socket", said), (daemon.socket, "may not write to this")):
        with As(65534), pytest.raises(tokend.ConnectError, match=match):
            tokend.Loader("train", 4, socket=path, rank=0, world=1)


# ---- an operator's edits ----


def test_an_edit_needs_no_more_memory(daemon):
    """`memory:` has room for two rings. Both are in use, and each is replaced again and again."""
    limit_memory(daemon, 2)
    ranks = [client(daemon, run="job", rank=rank, world=2) for rank in range(2)]
    assert [take(rank) for rank in ranks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    place = 8
    for _ in range(5):
        place += 80
        assert [rank.obey("skip", "samples 80") for rank in ranks] == [place] * 2
        assert [take(rank)[0] for rank in ranks] == [place, place + 4]
        place += 8
    wait_until(lambda: len(status(daemon.socket)[0]) == 2, "the end of the rings that were left")
    with pytest.raises(tokend.RefusedError, match="raise memory:"):
        client(daemon, run="third", deadline_ms=1000)


def test_an_edit_does_not_wait_for_memory_and_is_taken_back_without_it(daemon):
    """And without a daemon."""
    limit_memory(daemon, 1)
    ours = client(daemon)
    got = take(ours)
    assert ours.obey("skip", "samples 800") == 804
    with pytest.raises(tokend.ArgumentError, match="does not save"):
        ours.obey("drain", "")  # changes nothing
    ours.undo()
    got += take(ours)
    ours.obey("mix", "weight 1 code\n")
    daemon.kill()
    ours.undo()  # does not look for a daemon
    daemon.start()
    other, begin = client(daemon, run="other"), time.monotonic()
    with pytest.raises(tokend.RefusedError, match="raise memory:"):
        ours.obey("skip", "samples 100")
    assert time.monotonic() - begin < 10
    with later(1.0, other.close):  # next() waits
        for _ in range(3 * SLOTS):
            got += take(ours)
    assert got == list(range(len(got)))
    assert ours.position == len(got)


def test_an_edit_without_memory_on_one_node_is_carried_out_on_none(daemon):
    """The other node still has its ring, and takes the edit back without memory for another one."""
    with another_daemon() as other:
        limit_memory(daemon, 1, slots=0)
        limit_memory(other, 1, slots=0)
        sockets = [daemon.socket, other.socket]
        with Job(daemon.directory, sockets, steps=FOR_EVER, pause=0.1, tells="acting") as job:
            job.wait_for_steps(20)
            other.freeze()  # its session has batches for 64 steps, but cannot get another ring
            tokctl = ask(daemon, "skip", "--samples", 100)
            wait_until(lambda: job.of(1, "acting"), "the edit on the node with the stopped daemon")
            os.kill(job.processes[1].pid, signal.SIGSTOP)
            other.kill()
            other.start()
            greedy = client(other, run="greedy", slots=0)
            begin = time.monotonic()
            os.kill(job.processes[1].pid, signal.SIGCONT)
            assert "process 1 of 2: slots: a ring of 64 slots needs" in answer(tokctl, status=1)
            assert time.monotonic() - begin < 30
            greedy.close()
            answer(ask(daemon, "skip", "--samples", 1000))
            answer(ask(daemon, "drain"))
            job.wait()
        assert len(gap(job.positions())) == 1000


@pytest.mark.parametrize("text", ["the disk is full", "lone \udc80 byte, € " * 100], ids=len)
def test_a_failure_in_the_loop_reaches_the_operator(daemon, text):
    """An answer has at most 1,023 bytes. Longer texts are cut at the end of a character."""
    loader = tokend.Loader("train", 4, socket=daemon.socket, run="job", rank=0, world=1)
    with pytest.raises(OSError, match=text[:20]), loader:
        tokctl = ask(daemon, "drain")
        wait_until(lambda: loader.control() is not None, "the request")
        raise OSError(text)
    got = answer(tokctl, status=1)
    assert text[:300].encode(errors="replace").decode() in got
