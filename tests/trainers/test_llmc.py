"""llm.c's loop, built with the wheel's header and library, resumes exactly on other numbers of MPI
processes.
"""

import os
import shutil
import sys

from harness import HERE, RUN, Job
from lib import run, wait_for

BIN = os.path.dirname(sys.executable)  # of the wheels tokend and mpich
STRICT = "-O2 -Wall -Wextra -Werror -pedantic".split()
# busy loops of MPI leave a processor to the other processes
POLITE = {"MPIR_CVAR_POLLS_BEFORE_YIELD": 1}


def output(*command, **keys):
    code, out, err = run(*command, **keys)
    assert code == 0, (command, err)
    return out.decode()


class Llmc(Job):
    def __init__(self, **more):
        super().__init__("train_llmc.c", **more)

    def __enter__(self):
        super().__enter__()
        shutil.copy(os.path.join(HERE, "train_gpt2.c"), self.work)
        self.edit("B = 2,", f"B = {self.micro_batch},")
        self.edit('"llmc"', f'"{RUN}"')
        self.compile()
        return self

    def compile(self):
        directory = output(sys.executable, "-m", "tokend", "--pkgconfigdir").strip()
        found = {**os.environ, "PKG_CONFIG_PATH": directory}
        flags = output("pkg-config", "--cflags", "--libs", "tokend", env=found).split()
        more = "-std=gnu11 train_llmc.c -Wl,--wrap=tokend_attach -o train_llmc".split()
        output(f"{BIN}/mpicc", *STRICT, *more, *flags, "-lm", cwd=self.work)

    def start(self, world, steps=15, **more):
        command = [f"{BIN}/mpirun", "-n", str(world), "./train_llmc", str(steps)]
        return super().start(world, command=command, **POLITE, **more)


def test_llmc_resumes_on_other_numbers_of_processes():
    with Llmc() as job:
        job.start(1, hold=7)
        job.start(2, hold=7)
        job.start(3, 1000, hold=7)
        job.start(1, 22)
        job.prove(steps=22, resumed=[5, 10, 15])


def test_a_loss_mask_is_refused_as_llmc_has_none():
    with Llmc(loss_mask=True) as job:
        assert "loss_mask: llm.c" in job.start(1, fails=True)


def test_processes_that_another_mpi_started_do_not_read_the_same_rows():
    """Each is then process 0 of 1. The second one waits until the first one has left."""
    with Llmc() as job:
        alone = ["./train_llmc"]
        first = job.launch(1, command=alone, hold=[3])
        assert wait_for(lambda: first.noted_any(held=3))
        second = job.launch(1, command=alone)
        assert wait_for(
            lambda: f"is read twice, by pid {first.child.pid} " in open(second.log).read()
        )
        assert not second.noted_any(loader="train") and not second.ended()
        first.release(3)
        assert wait_for(second.ended) and second.child.returncode == 0
        assert not any("rows" in event for events in second.events() for event in events)
