#!/usr/bin/env python3
"""A run belongs to the user who began it. Nobody else but root and admin_uids attaches to it, saves its tags or changes it."""

import os
import subprocess

from harness import (
    TOKCTL,
    Checks,
    Client,
    Daemon,
    Place,
    Refused,
    Witness,
    client_of,
    datasets,
    rows_at,
    run,
    status,
    wait_for,
    with_parent,
)

OWNER, STRANGER, ADMIN = 1001, 1002, 1003


def attach(daemon, uid, **keys):
    return client_of(daemon, uid).attach(**keys)


def refusal(call):
    try:
        return f"not refused: {call()}"
    except Refused as e:
        return str(e)


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


def named(checks, place, daemon, config):
    mixes = place.file("state/train/job/mixes/x")[:-2]
    root = attach(daemon, 0, run="job")
    root.ask(op="checkpoint", tag="roots", cursor=root.feed["cursor"])
    root.close()
    admin = attach(daemon, ADMIN, run="job")
    admin.ask(op="checkpoint", tag="admins", cursor=admin.feed["cursor"])
    checks.ok(
        "an admin who comes first does not own the run",
        not os.path.exists(place.file("state/train/job/.owner")),
    )
    admin.close()
    owner = attach(daemon, OWNER, run="job")
    cursor = owner.feed["cursor"]
    checks.equal(
        "the first user but root and admins owns the run",
        open(place.file("state/train/job/.owner")).read(),
        f"{OWNER}\n",
    )
    path = owner.ask(op="checkpoint", tag="best", cursor=cursor)["path"]
    before, logged = open(path, "rb").read(), sorted(os.listdir(mixes))
    told = refusal(lambda: attach(daemon, STRANGER, run="job"))
    checks.has("another user may not attach", told, "run job belongs to uid 1001", "1002")
    told = refusal(lambda: attach(daemon, STRANGER, run="job", cursor=moved(place, cursor)))
    checks.has("  nor at another position", told, "run job belongs to uid 1001")
    checks.equal("  the log of mixes is as it was", sorted(os.listdir(mixes)), logged)
    other = attach(daemon, STRANGER, run="own", tag="job/best")
    checks.ok("  but read a snapshot, and begin a run with it", other.feed["cursor"] == before)
    for uid, run_, words in (
        (STRANGER, "job", ["run job belongs to someone else", "1002"]),
        (STRANGER, "default", ["no session of run"]),
    ):
        operator = client_of(daemon, uid)
        told = refusal(
            lambda o=operator, r=run_: o.ask(
                op="request", stream="train", run=r, kind="drain", args=""
            )
        )
        checks.has(f"  nor drain it, named {run_}", told, *words)
        operator.close()
    asked = client_of(daemon, STRANGER).ask(op="request", stream="train", kind="drain", args="")
    checks.equal(
        "  a request without a run is for the only one that is its user's", asked["run"], "own"
    )
    for uid in (OWNER, ADMIN, 0):
        operator = client_of(daemon, uid)
        asked = operator.ask(op="request", stream="train", run="job", kind="drain", args="")
        checks.ok(f"uid {uid} may drain it", asked["sessions"] == 1, asked)
        words = f"of uid {uid} (pid {os.getpid()}) to 1 sessions of run job"
        checks.ok(
            "  the log says who asked", wait_for(lambda w=words: w in daemon.log()), daemon.log()
        )
        checks.equal(
            "  and takes it back", operator.ask(op="cancel", number=asked["number"])["fetched"], 0
        )
        operator.close()
    for uid in (ADMIN, 0):
        saving = attach(daemon, uid, run="job", peer=1)
        saved = saving.ask(op="checkpoint", tag=f"by{uid}", cursor=cursor)
        checks.ok(f"uid {uid} may save in it", os.path.exists(saved["path"]))
        saving.close()
    checks.equal("its owner stays", open(place.file("state/train/job/.owner")).read(), f"{OWNER}\n")
    code, err = ctl(daemon, STRANGER, "status")
    checks.ok("everybody sees its status", code == 0, err)
    code, err = ctl(daemon, STRANGER, "drain", "train", "--run", "job")
    checks.ok("tokctl drain says why not", code == 1 and "belongs to someone else" in err, err)
    owner.close()
    other.close()


def unnamed(checks, place, daemon, config):
    owner = attach(daemon, OWNER, run="default")
    second = attach(daemon, STRANGER, run="default")
    checks.equal("an unnamed run of the first user", owner.feed["run"], "default")
    checks.equal("  of a later one", second.feed["run"], f"default@{STRANGER}")
    path = second.ask(op="checkpoint", tag="mine", cursor=second.feed["cursor"])["path"]
    checks.ok(
        "  its snapshots are apart", path.endswith(f"/train/default@{STRANGER}/mine.cursor"), path
    )
    again = attach(daemon, STRANGER, run="default", tag="mine", peer=1)
    checks.equal("  and found again", again.feed["cursor"], second.feed["cursor"])
    operator = client_of(daemon, STRANGER)
    asked = operator.ask(op="request", stream="train", run="default", kind="drain", args="")
    checks.equal(
        "  its operator's request goes there",
        (asked["run"], asked["sessions"]),
        (f"default@{STRANGER}", 2),
    )
    first = client_of(daemon, OWNER)
    asked = first.ask(op="request", stream="train", kind="drain", args="")
    checks.equal(
        "  and does not keep the first one's out", (asked["run"], asked["sessions"]), ("default", 1)
    )
    told = refusal(lambda: attach(daemon, OWNER, run=f"default@{STRANGER}"))
    checks.has("  nobody takes that name", told, "uid 1002's unnamed run")
    runs = {s["run"] for s in status(daemon.socket)[0]}
    checks.ok("  status names them", {"default", f"default@{STRANGER}"} <= runs, runs)
    for c in (owner, second, again, operator, first):
        c.close()


def restart(checks, place, daemon, config):
    daemon.kill()
    daemon.start()
    told = refusal(lambda: attach(daemon, STRANGER, run="job"))
    checks.has("a daemon that is new knows the owners", told, "run job belongs to uid 1001")
    checks.equal(
        "  also of unnamed runs",
        attach(daemon, STRANGER, run="default").feed["run"],
        f"default@{STRANGER}",
    )
    os.unlink(place.file("state/train/job/.owner"))
    daemon.kill()
    daemon.start()
    attach(daemon, STRANGER, run="job").close()
    checks.equal(
        "a run of an earlier version is whose who comes first",
        open(place.file("state/train/job/.owner")).read(),
        f"{STRANGER}\n",
    )


def two_daemons(checks, place, daemon, config):
    """What another daemon has written since ours was started is found when we write."""
    other = Daemon(place, config, socket_path=place.file("other.sock"))
    attach(other, OWNER, run="later").close()
    told = refusal(lambda: attach(daemon, STRANGER, run="later"))
    checks.has("a run begun by another daemon's user", told, "uid 1001")
    witness = Witness(daemon, rows_at(config, "train", 0, 200), run="mine")
    checks.ok("  the daemon goes on", witness.step(50))
    checks.equal("  exit 0", other.stop(), 0)


def library(checks, place, daemon, config):
    """libtokend attaches as an unnamed run and goes on by the name it is given."""
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
    checks.ok("tokctl cat of a later user", code == 0, err)
    checks.ok(
        "  is an unnamed run of its own",
        os.path.exists(place.file(f"state/train/default@{STRANGER}/mixes/000001.cursor")),
    )
    holder.close()
    begun.close()


def moved(place, cursor):
    here, there = place.file("cursors/here"), place.file("cursors/there")
    with open(here, "wb") as f:
        f.write(cursor)
    code, _, err = run(TOKCTL, "cursor", "seek", here, "--to", 64, "-o", there)
    if code:
        raise RuntimeError(err)
    return open(there, "rb").read()


def main():
    checks = Checks()
    if os.geteuid() != 0:
        print("skipped: needs root to become several users")
        raise SystemExit(77)
    with Place() as place:
        config = config_of(place, "tokend.yaml")
        daemon = Daemon(place, config)
        for part in (named, unnamed, restart, two_daemons, library):
            part(checks, place, daemon, config)
        checks.equal("exit 0", daemon.stop(), 0)
    checks.exit()


main()
