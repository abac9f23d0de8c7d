"""llm.c's loop, built with the wheel's header and library, resumes exactly on other numbers of MPI
processes; a mix that one process cannot carry out is undone on all of them.
"""

import json
import os
import shutil
import subprocess
import sys


import lib
from harness import EXAMPLES, HERE, LIMIT_S, RUN, VALID, Job
from lib import TOKCTL, run, status, wait_for

BIN = os.path.dirname(sys.executable)  # of the wheels tokend and mpich
HEADER = os.path.join(EXAMPLES, "llmc_dataloader.h")
STRICT = "-O2 -Wall -Wextra -Werror -pedantic".split()
STEPS = 75
# busy loops of MPI leave a processor to the other processes
POLITE = {"MPIR_CVAR_POLLS_BEFORE_YIELD": 1}


def output(*command, **keys):
    code, out, err = run(*command, **keys)
    assert code == 0, (command, err)
    return out.decode()


def compile_with(compiler, place, *arguments):
    directory = output(sys.executable, "-m", "tokend", "--pkgconfigdir").strip()
    found = {**os.environ, "PKG_CONFIG_PATH": directory}
    flags = output("pkg-config", "--cflags", "--libs", "tokend", env=found).split()
    output(f"{BIN}/{compiler}", *STRICT, *arguments, *flags, "-lm", cwd=place)


class Llmc(Job):
    def __init__(self, **more):
        super().__init__("train_llmc.c", streams={"valid": VALID}, **more)

    def __enter__(self):
        super().__enter__()
        for path in HEADER, os.path.join(HERE, "train_gpt2.c"):
            shutil.copy(path, self.work)
        self.edit("B = 2,", f"B = {self.micro_batch},")
        self.compile()
        return self

    def compile(self):
        more = "-std=gnu11 train_llmc.c -Wl,--wrap=tokend_attach -o train_llmc"
        compile_with("mpicc", self.work, *more.split())

    def other_daemon(self, *datasets):
        """A daemon as that of another node. Its stream has these datasets, too."""
        config = json.load(open(self.yaml))
        config |= {"socket": self.file("more.sock"), "state_dir": self.file("more", "")}
        config["streams"]["train"]["datasets"] += datasets
        return lib.Daemon(self, self.config("more.yaml", **config))

    def start(self, world, steps=15, *, first=None, **more):
        """@first: the config of the first process, if it has another one."""
        program = ["./train_llmc", str(steps), RUN]
        command = [f"{BIN}/mpirun"]
        if first:
            command += ["-n", "1", *program, first, ":"]
        command += ["-n", str(world - bool(first)), *program, self.yaml]
        return super().start(world, command=command, **POLITE, **more)


def test_llmc_resumes_on_other_numbers_of_processes_and_carries_out_requests():
    with Llmc() as job:
        job.start(1, hold=7)
        job.start(2, hold=7)
        text = job.start(3, 1000, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.start(1, step + 3)
        job.prove(steps=step + 3, resumed=[5, 10, step])
        assert "val loss" in text, "the finite stream is read again for each validation"
        records = os.path.join(job.records, "valid")
        passes = output(TOKCTL, "verify", "-c", job.yaml, "valid", records, "--json")
        of_each = [json.loads(line) for line in passes.splitlines()]
        assert len(of_each) > 2 and not any(said["void"] for said in of_each), of_each


def test_a_mix_that_one_process_cannot_carry_out_is_undone_on_all():
    with Llmc(micro_batch=8) as job:
        job.start(1, hold=7)
        job.shard("shards/books/0.bin", 100_000)
        wider = job.other_daemon({"name": "books", "path": "shards/books", "weight": 0})

        def mix(_):
            command = f"{TOKCTL} mix train web=0.5 books=0.5 --socket {wider.socket}".split()
            job.asked = job.spawn(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert wait_for(lambda: any(s["request"] for s in status(wider.socket)[0]))

        # so many steps that the new mix would act, from position 1024 on
        job.start(2, STEPS, first=wider.config, hold=7, then=mix)
        said, _ = job.asked.communicate(timeout=LIMIT_S)
        assert job.asked.returncode == 1 and "process 1: " in said and "books" in said, said
        assert job.prove(steps=STEPS, resumed=[5]) > 1024 + 64


def test_a_drain_is_reported_after_the_save():
    """Process 0 saves, slowly; the operator asks the daemon of process 1."""
    with Llmc() as job:
        job.edit("stop_if(rename", "sleep(1);\n\tstop_if(rename")
        job.compile()

        def drain(_):
            command = (
                f"{TOKCTL} drain train --socket {job.daemon.socket} && cp state.bin drained.bin"
            )
            job.asked = job.spawn(
                command, shell=True, cwd=job.work, stdout=subprocess.PIPE, text=True
            )

        job.start(2, 100, first=job.other_daemon().config, hold=7, then=drain)
        with open(os.path.join(job.work, "drained.bin"), "rb") as saved:
            assert int.from_bytes(saved.read(4), sys.byteorder) == job.drained()


def test_a_loss_mask_is_refused_as_llmc_has_none():
    with Llmc(loss_mask=True) as job:
        assert "loss_mask: llm.c" in job.start(1, fails=True)


def test_the_header_compiles_as_cxx(tmp_path):
    compile_with("mpicxx", tmp_path, *"-x c++ -std=c++17 -fsyntax-only".split(), HEADER)


def test_processes_that_another_mpi_started_do_not_read_the_same_rows():
    """Each is then process 0 of 1. The second one waits until the first one has left."""
    with Llmc() as job:
        alone = ["./train_llmc", "15", RUN, job.yaml]
        first = job.launch(1, command=alone, hold=[3])
        assert wait_for(lambda: first.noted_any(held=3))
        second = job.launch(1, command=alone)
        assert wait_for(lambda: f"is read by pid {first.child.pid} " in open(second.log).read())
        assert not second.noted_any(loader="train") and not second.ended()
        first.release(3)
        assert wait_for(second.ended) and second.child.returncode == 0
        assert not any("rows" in event for events in second.events() for event in events)
