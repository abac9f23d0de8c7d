"""Rank and world come from the launcher, also from launchers within each other."""

import os
import sys
import types
import uuid

import pytest

import tokend
from tokend import Loader, parallel

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}
MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "PMIX_RANK": "5"}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
# the script that sbatch runs: one process, whatever the allocation's size
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}


@pytest.fixture
def alone(monkeypatch):
    """An environment without a launcher."""
    for name in [*os.environ]:
        if name.startswith(
            ("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI", "HOROVOD", "TORCHELASTIC_")
        ):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"}, (1, 3)),
        (SRUN, (1, 2)),
        (BATCH, (0, 1)),
        ({**SRUN, **TORCHRUN}, (3, 8)),  # torchrun in each task of srun
        ({**SRUN, **MPI}, (5, 6)),  # mpirun, with daemons started by srun
        ({**BATCH, **MPI}, (5, 6)),  # mpirun in a batch script
        ({**SRUN, **PMI}, (2, 4)),  # mpiexec.hydra, with proxies started by srun
    ],
)  # fmt: skip
def test_the_innermost_launcher_counts(alone, environment, expected):
    for name, value in environment.items():
        alone.setenv(name, value)
    assert parallel.coordinate(None, None) == expected
    assert parallel.coordinate(1, 4) == (1, 4)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"RANK": "3"}, "RANK='3', WORLD_SIZE=''"),
        ({"PMI_RANK": "1"}, "PMI_RANK='1', PMI_SIZE=''"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK='1'"),
    ],
)
def test_a_rank_without_a_world_is_refused(alone, environment, named):
    """One of several processes without their number would take all rows."""
    for name, value in environment.items():
        alone.setenv(name, value)
    with pytest.raises(ValueError, match=named) as refused:
        parallel.coordinate(None, None)
    assert "rank= and world=" in str(refused.value)
    assert parallel.coordinate(1, 4) == (1, 4)


def launched():
    found = parallel.launched()
    return found.launcher, found.rank, found.world


def jax_state(alone, **state):
    module = types.SimpleNamespace(global_state=types.SimpleNamespace(**state))
    alone.setitem(sys.modules, "jax._src.distributed", module)


def test_jax_counts_once_it_is_initialised(alone):
    """By the state of jax 0.4 to 0.10. The test needs no jax."""
    for name, value in {**SRUN, **PMI}.items():
        alone.setenv(name, value)
    jax_state(alone, client=None, process_id=0, num_processes=1)
    assert launched() == ("PMI", 2, 4)
    jax_state(alone, client=object(), process_id=6, num_processes=7)
    assert launched() == ("jax.distributed", 6, 7)


def test_a_tpus_runtime_knows_the_processes_once_its_devices_are_in_use(alone):
    """Without jax.distributed each host once was rank 0 of 1. The test needs no TPU."""
    for name, value in PMI.items():
        alone.setenv(name, value)
    jax = types.SimpleNamespace(process_index=lambda: 5, process_count=lambda: 8)
    in_use = types.SimpleNamespace(backends_are_initialized=lambda: False)
    alone.setitem(sys.modules, "jax", jax)
    jax_state(alone, client=None, process_id=0, num_processes=1)
    alone.setitem(sys.modules, "jax._src.xla_bridge", in_use)
    assert launched() == ("PMI", 2, 4)
    in_use.backends_are_initialized = lambda: True
    assert launched() == ("jax", 5, 8)


def test_a_loader_made_before_its_launcher_is_refused(daemon, alone):
    """All processes would be rank 0 of 1, and each would take all rows."""
    places = ({}, {}, {"rank": 0, "world": 1})
    made, asked, passed = (Loader("train", 2, socket=daemon.socket, **more) for more in places)
    next(asked)
    jax_state(alone, client=object(), process_id=1, num_processes=2)  # without a store: no group
    for _ in range(2):
        for loader in (made, asked):
            with pytest.raises(ValueError, match="before jax.distributed .* instead of 2"):
                next(loader)
    made.seek(rank=1, world=2)
    assert next(made)["position"].tolist() == [2, 3]
    assert next(passed)["position"].tolist() == [0, 1]


def test_slices_of_more_processes_than_there_are_are_refused(daemon, alone):
    """Each process would take rows of its own, and drop what its context-parallel peers need."""
    alone.setenv("RANK", "1")
    alone.setenv("WORLD_SIZE", "2")
    options = {"socket": daemon.socket, "cp": (1, 2, "contiguous"), "group": False}
    with pytest.raises(tokend.ArgumentError, match=r"^cp: 2 ranks with 2 slices .* are lost"):
        Loader("train", 2, **options)
    with pytest.warns(RuntimeWarning, match="2 slices"):
        Loader("train", 2, rank=1, world=2, **options).close()
    with Loader("train", 2, rank=0, world=1, peer=1, **options) as loader:
        assert next(loader)["position"].tolist() == [0, 1]


def test_a_world_of_jaxs_devices_is_refused(daemon, alone):
    """A process has several devices. Without a loader for each, their rows would be lost."""
    jax_state(alone, client=object(), process_id=0, num_processes=2)
    options = {"socket": daemon.socket, "world": 4, "run": "devices"}
    first = Loader("train", 2, rank=0, **options)
    with pytest.raises(ValueError, match="JAX has 2 processes, and this one reads only 1 of"):
        next(first)
    second = Loader("train", 2, rank=1, **options)
    assert next(first)["position"].tolist() == [0, 1]
    assert next(second)["position"].tolist() == [2, 3]


def test_the_run_has_the_launchers_name(alone):
    assert parallel.token() is None
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("SLURM_JOB_ID", "77")):
        alone.setenv(name, value)
    assert parallel.token() == "77"
    alone.setenv("TORCHELASTIC_RUN_ID", "abc")
    assert parallel.token() == "abc"
    alone.setenv("TORCHELASTIC_RUN_ID", str(uuid.uuid4()))  # torchrun's, another at each start
    assert parallel.token() == "77"
    alone.delenv("SLURM_JOB_ID")
    assert parallel.token() is None
