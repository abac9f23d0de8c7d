"""Impossible states and arguments, and what the package costs."""

import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
from loading import SEQ, make

import tokend
from lib import REPO, child_environment
from tokend import arguments


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            {},
            (
                r"state: not from a tokend.Loader's state_dict\(\), it has no cursor of bytes: its "
                r"keys are \[\]; to continue after another loader"
            ),
        ),
        ({"epoch": 3, "step": 1}, r"its keys are \['epoch', 'step'\]"),
        (None, "it is a NoneType"),
        ({"cursor": 17}, "its cursor is a int"),
    ],
)
def test_a_state_of_another_loader_is_refused(daemon, state, text):
    with make(daemon) as loader:
        next(loader)
        with pytest.raises(tokend.ArgumentError, match=text):
            loader.load_state_dict(state)
        assert loader.position == 4
        next(loader)


def test_a_state_of_another_stream_is_refused(daemon):
    with make(daemon) as loader, make(daemon, "whole") as other:
        with pytest.raises(tokend.RefusedError, match="stream"):
            loader.load_state_dict(other.state_dict())


def test_a_context_closes_the_loader(daemon):
    with make(daemon, documents=False, provenance=True) as loader:
        next(loader)
    for call in (
        lambda: next(loader),
        loader.state_dict,
        loader.stats,
        lambda: loader.load_state_dict({"cursor": b"x"}),
        loader.control,
    ):
        with pytest.raises(tokend.Error, match="closed: this loader was closed; make a new one"):
            call()


# ---- impossible arguments ----


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"micro": 2.5}, TypeError, "micro_batch: 2.5 is not an integer from 1 to 65536"),
        ({"micro": "8"}, TypeError, "micro_batch: '8' is not an integer from 1 to 65536"),
        ({"micro": True}, TypeError, "micro_batch: True is not an integer"),
        ({"micro": torch.tensor(8.5)}, TypeError, "is not an integer from 1 to 65536"),
        ({"micro": 2**33}, tokend.ArgumentError, "micro_batch: 8589934592; must be 1 to 65536"),
        ({"loss_mask": True}, tokend.ArgumentError, "loss_mask: the stream carries no loss mask"),
        ({"slots": 1.0}, TypeError, "slots: 1.0 is not an integer"),
        ({"device": "mps"}, tokend.ArgumentError, "device: 'mps' is not 'cpu', 'cuda' or 'cuda:N'"),
        ({"socket": "x", "config": "y"}, ValueError, "socket, config: pass one of them"),
    ],
)
def test_impossible_arguments_are_refused(daemon, arguments, error, text):
    arguments = {"micro": 4, "socket": daemon.socket, **arguments}
    micro = arguments.pop("micro")
    with pytest.raises(error, match=text) as raised:
        tokend.Loader("train", micro, rank=0, world=1, **arguments)
    assert len(raised.traceback) == 2, "no frames of the package but the constructor's"


def test_a_deadline_that_is_passed_covers_the_first_attach():
    assert arguments.reach("x", None, None) == {
        "socket": "x",
        "connect_ms": 5000,
        "deadline_ms": 300_000,
    }
    assert arguments.reach("x", None, 60) == {
        "socket": "x",
        "connect_ms": 60_000,
        "deadline_ms": 60_000,
    }


@pytest.mark.parametrize("micro", [numpy.int64(8), numpy.array(8), torch.tensor(8)], ids=repr)
def test_micro_batch_is_any_integer(daemon, micro):
    with tokend.Loader("train", micro, socket=daemon.socket, rank=0, world=1) as loader:
        assert type(loader.micro_batch) is int
        assert next(loader)["position"].tolist() == [*range(8)]
        loader.seek(micro_batch=numpy.int32(2))
        assert next(loader)["position"].tolist() == [8, 9]


def test_repr_and_mix_show_the_run(daemon):
    with make(daemon, "train", 4, rank=1, world=2) as loader:
        next(loader)
        shown = "4 × 64, rank 1 of 2; <tokend.Cursor train at 8, seed 42: web 70 %, code 30 %>"
        assert repr(loader) == f"<tokend.Loader {shown.replace('<tokend.Cursor ', '')}"
        assert loader.mix == {"web": 0.7, "code": 0.3}
        loader.set_mix({"code": 1})
        assert loader.mix["web"] > 0, "not yet in force"
        loader.seek(position=1024)
        assert loader.mix == {"web": 0, "code": 1}
    assert repr(loader) == "<tokend.Loader, not attached>"


FAKE = """
import sys, types
torch = types.ModuleType("torch")
torch.__version__ = "1.13.1+cu117"
if sys.argv[2] == "old":
    sys.modules["torch"] = torch
else:
    class NoTorch:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "torch":
                raise ModuleNotFoundError("torch is not here", name=name)
    sys.meta_path.insert(0, NoTorch())
import tokend
try:
    tokend.Loader("train", 4, socket=sys.argv[1], framework=sys.argv[3] or None)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("torch_is", "framework", "text"),
    [
        ("old", "", "torch: 1.13.1+cu117 is older than 2.2; pip install -U torch"),
        ("old", "torch", "torch: 1.13.1+cu117 is older than 2.2; pip install -U torch"),
        (
            "missing",
            "torch",
            "framework: torch is not installed; pip install torch, or pass framework='numpy'",
        ),
        ("missing", "", ""),
    ],
)
def test_a_missing_or_old_torch_is_an_import_error(daemon, torch_is, framework, text):
    command = [sys.executable, "-c", FAKE, daemon.socket, torch_is, framework]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=child_environment()
    )
    assert (done.returncode, done.stdout.strip()) == (0, text), done.stderr


# ---- costs ----


def said_by(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=child_environment()
    ).stdout


def test_stats_measure_the_time_spent_in_next(daemon):
    with make(daemon) as loader:
        loader.stats()
        inside = 0.0  # seconds in next(), measured from outside, without the sleeps
        for _ in range(10):
            begin = time.perf_counter()
            next(loader)
            inside += time.perf_counter() - begin
            time.sleep(0.01)
        stats = loader.stats()
        assert (stats["batches"], stats["tokens"]) == (10, 10 * 4 * (SEQ + 1))
        assert 0 <= stats["waited_s"] <= stats["next_s"] <= inside
        daemon.freeze()
        threading.Timer(0.5, lambda: daemon.signal(18)).start()
        begin = loader.stats()["next_s"]
        while loader.stats()["next_s"] - begin < 0.2:
            next(loader)
        assert loader.stats()["waited_s"] > 0.2


def test_a_rank_needs_no_thread_and_little_memory(daemon):
    program = """
import os, sys, resource, torch, tokend

torch.set_num_threads(1)


def private():
    return sum(
        int(line.split()[1])
        for line in open("/proc/self/smaps_rollup")
        if line.startswith(("Private_Clean", "Private_Dirty"))
    )


threads, before = len(os.listdir("/proc/self/task")), private()
loader = tokend.Loader("train", 4, socket=sys.argv[1], rank=0, world=1, documents=False)
for _ in range(2000):
    batch = next(loader)
print(len(os.listdir("/proc/self/task")) - threads, private() - before)
"""
    threads, kib = map(int, said_by(program, daemon.socket).split())
    assert threads == 0
    assert kib < 8 * 1024, kib


def test_the_recipe_for_losses_by_dataset(daemon):
    """Compared with the sum over single rows; the last batch has padding."""
    daemon.config.write_text(
        daemon.config.read_text().replace("  train:\n", "  train:\n    samples: 22\n")
    )
    daemon.stop()
    daemon.start()
    sys.path.insert(0, str(REPO / "client" / "example" / "trainers"))
    try:
        import losses
    finally:
        sys.path.pop(0)
    torch.manual_seed(1)
    with make(daemon, micro=4) as loader:
        for batch in loader:
            logits = torch.randn(4, SEQ, 50_000)
            sums, counts = {}, {}
            for row, labels, dataset in zip(
                logits, batch["labels"], batch["dataset"].tolist(), strict=True
            ):
                if dataset >= 0:
                    name = loader.datasets[dataset]
                    sums[name] = (
                        sums.get(name, 0.0) + torch.nn.functional.cross_entropy(row, labels).item()
                    )
                    counts[name] = counts.get(name, 0) + 1
            said = losses.by_dataset(logits, batch, loader.datasets)
            assert said == {
                name: pytest.approx(sums[name] / counts[name], rel=1e-4) for name in said
            }
            assert said.keys() == sums.keys()
        assert (batch["position"] == -1).sum() == 2


def test_a_message_that_is_not_utf_8_is_an_error_of_its_kind():
    with pytest.raises(tokend.Error, match="^config: .*/[?].yaml: No such file"):
        tokend.Loader("train", 4, rank=0, world=1, config=b"/nowhere/\xff.yaml")
