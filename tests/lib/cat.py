"""tokctl cat as a trainer, and cursors that tokctl moves."""

import os
import select
import shutil
import subprocess
import threading

from .process import TOKCTL, run
from .wait import LONG


class Cat:
    """tokctl cat of one rank of the run r. Its pipe is small: the trainer waits in mid-run, until
    drain() reads its output. With pipe=False it writes to a file, and never waits. @record: a file
    for its record.
    """

    def __init__(
        self,
        place,
        daemon,
        rank,
        batches,
        world=2,
        micro=4,
        pipe=True,
        record=None,
        program=TOKCTL,
        **keys,
    ):
        self.out, self.err = place.file(f"{rank}.out"), place.file(f"{rank}.err")
        arguments = f"--run r --rank {rank} --world {world} --micro {micro} --slots 4".split()
        arguments += ["--record", record] if record else []
        self.process = place.spawn(
            [program, "cat", "train", "--socket", daemon.socket, "--batches", str(batches)]
            + arguments,
            stdout=subprocess.PIPE if pipe else open(self.out, "wb"),
            pipesize=4096 if pipe else -1,
            stderr=open(self.err, "wb"),
            **keys,
        )
        self.drainer = threading.Thread(target=self._drain, daemon=True) if pipe else None

    def reads(self):
        """Waits until it has written something."""
        return select.select([self.process.stdout], [], [], LONG)[0]

    def drain(self):
        """From now on, a thread reads its output."""
        self.drainer.start()

    def _drain(self):
        with open(self.out, "wb", 0) as file:
            shutil.copyfileobj(self.process.stdout, file)

    def written(self):
        return os.path.getsize(self.out) if os.path.exists(self.out) else 0

    def end(self, seconds=120):
        """Its exit status, what it wrote, and its message."""
        code = self.process.wait(seconds)
        if self.drainer:
            self.drainer.join()
        return code, open(self.out, "rb").read(), open(self.err).read()


def moved(place, cursor, position):
    """The cursor's bytes at another position, by tokctl."""
    here, there = place.file("cursors/here"), place.file("cursors/there")
    with open(here, "wb") as file:
        file.write(cursor)
    code, _, err = run(TOKCTL, "cursor", "seek", here, "--to", position, "-o", there)
    if code:
        raise RuntimeError(err)
    return open(there, "rb").read()
