"""Who this process is in its job, as its launcher tells."""

import os
import sys


def coordinate(rank, world):
    """(rank, world): as given, else torch.distributed's, torchrun's, Slurm's, else a job of one."""
    if rank is not None or world is not None:
        if rank is None or world is None:
            raise ValueError("rank, world: give both or neither")
        return rank, world
    distributed = sys.modules.get("torch.distributed")  # nobody initialised what was not imported
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        values = [os.environ.get(name, "") for name in names]
        if all(value.isdigit() for value in values):
            return int(values[0]), int(values[1])
        if any(values):
            raise ValueError(f"{names[0]}={values[0]!r}, {names[1]}={values[1]!r}: set both to numbers, or pass rank= and world=")
    return 0, 1


def token():
    """The launcher's name for this job, or None."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name, "")
        if value and value != "none":  # what torchrun says when it was given none
            return value
    return None
