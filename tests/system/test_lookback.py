"""`tokctl plan` and `when` reproduce the order of past runs, from the daemon's mix log (--run),
from cursors, and by steps.

The runs are real: `tokctl cat` attaches under one run name, with cursors edited in between, as
trainers do. Its tokens, the order by the log, and the order of the independent implementation
tests/lib/order_reference.py must be equal.
"""

import json
import os
import random
import shutil

import numpy
import pytest

from lib import TOKCTL, Client, Daemon, has, run
from lib import order_reference as ref

SEQ_LEN, WINDOW = 30, 31
SHARDS = {
    "web": {"a.bin": 9001, "b.bin": 5000},
    "code": {"x.bin": 7777},
    "math": {"m.bin": 3000, "n.bin": 2500},
}
KEYS = {
    "web": {},
    "code": {"shuffle": "block", "block": 8, "group": 4},
    "math": {"shuffle": "none", "slide": True},
}
WEIGHTS = {"web": 0.7, "code": 0.3, "math": 0}


def about(*names, seed=42):
    entries = [{"name": d, "path": d, "weight": WEIGHTS[d], **KEYS[d]} for d in names]
    return {"seed": seed, "seq_len": SEQ_LEN, "datasets": entries}


def order_of(*mixes, names=("web", "code"), weights=(0.7, 0.3), seed=42):
    """The reference's order after mixes from positions on."""
    datasets = [ref.Dataset(name, sorted(SHARDS[name].items()), **KEYS[name]) for name in names]
    order = ref.Order(seed, SEQ_LEN, datasets, weights)
    for at, units in mixes:
        order.mix(at, units)
    return order


class Scene:
    """Shards, two configs (the second has an additional dataset), and a daemon."""

    def __init__(self, place):
        self.place = place
        self.tokens = {}
        for dataset, shards in SHARDS.items():
            for shard, count in shards.items():
                path = place.shard(f"{dataset}/{shard}", count)
                self.tokens[dataset, shard] = numpy.fromfile(path, "<u2")
        self.small = place.config("small.yaml", streams={"train": about("web", "code")})
        finite = [{"name": d, "path": d} for d in ("web", "code")]
        self.streams = {
            "train": about("web", "code", "math"),
            "finite": {"seed": 7, "seq_len": SEQ_LEN, "epochs": 1, "datasets": finite},
        }
        self.config = place.config(streams=self.streams)
        self.daemon = Daemon(place, self.config)

    def file(self, name):
        return self.place.file(f"cursors/{name}")

    def words(self, command):
        """The words of a command. @NAME is a cursor's file, and CONFIG the config's."""
        words = command.replace("CONFIG", self.config).split()
        return [self.file(word[1:]) if word.startswith("@") else word for word in words]

    def ctl(self, command, code=0):
        """Runs tokctl: its stdout, or its stderr if it must fail."""
        status, out, err = run(TOKCTL, *self.words(command))
        assert status == code, (command, err)
        return err if code else out.decode()

    def lines(self, command):
        return [json.loads(line) for line in self.ctl(f"{command} --json").splitlines()]

    def train(self, cursor, world, micro, batches, to, run_="job", sockets=()):
        """Runs all ranks at once from a cursor, and writes theirs. Returns their tokens."""
        ranks, sockets = [], sockets or [self.daemon.socket]
        for rank in range(world):
            command = (
                f"cat train --rank {rank} --world {world} --micro {micro} --batches {batches} "
                f"--run {run_} --socket {sockets[rank % len(sockets)]} --cursor-out @{to}-{rank}"
                + (f" --cursor @{cursor}" if cursor else "")
            )
            with open(self.place.file(f"out/{rank}"), "wb") as out:
                ranks.append(self.place.spawn([TOKCTL, *self.words(command)], stdout=out))
        assert not any(process.wait(60) for process in ranks)
        cursors = {open(self.file(f"{to}-{rank}"), "rb").read() for rank in range(world)}
        assert len(cursors) == 1, f"{to}: the cursors of {world} ranks are equal"
        shutil.copy(self.file(f"{to}-0"), self.file(to))
        got = [numpy.fromfile(self.place.file(f"out/{r}"), "<u2") for r in range(world)]
        shape = (batches, micro, WINDOW)
        return numpy.stack([tokens.reshape(shape) for tokens in got], 1).reshape(-1, WINDOW)

    def rows(self, order, first, count):
        places = [order.place(i) for i in range(first, first + count)]
        shards = [self.tokens[p.dataset, p.shard] for p in places]
        return numpy.stack([s[p.offset :][:WINDOW] for s, p in zip(shards, places)])

    def log(self, run_="job"):
        """The paths of a run's mix log."""
        mixes = os.path.dirname(self.place.file("state/train", run_, "mixes/x"))
        return [os.path.join(mixes, name) for name in sorted(os.listdir(mixes)) if name[0] != "."]

    def check_plan(self, order, first, count, by):
        got = self.lines(f"plan -c CONFIG train --from {first} --count {count} {by}")
        assert got == [vars(order.place(i)) for i in range(first, first + count)], by

    def check_when(self, order, by):
        for position in range(0, 6000, 250):
            p, tokens = order.place(position), random.Random(position).choice([1, WINDOW])
            where = f"--dataset {p.dataset} --shard {p.shard} --offset {p.offset}"
            asked = f"when -c CONFIG train {where} --tokens {tokens} --epoch {p.epoch} {by}"
            found = {(a["position"], a["window"]) for a in self.lines(asked)}
            assert (position, p.window) in found, asked
            assert all(order.place(at).window == window for at, window in found), asked


@pytest.fixture(scope="module")
def scene(shared):
    """A run of 4 worlds, with two mixes that were announced early and one just in time. `order` is
    its order, and `first` its mix log.
    """
    scene = Scene(shared)
    scene.ctl(f"cursor new -c {scene.small} train -o @begin")
    got = [scene.train("begin", 2, 4, 150, "at1200")]
    scene.ctl("cursor mix @at1200 web=0.2 code=0.8 -o @mixed")
    got.append(scene.train("mixed", 8, 2, 25, "at1600"))
    got.append(scene.train("at1600", 3, 8, 100, "at4000"))
    scene.ctl("cursor add @at4000 -c CONFIG -o @added")
    scene.ctl("cursor mix @added web=1 code=1 math=2 -o @added")
    got.append(scene.train("added", 4, 5, 100, "at6000"))
    scene.order = order_of((2048, [0.2, 0.8]))
    scene.order.add(ref.Dataset("math", sorted(SHARDS["math"].items()), **KEYS["math"]))
    scene.order.mix(4096, [1, 1, 2])
    assert (numpy.concatenate(got) == scene.rows(scene.order, 0, 6000)).all()
    assert len(scene.log()) == 3, "there is one file per mix"
    scene.train("at6000", 5, 2, 1, "at6010")
    scene.train("at6000", 5, 2, 1, "at6010")
    assert len(scene.log()) == 4, "once more when it is in force, and not at an attach without one"
    scene.first = {path: open(path, "rb").read() for path in scene.log()}
    yield scene
    assert scene.daemon.stop() == 0


def test_log_and_cursors_give_the_order_of_the_run(scene):
    cursors = " ".join(f"--cursor {path}" for path in reversed(scene.log()))
    for by in ("--run job", cursors):
        scene.check_plan(scene.order, 0, 6100, by)
        scene.check_when(scene.order, by)


def test_restart_undoes_later_mixes(scene):
    """A restart from an older checkpoint with other weights undoes the mixes after it."""
    other = order_of((3072, [0, 1]))
    scene.ctl("cursor mix @at1200 --at 3072 code=1 -o @fork")
    got = scene.train("fork", 4, 5, 150, "fork4200")
    assert (got == scene.rows(other, 1200, 3000)).all()
    scene.check_plan(other, 0, 5000, "--run job")
    kept = {path: open(path, "rb").read() for path in scene.first}
    assert kept == scene.first, "no file of the log was ever changed"
    scene.train("fork4200", 1, 1, 1, "none")
    paths = " ".join(scene.log())
    err = scene.ctl(f"plan -c CONFIG train --from 0 --count 1 --cursor {paths}", code=1)
    assert has(err, "do not join"), "without their order, the log's files do not join"
    scene.train("at4000", 1, 1, 1, "back")  # the older mix again, which has been logged before
    scene.check_plan(scene.order.with_segments(scene.order.segments[:2]), 0, 5000, "--run job")


def test_replaced_mixes_are_not_in_the_order(scene):
    """Pending mixes that were replaced before they began are not part of the order."""
    for edit in (
        "mix @begin --at 4096 web=0.5 code=0.5 -o @p1",
        "mix @begin --at 2048 web=0.1 code=0.9 -o @p2",
        "seek @p2 --to 2500 -o @p3",
        "mix @p3 --at 3072 web=1 -o @p4",
        "seek @p4 --to 5000 -o @p5",
        "seek @begin --to 300 -o @p7",
        "mix @p7 --at 5120 code=1 -o @p7",
    ):
        scene.ctl(f"cursor {edit}")
    order = order_of((2048, [0.1, 0.9]), (3072, [1, 0]))
    for cursor in ("begin", "p1", "p2", "p4", "p5"):
        scene.train(cursor, 1, 1, 1, "none", "replaced")
    scene.check_plan(order, 0, 6000, "--run replaced")
    scene.check_plan(order, 0, 6000, "--cursor @p5 @p1 @p4 @begin @p2")
    for by in ("@p1 @p7", "@p7 @p1"):  # the later announcement counts
        scene.check_plan(order_of((5120, [0, 1])), 0, 6000, f"--cursor {by}")
    for cursor in ("begin", "p5"):
        scene.train(cursor, 1, 1, 1, "none", "gap")  # the mix at 2048 was never attached with
    asked = "plan -c CONFIG train --count 1 --json --run gap --from"
    code, out, err = run(TOKCTL, *scene.words(f"{asked} 3072"))
    assert code == 0 and json.loads(out)["position"] == 3072
    assert has(err, "000002.cursor", "does not follow", "before position 3072 are unknown")
    assert has(scene.ctl(f"{asked} 3071", code=1), "--from 3071", "are unknown")


def test_used_run_name_begins_again(scene):
    """A run begins again under a used name, on a changed stream: the old log does not count."""
    changed = {**scene.streams, "train": about("code", "web", seed=43)}
    scene.train("at6000", 1, 1, 1, "none", "again")
    config = scene.place.config("seed.yaml", streams=changed, socket=scene.place.file("seed.sock"))
    daemon = Daemon(scene.place, config)
    Client(daemon.socket).attach(run="again").close()
    order = order_of(names=("code", "web"), weights=(0.3, 0.7), seed=43)
    rows = scene.lines(f"plan -c {config} train --from 0 --count 3000 --run again")
    assert rows == [vars(order.place(i)) for i in range(3000)]
    err = scene.ctl("plan -c CONFIG train --from 0 --count 1 --run again", code=1)
    assert has(err, "000002.cursor", "is not a cursor of stream train", "seed")
    assert daemon.stop() == 0


def test_damaged_log_is_refused_or_cut(scene):
    scene.train("at4000", 1, 1, 1, "back")  # its newest mix is not that of the next attach
    newest = scene.log()[-1]
    ask = "plan -c CONFIG train --count 1 --run job --from"
    with open(newest, "rb") as f:
        sound = f.read()
    for data in b"", sound[:-1] + b"\xff":
        with open(newest, "wb") as f:
            f.write(data)
        err = scene.ctl(f"{ask} 0", code=1)
        assert newest in err and err.count("\n") == 1, err
    logged = len(scene.log())
    scene.train("at6000", 2, 1, 1, "none")
    assert len(scene.log()) == logged + 1, "the next attach logs its mix after it"
    code, _, err = run(TOKCTL, *scene.words(f"{ask} 6000"))
    assert code == 0 and has(err, newest, "before position 4096 are unknown"), err


def test_daemons_that_share_a_log_log_each_mix_once(scene):
    second = Daemon(scene.place, scene.config, socket_path=scene.place.file("second.sock"))
    sockets = [scene.daemon.socket, second.socket]
    for logged, cursor in enumerate(["begin", "mixed", "begin", "mixed"], 1):
        scene.train(cursor, 8, 1, 1, "none", "both", sockets)
        assert len(scene.log("both")) == logged
    assert second.stop() == 0


# ---- steps ----


@pytest.mark.parametrize("world, micro, cursor", [(1, 7, "at1200"), (7, 2, "at4000")])
def test_plan_by_step_equals_cat(scene, world, micro, cursor):
    batches, step, rank = 9, 5, world // 2
    got = scene.train(cursor, world, micro, batches, "steps", "steps").reshape(batches, -1, WINDOW)
    ask = f"plan -c CONFIG train --step {step} --world {world} --micro {micro} --tokens"
    ask += f" --cursor @{cursor}"
    rows = scene.lines(ask)
    assert [(row["rank"], row["row"]) for row in rows] == [
        (r, b) for r in range(world) for b in range(micro)
    ]
    assert ([row["tokens"] for row in rows] == got[step]).all()
    assert scene.lines(f"{ask} --rank {rank}") == rows[rank * micro : (rank + 1) * micro]
    assert scene.lines(f"{ask} --from {rows[0]['position'] - step * world * micro}") == rows


def test_the_last_step_of_a_finite_stream(scene):
    shards = [t for d in ("web", "code") for t in SHARDS[d].values()]
    windows = sum(ref.shard_windows(tokens, WINDOW, SEQ_LEN) for tokens in shards)
    last, left = divmod(windows, 24)
    assert left
    ask = "plan -c CONFIG finite --world 4 --micro 6 --step"
    rows = scene.lines(f"{ask} {last} --tokens")
    positions = [*range(last * 24, windows), *[None] * (24 - left)]
    assert [row["position"] for row in rows] == positions
    assert [row["tokens"] is None for row in rows] == [p is None for p in positions]
    assert has(scene.ctl(f"{ask} {last}"), "rank    row", "padding: the stream has ended")
    assert has(scene.ctl(f"{ask} {last + 1}", code=1), f"{last + 1} steps", f"is step {last}")


PLAN, STEP = "plan -c CONFIG train", "plan -c CONFIG train --step 0"
WHEN = "when -c CONFIG train --dataset web --shard a.bin"


@pytest.mark.parametrize(
    "command, words, code",
    [
        (PLAN, ["--from and --count", "--step"], 2),
        (f"{PLAN} --from 0 --count 1 --world 2", ["need --step"], 2),
        (f"{STEP} --world 2", ["--step needs --world and --micro"], 2),
        (f"{STEP} --world 2 --micro 0", ["--micro: '0'", "from 1 to 65536"], 2),
        (f"{STEP} --world 2 --micro 1 --rank 2", ["--rank 2", "below the world, 2"], 2),
        (f"{PLAN} --from 0 --count 1 --run r --cursor f", ["exclude each other"], 2),
        (f"{PLAN} --from -1 --count 1", ["--from: '-1'", "integer"], 2),
        (f"{PLAN} --from 0 --count 1 --run nobody", ["--run nobody", "mixes", "No such file"], 1),
        (f"{PLAN} --from 0 --count 1 --run ../job", ["--run ../job"], 1),
        (f"{WHEN} --offset 0 --tokens 0", ["--tokens: '0'"], 2),
        (f"{WHEN} --offset 9000 --tokens 2", ["from offset 9000 on, a.bin has only 1"], 1),
    ],
)
def test_errors_name_the_option(scene, command, words, code):
    assert has(scene.ctl(command, code=code), *words)
