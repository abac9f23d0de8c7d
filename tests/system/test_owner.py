"""A run belongs to its user: only that user, root and admin_uids may attach to it, save or load its
snapshots, or change it.
"""

import os

import pytest

from lib import TOKCTL, Client, Daemon, client_of, datasets, has, refusal, run
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")

OWNER, STRANGER, ADMIN = 1001, 1002, 1003


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    users = {"allow_uids": [OWNER, STRANGER], "admin_uids": [ADMIN]}
    return Daemon(shared, shared.config(streams=streams, **users))


def attach(daemon, uid, **keys):
    return client_of(daemon, uid).attach(**keys)


def drain(daemon, uid, **keys):
    """(the operator's connection, the answer)"""
    operator = client_of(daemon, uid)
    return operator, operator.ask(op="request", stream="train", kind="drain", args="", **keys)


def ctl(daemon, uid, *arguments):
    more = {"user": uid, "group": uid, "extra_groups": []}
    code, _, err = run(TOKCTL, *arguments, "--socket", daemon.socket, **more)
    return code, err


def test_a_run_belongs_to_its_user(daemon):
    """JOB is another run for each user, and only root and admin_uids use someone else's."""
    owner, stranger = (attach(daemon, uid, run="job") for uid in (OWNER, STRANGER))
    theirs = f"job@{OWNER}"
    assert [c.feed["run"] for c in (owner, stranger)] == [theirs, f"job@{STRANGER}"]
    cursor = owner.feed["cursor"]
    path = owner.ask(op="checkpoint", tag="best", cursor=cursor)["path"]
    assert path.endswith(f"/train/{theirs}/best.cursor")
    for more in ({"run": theirs}, {"run": "own", "tag": f"{theirs}/best"}):
        told = refusal(lambda more=more: attach(daemon, STRANGER, **more))
        assert has(told, f"{theirs} is a run of uid {OWNER}", str(STRANGER))
    for tag in ("best", "job/best"):
        told = refusal(lambda tag=tag: attach(daemon, STRANGER, run="own", tag=tag))
        assert has(told, "has no snapshot best")
    told = refusal(lambda: drain(daemon, STRANGER, run=theirs))
    assert has(told, f"is a run of uid {OWNER}")
    assert daemon.said(f"request of uid {STRANGER} (pid {os.getpid()}) refused")
    injected(48, 5)
    assert drain(daemon, STRANGER)[1]["run"] == f"job@{STRANGER}", "its only run"
    for uid, name in ((OWNER, "job"), (OWNER, theirs), (ADMIN, theirs), (0, theirs)):
        operator, asked = drain(daemon, uid, run=name)
        assert (asked["run"], asked["sessions"]) == (theirs, 1), f"uid {uid} may drain it"
        assert operator.ask(op="cancel", number=asked["number"])["fetched"] == 0
        peer = attach(daemon, uid, run=name, peer=1, tag=f"{name}/best")
        assert os.path.exists(peer.ask(op="checkpoint", tag=f"by{uid}", cursor=cursor)["path"])
        peer.close()
    assert ctl(daemon, STRANGER, "status")[0] == 0, "every user sees its status"
    code, err = ctl(daemon, STRANGER, "drain", "train", "--run", theirs)
    assert code == 1 and "is a run of uid" in err
    cat = "cat train --batches 3 --micro 2 --rank 0 --world 1".split()
    assert ctl(daemon, STRANGER, *cat) == (0, ""), "libtokend uses the name in the answer"
    owner.close()
    stranger.close()


def test_a_user_does_not_reach_a_run_of_root(daemon):
    root = Client(daemon.socket).attach(run="prod")
    assert root.feed["run"] == "prod"
    path = root.ask(op="checkpoint", tag="latest", cursor=root.feed["cursor"])["path"]
    assert path.endswith("/train/prod/latest.cursor")
    attacker = attach(daemon, STRANGER, run="prod")
    assert attacker.feed["run"] == f"prod@{STRANGER}"
    _, asked = drain(daemon, STRANGER, run="prod")
    assert (asked["run"], asked["sessions"]) == (f"prod@{STRANGER}", 1)
    attacker.ask(op="checkpoint", tag="new", cursor=attacker.feed["cursor"])
    assert has(refusal(lambda: Client(daemon.socket).attach(run="prod", tag="new")), "no snapshot")
    root.tell(op="pending")
    assert root.hear()["number"] == 0, "no request of another user"
    root.close()
    attacker.close()


def test_a_long_name_leaves_room_for_the_user(daemon):
    attach(daemon, STRANGER, run=53 * "r").close()
    assert has(refusal(lambda: attach(daemon, STRANGER, run=54 * "r")), "54 bytes", "at most 53")
