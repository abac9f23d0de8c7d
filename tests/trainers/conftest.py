"""Raises the time limit, as tests with real trainers take longer than others."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.limit(900))
