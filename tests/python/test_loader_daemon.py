"""Daemons that are killed, stay away or come back with another config, and private daemons."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from loading import check, check_run, make

import tokend
from lib import child_environment, wait_until
from lib.injected import injected
from lib.stock import StockDaemon

# ---- faults ----


def test_a_killed_daemon_is_not_noticed(daemon):
    with make(
        daemon, rank=0, world=2, slots=16
    ) as loader:  # fewer than the steps after the last kill
        plan = daemon.plan("train", 0, 300 * 8)
        for step in range(300):
            if step % 100 == 50:
                daemon.kill()
                restart = threading.Timer(0.2, daemon.start)
                restart.start()
            check(daemon, next(loader), plan[step * 8 : step * 8 + 4], ["web", "code"])
            if step % 100 == 99:
                restart.join()
        injected(5, loader.stats()["reattached"])
        assert loader.stats()["reattached"] == 3
        assert loader.stats()["lost_wakes"] == 0


def test_checkpoint_finds_a_restarted_daemon(daemon):
    with make(daemon) as loader:
        check_run(daemon, loader, 3)
        daemon.stop()
        daemon.start()
        loader.checkpoint("after")
        check_run(daemon, loader, 3, start=12)
        assert loader.stats()["reattached"] == 1


def test_a_stopped_daemon_that_returns_is_not_noticed(daemon):
    """As after `systemctl stop; start`. The ring does not last until it is back."""
    with make(daemon, slots=4, deadline=60) as loader:
        check_run(daemon, loader, 10)
        for stopped in range(1, 4):
            daemon.stop()
            assert not os.path.exists(daemon.socket)
            restart = threading.Timer(1, daemon.start)
            restart.start()
            check_run(daemon, loader, 40, start=40 * stopped * 4 - 120)
            restart.join()
            injected(7, loader.stats()["reattached"] == stopped)
            assert loader.stats()["reattached"] == stopped


def test_a_daemon_that_stays_away_is_an_error_with_the_position_to_resume_from(daemon):
    with make(daemon, deadline=0.3, slots=4) as loader:
        check_run(daemon, loader, 1)
        daemon.stop()
        with pytest.raises(
            tokend.ConnectError, match="resume from the cursor at position"
        ) as error:
            for _ in range(10):
                next(loader)
        place = loader.position
        assert f"position {place}" in str(error.value)
        assert 4 <= place <= 20
        injected(7)
        with pytest.raises(ConnectionError):
            next(loader)
        daemon.start()
        loader.seek()
        check_run(daemon, loader, 3, start=place)


def test_a_daemon_that_comes_back_with_another_seed_is_refused(daemon):
    with make(daemon, slots=4) as loader:
        batch = next(loader)
        daemon.kill()
        daemon.configure(seed=43)
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="seed"):
            for _ in range(10):
                next(loader)
        injected(6)
        daemon.configure()
        check(daemon, batch, daemon.plan("train", 0, 4), ["web", "code"])


def test_a_truncated_shard_stops_the_stream_and_is_named(daemon):
    with make(daemon, slots=2) as loader:
        next(loader)
        os.truncate(daemon.directory / "web" / "a.bin", 1000)
        with pytest.raises(tokend.DataError, match="dataset web: shard a.bin at token"):
            for _ in range(1000):
                next(loader)
        place = loader.position
        with pytest.raises(tokend.DataError):
            next(loader)
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == place


def test_a_loader_without_a_daemon_is_refused(directory):
    with pytest.raises(tokend.ConnectError, match="no daemon answers at .*/socket"):
        tokend.Loader("train", 4, socket=directory / "socket", rank=0, world=1)
    with pytest.raises(tokend.ConnectError, match="at most 107"):
        tokend.Loader("train", 4, socket="/" + "x" * 200, rank=0, world=1)


def test_sessions_end_with_their_loader(daemon):
    def sessions():
        return daemon.tokctl("status", "--socket", daemon.socket, "--json")[-1]["sessions"]

    loader = make(daemon)
    assert sessions() == 1
    del loader
    gc.collect()
    wait_until(lambda: sessions() == 0, "the end of the session")


# ---- private daemons ----


EMBEDDED = """
import sys, tokend
with tokend.Loader("train", 4, config=sys.argv[1], rank=int(sys.argv[2]), world=2) as loader:
    print([next(loader)["position"][0].item() for _ in range(3)], flush=True)
    sys.stdin.readline()
"""


def kill_private(directory):
    """Ends the private daemons of this directory by their own pids."""
    for path in (directory / "tokend").glob("*.sock"):
        for line in StockDaemon.tokctl(None, "status", "--socket", path, "--json")[-1:]:
            os.kill(line["pid"], signal.SIGTERM)
            wait_until(lambda path=path: not path.exists(), "the end of a private daemon")


def test_a_config_starts_one_private_daemon_for_all_ranks(directory):
    config = StockDaemon(directory).config
    environment = child_environment(XDG_RUNTIME_DIR=str(directory))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EMBEDDED, str(config), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        assert [json.loads(rank.stdout.readline()) for rank in ranks] == [[0, 8, 16], [4, 12, 20]]
        sockets = list((directory / "tokend").glob("*.sock"))
        assert len(sockets) == 1
        assert (
            StockDaemon.tokctl(None, "status", "--socket", sockets[0], "--json")[-1]["sessions"]
            == 2
        )
        for rank in ranks:
            rank.communicate("\n", timeout=20)
        assert [rank.returncode for rank in ranks] == [0, 0]
    finally:
        kill_private(directory)


def test_a_config_whose_daemon_runs_already_starts_none(daemon, monkeypatch):
    monkeypatch.setenv("TOKEND_BIN", str(child_environment()["TOKEND_BIN"]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(daemon.directory))
    monkeypatch.setenv("TOKEND_SOCKET", "/nowhere")
    with tokend.Loader("train", 4, config=daemon.config, rank=0, world=1) as loader:
        check_run(daemon, loader, 3)
    assert not (daemon.directory / "tokend").exists()


def test_a_config_that_cannot_be_read_is_refused(directory):
    for path, why in (
        (directory / "not.yaml", "No such file or directory"),
        (directory, "Is a directory"),
    ):
        with pytest.raises(tokend.Error, match=rf"^config: {path}: {why}; pass a config file"):
            tokend.Loader("train", 4, config=path, rank=0, world=1)
    with pytest.raises(TypeError, match="^config: 5 is not the path of a config file$"):
        tokend.Loader("train", 4, config=5, rank=0, world=1)


def test_a_config_with_an_error_raises_the_daemons_line(directory, monkeypatch):
    config = StockDaemon(directory).config
    config.write_text(config.read_text().replace("weight: 0.7", "weight: -1"))
    monkeypatch.setenv("TOKEND_BIN", str(child_environment()["TOKEND_BIN"]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    with pytest.raises(tokend.Error, match=r"tokend.yaml:\d+: .*weight"):
        tokend.Loader("train", 4, config=config, rank=0, world=1)
