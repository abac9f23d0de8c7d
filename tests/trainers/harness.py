"""Shared by the tests of trainers: starts, kills and restarts a trainer, and checks its rows.

A test runs a trainer as users do: with the installed wheel, an example of client/example/trainers
in an empty directory, and torchrun. The trainer is killed (SIGKILL, all processes at once) in the
middle of a step after a checkpoint. It resumes from its checkpoint in a world of another size:

    with Job("train_ddp.py", micro_batch=2) as job:
        job.start(1, hold=7)            # stops in its 8th step and is killed
        job.start(2, hold=7)
        job.start(1)                    # to its end
        job.prove(steps=15, resumed=[5, 10])

Two independent methods find the rows that were trained on. traced.py logs the tokens that the model
was called with, and the steps that its optimizer made. The optimizer's own count is in the
trainer's checkpoint, so it shows which steps are part of the final model. Each of these steps must
contain exactly the next rows of `tokctl plan`. In addition, `tokctl verify` must report 0 repeated,
0 lost and 0 altered rows in the loaders' records.
"""

import contextlib
import glob
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy

import lib
from lib import REPO, TOKCTL, rows_at, run, wait_for
from lib.trainer_table import TRAINERS, find

HERE = os.path.dirname(os.path.abspath(__file__))
# Package, daemon and tokctl must be those of the installed wheel, so $TOKEND_BIN is removed below.
_found = importlib.util.find_spec("tokend")
if _found is None or not _found.origin.startswith(sys.prefix + os.sep):
    sys.exit(
        f"tokend: {_found and _found.origin} is not the wheel's in {sys.prefix}; run make "
        "test-trainers without PYTHONPATH"
    )
os.environ.pop("TOKEND_BIN", None)

EXAMPLES = os.path.join(REPO, "client", "example", "trainers")
SKIPPED = 1100  # more than the positions until a new mix acts
RUN = "trainers"
SEQ, VOCAB = 32, 2048  # rows differ in their tokens, and the model is tiny
# a finite stream of 7 samples
VALID = {"seed": 1, "seq_len": SEQ, "epochs": 1}
VALID["datasets"] = [{"name": "held-out", "path": "held-out.bin"}]
LIMIT_S = 240  # for one start: importing, compiling and training, with 7 other tests at a time
STEADY = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    # compiled once, as on a user's machine: not again in each test's temporary directory
    "TORCHINDUCTOR_CACHE_DIR": os.path.join(sys.prefix, "inductor"),
}


def all_taken(total):
    """The expected result of tokctl verify: @total samples, each once, none skipped."""
    return {"samples": total, "repeated": 0, "lost": 0, "altered": 0, "skipped": 0}


class Start:
    """One start of a trainer: its processes, their output in `log`, their events in `noted`.
    `layout` is its number of processes, for the table; a test may write it in more words.
    """

    killed = 0  # processes that SIGKILL ended

    def events(self):
        """The events of each process, complete lines only: [[event]]."""
        found = []
        for path in sorted(glob.glob(os.path.join(self.noted, "*.jsonl"))):
            with open(path) as f:
                found.append([json.loads(line) for line in f if line.endswith("\n")])
        return found

    def trainers(self):
        """The pids of the trainers, without torchrun's own."""
        return [
            int(os.path.basename(path).split(".")[0]) for path in glob.glob(self.noted + "*.jsonl")
        ]

    def noted_any(self, **event):
        """True if a process logged this event."""
        return any(event.items() <= seen.items() for process in self.events() for seen in process)

    def release(self, hold):
        """Lets processes that are held after @hold steps continue."""
        open(f"{self.noted}go-{hold}", "w").close()

    def ended(self):
        return self.child.poll() is not None

    def kill(self):
        """Kills all processes at once, found by their TRACE variable. Returns their output."""
        if not self.ended():
            self.killed = len(self.trainers())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for environ in glob.glob("/proc/[0-9]*/environ"):
                try:
                    if f"TRACE={self.noted}\0".encode() in open(environ, "rb").read():
                        os.kill(int(environ.split("/")[2]), number)
                except OSError:
                    pass  # it has ended, or belongs to another user
        self.child.wait()
        return open(self.log, errors="replace").read()


class Job(lib.Place):
    """A directory with shards, config, daemon and one example.

    micro_batch      rows per forward pass and rank
    accumulate       forward passes per step
    copies           number of processes that get each row (tensor- and context-parallel peers)
    seq_len, vocab   of the shards; further arguments are keys of the config's stream `train`
    streams          further streams; they may use held-out.bin
    discards         this trainer discards gradients by clearing them without an optimizer step
    """

    def __init__(
        self, example, *, micro_batch=2, accumulate=1, copies=1, seq_len=SEQ, vocab=VOCAB,
        streams=None, discards=False, **stream,
    ):  # fmt: skip
        super().__init__()
        self.example, self.micro_batch = example, micro_batch
        self.accumulate, self.copies = accumulate, copies
        self.seq_len, self.vocab, self.stream, self.streams = seq_len, vocab, stream, streams or {}
        self.discards = discards
        self.starts, self.edits = [], []

    def __enter__(self):
        super().__enter__()
        rng = numpy.random.default_rng(7)
        for name, shards in {"web": (90_000, 60_001), "code": (200_000,)}.items():
            for i, tokens in enumerate(shards):
                rng.integers(0, self.vocab, tokens, dtype=numpy.uint16).tofile(
                    self.file("shards", name, f"{i}.bin")
                )
        stream = {
            "seed": 42,
            "seq_len": self.seq_len,
            "datasets": [
                {"name": "web", "path": "shards/web", "weight": 0.7},
                {"name": "code", "path": "shards/code", "weight": 0.3},
            ],
            **self.stream,
        }
        rng.integers(0, self.vocab, 7 * (self.seq_len + 1), dtype=numpy.uint16).tofile(
            self.file("held-out.bin")
        )
        self.yaml = self.config(streams={"train": stream, **self.streams})
        self.daemon = lib.Daemon(self, self.yaml)
        self.work = self.file("work", "")
        self.records = self.file("records", "")
        if self.example:
            shutil.copy(find(self.example), self.work)
        return self

    def __exit__(self, kind, error, trace):
        for start in self.starts:
            start.kill()
        super().__exit__()

    # ---- running it ----

    def edit(self, old, new):
        """Changes a setting in the copied example, as a user would."""
        path = os.path.join(self.work, self.example)
        text = open(path).read()
        if old not in text:
            raise ValueError(f"{self.example} has no {old!r}")
        open(path, "w").write(text.replace(old, new))

    def launch(
        self, world, *arguments, hold=(), launcher=None, module=None, command=None, **environ
    ):
        """Starts @world processes without waiting; see start()."""
        start = Start()
        start.number, start.world, start.layout = len(self.starts) + 1, world, world
        start.noted = self.file(f"noted-{start.number}", "")
        start.log = self.file(f"start-{start.number}.log")
        self.starts.append(start)
        program = ["-m", module] if module else [launcher or self.example]
        torchrun = f"""-m torch.distributed.run --nproc-per-node {world} --rdzv-backend c10d
            --rdzv-endpoint 127.0.0.1:0 --rdzv-id {RUN}""".split()
        torchrun = [sys.executable, *torchrun, os.path.join(HERE, "traced.py"), *program]
        environment = {
            **os.environ,
            **STEADY,
            "TOKEND_SOCKET": self.daemon.socket,
            "TRACE": start.noted,
            "TRACE_RECORDS": self.records,
            "TRACE_HOLD": ",".join(map(str, hold)),
            **{name: str(value) for name, value in environ.items()},
        }
        with open(start.log, "wb") as out:
            start.child = self.spawn(
                [*(command or torchrun), *map(str, arguments)],
                cwd=self.work,
                env=environment,
                stdout=out,
                stderr=out,
            )
        return start

    def start(self, world, *arguments, hold=0, until=None, then=None, fails=False, **more):
        """Runs the example in @world processes to its end, or kills it after @hold steps. Returns
        the output.

        until: a condition that must hold before the kill, such as a written checkpoint. then: is
        called with the trainers' pids instead of the kill, and the step continues. fails: the start
        must fail. launcher: another example, or a program that starts the trainer. module: run
        `-m NAME` instead of the example. command: starts all processes, instead of torchrun; each
        writes traced.py's events. Others: environment variables.
        """
        start = self.launch(world, *arguments, hold=[hold] if hold else [], **more)

        def held():
            return hold and start.noted_any(held=hold) and (until is None or until())

        arrived = wait_for(lambda: start.ended() or held(), LIMIT_S, 0.02)
        if arrived and then and not start.ended():
            then(start.trainers())
            start.release(hold)
            arrived = wait_for(start.ended, LIMIT_S, 0.02)
        status = start.child.poll()
        if not arrived:
            for pid in start.trainers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
            time.sleep(1)
        text = start.kill()
        if (
            not arrived
            or (status is None) != bool(hold and not then)
            or (status is not None and (status != 0) != fails)
        ):
            print(text[-12_000:], flush=True)
            raise RuntimeError(
                f"start {start.number}: " + ("no end" if not arrived else f"exit status {status}")
            )
        if fails:
            self.starts.pop()  # not part of the run
        return text

    def ask(self, *commands):
        """Runs tokctl commands, each after the one before was carried out."""
        keys = f"--socket {self.daemon.socket} --timeout {LIMIT_S}"
        typed = " && ".join(f"{TOKCTL} {command} {keys}" for command in commands)
        self.asked = self.spawn(
            ["sh", "-c", typed], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def drain(self, _):
        """For start(then=): requests a drain while the trainer is held."""
        self.ask("drain train")

    def edit_and_drain(self, _):
        """Requests a new mix, a skip to where it acts, and a drain."""
        self.ask(
            "mix train --json web=0.4 code=0.6",
            f"skip train --json --samples {SKIPPED}",
            "drain train",
        )

    def drained(self):
        """The step that tokctl reported for the drain. Stores the reported mix and skip."""
        said, _ = self.asked.communicate(timeout=LIMIT_S)
        at = re.search(r"step[ -]?(\d+)", said)
        assert self.asked.returncode == 0 and at, ("tokctl", said)
        edits = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.edits = [(line["from"], line["acts_from"]) for line in edits if "acts_from" in line]
        return int(at[1]) if at else 0

    def prove_edited(self):
        """Edits and drains an example with max_steps=15 in its text, then makes three more steps in
        another world. Returns the output. Starts that were killed in step 8 may precede.
        """
        resumed = [5] * len(self.starts)
        self.edit("max_steps=15", "max_steps=1000")
        text = self.start(2, hold=7, then=self.edit_and_drain)
        step = self.drained()
        self.edit("max_steps=1000", f"max_steps={step + 3}")
        text += self.start(1)
        self.prove(steps=step + 3, resumed=[*resumed, step])
        return text

    # ---- the proof ----

    def steps(self, start):
        """{the optimizer's count: [row, …] of all processes} of a start. None: rows without a step.

        Steps without rows are left out: torch's get_state_dict() makes one to create the moments.
        """
        steps = {}
        for process in start.events():
            rows = []
            for event in process:
                if "rows" in event:
                    rows += event["rows"]
                elif "zero" in event and self.discards:
                    steps.setdefault(None, []).extend(rows)
                    rows = []
                elif "step" in event:
                    steps.setdefault(event["step"], []).extend(rows)
                    rows = []
            steps.setdefault(None, []).extend(rows)
        return {step: rows for step, rows in steps.items() if rows}

    def step_rows(self, world, passes):
        """Number of rows per step. Overridden for trainers with a fixed global batch."""
        return world // self.copies * self.micro_batch * passes

    def seen(self, row):
        """The part of a window that the model gets. Overridden for context-parallel slices."""
        return row[: self.seq_len]

    def prove(self, *, steps, resumed, short=()):
        """Asserts that steps 1 to @steps were trained on exactly the order, with the operator's
        edits, and that the later starts resumed after the steps @resumed.

        short: steps with fewer forward passes, {step: number}.
        """
        at, lineage = 0, []
        of_start = [self.steps(start) for start in self.starts]
        first = [min(filter(None, s), default=None) for s in of_start]
        assert first == [1, *(step + 1 for step in resumed)], (
            "each start resumes after its checkpoint"
        )
        last = max(filter(None, of_start[-1]), default=None)
        assert last == steps, "the last start ends with the last step"
        for number, start in enumerate(self.starts):
            end = resumed[number] if number < len(resumed) else steps
            begin = resumed[number - 1] if number else 0
            lineage += [(step, number, start.world) for step in range(begin + 1, end + 1)]
        passes = {step: self.accumulate for step, _, _ in lineage} | dict(short)
        total = sum(self.step_rows(world, passes[step]) for step, _, world in lineage)
        skipped, mixed, more = 0, 0, []
        if self.edits:
            (_, mixed), (out, back) = self.edits
            skipped, more = back - out, ["--run", RUN]
            assert mixed < total + skipped and back < total + skipped, (
                "the run reaches the new mix and the skip",
                (self.edits, total),
            )
            assert skipped == SKIPPED, "as many as requested were skipped"
        order = rows_at(self.yaml, "train", 0, total + skipped, *more)
        if skipped:
            was = rows_at(self.yaml, "train", 0, total + skipped)
            differ = (was != order).any(1)
            assert differ[mixed:].any() and not differ[:mixed].any(), (
                f"the order differs from position {mixed} on",
                differ,
            )
            order = numpy.concatenate([order[:out], order[back:]])
        position = {tuple(map(int, self.seen(row))): i for i, row in enumerate(order)}
        assert len(position) == total, "all rows of the order differ"
        wrong = []
        for step, number, world in lineage:
            rows = self.step_rows(world, passes[step])
            want = sorted(list(range(at, at + rows)) * self.copies)
            got = sorted(position.get(tuple(row), -1) for row in of_start[number].get(step, []))
            if got != want:
                wrong.append(
                    f"step {step} (start {number + 1}): rows {got}, want {at} to "
                    f"{at + rows - 1}, {self.copies} times"
                )
            at += rows
        worlds = [start.world for start in self.starts]
        assert not wrong, (
            f"{steps} steps, worlds {worlds}: rows 0 to {total - 1}, each in its step",
            wrong,
        )
        verdict = self.verify(total + skipped, *more)
        assert verdict == all_taken(total) | {"skipped": skipped}, ("tokctl verify", verdict)
        self.proven(verdict, resumed)
        return total

    def proven(self, verdict, resumed):
        """Reports a proven run, for the table at the end of `make test-trainers`. @verdict: what
        verify() returned. @resumed: after which steps the later starts went on.
        """
        path = os.environ.get("TOKEND_PROVEN")
        if path:
            _, origin = TRAINERS[self.example]
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                origin = importlib.metadata.version(origin)
            run = {"example": self.example, "version": origin, "resumed": resumed}
            run |= {"worlds": [start.layout for start in self.starts]}
            run |= {"killed": sum(start.killed for start in self.starts)}
            with open(path, "a") as out:
                out.write(json.dumps(run | verdict) + "\n")

    def verify(self, to, *more):
        """The result of tokctl verify up to position @to, which must be the same for all peers."""
        records = os.path.join(self.records, "train")
        code, out, err = run(
            TOKCTL, "verify", "-c", self.yaml, "train", records, "--to", to, "--json", *more
        )
        names = ("samples", "repeated", "lost", "altered", "skipped")
        said = {tuple(json.loads(line)[name] for name in names) for line in out.splitlines()}
        return (
            dict(zip(names, said.pop(), strict=True))
            if len(said) == 1
            else f"exit status {code}: {said}: {err}"
        )
