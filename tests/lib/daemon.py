"""A daemon under test."""

import contextlib
import json
import os
import signal
import time

from .process import TOKCTL, TOKEND, run
from .wait import LONG, wait_for, wait_until


class Daemon:
    """tokend -c CONFIG. Its stderr goes to a file, where log() reads it."""

    program = TOKEND

    def __init__(self, place, config, socket_path=None, arguments=(), ready=True, **keys):
        self.place = place
        self.config = config
        self.socket = socket_path or json.load(open(config))["socket"]
        self.arguments = list(arguments) + (["--socket", socket_path] if socket_path else [])
        self.log_path = f"{self.socket}.log"
        self.keys = keys
        self.process = None
        place.daemons.append(self)
        self.start(ready)

    def start(self, ready=True, **keys):
        """Starts it, and waits until it is ready. More keys are those of Popen."""
        with open(self.log_path, "ab") as log:
            self.log_from = log.tell()
            command = [self.program, "-c", self.config, *self.arguments]
            keys = {"stdout": log, "stderr": log, **self.keys, **keys}
            self.process = self.place.spawn(command, **keys)
        if ready:
            said = wait_for(lambda: "ready at" in self.log() or self.process.poll() is not None)
            code = self.process.poll()
            if not said or code is not None:
                raise RuntimeError(f"tokend is not ready (exit status {code}): {self.log()}")
        return self

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def log(self):
        """The daemon's log since it was started."""
        with open(self.log_path, "rb") as f:
            f.seek(self.log_from)
            return f.read().decode(errors="replace")

    def said(self, text):
        """The lines of the log with @text, once there is one; none after LONG. A thread of the
        daemon writes its log, so a client may see an effect before the line about it is written.
        """
        lines = lambda: [line for line in self.log().splitlines() if text in line]
        return wait_for(lines)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Sends SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(LONG)

    def reload(self, line="ready at"):
        """Sends SIGHUP, and waits for the line in the log. Returns what was logged since."""
        before = len(self.log())
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: line in self.log()[before:], line)
        return self.log()[before:]

    def opened(self):
        """The paths of its open files, and what its other descriptors are."""
        links = f"/proc/{self.pid}/fd"
        for fd in os.listdir(links):
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                yield os.readlink(f"{links}/{fd}")

    def fds(self):
        return len(list(self.opened()))

    def settled_fds(self):
        """fds(), once it has not changed for a tenth of a second: the daemon closes its side of a
        connection a moment later.
        """
        seen = []
        while len(seen) < 10 or len(set(seen[-10:])) > 1:
            seen.append(self.fds())
            time.sleep(0.01)
        return seen[-1]

    def memory_kib(self, field):
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith(field + ":"))

    def rings(self):
        """The number of rings that it has mapped: one a session."""
        try:
            with open(f"/proc/{self.pid}/maps") as f:
                return f.read().count("/memfd:tokend-data")
        except OSError:
            return 0


def status(path):
    """The answer of `tokctl status --json`: (sessions, total)."""
    code, out, err = run(TOKCTL, "status", "--json", "--socket", path)
    if code:
        raise RuntimeError(f"tokctl status: {err}")
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[:-1], lines[-1]


# All ways of reading: (io, direct) of a config
MODES = [("uring", False), ("pread", False), ("uring", True), ("pread", True)]


def mode_name(mode):
    return mode[0] + (", direct" if mode[1] else "")
