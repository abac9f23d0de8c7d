"""Who this process is in its job, as its launcher tells.

Launchers start each other: mpirun in a Slurm allocation, torchrun in each task of srun. The inner
one's ranks are the job's, and they inherit the environment of the outer one. So the first of these
that tells both numbers is believed:

    torch.distributed  if it is initialised
    jax.distributed    if it is initialised
    torchrun           RANK, WORLD_SIZE
    Open MPI           OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
    PMI                PMI_RANK, PMI_SIZE: mpiexec of MPICH, Intel MPI, Cray
    Slurm              SLURM_PROCID, SLURM_STEP_NUM_TASKS: set by srun. SLURM_NTASKS is set without
                       it, too, where one process runs
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple


class Place(NamedTuple):
    launcher: str
    rank: int
    world: int


ENVIRONMENTS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


def coordinate(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world): as given, otherwise the launcher's, otherwise a job of one."""
    if rank is not None or world is not None:
        if rank is None or world is None:
            raise ValueError("rank, world: give both or neither")
        return rank, world
    found = launched()
    if found is not None:
        return found.rank, found.world
    check_halves()
    return 0, 1


def launched() -> Place | None:
    """What the innermost launcher says; None if there is none."""
    return _of_torch() or _of_jax() or _of_environment()


def _of_torch() -> Place | None:
    distributed = sys.modules.get("torch.distributed")  # nobody initialised what was not imported
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Place("torch.distributed", distributed.get_rank(), distributed.get_world_size())


def _of_jax() -> Place | None:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if (
        hasattr(state, "client")
        and hasattr(state, "process_id")
        and hasattr(state, "num_processes")
    ):
        return (
            Place("jax.distributed", state.process_id, state.num_processes)
            if state.client is not None
            else None
        )
    public: Any = sys.modules.get("jax.distributed")
    if public is None or not public.is_initialized():
        return None
    jax: Any = sys.modules["jax"]  # begins to use the devices, which the state does not
    return Place("jax.distributed", jax.process_index(), jax.process_count())


def _of_environment() -> Place | None:
    for launcher, names in ENVIRONMENTS.items():
        rank, world = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and world.isdigit():
            return Place(launcher, int(rank), int(world))
    return None


def check_halves() -> None:
    """No launcher tells both numbers. One that tells one of them has started several processes, and
    each would take all rows.
    """
    for launcher, names in ENVIRONMENTS.items():
        values = [os.environ.get(name, "") for name in names]
        if (
            any(values) and launcher != "Slurm"
        ):  # Slurm's batch script has a SLURM_PROCID, and is alone
            raise ValueError(
                f"{names[0]}={values[0]!r}, {names[1]}={values[1]!r}: set both to numbers, or pass "
                "rank= and world="
            )
    rank = os.environ.get("PMIX_RANK", "")
    if rank not in ("", "0"):  # a program alone under Open MPI is rank 0, too
        raise ValueError(
            f"PMIX_RANK={rank!r}: this is one of several processes, but no launcher says how many: "
            "pass rank= and world="
        )


def token() -> str | None:
    """The launcher's name for this job, or None."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name, "")
        if value and value != "none":  # what torchrun says when it was given none
            return value
    return None
