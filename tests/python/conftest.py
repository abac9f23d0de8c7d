"""Fixtures of the tests of the Python package."""

import pytest

from lib.stock import StockDaemon


@pytest.fixture
def daemon(directory):
    """A started daemon with one stream of each kind."""
    stock = StockDaemon(directory)
    yield stock.start()
    stock.end()
