#!/usr/bin/env python3
"""Checks of copies to a GPU that need a real GPU. `make check-gpu PYTHON=…` runs them.

Uses the programs of this tree's build, otherwise those of `make gpu-kit`. Needs torch and a driver,
but no network.

check.py [PATTERN…] runs the checks whose names contain a pattern. Each prints lines "ok", "FAIL" or
"info" (a figure without a limit). Exit status: 0 all ok, 1 a check failed, 77 no GPU (the last line
is "skipped: why"). Enter the results into RESULTS.md by hand, with the machine's name.
"""

import os
import sys
import traceback

import check_copies
import check_processes
import check_training
from check_common import Daemon, failed, info, no_gpu, ok


def chosen():
    for module in (check_copies, check_processes, check_training):
        for name, function in vars(module).items():
            if name.startswith("check_") and any(word in name for word in sys.argv[1:] or [""]):
                yield name, function


def main():
    why = no_gpu()
    if why:
        print(f"skipped: no NVIDIA GPU here ({why})")
        return 77
    import torch

    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Linux {os.uname().release}"
    info("machine", f"{torch.cuda.get_device_name(0)}, {versions}")
    torch.empty(1, device="cuda")  # the device's context, torch's own
    daemon = Daemon()
    try:
        for name, check in chosen():
            try:
                check(torch, daemon)
            except Exception as error:
                ok(name, False, repr(error))
                traceback.print_exc()
    finally:
        daemon.end()
    print(f"{len(failed)} failed" if failed else "all ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
