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
from test_control import FOR_EVER, answer, ask, gap, same_on_all, sessions

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
        killed += tokctl.returncode == -signal.SIGKILL
        ended += tokctl.returncode != -signal.SIGKILL
    return ended


def test_all_ranks_act_at_one_step_or_none_does_when_tokctl_is_killed(daemon, seed):
    rng = random.Random(seed)
    with another_daemon() as other:
        sockets = [daemon.socket, other.socket, other.socket]
        options = {"pause": 0.004, "every": 0.02, "goes_on": True}
        with Job(daemon.directory, sockets, steps=FOR_EVER, **options) as job:
            job.wait_for_steps(20)
            ended = kill_many([daemon, other], rng)
            wait_until(
                lambda: not any(s["request"] for s in sessions(daemon) + sessions(other)),
                "the end of all requests",
            )
            answer(ask(other, "skip", "--samples", 123))
            last = len(job.of(0, "took"))
            job.wait_for_steps(last + 50)
            acted = [note["request"] for note in same_on_all(job, steps=last)]
            print(f"{KILLS} killed ({ended} ended before), {len(acted)} requests were carried out")
            assert 1 < len(acted) < KILLS + ended + 1, "some were killed too early"
            skips = [each for each in acted if each["kind"] == "skip" and not each["error"]]
            skipped = sum(each["args"]["samples"] for each in skips)
            assert len(gap(job.positions(last + 40))) == skipped, "each position was taken once"
    injected(35, len(acted) - ended - 1)  # at least so many were killed after they had asked
