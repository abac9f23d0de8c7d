"""Each reply has the serial of its query, including errors and an operator's answers, and none if
the query had none. tokctl survives replies that a right daemon does not send.
"""

import contextlib
import json
import socket
import threading

import msgpack
import pytest

from lib import TOKCTL, Client, Daemon, Refused, datasets, run


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("a.bin", 30000)
    stream = {"seed": 1, "seq_len": 16, "datasets": datasets("a.bin")}
    daemon = Daemon(shared, shared.config(streams={"train": stream}))
    yield daemon
    assert daemon.stop() == 0


class Serials(Client):
    """Adds a serial to each query but hello, or to none. ask() returns errors, too."""

    def __init__(self, daemon, serials):
        self.serials, self.last = serials, None
        super().__init__(daemon.socket)

    def ask(self, **message):
        if self.serials and message["op"] != "hello":
            self.last = message["serial"] = (self.last or 0) + 1
        try:
            return super().ask(**message)
        except Refused as e:
            return e.packet


QUERIES = [  # and the reply, or the number and name of its fault
    ({"op": "describe"}, "described"),
    ({"op": "pending"}, "request"),
    ({"op": "status", "after": 0}, "session"),
    ({"op": "request", "stream": "nowhere", "kind": "drain", "args": "x"}, (11, "request")),
    ({"op": "checkpoint", "tag": "..", "cursor": b"x"}, (10, "checkpoint")),
]


@pytest.mark.parametrize("serials", [True, False], ids=["with", "without"])
def test_replies(daemon, serials):
    client = Serials(daemon, serials).attach(run="job")
    assert client.feed.get("serial") == client.last
    for query, expected in QUERIES:
        reply = client.ask(**query)
        assert reply.get("serial") == client.last, query
        op = (reply["fault"], reply["code"]) if reply["op"] == "error" else reply["op"]
        assert op == expected, reply
        if expected == "session":  # the totals follow
            total = client.hear()
            assert (total["op"], total.get("serial")) == ("status", client.last)
    operator = Serials(daemon, serials)
    asked = operator.ask(op="request", stream="train", run="job", kind="drain", args="x")
    assert (asked["op"], asked.get("serial")) == ("asked", operator.last)
    number = client.ask(op="pending")["number"]
    for outcome, left in ((1, 1), (2, 0)):
        client.tell(op="answer", number=number, outcome=outcome, text="")
        answer = operator.hear()
        assert (answer["op"], answer["waiting"]) == ("answer", left)
        assert answer.get("serial") == operator.last
    operator.close()
    client.close()


# ---- a daemon that is not right ----

ESCAPE = "/data/\x1b]0;title\x07.bin"
STATUS = {"op": "status", "after": 0, "io": "\x1bring", "slow_ms": 5000, "slow_shard": ESCAPE}
SESSION = {"op": "session", "id": 1, "stream": "train", "run": "job", "rank": 0, "world": 1}
DATASETS = [{"dataset": "a", "streams": streams, "all": 1} for streams in ([7, None], ["other"])]


@pytest.fixture
def fake(place):
    """The path of a daemon that sends these messages."""
    path = place.file("s")
    replies = {
        "hello": [{"op": "hello", "version": 1}],
        "status": [{**SESSION, "slow_ms": 9000, "slow_shard": ESCAPE}, STATUS],
        "attach": [{"op": "error", "code": "attach", "field": "stream", "text": "no"}],
        "cache": [{"op": "cache", "kind": "ls", "args": json.dumps({"datasets": DATASETS})}],
    }

    def serve():  # each connection in a thread; the next one is waited for meanwhile
        with contextlib.suppress(OSError), listening.accept()[0] as s:
            threading.Thread(target=serve, daemon=True).start()
            while data := s.recv(1 << 17):
                query = msgpack.unpackb(data)
                for reply in replies.get(query["op"], []):
                    s.send(msgpack.packb({**reply, "serial": query.get("serial", 0)}))

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield path


def test_tokctl_survives_it(fake):
    """No control character reaches the terminal. Names of streams that are no text are ignored."""
    code, out, err = run(TOKCTL, "status", "--socket", fake)
    out = out.decode()
    assert code == 0 and out.count("waits for /data/?]0;title?.bin") == 2, (out, err)
    assert not set(out) & {"\x1b", "\x07"}
    code, _, err = run(TOKCTL, "cache", "warm", "train", "--socket", fake)
    assert code == 1 and err.count("\n") == 1, err
