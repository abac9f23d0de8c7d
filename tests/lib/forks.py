"""Processes of Python programs, forked from one that has imported torch: the import takes two
seconds of CPU. They end without Python's own end, and have one seed of hashes, unlike real ranks.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed", "pytest"])


def print_to(out, error):
    """Sends what this process prints to these files. They are made if they do not exist."""
    for fd, path in (1, out), (2, error):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, fd)
        os.close(file)


def _run(program, arguments, out, error):
    import torch

    torch.set_num_threads(1)
    print_to(out, error)
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})


def run_together(program, arguments, seconds=120):
    """Runs `python -c PROGRAM ARGUMENTS…` once for each list in @arguments, at the same time.
    Returns what each process printed. All of them must end without an error within @seconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        files = [[Path(directory) / f"{i}.{n}" for n in (1, 2)] for i in range(len(arguments))]
        processes = [
            FORKS.Process(target=_run, args=(program, list(map(str, each)), *to), daemon=True)
            for each, to in zip(arguments, files, strict=True)
        ]
        until = time.monotonic() + seconds
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0, until - time.monotonic()))
            status = [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()
        said = [[file.read_text() for file in of] for of in files]
        assert status == [0] * len(status), (status, *(errors[-4000:] for _, errors in said))
        return [out for out, _ in said]
