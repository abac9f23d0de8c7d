"""The tables at the end of a run: a row is held if a test saw the fault and then passed."""

import subprocess

from lib import REPO, child_environment
from lib.fault_table import ROWS, Test, named, read, table

FAULTS = """
from lib.injected import injected
import pytest

def test_holds(): injected(5, 2)
def test_breaks():
    injected(7)
    assert False
@pytest.mark.parametrize("fails", [0, 1])
def test_breaks_once(fails):
    injected(8)
    assert not fails
def test_skips():
    injected(9)
    pytest.skip("why: so")
"""


def test_a_fault_counts_once_its_test_has_passed(tmp_path):
    (tmp_path / "test_faults.py").write_text(FAULTS)
    faults = tmp_path / "faults"
    environment = child_environment(TOKEND_FAULTS=str(faults))
    command = ["build/venv/bin/python", "-m", "pytest", "-c", "tests/pytest.ini", "-p", "conftest"]
    keys = {"cwd": REPO, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*command, tmp_path], **keys)
    assert read(faults.read_text(), "file", False) == ({5: {"test_holds": 2}}, {7, 8})
    assert done.stdout.splitlines()[-1] == "skipped: test_skips: why: so"


def test_a_row_that_failed_or_was_never_injected_is_named():
    seen = {row: {"test_all": 1} for row in ROWS if row not in (20, 48)}
    tests = [
        Test("a", True, seen),
        Test("b", False, {}, broken={7}),
        Test("c", False, {}, rows={5}),
    ]
    tests.append(Test("d", True, {}, rows={48}, skipped="needs root"))
    lines, missing = table(tests, whole=True)
    held = {int(line[:3]): line[71:].split()[0] for line in lines[1:] if line[:3].strip()}
    expected = {20: "-", 48: "skipped", 7: "no", 5: "no", 45: "weaker", 46: "weaker"}
    assert held == {row: expected.get(row, "yes") for row in ROWS} and missing == [20]
    python = "injected(10 if cut else 12)\ninjected(4, 50 if late else 0)\nx.injected(8)\n"
    assert named("a.py", python) == {10, 12, 4}
    assert named("a.c", "\tinjected(13, 9);\n\tinjected(row, 5);\n") == {13}
