"""An operator's requests reach the sessions of a run, are carried out and answered. If an operator,
a trainer or the daemon is slow, dies or is hostile, none stays half done.

The trainers execute one call at a time on command, so every state in between can be checked.
"""

import pytest
from requesting import CURSOR_BYTES, DONE, NOTED, Bench, Operator, Trainer

from lib import TOKCTL, Client, Refused, has, run, status, wait_for
from lib.injected import injected

pytestmark = [pytest.mark.asan, pytest.mark.tsan]


@pytest.fixture(scope="module")
def served(shared):
    return Bench(shared)


@pytest.fixture
def bench(served):
    yield served
    assert wait_for(lambda: served.daemon.rings() == 0), "all sessions have ended"


@pytest.fixture
def ranks(bench):
    """The two ranks of a job. No request may be left open."""
    ranks = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    yield ranks
    alive = [t for t in ranks if t.process.poll() is None]
    bench.nothing_open(*alive)
    for t in alive:
        t.close()


def carried_out(bench, ranks, *arguments, **keys):
    operator = Operator(bench, *arguments, **keys)
    for t in ranks:
        t.carry_out()
    return operator.result() if keys.get("json", True) else operator.end()


def refused(bench, *arguments, code=1):
    """The one line of a tokctl that gets no result."""
    status, out, err = run(TOKCTL, *arguments, "--socket", bench.daemon.socket)
    assert (status, out) == (code, b"") and (code == 2 or err.count("\n") == 1), (out, err)
    return err


# ---- requests that are carried out ----

# Of a job that has taken 192 samples, one after the other: arguments, members of the result.
CHANGES = [
    ("mix train web=1 code=3", {
        "position": 192, "from": 192, "acts_from": 1024, "sessions": 2,
        "mix": [{"dataset": "web", "before": 0.5, "after": 0.25},
                {"dataset": "code", "before": 0.5, "after": 0.75}]}),
    ("skip train --samples 1000", {"position": 1192, "from": 192, "acts_from": 1192}),
    ("mix train web=1 code=0 --at 8192", {"from": 1192, "acts_from": 8192}),
    ("mix train code=1 --at 8192", {
        "mix": [{"dataset": "web", "before": 0.25, "after": 0},  # the mix that runs
                {"dataset": "code", "before": 0.75, "after": 1}]}),
    ("checkpoint train --tag before", {"position": 1192}),
    ("rescale train --world 3 --micro 8 --tag w3", {
        "position": 1192, "world_before": 2, "world": 3, "global_before": 64, "global": 24}),
    ("drain train", {"position": 1192}),
]  # fmt: skip


def test_a_job_is_changed(bench, ranks):
    for t in ranks:
        t.step(3)
    for arguments, members in CHANGES:
        operator = Operator(bench, *arguments.split())
        number = ranks[0].sees()
        assert {s["request"] for s in status(bench.daemon.socket)[0]} == {number}
        for t in ranks:
            t.answer(t.sees(), NOTED)
        for t in ranks:
            assert t.carry_out()["r"] == 0
        code, answers, result, err = operator.result()
        assert (code, err) == (0, ""), arguments
        assert {key: result[key] for key in members} == members, arguments
        seen = sorted((a["rank"], a["outcome"]) for a in answers)
        assert seen == [(0, "done"), (0, "noted"), (1, "done"), (1, "noted")], arguments
    assert len({t.cursor() for t in ranks}) == 1
    _, out, _ = carried_out(bench, ranks, "rescale", "train", "--world", 20, json=False)
    assert has(out, "world 2 -> 20", "global batch 64 -> 640\n"), out
    _, out, _ = carried_out(bench, ranks, "rescale", "train", "--world", 3, json=False)
    assert has(out, "64 -> 96: neither a multiple nor a divisor of the old one"), out
    code, out, err = carried_out(bench, ranks, "mix", "train", "web=1", "--at", 1025, json=False)
    assert (code, out, err.count("\n"), err.count("not a multiple")) == (1, "", 1, 1), err
    assert has(err, "rank 0 (pid", "rank 1 (pid")
    ranks[1].step(1)
    code, _, _, err = carried_out(bench, ranks, "drain", "train")
    assert code == 1 and has(err, "rank 1 (pid", "not at the same position")


def test_a_mix_that_begins_where_the_run_is(bench, ranks):
    for t in ranks:
        t.step(16)
    _, _, result, _ = carried_out(bench, ranks, "mix", "train", "web=1", "code=3")
    assert (result["from"], result["acts_from"]) == (1024, 1024)
    assert [(d["before"], d["after"]) for d in result["mix"]] == [(0.5, 0.25), (0.5, 0.75)]


def test_invalid_edits_change_nothing(bench):
    t = Trainer(bench)
    t.step(3)
    before = t.cursor()
    for arguments, words in (
        ("mix train web=1 wbe=1", ["wbe", "is not in the config", "did you mean web?"]),
        ("mix train web=1 --at 1025", ["not a multiple of 1024", "2048"]),
        ("mix train web=1 --at 0", ["too early", "use 1024"]),
    ):
        code, _, result, err = carried_out(bench, [t], *arguments.split())
        assert (code, result, err.count("\n")) == (1, None, 1), arguments
        assert has(err, "rank 0 (pid", *words)
    for arguments in ("web=nan", "web=0 code=0", "web", ""):
        refused(bench, "mix", "train", *arguments.split(), code=2)
    for args in ("weight x web", "weight 1", "nonsense", "at -1\nweight 1 web"):
        done = t.obey("mix", f"{args}\n")
        assert done["r"] == -1 and done["why"] and "\n" not in done["why"], args
    assert t.obey("dance", "")["r"] == -1
    assert t.cursor() == before and t.fetch()["number"] == 0
    t.close()
    t = Trainer(bench, stream="short")
    for arguments, word in (
        ("mix short web=1", "short is finite"),
        ("skip short --samples 100001", "past the end"),
    ):
        assert has(carried_out(bench, [t], *arguments.split())[3], word)
    t.close()


def test_a_loop_that_does_not_save_is_named(bench):
    t = Trainer(bench)
    t.step(3)
    for kind in ("drain train", "checkpoint train --tag x", "rescale train --world 2"):
        operator = Operator(bench, *kind.split(), json=False)
        t.carry_out(library=True)
        code, out, err = operator.end()
        assert code == 1 and has(err, "rank 0 (pid", "not handled") and "saved" not in out, out
        _, out, _ = carried_out(bench, [t], *kind.split(), json=False)
        assert "saved at position 192" in out and "exit" not in out, out
    t.close()


def test_request_reaches_the_named_run(bench):
    assert has(refused(bench, "drain", "trian"), "is not a stream", "did you mean train?")
    assert has(refused(bench, "drain", "train"), "no session is attached on stream train")
    a, b = [Trainer(bench, run=name) for name in ("a", "b")]
    assert has(refused(bench, "drain", "train"), "several runs", "name one", "status lists")
    assert has(refused(bench, "drain", "train", "--run", "c"), "run c", "status lists")
    operator = Operator(bench, "drain", "train", "--run", "b")
    b.carry_out()
    assert (operator.result()[0], a.number()) == (0, 0)
    a.close()
    b.close()


# ---- participants that are slow or die ----


def test_timeout_cancels_the_request(bench, ranks):
    a, b = ranks
    operator = Operator(bench, "drain", "train", "--timeout", 1)
    a.answer(a.sees(), NOTED)
    code, _, _, err = operator.result()
    assert (code, err.count("\n"), "rank 0" in err) == (1, 1, False)
    assert has(err, f"rank 1 (pid {b.process.pid}", "timeout after 1 s", "nothing was changed")
    bench.nothing_open(*ranks)

    operator = Operator(bench, "drain", "train", "--timeout", 1)
    number = a.sees()
    a.fetch()
    a.answer(number, DONE)
    code, _, _, err = operator.result()
    assert code == 1 and has(err, "not answered: rank 1"), "once it is fetched"
    assert (a.number(), b.number()) == (0, number), "it stays open for the other rank"
    said = refused(bench, "skip", "train", "--samples", 1)  # one request at a time
    assert has(said, "drain", str(number), "rank 1 (pid", "not answered")
    b.answer(number, DONE)
    assert wait_for(lambda: not b.number())


def test_killed_operator_leaves_nothing_open(bench, ranks):
    t, other = ranks
    operator = Operator(bench, "drain", "train")
    t.sees()
    operator.process.kill()
    assert wait_for(lambda: t.number() == 0), "before the fetch: it is cancelled"
    bench.nothing_open(*ranks)
    operator = Operator(bench, "skip", "train", "--samples", 7)
    t.sees()
    t.fetch()
    before = bench.daemon.fds()
    operator.process.kill()
    operator.process.wait()
    assert wait_for(lambda: bench.daemon.fds() < before), "the daemon closes its connection"
    assert t.number(), "after the fetch it goes on"
    for one in ranks:
        one.carry_out()
    assert wait_for(lambda: not t.number())
    injected(35, 2)


def test_a_killed_trainer_is_reported_and_one_that_rejoins_answers(bench, ranks):
    operator = Operator(bench, "drain", "train")
    for t in ranks:
        t.sees()
    ranks[0].fetch()
    ranks[0].kill()
    ranks[1].carry_out()
    code, answers, _, err = operator.result()
    assert code == 1 and has(err, "rank 0", "without an answer")
    assert sorted((a["rank"], a["outcome"]) for a in answers) == [(0, "gone"), (1, "done")]

    ranks[0] = Trainer(bench, rank=0, world=2, micro=32)
    operator = Operator(bench, "drain", "train")
    number = ranks[1].sees()
    ranks[0].kill()
    ranks[0] = Trainer(bench, rank=0, world=2, micro=32)
    assert ranks[0].sees() == number
    for t in ranks:
        t.carry_out()
    ranks[1].kill()
    assert operator.result()[0] == 0, "a rank that leaves after its answer counts as done"


# ---- hostile clients ----


def test_hostile_answers_are_refused(bench, ranks):
    one = Client(bench.daemon.socket).attach(run="evil")
    for number in (0, 1, 1 << 63, (1 << 64) - 1):
        one.tell(op="answer", number=number, outcome=DONE, text="x")
    assert one.ask(op="pending")["number"] == 0, "answers to unknown requests are ignored"
    stranger = Client(bench.daemon.socket)
    stranger.tell(op="answer", number=1, outcome=DONE, text="")
    assert has(str(stranger.last_words()), "attach first")
    asker, ask = Client(bench.daemon.socket), {"op": "request", "stream": "train", "run": "evil"}
    for key, value in (("args", "x" * 65536), ("args", "a\0b"), ("kind", "x" * 16), ("kind", "")):
        with pytest.raises(Refused) as error:
            asker.ask(**{**ask, "kind": "mix", "args": "", key: value})
        assert error.value.packet["field"] == key
    asked = asker.ask(**ask, kind="mix", args="y" * 65535)
    seen = one.ask(op="pending")
    assert (seen["number"], len(seen["args"])) == (asked["number"], 65535)
    thief = Client(bench.daemon.socket)
    with pytest.raises(Refused, match="of this connection is open"):
        thief.ask(op="cancel", number=asked["number"])
    for _ in range(3000):
        one.tell(op="answer", number=asked["number"], outcome=NOTED, text="n" * 1000)
    assert asker.hear()["outcome"] == NOTED, "a note is passed on once"

    # Ten cursors of the largest size for a client that does not read: only the first is sent.
    many = [Client(bench.daemon.socket).attach(run="many", rank=r, world=10) for r in range(10)]
    slow = Client(bench.daemon.socket)
    number = slow.ask(op="request", stream="train", run="many", kind="drain", args="")["number"]
    for r, client in enumerate(many):
        cursor = (b"d" if r in (4, 7) else b"c") * CURSOR_BYTES
        client.tell(op="answer", number=number, outcome=DONE, text="", cursor=cursor)
        client.ask(op="pending")
    heard = [slow.hear() for _ in many]
    sent = [("cursor" in a, a["same"], a["waiting"]) for a in heard]
    assert sent == [(r == 0, int(r not in (4, 7)), 9 - r) for r in range(10)]
    for client in (*many, slow, asker, thief, one):
        client.close()
    more = carried_out(bench, ranks, "skip", "train", "--samples", 3, "--run", "job")
    assert more[0] == 0, "other clients are served meanwhile"
