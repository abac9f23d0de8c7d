"""The wall clock jumps by minutes, days and a century, forwards and backwards, in daemon, trainers
and tokctl: nothing waits longer or gives up sooner, and operators' requests are carried out.

A preloaded library shifts the clock that the processes see.
"""

import pytest
from job import Job
from lib import status, wait_until
from lib.injected import injected
from lib.preload import Preload
from lib.stock import StockDaemon
from test_control import FOR_EVER, answer, ask, gap

SHIFTED = r"""
#include <errno.h>
#include <string.h>
#include <time.h>

enum { REAL, LIVED };
static _Atomic int64_t last = INT64_MIN;

/* The daemon's counters, or those of all other processes. */
static _Atomic int64_t *counter(int which)
{
	return &words[(strcmp(program_invocation_short_name, "tokend") ? OTHERS : TOKEND) + which];
}

int clock_gettime(clockid_t id, struct timespec *to)
{
	NEXT(clock_gettime);
	int error = next(id, to);

	if (!words || error)
		return error;
	if (atomic_exchange(&last, words[SHIFT]) != words[SHIFT])
		(*counter(LIVED))++;
	if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) {
		(*counter(REAL))++;
		to->tv_sec += words[SHIFT];
	}
	return 0;
}

time_t time(time_t *to)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (to)
		*to = now.tv_sec;
	return now.tv_sec;
}
"""
WORDS = ["shift", "tokend", "tokend_lived", "others", "others_lived"]
MINUTE, DAY, YEAR = 60, 86_400, 31_557_600
SHIFTS = [5 * MINUTE, -DAY, 30 * DAY, 0, -20 * YEAR, 100 * YEAR, 7 * MINUTE, -7 * MINUTE]
SKIPPED = 64


@pytest.fixture
def clock(place):
    return Preload(place, SHIFTED, WORDS)


@pytest.fixture
def daemon(directory, clock, monkeypatch):
    for name, value in clock.own.items():
        monkeypatch.setenv(name, value)
    stock = StockDaemon(directory)
    yield stock.start()
    stock.end()


@pytest.mark.limit(200)  # less than the least jump: nothing waits for the clock to come back
def test_a_job_does_not_notice_that_the_clock_jumps(daemon, clock):
    starts = 1
    with Job(daemon.directory, [daemon.socket] * 2, steps=FOR_EVER) as job:
        for number, shift in enumerate(SHIFTS):
            job.wait_for_steps(max(job.steps()) + 20)
            clock.set(shift=shift, tokend_lived=0, others_lived=0)
            if number % 2:  # it returns with another clock
                daemon.kill()
                daemon.start()
                starts += 1
            wait_until(lambda: len(status(daemon.socket)[0]) == 2, "the trainers' return")
            answer(ask(daemon, "skip", "--samples", SKIPPED))
            wait_until(lambda: clock.get("tokend_lived") >= 1, "the jump, in the daemon")
            wait_until(lambda: clock.get("others_lived") >= 2, "the jump, in the trainers")
            injected(20)
        answer(ask(daemon, "drain"))
        job.wait()
        positions, lost = job.positions(), [job.of(rank, "lost_wakes") for rank in range(2)]
    assert positions[0] == 0 and len(gap(positions)) == len(SHIFTS) * SKIPPED, "none was lost"
    assert lost == [[0], [0]], "no wake-up was lost"
    # At a start and an attach, and for a warning's time: for people and metrics, never to wait by.
    assert 0 < clock.get("tokend") <= 6 * starts, "the daemon seldom looks at the wall clock"
