"""Waiting for a condition instead of a time."""

import time

LONG = 20.0  # seconds; a condition that is still false then has failed


def wait_for(condition, seconds=LONG, pause=0.005):
    """Returns the first true value of condition(), or the last false one after @seconds."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(pause)


def wait_until(true, what, seconds=LONG):
    """Returns when true() is true. AssertionError after @seconds: @what did not happen."""
    assert wait_for(true, seconds), f"{what} did not happen within {seconds} s"
