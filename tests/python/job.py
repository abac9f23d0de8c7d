"""A job of several processes, for the tests of control(): real torch.distributed, real daemons, and
a file per process with what it took.

A step takes a batch, reduces with the others as gradients would, and calls control(). It ends after
a drain, a rescale, or `steps`. Every line of its file is one event.
"""

import json
import sys
import time
import warnings

from lib import wait_for
from lib.forks import FORKS, print_to


class Job:
    """The processes of a job, each with its daemon's socket. More options: those of Trainer."""

    def __init__(self, directory, sockets, **options):
        self.directory = directory / f"job-{time.monotonic_ns()}"
        self.directory.mkdir()
        self.files, self.processes = [], []
        for rank, socket in enumerate(sockets):
            each = {k: v[rank] if isinstance(v, list) else v for k, v in options.items()}
            each |= {"rank": rank, "world": len(sockets), "socket": socket}
            each |= {"meet": f"{self.directory}/meet", "file": f"{self.directory}/{rank}.jsonl"}
            self.files.append(self.directory / f"{rank}.jsonl")
            log = self.directory / f"{rank}.log"
            self.files[-1].touch(), log.touch()
            self.processes.append(FORKS.Process(target=main, args=(each, str(log)), daemon=True))
            self.processes[-1].start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes:
            process.kill()
            process.join()

    def lines(self, rank):
        lines = self.files[rank].read_text().splitlines(True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def of(self, rank, what):
        return [line[what] for line in self.lines(rank) if what in line]

    def said(self, rank):
        return (self.directory / f"{rank}.log").read_text()

    def wait(self, expected=0, seconds=100):
        for rank, process in enumerate(self.processes):
            process.join(seconds)
            assert process.exitcode == expected, self.said(rank)

    def wait_for_steps(self, n, seconds=60):
        alive = lambda: all(process.is_alive() for process in self.processes)
        wait_for(lambda: min(self.steps()) >= n or not alive(), seconds)
        said = [self.said(rank) for rank in range(len(self.files))]
        assert min(self.steps()) >= n and alive(), said

    def steps(self):
        return [len(self.of(rank, "took")) for rank in range(len(self.files))]

    def positions(self, steps=None):
        """The positions that all ranks took, sorted."""
        ranks = range(len(self.files))
        took = [rows for rank in ranks for rows in self.of(rank, "took")[:steps]]
        return sorted(row[0] for rows in took for row in rows)


class Trainer:
    def __init__(self, options):
        import torch
        import torch.distributed as distributed

        torch.set_num_threads(1)
        self.torch, self.distributed, self.options = torch, distributed, options
        meet = f"file://{options['meet']}"
        at = {"rank": options["rank"], "world_size": options["world"]}
        distributed.init_process_group("gloo", init_method=meet, **at)
        self.group, self.of_rank_0 = None, distributed.new_group([0])

    def note(self, **what):
        with open(self.options["file"], "a") as file:
            file.write(json.dumps(what) + "\n")

    def loader(self):
        import tokend

        o = self.options
        more = {name: o[name] for name in ("group", "peer") if name in o}
        if "data_rank" in o:
            more |= {"rank": o["data_rank"], "world": o["data_world"]}
            more["group"] = self.distributed.group.WORLD
        more["start"] = o.get("start", "begin")
        try:
            return tokend.Loader("train", o.get("micro", 4), socket=o["socket"], run="job", **more)
        except tokend.Error as error:
            self.note(refused=type(error).__name__, text=str(error))
            self.distributed.destroy_process_group()
            sys.exit(3)

    def carry_out(self, loader, request):
        about = {n: getattr(request, n) for n in ("kind", "args", "acts_from", "error")}
        cursor = loader.state_dict()["cursor"].hex()
        self.note(request=about, step=self.step, position=loader.position, cursor=cursor)
        if request:
            request.done("saved here")

    def control(self, loader):
        if not self.options.get("calls", True):
            return
        request = loader.control()
        if request is not None:
            self.carry_out(loader, request)

    def goes_on_alone(self):
        """Whether rank 0 now trains without the others."""
        first = self.options["rank"] == 0 and self.options.get("shrinks") and self.group is None
        self.group = self.of_rank_0 if first else self.group
        return first

    def train(self):
        options, gradients = self.options, self.torch.zeros(1)
        with self.loader() as loader:
            for self.step in range(options["steps"]):
                for _ in range(options.get("evaluates", 0) if self.step == 5 else 0):
                    next(loader)
                batch = next(loader)
                rows = list(zip(batch["position"].tolist(), batch["dataset"].tolist(), strict=True))
                self.note(took=rows, cursor=loader.state_dict()["cursor"].hex())
                self.distributed.all_reduce(gradients, group=self.group)
                time.sleep(options.get("pause", 0.002))
                self.control(loader)
                if loader.should_stop and options.get("goes_on"):
                    loader.seek(loader.state_dict()["cursor"])
                    assert not loader.should_stop
                elif loader.should_stop and self.goes_on_alone():
                    loader.seek(rank=0, world=1, group=self.group)
                elif loader.should_stop and not options.get("stays"):
                    break
            cursor, lost = loader.state_dict()["cursor"].hex(), loader.stats()["lost_wakes"]
            self.note(end=loader.position, cursor=cursor, lost_wakes=lost)
        self.distributed.barrier()
        self.distributed.destroy_process_group()


def main(options, log):
    """One process, which prints to the file @log."""
    from tokend import requests

    print_to(log, log)
    warnings.simplefilter("always")
    trainer = Trainer(options)
    obey = requests.Control._obey

    def told(*arguments):
        trainer.note(acting=trainer.step)
        return obey(*arguments)

    if options.get("tells") == "acting":
        requests.Control._obey = told
    requests.EVERY_S = options.get("every", requests.EVERY_S)  # between two looks for a request
    trainer.train()
