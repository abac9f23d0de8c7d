#!/usr/bin/env python3
"""Looking back: the log of mixes that a daemon keeps, and what plan and when say by it, against an independent implementation.

Runs are real: `tokctl cat` attaches under one run name with cursors edited on the way, as trainers do. What it wrote, what the log
says was served at each position, and what tests/python/order_reference.py computes must be one and the same.
"""

import json
import os
import random
import shutil
import subprocess

import numpy

from harness import TOKCTL, Checks, Client, Daemon, Place, run, with_parent

from lib import order_reference as ref  # noqa: E402

SEQ_LEN, WINDOW = 30, 31
SHARDS = {
    "web": {"a.bin": 9001, "b.bin": 5000},
    "code": {"x.bin": 7777},
    "math": {"m.bin": 3000, "n.bin": 2500},
}
SHUFFLE = {
    "web": {},
    "code": {"shuffle": "block", "block": 8, "group": 4},
    "math": {"shuffle": "none", "slide": True},
}
PLANNED = [(1024, (0.5, 0.5)), (3072, (0.1, 0.9)), (4096, (0, 1)), (7168, (0.9, 0.1))]


class Scene:
    """Shards, two configs (the second has one dataset more), a daemon, and the reference's order of the run."""

    def __init__(self, place, checks):
        self.place, self.checks = place, checks
        self.tokens = {}
        for dataset, shards in SHARDS.items():
            for shard, count in shards.items():
                path = place.shard(f"{dataset}/{shard}", count)
                self.tokens[dataset, shard] = numpy.fromfile(path, "<u2")
        self.small = self.write("small.yaml", ["web", "code"])
        self.config = self.write("grown.yaml", ["web", "code", "math"])
        self.daemon = Daemon(place, self.config)
        self.order = ref.Order(
            42, SEQ_LEN, [self.dataset("web"), self.dataset("code")], [0.7, 0.3], 1
        )
        self.mixes = place.file("state/train/job/mixes/x")[:-2]

    def write(self, name, datasets):
        weights = {"web": 0.7, "code": 0.3, "math": 0}
        entries = [{"name": d, "path": d, "weight": weights[d], **SHUFFLE[d]} for d in datasets]
        finite = [{"name": d, "path": d} for d in ("web", "code")]
        planned = [
            {"at": at, "weights": dict(zip(("web", "code"), mix, strict=True))}
            for at, mix in PLANNED
        ]
        return self.place.config(
            name,
            streams={
                "train": {"seed": 42, "seq_len": SEQ_LEN, "datasets": entries},
                "planned": {
                    "seed": 42,
                    "seq_len": SEQ_LEN,
                    "datasets": entries[:2],
                    "schedule": planned,
                },
                "finite": {"seed": 7, "seq_len": SEQ_LEN, "epochs": 1, "datasets": finite},
            },
        )

    def dataset(self, name):
        return ref.Dataset(name, sorted(SHARDS[name].items()), **SHUFFLE[name])

    def ctl(self, *arguments, code=0):
        status, out, err = run(TOKCTL, *arguments)
        if status != code:
            raise RuntimeError(
                f"exit {status}, want {code}: tokctl {' '.join(map(str, arguments))}: {err}"
            )
        return err if code else out

    def lines(self, *arguments):
        return [json.loads(line) for line in self.ctl(*arguments, "--json").splitlines()]

    def file(self, name):
        return self.place.file(f"cursors/{name}")

    def train(self, cursor, world, micro, batches, to, run_="job"):
        """All ranks of a run at once; what each was given, and the cursor behind it (all ranks' are the same bytes)."""
        start = ["--cursor", self.file(cursor)] if cursor else []
        ranks = []
        for rank in range(world):
            out = open(self.place.file(f"out/{rank}"), "wb")
            command = [
                TOKCTL,
                "cat",
                "train",
                "--rank",
                rank,
                "--world",
                world,
                "--micro",
                micro,
                "--batches",
                batches,
            ]
            command += [
                "--run",
                run_,
                "--socket",
                self.daemon.socket,
                *start,
                "--cursor-out",
                self.file(f"{to}-{rank}"),
            ]
            ranks.append((self.place.spawn([str(a) for a in command], stdout=out), out))
        for process, out in ranks:
            if process.wait(60):
                raise RuntimeError(f"tokctl cat: exit {process.returncode}")
            out.close()
            self.place.children.remove(process)
        cursors = {open(self.file(f"{to}-{rank}"), "rb").read() for rank in range(world)}
        self.checks.equal(f"  {to}: the cursors of {world} ranks are one", len(cursors), 1)
        shutil.copy(self.file(f"{to}-0"), self.file(to))
        got = [
            numpy.fromfile(self.place.file(f"out/{r}"), "<u2").reshape(batches, micro, WINDOW)
            for r in range(world)
        ]
        return numpy.stack(got, 1).reshape(-1, WINDOW)

    def row(self, place):
        return self.tokens[place.dataset, place.shard][place.offset : place.offset + WINDOW]

    def rows(self, order, first, count):
        return numpy.stack([self.row(order.place(i)) for i in range(first, first + count)])

    def logged(self):
        return sorted(name for name in os.listdir(self.mixes) if not name.startswith("."))

    def log_paths(self):
        return [os.path.join(self.mixes, name) for name in self.logged()]

    # -- the two questions, whatever the run's mixes are given by --

    def check_plan(self, name, order, first, count, *by, stream="train", config=None):
        got = self.lines(
            "plan", "-c", config or self.config, stream, "--from", first, "--count", count, *by
        )
        want = [vars(order.place(i)) for i in range(first, first + count)]
        bad = [(g, w) for g, w in zip(got, want) if g != w]
        self.checks.ok(name, len(got) == count and not bad, bad[:1] or len(got))

    def check_when(self, name, order, *by, cases=60, seed=1):
        """Ranges of tokens in any epoch; a window that is never served must not be named."""
        rng, bad, found = random.Random(seed), [], 0
        for _ in range(cases):
            d = rng.randrange(len(order.datasets))
            shard = rng.randrange(len(order.datasets[d].shards))
            file, total = order.datasets[d].shards[shard]
            offset, epoch = rng.randrange(total), rng.choice([0, 0, 1, 2, 7])
            tokens = min(rng.choice([1, 1, 5, 200]), total - offset)
            windows = sorted(
                {
                    w
                    for t in range(offset, offset + tokens)
                    for w in order.holding(d, shard, t, epoch)
                }
            )
            served = [(order.when(d, epoch, w), w) for w in windows]
            want = [
                {"position": p, "epoch": epoch, "window": w} for p, w in served if p is not None
            ]
            where = [
                "--dataset",
                order.datasets[d].name,
                "--shard",
                file,
                "--offset",
                offset,
                "--epoch",
                epoch,
            ]
            where += ["--tokens", tokens] if tokens > 1 else []
            code, out, err = run(TOKCTL, "when", "-c", self.config, "train", *where, *by, "--json")
            got = [json.loads(line) for line in out.splitlines()]
            if (
                got != want
                or code != (0 if want else 1)
                or (not want and "never served" not in err)
            ):
                bad.append((where, got, want, err))
            found += len(want)
        self.checks.ok(f"{name}: {found} positions", not bad and found > cases // 2, bad[:1])


# ---- a run, its mixes, its restart ----


def run_with_mixes(scene):
    checks, order = scene.checks, scene.order
    # In place of a config's schedule: the weights as a run finds them, then two announced changes and one in time.
    scene.ctl("cursor", "new", "-c", scene.small, "train", "-o", scene.file("begin"))
    got = [scene.train("begin", 2, 4, 150, "at1200")]
    scene.ctl(
        "cursor", "mix", scene.file("at1200"), "web=0.2", "code=0.8", "-o", scene.file("mixed")
    )
    got.append(scene.train("mixed", 8, 2, 25, "at1600"))
    got.append(scene.train("at1600", 3, 8, 100, "at4000"))
    scene.ctl("cursor", "add", scene.file("at4000"), "-c", scene.config, "-o", scene.file("added"))
    scene.ctl(
        "cursor", "mix", scene.file("added"), "web=1", "code=1", "math=2", "-o", scene.file("added")
    )
    got.append(scene.train("added", 4, 5, 100, "at6000"))

    order.mix(2048, [0.2, 0.8])
    order.add(scene.dataset("math"))
    order.mix(4096, [1, 1, 2])
    checks.ok(
        "what 8 ranks and 4 worlds were given is the reference's order",
        (numpy.concatenate(got) == scene.rows(order, 0, 6000)).all(),
    )
    checks.equal("one file a mix", scene.logged(), [f"{n:06}.cursor" for n in (1, 2, 3)])
    scene.train("at6000", 5, 2, 1, "at6010")
    scene.train("at6000", 5, 2, 1, "at6010")
    checks.equal(
        "one more where the announced one has acted, none for the next attach",
        len(scene.logged()),
        4,
    )
    logged = {path: open(path, "rb").read() for path in scene.log_paths()}

    for name, by in (
        ("--run", ["--run", "job"]),
        ("--cursor, any order", ["--cursor", *reversed(scene.log_paths())]),
    ):
        scene.check_plan(f"plan {name} over all mixes", order, 0, 6100, *by)
        scene.check_when(f"when {name} over all mixes", order, *by)
    return logged


def restart(scene, logged):
    """From an older checkpoint, with other weights: what came after it has not happened."""
    checks = scene.checks
    other = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    other.mix(3072, [0, 1])
    scene.ctl(
        "cursor", "mix", scene.file("at1200"), "--at", 3072, "code=1", "-o", scene.file("fork")
    )
    got = scene.train("fork", 4, 5, 150, "fork4200")
    checks.ok(
        "after a restart with another mix the order is another",
        (got == scene.rows(other, 1200, 3000)).all(),
    )
    scene.check_plan("plan --run tells that one", other, 0, 5000, "--run", "job")
    scene.check_when("when --run too", other, "--run", "job", seed=2)
    checks.ok(
        "no file of the log was ever changed",
        all(open(path, "rb").read() == was for path, was in logged.items()),
    )
    scene.train("fork4200", 1, 1, 1, "none")
    scene.check_plan("  and when that mix has acted", other, 0, 5000, "--run", "job")
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
    checks.has("its files without their order do not join", err, "do not join")

    # The older mix again, as it was: the log must say so, though that mix has been logged before.
    scene.train("at4000", 1, 1, 1, "back")
    known = scene.order.known_from(len(scene.order.segments))
    known.segments = known.segments[:2]
    scene.check_plan("back to the first way, before its last mix", known, 0, 5000, "--run", "job")


def announced_and_replaced(scene):
    """Several pending segments, some of which never came to act."""
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
        "a mix that was replaced before it acted is not told", order, 0, 6000, "--run", "replaced"
    )
    scene.check_plan(
        "nor by cursors",
        order,
        0,
        6000,
        *(a for c in ("p5", "p6", "p1", "p4", "p0", "p2") for a in ("--cursor", file(c))),
    )
    scene.check_plan(
        "over one that only its announcement knows",
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
            "of two announcements the later one counts",
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
    scene.checks.ok(
        "what does not follow is where looking back ends",
        code == 0 and json.loads(out)["position"] == 3072,
        err,
    )
    scene.checks.has(
        "  and is said", err, "000002.cursor", "does not follow", "ends at position 3072"
    )
    err = ctl(
        "plan", "-c", scene.config, "train", "--from", 3071, "--count", 1, "--run", "gap", code=1
    )
    scene.checks.has("  and before it nothing is", err, "--from 3071 lies before 3072")


def schedule(scene):
    """Many announced at once: cursors far apart join over those between them."""
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
    scene.check_plan("  without cursors", order, 0, 9000, stream="planned")
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
    scene.checks.has("  not before the first", err, "--from 1023 lies before 1024")
    ctl(
        "cursor", "mix", file("s1"), "web=1", "code=1", "-o", file("s4")
    )  # replaces all that was announced
    ctl("cursor", "seek", file("s4"), "--to", 2100, "-o", file("s5"))
    other = ref.Order(42, SEQ_LEN, [scene.dataset("web"), scene.dataset("code")], [0.7, 0.3], 1)
    other.mix(*PLANNED[0])
    other.mix(2048, [1, 1])
    scene.check_plan(
        "  and what took its place",
        other,
        0,
        9000,
        "--cursor",
        file("s5"),
        file("s0"),
        stream="planned",
    )


def another_run_of_that_name(scene):
    """From the beginning, of a stream that has become another: what was logged before is of no account."""
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
    scene.checks.ok(
        "a run begun anew under a name that was used: no complaint", code == 0 and not err, err
    )
    scene.check_plan("  its own order", order, 0, 3000, "--run", "again", config=config)
    err = scene.ctl(
        "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--run", "again", code=1
    )
    scene.checks.has(
        "  which is none of the former stream",
        err,
        "000002.cursor",
        "does not belong to stream train",
        "seed",
    )
    scene.checks.equal("  exit 0", daemon.stop(), 0)


# ---- bad logs ----


def damaged(scene):
    checks, paths = scene.checks, scene.log_paths()
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
        checks.ok(
            f"the newest {name}: refused in one line that names it",
            newest in err and err.count("\n") == 1,
            err,
        )
    scene.train("at6000", 2, 1, 1, "none")
    checks.equal("the next attach logs its mix behind it", len(scene.log_paths()), len(paths) + 1)
    code, out, err = run(TOKCTL, *ask, 6000)
    checks.ok(
        "and then one can look back so far",
        code == 0 and newest in err and "looking back ends at position 4096" in err,
        err,
    )
    os.unlink(scene.log_paths()[-1])
    with open(newest, "wb") as f:
        f.write(sound[newest])
    err = scene.ctl(
        "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--run", "nobody", code=1
    )
    checks.has(
        "a run that never was", err, "--run nobody", "state/train/nobody/mixes", "No such file"
    )
    err = scene.ctl(
        "plan", "-c", scene.config, "train", "--from", 0, "--count", 1, "--run", "../job", code=1
    )
    checks.has("a run that is no name", err, "--run ../job")


def log_goes_nowhere(scene):
    """A state_dir that takes nothing: one line, and the run goes on."""
    place, checks = scene.place, scene.checks
    whole = json.load(open(scene.config))
    whole["state_dir"] = place.file("blocked")
    config = place.config("blocked.yaml", **{**whole, "socket": place.file("blocked.sock")})
    with open(place.file("blocked"), "w") as f:
        f.write("no directory")
    daemon = Daemon(place, config)
    for _ in range(3):
        client = Client(daemon.socket).attach()
        checks.ok("a log that cannot be written does not stop the run", client.next() is not None)
        client.close()
    said = [line for line in daemon.log().splitlines() if "is not in the log" in line]
    checks.ok(
        "  one line says so",
        len(said) == 1 and "Not a directory" in said[0] and "run test" in said[0],
        said,
    )
    os.unlink(place.file("blocked"))
    client = Client(daemon.socket).attach()
    client.close()
    checks.equal(
        "  and it is made up for when it can be",
        os.listdir(place.file("blocked/train/test/mixes")),
        ["000001.cursor"],
    )
    checks.equal("  exit 0", daemon.stop(), 0)


def two_daemons(scene):
    """They share a state_dir, as nodes of a job may: each mix is logged once, whoever attaches first."""
    place, checks = scene.place, scene.checks
    second = Daemon(place, scene.config, socket_path=place.file("second.sock"))
    sockets = [scene.daemon.socket, second.socket]
    for round_, cursor in enumerate(["begin", "mixed", "begin", "mixed"]):
        both = []
        for rank in range(8):
            command = [
                TOKCTL,
                "cat",
                "train",
                "--rank",
                rank,
                "--world",
                8,
                "--micro",
                1,
                "--batches",
                1,
                "--run",
                "both",
            ]
            command += ["--socket", sockets[rank % 2], "--cursor", scene.file(cursor)]
            both.append(place.spawn([str(a) for a in command], stdout=subprocess.DEVNULL))
        codes = [process.wait(60) for process in both]
        names = sorted(os.listdir(place.file("state/train/both/mixes/x")[:-2]))
        want = [f"{n:06}.cursor" for n in range(1, round_ + 2)]
        checks.ok(
            f"two daemons, 8 ranks, mix {round_}: one file",
            not any(codes) and names == want,
            (codes, names),
        )
    for socket, cursor in zip([*sockets, sockets[0]], ["begin", "mixed", "begin"], strict=True):
        scene.ctl("cat", "train", "--rank", 0, "--world", 1, "--micro", 1, "--batches", 1, "--run", "turns",
                  "--socket", socket, "--cursor", scene.file(cursor))  # fmt: skip
    names = sorted(os.listdir(place.file("state/train/turns/mixes/x")[:-2]))
    checks.equal(
        "one daemon sees what the other has logged", names, [f"{n:06}.cursor" for n in (1, 2, 3)]
    )
    checks.equal("exit 0", second.stop(), 0)


# ---- steps ----


def steps(scene):
    checks, rng, bad = scene.checks, random.Random(3), []
    for world, micro in ((1, 1), (1, 7), (2, 4), (3, 5), (7, 2), (16, 3)):
        cursor = rng.choice([None, "at1200", "mixed", "at4000", "at6000"])
        batches = rng.randrange(3, 12)
        by = ["--cursor", scene.file(cursor)] if cursor else []
        got = scene.train(
            cursor, world, micro, batches, f"steps-{world}-{micro}", run_="steps"
        ).reshape(batches, world, micro, WINDOW)
        step, rank = rng.randrange(batches), rng.randrange(world)
        ask = [
            "plan",
            "-c",
            scene.config,
            "train",
            "--step",
            step,
            "--world",
            world,
            "--micro",
            micro,
            *by,
            "--tokens",
        ]
        rows = scene.lines(*ask)
        named = [(row["rank"], row["row"]) for row in rows]
        if named != [(r, b) for r in range(world) for b in range(micro)]:
            bad.append((world, micro, named))
        if ([row["tokens"] for row in rows] != got[step].reshape(-1, WINDOW)).any():
            bad.append((world, micro, "tokens"))
        if scene.lines(*ask, "--rank", rank) != rows[rank * micro : (rank + 1) * micro]:
            bad.append((world, micro, "--rank"))
        if scene.lines(*ask, "--from", rows[0]["position"] - step * world * micro) != rows:
            bad.append((world, micro, "--from"))
    checks.ok("plan --step --tokens is what cat gave, for six worlds", not bad, bad[:2])

    windows = sum(
        ref.shard_windows(t, WINDOW, SEQ_LEN) for d in ("web", "code") for t in SHARDS[d].values()
    )
    world, micro = 4, 6
    last = ref.ceil_div(windows, world * micro) - 1
    ask = ["plan", "-c", scene.config, "finite", "--world", world, "--micro", micro]
    rows = scene.lines(*ask, "--tokens", "--step", last)
    left = windows - last * world * micro
    checks.equal("the last step of a finite stream", [row["position"] for row in rows],
                 [*range(last * world * micro, windows), *[None] * (world * micro - left)])  # fmt: skip
    checks.ok(
        "  padding has no tokens",
        all((row["tokens"] is None) == (row["position"] is None) for row in rows),
    )
    checks.has(
        "  for people",
        scene.ctl(*ask, "--step", last).decode(),
        "rank    row",
        "padding: the stream has ended",
    )
    checks.has(
        "  none after it",
        scene.ctl(*ask, "--step", last + 1, code=1),
        f"{last + 1} steps",
        f"the last is {last}",
    )
    err = scene.ctl(*ask, "--step", 0, "--from", windows, code=1)
    checks.has("  none at the end", err, f"ends at position {windows}", "no step")
    text = scene.ctl(*ask, "--step", 0, "--rank", 1, "--tokens").decode().splitlines()
    checks.ok(
        "text: a head, a line a row, the first tokens",
        len(text) == 1 + micro and text[1].endswith(" ..."),
        text[:2],
    )


def shards_change(scene):
    """While plan --tokens waits for whoever reads it, its shards become others: it says so and stops."""
    checks, place = scene.checks, scene.place
    entry = [{"name": "walk", "path": "walk", "shuffle": "none"}]
    config = place.config(
        "walk.yaml", streams={"train": {"seed": 1, "seq_len": SEQ_LEN, "datasets": entry}}
    )
    for name, change, *words in (
        (
            "truncated",
            lambda: os.truncate(place.file("walk/0.bin"), 2000),
            "shard 0.bin at token",
            "it was truncated",
        ),
        (
            "replaced",
            lambda: os.replace(place.shard("walk-other", 3000, seed=2), place.file("walk/1.bin")),
            "walk/1.bin: ",
            "was listed",
        ),
        ("removed", lambda: os.unlink(place.file("walk/1.bin")), "walk/1.bin: No such file"),
    ):
        tokens = numpy.fromfile(
            place.shard("walk/0.bin", 300_000), "<u2"
        )  # far more lines than the pipe holds
        place.shard("walk/1.bin", 3000)
        command = [
            TOKCTL,
            "plan",
            "-c",
            config,
            "train",
            "--from",
            "0",
            "--count",
            "20000",
            "--tokens",
            "--json",
        ]
        process = place.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        first = process.stdout.readline()
        change()
        rest, err = process.communicate(timeout=60)
        lines = (first + rest).decode().splitlines()
        sound = all(
            json.loads(line)["tokens"] == list(tokens[30 * i : 30 * i + 31])
            for i, line in enumerate(lines[:-1])
        )
        checks.ok(
            f"a shard {name} meanwhile: what came before is right",
            sound and len(lines) > 100,
            len(lines),
        )
        checks.equal("  exit 1", process.returncode, 1)
        checks.has("  one line names it", err.decode(), *words)
        checks.equal("  in one line", err.count(b"\n"), 1)


# ---- usage ----


def usage(scene):
    checks, plan = scene.checks, ["plan", "-c", scene.config, "train"]
    step = [*plan, "--step", 0]
    when = ["when", "-c", scene.config, "train", "--dataset", "web", "--shard", "a.bin"]
    for arguments, *words in (
        (plan, "--from and --count", "--step"),
        ([*plan, "--from", 0], "--from and --count"),
        ([*plan, "--from", 0, "--count", 1, "--world", 2], "go with --step"),
        (step, "--step needs --world and --micro"),
        ([*step, "--world", 2], "--step needs --world and --micro"),
        ([*step, "--world", 2, "--micro", 0], "--micro 0", "from 1 to 65536"),
        ([*step, "--world", 0, "--micro", 1], "--world 0", "from 1"),
        ([*step, "--world", 2, "--micro", 1, "--rank", 2], "--rank 2", "below the world, 2"),
        ([*step, "--world", 2, "--micro", 1, "--count", 2], "exclude each other"),
        ([*step, "--world", 2, "--micro", 1, "--cursor", "a", "b"], "needs --from"),
        ([*plan, "--from", 0, "--count", 1, "--run", "r", "--cursor", "f"], "exclude each other"),
        ([*plan, "--from", -1, "--count", 1], "--from -1", "whole number"),
        ([*when, "--offset", 0, "--tokens", 0], "--tokens 0"),
        ([*when, "--offset", 0, "--run", "r", "--cursor", "f"], "exclude each other"),
    ):
        err = scene.ctl(*arguments, code=2)
        checks.has(f"usage: {' '.join(map(str, arguments[3:]))}", err, *words)
    err = scene.ctl(*when, "--offset", 9000, "--tokens", 2, code=1)
    checks.has("tokens beyond the shard", err, "a.bin has 9001 tokens", "beyond")


# ---- scale ----


def scale(scene):
    """100 T tokens in 10,000 sparse shards: the same work at any position."""
    place, checks = scene.place, scene.checks
    for i in range(10_000):
        with open(place.file(f"big/s{i:05}.bin"), "wb") as f:
            f.truncate(40_000_000_000)
    stream = {
        "seed": 1,
        "seq_len": 2048,
        "datasets": [{"name": "big", "path": "big", "dtype": "u32"}],
    }
    config = place.config("big.yaml", streams={"train": stream})
    windows = 10_000 * ref.shard_windows(10_000_000_000, 2049, 2048)
    worlds = ["--step", 10**7, "--world", 32768, "--micro", 1, "--rank", 32767]
    asks = {
        "begin": ["--from", 0],
        "middle": ["--from", windows // 2],
        "epoch 10": ["--from", 10 * windows],
    }
    calls = {}
    for name, at in {**asks, "a step of 32768 ranks": worlds}.items():
        count = [] if "--step" in at else ["--count", 1]
        trace = place.file("calls")
        follow = ["strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=openat,pread64", "-o", trace]
        command = follow if shutil.which("strace") else []
        done = subprocess.run([*command, *map(str, [TOKCTL, "plan", "-c", config, "train", *at, *count, "--tokens", "--json"])],
                              capture_output=True, timeout=60, preexec_fn=with_parent)  # fmt: skip
        row = json.loads(done.stdout)
        checks.ok(
            f"100 T tokens: {name}",
            row["tokens"] == [0] * 2049 and row["window"] < windows,
            done.stderr,
        )
        if command:
            total = next(line for line in open(trace) if line.endswith("total\n"))
            calls[name] = int(total.split()[3])
    if calls:
        checks.ok(
            "  the same reads",
            10_000 < min(calls.values()) and max(calls.values()) - min(calls.values()) < 20,
            calls,
        )
    else:
        checks.skip("  the same reads", "strace is not installed")


def main():
    checks = Checks()
    with Place() as place:
        scene = Scene(place, checks)
        logged = run_with_mixes(scene)
        steps(scene)
        restart(scene, logged)
        damaged(scene)
        announced_and_replaced(scene)
        schedule(scene)
        another_run_of_that_name(scene)
        two_daemons(scene)
        log_goes_nowhere(scene)
        shards_change(scene)
        usage(scene)
        scale(scene)
        checks.equal("exit 0", scene.daemon.stop(), 0)
    checks.exit()


if __name__ == "__main__":
    main()
