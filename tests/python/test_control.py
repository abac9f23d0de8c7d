"""tokctl's requests to jobs of one and of several processes."""

import json
import subprocess
import sys
import threading
import time

import pytest
from lib import BIN, child_environment, wait_until
from lib.injected import injected
from lib.stock import another_daemon
from job import Job

import tokend


def ask(daemon, kind, *arguments, run="job"):
    """Starts tokctl with a request."""
    command = [
        BIN / "tokctl",
        kind,
        "train",
        *map(str, arguments),
        "--run",
        run,
        "--socket",
        daemon.socket,
        "--json",
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()
    )


def answer(tokctl, status=0, seconds=60):
    """Its last line of JSON, or its stderr."""
    out, err = tokctl.communicate(timeout=seconds)
    assert tokctl.returncode == status, out + err
    return json.loads(out.splitlines()[-1]) if status == 0 else err


def take_until(loader, event, steps=10_000):
    """Trains until control() returns a request. Appends every position taken to @event's list."""
    for _ in range(steps):
        event.extend(next(loader)["position"].tolist())
        request = loader.control()
        if request is not None:
            return request
        time.sleep(0.001)
    raise AssertionError("no request came")


def gap(positions):
    """The positions missing between the first and the last. No position may occur twice."""
    assert len(positions) == len(set(positions))
    return sorted(set(range(min(positions), max(positions) + 1)) - set(positions))


# ---- one process ----


@pytest.fixture
def loader(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket, run="job") as loader:
        yield loader


def test_alone_a_mix_acts_at_once(daemon, loader):
    taken = []
    tokctl = ask(daemon, "mix", "web=1", "code=3")
    request = take_until(loader, taken)
    assert (request.kind, request.args) == ("mix", {"weights": {"web": 1.0, "code": 3.0}})
    assert not request, "a loop that saves if it got a request does not save for a mix"
    assert (request.acts_from, request.error, request.save, request.stop) == (
        1024,
        None,
        False,
        False,
    )
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
    before, behind = request.acts_from - 1000, request.acts_from
    assert next(loader)["position"][0] == behind
    for wrong in (before + 4, behind, behind + 3):
        with pytest.raises(tokend.ArgumentError):
            loader.commit(wrong)
    loader.commit(nexts[2])
    assert loader.position == nexts[2]
    loader.commit(before)  # the last before the skip
    assert loader.position == behind
    loader.commit()
    assert loader.position == loader.taken == behind + 4


def test_alone_a_lost_daemon_is_found_while_batches_are_left_and_its_requests_arrive(
    daemon, loader
):
    next(loader)
    daemon.kill()
    daemon.start()
    taken = []
    while loader.stats()["reattached"] == 0:  # a batch between any two calls
        assert len(taken) < 40, "the ring is nearly empty"
        taken.extend(next(loader)["position"].tolist()[:1])
        loader.control()
        time.sleep(0.1)
    assert taken == list(range(4, 4 + 4 * len(taken), 4))
    tokctl = ask(daemon, "skip", "--samples", 96)
    assert take_until(loader, taken).acts_from == taken[-1] + 1 + 96
    answer(tokctl)


def test_alone_a_skip_and_a_refused_mix(daemon, loader):
    taken = []
    tokctl = ask(daemon, "skip", "--samples", 1000)
    request = take_until(loader, taken)
    assert request.acts_from == taken[-1] + 1 + 1000
    answer(tokctl)
    tokctl = ask(daemon, "mix", "web=1", "wiki=3")
    request = take_until(loader, taken)
    assert request.kind == "mix" and "wiki" in request.error and not request.save
    assert "wiki" in answer(tokctl, status=1)
    assert len(gap(taken + next(loader)["position"].tolist())) == 1000


def test_alone_a_checkpoint_has_the_trainers_cursor(daemon, loader):
    taken = []
    tokctl = ask(daemon, "checkpoint", "--tag", "mine")
    request = take_until(loader, taken)
    assert request.save and not request.stop and request.args == {"tag": "mine"}
    time.sleep(0.2)
    assert tokctl.poll() is None  # it waits for done()
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
    assert request and request.save and request.stop and loader.should_stop
    {"control": loader.control, "close": loader.close, "seek": lambda: loader.seek(position=0)}[
        ending
    ]()
    assert "rank 0 (pid" in (why := answer(tokctl, status=1)) and "request.done()" in why
    request.done()  # too late: it is reported


def test_alone_a_seek_after_a_drain_goes_on(daemon, loader):
    tokctl = ask(daemon, "drain")
    request = take_until(loader, [])
    request.done()
    answer(tokctl)
    assert loader.should_stop
    loader.seek(micro_batch=2)
    assert not loader.should_stop
    tokctl = ask(daemon, "skip", "--samples", 100)
    assert take_until(loader, []).kind == "skip"
    answer(tokctl)


def test_a_trainer_that_raises_reports_a_failure(daemon):
    tokctl = ask_when_there(daemon, "drain")
    with (
        pytest.raises(OSError, match="disk"),
        tokend.Loader("train", 4, socket=daemon.socket, run="job") as loader,
    ):
        take_until(loader, [])
        raise OSError("the disk is full")
    assert "OSError: the disk is full" in answer(tokctl.result(), status=1)


class ask_when_there:
    """ask(), as soon as there is a session."""

    def __init__(self, daemon, *arguments):
        self.thread = threading.Thread(target=self.run, args=(daemon, *arguments))
        self.thread.start()

    def run(self, daemon, *arguments):
        wait_until(
            lambda: len(daemon.tokctl("status", "--socket", daemon.socket, "--json")) > 1,
            "a session",
        )
        self.tokctl = ask(daemon, *arguments)

    def result(self):
        self.thread.join()
        return self.tokctl


def test_a_loader_of_several_ranks_without_a_group_is_refused(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket, rank=1, world=2) as loader:
        with pytest.raises(tokend.ArgumentError, match="rank 1 of 2 .*pass group="):
            loader.control()
        loader.seek(rank=0, world=1)
        assert loader.control() is None


# ---- several processes ----


def same_on_all(job, what="request"):
    """The requests that all processes noted: the same, at the same step."""
    notes = [[line for line in job.lines(rank) if what in line] for rank in range(len(job.files))]
    assert all(note == notes[0] for note in notes)
    return notes[0]


@pytest.mark.parametrize("world", [2, 4])
def test_all_ranks_act_at_one_step(daemon, world):
    with Job(daemon.directory, [daemon.socket] * world, steps=100_000) as job:
        job.wait_for_steps(20)
        mixed = answer(ask(daemon, "mix", "web=1", "code=3"))
        skipped = answer(ask(daemon, "skip", "--samples", 777))
        answer(ask(daemon, "checkpoint", "--tag", "here"))
        drained = answer(ask(daemon, "drain"))
        job.wait()
        requests = same_on_all(job)
        assert [note["request"]["kind"] for note in requests] == [
            "mix",
            "skip",
            "checkpoint",
            "drain",
        ]
        assert [note["request"]["error"] for note in requests] == [None] * 4
        assert mixed["acts_from"] == requests[0]["request"]["acts_from"]
        assert skipped["acts_from"] == requests[1]["request"]["acts_from"]
        # exactly once, except for skipped samples
        positions, end = job.positions(), job.lines(0)[-1]["end"]
        assert gap(positions) == list(range(skipped["acts_from"] - 777, skipped["acts_from"]))
        assert (positions[0], positions[-1]) == (0, end - 1)
        assert drained["position"] == end
        # in the requested mix, from the reported position
        cursor = bytes.fromhex(job.lines(0)[-1]["cursor"])
        taken = {
            row[0]: row[1] for rank in range(world) for rows in job.of(rank, "took") for row in rows
        }
        names = tokend.Cursor(cursor).datasets
        old, new = (
            daemon.plan("train", 0, end),
            daemon.plan("train", mixed["acts_from"], max(end - mixed["acts_from"], 1), cursor),
        )
        for row in old[: mixed["acts_from"]] + new:
            assert names[taken.get(row["position"], names.index(row["dataset"]))] == row["dataset"]
        # saved once, equal on all
        saved = daemon.directory / "state" / "train" / "job" / "here.cursor"
        assert saved.read_bytes().hex() == requests[2]["cursor"]
        assert not saved.with_name("here.cursor.former").exists()
        assert [job.lines(rank)[-1]["lost_wakes"] for rank in range(world)] == [0] * world


def test_requests_on_two_nodes_at_once_are_both_carried_out(daemon):
    with (
        another_daemon() as other,
        Job(daemon.directory, [daemon.socket, other.socket], steps=100_000) as job,
    ):
        job.wait_for_steps(20)
        one, two = ask(daemon, "skip", "--samples", 100), ask(other, "skip", "--samples", 1000)
        answer(one), answer(two)
        answer(ask(other, "drain"))
        job.wait()
        assert sorted(note["request"]["args"].get("samples", 0) for note in same_on_all(job)) == [
            0,
            100,
            1000,
        ]
        assert len(gap(job.positions())) == 1100
        injected(35, 2)


def test_a_loop_that_ignores_a_drain_is_warned_and_gets_requests_again(daemon):
    with Job(daemon.directory, [daemon.socket] * 2, steps=100_000, stays=True) as job:
        job.wait_for_steps(20)
        answer(ask(daemon, "drain"))
        skipped = answer(ask(daemon, "skip", "--samples", 1000))
        answer(ask(daemon, "drain"))
        requests = same_on_all(job)
        assert [note["request"]["kind"] for note in requests] == ["drain", "skip", "drain"]
        job.wait_for_steps(len(job.of(0, "took")) + 20)
        to = skipped["acts_from"]
        assert set(range(to - 1000, to)) <= set(gap(job.positions()))
        for rank in range(2):
            assert "the loop goes on after a drain or rescale" in job.said(rank)


def stands_still(job):
    """Whether no process takes a batch for a while."""
    before = [len(job.lines(rank)) for rank in range(len(job.files))]
    time.sleep(0.4)
    return before == [len(job.lines(rank)) for rank in range(len(job.files))]


def test_a_request_that_one_node_refuses_is_carried_out_on_none(daemon):
    with (
        another_daemon() as other,
        Job(daemon.directory, [daemon.socket, other.socket], steps=100_000) as job,
    ):
        job.wait_for_steps(20)
        assert "wiki" in answer(ask(daemon, "mix", "wiki=1", "web=1"), status=1)
        other.freeze()  # it refuses the request: its session cannot get another ring
        tokctl = ask(daemon, "skip", "--samples", 100)
        wait_until(lambda: stands_still(job), "the wait for the daemon that is stopped")
        other.kill()
        other.start()
        answer(tokctl)
        answer(ask(daemon, "drain"))
        job.wait()
        assert [bool(note["request"]["error"]) for note in same_on_all(job, "step")] == [
            True,
            False,
            False,
        ]
        assert len(gap(job.positions())) == 100
        injected(35, 2)


@pytest.mark.parametrize("late", [None, 600])
def test_a_process_that_never_calls_control_stops_nobody(daemon, late):
    options = {"calls_from": [0, late], "first_wait": 0.5}
    with Job(daemon.directory, [daemon.socket] * 2, steps=100_000, **options) as job:
        job.wait_for_steps(20 if late is None else late + 5)
        wait_until(lambda: "not every process" in job.said(0), "the warning")
        said = answer(ask(daemon, "mix", "web=1", "code=1", "--timeout", 3), status=1)
        assert "not every process" in said or "rank 1" in said
        job.wait_for_steps(max(job.steps()) + 100)
        assert same_on_all(job) == []
        assert gap(job.positions(min(job.steps()) - 1)) == []
        assert [
            len(tokend.Cursor(bytes.fromhex(job.of(rank, "cursor")[-1])).segments)
            for rank in range(2)
        ] == [1, 1]


@pytest.mark.parametrize("more", [0, 3])
def test_a_rank_that_takes_more_batches_than_the_others_is_noticed(daemon, more):
    with Job(daemon.directory, [daemon.socket] * 2, steps=100_000, evaluates=[more, 0]) as job:
        job.wait_for_steps(20)
        if more:
            for rank in (0, 1):
                wait_until(lambda rank=rank: "ranks are at positions" in job.said(rank), "it")
                warned = job.said(rank).partition("ranks are at positions")[2].splitlines()
                assert warned[1].strip() == "request = loader.control()"
        answer(ask(daemon, "drain"), status=1 if more else 0)
        if not more:
            job.wait()
            assert "ranks are at positions" not in job.said(0) + job.said(1)


def test_a_job_killed_between_receiving_and_acting_loses_nothing(daemon):
    with Job(daemon.directory, [daemon.socket] * 2, steps=100_000, dies=[None, "acting"]) as job:
        job.wait_for_steps(20)
        said = answer(ask(daemon, "skip", "--samples", 500, "--timeout", 20), status=1)
        assert "rank 1" in said
        first, second = job.processes
        second.join(60)
        assert second.exitcode < 0
        first.join(60)
        assert first.exitcode
        # Any step of the dead job is a checkpoint: samples taken before it and after the resume are
        # all samples.
        step = min(job.steps()) // 2
        before, cursor = job.positions(step), job.of(0, "cursor")[step - 1]
    with Job(daemon.directory, [daemon.socket] * 3, steps=50, cursor=cursor) as job:
        job.wait()
        assert sorted(before + job.positions()) == list(range(len(before) + 50 * 3 * 4))
    injected(35)


RESCALE = """
import json, sys
import torch.distributed as dist
import tokend

rank, socket, meet = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
only_0 = dist.new_group([0], backend="gloo")
loader = tokend.Loader("train", 4, socket=socket, run="job")
print(json.dumps({"ready": True}), flush=True)


def train(until):
    taken = []
    while True:
        taken += next(loader)["position"].tolist()
        if loader.world > 1:
            dist.barrier()
        request = loader.control()
        if until(request, len(taken)):
            print(json.dumps({"taken": taken}), flush=True)
            return request


request = train(lambda request, n: request is not None)
assert request.kind == "rescale" and request.args["world"] == 1 and loader.should_stop
request.done()
box = [None]
if rank == 0:
    loader.seek(rank=0, world=1, group=only_0)
    assert not loader.should_stop
    train(lambda request, n: request is not None and request.kind == "skip")
    box = [loader.state_dict()]
else:
    loader.close()
dist.broadcast_object_list(box, src=0)
if rank == 0:
    loader.seek(box[0]["cursor"], rank=0, world=2, group=dist.group.WORLD)
else:
    loader = tokend.Loader(
        "train",
        4,
        socket=socket,
        run="job",
        rank=1,
        world=2,
        start=box[0]["cursor"],
        group=dist.group.WORLD,
    )
print(json.dumps({"ready": True}), flush=True)
request = train(lambda request, n: request is not None)
assert request.kind == "drain", request
request.done()
loader.close()
dist.destroy_process_group()
"""


def test_a_world_may_change_within_its_processes(daemon):
    command = [sys.executable, "-c", RESCALE]
    more = [daemon.socket, str(daemon.directory / "meet")]
    environment = child_environment(OMP_NUM_THREADS="1")
    trainers = [
        subprocess.Popen(
            [*command, str(rank), *more], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        for trainer in trainers:
            assert json.loads(trainer.stdout.readline()) == {"ready": True}
        answer(ask(daemon, "rescale", "--world", 1))
        first = [json.loads(trainer.stdout.readline())["taken"] for trainer in trainers]
        wait_until(
            lambda: len(daemon.tokctl("status", "--socket", daemon.socket, "--json")) == 2,
            "the other's end",
        )
        skip = ask(daemon, "skip", "--samples", 64)
        second = json.loads(trainers[0].stdout.readline())["taken"]
        answer(skip)
        for trainer in trainers:
            assert json.loads(trainer.stdout.readline()) == {"ready": True}
        answer(ask(daemon, "drain"))
        third = [json.loads(trainer.stdout.readline())["taken"] for trainer in trainers]
        assert [trainer.wait(60) for trainer in trainers] == [0, 0]
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
            trainer.stdout.close()
    positions = [*first[0], *first[1], *second, *third[0], *third[1]]
    assert len(set(positions)) == len(positions)
    assert max(positions) + 1 == len(positions) + 64
    assert min(positions) == 0
    injected(33, 2)
