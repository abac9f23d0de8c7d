"""Throughput: tokens and waiting time for a trainer's logger."""

import os
import signal
import time

import tokend
import transforms
from tokend.throughput import Throughput


def test_tokens_are_those_of_all_ranks_and_waiting_is_a_share_of_the_time(daemon):
    with tokend.Loader(
        "train", 4, socket=daemon.socket, run="throughput", rank=1, world=3
    ) as loader:
        next(loader)
        throughput = Throughput(loader)
        for _ in range(5):
            next(loader)
        said = throughput()
        assert said["tokend/tokens"] == 6 * 4 * 65 * 3
        assert said["tokend/tokens_per_second"] > 0
        assert 0 <= said["tokend/wait_share"] <= 1
        again = throughput()  # since the last call
        assert (
            again["tokend/tokens"],
            again["tokend/tokens_per_second"],
            again["tokend/wait_seconds"],
        ) == (said["tokend/tokens"], 0, 0)


def test_a_wait_for_the_daemon_is_measured(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket, run="waits", slots=2) as loader:
        next(loader)
        throughput = Throughput(loader)
        os.kill(daemon.process.pid, signal.SIGSTOP)
        child = os.fork()
        if child == 0:  # continues it after a while
            time.sleep(0.5)
            os.kill(daemon.process.pid, signal.SIGCONT)
            os._exit(0)
        for _ in range(8):
            next(loader)
        os.waitpid(child, 0)
        said = throughput()
        assert 0.3 < said["tokend/wait_seconds"] < 5
        assert said["tokend/wait_share"] > 0.3


def test_tokens_do_not_jump_when_the_world_changes(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket, run="rescaled", rank=1, world=2) as loader:
        throughput = Throughput(loader)
        next(loader)
        assert throughput()["tokend/tokens"] == 4 * 65 * 2
        loader.seek(rank=0, world=1)
        next(loader)
        assert throughput()["tokend/tokens"] == 4 * 65 * 3


def test_reading_stats_changes_no_number(daemon):
    with tokend.Loader(
        "train", 4, socket=daemon.socket, run="asked", transform=transforms.slow
    ) as loader:
        throughput, other = Throughput(loader), Throughput(loader)
        next(loader)
        assert other()["tokend/data_share"] > 0.5
        assert loader.stats() == loader.stats()
        said = throughput()
        assert said["tokend/data_share"] > 0.5
        assert said["tokend/wait_share"] < said["tokend/data_share"]
