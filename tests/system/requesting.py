"""A daemon, trainers that execute calls on command, and operators (`tokctl mix` and the like).

Run as a program (`trainer OPTIONS`), it is one trainer."""

import json
import os
import subprocess
import sys

import numpy
from lib import TOKCTL, Daemon, datasets, status, wait_for
from tokend import Error, Loader

CURSOR_BYTES = 96 * 1024
NOTED, DONE, FAILED = 1, 2, 3
SEQ = 7

# ---- a trainer ----


class Handle:
    """The calls of a trainer's process. Each returns what is sent to the test."""

    def __init__(self, stream, micro, **options):
        keys = {"slots": 4, "deadline": 15, "framework": "numpy"}
        self.loader = Loader(stream, micro, **keys, **options)
        self.client = self.loader._client

    def number(self):
        return self.client.request_number

    def step(self, count):
        """Takes @count batches. Returns the position after them."""
        for _ in range(count):
            next(self.loader)
        return {"next": self.loader.taken}

    def rows(self, count):
        """Takes @count batches. Returns the windows in each."""
        batches = [next(self.loader) for _ in range(count)]
        return [numpy.hstack([b["input_ids"], b["labels"][:, -1:]]).tolist() for b in batches]

    def fetch(self):
        return dict(zip(("number", "kind", "args"), self.client.request(), strict=True))

    def obey(self, kind, args):
        return {"r": 0, "why": "", "at": self.client.obey(kind, args)}

    def answer(self, number, outcome, text=""):
        self.client.answer(number, outcome, text)

    def cursor(self):
        return self.client.cursor.hex()


def trainer(options):
    handle = Handle(**json.loads(options))
    print("null", flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            result = getattr(handle, name)(*arguments)
        except Error as error:
            result = {"r": -1, "why": str(error)}
        print(json.dumps(result), flush=True)


class Trainer:
    """A trainer's process, which executes calls on command."""

    def __init__(self, bench, **more):
        about = {"stream": "train", "run": "job", "rank": 0, "world": 1, "micro": 64, **more}
        about["socket"] = bench.daemon.socket
        self.process = bench.place.spawn(
            [sys.executable, os.path.abspath(__file__), "trainer", json.dumps(about)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.heard()

    def heard(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the trainer is gone")
        return json.loads(line)

    def __getattr__(self, name):
        def call(*arguments):
            self.process.stdin.write(json.dumps([name, arguments]) + "\n")
            self.process.stdin.flush()
            return self.heard()

        return call

    def sees(self):
        """Waits until the trainer sees a request. Returns its number."""
        return wait_for(self.number)

    def carry_out(self, library=False):
        """Fetches, executes and answers a request, as control() does in a world of one. @library:
        leaves all kinds to the library, as a loop that never saves.
        """
        number = self.sees()
        request = self.fetch()
        done = {"r": 0, "why": "saved"}
        if request["kind"] in ("mix", "skip") or library:
            done = self.obey(request["kind"], request["args"])
        text = done["why"] or f"acts from {done['at']}"
        self.answer(number, FAILED if done["r"] < 0 else DONE, text)
        return done

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Operator:
    """A tokctl process that waits for answers."""

    def __init__(self, bench, *arguments, json=True, **keys):
        arguments = [*map(str, arguments), *["--json"] * json, "--socket", bench.daemon.socket]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = bench.place.spawn([TOKCTL, *arguments], **pipes, **keys)

    def end(self, seconds=30):
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out.decode(), err.decode()

    def result(self, seconds=30):
        """(exit code, answers, the last object, stderr)"""
        code, out, err = self.end(seconds)
        lines = [json.loads(line) for line in out.splitlines()]
        answers = [line for line in lines if "outcome" in line]
        return code, answers, next((line for line in lines if "kind" in line), None), err


class Bench:
    def __init__(self, place):
        self.place = place
        place.shard("web/a.bin", 400_000)
        place.shard("code/a.bin", 300_000, seed=2)
        window = {"seq_len": SEQ, "extra": 1, "vocab": 50000}
        self.streams = {
            "train": {"seed": 1, **window, "datasets": datasets("web", "code", shuffle="global")},
            "short": {"seed": 2, **window, "samples": 100_000, "datasets": datasets("web", "code")},
        }
        self.config = place.config(streams=self.streams)
        self.daemon = Daemon(place, self.config)

    def nothing_open(self, *trainers):
        """No request is open: no session sees or can fetch one, and a new one would be accepted."""
        # The daemon updates one session after another.
        assert wait_for(lambda: not any(t.number() for t in trainers)), "a request is open"
        seen = [t.fetch()["number"] for t in trainers]
        seen += [s["request"] for s in status(self.daemon.socket)[0]]
        assert not any(seen) and self.daemon.alive(), seen


if __name__ == "__main__":
    trainer(sys.argv[2])
