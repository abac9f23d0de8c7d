"""Daemons that are killed, stay away or come back with another config, and private daemons."""

import gc
import os
import signal
import threading
import warnings

import numpy
import pytest
from loading import check_run, make

import tokend
from lib import child_environment, status, wait_until
from lib.injected import injected
from lib.stock import StockDaemon


@pytest.mark.parametrize(("row", "end"), [(5, "kill"), (7, "stop")])
def test_a_daemon_that_returns_is_not_noticed(daemon, row, end):
    """Killed, or as after `systemctl stop; start`. The ring does not last until it is back."""
    with make(daemon, rank=1, world=2, slots=4, deadline=60) as loader:
        check_run(daemon, loader, 10, rank=1, world=2)
        for times in range(1, 4):
            getattr(daemon, end)()
            restart = threading.Timer(0.5, daemon.start)
            restart.start()
            more = {"start": 8 * (40 * times - 30), "rank": 1, "world": 2}
            check_run(daemon, loader, 40, **more)
            restart.join()
            injected(row, loader.stats()["reattached"] == times)
            assert loader.stats()["reattached"] == times
        assert loader.stats()["lost_wakes"] == 0
        daemon.stop()
        daemon.start()
        loader.checkpoint("after")  # it finds the new one
        assert loader.stats()["reattached"] == 4


def test_a_daemon_that_stays_away_is_an_error_with_the_position_to_resume_from(daemon):
    with make(daemon, deadline=0.3, slots=4) as loader:
        check_run(daemon, loader, 1)
        daemon.stop()
        for _ in range(2):
            with pytest.raises(ConnectionError) as error, warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                try:
                    for _ in range(10):
                        next(loader)
                finally:
                    loader.state_dict()  # it does not warn: no step was interrupted
        assert type(error.value) is tokend.ConnectError
        place = loader.position
        assert f"resume from the cursor at position {place}" in str(error.value)
        assert 4 <= place <= 20
        injected(7)
        daemon.start()
        loader.seek()
        check_run(daemon, loader, 3, start=place)


def test_a_daemon_that_comes_back_with_another_config_is_refused(daemon):
    with make(daemon, slots=4) as loader:
        next(loader)
        daemon.stop()
        daemon.configure(seed=43)
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="seed"):
            for _ in range(10):
                next(loader)
        injected(6)
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == loader.position


@pytest.mark.parametrize("go_on", ["next", "seek", "reset"])
@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("written", [numpy.flip, numpy.copy])
def test_a_daemon_that_comes_back_with_other_tokens_is_refused(daemon, go_on, mix, written):
    with make(daemon, micro=64, slots=4) as loader:
        next(loader)
        begins = loader.set_mix({"web": 1}) if mix else 0
        while loader.position <= begins:
            next(loader)
        daemon.stop()
        path = daemon.directory / "web" / "b.bin"
        written(numpy.fromfile(path, "<u2")).tofile(path)
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="shards: dataset web: .* other tokens"):
            for _ in range(10):
                getattr(loader, go_on, loader.__next__)()
        loader.seek()  # the trainer takes the new tokens on purpose
        next(loader)


def test_a_truncated_shard_stops_the_stream_and_is_named(daemon):
    with make(daemon, slots=2) as loader:
        next(loader)
        os.truncate(daemon.directory / "web" / "a.bin", 1000)
        for _ in range(2):
            with pytest.raises(tokend.DataError, match="dataset web: shard a.bin at token"):
                for _ in range(1000):
                    next(loader)
            assert loader.cursor.position == loader.position


def test_sessions_end_with_their_loader(daemon):
    loader = make(daemon)
    sessions = lambda: status(daemon.socket)[1]["sessions"]
    assert sessions() == 1
    del loader
    gc.collect()
    wait_until(lambda: sessions() == 0, "the end of the session")


# ---- which daemon ----


def test_a_loader_without_a_daemon_is_refused(directory, monkeypatch):
    bad = StockDaemon(directory).config
    bad.write_text(bad.read_text().replace("weight: 0.7", "weight: -1"))
    monkeypatch.setenv("TOKEND_BIN", str(child_environment()["TOKEND_BIN"]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    for place, error, text in (
        ({"socket": directory / "socket"}, tokend.ConnectError, "no daemon answers at .*/socket"),
        ({"socket": "/" + "x" * 200}, tokend.ConnectError, "at most 107"),
        ({"config": directory / "not.yaml"}, tokend.Error, "not.yaml: .* opened: No such file"),
        ({"config": b"/nowhere/\xff.yaml"}, tokend.Error, "[?].yaml: .* opened: No such file"),
        ({"config": 5}, TypeError, "^config: 5"),
        ({"config": bad}, tokend.Error, r"tokend.yaml:\d+: .*weight"),
    ):
        with pytest.raises(error, match=text):
            tokend.Loader("train", 4, rank=0, world=1, **place)


def kill_private(directory):
    """Ends the private daemons of this directory by their own pids."""
    for path in (directory / "tokend").glob("*.sock"):
        for line in StockDaemon.tokctl(None, "status", "--socket", path, "--json")[-1:]:
            os.kill(line["pid"], signal.SIGTERM)
            wait_until(lambda path=path: not path.exists(), "the end of a private daemon")
