"""Real jobs on two nodes are changed from a shell on one of them while they run; then every sample
is accounted for.

A node is a network namespace with its own host name and daemon. Ranks on both nodes communicate
with gloo over a virtual cable. The first run gets mixes, a new dataset and skips, and is rescaled 4
→ 3 → 2 → 4. In the second run, ranks and daemons are killed (-9) all the time, and the job restarts
at its last checkpoint, in any world size. The samples are proved in four ways that share no code:
tokctl verify, order_reference.py with the operator's commands and their results, tokctl cat with
the mix logs, and the model itself.

TOKEND_ROUNDS: how many times members of the second run are killed. TOKEND_SEED: when, and which.
"""

import glob
import json
import os
import random
import re
import signal
import time

import numpy
import pytest
import tokend
from elastic import (
    BLOCK,
    PATIENCE,
    SEED,
    SEQ,
    SHARDS,
    SHUFFLE,
    WINDOW,
    Job,
    Operator,
    Scene,
    done,
    enter_namespaces,
    tmpfs,
)

from lib import TOKCTL, elastic_trainer, has, run, status, wait_for
from lib.injected import injected
from lib import order_reference as reference

EVERY = 97  # the reference checks every 97th position
ROUNDS = int(os.environ.get("TOKEND_ROUNDS", 16))
RANDOM_SEED = int(os.environ.get("TOKEND_SEED", time.time_ns() % 1_000_000))


def mix(scene, job, node, weights, before):
    """@before: where the present mix began."""
    name = f"mix of {', '.join(weights)} from {node.name}"
    operator = Operator(node, job.run, "mix", *(f"{d}={w}" for d, w in weights.items()))
    result = done(scene, name, operator, job, node)
    soon = max(-(-result["from"] // BLOCK) * BLOCK, before + BLOCK)
    assert (result["acts_from"], result["position"]) == (soon, result["from"]), (
        "  it acts from the next block"
    )
    job.trains(beyond=soon + 1)
    assert scene.state(job.run)["mixes"][-1] == [soon, weights], "  as the trainers recorded it"
    return soon


def skipped(scene, job, node, samples):
    result = done(
        scene,
        f"skip of {samples} from {node.name}",
        Operator(node, job.run, "skip", "--samples", samples),
        job,
        node,
    )
    assert result["acts_from"] - result["from"] == samples, "  with the positions before and after"
    job.trains(beyond=result["acts_from"] + 1)
    assert scene.state(job.run)["skips"][-1] == [result["from"], result["acts_from"]], (
        "  as the trainers recorded it"
    )


def in_flight(scene, job):
    """How many batches are in the rings of the job."""
    return sum(
        s["published"] - s["released"]
        for node in scene.nodes
        for s in status(node.daemon.socket)[0]
        if s["run"] == job.run
    )


def saved(scene, name, job, node, kind, *arguments):
    """Requests a checkpoint, a drain or a rescale."""
    full = in_flight(scene, job)
    result = done(scene, name, Operator(node, job.run, kind, *arguments), job, node)
    if kind != "checkpoint":
        job.left("  and all ranks end with 0")
        assert scene.state(job.run)["position"] == result["position"], (
            "  the model is saved at the reported position"
        )
        assert full > 0, "  with batches in flight"
        injected(33)
    if "--tag" in arguments:
        tag = f"{job.run}/{arguments[arguments.index('--tag') + 1]}.cursor"
        paths = [os.path.join(n.state, "train", tag) for n in scene.nodes]
        wait_for(
            lambda: all(map(os.path.exists, paths)), PATIENCE
        )  # tokctl waits only for its own node
        cursors = [tokend.Cursor.load(path) for path in paths]
        assert cursors[0] == cursors[1], ("  both daemons wrote the cursor", cursors)
        assert cursors[0].position == result["position"], "    of that position"
    return result


def rescaled(scene, job, node, world, micro=None):
    """Drains the job, and restarts it in another world size."""
    more = ["--micro", micro] if micro else []
    after = micro or job.micro
    name = f"rescale {job.world} → {world} from {node.name}"
    told = saved(
        scene, name, job, node, "rescale", "--world", world, *more, "--tag", f"world-{world}"
    )
    at = told["position"]
    before = (told["world_before"], told["micro_before"], told["global_before"])
    assert before == (job.world, job.micro, job.world * job.micro), "  the world before"
    assert (told["world"], told["micro"], told["global"]) == (world, after, world * after), (
        "  the world after"
    )
    table = [
        {"rank": r, "first": at + r * after, "last": at + r * after + after - 1}
        for r in range(world)
    ]
    assert told["ranks"] == table, "  each rank's first samples"
    old = set(os.listdir(job.records))
    job = Job(scene, job.run, world, after)
    job.trains()
    first = {}
    for path in set(os.listdir(job.records)) - old:
        entries = records(os.path.join(job.records, path))
        first[path.split(".")[1].split("-")[0]] = int(entries[0][0])
    assert first == {str(row["rank"]): row["first"] for row in table}, "  which it gets"
    return job


def changed(scene):
    """Mixes, a new dataset, skips, and world sizes 4 → 3 → 2 → 4, under load."""
    (a, b) = scene.nodes
    job = Job(scene, "change", 4, 8)
    job.trains()
    began = mix(scene, job, a, {"web": 0.4, "code": 0.6}, 0)
    was = job.pids
    # A new dataset in the configs: first on one node, which is not enough.
    for node in scene.nodes:
        node.configure(("law", "web", "code"))
    a.daemon.stop(), a.daemon.start()
    job.attached()
    before = scene.state(job.run)
    code, answers, result, err = Operator(a, job.run, "mix", "web=1", "law=1").end()
    assert has(f"{code} {err}", "1 ", "has no dataset law", "process 2 of 4"), (
        "a dataset that one node does not know: refused"
    )
    assert [answer["outcome"] for answer in answers if answer["outcome"] != "noted"] == [
        "failed"
    ] * 2, "  by all ranks"
    job.trains()
    after = scene.state(job.run)
    assert after["mixes"] == before["mixes"], "  nothing changes"
    assert [err.split(": ", 2)[-1].strip()] == after["errors"], "  and the trainers see the error"
    assert tokend.Cursor(after["data"]["cursor"]).datasets == ["web", "code"], (
        "  no cursor contains the dataset"
    )
    b.daemon.stop(), b.daemon.start()
    job.attached()
    began = mix(scene, job, b, {"web": 0.25, "law": 0.5, "code": 0.25}, began)
    assert tokend.Cursor(scene.state(job.run)["data"]["cursor"]).datasets == [
        "web",
        "code",
        "law",
    ], "  it was appended"
    skipped(scene, job, a, 10_000)
    saved(scene, "checkpoint", job, b, "checkpoint", "--tag", "mid")
    job.trains()
    assert (job.pids, job.ended()) == (was, {}), "all in the same processes"
    job = rescaled(scene, job, a, 3)
    began = mix(scene, job, a, {"law": 3.0, "code": 1.0}, began)
    job = rescaled(scene, job, b, 2, micro=7)
    skipped(scene, job, b, 14 * 10)  # to the present grid
    began = mix(scene, job, b, {"web": 1.0, "code": 2.0, "law": 1.0}, began)
    job = rescaled(scene, job, a, 4, micro=8)
    saved(scene, "drain", job, b, "drain")
    prove(scene, job.run, ("web", "code"), generations=5)


# ---- the proof ----


def records(path):
    """[rows, 2]: position and checksum, by proto/record.h, without a torn end."""
    raw = open(path, "rb").read()
    entries = numpy.frombuffer(raw[: len(raw) // 16 * 16], "<u8").reshape(-1, 2)
    keep = numpy.ones(len(entries), bool)
    for begin in numpy.flatnonzero(entries[:, 0] == (1 << 64) - 1):
        keep[begin : begin + 5] = False
    return entries[keep]


def checksums(positions, rows):
    """Checksums of windows, by proto/record.h."""
    u = numpy.uint64

    def mixed(x):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> u(shift))) * u(factor)
        return x ^ (x >> u(31))

    raw = numpy.zeros((len(rows), -(-rows.shape[1] * 2 // 32) * 16), "<u2")
    raw[:, : rows.shape[1]] = rows
    words = raw.view("<u8")
    lanes = numpy.zeros((len(rows), 4), u)
    for w in range(words.shape[1]):
        v = (lanes[:, w % 4] ^ words[:, w]) * u(0xBF58476D1CE4E5B9)
        lanes[:, w % 4] = v ^ (v >> u(32))
    h = mixed(positions.astype(u) + u(0x9E3779B97F4A7C15))
    for v in (u(rows.shape[1] * 2), *lanes.T):
        h = mixed((h ^ v) + u(0x9E3779B97F4A7C15))
    return h


def order_of(names, mixes):
    """The order by its definition, from the config at the run's start, the operator's commands and
    their results.
    """
    about = {
        name: reference.Dataset(
            name, [(f"{i}.bin", tokens) for i, tokens in enumerate(SHARDS[name])], **SHUFFLE[name]
        )
        for name in SHARDS
    }
    names = list(names)
    order = reference.Order(SEED, SEQ, [about[name] for name in names], [1] * len(names))
    for start, weights in mixes:
        for name in sorted(set(weights) - set(names)):
            order.add(about[name])
            names.append(name)
        order.mix(start, [weights.get(name, 0.0) for name in names])
    return order


def cat(scene, node, run_, end):
    """[end, window]: all windows of [0, end), by the mix log of @node's daemon. A later cursor
    overrides earlier ones from the start of its segment on.
    """
    places = []
    for path in node.cursors(run_):
        cursor = tokend.Cursor.load(path)
        at = cursor.segments[0]["start"]
        while places and places[-1][0] >= at:
            places.pop()
        path = node.place.file("look", os.path.basename(path))
        cursor.rewind(at).save(path)
        places.append((at, path))
    rows = []
    for (at, path), (to, _) in zip(places, places[1:] + [(end, None)], strict=True):
        if at >= end:
            break
        count = min(to, end) - at
        arguments = [
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            64,
            "--batches",
            -(-count // 64),
            "--run",
            "look",
            "--cursor",
            path,
        ]
        code, out, err = run(TOKCTL, "cat", "train", *arguments, "--socket", node.daemon.socket)
        if code:
            raise RuntimeError(f"tokctl cat: {err}")
        rows.append(numpy.frombuffer(out, "<u2").reshape(-1, WINDOW)[:count])
    return numpy.concatenate(rows), len(places)


def verify(scene, run_, node):
    code, out, err = run(
        TOKCTL, "verify", "-c", node.config, "train", scene.records(run_), "--run", run_, "--json"
    )
    if not out:
        raise RuntimeError(f"tokctl verify: {err}")
    return {"exit": code, **json.loads(out)}


def wrong_sums(checkpoint, weighed):
    """Where the model's sum went wrong: (wrong batches of ranks, steps with a wrong all-reduce).

    A batch is (step, position, rows, its sum, the sum of all ranks).
    """
    paths = glob.glob(f"{checkpoint}.*.sums")
    parts = [numpy.fromfile(path, "<i8").reshape(-1, 5) for path in paths]
    entries = numpy.concatenate(parts)
    right = [int(weighed[at : at + rows].sum()) for _, at, rows, _, _ in entries]
    batches = entries[entries[:, 3] != right]
    steps = [
        (int(step), of_step.tolist())
        for step in numpy.unique(entries[:, 0])
        if len(of_step := entries[entries[:, 0] == step])
        and (of_step[:, 3].sum() != of_step[:, 4]).any()
    ]
    return batches[:5].tolist(), steps[:5]


def prove(scene, run_, names, void=0, **want):
    """Proves a run in four ways. @void: the number of void rows; None: any."""
    state = scene.state(run_)
    end = state["position"]
    left_out = numpy.zeros(end, bool)
    for first, to in state["skips"]:
        left_out[first:to] = True

    said = verify(scene, run_, scene.nodes[0])
    want |= {"exit": 0, "repeated": 0, "lost": 0, "altered": 0, "skipped": int(left_out.sum()),
        "samples": int(end - left_out.sum()),
             "from": 0, "to": end, "void": said["void"] if void is None else void,
             "faults": []}  # fmt: skip
    assert {key: said[key] for key in want} == want, f"{run_}: tokctl verify"
    assert said["skips"] == state["skips"], "  the skips"
    assert state["samples"] == want["samples"], "  as many as the model has seen"
    assert verify(scene, run_, scene.nodes[1]) == said, "  the other node's mix log proves the same"

    rows, cursors = cat(scene, scene.nodes[0], run_, end)
    positions = numpy.arange(end)
    assert rows.shape == (end, WINDOW), (
        f"{run_}: tokctl cat with {cursors} cursors of the mix log, every position"
    )
    should = numpy.stack([positions.astype("u8"), checksums(positions, rows)], 1)[~left_out]
    directory = scene.records(run_)
    taken = numpy.concatenate(
        [records(os.path.join(directory, name)) for name in os.listdir(directory)]
    )
    if void == 0:
        same = numpy.array_equal(taken[numpy.argsort(taken[:, 0])], should)
        assert same, ("  the records contain each row once", (len(taken), len(should)))
    else:
        missing = set(map(tuple, should.tolist())) - set(map(tuple, taken.tolist()))
        assert not missing, ("  the records contain each row", sorted(missing)[:5])
    weighed = rows.sum(1, dtype="u8") * (
        positions.astype("u8") % numpy.uint64(8191) + numpy.uint64(1)
    )
    assert state["sum"] == int(weighed[~left_out].sum()) % elastic_trainer.SUM, (
        "  the model has seen each sample once",
        state["sum"] - int(weighed[~left_out].sum()),
        wrong_sums(scene.checkpoint(run_), weighed),
    )

    order, shards, wrong = order_of(names, state["mixes"]), scene.tokens(), []
    for position in range(0, end, EVERY):
        place = order.place(position)
        if not numpy.array_equal(
            shards[place.dataset, place.shard][place.offset : place.offset + WINDOW], rows[position]
        ):
            wrong.append(place)
    assert not wrong, (
        (
            f"{run_}: the order agrees, at every {EVERY}th position of {end}, in "
            f"{len(state['mixes']) + 1} mixes"
        ),
        wrong[:5],
    )
    return said


# ---- the second run ----


class Storm:
    """A job whose ranks and daemons die."""

    def __init__(self, scene):
        self.scene, self.random = scene, random.Random(RANDOM_SEED)
        self.run = "storm"
        self.outcomes = {}  # {outcome of a request: how often}
        self.interrupted = 0  # requests that were open when a member died

    def begin(self, moment=None):
        """@moment of a request at which one of the ranks dies; None: none does."""
        world, micro = self.random.choice([(4, 8), (3, 5), (2, 8), (4, 3), (3, 8)])
        victims = (
            range(world) if moment == "fetched" else [self.random.randrange(world)]
        )  # any rank may fetch it
        return Job(self.scene, self.run, world, micro, dict.fromkeys(victims, moment))

    def ask(self, node=None):
        """A random request."""
        node, rng = node or self.random.choice(self.scene.nodes), self.random
        weights = [f"{name}={rng.uniform(0.1, 1):.3f}" for name in ("web", "code", "law")]
        kinds = [
            ["mix", *weights],
            ["skip", "--samples", rng.choice([1, 640, rng.randrange(1, 5000)])],
            ["checkpoint", "--tag", "storm"],
        ]
        return Operator(node, self.run, *rng.choice(kinds))

    def outcome(self, operator):
        """Waits for a request's end; an error is one line. Returns the exit code."""
        code, _, result, err = operator.end()
        good = (
            (code, err) == (0, "")
            and result
            or code == 1
            and err.startswith("tokctl: ")
            and err.count("\n") == 1
        )
        assert good, ("an operator's request ends with a result or one line", code, result, err)
        what = (
            result["kind"]
            if result
            else re.sub(r"(, )?rank \d+ \(pid \d+ on \S+\)|at /\S+|\d+", "…", err.strip())
        )
        self.outcomes[what] = self.outcomes.get(what, 0) + 1
        return code

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))

    # -- accidents --

    def a_rank_dies(self):
        """A rank dies at a random moment of a request."""
        job = self.begin()
        job.trains(steps=16)
        operator = self.ask()
        self.pause(0.15)
        self.interrupted += operator.process.poll() is None
        job.kill([self.random.randrange(job.world)])
        self.die_out(job)
        self.outcome(operator)

    def one_dies_in_a_request(self):
        """A rank dies when it has fetched a request, or has obeyed it and not answered."""
        moment = self.random.choice(["fetched", "obeyed"])
        job = self.begin(moment)
        job.trains(steps=16)
        operator = self.ask()
        dead = wait_for(job.ended, PATIENCE)
        assert -signal.SIGKILL in dead.values(), (
            f"  a rank died that had {moment} a request",
            (dead, job.said()),
        )
        self.interrupted += 1
        self.die_out(job)
        self.outcome(operator)

    def die_out(self, job):
        """The other ranks end by themselves, or are killed, as launchers do."""
        if self.random.random() < 0.5:
            all_ended = wait_for(lambda: len(job.ended()) == job.world, PATIENCE)
            assert all_ended, (
                "  no rank hangs when another one has died",
                (job.status, job.said()),
            )
        job.end()

    def all_die_at_the_start(self):
        job = self.begin()
        self.pause(0.7)
        job.end()

    def a_daemon_dies(self, both=False):
        """A daemon dies during a request; the trainers continue with the next daemon."""
        job = self.begin()
        job.trains(steps=16)
        for node in random.Random(RANDOM_SEED).sample(self.scene.nodes, 2)[: 1 + both]:
            asleep = self.random.choice([None, *range(job.world)])
            if asleep is not None:
                os.kill(job.pids[asleep], signal.SIGSTOP)  # so that the request is open
            operator = self.ask(self.random.choice([node, None]))
            self.pause(0.08)
            self.interrupted += operator.process.poll() is None
            node.daemon.kill()
            self.pause(0.2)
            node.daemon.start()
            if asleep is not None:
                os.kill(job.pids[asleep], signal.SIGCONT)
            self.outcome(operator)
        job.attached()
        assert job.ended() == {}, "  no rank dies"
        assert self.outcome(self.ask()) == 0, "  and the next request is carried out"
        job.trains(steps=self.random.randrange(30))
        job.end()

    def both_daemons_die(self):
        self.a_daemon_dies(both=True)

    def weather(self):
        """The whole run."""
        self.begin_well()
        accidents = [self.one_dies_in_a_request, self.a_daemon_dies, self.a_rank_dies,
            self.all_die_at_the_start,
                     self.one_dies_in_a_request, self.both_daemons_die, self.a_rank_dies,
                     self.one_dies_in_a_request]  # fmt: skip
        for i in range(ROUNDS):
            what, before, begin = (
                accidents[i % len(accidents)],
                self.scene.state(self.run),
                time.monotonic(),
            )
            what()
            took, after = time.monotonic() - begin, self.scene.state(self.run)
            print(
                f"      {took:.1f} s {what.__name__}: {before['position']} → {after['position']}",
                flush=True,
            )
        self.settle()

    def begin_well(self):
        job = Job(self.scene, self.run, 4, 8)
        job.trains()
        first = Operator(self.scene.nodes[0], self.run, "mix", "web=1", "code=1")
        assert self.outcome(first) == 0, "storm: a mix in quiet weather"
        job.trains(beyond=self.scene.state(self.run)["position"] + 2 * BLOCK)
        job.kill([self.random.randrange(4)])
        job.end()

    def settle(self):
        """Afterwards requests work as before."""
        job = self.begin()
        job.trains()
        assert (
            self.outcome(Operator(self.scene.nodes[1], self.run, "mix", "web=1", "law=2")) == 0
        ), "storm: afterwards a mix"
        job.trains(beyond=self.scene.state(self.run)["mixes"][-1][0] + 1)
        assert self.outcome(Operator(self.scene.nodes[0], self.run, "drain")) == 0, "  and a drain"
        job.left("  all ranks end with 0")
        print(f"      the requests' outcomes: {self.outcomes}", flush=True)
        said = prove(self.scene, self.run, ("law", "web", "code"), void=None)
        assert said["void"] > 0, (f"storm: {said['void']} rows were undone by restarts", said)
        assert self.interrupted > ROUNDS // 4, "deaths while a request is open are common"
        injected(35, self.interrupted)


@pytest.fixture(scope="module")
def scene(shared):
    enter_namespaces()
    with tmpfs(shared.file("memory")):
        yield Scene(shared)


@pytest.mark.limit(240 + 30 * ROUNDS)
def test_a_job_is_changed_without_losing_a_sample(scene):
    changed(scene)


@pytest.mark.limit(240 + 30 * ROUNDS)
def test_a_job_whose_members_die_loses_no_sample(scene):
    print(f"TOKEND_SEED={RANDOM_SEED} TOKEND_ROUNDS={ROUNDS}")
    Storm(scene).weather()
