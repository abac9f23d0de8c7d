"""Ends every process that run.py started, however run.py ends.

torchrun puts each worker into its own session, so killing a process group is not enough. Instead
run.py is a subreaper: orphaned descendants become its children and can be found. If run.py itself
is killed, the kernel signals its children.
"""

import ctypes
import os
import signal
import subprocess
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None, use_errno=True)


def adopt():
    """Makes orphaned descendants our children from now on."""
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start(command, log, environment):
    def with_parent():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    with open(log, "a") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=with_parent,
        )


def stat(pid):
    """The fields of /proc/PID/stat from the third on. None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(of):
    """All living processes below @of."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat(name)) and fields[0] != b"Z":
            parents[int(name)] = int(fields[1])
    found, generation = [], {of}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found += generation
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def kill_tree(process):
    """Kills a child and all its descendants with SIGKILL. Returns their number."""
    pids = [process.pid, *descendants(process.pid)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    while any((fields := stat(pid)) and fields[0] != b"Z" for pid in pids):
        time.sleep(0.005)
    return len(pids)


def kill_all():
    """Kills all descendants with SIGKILL, until there are none."""
    while left := descendants(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        time.sleep(0.01)
    reap()


def cpu_seconds(pid):
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def memory_kib(pid):
    """(private, shared) resident KiB. The shared part is the rings, which trainers map too."""
    with open(f"/proc/{pid}/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
    return tuple(int(sizes[key].split()[0]) for key in ("RssAnon", "RssShmem"))
