"""A run with several mixes, and its order by the reference."""

import json
import os
import random
import shutil

import numpy

from lib import TOKCTL, Daemon, run
from lib import order_reference as ref

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
    """Shards, two configs (the second has an additional dataset), a daemon, and the run's order by
    the reference.
    """

    def __init__(self, place):
        self.place = place
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
        """Runs all ranks at once. Returns the tokens of each, and the cursor after them (all ranks'
        are equal).
        """
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
        assert len(cursors) == 1, f"{to}: the cursors of {world} ranks are equal"
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

    # -- plan and when, with the mixes given by the config, cursors or a run --

    def check_plan(self, name, order, first, count, *by, stream="train", config=None):
        got = self.lines(
            "plan", "-c", config or self.config, stream, "--from", first, "--count", count, *by
        )
        want = [vars(order.place(i)) for i in range(first, first + count)]
        bad = [(g, w) for g, w in zip(got, want) if g != w]
        assert len(got) == count and not bad, (name, bad[:1] or len(got))

    def check_when(self, name, order, *by, cases=60, seed=1):
        """Asks for random ranges of tokens. Windows that are never served must not be printed."""
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
        assert not bad and found > cases // 2, (f"{name}: {found} positions", bad[:1])


# ---- a run, its mixes, its restart ----


def run_with_mixes(scene):
    order = scene.order
    # Instead of a config's schedule: the first weights, then two changes announced early and one
    # just in time.
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
    assert (numpy.concatenate(got) == scene.rows(order, 0, 6000)).all(), (
        "the tokens of 8 ranks in 4 worlds are in the reference's order"
    )
    assert scene.logged() == [f"{n:06}.cursor" for n in (1, 2, 3)], "there is one file per mix"
    scene.train("at6000", 5, 2, 1, "at6010")
    scene.train("at6000", 5, 2, 1, "at6010")
    assert len(scene.logged()) == 4, (
        "an announced mix is logged again once it is in force, an attach without a new mix is not"
    )
    logged = {path: open(path, "rb").read() for path in scene.log_paths()}

    for name, by in (
        ("--run", ["--run", "job"]),
        ("--cursor, in any order", ["--cursor", *reversed(scene.log_paths())]),
    ):
        scene.check_plan(f"plan {name} over all mixes", order, 0, 6100, *by)
        scene.check_when(f"when {name} over all mixes", order, *by)
    return logged
