"""Raises the time limit, as tests with real trainers take longer than others, and keeps Hugging
Face's packages from the network.
"""

import os

import pytest

# otherwise SFTTrainer reports its use, from a thread
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.limit(900))
