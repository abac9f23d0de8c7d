"""tokctl's requests to jobs of one and of several processes."""

import json
import random
import signal
import subprocess
import time

import pytest
from lib import TOKCTL, status, wait_until
from lib.injected import injected
from lib.stock import another_daemon
from job import Job

import tokend

FOR_EVER = 100_000  # steps


def ask(daemon, kind, *arguments, run="job"):
    """Starts tokctl with a request."""
    command = [TOKCTL, kind, "train", *map(str, arguments), "--run", run, "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--socket", daemon.socket], **pipes)


def answer(tokctl, status=0, seconds=60):
    """Its last line of JSON, or its stderr."""
    out, err = tokctl.communicate(timeout=seconds)
    assert tokctl.returncode == status, out + err
    return json.loads(out.splitlines()[-1]) if status == 0 else err


def gap(positions):
    """The positions missing between the first and the last. No position may occur twice."""
    assert len(positions) == len(set(positions))
    return sorted(set(range(min(positions), max(positions) + 1)) - set(positions))


# ---- one process ----


@pytest.fixture
def loader(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket, run="job") as loader:
        yield loader


def take_until(loader, taken):
    """Trains until control() returns a request. Adds all positions to @taken."""
    for _ in range(10_000):
        taken.extend(next(loader)["position"].tolist())
        request = loader.control()
        if request is not None:
            return request
        time.sleep(0.001)
    raise AssertionError("no request came")


def test_alone_a_mix_acts_at_once(daemon, loader):
    taken = []
    tokctl = ask(daemon, "mix", "web=1", "code=3")
    request = take_until(loader, taken)
    assert (request.kind, request.args) == ("mix", {"weights": {"web": 1.0, "code": 3.0}})
    assert not request, "a loop that saves if it got a request does not save for a mix"
    assert (request.acts_from, request.error) == (1024, None)
    assert not request.save and not request.stop
    assert answer(tokctl)["acts_from"] == 1024
    assert loader.cursor.segments[1]["start"] == 1024
    assert loader.cursor.segments[1]["weights"] == {"web": 0.25, "code": 0.75}
    assert loader.control() is None
    while loader.position < 4096:
        taken.extend(next(loader)["position"].tolist())
    assert taken == list(range(4096))


def test_alone_a_skip_keeps_uncommitted_batches(daemon, loader):
    nexts = []
    for _ in range(4):
        next(loader)
        nexts.append(loader.taken)
    loader.commit(nexts[0])
    tokctl = ask(daemon, "skip", "--samples", 1000)
    request = take_until(loader, [])
    answer(tokctl)
    assert loader.position == nexts[0]
    before, after = request.acts_from - 1000, request.acts_from
    assert next(loader)["position"][0] == after
    with pytest.raises(tokend.ArgumentError):
        loader.commit(after - 1)
    for commit, position in ((nexts[2], nexts[2]), (before, after), (None, after + 4)):
        loader.commit(*([] if commit is None else [commit]))
        assert loader.position == position
    assert loader.taken == after + 4


def test_alone_a_checkpoint_has_the_trainers_cursor(daemon, loader):
    tokctl = ask(daemon, "checkpoint", "--tag", "mine")
    request = take_until(loader, [])
    assert request.save and not request.stop and request.args == {"tag": "mine"}
    time.sleep(0.2)
    assert tokctl.poll() is None, "it waits for done()"
    request.done("model in /models/7")
    request.done()  # once is enough
    answer(tokctl)
    assert not loader.should_stop
    saved = daemon.directory / "state" / "train" / "job" / "mine.cursor"
    assert saved.read_bytes() == bytes(loader.cursor)
    assert loader.control() is None


@pytest.mark.parametrize("ending", ["control", "close", "seek"])
def test_alone_a_request_without_done_has_failed(daemon, loader, ending):
    tokctl = ask(daemon, "drain")
    request = take_until(loader, [])
    assert request.save and request.stop and loader.should_stop
    getattr(loader, ending)(**({"position": 0} if ending == "seek" else {}))
    assert "rank 0 (pid" in (why := answer(tokctl, status=1)) and "not handled" in why
    request.done()  # too late: it is reported


def test_a_loader_of_several_ranks_without_a_group_is_refused(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket, rank=1, world=2) as loader:
        with pytest.raises(tokend.ArgumentError, match="rank 1 of 2 .*pass group="):
            loader.control()
        loader.seek(rank=0, world=1)
        assert loader.control() is None


# ---- several processes ----


def same_on_all(job, what="request", steps=FOR_EVER):
    """The requests that all processes noted up to a step: the same, at the same step."""
    notes = [
        [line for line in job.lines(rank) if what in line and line.get("step", 0) <= steps]
        for rank in range(len(job.files))
    ]
    assert all(note == notes[0] for note in notes)
    return notes[0]


def test_all_ranks_act_at_one_step(daemon):
    world = 3
    with Job(daemon.directory, [daemon.socket] * world, steps=FOR_EVER) as job:
        job.wait_for_steps(20)
        mixed = answer(ask(daemon, "mix", "web=1", "code=3"))
        skipped = answer(ask(daemon, "skip", "--samples", 777))
        answer(ask(daemon, "checkpoint", "--tag", "here"))
        drained = answer(ask(daemon, "drain"))
        job.wait()
        notes = same_on_all(job)
        requests = [note["request"] for note in notes]
        kinds = [(request["kind"], request["error"]) for request in requests]
        assert kinds == [(kind, None) for kind in ("mix", "skip", "checkpoint", "drain")]
        assert mixed["acts_from"] == requests[0]["acts_from"]
        assert skipped["acts_from"] == requests[1]["acts_from"]
        # exactly once, except for skipped samples
        positions, last = job.positions(), job.lines(0)[-1]
        end = last["end"]
        assert gap(positions) == list(range(skipped["acts_from"] - 777, skipped["acts_from"]))
        assert (positions[0], positions[-1], drained["position"]) == (0, end - 1, end)
        # in the requested mix, from the reported position
        taken = dict(row for rank in range(world) for rows in job.of(rank, "took") for row in rows)
        cursor, acts = bytes.fromhex(last["cursor"]), mixed["acts_from"]
        names = tokend.Cursor(cursor).datasets
        rows = daemon.plan("train", 0, end)[:acts]
        rows += daemon.plan("train", acts, max(end - acts, 1), cursor)
        for row in rows:
            assert names[taken.get(row["position"], names.index(row["dataset"]))] == row["dataset"]
        # saved once, equal on all
        saved = daemon.directory / "state" / "train" / "job" / "here.cursor"
        assert saved.read_bytes().hex() == notes[2]["cursor"]
        assert [job.lines(rank)[-1]["lost_wakes"] for rank in range(world)] == [0] * world
        assert not any("ranks are at positions" in job.said(rank) for rank in range(world))


def test_a_loop_that_ignores_a_drain_is_warned_and_gets_requests_again(daemon):
    with Job(daemon.directory, [daemon.socket] * 2, steps=FOR_EVER, stays=True) as job:
        job.wait_for_steps(20)
        answer(ask(daemon, "drain"))
        to = answer(ask(daemon, "skip", "--samples", 1000))["acts_from"]
        answer(ask(daemon, "drain"))
        kinds = [note["request"]["kind"] for note in same_on_all(job)]
        assert kinds == ["drain", "skip", "drain"]
        job.wait_for_steps(len(job.of(0, "took")) + 20)
        assert set(range(to - 1000, to)) <= set(gap(job.positions()))
        for rank in range(2):
            assert "the loop goes on after a drain or rescale" in job.said(rank)


def stands_still(job):
    """Whether no process takes a batch for a while."""
    before = job.steps()
    time.sleep(0.4)
    return before == job.steps()


def test_requests_on_two_nodes_are_carried_out_on_both_or_on_none(daemon):
    with (
        another_daemon() as other,
        Job(daemon.directory, [daemon.socket, other.socket], steps=FOR_EVER) as job,
    ):
        job.wait_for_steps(20)
        one, two = ask(daemon, "skip", "--samples", 100), ask(other, "skip", "--samples", 1000)
        answer(one), answer(two)
        assert "wiki" in answer(ask(daemon, "mix", "wiki=1", "web=1"), status=1)
        for node, step in (daemon, 1), (other, -1):
            node.shards["code.bin"][::step].tofile(node.directory / "wiki.bin")
            wiki = "      - {name: wiki, path: wiki.bin, weight: 0}\n      - {name: web,"
            text = node.config.read_text().replace("      - {name: web,", wiki, 1)
            node.config.write_text(text)
            node.reload()
            wait_until(lambda node=node: status(node.socket)[0], "the session after the reload")
        assert "shards" in answer(ask(daemon, "mix", "wiki=1", "web=1"), status=1)
        other.freeze()  # it refuses the request: its session cannot get another ring
        tokctl = ask(daemon, "skip", "--samples", 30)
        wait_until(lambda: stands_still(job), "the wait for the daemon that is stopped")
        other.kill()
        other.start()
        answer(tokctl)
        answer(ask(other, "drain"))
        job.wait()
        failed = [bool(note["request"]["error"]) for note in same_on_all(job)]
        assert failed == [False, False, True, True, False, False]
        assert len(gap(job.positions())) == 1130
        injected(35, 4)


def test_a_rank_that_takes_more_batches_than_the_others_is_noticed(daemon):
    with Job(daemon.directory, [daemon.socket] * 2, steps=FOR_EVER, evaluates=[3, 0]) as job:
        for rank in (0, 1):
            wait_until(lambda rank=rank: "ranks are at positions" in job.said(rank), "it")
            warned = job.said(rank).partition("ranks are at positions")[2].splitlines()
            assert warned[1].strip() == "request = loader.control()"
        answer(ask(daemon, "drain"), status=1)


def test_a_world_may_change_within_its_processes(daemon):
    with Job(daemon.directory, [daemon.socket] * 2, steps=FOR_EVER, shrinks=True) as job:
        job.wait_for_steps(20)
        answer(ask(daemon, "rescale", "--world", 1))
        wait_until(lambda: len(status(daemon.socket)[0]) == 1, "the other's end")
        before = job.steps()
        wait_until(lambda: job.steps()[0] > before[0] + 20, "steps alone")
        answer(ask(daemon, "drain"))
        job.wait()
        assert job.steps()[1] == before[1]
        assert gap(job.positions()) == [] and job.positions()[0] == 0
    injected(33)


# ---- tokctl is killed ----

KILLS = 40
LONGEST_S = 0.06  # a request takes about half of it


def kill_many(daemons, rng):
    """Starts requests until KILLS of them were killed. Returns the number of the others."""
    requests = (
        ["mix", "web=1", f"code={rng.randrange(1, 9)}"],
        ["skip", "--samples", rng.randrange(1, 1000)],
        ["checkpoint", "--tag", "killed"],
        ["drain"],
        ["rescale", "--world", rng.randrange(1, 5)],
    )
    killed = ended = 0
    while killed < KILLS:
        tokctl = ask(rng.choice(daemons), *rng.choice(requests))
        time.sleep(rng.uniform(0, LONGEST_S))
        tokctl.kill()
        tokctl.communicate()
        killed += tokctl.returncode == -signal.SIGKILL
        ended += tokctl.returncode != -signal.SIGKILL
    return ended


def test_all_ranks_act_at_one_step_or_none_does_when_tokctl_is_killed(daemon, seed):
    """Later requests work."""
    with another_daemon() as other:
        sockets = [daemon.socket, other.socket, other.socket]
        options = {"pause": 0.004, "every": 0.02, "goes_on": True}
        with Job(daemon.directory, sockets, steps=FOR_EVER, **options) as job:
            job.wait_for_steps(20)
            ended = kill_many([daemon, other], random.Random(seed))
            asked = lambda: any(s["request"] for d in (daemon, other) for s in status(d.socket)[0])
            wait_until(lambda: not asked(), "the end of all requests")
            answer(ask(other, "skip", "--samples", 123))
            last = len(job.of(0, "took"))
            job.wait_for_steps(last + 50)
            acted = [note["request"] for note in same_on_all(job, steps=last)]
            assert 1 < len(acted) < KILLS + ended + 1, "some were killed too early"
            skips = [each for each in acted if each["kind"] == "skip" and not each["error"]]
            skipped = sum(each["args"]["samples"] for each in skips)
            assert len(gap(job.positions(last + 40))) == skipped, "each position was taken once"
    injected(35, len(acted) - ended - 1)  # at least so many were killed after they had asked
