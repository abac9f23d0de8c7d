"""Two processes of one rank both get a warning, or the second waits for the first to end.

The daemon's clock is five times as fast, so that a warning that does not come is not waited for
long: SILENT_S are five of its seconds, and it warns within two.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import pytest
from lib import TOKEND, child_environment, run, wait_for, wait_until
from lib.preload import Preload
from lib.stock import StockDaemon
from loading import make

SILENT_S = 1
FAST = r"""
#include <sys/epoll.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *to)
{
	static _Atomic int64_t begin;
	static __thread int64_t last;
	NEXT(clock_gettime);
	int error = next(id, to);
	int64_t now = to->tv_sec * INT64_C(1000000000) + to->tv_nsec, none = 0, late = words[LATE];

	if (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE)
		return error;
	now = late < 0 ? -late : now - late; /* below 0: it stands still */
	atomic_compare_exchange_strong(&begin, &none, now);
	now = begin + 5 * (now - begin);
	last = now = now > last ? now : last;
	*to = (struct timespec){now / 1000000000, now % 1000000000};
	words[CALLS]++;
	return error;
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int ms, const sigset_t *set)
{
	NEXT(epoll_pwait);
	return next(fd, events, most, ms > 0 ? (ms + 4) / 5 : ms, set);
}
"""
TRAINER = """
import json, os, signal, sys, time, warnings
import tokend

def say(**what):
    print(json.dumps(what), flush=True)

def said(message, category, filename, *_):
    say(warned=str(message), at=filename, of=repr(globals().get("loader")))

warnings.showwarning = said
warnings.simplefilter("always")
options = json.loads(sys.argv[1])
pause, control = options.pop("pause", 0), options.pop("control", False)
seek = options.pop("seek", None)
try:
    loader = tokend.Loader("train", 4, framework="numpy", **options)
except tokend.Error as error:
    say(refused=str(error))
    sys.exit()
say(attached=os.getpid())
if seek is not None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    next(loader)
    signal.sigwait([signal.SIGUSR1])
    loader.seek(rank=seek)
    say(sought=seek)
    pause = 0.1
for step, batch in enumerate(loader, 1):
    say(step=step) if pause else None
    time.sleep(pause or 0.001)
    if control:
        loader.control()
    elif step % 5 == 0 and not pause:
        loader.seek(position=0)
"""


class Trainer:
    """A process that prints a line of JSON for each thing that it does, and for each warning."""

    def __init__(self, daemon, env=None, **options):
        command = [sys.executable, "-c", TRAINER, json.dumps({"socket": daemon.socket, **options})]
        self.out, self.taken = tempfile.TemporaryFile(), set()
        ways = {"stdout": self.out, "stderr": self.out, "env": child_environment(**(env or {}))}
        self.process = subprocess.Popen(command, **ways)
        self.pid = self.process.pid

    def unread(self, what=""):
        """The lines with @what that were not taken: [(number, line)]."""
        lines = enumerate(os.pread(self.out.fileno(), 1 << 20, 0).decode().splitlines(True))
        return [
            (i, json.loads(text))
            for i, text in lines
            if what in text and text[-1] == "\n" and i not in self.taken
        ]

    def line(self, seconds, what=""):
        """The next line, or None."""
        if not wait_for(lambda: self.unread(what), seconds, 0.02):
            return None
        number, line = self.unread(what)[0]
        self.taken.add(number)
        return line

    def says(self, what, seconds=20):
        line = self.line(seconds, f'{{"{what}": ')
        assert line is not None, (what, self.unread())
        return line[what]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.out.close()


@pytest.fixture
def daemon(place):
    fast = Preload(place, FAST, ["calls", "late"])
    stock = StockDaemon(place.path, env=fast.env)
    stock.start()
    wait_until(lambda: fast.get("calls") > 0, "a fast clock")
    stock.clock = fast
    yield stock
    stock.end()


@pytest.fixture
def trainers(daemon):
    """Starts processes, and ends them after the test."""
    made = []

    def start(**options):
        made.append(Trainer(daemon, **options))
        return made[-1]

    yield start
    for trainer in made:
        trainer.end()


def test_two_plain_processes_are_both_warned_once(daemon, trainers):
    one = trainers()
    assert one.says("attached") == one.pid  # it has its loader before it is warned
    two = trainers()
    assert two.says("attached") == two.pid
    for trainer, other in ((one, two), (two, one)):
        warned = trainer.line(20)
        for text in (f"pid {trainer.pid} on", f"by pid {other.pid} on", "rank 0 of 1 of run def"):
            assert text in warned["warned"]
        assert warned["at"] == "<string>", "it is shown at the line of the trainer's own loop"
        assert trainer is two or "rank 0 of 1; " in warned["of"], "its handler may use the loader"
    three = trainers()
    three.says("attached")
    three.says("warned")
    assert one.line(SILENT_S) is None and two.line(0) is None
    assert len(daemon.said("is read twice, by pid")) == 1


@pytest.mark.parametrize("control", [False, True])
def test_both_are_warned_within_two_seconds(trainers, control):
    """Steps of 0.1 s, whatever the ring holds; the second process as it attaches."""
    one = trainers(pause=0.1, control=control)
    one.says("attached")
    for _ in range(30):  # a look that found nothing is not the last
        one.says("step")
    two = trainers(pause=20, control=control)
    assert "warned" in two.line(20)
    two.says("attached")
    began = time.monotonic()
    while "warned" not in (line := one.line(2) or {}):
        assert "step" in line and time.monotonic() - began < 2


def test_ranks_that_exchange_their_places_are_not_twins(daemon, trainers):
    """For a moment they are. Those that stay so are warned a second or two later."""
    other = trainers(rank=1, world=2, seek=0)
    other.says("attached")

    def steps(loader, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            next(loader)
            time.sleep(0.1)

    with make(daemon, world=2) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(loader)
            stands = time.monotonic_ns()
            daemon.clock.set(late=-stands)
            loader.seek(rank=1)  # the other one is still there
            next(loader)
            other.process.send_signal(signal.SIGUSR1)
            assert other.says("sought") == 0
            daemon.clock.set(late=time.monotonic_ns() - stands)
            steps(loader, SILENT_S)
        loader.seek(rank=0)
        with pytest.warns(RuntimeWarning, match="both take the same samples"):
            steps(loader, 5 * SILENT_S)


def test_other_processes_of_the_job_are_not_twins(daemon, trainers):
    """Another rank, world, run or peer; and a process with several sessions that seeks and
    reconnects.
    """
    places = ({"rank": 0, "world": 2}, {"rank": 1, "world": 2}, {}, {"peer": 1}, {"run": "other"})
    started = [trainers(**place) for place in places]
    for trainer in started:
        trainer.says("attached")
    daemon.kill()
    daemon.start()
    with make(daemon, run="mine") as one, make(daemon, run="mine") as two:
        time.sleep(SILENT_S)
        for loader in (one, two):
            for _ in range(100):
                next(loader)
    assert [trainer.line(0) for trainer in started] == [None] * 5
    assert "is read twice, by" not in daemon.log()


def test_the_second_of_a_named_run_under_a_launcher_waits_for_the_first(trainers):
    """It names both, and attaches once the first is killed, also if that one hangs. Without a name
    they may be two jobs.
    """
    launcher = {"RANK": "0", "WORLD_SIZE": "1"}
    for trainer in [trainers(env=launcher) for _ in range(2)]:
        trainer.says("attached")
        trainer.says("warned")
    launcher["TORCHELASTIC_RUN_ID"] = "abc"
    one = trainers(env=launcher)
    one.says("attached")
    began = time.monotonic()
    late = trainers(env=launcher, deadline=3.0)
    for text in (late.says("warned"), late.says("refused")):
        assert f"is read twice, by pid {one.pid} on" in text and f"by pid {late.pid} on" in text
    assert time.monotonic() - began > 3 and one.line(0) is None
    one.process.send_signal(signal.SIGSTOP)
    two = trainers(env=launcher)
    assert f"pid {one.pid}" in two.says("warned")
    one.process.kill()
    assert "goes on" in two.says("warned", 10)
    assert two.says("attached", 10) == two.pid and two.line(SILENT_S) is None
    three = trainers(env=launcher, group=False)
    three.says("attached")
    for trainer in (two, three):
        trainer.says("warned")


def test_processes_with_unknown_pids_are_distinguished(daemon, trainers):
    """A daemon in a PID namespace of its own sees all of its clients as pid 0."""
    if run("unshare", "--pid", "--fork", "true")[0] != 0:
        pytest.skip("no PID namespaces here")
    daemon.stop()
    daemon.program = daemon.directory / "apart"
    daemon.program.write_text(f'#!/bin/sh\nexec unshare --pid --fork --kill-child {TOKEND} "$@"\n')
    daemon.program.chmod(0o755)
    daemon.start()
    one = trainers()
    one.says("attached")
    assert one.line(SILENT_S) is None, "it seeks, and is not its own twin"
    two = trainers()
    two.says("attached")
    for trainer in (one, two):
        assert "a process in another PID namespace" in trainer.says("warned")
