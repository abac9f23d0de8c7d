"""An operator's requests to a running job: who hears them, what comes back, and what is left when
anybody dies in between.

The trainers are processes that use libtokend and do one thing at a time, when told to: so every
moment between asking and answering can be looked at.
"""

import json

import pytest
from requesting import DONE, NOTED, SEQ, Bench, Operator, Trainer

from lib import TOKCTL, Daemon, datasets, has, run, status, wait_for

# ---- what works ----


pytestmark = pytest.mark.asan


@pytest.fixture(scope="module")
def served(shared):
    bench = Bench(shared)
    yield bench
    assert bench.daemon.stop() == 0, "the daemon leaves in peace"


@pytest.fixture
def bench(served):
    yield served
    assert wait_for(lambda: served.daemon.rings() == 0), "no session stays"


def test_alone(bench):
    t = Trainer(bench)
    t.step(3)
    op = Operator(bench, "mix", "train", "web=1", "code=3")
    number = t.sees()
    assert [s["request"] for s in status(bench.daemon.socket)[0]] == [number], (
        "status names the open request"
    )
    request = t.fetch()
    assert (request["number"], request["kind"]) == (number, "mix"), "the trainer fetches it"
    assert request["args"] == "weight 1 web\nweight 3 code\n", "its arguments are lines"
    done = t.obey("mix", request["args"])
    assert done["at"] == 1024, "it acts from the next block"
    assert t.number() == number, "the new ring shows it as well, until it is answered"
    t.answer(number, DONE, "acts from 1024")
    code, answers, result, err = op.result()
    assert (code, err) == (0, ""), "tokctl mix: done"
    assert {k: result[k] for k in ("kind", "position", "from", "acts_from", "sessions")} == {
        "kind": "mix",
        "position": 192,
        "from": 192,
        "acts_from": 1024,
        "sessions": 1,
    }, "its result"
    assert [(a["rank"], a["outcome"], a["text"]) for a in answers] == [
        (0, "done", "acts from 1024")
    ], "one answer"
    bench.nothing_open("a mix", t)
    bench.follows("the new mix is served", t.cursor(), t.step(40)["tokens"], 40 * 64)

    op = Operator(bench, "skip", "train", "--samples", 1000, json=False)
    t.carry_out()
    assert op.end()[:2][1].splitlines()[-1:] == ["skipped from position 2752 to 3752"], (
        "tokctl skip says from where to where"
    )
    bench.follows("behind what was skipped", t.cursor(), t.step(4)["tokens"], 4 * 64)

    op = Operator(bench, "mix", "train", "web=1e-3", "code=1", "--at", 8192, json=False)
    assert t.carry_out()["at"] == 8192, "an explicit start is taken"
    assert has(op.end()[1], "new mix begins at position 8192; the run is at 4008")

    for kind in ("checkpoint", "drain"):
        op = Operator(bench, kind, "train", "--tag", "before", json=False)
        assert t.carry_out()["r"] == 0, f"{kind} is the trainer's to do"
        assert has(op.end()[1], "saved at position 4008, tag before"), f"tokctl {kind}"
    assert json.loads(show(bench, t.cursor("stream")))["next"] == 0, (
        "stream(): the cursor that the stream begins with"
    )
    t.close()


def show(bench, cursor):
    path = bench.place.file("show.cursor")
    with open(path, "wb") as f:
        f.write(bytes.fromhex(cursor))
    return run(TOKCTL, "cursor", "show", path, "--json")[1]


def test_refused_edits(bench):
    t = Trainer(bench)
    t.step(3)
    before = t.cursor()
    for words, arguments in (
        (["law", "has no dataset"], ["web=1", "law=1"]),
        (["not a multiple of 1024", "2048"], ["web=1", "--at", 1025]),
        (["too early", "use 1024"], ["web=1", "--at", 0]),
    ):
        op = Operator(bench, "mix", "train", *arguments)
        t.carry_out()
        code, answers, result, err = op.result()
        assert (code, result, err.count("\n")) == (1, None, 1), (
            f"mix {arguments}: exit 1 and one line"
        )
        assert has(err, "rank 0 (pid", *words), f"mix {arguments}: says why, and who"
        assert t.cursor() == before, f"mix {arguments}: nothing is changed"
    for arguments in (
        ["web=nan"],
        ["web=-1"],
        ["web=0", "code=0"],
        ["web"],
        [],
        ["web=1", "--samples", 3],
        ["web=1", "--timeout", 0],
    ):
        assert run(TOKCTL, "mix", "train", *arguments)[0] == 2, f"mix {arguments}: not even asked"
    assert t.fetch()["number"] == 0, "all that was refused"
    for args in (
        "weight x web\n",
        "weight 1\n",
        "at -1\nweight 1 web\n",
        "later 1\nweight 1 web\n",
        "nonsense",
        "weight 0x1p3 web\n",
        "",
        "weight nan web\n",
        "weight inf web\n",
        "weight 1 web\nweight 1 web\n",
    ):
        done = t.obey("mix", args)
        assert done["r"] == -1 and done["why"] and "\n" not in done["why"], (
            f"arguments {args!r} are refused",
            done,
        )
    assert t.obey("dance", "")["r"] == -1, "an unknown kind is refused"
    assert t.cursor() == before, "nothing is changed by all that"
    assert t.step(2)["next"] == 5 * 64, "and the trainer goes on"
    t.close()

    t = Trainer(bench, stream="short")
    op = Operator(bench, "mix", "short", "web=1")
    t.carry_out()
    assert has(op.result()[3], "short is finite"), "a finite stream keeps its mix"
    assert has(run(TOKCTL, "mix", "short", "web=1", "-c", bench.config)[2], "short is finite"), (
        "tokctl knows it from the config"
    )
    op = Operator(bench, "skip", "short", "--samples", 100_001)
    t.carry_out()
    assert has(op.result()[3], "past the end"), "nobody skips past the end"
    op = Operator(bench, "rescale", "short", "--world", 3, "--micro", 50)
    t.carry_out()
    result = op.result()[2]
    assert (result["batches_before"], result["batches"]) == (1563, 667), (
        "rescale of a finite stream: batches each"
    )
    t.close()


def test_together(bench):
    ts = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    for t in ts:
        t.step(2)
    op = Operator(bench, "mix", "train", "web=1")
    for t in ts:
        t.answer(t.sees(), NOTED)
    for t in ts:
        t.carry_out()
    code, answers, result, err = op.result()
    assert sorted((a["rank"], a["outcome"]) for a in answers) == [
        (0, "done"),
        (0, "noted"),
        (1, "done"),
        (1, "noted"),
    ], "two ranks: notes and answers of both"
    assert (code, result["acts_from"], result["sessions"], err) == (0, 1024, 2, ""), (
        "and one result"
    )
    assert ts[0].cursor() == ts[1].cursor(), "the edits are one"

    op = Operator(bench, "rescale", "train", "--world", 3, "--micro", 8, "--tag", "w3")
    for t in ts:
        t.carry_out()
    code, _, result, _ = op.result()
    assert (code, result["position"], result["ranks"]) == (
        0,
        128,
        [{"rank": r, "first": 128 + 8 * r, "last": 135 + 8 * r} for r in range(3)],
    ), "rescale: what each new rank gets first"
    assert (result["global_before"], result["global"]) == (64, 24), (
        "rescale: steps before and after"
    )
    op = Operator(bench, "rescale", "train", "--world", 20, json=False)
    for t in ts:
        t.carry_out()
    out = op.end()[1]
    assert has(
        out,
        "world 2 -> 20",
        "rank 0 begins with 128..159",
        "…",
        "rank 19 begins with 736..767",
        "64 -> 640: a multiple",
    ), "rescale for people"
    assert "rank 10" not in out, ("the middle ranks are left out", out)

    ts[1].step(1)
    op = Operator(bench, "drain", "train")
    for t in ts:
        t.carry_out()
    code, _, _, err = op.result()
    assert code == 1 and "rank 1 (pid" in err and "not at the same position" in err, (
        "cursors that differ: exit 1, and who",
        err,
    )
    bench.nothing_open("two ranks", *ts)
    for t in ts:
        t.close()


def test_datasets_join(bench):
    t = Trainer(bench)
    t.step(2)
    cursor = t.cursor()
    t.close()
    bench.daemon.stop()
    bench.streams["train"]["datasets"] = datasets("law", "web", "code", shuffle="global")
    bench.config = bench.place.config(streams=bench.streams)
    bench.daemon = Daemon(bench.place, bench.config)
    t = Trainer(bench, cursor=cursor)
    op = Operator(bench, "mix", "train", "web=1", "law=1")
    t.carry_out()
    code, _, result, err = op.result()
    assert (code, err, result and result["acts_from"]) == (0, "", 1024), (
        "a dataset that is new in the config joins a run"
    )
    t.step(14)
    bench.follows("and is served", t.cursor(), t.step(40)["tokens"], 40 * 64)
    t.close()


def test_behind_a_commit(bench):
    """Mixes that began after what is committed: a cursor of the committed place still knows them
    all.
    """
    t = Trainer(bench, micro=512)
    nexts, tokens = [], ""
    for i in range(10):
        seen = t.step(1)
        nexts.append(seen["next"])
        tokens += seen["tokens"]
        if i == 0:
            t.commit(nexts[0])
        if i % 3 == 1:
            assert t.mix({"web": 1 + i, "code": 2})["r"] == 0, f"mix {i // 3} behind the commit"
    cursor = t.cursor()
    assert json.loads(show(bench, cursor))["next"] == 512, "the committed place is spoken of"
    bench.follows(
        "all that was taken follows from it", cursor, tokens[2 * 512 * 2 * (SEQ + 1) :], 9 * 512
    )
    assert [t.commit(n)["r"] for n in nexts[1:]] == [0] * 9, "what was taken can be committed"
    bench.follows("and the rest follows from there", t.cursor(), t.step(4)["tokens"], 4 * 512)
    t.close()


# ---- who is asked ----


def test_whom(bench):
    refuse = lambda *a: run(TOKCTL, *a, "--socket", bench.daemon.socket)  # noqa: E731
    for words, arguments in (
        (["nosuch is not a stream"], ["drain", "nosuch"]),
        (["no session is attached on stream train"], ["drain", "train"]),
    ):
        code, out, err = refuse(*arguments)
        assert code == 1 and out == b"" and err.count("\n") == 1, (
            f"{arguments}: refused in one line",
            (code, err),
        )
        assert has(err, *words), f"{arguments}: says why"
    ts = [Trainer(bench, run=name) for name in ("a", "b")]
    assert has(refuse("drain", "train")[2], "several runs", "a, b"), "two runs: names them"
    assert has(refuse("drain", "train", "--run", "c")[2], "run c", "a, b"), (
        "another run: names those there are"
    )
    op = Operator(bench, "drain", "train", "--run", "b")
    ts[1].carry_out()
    assert (op.result()[0], ts[0].number()) == (0, 0), "a run that is named is asked"
    for t in ts:
        t.close()


def test_top(bench):
    t = Trainer(bench)
    t.step(2)
    code, out, err = run(
        TOKCTL, "top", "--interval", "0.1", "--count", "3", "--socket", bench.daemon.socket
    )
    assert (code, err, out.count(b"TOKENS/S"), b"\x1b" in out) == (0, "", 3, False), (
        "top: once an interval"
    )
    assert has(out.decode(), "train", "job", "1 sessions"), "top: the session"
    t.close()
