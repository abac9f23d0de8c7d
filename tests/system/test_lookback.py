"""`tokctl plan` and `when` reproduce the order of past runs, from the cursor that the daemon keeps
(--run), from one cursor, and by steps. They are compared with tests/lib/order_reference.py.

Clients attach under a run's name, with cursors edited in between.
"""

import json

import numpy
import pytest
from verifying import begin

from lib import TOKCTL, Client, Daemon, has, run, wait_for
from lib import order_reference as ref
from lib.web import metric

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


def order_of(*mixes, names=("web", "code"), seed=42):
    """The reference's order after mixes from positions on."""
    datasets = [ref.Dataset(name, sorted(SHARDS[name].items()), **KEYS[name]) for name in names]
    order = ref.Order(seed, SEQ_LEN, datasets, [WEIGHTS[name] for name in names])
    for at, units in mixes:
        order.mix(at, units)
    return order


def attach(socket, run_, **start):
    """Attaches, and waits until state_dir has its cursor."""
    Client(socket).attach(run=run_, **start).close()
    assert wait_for(lambda: metric(socket, "tokend_state_dir_jobs") == 0)


class Scene:
    """Shards, two configs (the second has an additional dataset), and a daemon."""

    def __init__(self, place):
        self.place = place
        for dataset, shards in SHARDS.items():
            for shard, count in shards.items():
                place.shard(f"{dataset}/{shard}", count)
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

    def ctl(self, command, code=0):
        """Runs tokctl: its stdout and stderr. @NAME is a cursor's file, and CONFIG the config's."""
        words = command.replace("CONFIG", self.config).split()
        words = [self.file(word[1:]) if word.startswith("@") else word for word in words]
        status, out, err = run(TOKCTL, *words)
        assert status == code, (command, err)
        return out.decode(), err

    def lines(self, command):
        return [json.loads(line) for line in self.ctl(f"{command} --json")[0].splitlines()]

    def attach(self, run_, *cursors, daemon=None):
        for cursor in cursors:
            data = open(self.file(cursor), "rb").read()
            attach((daemon or self.daemon).socket, run_, cursor=data)

    def kept(self, run_="job"):
        """The file with the cursor that the daemon keeps of a run."""
        return self.place.file("state/train", run_, ".run.cursor")

    def check(self, order, count, by):
        """Plan gives the order of a run, and when the positions of its rows."""
        got = self.lines(f"plan -c CONFIG train --from 0 --count {count} {by}")
        assert got == [vars(order.place(i)) for i in range(count)], by
        for p in got[::500]:
            where = f"--dataset {p['dataset']} --shard {p['shard']} --offset {p['offset']}"
            asked = f"when -c CONFIG train {where} --epoch {p['epoch']} --tokens 40 {by}"
            found = {(a["position"], a["window"]) for a in self.lines(asked)}
            assert (p["position"], p["window"]) in found, asked
            assert all(order.place(at).window == window for at, window in found), asked


@pytest.fixture(scope="module")
def scene(shared):
    """A run with two mixes that were announced early and a dataset that joined. `order` is its
    order.
    """
    scene = Scene(shared)
    for edit in (
        f"new -c {scene.small} train -o @begin",
        "seek @begin --to 1200 -o @at1200",
        "mix @at1200 web=0.2 code=0.8 -o @mixed",
        "seek @mixed --to 4000 -o @at4000",
        "add @at4000 -c CONFIG -o @added",
        "mix @added web=1 code=1 math=2 -o @added",
        "seek @added --to 6000 -o @at6000",
    ):
        scene.ctl(f"cursor {edit}")
    scene.attach("job", "begin", "at1200", "mixed", "at4000", "added", "at6000", "at6000")
    scene.order = order_of((2048, [0.2, 0.8]))
    scene.order.add(ref.Dataset("math", sorted(SHARDS["math"].items()), **KEYS["math"]))
    scene.order.mix(4096, [1, 1, 2])
    return scene


def test_one_cursor_gives_the_order_of_the_run(scene):
    """Also of a run that was restarted from an older checkpoint, with other weights."""
    for by in ("--run job", "--cursor @at6000", "--cursor @mixed @at6000 --cursor @begin"):
        scene.check(scene.order, 6100, by)
    scene.ctl("cursor seek @at6000 --to 100 -o @back")
    scene.check(scene.order, 6100, "--cursor @back")
    scene.ctl("cursor mix @at1200 --at 3072 code=1 -o @fork")
    scene.ctl("cursor seek @fork --to 4200 -o @fork4200")
    scene.attach("job", "fork", "fork4200")
    scene.check(order_of((3072, [0, 1])), 5000, "--run job")
    for command in ("plan -c CONFIG train --from 0 --count 1", "cost -c CONFIG train"):
        both = f"{command} --cursor @at6000 @fork4200"
        assert has(scene.ctl(both, code=1)[1], "fork4200 is not on the past of", "at6000; leave")
    scene.attach("job", "at4000")  # the older mix again
    scene.check(scene.order.with_segments(scene.order.segments[:2]), 5000, "--run job")


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
    scene.attach("replaced", "begin", "p1", "p2", "p4", "p5")
    scene.check(order, 6000, "--run replaced")
    scene.check(order, 6000, "--cursor @p5 @p1 @p4 @begin @p2")
    for by in ("@p1 @p7", "@p7 @p1"):  # the later announcement counts
        scene.check(order_of((5120, [0, 1])), 6000, f"--cursor {by}")


def ramp(scene, name, start, steps):
    """A config whose schedule changes the mix at each of so many blocks."""
    step = {"from": start, "to": start + steps * 1024, "steps": steps, "weights": {"code": 1}}
    return scene.place.config(name, streams={"train": {**about("web", "code"), "schedule": [step]}})


def test_a_cursor_without_room_drops_its_oldest_mixes(scene):
    """Cursors of equal histories are equal, however they moved. Looking back ends there."""
    first, second = ramp(scene, "first.yaml", 0, 5000), ramp(scene, "second.yaml", 5120000, 5000)
    scene.ctl(f"cursor new -c {first} train -o @full")
    for name, stops in {"leap": [5130000], "walk": [1, 7000, 4000000, 2048, 5130000]}.items():
        scene.ctl(f"cursor seek @full --to {stops[0]} -o @{name}")
        for stop in stops[1:]:
            scene.ctl(f"cursor seek @{name} --to {stop} -o @{name}")
        scene.ctl("cursor mix @leap web=1 code=1 -o @mixed".replace("leap", name))
        changes, _ = scene.ctl(f"cursor schedule @mixed -c {second} -o @{name}")
        assert "mix from 0: " in changes and "absent" in changes
    leap, walk = (open(scene.file(name), "rb").read() for name in ("leap", "walk"))
    assert leap == walk and len(leap) < 96 * 1024
    (shown,) = scene.lines("cursor show @leap")
    oldest = shown["past"][0]["start"]
    assert 0 < oldest < 5130000 and has(scene.ctl("cursor show @leap")[0], "had no room")
    scene.ctl("cursor seek @full --to 5130000 -o @near")
    scene.ctl("cursor mix @near web=1 code=1.00000001 -o @near")
    scene.ctl("cursor mix @leap web=1 code=1 -o @short")
    differs, _ = scene.ctl("cursor diff @short @near", code=1)
    assert has(differs, "mix from 0: absent | web", ": units, ")  # not only the dropped past
    ask = "plan -c CONFIG train --count 2000 --cursor"
    assert scene.lines(f"{ask} @leap --from {oldest}") == scene.lines(
        f"{ask} @full --from {oldest}"
    )
    _, err = scene.ctl(f"{ask} @leap --from {oldest - 1}", code=1)
    assert has(err, f"before position {oldest} are unknown")
    _, err = scene.ctl(f"cursor seek @leap --to {oldest - 1} -o @back", code=1)
    assert has(err, "position", f"before {oldest}", "saved earlier")


def test_a_dataset_of_the_past_may_leave_the_config(scene):
    scene.ctl("cursor mix @at6000 code=1 math=1 -o @without")
    scene.ctl("cursor seek @without --to 8000 -o @without")
    config = scene.place.config("left.yaml", streams={"train": about("code", "math")})
    socket = scene.place.file("left.sock")
    daemon = Daemon(scene.place, config, socket_path=socket)
    scene.attach("left", "without", daemon=daemon)
    asked = f"plan -c {config} train --count 1 --json --cursor @without --from"
    assert json.loads(scene.ctl(f"{asked} 8000")[0])["dataset"] in ("code", "math")
    _, err = scene.ctl(f"{asked} 0", code=1)
    assert has(err, "position 0", "dataset", "no longer in the config")
    cost = f"cost -c {config} train --cursor @without"
    assert has(scene.ctl(f"{cost} --from 0", code=1)[1], "dataset web is no longer in the config")
    assert all(line["gets"] for line in scene.lines(cost) if line["dataset"] != "web")
    at = next(i for i in range(100) if scene.order.place(i).dataset == "web")
    with open(scene.file("without"), "rb") as file, open(scene.file("a.record"), "wb") as record:
        record.write(begin(1, 8000, 8000, 0, 1, 4, 0, file.read(), 1).tobytes())
        record.write(numpy.array([8000, 0], "<u8").tobytes())  # a row
    lost = f"verify -c {config} train @a.record --from {at} --to {at + 1}"
    (fault,) = json.loads(scene.ctl(f"{lost} --json", code=1)[0])["faults"]
    assert fault == {"fault": "lost", "position": at, "count": 1}
    words = f"lost: position {at} to {at}  dataset web  shard not in the config"
    assert words in scene.ctl(lost, code=1)[0]
    assert daemon.stop() == 0


def test_used_run_name_begins_again(scene):
    """A run begins again under a used name, on a changed stream."""
    changed = {**scene.streams, "train": about("code", "web", seed=43)}
    scene.attach("again", "at6000")
    config = scene.place.config("seed.yaml", streams=changed, socket=scene.place.file("seed.sock"))
    daemon = Daemon(scene.place, config)
    attach(daemon.socket, "again")
    order = order_of(names=("code", "web"), seed=43)
    rows = scene.lines(f"plan -c {config} train --from 0 --count 3000 --run again")
    assert rows == [vars(order.place(i)) for i in range(3000)]
    _, err = scene.ctl("plan -c CONFIG train --from 0 --count 1 --run again", code=1)
    assert has(err, "is not a cursor of stream train", "seed")
    assert daemon.stop() == 0


def test_a_damaged_cursor_of_a_run_is_refused(scene):
    scene.attach("damaged", "begin", "mixed", "at6000", "at4000")
    kept = scene.kept("damaged")
    ask = "plan -c CONFIG train --count 1 --run damaged --from 0"
    with open(kept, "rb") as f:
        sound = f.read()
    for data in b"", sound[:-1] + b"\xff":
        with open(kept, "wb") as f:
            f.write(data)
        _, err = scene.ctl(ask, code=1)
        assert kept in err and err.count("\n") == 1, err
    scene.attach("damaged", "at6000")
    scene.check(scene.order, 6100, "--run damaged")


# ---- steps ----


@pytest.mark.parametrize("world, micro", [(1, 7), (7, 2)])
def test_plan_by_step(scene, world, micro):
    ask = f"plan -c CONFIG train --cursor @at4000 --world {world} --micro {micro} --tokens"
    rows, order = scene.lines(f"{ask} --step 5"), scene.order
    want = [4000 + p for r in range(world) for p in ref.rank_positions(0, 5, r, world, micro)]
    assert [row["position"] for row in rows] == want
    assert [(row["rank"], row["row"]) for row in rows] == [
        (r, b) for r in range(world) for b in range(micro)
    ]
    for row in rows:
        place = order.with_segments(order.segments[:2]).place(row["position"])
        tokens = numpy.fromfile(scene.place.file(f"{place.dataset}/{place.shard}"), "<u2")
        assert row["tokens"] == tokens[place.offset :][:WINDOW].tolist()
    assert scene.lines(f"{ask} --step 5 --rank {world // 2}") == [
        row for row in rows if row["rank"] == world // 2
    ]
    assert scene.lines(f"{ask} --step 0 --from {want[0]}") == rows


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
    assert has(scene.ctl(f"{ask} {last}")[0], "rank  row", "-")
    assert has(scene.ctl(f"{ask} {last + 1}", code=1)[1], f"{last + 1} steps", "from 0")


PLAN, STEP = "plan -c CONFIG train", "plan -c CONFIG train --step 0"
WHEN = "when -c CONFIG train --dataset web --shard a.bin"


@pytest.mark.parametrize(
    "command, words, code",
    [
        (PLAN, ["--from and --count", "--step"], 2),
        (f"{PLAN} --from 0 --count 1 --world 2", ["--from and --count, or --step"], 2),
        (f"{STEP} --world 2 --micro 0", ["--micro: '0'", "from 1 to 65536"], 2),
        (f"{STEP} --world 2 --micro 1 --cursor f g", ["several cursors needs --from"], 2),
        (f"{STEP} --world 2 --micro 1 --rank 2", ["--rank 2", "below the world, 2"], 2),
        (f"{PLAN} --from 0 --count 1 --run r --cursor f", ["exclude each other"], 2),
        (f"{PLAN} --from 0 --count 1 --run nobody", ["--run nobody", "no cursor of it"], 1),
        (f"{PLAN} --from 0 --count 1 --run ../job", ["--run ../job"], 1),
        (f"{WHEN} --offset 9000 --tokens 2", ["--offset 9000, --tokens 2: a.bin has only 9001"], 1),
    ],
)
def test_errors_name_the_option(scene, command, words, code):
    assert has(scene.ctl(command, code=code)[1], *words)
