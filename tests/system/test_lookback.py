"""`tokctl plan --run` and `when --run` reproduce the order of past runs from the daemon's mix log.

The runs are real: `tokctl cat` attaches under one run name, with cursors edited in between, as
trainers do. Its tokens, the order by the log, and the order of the independent implementation
tests/lib/order_reference.py must be equal.
"""

import json
import os

import pytest
from lookback import PLANNED, SEQ_LEN, Scene, run_with_mixes

from lib import TOKCTL, Client, Daemon, has, run
from lib import order_reference as ref


@pytest.fixture(scope="module")
def scene(shared):
    """A run with several mixes. `first` is its mix log."""
    scene = Scene(shared)
    scene.first = run_with_mixes(scene)
    yield scene
    assert scene.daemon.stop() == 0, "exit 0"


def test_restart_undoes_later_mixes(scene):
    """A restart from an older checkpoint with other weights undoes the mixes after it."""
    other = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    other.mix(3072, [0, 1])
    scene.ctl(
        "cursor", "mix", scene.file("at1200"), "--at", 3072, "code=1", "-o", scene.file("fork")
    )
    got = scene.train("fork", 4, 5, 150, "fork4200")
    assert (got == scene.rows(other, 1200, 3000)).all(), (
        "after a restart with another mix the order differs"
    )
    scene.check_plan("plan --run prints that order", other, 0, 5000, "--run", "job")
    scene.check_when("when --run agrees", other, "--run", "job", seed=2)
    assert all(open(path, "rb").read() == was for path, was in scene.first.items()), (
        "no file of the log was ever changed"
    )
    scene.train("fork4200", 1, 1, 1, "none")
    scene.check_plan(
        "the log has one file more once that mix is in force", other, 0, 5000, "--run", "job"
    )
    err = scene.ctl(
        "plan",
        "-c",
        scene.config,
        "train",
        "--from",
        0,
        "--count",
        1,
        "--cursor",
        *scene.log_paths(),
        code=1,
    )
    assert has(err, "do not join"), "without their order, the log's files do not join"

    # The older mix again: it must be logged, although it has been logged before.
    scene.train("at4000", 1, 1, 1, "back")
    known = scene.order.known_from(len(scene.order.segments))
    known.segments = known.segments[:2]
    scene.check_plan("the first order again, before its last mix", known, 0, 5000, "--run", "job")


def test_replaced_mixes_are_not_in_the_order(scene):
    """Pending mixes that were replaced before they began are not part of the order."""
    weights = [{"web": 0.5, "code": 0.5}, {"web": 0.1, "code": 0.9}, {"web": 1, "code": 0}]
    order = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    ctl, file = scene.ctl, scene.file
    ctl("cursor", "new", "-c", scene.small, "train", "-o", file("p0"))
    ctl(
        "cursor",
        "mix",
        file("p0"),
        "--at",
        4096,
        *(f"{k}={v}" for k, v in weights[0].items()),
        "-o",
        file("p1"),
    )
    ctl(
        "cursor",
        "mix",
        file("p0"),
        "--at",
        2048,
        *(f"{k}={v}" for k, v in weights[1].items()),
        "-o",
        file("p2"),
    )
    ctl("cursor", "seek", file("p2"), "--to", 2500, "-o", file("p3"))
    ctl(
        "cursor",
        "mix",
        file("p3"),
        "--at",
        3072,
        *(f"{k}={v}" for k, v in weights[2].items()),
        "-o",
        file("p4"),
    )
    ctl("cursor", "seek", file("p4"), "--to", 5000, "-o", file("p5"))
    order.mix(2048, list(weights[1].values()))
    order.mix(3072, list(weights[2].values()))
    for cursor in ("p0", "p1", "p2", "p4", "p5"):
        scene.train(cursor, 1, 1, 1, "none", run_="replaced")
    ctl("cursor", "mix", file("p0"), "--at", 1024, "web=1", "code=3", "-o", file("p6"))
    scene.check_plan(
        "a mix that was replaced before it began is not in the order",
        order,
        0,
        6000,
        "--run",
        "replaced",
    )
    scene.check_plan(
        "nor in the order by cursors",
        order,
        0,
        6000,
        *(a for c in ("p5", "p6", "p1", "p4", "p0", "p2") for a in ("--cursor", file(c))),
    )
    scene.check_plan(
        "a mix that only an announcement contains is in the order",
        order,
        0,
        6000,
        "--cursor",
        file("p2"),
        file("p4"),
    )

    ctl("cursor", "seek", file("p0"), "--to", 300, "-o", file("p7"))
    ctl("cursor", "mix", file("p7"), "--at", 5120, "code=1", "-o", file("p7"))
    later = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    later.mix(5120, [0, 1])
    for first, second in (("p1", "p7"), ("p7", "p1")):
        scene.check_plan(
            "of two announcements, the later one counts",
            later,
            0,
            6000,
            "--cursor",
            file(first),
            file(second),
        )

    scene.train("p1", 1, 1, 1, "none", run_="gap")
    scene.train("p5", 1, 1, 1, "none", run_="gap")
    code, out, err = run(
        TOKCTL,
        "plan",
        "-c",
        scene.config,
        "train",
        "--from",
        3072,
        "--count",
        1,
        "--json",
        "--run",
        "gap",
    )
    assert code == 0 and json.loads(out)["position"] == 3072, (
        "a file that does not follow ends the known history",
        err,
    )
    assert has(err, "000002.cursor", "does not follow", "before position 3072 are unknown"), (
        "a line reports it"
    )
    err = ctl(
        "plan", "-c", scene.config, "train", "--from", 3071, "--count", 1, "--run", "gap", code=1
    )
    assert has(err, "--from 3071", "before position 3072 are unknown"), (
        "positions before it are refused"
    )


def test_cursors_join_over_a_schedule(scene):
    """Cursors far apart join if one of them announces the mixes between them."""
    order = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    for at, weights in PLANNED:
        order.mix(at, weights)
    ctl, file = scene.ctl, scene.file
    ctl("cursor", "new", "-c", scene.config, "planned", "-o", file("s0"))
    ctl("cursor", "seek", file("s0"), "--to", 2000, "-o", file("s1"))
    ctl("cursor", "seek", file("s0"), "--to", 5000, "-o", file("s2"))
    ctl("cursor", "seek", file("s0"), "--to", 9000, "-o", file("s3"))
    for names in ("s0", "s0 s3", "s3 s0", "s2 s0 s3", "s3 s2 s1 s0"):
        by = [a for name in names.split() for a in ("--cursor", file(name))]
        scene.check_plan(f"a schedule by {names}", order, 0, 9000, *by, stream="planned")
    scene.check_plan(
        "without cursors, the config's schedule counts", order, 0, 9000, stream="planned"
    )
    err = ctl(
        "plan",
        "-c",
        scene.config,
        "planned",
        "--from",
        1023,
        "--count",
        1,
        "--cursor",
        file("s3"),
        file("s1"),
        code=1,
    )
    assert has(err, "--from 1023", "before position 1024 are unknown"), (
        "positions before the first cursor's mix are refused"
    )
    # replaces all pending mixes
    ctl("cursor", "mix", file("s1"), "web=1", "code=1", "-o", file("s4"))
    ctl("cursor", "seek", file("s4"), "--to", 2100, "-o", file("s5"))
    other = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    other.mix(*PLANNED[0])
    other.mix(2048, [1, 1])
    scene.check_plan(
        "and with the mix that replaced it",
        other,
        0,
        9000,
        "--cursor",
        file("s5"),
        file("s0"),
        stream="planned",
    )


def test_used_run_name_begins_again(scene):
    """A run begins again under a used name, on a changed stream: the old log does not count."""
    place = scene.place
    whole = json.load(open(scene.config))
    whole["streams"]["train"].update(
        seed=43, datasets=whole["streams"]["train"]["datasets"][::-1][1:]
    )
    config = place.config("reseeded.yaml", **{**whole, "socket": place.file("reseeded.sock")})
    order = ref.Order(43, SEQ_LEN, [scene.dataset("code"), scene.dataset("web")], [0.3, 0.7], 1)
    scene.train("at6000", 1, 1, 1, "none", run_="again")
    daemon = Daemon(place, config)
    for _ in range(2):
        Client(daemon.socket).attach(run="again").close()
    code, _, err = run(
        TOKCTL, "plan", "-c", config, "train", "--from", 0, "--count", 1, "--run", "again"
    )
    assert code == 0 and not err, ("a run may begin again under a used name", err)
    scene.check_plan("it has its own order", order, 0, 3000, "--run", "again", config=config)
    err = scene.ctl(
        "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--run", "again", code=1
    )
    assert has(err, "000002.cursor", "is not a cursor of stream train", "seed"), (
        "cursors of the old stream are refused"
    )
    assert daemon.stop() == 0, "the daemon exits with 0"


# ---- damaged logs ----


def test_damaged_log_is_refused_or_cut(scene):
    scene.train("at4000", 1, 1, 1, "back")  # its newest mix is not that of the next attach
    paths = scene.log_paths()
    ask = ["plan", "-c", scene.config, "train", "--count", 1, "--run", "job", "--from"]
    sound = {path: open(path, "rb").read() for path in paths}
    newest = paths[-1]
    for name, data in (
        ("truncated", sound[newest][:100]),
        ("empty", b""),
        ("flipped", sound[newest][:-1] + b"\xff"),
    ):
        with open(newest, "wb") as f:
            f.write(data)
        err = scene.ctl(*ask, 0, code=1)
        assert newest in err and err.count("\n") == 1, (
            f"the newest file {name} is refused in one line with its name",
            err,
        )
    scene.train("at6000", 2, 1, 1, "none")
    assert len(scene.log_paths()) == len(paths) + 1, "the next attach logs its mix after it"
    code, out, err = run(TOKCTL, *ask, 6000)
    assert code == 0 and newest in err and "before position 4096 are unknown" in err, (
        "the history is known back to the next file",
        err,
    )
    os.unlink(scene.log_paths()[-1])
    with open(newest, "wb") as f:
        f.write(sound[newest])
    err = scene.ctl(
        "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--run", "nobody", code=1
    )
    assert has(err, "--run nobody", "state/train/nobody/mixes", "No such file"), (
        "an unknown run is refused"
    )
    err = scene.ctl(
        "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--run", "../job", code=1
    )
    assert has(err, "--run ../job"), "an invalid run name is refused"
