"""A run belongs to the user who began it. Only that user, root and admin_uids may attach to it,
save its snapshots or change it.
"""

import os
import subprocess

import pytest

from lib import (
    TOKCTL,
    Client,
    Daemon,
    Witness,
    client_of,
    datasets,
    has,
    refusal,
    rows_at,
    status,
    with_parent,
)
from lib.cat import moved
from lib.injected import injected

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


OWNER, STRANGER, ADMIN = 1001, 1002, 1003


def attach(daemon, uid, **keys):
    return client_of(daemon, uid).attach(**keys)


def config_of(place, name, **keys):
    place.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    return place.config(
        name, streams=streams, allow_uids=[OWNER, STRANGER], admin_uids=[ADMIN], **keys
    )


def ctl(daemon, uid, *arguments):
    def become():
        with_parent()
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    done = subprocess.run(
        [TOKCTL, *arguments, "--socket", daemon.socket],
        capture_output=True,
        preexec_fn=become,
        timeout=60,
    )
    return done.returncode, done.stderr.decode()


def test_only_the_owner_uses_a_named_run(shared, daemon):
    place = shared
    mixes = place.file("state/train/job/mixes/x")[:-2]
    root = attach(daemon, 0, run="job")
    root.ask(op="checkpoint", tag="roots", cursor=root.feed["cursor"])
    root.close()
    admin = attach(daemon, ADMIN, run="job")
    admin.ask(op="checkpoint", tag="admins", cursor=admin.feed["cursor"])
    assert not os.path.exists(place.file("state/train/job/.owner")), (
        "an admin who attaches first does not own the run"
    )
    admin.close()
    owner = attach(daemon, OWNER, run="job")
    cursor = owner.feed["cursor"]
    assert open(place.file("state/train/job/.owner")).read() == (f"{OWNER}\n"), (
        "the first user except root and admins owns the run"
    )
    path = owner.ask(op="checkpoint", tag="best", cursor=cursor)["path"]
    before, logged = open(path, "rb").read(), sorted(os.listdir(mixes))
    told = refusal(lambda: attach(daemon, STRANGER, run="job"))
    assert has(told, "run job belongs to uid 1001", "1002"), "another user may not attach"
    told = refusal(lambda: attach(daemon, STRANGER, run="job", cursor=moved(place, cursor, 64)))
    assert has(told, "run job belongs to uid 1001"), "  nor at another position"
    assert sorted(os.listdir(mixes)) == logged, "  the mix log is unchanged"
    injected(48, 2)
    other = attach(daemon, STRANGER, run="own", tag="job/best")
    assert other.feed["cursor"] == before, "  but may read a snapshot, and begin a run with it"
    for uid, run_, words in (
        (STRANGER, "job", ["run job belongs to someone else", "1002"]),
        (STRANGER, "default", ["run default is not attached"]),
    ):
        operator = client_of(daemon, uid)
        told = refusal(
            lambda o=operator, r=run_: o.ask(
                op="request", stream="train", run=r, kind="drain", args=""
            )
        )
        assert has(told, *words), f"  nor drain it, by the name {run_}"
        named = f"request of uid {uid} (pid {os.getpid()}) refused"
        assert daemon.said(named), "  the log says who asked"
        injected(48)
        operator.close()
    asked = client_of(daemon, STRANGER).ask(op="request", stream="train", kind="drain", args="")
    assert asked["run"] == "own", "  a request without a run is for the only run of its user"
    for uid in (OWNER, ADMIN, 0):
        operator = client_of(daemon, uid)
        asked = operator.ask(op="request", stream="train", run="job", kind="drain", args="")
        assert asked["sessions"] == 1, (f"uid {uid} may drain it", asked)
        words = f"of uid {uid} (pid {os.getpid()}) for 1 sessions of run job"
        assert daemon.said(words), ("  the log says who asked", daemon.log())
        assert operator.ask(op="cancel", number=asked["number"])["fetched"] == 0, (
            "  and it can be taken back"
        )
        operator.close()
    for uid in (ADMIN, 0):
        saving = attach(daemon, uid, run="job", peer=1)
        saved = saving.ask(op="checkpoint", tag=f"by{uid}", cursor=cursor)
        assert os.path.exists(saved["path"]), f"uid {uid} may save snapshots"
        saving.close()
    assert open(place.file("state/train/job/.owner")).read() == (f"{OWNER}\n"), "its owner stays"
    code, err = ctl(daemon, STRANGER, "status")
    assert code == 0, ("every user sees its status", err)
    code, err = ctl(daemon, STRANGER, "drain", "train", "--run", "job")
    assert code == 1 and "belongs to someone else" in err, (
        "tokctl drain says why it is refused",
        err,
    )
    owner.close()
    other.close()


def test_unnamed_runs_of_two_users_are_separate(shared, daemon):
    owner = attach(daemon, OWNER, run="default")
    second = attach(daemon, STRANGER, run="default")
    assert owner.feed["run"] == "default", "the first user's unnamed run is called default"
    assert second.feed["run"] == (f"default@{STRANGER}"), "  a later user's has its uid"
    path = second.ask(op="checkpoint", tag="mine", cursor=second.feed["cursor"])["path"]
    assert path.endswith(f"/train/default@{STRANGER}/mine.cursor"), (
        "  with separate snapshots",
        path,
    )
    again = attach(daemon, STRANGER, run="default", tag="mine", peer=1)
    assert again.feed["cursor"] == second.feed["cursor"], "  which it finds again"
    operator = client_of(daemon, STRANGER)
    asked = operator.ask(op="request", stream="train", run="default", kind="drain", args="")
    assert (asked["run"], asked["sessions"]) == (f"default@{STRANGER}", 2), (
        "  requests of that user go to it"
    )
    first = client_of(daemon, OWNER)
    asked = first.ask(op="request", stream="train", kind="drain", args="")
    assert (asked["run"], asked["sessions"]) == ("default", 1), (
        "  and do not block the first user's"
    )
    told = refusal(lambda: attach(daemon, OWNER, run=f"default@{STRANGER}"))
    assert has(told, "uid 1002's unnamed run"), "  no other user may use that name"
    runs = {s["run"] for s in status(daemon.socket)[0]}
    assert {"default", f"default@{STRANGER}"} <= runs, ("  status names them", runs)
    for c in (owner, second, again, operator, first):
        c.close()


def test_owners_survive_a_restart(shared, daemon):
    place = shared
    daemon.kill()
    daemon.start()
    told = refusal(lambda: attach(daemon, STRANGER, run="job"))
    assert has(told, "run job belongs to uid 1001"), "a new daemon knows the owners"
    assert attach(daemon, STRANGER, run="default").feed["run"] == (f"default@{STRANGER}"), (
        "  also of unnamed runs"
    )
    os.unlink(place.file("state/train/job/.owner"))
    daemon.kill()
    daemon.start()
    attach(daemon, STRANGER, run="job").close()
    assert open(place.file("state/train/job/.owner")).read() == (f"{STRANGER}\n"), (
        "a run without an owner, of an earlier version, belongs to the first user"
    )


def test_owners_are_shared_by_two_daemons(shared, daemon):
    """An owner that another daemon has written is found at the next write."""
    place, config = shared, daemon.config
    other = Daemon(place, config, socket_path=place.file("other.sock"))
    attach(other, OWNER, run="later").close()
    told = refusal(lambda: attach(daemon, STRANGER, run="later"))
    assert has(told, "uid 1001"), "a run that another daemon's user began"
    witness = Witness(daemon, rows_at(config, "train", 0, 200), run="mine")
    assert witness.step(50), "  the daemon serves on"
    assert other.stop() == 0, "  exit 0"


def test_libtokend_uses_the_name_of_an_unnamed_run(shared, daemon):
    """libtokend attaches as an unnamed run, and uses the name that the daemon returns."""
    place = shared
    holder = attach(daemon, OWNER, run="default")
    begun = Client(daemon.socket)
    code, err = ctl(
        daemon,
        STRANGER,
        "cat",
        "train",
        "--batches",
        "3",
        "--micro",
        "2",
        "--rank",
        "0",
        "--world",
        "1",
    )
    assert code == 0, ("tokctl cat of a second user", err)
    assert os.path.exists(place.file(f"state/train/default@{STRANGER}/mixes/000001.cursor")), (
        "  has an unnamed run of its own"
    )
    holder.close()
    begun.close()


@pytest.fixture(scope="module")
def daemon(shared):
    daemon = Daemon(shared, config_of(shared, "tokend.yaml"))
    yield daemon
    assert daemon.stop() == 0, "exit 0"
