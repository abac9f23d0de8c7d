"""A job of several processes, for the tests of control(): real torch.distributed, real daemons, and
a file per process with what it took.

A step takes a batch, reduces with the others as gradients would, and calls control(). It ends after
a drain, a rescale, or `steps`. Every line of its file is one event.
"""

import json
import os
import signal
import sys
import time
import warnings

from lib.forks import FORKS, print_to


class Job:
    """The processes of a job, each with its daemon's socket. More options: those of main()."""

    def __init__(self, directory, sockets, **options):
        self.files = []
        self.processes = []
        directory = directory / f"job-{time.monotonic_ns()}"
        directory.mkdir()
        for rank, socket in enumerate(sockets):
            file = directory / f"{rank}.jsonl"
            file.touch()
            each = {
                name: value[rank] if isinstance(value, list) else value
                for name, value in options.items()
            }
            each |= {
                "rank": rank,
                "world": len(sockets),
                "socket": socket,
                "meet": str(directory / "meet"),
                "file": str(file),
            }
            self.files.append(file)
            log = directory / f"{rank}.log"
            log.touch()
            process = FORKS.Process(target=main, args=(each, str(log)), daemon=True)
            process.start()
            self.processes.append(process)
        self.directory = directory

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes:
            process.kill()
            process.join()

    def lines(self, rank):
        return [
            json.loads(line)
            for line in self.files[rank].read_text().splitlines(True)
            if line.endswith("\n")
        ]

    def of(self, rank, what):
        return [line[what] for line in self.lines(rank) if what in line]

    def said(self, rank):
        return (self.directory / f"{rank}.log").read_text()

    def wait(self, expected=0, seconds=100):
        for rank, process in enumerate(self.processes):
            process.join(seconds)
            assert process.exitcode == expected, self.said(rank)

    def wait_for_steps(self, n, seconds=60):
        from lib import wait_until

        def there():
            for rank, process in enumerate(self.processes):
                assert process.is_alive(), self.said(rank)
                if len(self.of(rank, "took")) < n:
                    return False
            return True

        wait_until(there, f"step {n}", seconds)

    def steps(self):
        return [len(self.of(rank, "took")) for rank in range(len(self.files))]

    def positions(self, steps=None):
        """The positions that all ranks took, sorted."""
        return sorted(
            row[0]
            for rank in range(len(self.files))
            for took in self.of(rank, "took")[:steps]
            for row in took
        )


class Trainer:
    def __init__(self, options):
        import torch
        import torch.distributed as distributed

        torch.set_num_threads(1)
        self.torch, self.distributed, self.options = torch, distributed, options
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{options['meet']}",
            rank=options["rank"],
            world_size=options["world"],
        )

    def note(self, **what):
        with open(self.options["file"], "a") as file:
            file.write(json.dumps(what) + "\n")

    def loader(self):
        import tokend

        o = self.options
        more = {name: o[name] for name in ("agree", "record", "peer", "strict") if name in o}
        if "data_rank" in o:
            more |= {
                "rank": o["data_rank"],
                "world": o["data_world"],
                "group": self.distributed.group.WORLD,
            }
        start = bytes.fromhex(o["cursor"]) if "cursor" in o else o.get("start", "begin")
        try:
            return tokend.Loader(
                "train", o.get("micro", 4), socket=o["socket"], run="job", start=start, **more
            )
        except tokend.Error as error:
            self.note(refused=type(error).__name__, text=str(error))
            self.distributed.destroy_process_group()
            sys.exit(3)

    def carry_out(self, loader, request):
        about = {
            "kind": request.kind,
            "args": request.args,
            "acts_from": request.acts_from,
            "error": request.error,
        }
        self.note(
            request=about,
            step=self.step,
            position=loader.position,
            cursor=loader.state_dict()["cursor"].hex(),
        )
        if request:
            request.done("saved here")

    def control(self, loader):
        calls_from = self.options.get("calls_from", 0)
        if calls_from is None or self.step < calls_from:
            return
        begin = time.perf_counter()
        request = loader.control()
        if "costs" in self.options:
            self.note(cost=time.perf_counter() - begin)
        if request is not None:
            self.carry_out(loader, request)

    def train(self):
        options, torch = self.options, self.torch
        gradients = torch.zeros(1)
        with self.loader() as loader:
            for self.step in range(options["steps"]):
                if self.step == 5:
                    for _ in range(options.get("evaluates", 0)):
                        next(loader)
                batch = next(loader)
                rows = list(zip(batch["position"].tolist(), batch["dataset"].tolist(), strict=True))
                self.note(took=rows, cursor=loader.state_dict()["cursor"].hex())
                self.distributed.all_reduce(gradients)
                time.sleep(options.get("pause", 0.002))
                self.control(loader)
                if loader.should_stop and options.get("goes_on"):
                    loader.seek(loader.state_dict()["cursor"])
                elif loader.should_stop and not options.get("stays"):
                    break
            self.note(
                end=loader.position,
                cursor=loader.state_dict()["cursor"].hex(),
                lost_wakes=loader.stats()["lost_wakes"],
            )
        self.distributed.barrier()
        self.distributed.destroy_process_group()


def main(options, log):
    """One process, which prints to the file @log."""
    print_to(log, log)
    warnings.simplefilter("always")
    trainer = Trainer(options)
    if options.get("dies") == "acting":
        from tokend import control

        control.Control._obey = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if options.get("tells") == "acting":
        from tokend import control

        obey = control.Control._obey

        def told(*arguments):
            trainer.note(acting=trainer.step)
            return obey(*arguments)

        control.Control._obey = told
    if "first_wait" in options:
        from tokend import control

        control.FIRST_WAIT_S = options["first_wait"]
    if "every" in options:
        from tokend import control

        control.EVERY_S = options["every"]
    trainer.train()
