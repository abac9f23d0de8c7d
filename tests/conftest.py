"""Fixtures of all Python tests, a time limit a test, and the exit status for tests/run."""

import os
import pathlib
import random
import signal

import pytest

from lib import MODES, Daemon, Place, datasets, mode_name

LIMIT_S = 240
skipped = []  # (test, why)
others = []  # the outcomes of all other tests


@pytest.fixture
def place():
    """A Place for this test."""
    with Place() as made:
        yield made


@pytest.fixture(scope="module")
def shared():
    """A Place for all tests of the module."""
    with Place() as made:
        yield made


@pytest.fixture
def directory(place):
    """A directory for this test, with a path short enough for a socket in it."""
    return pathlib.Path(place.path)


@pytest.fixture(scope="session")
def seed():
    """The seed of random choices. $TOKEND_SEED repeats a run."""
    chosen = int(os.environ.get("TOKEND_SEED") or random.SystemRandom().getrandbits(32))
    print(f"TOKEND_SEED={chosen}")
    return chosen


@pytest.fixture(scope="session")
def written():
    """Shards of all formats, as their own writers write them."""
    from lib.corpus import corpus

    return corpus()


@pytest.fixture(scope="session")
def uring():
    """The reason why a daemon cannot use io_uring here; "" if it can."""
    with Place() as place:
        place.shard("probe/a.bin", 30_000)
        streams = {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("probe")}}
        try:
            Daemon(place, place.config(io="uring", streams=streams)).stop()
        except RuntimeError as error:
            return str(error).strip()
    return ""


@pytest.fixture(params=MODES, ids=mode_name)
def mode(request, uring):
    """Each (io, direct) of a config in turn. Without io_uring half of them are skipped."""
    if request.param[0] == "uring" and uring:
        pytest.skip(f"io: uring: {uring}")
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def expired(*_):
        pytest.fail(f"not done after {limit} s")

    marker = item.get_closest_marker("limit")
    limit = marker.args[0] if marker else LIMIT_S
    signal.signal(signal.SIGALRM, expired)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)


# ---- the result for tests/run ----


def note(report):
    name, bracket, parameters = report.nodeid.partition("[")
    name = os.path.basename(name).rpartition("::")[2]
    if report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if hasattr(report, "wasxfail"):
            why = f"expected to fail: {report.wasxfail}"
        skipped.append((name + bracket + parameters, why.removeprefix("Skipped: ")))
    elif report.when == "call" or report.failed:
        others.append(report.outcome)
    path = os.environ.get("TOKEND_FAULTS")
    if path and (report.when == "call" or not report.passed):
        with open(path, "a") as file:
            file.write(f"{report.outcome} {name}\n")  # for the faults that it saw (lib/injected.py)


def pytest_runtest_logreport(report):
    note(report)


def pytest_collectreport(report):
    if not report.passed:
        note(report)


def pytest_sessionfinish(session):
    if skipped and not others:
        session.exitstatus = 77


def pytest_unconfigure():
    """Prints what was skipped, for tests/run."""
    for name, why in skipped:
        print(f"skipped: {name}: {why}")
