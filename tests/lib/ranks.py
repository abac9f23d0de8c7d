"""The processes of a job, forked from the test, which has imported torch already."""

import faulthandler
import os
import signal
import sys
import time
import traceback


class Ranks:
    def __init__(self):
        self.pids, self.logs = [], []
        self.status = {}  # by rank, of those that have ended; -SIGNAL if a signal ended it

    def fork(self, log, work):
        """The next rank, which calls @work and prints to @log."""
        self.logs.append(log)
        sys.stdout.flush(), sys.stderr.flush()
        pid = os.fork()
        if pid:
            self.pids.append(pid)
            return
        status = 1
        try:
            for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
                signal.signal(name, signal.SIG_DFL)
            log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1), os.dup2(log, 2)
            faulthandler.register(signal.SIGUSR1)  # tells where it hangs
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)

    def ended(self):
        for rank, pid in enumerate(self.pids):
            if rank not in self.status and (found := os.waitpid(pid, os.WNOHANG))[0]:
                self.status[rank] = os.waitstatus_to_exitcode(found[1])
        return self.status

    def kill(self, ranks=None):
        """Kills ranks, as far as they live; returns how many. None: all of them."""
        ended = self.ended()  # once: it also reaps
        alive = [rank for rank in range(len(self.pids)) if rank not in ended]
        victims = [rank for rank in alive if ranks is None or rank in ranks]
        for rank in victims:
            os.kill(self.pids[rank], signal.SIGKILL)
        for rank in victims:
            self.status[rank] = os.waitstatus_to_exitcode(os.waitpid(self.pids[rank], 0)[1])
        return len(victims)

    def said(self):
        """The end of each rank's log, with the stacks of those that live."""
        for rank in set(range(len(self.pids))) - set(self.ended()):
            os.kill(self.pids[rank], signal.SIGUSR1)
        time.sleep(0.2)
        return "\n".join(open(log, errors="replace").read()[-2000:] for log in self.logs)
