"""The table of faults at the end of `make test` names what failed, what was skipped, and what was
never injected.
"""

import pytest

from lib.fault_table import LATER, NOTES, ROWS, Test, named, read, table

ALL = {row: {"test_all": 1} for row in ROWS if row not in LATER}


def cells(row, lines):
    """(times, held, tests and note) of a row."""
    text = next(line for line in lines if line.split()[0] == str(row))
    times, held, *rest = text[5 + 56 :].split()
    return int(times), held, " ".join(rest)


def test_counts_are_added_per_row_and_function():
    assert read("5 2 test_a\n7 1\n5 3 test_b\n5 1 test_a\n9 0\n", "file") == {
        5: {"test_a": 3, "test_b": 3},
        7: {"file": 1},
    }
    with pytest.raises(ValueError, match="no row 56"):
        read("56 1\n", "file")


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
    bad = Test("b", False, {5: {"test_b": 3}})
    lines, _ = table([good, bad, Test("c", False, {7: {"test_c": 1}})], False)
    assert len(lines) == 3, "a filtered run lists only the rows that it injected"
    assert cells(5, lines) == (5, "no", "FAILED: b, test_a, test_b")
    assert cells(5, table([good], False)[0]) == (2, "yes", "test_a")
    assert table([Test("c", True, {})], False) == ([], [])


def test_a_test_that_failed_before_its_fault_fails_the_row():
    early = Test("early", False, {}, frozenset({5}))
    lines, missing = table([Test("a", True, ALL), early], whole=True)
    assert cells(5, lines) == (1, "no", "FAILED: early, test_all") and missing == []
    lines, missing = table([early], whole=False)
    assert cells(5, lines) == (0, "no", "FAILED: early") and missing == []


def test_a_row_whose_tests_were_skipped_says_why():
    without = Test("a", True, {row: by for row, by in ALL.items() if row != 48})
    skipped = Test("owner", True, {}, frozenset({48}), "needs root")
    lines, missing = table([without, skipped], whole=True)
    assert cells(48, lines) == (0, "skipped", "skipped: needs root") and missing == []


def test_a_weaker_bound_is_no_plain_yes():
    lines, _ = table([Test("a", True, ALL)], whole=True)
    weaker = {row for row, note in NOTES.items() if note.startswith("weaker")}
    assert weaker == {45, 46}
    assert all(cells(row, lines)[1] == "weaker" for row in weaker)
