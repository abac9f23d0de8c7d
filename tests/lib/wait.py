"""Waiting for a condition instead of for a time."""

import time

LONG = 20.0  # seconds after which something that must happen has not


def wait_for(condition, seconds=LONG, pause=0.005):
    """The first true value of condition(), or its last false one."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(pause)


def wait_until(true, what, seconds=LONG):
    """Returns when true() is; AssertionError, which says @what did not happen, if that takes too
    long.
    """
    assert wait_for(true, seconds), f"{what} did not happen within {seconds} s"
