"""Fixtures of the tests of the Python package."""

import sys

import pytest

from lib import PACKAGE
from lib.stock import StockDaemon

sys.path.insert(0, str(PACKAGE))


@pytest.fixture
def daemon(directory):
    """A started daemon with one stream of each kind."""
    stock = StockDaemon(directory)
    yield stock.start()
    stock.end()
