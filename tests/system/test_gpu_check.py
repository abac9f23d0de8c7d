"""The checks that need a GPU (tests/gpu/check.py) run to their end with a simulated driver, and
what they check of the protocol holds. Checks that time a GPU or need the CUDA runtime are left out.
This does not show how a GPU behaves.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lib import BIN

GPU = Path(__file__).resolve().parents[1] / "gpu"
FAKE = Path(os.path.realpath(BIN)).parent / "check/fake"
REHEARSED = ("is_pinned", "view", "killed", "leaving", "without", "loader", "capture", "compile")


def run(program, *words, **more):
    environment = {**os.environ, "TOKEND_BIN": BIN, **more}
    return subprocess.run(
        [sys.executable, GPU / program, *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_gpu_checks_run_with_a_simulated_driver():
    done = run("rehearse.py", *REHEARSED, LD_LIBRARY_PATH=str(FAKE), FAKE_CUDA_ANY_MEMORY="1")
    assert done.returncode == 0 and done.stdout.endswith("all ok\n"), done.stdout + done.stderr
    said = re.findall(r"^ok +(.*)$", done.stdout, re.M)
    assert len(said) >= 20, said


def test_results_have_a_row_for_each_check():
    sources = "".join(path.read_text() for path in sorted(GPU.glob("check_*.py")))
    names = re.findall(r"^def check_(\w+)", sources, re.M)
    rows = re.findall(r"^\| `(\w+)`", (GPU / "RESULTS.md").read_text(), re.M)
    assert sorted(rows) == sorted(names)


def test_without_a_gpu_it_is_skipped():
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a GPU here")
    done = run("check.py")
    assert done.returncode == 77 and done.stdout.startswith("skipped: no NVIDIA GPU here"), (
        done.stdout
    )
