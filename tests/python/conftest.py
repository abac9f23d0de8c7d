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


@pytest.fixture(scope="module")
def served(shared):
    """The same for all tests of a module, none of which harms it."""
    stock = StockDaemon(shared.path)
    yield stock.start()
    stock.end()
