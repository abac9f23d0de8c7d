"""A state_dir that hangs, that two daemons share, or in which a daemon was killed.

Training does not depend on it: only clients that save or load a snapshot wait, with a deadline.
"""

import os
import re
import threading
import time
import urllib.request

import pytest

from lib import (
    Client,
    Daemon,
    Refused,
    Witness,
    client_of,
    datasets,
    free_port,
    has,
    rows_at,
    wait_for,
)
from lib.cat import moved
from lib.injected import injected
from lib.fuse import hanging

SOON = 5.0  # seconds; a wait for a state_dir that hangs takes at least 20


def config_of(place, name="tokend.yaml", **keys):
    place.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    return place.config(name, streams=streams, **keys)


def refusal(call):
    try:
        call()
    except Refused as e:
        return e.packet
    return {}


def metric(address, name):
    page = urllib.request.urlopen(f"http://{address}/metrics", timeout=SOON).read().decode()
    found = re.search(rf"^{name} (\S+)$", page, re.M)
    return float(found[1]) if found else None


def attach_quickly(daemon, run_):
    """A session, or None if that takes longer than SOON."""
    client = Client(daemon.socket)
    client.s.settimeout(SOON)
    try:
        return client.attach(run=run_)
    except TimeoutError:
        client.close()
        return None


# ---- state_dir hangs ----


@pytest.mark.tsan  # its thread hangs when the daemon ends
def test_training_continues_while_state_dir_hangs(place):
    address = f"127.0.0.1:{free_port()}"
    config = config_of(
        place,
        "hang.yaml",
        socket=place.file("hang.sock"),
        state_dir=place.file("hang/x")[:-2],
        metrics=address,
    )
    daemon = Daemon(place, config)
    witness = Witness(daemon, rows_at(config, "train", 0, 900), run="before")
    witness.client.ask(op="checkpoint", tag="early", cursor=witness.client.feed["cursor"])
    directory = place.file("hang/x")[:-2]
    hang = hanging(directory, directory)
    hang.hang()
    try:
        saving = Client(daemon.socket).attach(run="before", rank=0, peer=1)
        saving.tell(op="checkpoint", tag="late", cursor=saving.feed["cursor"])
        asked = time.monotonic()
        assert wait_for(hang.held, SOON), "hang: a save has reached the file system"
        clients = [attach_quickly(daemon, f"new{n}") for n in range(6)]
        assert all(clients), ("  6 sessions attach meanwhile", [c is not None for c in clients])
        assert all(c and c.next(SOON) is not None for c in clients), "  and get batches"
        assert witness.step(100), "  a running session continues"
        by_tag = Client(daemon.socket)
        by_tag.tell(
            op="attach",
            stream="train",
            run="before",
            rank=0,
            world=1,
            micro=2,
            peer=0,
            slots=4,
            tag="early",
        )
        saving.s.settimeout(30)
        told = refusal(saving.hear)
        took = time.monotonic() - asked
        assert has(told.get("text", "") + told.get("field", ""), "state_dir", "not answered"), (
            "  the save fails"
        )
        assert took > 19, ("  after 20 s", took)
        told = refusal(
            lambda: saving.ask(op="checkpoint", tag="later", cursor=saving.feed["cursor"])
        )
        assert told and time.monotonic() - asked - took < 19, ("  the next one fails at once", told)
        assert saving.next(SOON) is not None, "  its session continues"
        told = refusal(by_tag.hear)
        assert told.get("passing") == 1 and "state_dir" in told["text"], (
            "  an attach at a snapshot gets a passing error",
            told,
        )
        assert metric(address, "tokend_state_dir_busy_seconds") > 19, "  the metrics show it"
        assert metric(address, "tokend_state_dir_jobs") >= 7, "  and how many jobs wait"
        assert daemon.said("has not answered for 20 s"), "  the log says so"
        assert attach_quickly(daemon, "new6"), "  more sessions attach, at once"
        injected(51)
    finally:
        hang.close()
    assert daemon.said("answers again"), ("the log says that it answers again", daemon.log())
    mixes = [place.file(f"hang/train/new{n}/mixes/000001.cursor") for n in range(1, 7)]
    assert wait_for(lambda: all(map(os.path.exists, mixes))), (
        "  the waiting entries are written",
        mixes,
    )
    saved = saving.ask(op="checkpoint", tag="late", cursor=saving.feed["cursor"])
    assert os.path.exists(saved["path"]), "  a save succeeds"
    assert witness.step(100), "  the running session did not notice"
    hang = hanging(directory, directory)
    hang.hang()
    try:
        saving.tell(op="checkpoint", tag="last", cursor=saving.feed["cursor"])
        wait_for(hang.held, SOON)
        began = time.monotonic()
        assert daemon.stop() == 0, "SIGTERM while it hangs: exit 0"
        assert time.monotonic() - began < 10, "  within 10 s"
        injected(51)
        daemon.start()
        assert attach_quickly(daemon, "again"), "a start while it hangs: a session attaches"
        assert wait_for(lambda: "has not answered" in daemon.log()), "  the log says so"
        injected(51)
        daemon.kill()
    finally:
        hang.close()


GREEDY, POLITE = 1001, 1002
ATTACHES = 1100  # more than entries of mix logs that may wait


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")
def test_one_user_cannot_use_up_the_waiting_entries_of_mix_logs(place):
    directory = place.file("flood/x")[:-2]
    config = config_of(
        place,
        "flood.yaml",
        socket=place.file("flood.sock"),
        state_dir=directory,
        allow_uids=[GREEDY, POLITE],
    )
    daemon = Daemon(place, config)
    client_of(daemon, GREEDY).attach(run="greedy").close()
    assert wait_for(lambda: os.path.exists(f"{directory}/train/greedy/mixes/000001.cursor"))
    hang = hanging(directory, directory)
    hang.hang()
    try:
        for _ in range(ATTACHES):
            client_of(daemon, GREEDY).attach(run="greedy").close()
        assert hang.held(), "state_dir hangs"
        polite = client_of(daemon, POLITE).attach(run="polite")
        assert polite.next(SOON) is not None, "another user attaches, and gets batches"
        assert daemon.said(f"and 256 calls of uid {GREEDY}")
    finally:
        hang.close()
    entry = f"{directory}/train/polite/mixes/000001.cursor"
    assert wait_for(lambda: os.path.exists(entry)), (
        "  and its entry is written afterwards",
        daemon.log()[-1000:],
    )
    injected(51, ATTACHES)
    polite.close()
    assert daemon.stop() == 0, "  exit 0"


# ---- two daemons share state_dir ----


def save_all(daemon, cursors, count, rank):
    client = Client(daemon.socket).attach(run="shared", rank=rank, world=2)
    for n in range(count):
        client.ask(op="checkpoint", tag="same", cursor=cursors[(n + rank) % len(cursors)])
    client.close()


def test_two_daemons_share_state_dir(place):
    config = config_of(place, "one.yaml", socket=place.file("one.sock"))
    one = Daemon(place, config)
    first = Client(one.socket).attach(run="shared")
    cursors = [first.feed["cursor"]] + [
        moved(place, first.feed["cursor"], 8 * n) for n in range(1, 8)
    ]
    first.ask(op="checkpoint", tag="same", cursor=cursors[0])
    two = Daemon(place, config, socket_path=place.file("two.sock"))
    directory = place.file("state/train/shared/x")[:-2]
    reads = torn = lost = 0
    savers = [
        threading.Thread(target=save_all, args=(d, cursors, 300, r))
        for r, d in enumerate([one, two])
    ]
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        for name in ("same.cursor", "same.former.cursor"):
            try:
                torn += open(f"{directory}/{name}", "rb").read() not in cursors
                reads += 1
            except FileNotFoundError:
                lost += name == "same.cursor"
    for saver in savers:
        saver.join()
    assert reads > 1000, ("two daemons save one tag: reads", reads)
    assert torn == 0, "  no snapshot is torn"
    assert lost == 0, "  none is missing"
    injected(50, 600)
    assert "snapshot same" not in re.sub("snapshot same of stream.*", "", one.log() + two.log()), (
        "  no daemon failed to save"
    )
    left = [
        n for n in os.listdir(directory) if n not in ("same.cursor", "same.former.cursor", "mixes")
    ]
    assert left == [], "  nothing else is left"
    for daemon, other in ((one, two), (two, one)):
        said = daemon.said("another tokend")
        assert len(said) == 1 and f"pid {other.pid}" in said[0], (
            "  one line names the other",
            said,
        )
    first.close()
    one.stop()
    two.stop()


# ---- a daemon was killed while it wrote there ----


def test_left_over_files_are_removed(place):
    config = config_of(
        place, "left.yaml", socket=place.file("left.sock"), state_dir=place.file("left/x")[:-2]
    )
    daemon = Daemon(place, config)
    client = Client(daemon.socket).attach(run="job")
    path = client.ask(op="checkpoint", tag="a", cursor=client.feed["cursor"])["path"]
    daemon.kill()
    client.close()
    run_dir = os.path.dirname(path)
    names = [
        ".a.new",
        ".a.link",
        ".0123456789abcdef.new",
        "mixes/.0123456789abcdef.new",
        "mixes/.fedcba9876543210.new",
    ]
    for name in names:
        with open(f"{run_dir}/{name}", "wb") as f:
            f.write(b"half of a cursor")
    kept = sorted(os.listdir(f"{run_dir}/mixes"))[-1:]
    daemon.start()
    gone = wait_for(lambda: not any(os.path.exists(f"{run_dir}/{name}") for name in names), SOON)
    assert gone, (
        "temporary files of a killed daemon are removed",
        [n for n in names if os.path.exists(f"{run_dir}/{n}")],
    )
    assert (
        sorted(os.listdir(run_dir))[-2:] == ["a.cursor", "mixes"]
        and os.listdir(f"{run_dir}/mixes") == kept
    ), "  and nothing else"
    assert daemon.said("removed 5 temporary files"), ("  and one line says so", daemon.log())
    assert daemon.stop() == 0, "  exit 0"
