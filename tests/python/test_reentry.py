"""A signal's handler runs in the thread that waits: what it may ask of the same client, and that
the rest is refused, not waited for.
"""

import signal

import numpy
import pytest
from tokend import Error, _tokend


def interrupted(daemon, handler):
    """What comes of a next() that waits for the daemon while @handler(client) is called by a
    signal; and the client.
    """
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


def test_a_handler_may_ask_where_we_are(daemon):
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
def test_a_handler_cannot_wait_within_a_wait(daemon, call):
    with pytest.raises(Error, match=r"busy: .* signal"):
        interrupted(daemon, call)
