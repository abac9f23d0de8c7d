"""An operator's requests reach the sessions of a run, are carried out, and are answered.

The trainers are processes that use libtokend and execute one call at a time on command, so the test
can check every state between request and answer.
"""

import json

import pytest
from requesting import DONE, NOTED, SEQ, Bench, Operator, Trainer

from lib import TOKCTL, Daemon, datasets, has, run, status, wait_for

# ---- requests that are carried out ----


pytestmark = [pytest.mark.asan, pytest.mark.tsan]


@pytest.fixture(scope="module")
def served(shared):
    bench = Bench(shared)
    yield bench
    assert bench.daemon.stop() == 0, "the daemon exits with 0"


@pytest.fixture
def bench(served):
    yield served
    assert wait_for(lambda: served.daemon.rings() == 0), "all sessions have ended"


def test_one_rank_carries_out_requests(bench):
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
    assert done["at"] == 1024, "it begins at the next block"
    assert t.number() == number, "the new ring shows the request too, until it is answered"
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
    assert result["mix"] == [
        {"dataset": "web", "before": 0.5, "after": 0.25},
        {"dataset": "code", "before": 0.5, "after": 0.75},
    ], "each dataset's share before and after"
    assert [(a["rank"], a["outcome"], a["text"]) for a in answers] == [
        (0, "done", "acts from 1024")
    ], "one answer"
    bench.nothing_open("a mix", t)
    bench.follows("the new mix is served", t.cursor(), t.step(40)["tokens"], 40 * 64)

    op = Operator(bench, "skip", "train", "--samples", 1000, json=False)
    t.carry_out()
    assert op.end()[:2][1].splitlines()[-1:] == ["skipped from position 2752 to 3752"], (
        "tokctl skip prints the skipped range"
    )
    bench.follows(
        "samples after the skipped ones are served", t.cursor(), t.step(4)["tokens"], 4 * 64
    )

    op = Operator(bench, "mix", "train", "web=1e-3", "code=1", "--at", 8192, json=False)
    assert t.carry_out()["at"] == 8192, "--at is accepted"
    assert has(op.end()[1], "new mix begins at position 8192; the run is at 4008")
    op = Operator(bench, "mix", "train", "code=1", "--at", 8192, json=False)
    t.carry_out()
    assert op.end()[1].splitlines()[-2:] == [
        "  web 25.000000 % -> 0.000000 %",
        "  code 75.000000 % -> 100.000000 %",
    ], "also of a dataset that falls to 0; the mix that runs is the one before"

    for kind in ("checkpoint", "drain"):
        op = Operator(bench, kind, "train", "--tag", "before", json=False)
        assert t.carry_out()["r"] == 0, f"{kind} is carried out by the trainer"
        assert has(op.end()[1], "saved at position 4008, tag before"), f"tokctl {kind}"
    assert json.loads(show(bench, t.cursor("stream")))["next"] == 0, (
        "stream() gives the stream's first cursor"
    )
    t.close()


def test_mix_at_its_own_position_prints_the_mix_before(bench):
    t = Trainer(bench)
    t.step(16)
    op = Operator(bench, "mix", "train", "web=1")
    assert t.carry_out()["at"] == 1024
    assert op.result()[2]["mix"] == [
        {"dataset": "web", "before": 0.5, "after": 1},
        {"dataset": "code", "before": 0.5, "after": 0},
    ], "though the run's cursor no longer has it"
    t.close()


def show(bench, cursor):
    path = bench.place.file("show.cursor")
    with open(path, "wb") as f:
        f.write(bytes.fromhex(cursor))
    return run(TOKCTL, "cursor", "show", path, "--json")[1]


def test_invalid_edits_change_nothing(bench):
    t = Trainer(bench)
    t.step(3)
    before = t.cursor()
    for words, arguments in (
        (["wbe", "has no dataset", "did you mean web?"], ["web=1", "wbe=1"]),
        (["not a multiple of 1024", "2048"], ["web=1", "--at", 1025]),
        (["too early", "use 1024"], ["web=1", "--at", 0]),
    ):
        op = Operator(bench, "mix", "train", *arguments)
        t.carry_out()
        code, answers, result, err = op.result()
        assert (code, result, err.count("\n")) == (1, None, 1), (
            f"mix {arguments}: exit 1 and one line"
        )
        assert has(err, "rank 0 (pid", *words), f"mix {arguments}: names the reason and the rank"
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
        assert run(TOKCTL, "mix", "train", *arguments)[0] == 2, (
            f"mix {arguments}: no request is made"
        )
    assert t.fetch()["number"] == 0, "all of these were refused"
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
    assert t.cursor() == before, "none of these changes anything"
    assert t.step(2)["next"] == 5 * 64, "the trainer goes on"
    t.close()

    t = Trainer(bench, stream="short")
    op = Operator(bench, "mix", "short", "web=1")
    t.carry_out()
    assert has(op.result()[3], "short is finite"), "a finite stream keeps its mix"
    assert has(run(TOKCTL, "mix", "short", "web=1", "-c", bench.config)[2], "short is finite"), (
        "with -c, tokctl checks it by itself"
    )
    op = Operator(bench, "skip", "short", "--samples", 100_001)
    t.carry_out()
    assert has(op.result()[3], "past the end"), "a skip past the end is refused"
    op = Operator(bench, "rescale", "short", "--world", 3, "--micro", 50)
    t.carry_out()
    result = op.result()[2]
    assert (result["batches_before"], result["batches"]) == (1563, 667), (
        "rescale of a finite stream prints the batches per rank"
    )
    t.close()


def test_two_ranks_carry_out_one_request(bench):
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
    ], "the notes and answers of both ranks are printed"
    assert (code, result["acts_from"], result["sessions"], err) == (0, 1024, 2, ""), (
        "there is one result"
    )
    assert ts[0].cursor() == ts[1].cursor(), "both ranks have the same cursor"

    op = Operator(bench, "rescale", "train", "--world", 3, "--micro", 8, "--tag", "w3")
    for t in ts:
        t.carry_out()
    code, _, result, _ = op.result()
    assert (code, result["position"], result["ranks"]) == (
        0,
        128,
        [{"rank": r, "first": 128 + 8 * r, "last": 135 + 8 * r} for r in range(3)],
    ), "rescale prints the first samples of each new rank"
    assert (result["global_before"], result["global"]) == (64, 24), (
        "rescale prints the global batch before and after"
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
    ), "rescale prints them for people"
    assert "rank 10" not in out, ("the middle ranks of a large world are left out", out)

    ts[1].step(1)
    op = Operator(bench, "drain", "train")
    for t in ts:
        t.carry_out()
    code, _, _, err = op.result()
    assert code == 1 and "rank 1 (pid" in err and "not at the same position" in err, (
        "cursors that differ: exit 1, with the rank",
        err,
    )
    bench.nothing_open("two ranks", *ts)
    for t in ts:
        t.close()


def test_new_dataset_joins_a_run(bench):
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
        "a dataset that is new in the config is added to the run"
    )
    t.step(14)
    bench.follows("it is served", t.cursor(), t.step(40)["tokens"], 40 * 64)
    t.close()


def test_mixes_after_a_commit(bench):
    """A cursor of the committed position contains the mixes that have begun after it."""
    t = Trainer(bench, micro=512)
    nexts, tokens = [], ""
    for i in range(10):
        seen = t.step(1)
        nexts.append(seen["next"])
        tokens += seen["tokens"]
        if i == 0:
            t.commit(nexts[0])
        if i % 3 == 1:
            assert t.mix({"web": 1 + i, "code": 2})["r"] == 0, f"mix {i // 3} after the commit"
    cursor = t.cursor()
    assert json.loads(show(bench, cursor))["next"] == 512, "the committed position is reported"
    bench.follows(
        "the batches taken since follow from it", cursor, tokens[2 * 512 * 2 * (SEQ + 1) :], 9 * 512
    )
    assert [t.commit(n)["r"] for n in nexts[1:]] == [0] * 9, "the taken batches can be committed"
    bench.follows("the next batches follow from there", t.cursor(), t.step(4)["tokens"], 4 * 512)
    t.close()


# ---- which run is asked ----


def test_request_reaches_the_named_run(bench):
    refuse = lambda *a: run(TOKCTL, *a, "--socket", bench.daemon.socket)  # noqa: E731
    for words, arguments in (
        (["trian is not a stream", "did you mean train?"], ["drain", "trian"]),
        (["no session is attached on stream train"], ["drain", "train"]),
    ):
        code, out, err = refuse(*arguments)
        assert code == 1 and out == b"" and err.count("\n") == 1, (
            f"{arguments}: refused in one line",
            (code, err),
        )
        assert has(err, *words), f"{arguments}: the line names the reason"
    ts = [Trainer(bench, run=name) for name in ("a", "b")]
    assert has(refuse("drain", "train")[2], "several runs", "a, b"), (
        "of two runs, --run must choose: both are named"
    )
    assert has(refuse("drain", "train", "--run", "c")[2], "run c", "a, b"), (
        "an unknown run: the attached ones are named"
    )
    op = Operator(bench, "drain", "train", "--run", "b")
    ts[1].carry_out()
    assert (op.result()[0], ts[0].number()) == (0, 0), "the named run gets the request"
    for t in ts:
        t.close()


def test_top_prints_sessions(bench):
    t = Trainer(bench)
    t.step(2)
    code, out, err = run(
        TOKCTL, "top", "--interval", "0.1", "--count", "3", "--socket", bench.daemon.socket
    )
    assert (code, err, out.count(b"TOKENS/S"), b"\x1b" in out) == (0, "", 3, False), (
        "top prints once per interval"
    )
    assert has(out.decode(), "train", "job", "1 session,"), "top prints the session"
    t.close()
