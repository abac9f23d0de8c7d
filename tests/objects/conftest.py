"""Fixtures of the tests with real object stores."""

import pytest
from jobs import Job

from lib.fault_proxy import FaultProxy
from lib.stores import Radosgw


@pytest.fixture(scope="module")
def job(shared, seed):
    """Shards in a radosgw, reached through a proxy."""
    with Radosgw(shared) as store, FaultProxy(store.port, seed=seed) as proxy:
        yield Job(shared, store, proxy)


@pytest.fixture
def proxy(job):
    """The proxy of `job`, without rules."""
    job.proxy.clear()
    yield job.proxy
    job.proxy.clear()
