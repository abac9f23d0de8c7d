"""Kills a DDP job and its daemon at random instants, and proves that its losses stay the same.

with KilledJob(place, seed) as job:
    job.storm(kills=200)       # each kill counted by what it hit
    totals = job.prove()       # losses bit-equal to those of an undisturbed run
"""

import collections
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time

import numpy
import torch

from . import killed_trainer
from .daemon import Daemon
from .injected import injected
from .killed_trainer import STEP, Board, Plan
from .place import datasets
from .process import TOKCTL, TOKEND, run, with_parent
from .ranks import Ranks
from .wait import wait_for

MEAN_S = 0.03  # between two events
PAUSE_US = 3000  # of a trainer in each step: it is killed in more places, and the cores stay free
# How often each event happens in each hundred kills, evenly spread, in random order. The first
# three are kills.
EVENTS = {"daemon": 85, "rank": 11, "both": 4, "stop": 4, "restart": 3, "mix": 3, "drain": 1}
EVENTS |= {"reload": 30, "upgrade": 30}  # both execute the daemon
KILLS = ("daemon", "rank", "both")
PATIENCE_S = 60.0


class Life(Ranks):
    """The processes of a job from one start to its end."""

    def __init__(self, plan, number, log):
        super().__init__()
        listener = socket.create_server(("127.0.0.1", 0))

        def live():
            with_parent()
            killed_trainer.main(plan, len(self.pids), number, listener)

        for rank in range(plan.world):
            self.fork(f"{log}.{rank}", live)
        listener.close()


class KilledJob:
    def __init__(self, place, seed):
        self.place, self.random = place, random.Random(seed)
        killed_trainer.warm_up()
        for name in ("web/a.bin", "web/b.bin", "code/x.bin"):
            place.shard(name, 200_000, seed=seed)
        place.shard("law/x.bin", 20_000, seed=seed)
        self.about = {"seed": seed, "seq_len": 16, "datasets": datasets("web", "code")}
        self.config = self._write()
        self.program = place.file("bin", "tokend")
        self._install()
        self.daemon = type("Program", (Daemon,), {"program": self.program})(place, self.config)
        self.counts = collections.Counter()
        self.lives, self.life, self.operator = 0, None, None
        self.plan = self._plan("disturbed", PAUSE_US)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.life:
            self.life.kill()

    def _plan(self, name, pause_us, **keys):
        for part in ("losses", "records"):
            os.makedirs(self.place.file(name, part, ""), exist_ok=True)
        board = Board.made()
        board.until, board.pause_us = 1 << 60, pause_us
        paths = {part: self.place.file(name, part) for part in ("checkpoint", "losses", "records")}
        return Plan(self.daemon.socket, board=board, **paths, **keys)

    def _begin(self, plan):
        self.lives += 1
        self.life = Life(plan, self.lives, self.place.file("logs", "rank"))

    # ---- the storm ----

    def storm(self, kills=None, until=None):
        """Kills until @kills have hit a living process, or until @until of time.monotonic()."""
        deck = []
        self._begin(self.plan)
        wait_for(lambda: self._steps() > 0 or self.life.ended(), PATIENCE_S)
        while self.kills() < (kills or 1 << 60) and (until is None or time.monotonic() < until):
            time.sleep(self.random.uniform(0, 2 * MEAN_S))
            self._watch()
            deck = deck or sorted(
                ((i + self.random.random()) / n, kind)
                for kind, n in EVENTS.items()
                for i in range(n)
            )
            getattr(self, f"_{deck.pop()[1]}")()
        self._settle()

    def kills(self):
        return sum(self.counts[kind] for kind in KILLS)

    def _watch(self):
        """The job lives, unless it was drained: then all ranks end with 0."""
        if self.life.ended():
            self._join("the job that is drained")
            self.counts["jobs drained"] += 1
            self._begin(self.plan)

    def _restart_job(self):
        self.life.kill()
        self._begin(self.plan)

    def _daemon(self):
        """Mostly it serves the job by then; otherwise it is killed as it starts."""
        if self.random.random() < 0.8:
            wait_for(lambda: self.daemon.rings() > 0 or self.life.ended(), PATIENCE_S)
            time.sleep(self.random.uniform(0, 0.02))
        self.counts["with sessions"] += self.daemon.rings() > 0
        self.counts["daemon"] += self.daemon.alive()
        self.daemon.kill()
        self.daemon.start(ready=False)

    def _rank(self):
        self.counts["rank"] += self.life.kill([self.random.randrange(self.plan.world)])
        time.sleep(self.random.choice([0, 0, 0.03]))  # the others may notice
        self._restart_job()

    def _both(self):
        rank = self.random.randrange(self.plan.world)
        self.daemon.process.kill()
        self.counts["both"] += self.life.kill([rank])
        self.daemon.kill()
        self.daemon.start(ready=False)
        self._restart_job()

    def _stop(self):
        """SIGSTOP of the daemon or of a rank, and SIGCONT."""
        ended = self.life.ended()
        alive = [pid for rank, pid in enumerate(self.life.pids) if rank not in ended]
        pid = self.random.choice([self.daemon.pid, *alive])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.01, 0.2))
        os.kill(pid, signal.SIGCONT)
        self.counts["stopped and continued"] += 1

    def _restart(self):
        """SIGTERM, as an upgrade does it."""
        ready = wait_for(lambda: "ready at" in self.daemon.log(), PATIENCE_S)
        assert ready and self.daemon.stop() == 0, self.daemon.log()
        self.daemon.start(ready=False)
        self.counts["daemon restarted"] += 1

    def _write(self, more=(), **keys):
        """Writes the config, with datasets that the job does not use."""
        about = {**self.about, "datasets": self.about["datasets"] + list(more)}
        keys |= {"streams": {"train": about}, "state_dir": self.place.file("state", "")}
        os.rename(self.place.config("new.yaml", **keys), self.place.file("tokend.yaml"))
        return self.place.file("tokend.yaml")

    def _install(self):
        """Replaces the program on the disk."""
        shutil.copy2(TOKEND, f"{self.program}.new")
        os.rename(f"{self.program}.new", self.program)

    def _hang_up(self, kind):
        """SIGHUP, sometimes twice. The next event may hit the new image as it starts."""
        ready = wait_for(lambda: "ready at" in self.daemon.log(), PATIENCE_S)
        assert ready, self.daemon.log()
        said = lambda: self.daemon.log().count("starting again with it")
        before = said()
        for _ in range(self.random.choice([1, 1, 2])):
            self.daemon.process.send_signal(signal.SIGHUP)
        assert wait_for(lambda: said() > before, PATIENCE_S), self.daemon.log()
        self.counts[kind] += 1

    def _reload(self):
        more = self.random.choice([[], datasets("law", weight=0)])
        memory = self.random.choice([64, 96, 128]) << 20
        self._write(more, memory=memory, io=self.random.choice(["auto", "pread"]))
        self._hang_up("reload")

    def _upgrade(self):
        """A reload keeps the program that runs; the next start is of the new one."""
        self._install()
        self._hang_up("upgrade")

    def _ask(self, *arguments):
        """An operator's request, and a moment later the next event, whatever became of it."""
        if self.operator is not None:
            if self.operator.poll() is None:
                return
            self.counts["requests carried out"] += self.operator.returncode == 0
            self.counts["requests failed"] += self.operator.returncode != 0
        command = [TOKCTL, *arguments, "--run", "kills", "--socket", self.daemon.socket]
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.operator = self.place.spawn([*command, "--timeout", "5"], **nowhere)
        time.sleep(self.random.uniform(0, 0.5))

    def _mix(self):
        weights = [f"{name}={self.random.uniform(0.1, 1):.3f}" for name in ("web", "code")]
        self._ask("mix", "train", *weights)

    def _drain(self):
        self._ask("drain", "train")

    # ---- the end, and the proof ----

    def _steps(self, plan=None):
        path = f"{(plan or self.plan).losses}/0"
        return os.path.getsize(path) // STEP.itemsize if os.path.exists(path) else 0

    def _settle(self):
        """Lets the job train on undisturbed for a while, and end."""
        if self.operator is not None:
            self.operator.wait()
        wait_for(lambda: "ready at" in self.daemon.log(), PATIENCE_S)
        self._watch()
        begun = self._steps()
        wait_for(lambda: self._steps() > begun or self.life.ended(), PATIENCE_S)
        self._watch()
        self.plan.board.until = int(self._losses(self.plan, 0)["step"][-1]) + 200
        self._join("the disturbed job")

    def _join(self, name, seconds=PATIENCE_S):
        if not wait_for(lambda: len(self.life.ended()) == self.plan.world, seconds, 0.02):
            raise AssertionError(f"{name} hangs: {self.life.said()}\n{self.daemon.log()}")
        ended = self.life.ended()
        assert set(ended.values()) == {0}, (name, ended, self.life.said())

    def _losses(self, plan, rank):
        raw = open(f"{plan.losses}/{rank}", "rb").read()
        return numpy.frombuffer(raw[: len(raw) // STEP.itemsize * STEP.itemsize], STEP)

    def _saved(self, plan):
        """(steps, mixes, position, digest of the model) of a job's last checkpoint."""
        import tokend

        saved = torch.load(plan.checkpoint)
        weights = b"".join(t.numpy().tobytes() for t in saved["model"].values())
        position = tokend.Cursor(saved["data"]["cursor"]).position
        return saved["step"], saved["mixes"], position, hashlib.sha256(weights).hexdigest()

    def _verified(self, plan, state):
        """`tokctl verify` of all records: each position up to @state's exactly once."""
        arguments = ["train", plan.records, "--run", "kills", "--json"]
        code, out, err = run(TOKCTL, "verify", "-c", self.config, *arguments, timeout=600)
        assert out, ("tokctl verify", err)
        said = json.loads(out)
        want = {"repeated": 0, "lost": 0, "altered": 0, "from": 0, "to": state[2], "faults": []}
        assert (code, {key: said[key] for key in want}) == (0, want), ("tokctl verify", said)
        return said

    def prove(self):
        """Compares the job with an undisturbed run of as many steps; returns totals."""
        state = self._saved(self.plan)
        said = self._verified(self.plan, state)
        calm = self._plan("undisturbed", 0, mixes=tuple(state[1]))
        calm.board.until = state[0]
        self._begin(calm)
        self._join("the undisturbed job", 60 + state[0] / 20)
        assert self._saved(calm) == state, ("the same steps, mixes, cursor and model", state)
        undone = 0
        for rank in range(self.plan.world):
            want, got = self._losses(calm, rank), self._losses(self.plan, rank)
            assert want["step"].tolist() == list(range(state[0])), "each step once"
            last = numpy.full(state[0], -1)
            last[got["step"]] = numpy.arange(len(got))  # a later life overrides
            assert (last >= 0).all(), (f"rank {rank} did not make", numpy.flatnonzero(last < 0))
            for field in ("position", "loss"):
                wrong = numpy.flatnonzero(got[last][field] != want[field])
                first = (got[last][wrong[:1]], want[wrong[:1]])
                assert not len(wrong), (f"rank {rank}: {field} differs, first at", first)
            undone += len(got) - state[0]
        taken = said["void"] // self.plan.micro - undone  # by ranks killed before the step's end
        assert 0 <= taken <= self.lives * self.plan.world, ("rows undone", said, undone)
        for row, kinds in ((5, ("daemon", "both")), (1, ("rank", "both"))):
            injected(row, sum(self.counts[kind] for kind in kinds))
        return {
            **self.counts,
            "kills": self.kills(),
            "job starts": self.lives,
            "steps": state[0],
            "steps undone, of all ranks": undone,
            "samples": said["samples"],
            "mixes": len(state[1]),
            "repeated, lost, altered": [said[x] for x in ("repeated", "lost", "altered")],
        }
