"""`tokctl cursor` makes the same edits as an independent implementation,
tests/lib/edits_reference.py.

Each random configuration, with a schedule and max_epochs, gets a random chain of edits. After every
edit, segments, ends of datasets, and the output of `tokctl plan` and `tokctl when` must equal the
reference's; both must refuse the same edits. An edit prints the same as `tokctl cursor diff`.

TOKEND_SEED repeats a run; TOKEND_CONFIGS makes a longer one.
"""

import collections
import json
import os
import random
import re

import pytest
from configurations import CONFIGS, Configuration, Wrong, check_plan, differs, lines, tokctl

from lib import TOKCTL, TOKEND, Daemon, has, run
from lib import edits_reference as edits
from lib import order_reference as ref

BLOCK = ref.BLOCK
counts = collections.Counter()


class Planned(Configuration):
    """A configuration with a schedule. `cursor` is the reference's first cursor."""

    def __init__(self, place, rng):
        self.max_epochs = {}
        self.plan = []
        super().__init__(place, rng)

    # -- its parts --

    def dataset(self, name):
        dataset = super().dataset(name)
        self.max_epochs.pop(name, None)  # of a dataset that was drawn and discarded
        if self.rng.random() < 0.5:
            self.max_epochs[name] = self.rng.choice([1, 3, 40, 300, 3000, 10**6, 2**64 - 1])
            self.entries[-1]["max_epochs"] = self.max_epochs[name]
        return dataset

    def steps(self, datasets, behind=0):
        """A random schedule; some of its steps may be in the past."""
        found, at = [], BLOCK * self.rng.choice([0, 0, 1, behind // BLOCK, self.rng.randrange(40)])
        for _ in range(self.rng.randrange(6)):
            room = self.rng.choice([1, 2, 7, 60, 2**30])
            if self.rng.random() < 0.5:
                steps = self.rng.randrange(1, min(room, 8) + 1)
                found.append(edits.Step(at, at + room * BLOCK, steps, self.weights(datasets)))
                at += room * BLOCK
            else:
                at += BLOCK * self.rng.choice([1, 3, 50])
                found.append(edits.Step(at, at, 1, self.weights(datasets)))
            at += BLOCK * self.rng.choice([0, 0, 1, 20])
        return found

    def make_order(self):
        if self.rng.random() < 0.2:
            self.keys["samples"] = self.rng.randrange(1, 10**5)
        for _ in range(12):
            weights = self.weights(self.datasets)
            for entry, weight in zip(self.entries, weights):
                entry["weight"] = weight
            self.plan = [] if "samples" in self.keys else self.steps(self.datasets)
            order = self.reference(self.datasets, weights)
            try:
                self.cursor = edits.Cursor(order, self.max_epochs, weights, self.plan)
                return order
            except edits.Refused:
                self.check_refused()
        for (
            entry
        ) in self.entries:  # with these limits no dataset would be left, whatever the weights
            entry.pop("max_epochs", None)
        self.max_epochs = {}
        self.cursor = edits.Cursor(order, {}, weights, self.plan)
        return order

    def check_refused(self):
        """Without a dataset left, or with too small a weight, one line names the line of the
        config.
        """
        path = self.write("refused.yaml", self.entries)
        done = tokctl("cursor", "new", "-c", path, "train", "-o", self.place.file("never"), ok=(1,))
        why = "( no dataset is left | is never served)"
        if not re.fullmatch(
            rf"tokctl: {re.escape(path)}:\d+: streams\.train: .+{why}.+\n", done.stderr.decode()
        ):
            raise Wrong(f"refused with {done.stderr!r}")
        counts["plans refused"] += 1

    def entry_of(self, step):
        weights = {
            d.name: w for d, w in zip(self.datasets, step.weights) if w or self.rng.random() < 0.3
        }
        if step.at == step.to:
            return {"at": step.at, "weights": weights}
        return {"from": step.at, "to": step.to, "steps": step.steps, "weights": weights}

    def write(self, name, entries, plan=None):
        """Writes the config with the schedule. `entries` are its datasets."""
        path = super().write(name, entries)
        with open(path) as f:
            whole = json.load(f)
        plan = self.plan if plan is None else plan
        if plan:
            whole["streams"]["train"]["schedule"] = [self.entry_of(step) for step in plan]
        with open(path, "w") as f:
            json.dump(whole, f, indent=1)
        return path


class Run:
    """Random edits of a cursor file, and the same edits of the reference's cursor."""

    def __init__(self, c):
        self.c, self.cursor, self.files = c, c.cursor, []
        tokctl("cursor", "new", "-c", c.path, "train", "-o", self.file())
        self.check("new")

    @property
    def path(self):
        return self.files[-1]

    def file(self):
        self.files.append(self.c.place.file(f"cursor-{len(self.files)}"))
        return self.files[-1]

    # -- one edit --

    def edit(self, expected, verb, *arguments):
        """Edits the file; @expected edits the reference. Either both refuse or none."""
        before = self.path
        to = self.c.place.file("refused")
        try:
            expected()
            refused = False
        except edits.Refused:
            refused = True
        if refused:
            done = tokctl("cursor", verb, before, *arguments, "-o", to, ok=(1,))
            errors = [
                line for line in done.stderr.decode().splitlines() if "is not named" not in line
            ]
            if done.stdout or len(errors) != 1 or os.path.exists(to):
                raise Wrong(f"{verb} {arguments} refused with {done.stdout!r} and {done.stderr!r}")
            counts[f"{verb} refused"] += 1
            return
        json_too = ["--json"] if self.c.rng.random() < 0.5 else []
        done = tokctl("cursor", verb, before, *arguments, *json_too, "-o", self.file())
        difference = tokctl("cursor", "diff", before, self.path, *json_too, ok=(0, 1))
        differs(
            ["cursor", verb, *arguments], done.stdout.splitlines(), difference.stdout.splitlines()
        )
        if (difference.returncode == 0) != (
            open(before, "rb").read() == open(self.path, "rb").read()
        ):
            raise Wrong(f"cursor diff {before} {self.path}: exit {difference.returncode}")
        for line in lines(done) if json_too else []:
            differs(["the keys of a difference"], sorted(line), ["field", "left", "right"])
        counts[verb] += 1
        self.check(verb, *arguments)

    def check(self, *edit):
        """Compares the file with the reference."""
        shown = json.loads(tokctl("cursor", "show", self.path, "--json").stdout)
        cursor = self.cursor
        got = [(s["start"], s["units"], s["base"]) for s in shown["segments"]]
        want = [(s.start, cursor.wide(s.units), cursor.wide(s.base)) for s in cursor.segments]
        differs([*edit, ": segments of", self.path], got, want)
        differs([*edit, ": next"], [shown["next"]], [cursor.next])
        ends = [(d["max_epochs"], d["ends_at"], d["unserved"]) for d in shown["datasets"]]
        names = [d.name for d in cursor.order.datasets]
        want = [
            (cursor.max_epochs.get(name), *(cursor.unserved(d) or (None, None)))
            for d, name in enumerate(names)
        ]
        differs([*edit, ": ends of datasets"], ends, want)
        counts["segments"] += len(got)

    # -- the edits --

    def seek(self):
        rng, cursor = self.c.rng, self.cursor
        starts = [s.start for s in cursor.segments]
        near = rng.choice(starts) + rng.choice([-1, 0, 1, 500, 1024, -1024])
        position = rng.choice(
            [
                near,
                cursor.next + rng.randrange(5000),
                rng.choice([cursor.order.end, cursor.order.end + 1]),
            ]
        )
        position = min(max(position, 0), ref.TWO64 - 10**7)
        self.edit(lambda: cursor.seek(position), "seek", "--to", position)

    def skip(self):
        samples = self.c.rng.choice([0, 1, 1023, 1024, self.c.rng.randrange(30000)])
        self.edit(lambda: self.cursor.skip(samples), "skip", "--samples", samples)

    def some_at(self):
        """None: the earliest possible. Sometimes an invalid one."""
        rng, least = self.c.rng, self.cursor.mix_at()
        at = rng.choice(
            [
                None,
                least,
                least + 1024 * rng.randrange(60),
                rng.choice([s.start for s in self.cursor.segments]),
            ]
        )
        at = rng.choice([at] * 6 + [least - 1024, least + 1])
        return (least, []) if at is None or at < 0 else (at, ["--at", at])

    def mix(self):
        rng, cursor = self.c.rng, self.cursor
        at, arguments = self.some_at()
        weights = self.c.weights(cursor.order.datasets)
        named = [
            f"{d.name}={w!r}"
            for d, w in zip(cursor.order.datasets, weights)
            if w or rng.random() < 0.5
        ]
        self.edit(lambda: cursor.mix(at, weights), "mix", *arguments, *named)

    def remove(self):
        at, arguments = self.some_at()
        d = self.c.rng.randrange(len(self.cursor.order.datasets))
        self.edit(
            lambda: self.cursor.remove(d, at),
            "remove",
            self.cursor.order.datasets[d].name,
            *arguments,
        )

    def schedule(self):
        """Another schedule, and other limits."""
        c, rng, cursor = self.c, self.c.rng, self.cursor
        steps = [] if "samples" in c.keys else c.steps(c.datasets, behind=cursor.next)
        entries, limits = [], {}
        for entry in c.entries:
            entry = {**entry}
            if rng.random() < 0.3:
                entry.pop("max_epochs", None)
            elif rng.random() < 0.3:
                entry["max_epochs"] = rng.choice([1, 50, 5000])
            limits.update({entry["name"]: entry["max_epochs"]} if "max_epochs" in entry else {})
            entries.append(entry)
        path = c.write("replanned.yaml", entries, steps)
        weight = {entry["name"]: entry["weight"] for entry in entries}
        plan = list(steps)
        if (
            plan and plan[0].at < plan[0].to and plan[0].at < cursor.mix_at()
        ):  # a ramp that has begun starts from the config's weights
            plan.insert(0, edits.Step(0, 0, 1, [weight[d.name] for d in cursor.order.datasets]))
        if (
            tokctl(
                "cursor", "new", "-c", path, "train", "-o", c.place.file("replanned"), ok=(0, 1)
            ).returncode
            == 0
        ):
            self.edit(lambda: cursor.schedule(plan, limits), "schedule", "-c", path)

    def add(self):
        if len(self.c.datasets) > len(self.cursor.order.datasets) or len(self.c.datasets) == 7:
            return
        c, cursor = self.c, self.cursor
        c.grow()  # c.order is also the cursor's, so it has the new dataset
        name = c.datasets[-1].name
        if name in c.max_epochs:
            cursor.max_epochs[name] = c.max_epochs[name]
        self.edit(lambda: None, "add", "-c", c.path)

    # -- the order --

    def check_order(self):
        """Compares plan and when with the reference, around the start of every segment."""
        c, order = self.c, self.cursor.known()
        arguments = ["--cursor", self.path]
        first, last = order.segments[0].start, min(order.end, ref.TWO64 - 10**6)
        starts = [first, self.cursor.next, c.rng.randrange(first, max(first + 1, last))]
        edges = [s.start - 3 for s in order.segments[1:]]
        for start in {*starts, *c.rng.sample(edges, min(3, len(edges)))}:
            start = min(max(start, first), order.end)
            counts["lines of plan"] += check_plan(
                c, order, start, 1 + c.rng.randrange(30), *arguments
            )
            place = order.place(start)
            if place:
                counts["lines of when"] += self.check_back(order, start, place, arguments)

    def check_back(self, order, position, place, arguments):
        d = [dataset.name for dataset in order.datasets].index(place.dataset)
        shard = [path for path, _ in order.datasets[d].shards].index(place.shard)
        served = [
            (order.when(d, place.epoch, w), w)
            for w in order.holding(d, shard, place.offset, place.epoch)
        ]
        want = [
            {"position": p, "epoch": place.epoch, "window": w} for p, w in served if p is not None
        ]
        assert position in [line["position"] for line in want], "the reference contradicts itself"
        where = [
            "--dataset",
            place.dataset,
            "--shard",
            place.shard,
            "--offset",
            place.offset,
            "--epoch",
            place.epoch,
        ]
        arguments = ["when", "-c", self.c.path, "train", *where, "--json", *arguments]
        differs(arguments, sorted(lines(tokctl(*arguments)), key=lambda line: line["window"]), want)
        return len(want)

    def wander(self):
        self.check_order()
        for _ in range(self.c.rng.randrange(2, 9)):
            kinds = [self.seek, self.skip, self.mix, self.remove, self.schedule, self.add]
            self.c.rng.choices(kinds, [2, 2, 3, 2, 3, 1])[0]()
            if self.c.rng.random() < 0.5:
                self.check_order()
        self.check_order()


# ---- errors and output ----

PLAIN = {
    "seed": 7,
    "seq_len": 32,
    "datasets": [
        {"name": "web", "path": "web.bin", "weight": 3},
        {"name": "code", "path": "code.bin", "max_epochs": 2},
    ],
    "schedule": [
        {"at": 4096, "weights": {"web": 0.5, "code": 0.5}},
        {"from": 8192, "to": 40960, "steps": 32, "weights": {"web": 1, "code": 4}},
    ],
}

FAULTS = [
    # arguments after the file, exit status, words of the line
    (["mix", "wab=1"], 1, ["no dataset wab"]),
    (["mix", "web=nan"], 2, ["web=nan", "finite"]),
    (["mix", "web=-1"], 2, ["web=-1", "≥ 0"]),
    (["mix", "web=0", "code=0"], 1, ["weights", "above 0"]),
    (["mix", "web=1", "web=2"], 1, ["web", "two weights"]),
    (["mix", "web=1", "code=1e-12"], 1, ["code", "never served"]),
    (["mix"], 2, ["cursor mix: needs"]),
    (["mix", "web=1", "--at", "7000"], 1, ["7000 is not a multiple of 1024; use 7168"]),
    (["mix", "web=1", "--at", "4096"], 1, ["4096 is too early", "use 6144"]),
    (["mix", "web=1", "--at", "-1"], 2, ["--at: '-1'"]),
    (["mix", "code=1"], 1, ["no dataset is left"]),
    (["remove", "wab"], 1, ["no dataset wab"]),
    (["remove", "code", "--at", "6145"], 1, ["use 7168"]),
    (["remove", "code", "--at", "102400"], 1, ["code", "0 already from position 102400 on"]),
    (["remove", "web"], 1, ["web", "no other dataset"]),
    (["remove"], 2, ["cursor remove: needs"]),
    (["remove", "web", "code"], 2, ["unexpected argument 'code'"]),
    (["skip", "--samples", "18446744073709551615"], 1, ["samples", "past"]),
    (["skip", "--samples", "1.5"], 2, ["--samples: '1.5'"]),
    (["skip"], 2, ["cursor skip: needs --samples"]),
    (["skip", "--samples", "1", "--at", "1"], 2, ["unknown option --at"]),
    (["seek", "--to", "4095"], 1, ["4095 is before 4096"]),
    (["schedule"], 2, ["cursor schedule: needs -c"]),
    (["schedule", "-c", "nowhere.yaml"], 1, ["nowhere.yaml"]),
]


def wrong_faults(path, to):
    """The faults that do not print exactly one line on stderr, or that write a file."""
    wrong = {}
    for (verb, *arguments), status, words in FAULTS:
        code, out, err = run(TOKCTL, "cursor", verb, path, *arguments, "-o", to)
        said = [line for line in err.splitlines() if "is not named" not in line]
        if (
            code != status
            or out
            or len(said) != 1
            or os.path.exists(to)
            or any(word not in err for word in words)
        ):
            wrong[verb, *arguments] = code, out, err
    return wrong


def test_output_and_errors(place):
    place.shard("web.bin", 200_000)
    place.shard("code.bin", 320_100)
    config = place.config(streams={"train": PLAIN})
    path, to = place.file("cursor"), place.file("edited")
    tokctl("cursor", "new", "-c", config, "train", "-o", path)
    text = tokctl("cursor", "show", path).stdout.decode()
    shown = json.loads(tokctl("cursor", "show", path, "--json").stdout)
    code = shown["datasets"][1]
    rows = text.splitlines()
    table = rows[rows.index("") + 6 :]
    assert len(table) == len(shown["segments"]) > 20 and max(map(len, rows)) < 130, (
        "a schedule of many mixes is printed as one line each",
        text,
    )
    starts = [int(row.split()[0]) for row in table]
    assert starts == [segment["start"] for segment in shown["segments"]], "in order"
    assert has(table[1], "50.000000 %"), "shares are in percent"
    named = [row.split() for row in rows if row.startswith("code ")]
    assert named[0][3:] == ["2", str(code["ends_at"]), str(code["unserved"])], (
        "max_epochs, the end and the unserved windows are printed"
    )

    end = (
        f"code: max_epochs 2: ends at position {code['ends_at']}; {code['unserved']} of its 2 × "
        f"{code['windows']} windows"
    )
    end += " are never served"
    changes = f"schedule: 2 steps; {len(shown['segments']) - 1} changes of the mix in all"
    status, out, err = run(TOKEND, "-c", config, "--check")
    assert status == 0 and not err and f"  {end}\n  {changes}\n" in out.decode(), (
        "tokend --check prints the same",
        (status, out, err),
    )
    daemon = Daemon(place, config)
    log = daemon.log()
    daemon.stop()
    lines = [f"tokend: stream train: {line}\n" for line in (end, changes)]
    assert all(log.count(line) == 1 for line in lines), ("the log of tokend has it once", log)

    tokctl("cursor", "seek", path, "--to", 6000, "-o", path)
    wrong = wrong_faults(path, to)
    assert not wrong, (f"{len(FAULTS)} faults print one line each and write nothing", wrong)

    done = tokctl("cursor", "mix", path, "web=1", "-o", to)
    assert has(done.stdout.decode(), "mix from 6144: absent | web 100.000000 %\n", " | absent\n"), (
        "a mix prints what has changed"
    )
    said = [
        "tokctl: dataset code is not named and gets weight 0",
        "tokctl: the new mix begins at position 6144",
    ]
    assert done.stderr.decode().splitlines() == said, (
        "stderr names datasets without weight, and the start of the mix"
    )
    done = tokctl("cursor", "skip", to, "--samples", 0, "-o", to)
    assert (done.stdout, done.stderr) == (b"", b""), "an edit that changes nothing prints nothing"
    assert tokctl("cursor", "diff", to, to).stdout == b"", "diff of equal cursors prints nothing"


def test_cursors_that_differ_in_nothing_but_the_datasets_of_a_mix_differ(place):
    """A dataset joins a run, and the same schedule is set again: its mixes now know the dataset."""
    place.shard("web.bin", 200_000)
    rows = [{"name": n, "path": "web.bin", "weight": 1} for n in ("a", "b", "c")]
    stream = {"seed": 1, "seq_len": 32, "schedule": [{"at": 4096, "weights": {"a": 3, "b": 1}}]}
    old = place.config("old.yaml", streams={"train": {**stream, "datasets": rows}})
    rows = [*rows, {**rows[0], "name": "d", "weight": 0}]
    new = place.config("new.yaml", streams={"train": {**stream, "datasets": rows}})
    first, joined, planned = place.file("first"), place.file("joined"), place.file("planned")
    tokctl("cursor", "new", "-c", old, "train", "-o", first)
    tokctl("cursor", "add", first, "-c", new, "-o", joined)
    done = tokctl("cursor", "schedule", joined, "-c", new, "-o", planned)
    assert done.stdout == b"mix from 4096: datasets: 3 | 4\n"
    done = tokctl("cursor", "diff", joined, planned, ok=(1,))
    assert done.stdout == b"mix from 4096: datasets: 3 | 4\n"


@pytest.mark.parametrize("number", range(CONFIGS))
def test_edits_equal_the_reference(place, seed, number):
    Run(Planned(place, random.Random(f"{seed} {number}"))).wander()
    counts["configurations"] += 1


def test_every_edit_was_made():
    """60 configurations include each kind of edit, made and refused."""
    needed = ["seek", "skip", "mix", "remove", "schedule", "add"]
    needed += ["lines of plan", "lines of when", "mix refused", "remove refused"]
    if counts["configurations"] >= 60:
        assert not [what for what in needed if not counts[what]]
