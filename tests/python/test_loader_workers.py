"""Workers that run a transform: killed, hung, interrupted, or without their trainer."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import transforms
from loading import make
from transforming import check, children

import tokend
from lib import BIN, REPO, child_environment, wait_until


def test_workers_are_other_processes(daemon):
    with make(daemon, transform=transforms.stamps_pid, workers=2) as loader:
        pids = [next(loader)["input_ids"][0, 0].item() for _ in range(6)]
    assert pids == pids[:2] * 3
    assert len({*pids, os.getpid()}) == 3


# ---- accidents ----


def take(loader):
    """The next batch, however long that takes."""
    while True:
        with contextlib.suppress(tokend.WaitError):
            return next(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wait_has_a_limit(daemon, workers):
    """After the error the cursor is the same, and next() continues."""
    keys = {"transform": transforms.in_place, "workers": workers}
    with make(daemon, max_wait=0.3, slots=2, **keys) as loader:
        take(loader)
        daemon.freeze()
        try:
            with pytest.raises(tokend.WaitError, match="^max_wait: .* within 0.3 s") as raised:
                for _ in range(100):
                    next(loader)
            assert isinstance(raised.value, TimeoutError)
            state = loader.state_dict()
            with pytest.raises(tokend.WaitError):
                next(loader)
            assert loader.state_dict() == state
        finally:
            daemon.signal(signal.SIGCONT)
        with make(daemon, start=state, run="other", **keys) as other:
            for _ in range(5):
                batch, expected = take(loader), next(other)
                assert batch["position"].tolist() == expected["position"].tolist()
                assert batch["input_ids"].tolist() == expected["input_ids"].tolist()


def test_a_killed_worker_is_one_error(daemon):
    with make(daemon, transform=transforms.kills_itself, workers=2) as loader:
        with pytest.raises(
            tokend.WorkerError,
            match=r"worker [01] of 2 \(pid \d+\) was killed by signal 9 .SIGKILL.; make a new",
        ):
            for _ in range(20):
                next(loader)
        place = loader.position
        assert 12 <= place <= 20
        wait_until(lambda: not children(), "the end of the other worker")
        with pytest.raises(tokend.WorkerError):
            next(loader)
    with make(daemon, start=place) as loader:
        assert next(loader)["position"][0] == place


def test_a_worker_that_hangs_is_ended(daemon):
    loader = make(daemon, transform=transforms.hangs, workers=1)
    wait_until(children, "the worker's start")
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 15
    assert not children()


def test_a_dropped_loader_ends_its_workers(daemon):
    loader = make(daemon, transform=transforms.in_place, workers=2)
    next(loader)
    del loader
    gc.collect()
    wait_until(lambda: not children(), "the end of the workers")
    assert not [name for name in os.listdir("/dev/shm") if "tokend" in name]


TRAINER = """
import sys, time, tokend, transforms

if __name__ == "__main__":
    loader = tokend.Loader(
        "train",
        4,
        socket=sys.argv[1],
        rank=0,
        world=1,
        transform=getattr(transforms, sys.argv[2]),
        workers=2,
    )
    print("there", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("function", ["in_place", "hangs"])
def test_a_killed_trainer_leaves_no_workers(daemon, function):
    path = daemon.directory / "trainer.py"
    path.write_text(TRAINER)
    environment = child_environment(
        PYTHONPATH=f"{child_environment()['PYTHONPATH']}:{REPO}/tests/python"
    )
    trainer = subprocess.Popen(
        [sys.executable, path, daemon.socket, function],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def its():
        done = subprocess.run(
            ["pgrep", "-P", str(trainer.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in done.stdout.split()]

    assert trainer.stdout.readline() == "there\n"
    workers = its()
    assert len(workers) == 2
    trainer.kill()
    trainer.wait()

    def gone(pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"  # init has not reaped it yet
        except FileNotFoundError:
            return True

    wait_until(lambda: all(gone(pid) for pid in workers), "the end of the workers")


SCRIPT = """
import sys, tokend
def turn(tokens, position, rng):
    return tokens[::-1]
here = {{"socket": sys.argv[1], "rank": 0, "world": 1}}
{guard}loader = tokend.Loader("train", 4, **here, transform=turn, workers=2)
{guard}print(next(loader)["position"].tolist())
{guard}loader.close()
"""


def test_a_transform_of_the_script_itself(daemon):
    path = daemon.directory / "script.py"
    main = 'if __name__ == "__main__":'
    for guard, text, status in (
        (f"{main} ", "[0, 1, 2, 3]", 0),
        ("", f"put the program's code under {main}", 1),
    ):
        path.write_text(SCRIPT.format(guard=guard))
        command = [sys.executable, path, daemon.socket]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=child_environment(),
            timeout=60,
        )
        assert done.returncode == status
        assert text in done.stdout + done.stderr


@pytest.mark.parametrize("how", ["-c", "-"])
def test_a_transform_without_a_file_is_refused(daemon, how):
    program = SCRIPT.format(guard="")
    command = [sys.executable, how, *([program] if how == "-c" else []), daemon.socket]
    done = subprocess.run(
        command, input=program, capture_output=True, text=True, check=False,
        env=child_environment(), timeout=60
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "is not in a file, so workers cannot import it; move it to a module, or pass workers=0"
        in done.stderr
    )


SPAWNS = """
import multiprocessing, sys, tokend


def turn(tokens, position, rng):
    return tokens[::-1]


def train(rank):
    with tokend.Loader(
        "train", 4, socket=sys.argv[1], rank=rank, world=1 + rank, transform=turn, workers=1
    ) as loader:
        print(next(loader)["position"].tolist(), flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train, args=(1,))
    process.start()
    process.join()
"""


def test_a_transform_of_the_script_in_a_process_that_it_spawned(daemon):
    path = daemon.directory / "spawns.py"
    path.write_text(SPAWNS)
    command = [sys.executable, path, daemon.socket]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=child_environment(), timeout=60
    )
    assert done.stdout == "[4, 5, 6, 7]\n", done.stderr


def test_a_forked_child_leaves_the_workers_alone(daemon):
    with make(daemon, transform=transforms.in_place, workers=2) as loader:
        check(daemon, loader, transforms.in_place, 2)
        child = os.fork()
        if child == 0:
            try:
                next(loader)
            except tokend.ForkedError:
                loader.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        check(daemon, loader, transforms.in_place, 10, start=8)


class Interrupt(Exception):
    pass


def test_a_signal_interrupts_a_wait_for_a_worker_and_nothing_is_lost(daemon):
    def interrupt(number, frame):
        raise Interrupt

    with make(daemon, transform=transforms.slow, workers=1, micro=1) as loader:
        next(loader)
        daemon.freeze()
        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 3.0)
            with pytest.raises(Interrupt):
                while True:
                    next(loader)
        finally:
            signal.signal(signal.SIGALRM, former)
        place = loader.position
        daemon.signal(signal.SIGCONT)
        check(daemon, loader, transforms.slow, 20, start=place, micro=1)


def test_a_killed_daemon_is_not_noticed_by_workers(daemon):
    with make(daemon, transform=transforms.in_place, workers=2, slots=4) as loader:
        check(daemon, loader, transforms.in_place, 10)
        daemon.kill()
        restart = threading.Timer(0.3, daemon.start)
        restart.start()
        check(daemon, loader, transforms.in_place, 50, start=40)
        restart.join()


def test_operators_do_not_wait_for_workers(daemon):
    """A worker's session does not take part in a request; the loader's own session does."""
    with make(daemon, transform=transforms.in_place, workers=2) as loader:
        next(loader)
        asked = subprocess.Popen(
            [BIN / "tokctl", "mix", "train", "code=1", "--socket", daemon.socket, "--timeout", "20",
            "--json"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        place = 4
        while asked.poll() is None:
            loader.control()
            if place < 600:
                next(loader)
                place += 4
            time.sleep(0.01)
        assert asked.returncode == 0, asked.communicate()
        assert '"rank":2' not in asked.stdout.read().replace(" ", "")
        loader.seek(position=1000)
        check(
            daemon,
            loader,
            transforms.in_place,
            30,
            start=1000,
            cursor=loader.state_dict()["cursor"],
        )


def test_an_interruption_after_a_workers_message_loses_no_batch(daemon, monkeypatch):
    with make(daemon, "finite", transform=transforms.in_place, workers=2) as loader:
        next(loader)
        real = loader._source._receive

        def receive(worker):
            real(worker)
            raise KeyboardInterrupt

        monkeypatch.setattr(loader._source, "_receive", receive)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        monkeypatch.undo()
        assert [row for batch in loader for row in batch["position"].tolist()] == list(
            range(4, 468)
        )


def test_an_interruption_after_a_workers_batch_loses_none(daemon, monkeypatch):
    with make(daemon, transform=transforms.in_place, workers=2) as loader:
        next(loader)
        real, calls = loader._source._client.look_into, []

        class Client:  # a signal between look_into() and the copy of the worker's tokens
            def __getattr__(self, name):
                return getattr(loader._client, name)

            def look_into(self, *into):
                real(*into)
                calls.append(1)
                raise KeyboardInterrupt

        monkeypatch.setattr(loader._source, "_client", Client())
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        monkeypatch.undo()
        assert calls
        assert [next(loader)["position"][0].item() for _ in range(5)] == [4, 8, 12, 16, 20]


def test_workers_that_hang_in_a_transform_end_together(daemon):
    loader = make(daemon, transform=transforms.hangs, workers=3)
    wait_until(lambda: len(children()) == 3, "the workers")
    time.sleep(1)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 5
    assert not children()


def test_a_loader_closed_by_another_thread(daemon):
    loader = make(daemon, transform=transforms.hangs, workers=1)
    said = []

    def read():
        begin = time.monotonic()
        try:
            next(loader)
        except tokend.Error as error:
            said.append((str(error), time.monotonic() - begin))

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(1)
    loader.close()
    reader.join(20)
    assert said
    assert said[0][0] == "closed: this loader was closed; make a new one"
    assert said[0][1] < 2
