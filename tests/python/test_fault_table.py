"""The table of faults at the end of `make test` names what failed, what was skipped, and what was
never injected.
"""

import importlib.machinery
import os
import subprocess
import sys

import pytest

from lib import REPO
from lib.fault_table import LATER, NOTES, ROWS, Test, named, read, table

ALL = {row: {"test_all": 1} for row in ROWS if row not in LATER}


def cells(row, lines):
    """(times, held, tests and note) of a row."""
    text = next(line for line in lines if line.split()[0] == str(row))
    times, held, *rest = text[5 + 56 :].split()
    return int(times), held, " ".join(rest)


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
    environment = {"PYTHONPATH": "tests:build/python", "TOKEND_FAULTS": str(faults)}
    command = [sys.executable, "-m", "pytest", "-c", "tests/pytest.ini", "-p", "conftest", tmp_path]
    done = subprocess.run(
        command, cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert read(faults.read_text(), "file", False) == ({5: {"test_holds": 2}}, {7, 8})
    assert done.stdout.splitlines()[-1] == "skipped: test_skips: why: so"


def test_counts_are_added_per_row_and_function():
    text = "5 2 test_a\n7 1\n5 3 test_b\n5 1 test_a\n9 0\n10 1 killed\n"
    text += "passed test_a\npassed test_b\n"
    assert read(text, "file", True) == ({5: {"test_a": 3, "test_b": 3}, 7: {"file": 1}}, {10})
    assert read("7 1\n", "file", False) == ({}, {7})
    with pytest.raises(ValueError, match="no row 56"):
        read("56 1\n", "file", True)


def test_the_rows_that_a_source_names_are_found():
    python = "injected(10 if cut else 12)\ninjected(4, 50 if late else 0)\ninjected(ROWS[7])\n"
    assert named("a.py", python + "x.injected(8)\n") == {10, 12, 7, 4}
    assert named("a.c", "\tinjected(13, 9);\n\tinjected(row, 5);\n") == {13}
    assert named("a.sh", "injected $([ $s = KILL ] && echo 5 || echo 8)\n") == {5, 8}


def test_a_row_that_was_never_injected_is_missing():
    assert table([Test("a", True, ALL)], whole=True)[1] == []
    without = {row: by for row, by in ALL.items() if row != 20}
    lines, missing = table([Test("a", True, without)], whole=True)
    assert missing == [20] and cells(20, lines) == (0, "-", "none")


def test_a_row_is_held_only_if_all_its_tests_passed():
    good = Test("a", True, {5: {"test_a": 2}})
    bad = Test("b", False, {7: {"test_c": 1}}, broken={5})
    lines, _ = table([good, bad], False)
    assert len(lines) == 3, "a filtered run lists only the rows that it injected"
    assert cells(5, lines) == (2, "no", "FAILED: b, test_a")
    assert cells(7, lines) == (1, "yes", "test_c"), "although another test of the file failed"
    assert cells(5, table([good], False)[0]) == (2, "yes", "test_a")
    assert table([Test("c", True, {})], False) == ([], [])


def test_a_test_that_failed_before_its_fault_fails_the_row():
    early = Test("early", False, {}, rows={5})
    lines, missing = table([Test("a", True, ALL), early], whole=True)
    assert cells(5, lines) == (1, "no", "FAILED: early, test_all") and missing == []
    lines, missing = table([early], whole=False)
    assert cells(5, lines) == (0, "no", "FAILED: early") and missing == []


def test_a_row_whose_tests_were_skipped_says_why():
    without = Test("a", True, {row: by for row, by in ALL.items() if row != 48})
    skipped = Test("owner", True, {}, rows={48}, skipped="needs root")
    lines, missing = table([without, skipped], whole=True)
    assert cells(48, lines) == (0, "skipped", "skipped: needs root") and missing == []


def test_a_weaker_bound_is_no_plain_yes():
    lines, _ = table([Test("a", True, ALL)], whole=True)
    weaker = {row for row, note in NOTES.items() if note.startswith("weaker")}
    assert weaker == {45, 46}
    assert all(cells(row, lines)[1] == "weaker" for row in weaker)


def test_a_skip_says_why():
    run = importlib.machinery.SourceFileLoader("run", f"{REPO}/tests/run").load_module()
    begun, ended = "[ RUN      ] part\n", "[  SKIPPED ] part\n"
    assert run.skipped(begun + "skipped: no disk: so\n" + ended) == [("part", "no disk: so")]
    assert run.skipped("skipped: test_a[b]: needs root\n") == [("test_a[b]", "needs root")]
    assert run.skipped(begun + ended) is None
