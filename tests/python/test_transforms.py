"""Transforms in the trainer's process and in workers give the same rows at the same positions;
workers that are killed, hang, are interrupted, or lose their trainer.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
import transforms
from loading import SEQ, make, positions, python, rows_of

import tokend
from lib import TOKCTL, child_environment, run, wait_until
from lib.order_reference import derive

IN_PLACE = transforms.in_place


def transformed(daemon, function, row):
    rng = numpy.random.Generator(numpy.random.Philox(key=derive(42, 7, row["position"])))
    return function(rows_of(daemon, [row])[0], row["position"], rng)


def check(daemon, loader, function, batches, start=0, rank=0, world=1, micro=4, cursor=None):
    plan = daemon.plan("train", start, batches * world * micro, cursor)
    for step in range(batches):
        at = (step * world + rank) * micro
        part, batch = plan[at : at + micro], next(loader)
        rows = numpy.stack([transformed(daemon, function, row) for row in part])
        assert positions([batch]) == [row["position"] for row in part]
        assert numpy.array_equal(batch["input_ids"], rows[:, :SEQ])
        assert numpy.array_equal(batch["labels"], rows[:, 1:])


def children(pid=None):
    """The workers of this process, or of another, that are alive; no fork server of the tests."""
    out = run("ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", pid or os.getpid())[1].decode()
    lines = [line.split(None, 2) for line in out.splitlines()]
    ours = lambda state, args: "python" in args and not ("Z" in state or "multiprocessing" in args)
    return [int(of) for of, state, args in lines if ours(state, args)]


# ---- the rows ----


@pytest.mark.parametrize("workers", [0, 3])
def test_a_transform_is_a_function_of_the_row_alone(served, workers):
    more, random = {"transform": transforms.shuffle, "workers": workers}, torch.get_rng_state()
    with make(served, **more) as loader:
        check(served, loader, transforms.shuffle, 30)
        state = loader.state_dict()
        assert loader.position == loader.taken == 120
        assert len(children()) == workers
    wait_until(lambda: not children(), "the end of the workers")
    assert torch.get_rng_state().equal(random)
    with make(served, start=state, rank=1, world=3, micro=5, **more) as loader:
        check(served, loader, transforms.shuffle, 10, start=120, rank=1, world=3, micro=5)


@pytest.mark.parametrize("workers", [0, 2])
def test_state_commit_seek_and_mix_with_a_transform(served, workers):
    run = f"transformed-{workers}"
    with make(served, transform=IN_PLACE, workers=workers, run=run) as loader:
        fresh = loader.state_dict()
        check(served, loader, IN_PLACE, 5)
        loader.load_state_dict(fresh)
        check(served, loader, IN_PLACE, 3)
        loader.commit(8)
        loader.seek(micro_batch=2)  # taken batches stay taken
        check(served, loader, IN_PLACE, 3, start=12, micro=2)
        assert loader.position == 8
        sessions = lambda: len(served.tokctl("status", "--socket", served.socket, "--json")) - 1
        wait_until(lambda: sessions() <= 1 + workers, "the end of the sessions before the seeks")
        loader.seek(position=0, rank=2, world=3, micro_batch=7)
        check(served, loader, IN_PLACE, 5, rank=2, world=3, micro=7)
        assert loader.set_mix({"code": 1}) == 1024
        check(served, loader, IN_PLACE, 60, 105, 2, 3, micro=7, cursor=bytes(loader.cursor))


SPAWNED = """
import multiprocessing, os, sys, tokend, transforms

def take(workers, transform):
    more = {"workers": workers, "transform": transform, "run": f"of-{workers}"}
    with tokend.Loader("train", 4, socket=sys.argv[1], **more) as loader:
        for _ in range(2):
            next(loader)  # both workers have begun
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, 10)  # SIGUSR1
        return [next(loader)["labels"].tolist() for _ in range(20)]

multiprocessing.set_start_method("spawn")
assert take(0, transforms.shuffle) == take(2, transforms.shuffle)
take(1, lambda tokens, *_: tokens)
"""


def test_workers_that_are_no_forks_give_the_same_rows(served):
    """They need a function that can be pickled."""
    said = python(SPAWNED, served.socket).stderr
    assert "ArgumentError: transform: Can't pickle " in said and "by spawn; pass" in said, said


# ---- faults of the function ----


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises_names_the_row_and_stops(served, workers):
    text = "RuntimeError: one two"
    (row,) = served.plan("train", 42, 1)
    place = rf"\(position 42, dataset {row['dataset']}, shard \d .*, offset {row['offset']}\)"
    with make(served, transform=transforms.raises_at_42, workers=workers) as loader:
        check(served, loader, lambda tokens, *_: tokens, 10)
        for _ in range(2):
            with pytest.raises(tokend.TransformError, match=f"^transform: {text} {place}"):
                next(loader)
            assert loader.position == loader.taken == loader.cursor.position == 40
        loader.seek(position=44)
        check(served, loader, lambda tokens, *_: tokens, 3, start=44)


@pytest.mark.parametrize(
    ("function", "dtype", "text"),
    [
        (transforms.shortens, "int64", r"returned shape \[64\] instead of \[65\]"),
        (transforms.halves, "int64", "returned float64 instead of integers"),
        (transforms.grows, "int32", "returned a token outside of 0 … 2147483647"),
    ],
)
def test_a_result_that_is_not_a_row_is_refused(served, function, dtype, text):
    with make(served, transform=function, dtype=dtype) as loader:
        with pytest.raises(tokend.TransformError, match=f"^transform: {text}"):
            next(loader)


def test_a_batch_whose_transform_was_interrupted_comes_again(served):
    with make(served, transform=transforms.interrupted_at_8, micro=7) as loader:
        loader.commit()
        next(loader)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert (loader.position, loader.taken) == (0, 7)
        assert positions([next(loader)]) == list(range(7, 14))
        loader.commit(7)
        assert loader.position == 7


# ---- accidents ----


def test_what_ends_a_worker_is_one_error_of_next(served, monkeypatch):
    """Nothing is raised where the trainer is. Signals to all processes of a job end no worker."""
    with transforms.LOCK, make(served, transform=IN_PLACE, workers=2) as loader:
        check(served, loader, IN_PLACE, 2)
        both = children()
        for name in ("TERM", "INT", "HUP", "USR1", "USR2"):
            run("kill", f"-{name}", *both)
        check(served, loader, IN_PLACE, 20, start=8)
        assert children() == both
        for _ in range(2):
            next(loader)
            os.kill(children()[0], signal.SIGKILL)
            wait_until(lambda: len(children()) == 1, "the end of the worker")
            with pytest.raises(tokend.Error, match=r"^workers: .*; call next\(\) again"):
                for _ in range(20):
                    next(loader)
        monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", lambda *_: torch.empty(-1))
        with pytest.raises(tokend.Error, match=r"^workers: Trying .*; enlarge /dev/shm"):
            next(loader)
        place = loader.position
    with make(served, start=place) as loader:
        assert positions([next(loader)])[0] == place


def test_workers_that_hang_end_together_when_another_thread_closes(served):
    loader, said = make(served, transform=transforms.hangs, workers=3), []
    read = lambda: said.append(str(pytest.raises(tokend.Error, next, loader).value))
    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: len(children()) == 3, "the workers")
    time.sleep(1)
    begin = time.monotonic()
    loader.close()
    reader.join(20)
    assert time.monotonic() - begin < 5 and not children()
    assert said and said[0].startswith("closed: ")


TRAINER = """
import signal, sys, time, tokend, transforms

former = signal.signal
if len(sys.argv) > 2:  # the workers call it first
    signal.signal = lambda *arguments: time.sleep(0.3) or former(*arguments)
loader = tokend.Loader("train", 4, socket=sys.argv[1], transform=transforms.hangs, workers=2)
print("there", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("more", [[], ["late"]], ids=str)
def test_a_killed_trainer_leaves_no_workers(served, more):
    """Also if it is killed before they begin."""
    command = [sys.executable, "-c", TRAINER, served.socket, *more]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
    assert trainer.stdout.readline() == "there\n"
    assert len(workers := children(trainer.pid)) == 2
    trainer.kill()
    trainer.wait()
    state = lambda pid: run("ps", "-o", "stat=", "-p", pid)[1]  # Z: init has not reaped it yet
    wait_until(lambda: all(state(pid)[:1] in b"Z" for pid in workers), "the end of the workers")


class Interrupt(OSError):
    """As a TimeoutError: it is not taken for the end of a worker."""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wait_has_a_limit_and_loses_nothing(served, workers):
    """An error of the limit, or of a signal's handler: next() continues."""

    def take(loader):
        while True:
            with contextlib.suppress(tokend.WaitError):
                return next(loader)

    def interrupt(*_):
        raise Interrupt

    keys = {"transform": IN_PLACE, "workers": workers}
    former = signal.signal(signal.SIGALRM, interrupt)
    with make(served, deadline=0.3, slots=2, **keys) as loader:
        take(loader)
        served.freeze()
        try:
            with pytest.raises(TimeoutError, match="^deadline: .* within 0.3 s"):
                for _ in range(100):
                    next(loader)
            state = loader.state_dict()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupt):
                take(loader)
            assert loader.state_dict() == state
        finally:
            signal.signal(signal.SIGALRM, former)
            served.signal(signal.SIGCONT)
        with make(served, start=state, run="other", **keys) as other:
            for _ in range(5):
                assert take(loader)["input_ids"].equal(next(other)["input_ids"])


def test_a_killed_daemon_is_not_noticed_by_workers(daemon):
    with make(daemon, transform=IN_PLACE, workers=2, slots=4) as loader:
        check(daemon, loader, IN_PLACE, 10)
        daemon.kill()
        restart = threading.Timer(0.3, daemon.start)
        restart.start()
        check(daemon, loader, IN_PLACE, 50, start=40)
        restart.join()


def test_operators_do_not_wait_for_workers(served):
    """A worker's session does not take part in a request; the loader's own session does. A save
    restarts no worker; a mix does, also if control() is interrupted right after it.
    """
    with make(served, transform=IN_PLACE, workers=2, run="operated") as loader:
        next(loader)
        tell = loader._control.tell
        loader._control.tell = lambda *answer: tell(*answer) or signal.raise_signal(signal.SIGINT)
        more = ["--socket", served.socket, "--run", "operated", "--timeout", "20"]
        for request in (["mix", "train", "code=1"], ["checkpoint", "train"]):
            before = children()
            asked = subprocess.Popen([TOKCTL, *request, *more])
            while asked.poll() is None:
                with contextlib.suppress(KeyboardInterrupt):
                    if wanted := loader.control():
                        wanted.done()
                if loader.position < 600:
                    next(loader)
                time.sleep(0.01)
            assert asked.returncode == 0
            assert (children() == before) == (request[0] == "checkpoint")
        loader.seek(position=1000)
        check(served, loader, IN_PLACE, 30, start=1000, cursor=bytes(loader.cursor))
