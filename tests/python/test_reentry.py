"""A signal handler runs in the thread that waits: it may ask for the state, and other calls are
refused.
"""

import signal

import numpy
import pytest
from tokend import Error, _tokend


def interrupted(daemon, handler):
    """Returns the result of a next() while a signal calls @handler(client), and the client."""
    client = _tokend.Client("train", 4, socket=daemon.socket, slots=2, deadline_ms=20000)
    rows = numpy.empty((2, 4), numpy.int64)
    assert client.next_into(0, rows.ctypes.data)
    daemon.freeze()
    former = signal.signal(signal.SIGALRM, lambda *_: handler(client))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        for _ in range(10):
            client.next_into(0, rows.ctypes.data)
    finally:
        signal.signal(signal.SIGALRM, former)
        daemon.signal(signal.SIGCONT)
        client.close()


class Enough(Exception):
    pass


def test_a_handler_may_ask_for_the_state(daemon):
    def handler(client):
        assert client.position() == client.taken() > 0 and client.cursor()
        raise Enough

    with pytest.raises(Enough):
        interrupted(daemon, handler)


@pytest.mark.timeout(30, method="thread")
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.checkpoint("now"),
        lambda client: client.attend(),
        lambda client: client.close(),
    ],
)
def test_a_handler_may_not_wait(daemon, call):
    with pytest.raises(Error, match=r"busy: .* signal"):
        interrupted(daemon, call)
