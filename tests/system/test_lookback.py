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
import subprocess

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
PLANNED = [(1024, (0.5, 0.5)), (3072, (0.1, 0.9)), (4096, (0, 1)), (7168, (0.9, 0.1))]
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
        mixes = [{"at": at, "weights": {"web": w, "code": c}} for at, (w, c) in PLANNED]
        finite = [{"name": d, "path": d} for d in ("web", "code")]
        self.streams = {
            "train": about("web", "code", "math"),
            "planned": {**about("web", "code"), "schedule": mixes},
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

    def check_plan(self, order, first, count, by="", stream="train"):
        got = self.lines(f"plan -c CONFIG {stream} --from {first} --count {count} {by}")
        assert got == [vars(order.place(i)) for i in range(first, first + count)], by

    def check_when(self, order, by, cases=60):
        """Asks for random ranges of tokens. Windows that are never served must not be printed."""
        rng, found = random.Random(cases), 0
        for _ in range(cases):
            d = rng.randrange(len(order.datasets))
            shard = rng.randrange(len(order.datasets[d].shards))
            file, total = order.datasets[d].shards[shard]
            offset, epoch = rng.randrange(total), rng.choice([0, 0, 1, 2, 7])
            tokens = min(rng.choice([1, 1, 5, 200]), total - offset)
            asked = range(offset, offset + tokens)
            windows = sorted({w for t in asked for w in order.holding(d, shard, t, epoch)})
            served = [(order.when(d, epoch, w), w) for w in windows]
            want = [
                {"position": p, "epoch": epoch, "window": w} for p, w in served if p is not None
            ]
            where = (
                f"when -c CONFIG train --dataset {order.datasets[d].name} --shard {file} "
                f"--offset {offset} --tokens {tokens} --epoch {epoch} {by}"
            )
            if want:
                assert self.lines(where) == want, where
            else:
                assert "never served" in self.ctl(where, code=1)
            found += len(want)
        assert found > cases // 2


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
    scene.check_when(other, "--run job")
    kept = {path: open(path, "rb").read() for path in scene.first}
    assert kept == scene.first, "no file of the log was ever changed"
    scene.train("fork4200", 1, 1, 1, "none")
    scene.check_plan(other, 0, 5000, "--run job")
    paths = " ".join(scene.log())
    err = scene.ctl(f"plan -c CONFIG train --from 0 --count 1 --cursor {paths}", code=1)
    assert has(err, "do not join"), "without their order, the log's files do not join"
    scene.train("at4000", 1, 1, 1, "back")  # the older mix again, which has been logged before
    scene.check_plan(scene.order.with_segments(scene.order.segments[:2]), 0, 5000, "--run job")


def test_replaced_mixes_are_not_in_the_order(scene):
    """Pending mixes that were replaced before they began are not part of the order."""
    scene.ctl(f"cursor new -c {scene.small} train -o @p0")
    for edit in (
        "mix @p0 --at 4096 web=0.5 code=0.5 -o @p1",
        "mix @p0 --at 2048 web=0.1 code=0.9 -o @p2",
        "seek @p2 --to 2500 -o @p3",
        "mix @p3 --at 3072 web=1 -o @p4",
        "seek @p4 --to 5000 -o @p5",
        "mix @p0 --at 1024 web=1 code=3 -o @p6",
        "seek @p0 --to 300 -o @p7",
        "mix @p7 --at 5120 code=1 -o @p7",
    ):
        scene.ctl(f"cursor {edit}")
    order = order_of((2048, [0.1, 0.9]), (3072, [1, 0]))
    for cursor in ("p0", "p1", "p2", "p4", "p5"):
        scene.train(cursor, 1, 1, 1, "none", "replaced")
    scene.check_plan(order, 0, 6000, "--run replaced")
    scene.check_plan(order, 0, 6000, "--cursor @p5 @p6 @p1 @p4 @p0 @p2")
    scene.check_plan(order, 0, 6000, "--cursor @p2 @p4")  # one is only announced
    for by in ("@p1 @p7", "@p7 @p1"):  # the later announcement counts
        scene.check_plan(order_of((5120, [0, 1])), 0, 6000, f"--cursor {by}")


def test_a_log_with_a_gap_is_known_from_its_end_back(scene):
    scene.ctl("cursor mix @begin --at 2048 web=0.1 code=0.9 -o @gap")  # never attached with
    scene.ctl("cursor seek @gap --to 2500 -o @gap")
    scene.ctl("cursor mix @gap --at 3072 web=1 -o @gap")
    scene.ctl("cursor seek @gap --to 5000 -o @gap")
    for cursor in ("begin", "gap"):
        scene.train(cursor, 1, 1, 1, "none", "gap")
    asked = "plan -c CONFIG train --count 1 --json --run gap --from"
    code, out, err = run(TOKCTL, *scene.words(f"{asked} 3072"))
    assert code == 0 and json.loads(out)["position"] == 3072
    assert has(err, "000002.cursor", "does not follow", "before position 3072 are unknown")
    err = scene.ctl(f"{asked} 3071", code=1)
    assert has(err, "--from 3071", "before position 3072 are unknown")


def test_cursors_join_over_a_schedule(scene):
    """Cursors far apart join if one of them announces the mixes between them."""
    order = order_of(*PLANNED)
    scene.ctl("cursor new -c CONFIG planned -o @s0")
    for to, name in (2000, "s1"), (5000, "s2"), (9000, "s3"):
        scene.ctl(f"cursor seek @s0 --to {to} -o @{name}")
    for by in "", "@s0", "@s0 @s3", "@s3 @s0", "@s2 @s0 @s3", "@s3 @s2 @s1 @s0":
        scene.check_plan(order, 0, 9000, by and f"--cursor {by}", stream="planned")
    ask = "plan -c CONFIG planned --from 1023 --count 1 --cursor @s3 @s1"
    assert has(scene.ctl(ask, code=1), "--from 1023", "before position 1024 are unknown")
    scene.ctl("cursor mix @s1 web=1 code=1 -o @s4")  # replaces all pending mixes
    scene.ctl("cursor seek @s4 --to 2100 -o @s5")
    other = order_of(PLANNED[0], (2048, [1, 1]))
    scene.check_plan(other, 0, 9000, "--cursor @s5 @s0", stream="planned")


def test_used_run_name_begins_again(scene):
    """A run begins again under a used name, on a changed stream: the old log does not count."""
    changed = {**scene.streams, "train": about("code", "web", seed=43)}
    scene.train("at6000", 1, 1, 1, "none", "again")
    config = scene.place.config("seed.yaml", streams=changed, socket=scene.place.file("seed.sock"))
    daemon = Daemon(scene.place, config)
    for _ in range(2):
        Client(daemon.socket).attach(run="again").close()
    order = order_of(names=("code", "web"), weights=(0.3, 0.7), seed=43)
    rows = scene.lines(f"plan -c {config} train --from 0 --count 3000 --run again")
    assert rows == [vars(order.place(i)) for i in range(3000)]
    err = scene.ctl("plan -c CONFIG train --from 0 --count 1 --run again", code=1)
    assert has(err, "000002.cursor", "is not a cursor of stream train", "seed")
    assert daemon.stop() == 0


# ---- logs that are damaged, shared, or cannot be written ----


def test_damaged_log_is_refused_or_cut(scene):
    scene.train("at4000", 1, 1, 1, "back")  # its newest mix is not that of the next attach
    newest = scene.log()[-1]
    ask = "plan -c CONFIG train --count 1 --run job --from"
    with open(newest, "rb") as f:
        sound = f.read()
    for data in sound[:100], b"", sound[:-1] + b"\xff":
        with open(newest, "wb") as f:
            f.write(data)
        err = scene.ctl(f"{ask} 0", code=1)
        assert newest in err and err.count("\n") == 1, err
    logged = len(scene.log())
    scene.train("at6000", 2, 1, 1, "none")
    assert len(scene.log()) == logged + 1, "the next attach logs its mix after it"
    code, _, err = run(TOKCTL, *scene.words(f"{ask} 6000"))
    assert code == 0 and has(err, newest, "before position 4096 are unknown"), err
    os.unlink(scene.log()[-1])
    with open(newest, "wb") as f:
        f.write(sound)
    for name, words in ("nobody", "state/train/nobody/mixes: No such file"), ("../job", ""):
        err = scene.ctl(f"plan -c CONFIG train --from 0 --count 1 --run {name}", code=1)
        assert has(err, f"--run {name}", *words.split(": ")), err


def test_log_that_cannot_be_written_does_not_stop_the_run(scene):
    blocked, socket = scene.place.file("blocked"), scene.place.file("blocked.sock")
    with open(blocked, "w") as f:
        f.write("no directory")
    config = scene.place.config(
        "blocked.yaml", streams=scene.streams, state_dir=blocked, socket=socket
    )
    daemon = Daemon(scene.place, config)
    for _ in range(3):
        client = Client(daemon.socket).attach()
        assert client.next() is not None
        client.close()
    (said,) = daemon.said("cannot write the mix log")
    assert has(said, "Not a directory", "run test")
    os.unlink(blocked)
    Client(daemon.socket).attach().close()
    assert os.listdir(f"{blocked}/train/test/mixes") == ["000001.cursor"], "once that is possible"
    assert daemon.stop() == 0


def test_daemons_that_share_a_log_log_each_mix_once(scene):
    second = Daemon(scene.place, scene.config, socket_path=scene.place.file("second.sock"))
    sockets = [scene.daemon.socket, second.socket]
    for logged, cursor in enumerate(["begin", "mixed", "begin", "mixed"], 1):
        scene.train(cursor, 8, 1, 1, "none", "both", sockets)
        assert len(scene.log("both")) == logged
    for logged, socket in enumerate([*sockets, sockets[0]], 1):
        scene.train(["mixed", "begin"][logged % 2], 1, 1, 1, "none", "turns", [socket])
        assert len(scene.log("turns")) == logged, "a daemon sees what the other one has logged"
    assert second.stop() == 0


# ---- steps ----


@pytest.mark.parametrize(
    "world, micro, cursor",
    [(1, 1, None), (1, 7, "at1200"), (2, 4, "mixed"), (7, 2, "at4000"), (16, 3, "at6000")],
)
def test_plan_by_step_equals_cat(scene, world, micro, cursor):
    batches, step, rank = 9, 5, world // 2
    got = scene.train(cursor, world, micro, batches, "steps", "steps").reshape(batches, -1, WINDOW)
    ask = f"plan -c CONFIG train --step {step} --world {world} --micro {micro} --tokens"
    ask += f" --cursor @{cursor}" if cursor else ""
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
    text = scene.ctl(f"{ask} {last}")
    assert has(text, "rank    row", "padding: the stream has ended")
    err = scene.ctl(f"{ask} {last + 1}", code=1)
    assert has(err, f"{last + 1} steps", f"the last is step {last}")
    err = scene.ctl(f"{ask} 0 --from {windows}", code=1)
    assert has(err, f"ends at position {windows}", "no step")
    text = scene.ctl(f"{ask} 0 --rank 1 --tokens").splitlines()
    assert len(text) == 7 and text[1].endswith(" ..."), "a head, and the first tokens of each row"


CHANGES = {
    "truncated": (
        lambda place: os.truncate(place.file("walk/0.bin"), 2000),
        "shard 0.bin at token", "was truncated"),
    "replaced": (
        lambda place: os.replace(place.shard("other", 3000, seed=2), place.file("walk/1.bin")),
        "walk/1.bin: ", "was listed"),
    "removed": (
        lambda place: os.unlink(place.file("walk/1.bin")), "walk/1.bin: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_shard_stops_plan(place, change):
    """If shards change while plan --tokens prints, it names the shard and stops."""
    act, *words = CHANGES[change]
    tokens = numpy.fromfile(place.shard("walk/0.bin", 300_000), "<u2")  # more than the pipe holds
    place.shard("walk/1.bin", 3000)
    entry = {"name": "walk", "path": "walk", "shuffle": "none"}
    stream = {"seed": 1, "seq_len": SEQ_LEN, "datasets": [entry]}
    command = [TOKCTL, "plan", "-c", place.config(streams={"train": stream}), "train"]
    command += "--from 0 --count 20000 --tokens --json".split()
    process = place.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    first = process.stdout.readline()
    act(place)
    rest, err = process.communicate(timeout=60)
    lines = (first + rest).decode().splitlines()[:-1]
    assert len(lines) > 100
    for i, line in enumerate(lines):
        assert json.loads(line)["tokens"] == list(tokens[30 * i : 30 * i + 31])
    assert process.returncode == 1 and err.count(b"\n") == 1 and has(err.decode(), *words)


PLAN, STEP = "plan -c CONFIG train", "plan -c CONFIG train --step 0"
WHEN = "when -c CONFIG train --dataset web --shard a.bin"


@pytest.mark.parametrize(
    "command, words",
    [
        (PLAN, ["--from and --count", "--step"]),
        (f"{PLAN} --from 0", ["--from and --count"]),
        (f"{PLAN} --from 0 --count 1 --world 2", ["need --step"]),
        (STEP, ["--step needs --world and --micro"]),
        (f"{STEP} --world 2", ["--step needs --world and --micro"]),
        (f"{STEP} --world 2 --micro 0", ["--micro: '0'", "from 1 to 65536"]),
        (f"{STEP} --world 0 --micro 1", ["--world: '0'", "from 1"]),
        (f"{STEP} --world 2 --micro 1 --rank 2", ["--rank 2", "below the world, 2"]),
        (f"{STEP} --world 2 --micro 1 --count 2", ["exclude each other"]),
        (f"{STEP} --world 2 --micro 1 --cursor a b", ["needs --from"]),
        (f"{PLAN} --from 0 --count 1 --run r --cursor f", ["exclude each other"]),
        (f"{PLAN} --from -1 --count 1", ["--from: '-1'", "integer"]),
        (f"{WHEN} --offset 0 --tokens 0", ["--tokens: '0'"]),
        (f"{WHEN} --offset 0 --run r --cursor f", ["exclude each other"]),
    ],
)
def test_usage_errors_name_the_option(scene, command, words):
    assert has(scene.ctl(command, code=2), *words)


def test_tokens_after_the_shards_end_are_refused(scene):
    err = scene.ctl(f"{WHEN} --offset 9000 --tokens 2", code=1)
    assert has(err, "--tokens 2: from offset 9000 on, a.bin has only 1")


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_work_does_not_grow_with_the_position(place):
    """plan does the same work at any position of 100 T tokens in 10,000 sparse shards."""
    for i in range(10_000):
        with open(place.file(f"big/s{i:05}.bin"), "wb") as f:
            f.truncate(40_000_000_000)
    dataset = {"name": "big", "path": "big", "dtype": "u32"}
    stream = {"seed": 1, "seq_len": 2048, "datasets": [dataset]}
    config = place.config("big.yaml", streams={"train": stream})
    windows = 10_000 * ref.shard_windows(10_000_000_000, 2049, 2048)
    calls, trace = [], place.file("calls")
    for at in (
        "--from 0 --count 1",
        f"--from {windows // 2} --count 1",
        f"--from {10 * windows} --count 1",
        f"--step {10**7} --world 32768 --micro 1 --rank 32767",
    ):
        strace = f"strace -f --seccomp-bpf -c -e trace=openat,pread64 -o {trace}".split()
        command = f"plan -c {config} train --tokens --json {at}"
        code, out, err = run(*strace, TOKCTL, *command.split())
        assert code == 0, err
        row = json.loads(out)
        assert row["tokens"] == [0] * 2049 and row["window"] < windows
        with open(trace) as f:
            total = next(line for line in f if line.endswith("total\n"))
        calls.append(int(total.split()[3]))
    assert 10_000 < min(calls) and max(calls) - min(calls) < 20, calls
