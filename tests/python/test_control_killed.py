"""tokctl is killed at random moments of requests. All processes of the job act on a request at one
step, or none does, and later requests work.
"""

import random
import signal
import time

from job import Job
from lib import wait_until
from lib.injected import injected
from lib.stock import another_daemon
from test_control import answer, ask, gap

KILLS = 40
LONGEST_S = 0.06  # a request takes about half of it
KINDS = {
    "mix": lambda rng: ["web=1", f"code={rng.randrange(1, 9)}"],
    "skip": lambda rng: ["--samples", rng.randrange(1, 1000)],
    "checkpoint": lambda rng: ["--tag", "killed"],
    "drain": lambda rng: [],
    "rescale": lambda rng: ["--world", rng.randrange(1, 5)],
}


def kill_many(daemons, rng):
    """Starts requests until KILLS of them were killed. Returns the number of the others."""
    killed = ended = 0
    while killed < KILLS:
        kind = rng.choice([*KINDS])
        tokctl = ask(rng.choice(daemons), kind, *KINDS[kind](rng))
        time.sleep(rng.uniform(0, LONGEST_S))
        tokctl.kill()
        tokctl.communicate()
        if tokctl.returncode == -signal.SIGKILL:
            killed += 1
        else:
            ended += 1
    return ended


def open_requests(daemon):
    sessions = daemon.tokctl("status", "--socket", daemon.socket, "--json")[:-1]
    return [session["request"] for session in sessions if session["request"]]


def test_all_ranks_act_at_one_step_or_none_does_when_tokctl_is_killed(daemon, seed):
    rng = random.Random(seed)
    with (
        another_daemon() as other,
        Job(
            daemon.directory,
            [daemon.socket, other.socket, other.socket],
            steps=100_000,
            pause=0.004,
            every=0.02,  # seconds between two looks for a request
            goes_on=True,
        ) as job,
    ):
        job.wait_for_steps(20)
        ended = kill_many([daemon, other], rng)
        wait_until(
            lambda: not open_requests(daemon) + open_requests(other), "the end of all requests"
        )
        samples = 123
        answer(ask(other, "skip", "--samples", samples))
        last = len(job.of(0, "took"))
        job.wait_for_steps(last + 50)
        acted = same_within(job, last)
        print(f"{KILLS} killed ({ended} ended before), {len(acted)} requests were carried out")
        assert 1 < len(acted) < KILLS + ended + 1, "some were killed too early to have an effect"
        skipped = sum(
            note["request"]["args"]["samples"]
            for note in acted
            if note["request"]["kind"] == "skip" and not note["request"]["error"]
        )
        assert len(gap(job.positions(last + 40))) == skipped, "each position was taken once"
    injected(35, len(acted) - ended - 1)  # at least so many were killed after they had asked


def same_within(job, steps):
    """The requests that all processes noted up to step @steps: the same at the same steps."""
    notes = [
        [line for line in job.lines(rank) if "request" in line and line["step"] <= steps]
        for rank in range(len(job.files))
    ]
    assert all(note == notes[0] for note in notes)
    return notes[0]
