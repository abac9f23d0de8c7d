"""tokend.Loader against a real daemon, with real torch."""

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest
import torch
from loading import SEQ, check, check_run, make

import tokend
from lib import child_environment
from lib.injected import injected

# ---- batches ----


def test_batches_are_int64_tensors_that_follow_the_plan(daemon):
    with make(daemon) as loader:
        batch = next(loader)
        assert {name: (tuple(t.shape), t.dtype) for name, t in batch.items()} == {
            "input_ids": ((4, SEQ), torch.int64),
            "labels": ((4, SEQ), torch.int64),
            "position": ((4,), torch.int64),
            "dataset": ((4,), torch.int64),
        }
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
        assert loader.datasets == ["web", "code"]
        check_run(daemon, loader, 400, start=4)
        assert loader.stats()["lost_wakes"] == 0
        assert loader.stats()["batches"] == 401
        assert loader.stats()["tokens"] == 401 * 4 * (SEQ + 1)


@pytest.mark.parametrize(
    ("rank", "world", "micro", "start"),
    [(0, 2, 3, 0), (1, 2, 3, 0), (4, 5, 1, 1000), (2, 3, 7, 2047)],
)
def test_every_rank_gets_its_share(daemon, rank, world, micro, start):
    with make(daemon, micro=micro, rank=rank, world=world, start=start) as loader:
        check_run(daemon, loader, 40, start=start, rank=rank, world=world, micro=micro)
        assert loader.position == start + 40 * world * micro


def test_batches_do_not_change_when_the_ring_is_refilled(daemon):
    with make(daemon, slots=2) as loader:
        kept = [next(loader) for _ in range(20)]
    for step, batch in enumerate(kept):
        check(daemon, batch, daemon.plan("train", 4 * step, 4), ["web", "code"])


def test_u32_tokens(daemon):
    with make(daemon, "wide") as loader:
        row = daemon.plan("wide", 0, 1)[0]
        assert numpy.array_equal(next(loader)["input_ids"][0].numpy(), daemon.tokens(row, SEQ))


def test_without_extra_the_last_label_is_ignored(daemon):
    with make(daemon, "whole") as loader:
        batch = next(loader)
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
        assert batch["labels"][:, -1].tolist() == [-100] * 4
        for i, row in enumerate(daemon.plan("whole", 0, 4)):
            assert numpy.array_equal(batch["input_ids"][i].numpy(), daemon.tokens(row, SEQ))


def test_a_finite_stream_ends_on_all_ranks_at_once_and_serves_every_window_once(daemon):
    windows = (30_001 - 1) // SEQ
    seen, lengths = [], set()
    for rank in range(3):
        with make(daemon, "finite", micro=5, rank=rank, world=3) as loader:
            batches = list(loader)
            lengths.add((len(loader), len(batches)))
            assert next(loader, None) is None
            assert loader.position == windows
        for batch in batches:
            padding = batch["position"] == -1
            assert torch.equal(padding, batch["dataset"] == -1)
            assert (batch["input_ids"][padding] == 0).all()
            assert (batch["labels"][padding] == -100).all()
            assert (batch["labels"][~padding] >= 0).all()
            seen += batch["position"][~padding].tolist()
    assert windows % 15 != 0  # otherwise nothing would be padded
    assert lengths == {(-(-windows // 15),) * 2}
    assert sorted(seen) == list(range(windows))


def test_length(daemon):
    with make(daemon) as endless, make(daemon, "finite", micro=10, start=460) as short:
        with pytest.raises(TypeError):
            len(endless)
        assert bool(endless)
        assert len(short) == 1
        assert len(list(short)) == 1


@pytest.mark.parametrize(
    ("torch", "name", "said"),
    [
        ("import no_such_part", None, "ModuleNotFoundError No module named 'no_such_part'"),
        ("import no_such_part", "torch", "ModuleNotFoundError No module named 'no_such_part'"),
        (
            "raise ImportError('libcudart.so.12: cannot open')",
            None,
            "ImportError libcudart.so.12: cannot open",
        ),
        (
            "raise ModuleNotFoundError(name='torch')",
            None,
            "ImportError framework: neither torch nor numpy is installed; pip install torch",
        ),
        ("", "numpy", "ImportError framework: numpy is not installed; pip install numpy"),
    ],
)
def test_a_broken_torch_is_an_error(directory, torch, name, said):
    (directory / "torch.py").write_text(torch)
    (directory / "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')")
    program = (
        f"from tokend import arrays\ntry: arrays.framework({name!r})\nexcept ImportError as e: "
        "print(type(e).__name__, e)"
    )
    environment = child_environment()
    environment["PYTHONPATH"] = f"{directory}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"stream": "trian"}, tokend.RefusedError, r"stream: trian .*; did you mean train\?"),
        ({"stream": ""}, tokend.ArgumentError, "stream"),
        ({"rank": 2, "world": 2}, tokend.ArgumentError, "rank: 2 is not less than world"),
        ({"world": 0}, tokend.ArgumentError, "world: 0"),
        ({"micro": 0}, tokend.ArgumentError, "micro_batch: 0; must be 1"),
        ({"micro": 65537}, tokend.ArgumentError, "micro_batch: 65537"),
        ({"micro": -1}, ValueError, "micro_batch: -1"),
        ({"slots": 4097}, tokend.ArgumentError, "slots"),
        (
            {"micro": 65536, "slots": 4096},
            tokend.RefusedError,
            "slots: 4096 slots .* 65536 rows = 268435456 rows",
        ),
        (
            {"micro": 16384, "slots": 64},
            tokend.RefusedError,
            r"slots: a ring of 64 slots needs .* of 67108864 are left",
        ),
        (
            {"stream": "finite", "start": 469},
            tokend.RefusedError,
            "469 is past the end of the stream, 468",
        ),
        ({"start": -1}, ValueError, "start: -1"),
        ({"start": b"nonsense"}, tokend.RefusedError, "not a cursor"),
        ({"start": 1.5}, TypeError, "start"),
        ({"start": "../x"}, tokend.Error, "tag"),
        ({"run": "a/b"}, tokend.ArgumentError, "run"),
        ({"rank": 1, "world": None}, ValueError, "both or neither"),
        ({"framework": "jax"}, ValueError, "framework"),
        ({"stream": 3}, TypeError, "stream: 3 is not a string"),
        ({"run": 3}, TypeError, "run: 3 is not a string"),
        ({"run": "x" + "ö" * 33}, tokend.ArgumentError, "run: 'xö{31}…' is not a name"),
        (
            {"run": "two\nlines"},
            tokend.ArgumentError,
            r"^run: 'two\?lines' is not a name of 1 to 64 bytes",
        ),
        ({"deadline": "3"}, ValueError, "deadline: '3' is not a number of seconds"),
        ({"deadline": float("inf")}, ValueError, "deadline: inf"),
        ({"deadline": float("nan")}, ValueError, "deadline: nan"),
        ({"max_wait": 0}, ValueError, "max_wait: 0 is not a number of seconds above 0"),
        ({"group": 3}, TypeError, "group: 3 is not a torch.distributed process group"),
        ({"start": [4]}, TypeError, r"^start: a list is not .*, a cursor or a state_dict\(\)"),
        ({"start": {"cursor": b"x" * 1000}}, tokend.RefusedError, "not a cursor"),
        (
            {"start": {"epoch": 3}},
            tokend.ArgumentError,
            r"^start: not from .* its keys are \['epoch'\]; .* pass start=SAMPLES IT CONSUMED",
        ),
        ({"cp": "zag"}, tokend.ArgumentError, "cp: 'zag' is not 'zigzag'"),
        ({"cp": ("a", 2, "zigzag")}, tokend.ArgumentError, "cp: rank 'a' is not below size 2"),
        ({"record": "/dev/null"}, tokend.ArgumentError, "record: /dev/null: .*; pass a directory"),
    ],
)
def test_impossible_arguments_are_named(daemon, arguments, error, text):
    with pytest.raises(error, match=text):
        make(daemon, **arguments)
    with make(daemon) as loader:
        check_run(daemon, loader, 1)


def rings():
    """How much ring memory this process has mapped."""
    with open("/proc/self/maps") as maps:
        return maps.read().count("/memfd:tokend-")


def test_a_forked_child_gets_an_error(daemon):
    with make(daemon) as loader:
        check_run(daemon, loader, 2)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            told = [f"{rings()} rings"]
            for call in (
                lambda: next(loader),
                loader.state_dict,
                lambda: loader.checkpoint("x"),
                loader.seek,
            ):
                try:
                    call()
                except tokend.ForkedError as error:
                    told.append(str(error)[:5])
            loader.close()
            del loader
            gc.collect()
            os.write(writer, ",".join(told).encode())
            os._exit(0)
        os.close(writer)
        assert os.waitpid(child, 0)[1] == 0
        assert rings() == 2, "meta and data"
        assert os.read(reader, 100) == b"0 rings,fork:,fork:,fork:,fork:"
        injected(2)
        os.close(reader)
        check_run(daemon, loader, 200, start=8)


def make_closed(daemon, **arguments):
    loader = make(daemon, **arguments)
    loader.close()
    return loader


def test_a_closed_loader_raises(daemon):
    loader = make(daemon)
    batch = next(loader)
    loader.close()
    loader.close()
    calls = (
        lambda: next(loader),
        loader.state_dict,
        lambda: loader.position,
        lambda: loader.checkpoint("x"),
        loader.seek,
    )  # noqa: E731
    for call in (*calls, loader.control, make_closed(daemon, rank=1, world=2).control):
        with pytest.raises(tokend.Error, match="closed"):
            call()
    check(daemon, batch, daemon.plan("train", 0, 4), ["web", "code"])


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_cannot_be_copied(daemon, double):
    with make(daemon) as loader:
        with pytest.raises(
            TypeError,
            match=(
                r"cannot be copied or pickled; make a loader in the process that reads, "
                r"and pass it the state_dict\(\)"
            ),
        ):
            double(loader)


class Interrupt(Exception):
    pass


def stop_and_drain(daemon, loader):
    """Stops the daemon and takes the published batches, until next() waits and a signal interrupts
    it.
    """

    def interrupt(number, frame):
        raise Interrupt

    daemon.freeze()
    former = signal.signal(signal.SIGALRM, interrupt)
    batches = []
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interrupt):
            while len(batches) < 10:
                batches.append(next(loader))
    finally:
        signal.signal(signal.SIGALRM, former)
    return batches


def test_a_signal_interrupts_a_wait_and_nothing_is_lost(daemon):
    with make(daemon, slots=4) as loader:
        taken = len(stop_and_drain(daemon, loader))
        daemon.signal(signal.SIGCONT)
        check_run(daemon, loader, 20, start=4 * taken)
        assert loader.stats()["lost_wakes"] == 0


def switch(frame, event, argument):
    """A trace function: other threads may run before each line of batch.py."""
    if not frame.f_code.co_filename.endswith("tokend/batch.py"):
        return None
    time.sleep(0)
    return switch


def take_in_threads(loader, steps):
    """Batches of four threads, by position."""
    batches = []
    threads = [
        threading.Thread(target=lambda: batches.extend(next(loader) for _ in range(steps // 4)))
        for _ in range(4)
    ]
    threading.settrace(switch)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.settrace(None)
    batches.sort(key=lambda batch: batch["position"][0].item())
    assert [batch["position"][0].item() for batch in batches] == list(range(0, 4 * steps, 4))
    return batches


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_threads_that_take_batches_of_one_loader_share_no_memory(daemon, framework, monkeypatch):
    """Which thread gets which batch is up to them. Small tensors made ahead are often used up."""
    monkeypatch.setattr("tokend.batch.PADDINGS_AHEAD", 2)
    steps = 200
    with make(daemon, framework=framework) as loader:
        batches = take_in_threads(loader, steps)
    with make(daemon, framework=framework, tokens=True) as loader:
        unsplit = take_in_threads(loader, steps)
    assert not any(batch["padding"].any() for batch in unsplit)
    plan = daemon.plan("train", 0, 4 * steps)
    for batch in batches:
        check(daemon, batch, plan[:4], ["web", "code"])
        del plan[:4]


def test_another_thread_gets_the_state_while_next_waits(daemon):
    with make(daemon, slots=4) as loader:
        taken = len(stop_and_drain(daemon, loader))
        got = []
        reader = threading.Thread(target=lambda: got.append(next(loader)))
        reader.start()
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == loader.position == 4 * taken
        assert not got
        daemon.signal(signal.SIGCONT)
        reader.join(20)
        check(daemon, got[0], daemon.plan("train", 4 * taken, 4), ["web", "code"])


# ---- the rest ----


def test_without_torch_batches_are_numpy_arrays(daemon):
    program = textwrap.dedent("""
        import json, sys
        class NoTorch:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ModuleNotFoundError("torch is not here", name=name)
        sys.meta_path.insert(0, NoTorch())
        import tokend
        with tokend.Loader("train", 4, socket=sys.argv[1]) as loader:
            batch = next(loader)
            assert "torch" not in sys.modules
            print(json.dumps({
                name: [type(a).__module__, str(a.dtype), a.tolist()] for name, a in batch.items()
            }))
            finite = list(tokend.Loader("finite", 7, socket=sys.argv[1]))
            assert (finite[-1]["labels"][finite[-1]["position"] == -1] == -100).all()
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.socket],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    batch = json.loads(done.stdout)
    assert {name: value[:2] for name, value in batch.items()} == {
        name: ["numpy", "int64"] for name in batch
    }
    check(
        daemon,
        {name: numpy.array(value[2]) for name, value in batch.items()},
        daemon.plan("train", 0, 4),
        ["web", "code"],
    )
    with make(daemon, framework="numpy") as loader:
        check_run(daemon, loader, 5)


# ---- proof ----


def test_a_record_is_a_file_per_process(daemon):
    place = daemon.directory / "records"
    loaders = [make(daemon, rank=rank, world=2, run="job", record=place) for rank in range(2)]
    for loader in loaders:
        for _ in range(3):
            next(loader)
        loader.close()
    files = sorted(place.iterdir())
    assert [file.name.rsplit(".", 2)[0] for file in files] == ["job.0-0", "job.1-0"]
    assert all(file.name.endswith(".record") and f".{os.getpid()}-" in file.name for file in files)
    for rank, file in enumerate(files):
        entries = numpy.fromfile(file, "<u8").reshape(-1, 2)
        assert entries[0].tolist() == [2**64 - 1, 1]
        assert entries[-12:, 0].tolist() == [
            8 * step + 4 * rank + i for step in range(3) for i in range(4)
        ]
    (daemon.directory / "file").touch()
    with pytest.raises(tokend.ArgumentError, match="record: .*/file: File exists"):
        make(daemon, record=daemon.directory / "file")
