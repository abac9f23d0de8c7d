"""A run belongs to the user who began it. Only that user, root and admin_uids may attach to it,
save its snapshots or change it.
"""

import os

import pytest

from lib import TOKCTL, Daemon, client_of, datasets, has, refusal, run, status
from lib.cat import moved
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")

OWNER, STRANGER, ADMIN = 1001, 1002, 1003


@pytest.fixture(scope="module")
def daemon(shared):
    shared.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    users = {"allow_uids": [OWNER, STRANGER], "admin_uids": [ADMIN]}
    daemon = Daemon(shared, shared.config(streams=streams, **users))
    yield daemon
    assert daemon.stop() == 0


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


def test_only_the_owner_uses_a_named_run(daemon):
    for uid in (0, ADMIN):  # they own no run
        attach(daemon, uid, run="job").close()
    owner = attach(daemon, OWNER, run="job")
    cursor = owner.feed["cursor"]
    path = owner.ask(op="checkpoint", tag="best", cursor=cursor)["path"]
    mixes = os.path.join(os.path.dirname(path), "mixes")
    before, logged = open(path, "rb").read(), sorted(os.listdir(mixes))
    for start in ({}, {"cursor": moved(daemon.place, cursor, 64)}):
        told = refusal(lambda start=start: attach(daemon, STRANGER, run="job", **start))
        assert has(told, "run job belongs to uid 1001", "1002")
    assert sorted(os.listdir(mixes)) == logged, "nor change its mix log"
    other = attach(daemon, STRANGER, run="own", tag="job/best")
    assert other.feed["cursor"] == before, "but it may read a snapshot, and begin a run with it"
    told = refusal(lambda: drain(daemon, STRANGER, run="job"))
    assert has(told, "run job belongs to someone else", "1002")
    assert daemon.said(f"request of uid {STRANGER} (pid {os.getpid()}) refused")
    injected(48, 3)
    assert drain(daemon, STRANGER)[1]["run"] == "own", "without a name: the only run of its user"
    for uid in (OWNER, ADMIN, 0):
        operator, asked = drain(daemon, uid, run="job")
        assert asked["sessions"] == 1, f"uid {uid} may drain it"
        assert daemon.said(f"of uid {uid} (pid {os.getpid()}) for 1 sessions of run job")
        assert operator.ask(op="cancel", number=asked["number"])["fetched"] == 0
        peer = attach(daemon, uid, run="job", peer=1)
        assert os.path.exists(peer.ask(op="checkpoint", tag=f"by{uid}", cursor=cursor)["path"])
        peer.close()
    assert ctl(daemon, STRANGER, "status")[0] == 0, "every user sees its status"
    code, err = ctl(daemon, STRANGER, "drain", "train", "--run", "job")
    assert code == 1 and "belongs to someone else" in err
    owner.close()
    other.close()
    daemon.kill()
    daemon.start()
    told = refusal(lambda: attach(daemon, STRANGER, run="job"))
    assert has(told, "run job belongs to uid 1001"), "a new daemon knows the owners"


def test_unnamed_runs_of_two_users_are_separate(daemon):
    owner = attach(daemon, OWNER, run="default")
    second = attach(daemon, STRANGER, run="default")
    theirs = f"default@{STRANGER}"
    assert (owner.feed["run"], second.feed["run"]) == ("default", theirs)
    path = second.ask(op="checkpoint", tag="mine", cursor=second.feed["cursor"])["path"]
    assert path.endswith(f"/train/{theirs}/mine.cursor"), "with separate snapshots"
    again = attach(daemon, STRANGER, run="default", tag="mine", peer=1)
    assert again.feed["cursor"] == second.feed["cursor"], "which it finds again"
    _, asked = drain(daemon, STRANGER, run="default")
    assert (asked["run"], asked["sessions"]) == (theirs, 2), "requests of that user go to it"
    _, asked = drain(daemon, OWNER)
    assert (asked["run"], asked["sessions"]) == ("default", 1)
    told = refusal(lambda: attach(daemon, OWNER, run=theirs))
    assert has(told, "uid 1002's unnamed run"), "no other user may use that name"
    assert {s["run"] for s in status(daemon.socket)[0]} == {"default", theirs}
    cat = "cat train --batches 3 --micro 2 --rank 0 --world 1".split()
    second.close()
    again.close()
    assert ctl(daemon, STRANGER, *cat) == (0, ""), "libtokend uses the name in the answer"
    owner.close()
