"""Finds this process's rank and world from its launcher.

Launchers start each other: mpirun in a Slurm allocation, torchrun in each task of srun. The ranks
of the inner one are the job's, but they inherit the environment of the outer one. So the first of
these that has both numbers counts:

    torch.distributed  if it is initialised
    jax.distributed    if it is initialised; otherwise JAX's number of processes, if its devices
                       are in use: a TPU's runtime knows it
    torchrun           RANK, WORLD_SIZE
    Open MPI           OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
    PMI                PMI_RANK, PMI_SIZE: mpiexec of MPICH, Intel MPI, Cray
    Slurm              SLURM_PROCID, SLURM_STEP_NUM_TASKS: set by srun. SLURM_NTASKS is not used:
                       it is also set in a batch script, where one process runs
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from . import phrases


_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Place:
    def __init__(self, launcher: str, rank: int, world: int) -> None:
        self.launcher, self.rank, self.world = launcher, rank, world


ENVIRONMENTS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


def coordinate(rank: int | None, world: int | None) -> tuple[int, int]:
    """Returns (rank, world): as passed, otherwise the launcher's, otherwise (0, 1)."""
    if rank is not None or world is not None:
        if rank is None or world is None:
            raise ValueError(f"rank, world: {phrases.PASS_EITHER}")
        return rank, world
    found = launched()
    if found is not None:
        return found.rank, found.world
    check_halves()
    return 0, 1


def launched() -> Place | None:
    """Returns the place that the innermost launcher gives; None if there is no launcher."""
    return _of_torch() or _of_jax() or _of_environment()


def _of_torch() -> Place | None:
    distributed = sys.modules.get("torch.distributed")  # if not imported, then not initialised
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
        if state.client is not None:
            return Place("jax.distributed", state.process_id, state.num_processes)
        return _of_devices()
    public: Any = sys.modules.get("jax.distributed")
    if public is None or not public.is_initialized():
        return None
    jax: Any = sys.modules["jax"]  # initialises the devices, unlike the state above
    return Place("jax.distributed", jax.process_index(), jax.process_count())


def _of_devices() -> Place | None:
    in_use = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    if in_use is None or not in_use():  # not by us: it takes the devices' memory
        return None
    jax: Any = sys.modules["jax"]
    index, count = jax.process_index(), jax.process_count()
    return Place("jax", index, count) if count > 1 else None


def _of_environment() -> Place | None:
    for launcher, names in ENVIRONMENTS.items():
        rank, world = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and world.isdigit():
            return Place(launcher, int(rank), int(world))
    return None


def check_halves() -> None:
    """Called when no launcher has both numbers. Raises if one has half of them: it has started
    several processes, and each would take all rows.
    """
    for launcher, names in ENVIRONMENTS.items():
        values = [os.environ.get(name, "") for name in names]
        # Slurm's batch script has a SLURM_PROCID, and is a single process
        if any(values) and launcher != "Slurm":
            raise ValueError(
                f"{names[0]}={values[0]!r}, {names[1]}={values[1]!r}: not two numbers; set both, "
                f"or {phrases.PASS_RANKS}"
            )
    rank = os.environ.get("PMIX_RANK", "")
    if rank not in ("", "0"):  # a single program under Open MPI is rank 0, too
        raise ValueError(
            f"PMIX_RANK={rank!r}: one of several processes, but no launcher says how many; "
            f"{phrases.PASS_RANKS}"
        )


def token() -> str | None:
    """The launcher's name for this job, or None. torchrun without --rdzv-id draws a UUID, and
    another one at the next start: that names nothing.
    """
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name, "")
        if value and value != "none" and not _RANDOM.fullmatch(value):
            return value
    return None
