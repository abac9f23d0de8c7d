"""What the tests of trainers share: real shards, a real daemon, a trainer that is started, killed
and started again, and the proof.

A test runs one trainer as its users do: the wheel is installed, the example of
client/example/trainers is copied into an empty directory, and torchrun starts it there. It is
killed (-9, all processes at once) in the middle of a step behind a checkpoint, and begins again at
its own checkpoint in a world of another size:

    with Job("train_ddp.py", micro_batch=2) as job:
        job.start(1, hold=7)            # stands still in its 8th step, is killed
        job.start(2, hold=7)
        job.start(1)                    # to its end
        job.prove(steps=15, resumed=[5, 10])

What was trained on is known in two ways that share no code. traced.py notes from beside the trainer
which tokens its model was called with and which step its optimizer then made; the optimizer's own
count lies in the trainer's checkpoint, so it says which steps are part of the model that came out.
Each such step must hold exactly the next rows of the order, as `tokctl plan` has it, and no others.
And `tokctl verify` must say 0 repeated, 0 lost, 0 altered from what the loaders recorded.
"""

import contextlib
import glob
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

HERE = os.path.dirname(os.path.abspath(__file__))
# Package, daemon and tokctl are those of the wheel that pip installed next to the trainer:
# tests/run names them in TOKEND_BIN, and the package itself knows where they are.
_found = importlib.util.find_spec("tokend")
if _found is None or not _found.origin.startswith(sys.prefix + os.sep):
    sys.exit(
        f"tokend is {_found and _found.origin}, must be the wheel's in {sys.prefix}: make "
        "test-trainers, without PYTHONPATH"
    )
os.environ.pop("TOKEND_BIN", None)

EXAMPLES = os.path.join(REPO, "client", "example", "trainers")
SKIPPED = 1100  # more than a mix takes to be in force
RUN = "trainers"
SEQ, VOCAB = 32, 2048  # enough for a row to be known by its tokens, little enough for a tiny model
LIMIT_S = 240  # for one start: importing, compiling, training, and 7 other tests beside
STEADY = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


def all_taken(total):
    """What tokctl verify is to say: each of so many samples once, and none left out by request."""
    return {"samples": total, "repeated": 0, "lost": 0, "altered": 0, "skipped": 0}


class Start:
    """One start of a trainer: its processes, their output in `log`, what was noted from beside them
    in `noted`.
    """

    def events(self):
        """What each process noted, whole lines: [[event]]."""
        found = []
        for path in sorted(glob.glob(os.path.join(self.noted, "*.jsonl"))):
            with open(path) as f:
                found.append([json.loads(line) for line in f if line.endswith("\n")])
        return found

    def trainers(self):
        """The pids of its trainers, without torchrun's own."""
        return [
            int(os.path.basename(path).split(".")[0]) for path in glob.glob(self.noted + "*.jsonl")
        ]

    def noted_any(self, **event):
        """Did one of its processes note this?"""
        return any(event.items() <= seen.items() for process in self.events() for seen in process)

    def release(self, hold):
        """Those that are held behind so many steps go on."""
        open(f"{self.noted}go-{hold}", "w").close()

    def ended(self):
        return self.child.poll() is not None

    def kill(self):
        """SIGKILL to all its processes, in whatever session, at once: all of them have inherited
        its TRACE. Returns their output.
        """
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for environ in glob.glob("/proc/[0-9]*/environ"):
                try:
                    if f"TRACE={self.noted}\0".encode() in open(environ, "rb").read():
                        os.kill(int(environ.split("/")[2]), number)
                except OSError:
                    pass  # it is gone, or another user's
        self.child.wait()
        return open(self.log, errors="replace").read()


class Job(lib.Place):
    """A directory with shards, config, daemon and one example.

    micro_batch      rows of a forward pass of a rank
    accumulate       forward passes of a step
    copies           how many processes are called with each row (tensor- and context-parallel
                     peers)
    seq_len, vocab   of the shards; the other arguments are more of the config's stream `train`
    streams          others beside it; held-out.bin is there for them
    discards         gradients that are cleared before the optimizer stepped were thrown away, as a
                     rule of this trainer
    """

    def __init__(
        self,
        example,
        *,
        micro_batch=2,
        accumulate=1,
        copies=1,
        seq_len=SEQ,
        vocab=VOCAB,
        streams=None,
        discards=False,
        **stream,
    ):
        self.example, self.micro_batch, self.accumulate, self.copies = (
            example,
            micro_batch,
            accumulate,
            copies,
        )
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
            shutil.copy(os.path.join(EXAMPLES, self.example), self.work)
        return self

    def __exit__(self, kind, error, trace):
        for start in self.starts:
            start.kill()
        super().__exit__()

    # ---- running it ----

    def edit(self, old, new):
        """Another setting in the copied example, as its users would write it."""
        path = os.path.join(self.work, self.example)
        text = open(path).read()
        if old not in text:
            raise ValueError(f"{self.example} has no {old!r}")
        open(path, "w").write(text.replace(old, new))

    def launch(self, world, *arguments, hold=(), launcher=None, module=None, **environ):
        """Begins a start of @world processes; see start()."""
        start = Start()
        start.number, start.world = len(self.starts) + 1, world
        start.noted, start.log = (
            self.file(f"noted-{start.number}", ""),
            self.file(f"start-{start.number}.log"),
        )
        self.starts.append(start)
        program = ["-m", module] if module else [launcher or self.example]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(world),
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:0",
            "--rdzv-id",
            RUN,
            os.path.join(HERE, "traced.py"),
            *program,
            *map(str, arguments),
        ]
        environment = {
            **os.environ,
            **STEADY,
            "TOKEND_SOCKET": self.daemon.socket,
            "TRACE": start.noted,
            "TRACE_RECORDS": self.records,
            "TRACE_HOLD": ",".join(map(str, hold)),
            **{name: str(value) for name, value in environ.items()},
        }
        start.began = time.monotonic()
        with open(start.log, "wb") as out:
            start.child = self.spawn(
                command, cwd=self.work, env=environment, stdout=out, stderr=out
            )
        return start

    def start(self, world, *arguments, hold=0, until=None, then=None, fails=False, **more):
        """Runs the example in @world processes to its end; or, with @hold, kills it within the step
        behind so many of its own.

        until: what must hold, too, before it is killed, say that a checkpoint is written. then: it
        is not killed, but this is called with the pids of the trainers, and the step goes on.
        fails: it has to end in failure. launcher: another example, or a program that starts the
        trainer. module: `-m NAME` in the example's place. Others: more of the environment. Returns
        the output.
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
        print(
            f"--- start {start.number}: {world} processes, {time.monotonic() - start.began:.1f} s",
            flush=True,
        )
        if (
            not arrived
            or (status is None) != bool(hold and not then)
            or (status is not None and (status != 0) != fails)
        ):
            print(text[-12_000:], flush=True)
            raise RuntimeError(
                f"start {start.number}: " + ("it hangs" if not arrived else f"exit status {status}")
            )
        if fails:
            self.starts.pop()  # it is not part of the run
        return text

    def ask(self, *commands):
        """An operator asks for each as soon as the one before is carried out."""
        keys = f"--socket {self.daemon.socket} --timeout {LIMIT_S}"
        typed = " && ".join(f"{TOKCTL} {command} {keys}" for command in commands)
        self.asked = self.spawn(
            ["sh", "-c", typed], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def drain(self, _):
        """For start(then=): an operator asks, while the trainer stands still, that it saves and
        leaves.
        """
        self.ask("drain train")

    def edit_and_drain(self, _):
        """The same, but before that the mix is changed, and so much is skipped that training goes
        on by the new one.
        """
        self.ask(
            "mix train --json web=0.4 code=0.6",
            f"skip train --json --samples {SKIPPED}",
            "drain train",
        )

    def drained(self):
        """The step at which that was done, as the operator was told, who was told of the mix and
        the skip, too.
        """
        said, _ = self.asked.communicate(timeout=LIMIT_S)
        at = re.search(r"step[ -]?(\d+)", said)
        assert self.asked.returncode == 0 and at, ("tokctl", said)
        told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.edits = [(line["from"], line["acts_from"]) for line in told if "acts_from" in line]
        return int(at[1]) if at else 0

    def prove_edited(self):
        """All of that, with an example whose last step is in its text, as max_steps=15; then three
        steps more on another world.
        """
        self.edit("max_steps=15", "max_steps=1000")
        self.start(2, hold=7, then=self.edit_and_drain)
        step = self.drained()
        self.edit("max_steps=1000", f"max_steps={step + 3}")
        self.start(1)
        self.prove(steps=step + 3, resumed=[step])

    # ---- what was seen ----

    def steps(self, start):
        """{the optimizer's count: [row, …] of all processes} of one start; what was called but not
        stepped is under None.

        A step without rows trains nothing: torch's get_state_dict() makes one to have moments to
        load into.
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
        """How many rows of the order a step of @world processes and @passes is trained on. Others
        for a global batch that stays.
        """
        return world // self.copies * self.micro_batch * passes

    def seen(self, row):
        """The part of a window that a model is called with. Others for a context-parallel slice."""
        return row[: self.seq_len]

    def prove(self, *, steps, resumed, short=()):
        """Steps 1 to @steps were trained on exactly the order, as the operator edited it; the
        starts behind the first went on behind the steps @resumed.

        short: steps of fewer forward passes than the others, {step: how many}.
        """
        at, lineage = 0, []
        of_start = [self.steps(start) for start in self.starts]
        first = [min(filter(None, s), default=None) for s in of_start]
        assert first == [1, *(step + 1 for step in resumed)], (
            "each start goes on behind its checkpoint"
        )
        last = max(filter(None, of_start[-1]), default=None)
        assert last == steps, "the last start ends where it should"
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
                "the mix was in force",
                (self.edits, total),
            )
            assert skipped == SKIPPED, "so many were to be skipped"
        order = rows_at(self.yaml, "train", 0, total + skipped, *more)
        if skipped:
            was = rows_at(self.yaml, "train", 0, total + skipped)
            differ = (was != order).any(1)
            assert differ[mixed:].any() and not differ[:mixed].any(), (
                f"the order is another one from position {mixed} on",
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
        assert self.verify(total + skipped, *more) == all_taken(total) | {"skipped": skipped}, (
            "tokctl verify"
        )
        return total

    def verify(self, to, *more):
        """What tokctl proves of each peer's records up to position @to, if it is not the same for
        all of them.
        """
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
