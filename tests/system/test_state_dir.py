"""A state_dir that hangs, or that two daemons share.

Training does not depend on it: only clients that save or load a snapshot wait, with a deadline.
"""

import contextlib
import itertools
import os
import threading
import time

import pytest

from lib import Client, Daemon, Refused, Witness, client_of, datasets, has, rows_at, wait_for
from lib.cat import moved
from lib.injected import injected
from lib.fuse import hanging
from lib.web import metric
from lib.wire import attach_message

SOON = 5.0  # seconds; a wait for a state_dir that hangs takes at least 20
GREEDY, POLITE = 1001, 1002
ATTACHES = 600  # more than may wait of one user


class Scene:
    """A config whose state_dir can be hung."""

    def __init__(self, place, **keys):
        place.shard("web/a.bin", 60_000)
        streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
        self.directory = place.file("state/x")[:-2]
        self.config = place.config(streams=streams, **keys)
        self.daemon = Daemon(place, self.config)

    def hang(self):
        disk = hanging(self.directory, self.directory)
        disk.hang()
        return disk

    def attach(self, run, **keys):
        """A session, at once."""
        client = Client(self.daemon.socket)
        client.s.settimeout(SOON)
        return client.attach(run=run, **keys)


def refusal(call):
    with pytest.raises(Refused) as error:
        call()
    return error.value.packet


def save(client, tag):
    return client.ask(op="checkpoint", tag=tag, cursor=client.feed["cursor"])


@pytest.mark.tsan  # its thread hangs when the daemon ends
def test_training_continues_while_state_dir_hangs(place):
    scene = Scene(place)
    daemon = scene.daemon
    witness = Witness(daemon, rows_at(scene.config, "train", 0, 900), run="before")
    save(witness.client, "early")
    with contextlib.closing(scene.hang()) as disk:
        saving = scene.attach("before", peer=1)
        asked = time.monotonic()
        saving.tell(op="checkpoint", tag="late", cursor=saving.feed["cursor"])
        assert wait_for(disk.held, SOON), "a save has reached the file system"
        for client in [scene.attach(f"new{n}") for n in range(6)]:
            assert client.next(SOON) is not None, "new sessions attach, and get batches"
        assert witness.step(100), "a running session continues"
        by_tag = Client(daemon.socket)
        attach = attach_message(run="before", tag="early")
        by_tag.tell(**attach)
        for _ in range(50):  # clients that leave at once
            Client(daemon.socket).tell(**attach)
        saving.s.settimeout(30)
        told = refusal(saving.hear)
        took = time.monotonic() - asked
        assert has(told["text"] + told["field"], "state_dir", "not answered")
        assert took > 19, "the save fails after 20 s"
        refusal(lambda: save(saving, "later"))
        assert time.monotonic() - asked - took < 19, "the next one fails at once"
        assert saving.next(SOON) is not None, "its session continues"
        told = refusal(by_tag.hear)
        assert told["passing"] == 1 and "state_dir" in told["text"], "an attach at a snapshot"
        assert metric(daemon.socket, "tokend_state_dir_busy_seconds") > 19
        jobs = metric(daemon.socket, "tokend_state_dir_jobs")
        assert 7 <= jobs < 20, "who left waits no more"
        assert daemon.said("has not answered for 20 s")
        scene.attach("new6")
        injected(51)
    waited = [f"{scene.directory}/train/new{n}/.run.cursor" for n in range(1, 7)]
    assert wait_for(lambda: all(map(os.path.exists, waited))), "what waited is written"
    assert os.path.exists(save(saving, "late")["path"])
    assert witness.step(100), "the running session did not notice"
    with contextlib.closing(scene.hang()) as disk:
        saving.tell(op="checkpoint", tag="last", cursor=saving.feed["cursor"])
        wait_for(disk.held, SOON)
        began = time.monotonic()
        assert daemon.stop() == 0, "SIGTERM while it hangs"
        assert time.monotonic() - began < 10
        daemon.start()
        assert scene.attach("again").next(SOON) is not None, "a start while it hangs"
        injected(51, 2)
        daemon.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")
def test_one_user_cannot_use_up_the_jobs_that_may_wait(place):
    scene = Scene(place, allow_uids=[GREEDY, POLITE])
    logged = lambda run: os.path.exists(f"{scene.directory}/train/{run}/.run.cursor")
    client_of(scene.daemon, GREEDY).attach(run="greedy").close()
    assert wait_for(lambda: logged(f"greedy@{GREEDY}"))
    with contextlib.closing(scene.hang()) as disk:
        for _ in range(ATTACHES):
            client_of(scene.daemon, GREEDY).attach(run="greedy").close()
        assert scene.daemon.said(f"too many of uid {GREEDY} wait for state_dir")
        assert disk.held(), "state_dir hangs"
        polite = client_of(scene.daemon, POLITE).attach(run="polite")
        assert polite.next(SOON) is not None, "another user attaches, and gets batches"
    assert wait_for(lambda: logged(f"polite@{POLITE}")), scene.daemon.log()[-1000:]
    injected(51, ATTACHES)
    polite.close()


def test_two_daemons_share_state_dir(place):
    """Both save one tag all the time: each snapshot is whole."""
    scene = Scene(place)
    one, first = scene.daemon, scene.attach("shared")
    cursors = [moved(place, first.feed["cursor"], 8 * n) for n in range(8)]
    path = save(first, "same")["path"]
    two = Daemon(place, scene.config, socket_path=place.file("two.sock"))

    def save_all(daemon, rank):
        client = Client(daemon.socket).attach(run="shared", rank=rank, world=2)
        for n in itertools.takewhile(lambda n: n < 300 or reads <= 1000, itertools.count()):
            client.ask(op="checkpoint", tag="same", cursor=cursors[(n + rank) % 8])
        client.close()

    savers = [threading.Thread(target=save_all, args=a) for a in ((one, 0), (two, 1))]
    reads = 0
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        assert open(path, "rb").read() in [first.feed["cursor"], *cursors]
        reads += 1
    for saver in savers:
        saver.join()
    injected(50, 600)
    first.close()
    assert (one.stop(), two.stop()) == (0, 0)
