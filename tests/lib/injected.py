"""Counts the faults that a test injects, for the table at the end of `make test`."""

import os


def injected(row, times=1):
    """Counts a fault that was really injected, `times` times. `row` is its row in the catalogue of
    faults. Call this after the injection was observed, not before it.
    """
    path = os.environ.get("TOKEND_FAULTS")
    test = os.environ.get("PYTEST_CURRENT_TEST", "")  # "FILE::FUNCTION[PARAMETERS] (call)"
    function = test.rpartition("::")[2].split("[")[0].split(" ")[0]
    if path and times:
        with open(path, "a") as file:
            file.write(f"{row} {int(times)} {function}\n")
