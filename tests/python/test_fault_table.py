"""The table of faults at the end of `make test` names what failed and what was never injected."""

import pytest

from lib.fault_table import LATER, ROWS, read, table

ALL = {row: 1 for row in ROWS if row not in LATER}


def line_of(row, lines):
    return next(line for line in lines if line.split()[0] == str(row))


def test_counts_are_added_per_row():
    assert read("5 2\n7 1\n5 3\n9 0\n") == {5: 5, 7: 1}
    with pytest.raises(ValueError, match="no row 56"):
        read("56 1\n")


def test_a_row_that_was_never_injected_is_missing():
    assert table([("a", True, ALL)], whole=True)[1] == []
    without = {row: 1 for row in ALL if row != 20}
    lines, missing = table([("a", True, without)], whole=True)
    assert len(lines) == 1 + len(ROWS)
    assert missing == [20] and line_of(20, lines).split()[-1] == "none"


def test_a_row_is_held_only_if_all_its_tests_passed():
    lines, _ = table([("a", True, {5: 2}), ("b", False, {5: 3}), ("c", False, {6: 1})], False)
    assert len(lines) == 3, "a filtered run lists only the rows that it injected"
    assert " 5  no " in line_of(5, lines) and "a, b: FAILED" in line_of(5, lines)
    lines, _ = table([("a", True, {5: 2}), ("c", False, {6: 1})], False)
    assert " 2  yes " in line_of(5, lines)
    assert table([("c", True, {})], False) == ([], [])
