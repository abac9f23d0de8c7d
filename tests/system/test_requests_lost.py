"""If an operator, a trainer or the daemon is too slow, dies or is hostile, no request stays half
done.
"""

import signal
import time

import pytest
from requesting import CURSOR_BYTES, DONE, NOTED, Bench, Operator, Trainer

from lib import PACKET_BYTES, TOKCTL, Client, Closed, Refused, has, run, wait_for
from lib.injected import injected

pytestmark = pytest.mark.asan


@pytest.fixture(scope="module")
def served(shared):
    bench = Bench(shared)
    yield bench
    assert bench.daemon.stop() == 0, "the daemon exits with 0"


@pytest.fixture
def bench(served):
    yield served
    assert wait_for(lambda: served.daemon.rings() == 0), "all sessions have ended"


def test_second_request_is_refused(bench):
    t = Trainer(bench)
    op = Operator(bench, "skip", "train", "--samples", 5)
    number = t.sees()
    code, _, err = run(TOKCTL, "drain", "train", "--socket", bench.daemon.socket)
    assert code == 1, "a second request is refused"
    assert has(err, "skip", str(number), "rank 0 (pid", "has not answered"), (
        "the line names the open request and the rank without an answer"
    )
    assert t.fetch()["number"] == number, "the first request is unchanged"
    t.carry_out()
    assert op.result()[0] == 0, "it is carried out"
    bench.nothing_open("two at once", t)
    t.close()


# ---- participants that leave ----


def test_timeout_cancels_the_request(bench):
    ts = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    op = Operator(bench, "drain", "train", "--timeout", 1)
    ts[0].answer(ts[0].sees(), NOTED)
    code, answers, _, err = op.result()
    assert (code, err.count("\n")) == (1, 1), "no rank fetches the request: exit 1"
    assert has(
        err, f"rank 1 (pid {ts[1].process.pid}", "timeout after 1 s", "nothing was changed"
    ), "the line names the rank that did not call control()"
    assert "rank 0" not in err, ("it does not name the other rank", err)
    bench.nothing_open("time is up", *ts)

    op = Operator(bench, "drain", "train", "--timeout", 1)
    number = ts[0].sees()
    ts[0].fetch()
    ts[0].answer(number, DONE)
    code, _, _, err = op.result()
    assert code == 1 and "not answered: rank 1" in err and "answered: rank 0" in err, (
        "once fetched, the line names who answered and who did not",
        err,
    )
    assert (ts[0].number(), ts[1].number()) == (0, number), (
        "the request stays open for the other rank"
    )
    code, _, err = run(TOKCTL, "drain", "train", "--socket", bench.daemon.socket)
    assert code == 1 and "rank 1" in err, ("another request is refused meanwhile", err)
    ts[1].answer(number, DONE)
    wait_for(lambda: not ts[1].number())
    bench.nothing_open("it is answered late", *ts)

    op = Operator(bench, "drain", "train")
    ts[0].sees()
    op.process.send_signal(signal.SIGINT)
    code, _, err = op.end()
    assert code == 1 and "interrupted" in err and "nothing was changed" in err, (
        "an interrupted request is cancelled",
        err,
    )
    bench.nothing_open("interrupted", *ts)
    for t in ts:
        t.close()


def test_killed_operator_leaves_nothing_open(bench):
    t = Trainer(bench)
    op = Operator(bench, "drain", "train")
    t.sees()
    op.process.kill()
    assert wait_for(lambda: t.number() == 0) is True, (
        "if the operator is killed before the fetch, the request is cancelled"
    )
    bench.nothing_open("operator killed", t)
    op = Operator(bench, "skip", "train", "--samples", 7)
    t.sees()
    t.fetch()
    before = bench.daemon.fds()
    op.process.kill()
    op.process.wait()
    assert wait_for(lambda: bench.daemon.fds() < before), "the daemon closes its connection"
    assert t.number(), ("if it is killed after the fetch, the request goes on", t.number())
    t.carry_out()
    wait_for(lambda: not t.number())
    bench.nothing_open("it is carried out without its operator", t)
    injected(35, 2)
    t.close()


def test_killed_trainer_is_reported(bench):
    for when, fetches in (("before the fetch", False), ("after it", True)):
        ts = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
        op = Operator(bench, "mix", "train", "web=1")
        for t in ts:
            t.sees()
        if fetches:
            ts[0].fetch()
        ts[0].kill()
        ts[1].carry_out()
        code, answers, _, err = op.result()
        assert code == 1 and "rank 0" in err and "without an answer" in err, (
            f"rank 0 killed {when}: exit 1, with its name",
            err,
        )
        assert sorted((a["rank"], a["outcome"]) for a in answers) == [(0, "gone"), (1, "done")], (
            f"killed {when}: both ranks are reported"
        )
        bench.nothing_open(f"killed {when}", ts[1])
        ts[1].close()
    t = Trainer(bench)
    op = Operator(bench, "drain", "train")
    number = t.sees()
    t.fetch()
    t.answer(number, DONE)
    t.kill()
    assert op.result()[0] == 0, "a rank that leaves after DONE counts as done"
    ts = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    op = Operator(bench, "drain", "train")
    number = ts[1].sees()
    ts[0].kill()
    again = Trainer(bench, rank=0, world=2, micro=32)
    assert again.sees() == number, "a rank that rejoins sees the request"
    for t in (again, ts[1]):
        t.carry_out()
    assert op.result()[0] == 0, "it answers the request"
    for t in (again, ts[1]):
        t.close()


def test_killed_daemon_is_reported(bench):
    t = Trainer(bench)
    t.step(1)
    op = Operator(bench, "mix", "train", "web=1")
    number = t.sees()
    request = t.fetch()
    bench.daemon.kill()
    code, _, err = op.end()
    assert code == 1 and "stopped before" in err and err.count("\n") == 1, (
        "if the daemon is killed, tokctl reports it in one line",
        err,
    )
    bench.daemon.start()
    done = t.obey(request["kind"], request["args"])
    assert (done["r"], done["at"]) == (0, 1024), (
        "the trainer carries the request out with the next daemon"
    )
    assert (t.answer(number, DONE)["r"], t.step(20)["next"]) == (0, 21 * 64), (
        "its answer is ignored"
    )
    bench.nothing_open("daemon killed", t)
    op = Operator(bench, "skip", "train", "--samples", 3)
    assert t.sees() != number, ("a new daemon numbers requests differently", number)
    t.carry_out()
    assert op.result()[0] == 0, "the next request finds the trainer"

    op = Operator(bench, "drain", "train")
    number = t.sees()
    bench.daemon.kill()
    begin = time.monotonic()
    said = t.answer(number, NOTED)
    assert said["r"] == -2 and time.monotonic() - begin < 1, (
        "answering does not wait for a daemon",
        said,
    )
    assert t.number() == 0, "the request of a lost daemon is gone"
    bench.daemon.start()
    assert t.step(20)["next"] == 41 * 64 + 3, "the trainer goes on"
    op.end()
    t.close()


# ---- hostile clients ----


def test_hostile_answers_are_refused(bench):
    t = Trainer(bench)
    one = Client(bench.daemon.socket).attach(run="evil")
    for number in (0, 1, 1 << 63, (1 << 64) - 1):
        one.tell(op="answer", number=number, outcome=DONE, text="x")
    assert one.ask(op="pending")["number"] == 0, "an answer to an unknown request is ignored"
    for outcome in (0, 4, 99):
        other = Client(bench.daemon.socket).attach(run="evil2")
        other.tell(op="answer", number=1, outcome=outcome, text="")
        assert has(str(other.last_words()), "outcome"), (
            f"outcome {outcome}: the client is disconnected"
        )
        other.close()
    stranger = Client(bench.daemon.socket)
    for message in (
        {"op": "answer", "number": 1, "outcome": DONE, "text": ""},
        {"op": "pending"},
        {"op": "describe"},
    ):
        stranger = Client(bench.daemon.socket)
        stranger.tell(**message)
        assert has(str(stranger.last_words()), "attach first"), (
            f"{message['op']} of no session: refused"
        )

    asker = Client(bench.daemon.socket)
    wrong = []
    for args in ("x" * 65536, "x" * (PACKET_BYTES - 300), "a\0b"):
        try:
            wrong.append(asker.ask(op="request", stream="train", run="evil", kind="mix", args=args))
        except Refused as e:
            wrong += [] if e.packet["field"] == "args" else [e.packet]
    for kind in ("", "x" * 16, "a/b", "a\nb"):
        try:
            wrong.append(asker.ask(op="request", stream="train", run="evil", kind=kind, args=""))
        except Refused as e:
            wrong += [] if e.packet["field"] == "kind" else [e.packet]
    assert not wrong, ("invalid arguments and kinds are refused by field", wrong)
    asked = asker.ask(op="request", stream="train", run="evil", kind="mix", args="y" * 65535)
    seen = one.ask(op="pending")
    assert (seen["number"], len(seen["args"])) == (asked["number"], 65535), (
        "the longest arguments are accepted"
    )
    thief = Client(bench.daemon.socket)
    with pytest.raises(Refused, match="of this connection is open"):  # someone else's request
        thief.ask(op="cancel", number=asked["number"])
    for _ in range(3000):
        one.tell(op="answer", number=asked["number"], outcome=NOTED, text="n" * 1000)
    assert asker.hear()["outcome"] == NOTED, "a note is passed on once"
    one.tell(op="answer", number=asked["number"], outcome=DONE, text="", cursor=b"c" * CURSOR_BYTES)
    got = asker.hear()
    assert (got["outcome"], len(got["cursor"]), got["waiting"]) == (DONE, CURSOR_BYTES, 0), (
        "then the answer"
    )

    flood = Client(bench.daemon.socket)
    try:
        for _ in range(3000):
            flood.tell(op="request", stream="train", run="evil", kind="mix", args="z" * 60000)
    except OSError:
        pass  # it is disconnected because it does not read
    flood.close()
    assert wait_for(lambda: one.ask(op="pending")["number"] == 0) is True, (
        "a flood of requests ends with its connection"
    )

    # Ten cursors of the largest size for a client that does not read: only the first one, and the
    # first that differs, are sent.
    many = [Client(bench.daemon.socket).attach(run="many", rank=r, world=10) for r in range(10)]
    slow = Client(bench.daemon.socket)
    number = slow.ask(op="request", stream="train", run="many", kind="drain", args="")["number"]
    for r, client in enumerate(many):
        cursor = (b"d" if r in (4, 7) else b"c") * CURSOR_BYTES
        client.tell(op="answer", number=number, outcome=DONE, text="", cursor=cursor)
        client.ask(op="pending")
    heard = [slow.hear() for _ in many]
    assert [("cursor" in a, a["same"]) for a in heard] == [
        (r in (0, 4), int(r not in (4, 7))) for r in range(10)
    ], "cursors are passed on once"
    assert [a["waiting"] for a in heard] == list(range(9, -1, -1)), "the last answer says so"
    for client in (*many, slow, asker, thief, one):
        client.close()
    try:
        stranger.hear()
    except (Closed, OSError):
        pass
    op = Operator(bench, "skip", "train", "--samples", 3, "--run", "job")
    t.carry_out()
    assert op.result()[0] == 0, "other clients are served meanwhile"
    bench.nothing_open("hostile", t)
    t.close()
