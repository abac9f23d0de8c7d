"""Fixtures of several system tests."""

import os
import sys

import pytest
from bad_input import Bench

from lib import PACKAGE, status

sys.path.insert(0, str(PACKAGE))


@pytest.fixture(scope="module")
def bench(shared):
    """For test_bad_*: one daemon and witness for all tests of a file."""
    bench = Bench(shared)
    yield bench
    sessions, _ = status(bench.daemon.socket)
    assert [s["pid"] for s in sessions] == [os.getpid()], "only the witness's session is left"
    bench.witness.close()
