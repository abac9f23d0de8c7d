#!/usr/bin/env python3
"""Runs tests with the programs of build/cover, and compares which functions of the product they
reach with a stored list of those that none reaches (`make coverage`).

reached.py [--base FILE] [NAME…]  the tests whose names contain a NAME, as in tests/run. FILE is
                                  written if it does not exist (default: tests/unreached.txt).

Tests of system/ and python/, the nightly ones, too, run the daemon, tokctl and the Python extension
of build/cover; C tests are built for it. Left out: runs with sanitizers, and programs in which the
calls that store the counts go to a simulated system. Pages do not count: they run build/bin.
A process killed by SIGKILL loses nothing, because it counts in a mapped file. A process of another
user counts because the files of the programs are writable for all.

Exit status: 0, or 1 if a function of FILE's product is no longer reached. A test that fails is
printed, and does not matter here.
"""

import argparse
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COVER = ROOT / "build/cover"
PACKAGE = COVER / "python"
# Together they contain all functions that count.
PROGRAMS = (COVER / "bin/tokend", COVER / "bin/tokctl", PACKAGE / "tokend/_tokend.abi3.so")
LEFT_OUT = {"asan", "tsan", "memory", "sim", "test_power_cut", "test_planted_bugs"}
SETTINGS = {
    "TOKEND_BIN": str(COVER / "bin"),
    "TOKEND_PYTHON": str(PACKAGE),
    "PYTHONPATH": f"{PACKAGE}:{ROOT}/tests",
}


def prepare():
    """No counts yet, but files for them in which every user can count."""
    shutil.rmtree(COVER / "counts", ignore_errors=True)
    shutil.rmtree(PACKAGE, ignore_errors=True)
    shutil.copytree(ROOT / "build/python", PACKAGE)
    shutil.copy2(COVER / "wheel/_tokend.abi3.so", PROGRAMS[-1])
    before = os.umask(0)
    (COVER / "counts").mkdir()
    for command in (
        [PROGRAMS[0], "--version"],
        [PROGRAMS[1], "--version"],
        [sys.executable, "-c", "import tokend"],
    ):
        environment = {**os.environ, **SETTINGS}
        subprocess.run(command, check=True, capture_output=True, env=environment)
    os.umask(before)


def run(names):
    """Runs the tests with tests/run, each with the programs of build/cover."""
    runner = importlib.machinery.SourceFileLoader("run", str(ROOT / "tests/run")).load_module()
    covered = []
    for name, command, environment, kind in runner.tests():
        if kind in ("", "--nightly") and not {"trainers", *LEFT_OUT} & set(name.split()):
            command = [part.replace("build/gcc/", "build/cover/") for part in command]
            covered.append(runner.Test(name, command, {**environment, **SETTINGS}, ""))
    runner.tests = lambda: covered
    sys.argv = ["tests/run", *names]
    runner.main()


def unreached():
    """The functions of the product that no process entered, as lines "FILE FUNCTION", and the
    number of all functions.
    """
    merged = COVER / "counts/all.profdata"
    raw = sorted(map(str, (COVER / "counts").glob("*.profraw")))
    subprocess.run(["llvm-profdata", "merge", "--failure-mode=all", "-o", merged, *raw], check=True)
    command = ["llvm-cov", "export", "-skip-expansions", f"-instr-profile={merged}", PROGRAMS[0]]
    for program in PROGRAMS[1:]:
        command += ["-object", program]
    report = subprocess.run(command, check=True, capture_output=True).stdout
    entered = {}
    for function in json.loads(report)["data"][0]["functions"]:
        file = os.path.relpath(os.path.join(ROOT, function["filenames"][0]), ROOT)
        if file.startswith(("proto/", "daemon/", "client/")):
            key = f"{file} {function['name'].rpartition(':')[2]}"
            entered[key] = entered.get(key, 0) + function["count"]
    return {key for key, count in entered.items() if not count}, len(entered)


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--base", type=Path, default=ROOT / "tests/unreached.txt")
    options.add_argument("names", nargs="*")
    options = options.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "tests/lib"))
    prepare()
    run(options.names)
    now, functions = unreached()
    print(f"{functions - len(now)} of {functions} functions of the product were reached")
    if not options.base.exists():
        options.base.write_text("".join(line + "\n" for line in sorted(now)))
        print(f"{options.base}: written")
    base = set(options.base.read_text().splitlines())
    for line in sorted(base - now):
        print(f"reached or gone, remove it from {options.base.name}: {line}")
    for line in sorted(now - base):
        print(f"no longer reached: {line}")
    return 1 if now - base else 0


if __name__ == "__main__":
    sys.exit(main())
