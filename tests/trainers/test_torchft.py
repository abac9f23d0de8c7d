"""torchft with two replica groups: one is killed within a step, restarts and recovers; the other
repeats the failed step.
"""

import os
import re
import sys
import time

import pytest

from harness import LIMIT_S, Job, all_taken
from lib import rows_at, wait_for

STEPS, MICRO = 24, 2
FAIL = """if manager.current_step() == 18 and not globals().setdefault("failed", False):
        failed = True
        manager.report_error(RuntimeError("as if the network had failed"))
    optimizer.step()"""


def wait(condition, what):
    if not wait_for(condition, LIMIT_S, 0.02):
        raise RuntimeError(f"timeout: {what}")


def proof(job, steps):
    """Asserts that every committed step took the next rows, divided among its groups."""
    order = rows_at(job.yaml, "train", 0, 2 * MICRO * steps)
    position = {tuple(map(int, job.seen(row))): i for i, row in enumerate(order)}
    position[(0,) * job.seq_len] = None  # a group that only recovered
    committed, given_back = {}, set()
    for start in job.starts:
        for step, rows in job.steps(start).items():
            if step is None:
                given_back |= {position[tuple(row)] for row in rows} - {None}
            else:
                committed.setdefault(step, []).append(
                    [at for at in (position[tuple(row)] for row in rows) if at is not None]
                )
    at, worlds, wrong = 0, [], []
    for step in range(1, steps + 1):
        groups = committed.get(step, [])
        rows = sorted(sum(groups, []))
        if not rows or rows != list(range(at, at + len(rows))):
            wrong.append(f"step {step}: {groups}, want from {at}")
        at += len(rows)
        worlds.append(len(rows) // MICRO)
    changes = [world for i, world in enumerate(worlds) if i == 0 or worlds[i - 1] != world]
    assert not wrong, (f"rows 0 to {at - 1}, each once, in the order of {steps} steps", wrong)
    assert changes == [1, 2, 1, 2], "number of groups per step"
    assert sorted(step for step in committed) == list(range(1, steps + 1))
    twice = [
        committed_rows
        for committed_rows in committed.get(19, [[]])
        if set(committed_rows) <= given_back
    ]
    # It first failed in both groups: its rows are served again.
    assert len(twice) == 2
    verdict = job.verify(at)
    assert verdict == all_taken(at), "tokctl verify"
    for start, layout in zip(job.starts, ("1 group", "2, live", "2 again"), strict=True):
        start.layout = layout
    job.proven(verdict, ["5, live"])


def lighthouse(job):
    """Starts torchft's lighthouse. Returns its address."""
    log = job.file("lighthouse.log")
    program = os.path.join(os.path.dirname(sys.executable), "torchft_lighthouse")
    bind = """--min_replicas 1 --bind 127.0.0.1:0 --join_timeout_ms 2000
        --heartbeat_timeout_ms 1000""".split()
    with open(log, "wb") as out:
        job.spawn([program, *bind], stdout=out, stderr=out)
    wait(lambda: "listening on: http" in open(log).read(), "the lighthouse")
    return "http://127.0.0.1:" + re.search(r"listening on: http://.*:(\d+)", open(log).read())[1]


def live(mode):
    with Job("train_torchft.py", micro_batch=MICRO, discards=True) as job:
        if mode == "sync":
            job.edit("min_replica_size=1,", "min_replica_size=1, use_async_quorum=False,")
        job.edit("optimizer.step()", FAIL)  # in all groups at once, so their world does not change
        there = {"TORCHFT_LIGHTHOUSE": lighthouse(job)}

        def join(first, after, **more):
            """Starts another group while the first one is held after some steps."""
            wait(
                lambda: first.noted_any(held=after) or first.ended(),
                f"the first group's step {after + 1}",
            )
            other = job.launch(1, STEPS, REPLICA_GROUP_ID=1, **there, **more)
            wait(lambda: other.noted_any(loader="train") or other.ended(), "the other group")
            time.sleep(2)
            first.release(after)
            return other

        first = job.launch(1, STEPS, hold=[2, 12], REPLICA_GROUP_ID=0, **there)
        second = join(first, 2, hold=[5])
        wait(lambda: second.noted_any(held=5) or second.ended(), "the second group's 6th step")
        second.kill()
        third = join(first, 12)
        wait(lambda: first.ended() and third.ended(), "the end")
        ended = [first.child.poll(), third.child.poll()]
        assert ended == [0, 0], (first.kill()[-6000:], third.kill()[-6000:])
        proof(job, STEPS)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_killed_group_recovers(mode):
    live(mode)
