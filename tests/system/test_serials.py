"""Each reply has the serial of its query, including errors and an operator's answers, and none if
the query had none.
"""

import pytest

from lib import Client, Daemon, Refused, datasets


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("a.bin", 30000)
    stream = {"seed": 1, "seq_len": 16, "datasets": datasets("a.bin")}
    daemon = Daemon(shared, shared.config(streams={"train": stream}))
    yield daemon
    assert daemon.stop() == 0


class Serials(Client):
    """Adds a serial to queries of the kinds in @numbered."""

    def __init__(self, path, *numbered):
        self.numbered = numbered
        self.last = 0
        super().__init__(path)

    def ask(self, **message):
        if message["op"] in self.numbered:
            self.last += 1
            message["serial"] = self.last
        return super().ask(**message)


def ask(client, **message):
    try:
        return client.ask(**message)
    except Refused as e:
        return e.packet


QUERIES = [
    ({"op": "describe"}, "described"),
    ({"op": "pending"}, "request"),
    ({"op": "status", "after": 0}, "session"),
    ({"op": "cancel", "number": 1}, "error"),
    ({"op": "request", "stream": "nowhere", "kind": "drain", "args": "x"}, "error"),
    ({"op": "checkpoint", "tag": "..", "cursor": b"x"}, "error"),
    ({"op": "checkpoint", "tag": "t", "cursor": b"x"}, "error"),
]


@pytest.mark.parametrize("serials", [True, False], ids=["with", "without"])
def test_replies(daemon, serials):
    ops = {query["op"] for query, _ in QUERIES} | {"attach"}
    client = Serials(daemon.socket, *(ops if serials else ())).attach()
    assert client.feed.get("serial") == (1 if serials else None)
    for query, expected in QUERIES:
        reply = ask(client, **query)
        assert (reply["op"], reply.get("serial")) == (expected, client.last or None), query
        if expected == "session":  # the totals follow
            total = client.hear()
            assert (total["op"], total.get("serial")) == ("status", client.last or None)
    saved = ask(client, op="checkpoint", tag="t", cursor=client.feed["cursor"])
    assert (saved["op"], saved.get("serial")) == ("saved", client.last or None)
    client.close()


@pytest.mark.parametrize("serials", [True, False], ids=["with", "without"])
def test_an_operators_answers(daemon, serials):
    trainer = Client(daemon.socket).attach(run="job")
    operator = Serials(daemon.socket, *(["request", "cancel"] if serials else ()))
    serial = 1 if serials else None
    asked = operator.ask(op="request", stream="train", run="job", kind="drain", args="x")
    assert (asked["op"], asked.get("serial")) == ("asked", serial)
    number = trainer.ask(op="pending")["number"]
    for outcome, left in ((1, 1), (2, 0)):
        trainer.tell(op="answer", number=number, outcome=outcome, text="")
        answer = operator.hear()
        assert (answer["op"], answer["waiting"], answer.get("serial")) == ("answer", left, serial)
    operator.close()
    trainer.close()


def test_a_refused_attach(daemon):
    client = Serials(daemon.socket, "attach")
    with pytest.raises(Refused) as refused:
        client.attach(stream="nowhere")
    packet = refused.value.packet
    assert (packet["serial"], packet["code"], packet["fault"]) == (1, "attach", 9)
    client.close()


def test_a_fault_has_a_number_and_a_name(daemon):
    client = Client(daemon.socket).attach()
    for query, code, fault in (
        ({"op": "cancel", "number": 1}, "request", 11),
        ({"op": "checkpoint", "tag": "t", "cursor": b"x"}, "checkpoint", 10),
    ):
        packet = ask(client, **query)
        assert (packet["code"], packet["fault"]) == (code, fault)
    client.close()
