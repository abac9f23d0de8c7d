"""Transforms, in the trainer's process and in workers: the same rows, in the same order, at the
same places.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import tokend
import torch
import transforms
from lib import BIN, REPO, child_environment, wait_until

SEQ = 64
WINDOW = SEQ + 1


def make(daemon, stream="train", micro=4, **more):
    return tokend.Loader(stream, micro, socket=daemon.socket, **{"rank": 0, "world": 1, **more})


def expected(daemon, function, row, seed=42):
    """What a row of the plan becomes: by the definition of the rng, not by the loader's code."""
    key = tokend._tokend.derive(seed, 7, row["position"])
    rng = numpy.random.Generator(numpy.random.Philox(key=key))
    return function(daemon.tokens(row, WINDOW), row["position"], rng)


def check(daemon, loader, function, batches, start=0, rank=0, world=1, micro=4, cursor=None):
    plan = daemon.plan("train", start, batches * world * micro, cursor)
    for step in range(batches):
        at = (step * world + rank) * micro
        batch = next(loader)
        rows = numpy.stack([expected(daemon, function, row) for row in plan[at : at + micro]])
        assert batch["position"].tolist() == [row["position"] for row in plan[at : at + micro]]
        assert numpy.array_equal(batch["input_ids"].numpy(), rows[:, :SEQ])
        assert numpy.array_equal(batch["labels"].numpy(), rows[:, 1:])


def children():
    """Processes that we have started and that live, but zombies of none."""
    done = subprocess.run(
        ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line.split()[0]) for line in done.stdout.splitlines() if "tokend.workers" in line]


def test_keys_are_those_of_the_order():
    """order.md: the vectors of derive() with two values are of other tags; the definition is short
    enough to write down.
    """
    mask = 2**64 - 1

    def mix(x):
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & mask
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    golden = 0x9E3779B97F4A7C15
    h = mix(42 + golden)
    for value in (7, 123456):
        h = mix((h ^ value) + golden & mask)
    assert tokend._tokend.derive(42, 7, 123456) == h


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_transform_is_a_function_of_the_row_alone(daemon, workers):
    with make(daemon, transform=transforms.shuffle, workers=workers) as loader:
        check(daemon, loader, transforms.shuffle, 30)
        state = loader.state_dict()
        assert loader.position == loader.taken == 120
        assert len(children()) == workers
    wait_until(lambda: not children(), "the end of the workers")
    with make(
        daemon,
        transform=transforms.shuffle,
        workers=workers,
        start=state["cursor"],
        rank=1,
        world=3,
        micro=5,
    ) as loader:
        check(daemon, loader, transforms.shuffle, 10, start=120, rank=1, world=3, micro=5)


def test_workers_are_other_processes(daemon):
    with make(daemon, transform=transforms.stamps_pid, workers=2) as loader:
        pids = [next(loader)["input_ids"][0, 0].item() for _ in range(6)]
    assert pids == pids[:2] * 3
    assert len({*pids, os.getpid()}) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_state_seek_and_mixes_with_a_transform(daemon, workers):
    with make(daemon, transform=transforms.in_place, workers=workers) as loader:
        fresh = loader.state_dict()
        check(daemon, loader, transforms.in_place, 5)
        loader.load_state_dict(fresh)
        check(daemon, loader, transforms.in_place, 3)
        loader.seek(position=4099)
        check(daemon, loader, transforms.in_place, 3, start=4099)
        loader.seek(position=0, rank=2, world=3, micro_batch=7)
        check(daemon, loader, transforms.in_place, 5, rank=2, world=3, micro=7)
        assert loader.set_mix({"code": 1}) == 1024
        check(
            daemon,
            loader,
            transforms.in_place,
            60,
            start=105,
            rank=2,
            world=3,
            micro=7,
            cursor=loader.state_dict()["cursor"],
        )


def test_batches_fit_where_a_seek_was_interrupted(daemon, monkeypatch):
    with make(daemon, transform=transforms.shuffle) as loader:
        next(loader)

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(loader._source, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loader.seek(position=0, micro_batch=16)
        assert next(loader)["input_ids"].shape == (
            16,
            SEQ,
        )  # and no more than that was written to its memory
        assert loader.taken == 16


def test_commit_with_workers(daemon):
    with make(daemon, transform=transforms.in_place, workers=2) as loader:
        nexts = []
        for _ in range(5):
            next(loader)
            nexts.append(loader.taken)
        loader.commit(nexts[1])
        assert loader.position == 8
        loader.seek(micro_batch=2)  # what is taken stays taken
        check(daemon, loader, transforms.in_place, 3, start=20, micro=2)
        assert loader.position == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_a_finite_stream(daemon, workers):
    seen = []
    for rank in range(3):
        with make(
            daemon,
            "finite",
            micro=5,
            rank=rank,
            world=3,
            transform=transforms.in_place,
            workers=workers,
        ) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == 32
            assert next(loader, None) is None
        for batch in batches:
            padding = batch["position"] == -1
            assert (batch["input_ids"][padding] == 0).all()
            assert (batch["labels"][padding] == -100).all()
            seen += batch["input_ids"][:, 0][~padding].tolist()
    assert sorted(seen) == list(range(468))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_transform_goes_with(daemon, workers):
    """int32, provenance, a mask of the loss, and a slice, on top of each other."""
    more = {"dtype": torch.int32, "provenance": True, "loss_mask": True, "cp": (1, 2, "contiguous")}
    with (
        make(daemon, transform=transforms.in_place, workers=workers, **more) as loader,
        make(daemon, provenance=True) as plain,
    ):
        for _ in range(4):
            batch, whole = next(loader), next(plain)
            assert batch["input_ids"].dtype == torch.int32
            assert batch["labels"].dtype == torch.int64
            assert torch.equal(batch["input_ids"].long(), whole["input_ids"][:, 32:])
            assert torch.equal(batch["labels"], whole["labels"][:, 32:])
            assert batch["loss_mask"].eq(1).all()
            for name in ("epoch", "window", "shard", "offset", "dataset"):
                assert torch.equal(batch[name], whole[name])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_exits_ends_neither_trainer_nor_worker(daemon, workers):
    with make(daemon, transform=transforms.exits_at_42, workers=workers) as loader:
        check(daemon, loader, lambda tokens, position, rng: tokens, 10)
        with pytest.raises(
            tokend.TransformError, match=r"^transform: SystemExit: 3 \(position 42, dataset "
        ):
            next(loader)
        assert loader.position == 40


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises_names_the_row_and_stops(daemon, workers):
    row = daemon.plan("train", 42, 1)[0]
    shard = {"web": ["a.bin", "b.bin"], "code": ["code.bin"]}[row["dataset"]].index(row["shard"])
    with make(daemon, transform=transforms.raises_at_42, workers=workers) as loader:
        check(daemon, loader, lambda tokens, position, rng: tokens, 10)
        place = (
            f"position 42, dataset {row['dataset']}, shard {shard} of its sorted list, offset "
            f"{row['offset']}"
        )
        for _ in range(3):
            with pytest.raises(tokend.TransformError) as error:
                next(loader)
            assert str(error.value) == (
                f"transform: KeyError: 'no such thing' ({place}): the cursor is before this batch"
            )
            assert (error.value.position, error.value.offset) == (42, row["offset"])
            assert loader.position == loader.taken == 40
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == 40
        loader.seek(position=44)
        check(daemon, loader, lambda tokens, position, rng: tokens, 3, start=44)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (transforms.shortens, r"returned shape \[64\], must be \[65\]: rows keep their length"),
        (transforms.nothing, "returned None, must return the row"),
        (transforms.halves, "returned float64, must be integers"),
        (transforms.negates, "returned a token outside of 0 … 9223372036854775807"),
    ],
)
def test_what_is_no_row_is_refused(daemon, function, text):
    with (
        make(daemon, transform=function) as loader,
        pytest.raises(tokend.TransformError, match=text),
    ):
        next(loader)


def test_a_token_that_the_dtype_cannot_hold_is_refused(daemon):
    with make(daemon, transform=transforms.grows, dtype=torch.int32) as loader:
        with pytest.raises(tokend.TransformError, match="outside of 0 … 2147483647"):
            next(loader)


def test_what_cannot_be_asked_for(daemon):
    def local(tokens, position, rng):
        return tokens

    with pytest.raises(
        ValueError, match="workers: 2 of them have nothing to do without transform="
    ):
        make(daemon, workers=2)
    for workers in (-1, 1.5, True):
        with pytest.raises(
            ValueError, match=f"workers: {workers}, must be a number of processes, or 0"
        ):
            make(daemon, workers=workers, transform=transforms.in_place)
    with pytest.raises(
        tokend.ArgumentError,
        match="transform: .* cannot be sent to worker processes .* top level of a module",
    ):
        make(daemon, workers=2, transform=local)
    with pytest.raises(TypeError, match="transform: 3, must be a function"):
        make(daemon, transform=3)
    assert not children()


# ---- accidents ----


def test_a_killed_worker_is_one_error(daemon):
    with make(daemon, transform=transforms.kills_itself, workers=2) as loader:
        with pytest.raises(
            tokend.WorkerError,
            match=r"worker [01] of 2 \(pid \d+\) was killed by signal 9 .SIGKILL.: make the",
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


def test_a_loader_that_is_dropped_leaves_nothing(daemon):
    loader = make(daemon, transform=transforms.in_place, workers=2)
    next(loader)
    del loader
    gc.collect()
    wait_until(lambda: not children(), "the end of the workers")
    assert not [name for name in os.listdir("/dev/shm") if "tokend" in name]


TRAINER = """
import sys, time, tokend, transforms
if __name__ == "__main__":
    loader = tokend.Loader("train", 4, socket=sys.argv[1], rank=0, world=1, transform=getattr(transforms, sys.argv[2]), workers=2)
    print("there", flush=True)
    time.sleep(600)
"""  # noqa: E501


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
                return (
                    file.read().rsplit(")", 1)[1].split()[0] == "Z"
                )  # whoever is init has not looked yet
        except FileNotFoundError:
            return True

    wait_until(lambda: all(gone(pid) for pid in workers), "the end of the workers")


SCRIPT = """
import sys, tokend
def turn(tokens, position, rng):
    return tokens[::-1]
{guard}loader = tokend.Loader("train", 4, socket=sys.argv[1], rank=0, world=1, transform=turn, workers=2)
{guard}print(next(loader)["position"].tolist())
{guard}loader.close()
"""  # noqa: E501


def test_a_transform_of_the_script_itself(daemon):
    path = daemon.directory / "script.py"
    main = 'if __name__ == "__main__":'
    for guard, text, status in (
        (f"{main} ", "[0, 1, 2, 3]", 0),
        ("", f"put what the program does under {main}", 1),
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
def test_a_transform_of_no_file(daemon, how):
    program = SCRIPT.format(guard="")
    command = [sys.executable, how, *([program] if how == "-c" else []), daemon.socket]
    done = subprocess.run(
        command, input=program, capture_output=True, text=True, check=False,
        env=child_environment(), timeout=60
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "is not in a file, worker processes cannot import it: put it into a module, or workers=0"
        in done.stderr
    )


SPAWNS = """
import multiprocessing, sys, tokend
def turn(tokens, position, rng):
    return tokens[::-1]
def train(rank):
    with tokend.Loader("train", 4, socket=sys.argv[1], rank=rank, world=1 + rank, transform=turn, workers=1) as loader:
        print(next(loader)["position"].tolist(), flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train, args=(1,))
    process.start()
    process.join()
"""  # noqa: E501


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
    """Whose session a worker has is no party of a request; the loader's own is."""
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


# ---- the worked example ----


def test_fill_in_the_middle(daemon):
    sys.path.insert(0, str(REPO / "client" / "example"))
    try:
        import fim
    finally:
        sys.path.pop(0)
    rng = numpy.random.default_rng(3)
    tokens = rng.integers(1, 50000, 600)
    tokens[[99, 100, 350]] = fim.EOS
    cut = 0
    for seed in range(20):
        made = fim.fim(tokens.copy(), 0, numpy.random.default_rng(seed))
        assert len(made) == len(tokens)
        assert (numpy.flatnonzero(made == fim.EOS) == numpy.flatnonzero(tokens == fim.EOS)).all()
        for begin, end in ((0, 99), (101, 350), (351, 600)):
            old, new = tokens[begin:end].tolist(), made[begin:end].tolist()
            if fim.PRE in new:
                suf, mid = new.index(fim.SUF), new.index(fim.MID)
                assert new[0] == fim.PRE
                assert new[1:suf] + new[mid + 1 :] + new[suf + 1 : mid] == old[:-3]
                cut += 1
            else:
                assert new == old
    assert 15 < cut < 45


def test_a_batch_whose_transform_was_interrupted_comes_again(daemon, monkeypatch):
    monkeypatch.setattr(transforms.interrupted_at_8, "was", False)
    with make(daemon, transform=transforms.interrupted_at_8, micro=7) as loader:
        next(loader)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert loader.position == loader.taken == 7
        assert next(loader)["position"].tolist() == list(range(7, 14))


def test_an_interruption_among_what_is_not_committed_says_how_to_go_on(daemon, monkeypatch):
    monkeypatch.setattr(transforms.interrupted_at_8, "was", False)
    with make(daemon, transform=transforms.interrupted_at_8, micro=7) as loader:
        loader.commit()
        next(loader)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        with pytest.raises(tokend.Error, match="next: was interrupted .*: seek to go on"):
            next(loader)
        loader.seek(position=7)
        assert next(loader)["position"].tolist() == list(range(7, 14))


def test_an_interruption_behind_a_workers_word_loses_no_batch(daemon, monkeypatch):
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


def test_an_interruption_behind_a_workers_batch_loses_none(daemon, monkeypatch):
    with make(daemon, transform=transforms.in_place, workers=2) as loader:
        next(loader)
        real, calls = loader._source._client.next_into, []

        class Client:  # a signal between the trainer's session and the worker's tokens
            def __getattr__(self, name):
                return getattr(loader._client, name)

            def next_into(self, *into):
                real(*into)
                calls.append(1)
                raise KeyboardInterrupt

        monkeypatch.setattr(loader._source, "_client", Client())
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        monkeypatch.undo()
        assert calls
        assert [next(loader)["position"][0].item() for _ in range(5)] == [4, 8, 12, 16, 20]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_transform_says_is_one_line(daemon, workers):
    with make(daemon, transform=transforms.two_lines, workers=workers) as loader:
        with pytest.raises(tokend.TransformError) as caught:
            next(loader)
        assert re.fullmatch(
            r"transform: RuntimeError: one two \(position 0, dataset web, .*", str(caught.value)
        )


def test_workers_that_are_lost_in_a_transform_end_together(daemon):
    loader = make(daemon, transform=transforms.hangs, workers=3)
    wait_until(lambda: len(children()) == 3, "the workers")
    time.sleep(1)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 5
    assert not children()


def test_closed_by_another_thread(daemon):
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_in_the_midst_of_a_finite_stream_does_not_move_its_end(daemon, workers):
    text = daemon.config.read_text()
    daemon.config.write_text(
        text
        + text[text.index("  train:") : text.index("  finite:")].replace(
            "train:", "short:\n    samples: 2000"
        )
    )
    daemon.stop()
    daemon.start()
    with make(daemon, "short", transform=transforms.in_place, workers=workers) as loader:
        for _ in range(7):
            next(loader)
        loader.set_mix({"web": 0.4, "code": 0.6})
        taken = [row for batch in loader for row in batch["position"].tolist()]
        assert taken == list(range(28, 2000))


def examples(daemon, *command):
    config = daemon.config.read_text()
    daemon.config.write_text(
        config.replace("    seed: 42\n", "    seed: 42\n    eos: 0\n    documents: true\n")
    )
    environment = child_environment(XDG_RUNTIME_DIR=str(daemon.directory), OMP_NUM_THREADS="1")
    daemon.stop()
    daemon.start()
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [0, 2])
def test_the_fim_example_runs(daemon, workers):
    said = examples(
        daemon, REPO / "client/example/fim.py", daemon.config, str(workers)
    ).splitlines()
    assert [line.split(" documents")[0] for line in said] == [
        f"samples {[4 * i + j for j in range(4)]}" for i in range(3)
    ]
    assert any("marks [0, 0, 0]" not in line for line in said)
