"""A real job of two daemons is changed at one of them while it runs, and killed; then every sample
is accounted for.

Its ranks attach to both daemons, as if on two nodes. The job gets mixes, a new dataset and skips,
and is rescaled 4 → 3 → 2. Then ranks and daemons are killed (-9) all the time, and the job restarts
at its last checkpoint, in any world size. The samples are proved in four ways that share no code:
tokctl verify, order_reference.py with the operator's commands and their results, tokctl cat with
the mix logs, and the model itself.

TOKEND_ROUNDS: how many times members are killed. TOKEND_SEED: when, and which.
"""

import glob
import json
import os
import random
import signal
import time

import numpy
import pytest
import tokend
from elastic import PATIENCE, SEED, SEQ, SHARDS, SHUFFLE, WINDOW, Job, Scene, operator
from verifying import checksum, entries, row_entries

from lib import TOKCTL, elastic_trainer, has, run, status, wait_for
from lib.injected import injected
from lib import order_reference as reference

RUN = "run"
EVERY = 97  # the reference checks every 97th position
ROUNDS = int(os.environ.get("TOKEND_ROUNDS", 16))
RANDOM_SEED = int(os.environ.get("TOKEND_SEED", time.time_ns() % 1_000_000))


def done(job, node, *request):
    """The result of a request, which must succeed, and have been answered by the node's ranks."""
    code, answers, result, err = operator(node, RUN, *request).result(2 * PATIENCE)
    assert (code, err) == (0, ""), (request, job.said())
    seen = {(a["rank"], a["world"]) for a in answers if a["outcome"] == "done"}
    there = {(r, job.world) for r in range(job.world) if job.node(r) is node}
    assert seen == there and result["sessions"] == len(there)
    return result


def mix(scene, job, node, **weights):
    result = done(job, node, "mix", *(f"{d}={w}" for d, w in weights.items()))
    job.trains(beyond=result["acts_from"] + 1)
    assert scene.state(RUN)["mixes"][-1] == [result["acts_from"], weights], "as it was recorded"


def skip(scene, job, node, samples):
    result = done(job, node, "skip", "--samples", samples)
    assert result["acts_from"] - result["from"] == samples
    job.trains(beyond=result["acts_from"] + 1)
    assert scene.state(RUN)["skips"][-1] == [result["from"], result["acts_from"]]


def saved(scene, job, node, kind, *arguments):
    """Requests a checkpoint, a drain or a rescale."""
    of_run = [s for n in scene.nodes for s in status(n.daemon.socket)[0] if s["run"] == RUN]
    full = sum(s["published"] - s["released"] for s in of_run)
    result = done(job, node, kind, *arguments, "--tag", "saved")
    paths = [os.path.join(n.state, "train", RUN, "saved.cursor") for n in scene.nodes]
    at = lambda: [os.path.exists(p) and tokend.Cursor.load(p).position for p in paths]
    both = [result["position"]] * 2
    assert wait_for(lambda: at() == both, PATIENCE), "both daemons wrote the cursor"
    if kind != "checkpoint":
        job.left()
        assert scene.state(RUN)["position"] == result["position"], "where the model is saved"
        assert full > 0, "with batches in flight"
        injected(33)


def rescaled(scene, job, node, world, micro):
    saved(scene, job, node, "rescale", "--world", world, "--micro", micro)
    job = Job(scene, RUN, world, micro)
    job.trains()
    return job


def change(scene):
    """Mixes, a new dataset, skips, and world sizes 4 → 3 → 2, under load."""
    (a, b) = scene.nodes
    job = Job(scene, RUN, 4, 8)
    job.trains()
    mix(scene, job, a, web=0.4, code=0.6)
    was = job.pids
    # A new dataset in the configs: first on one node, which is not enough.
    for node in scene.nodes:
        node.configure(("law", "web", "code"))
    a.daemon.stop(), a.daemon.start()
    job.attached()
    before = scene.state(RUN)
    code, _, _, err = operator(a, RUN, "mix", "web=1", "law=1").result(2 * PATIENCE)
    assert code == 1 and has(err, "has no dataset law", "process 2 of 4")
    job.trains()
    after = scene.state(RUN)
    assert after["mixes"] == before["mixes"] and len(after["errors"]) == 1
    assert tokend.Cursor(after["data"]["cursor"]).datasets == ["web", "code"]
    logged = lambda: [tokend.Cursor.load(path).datasets for path in a.cursors(RUN)]
    assert ["web", "code", "law"] in logged(), "the edit was in the mix log, and is taken back"
    assert wait_for(lambda: logged()[-1] == ["web", "code"], PATIENCE)
    b.daemon.stop(), b.daemon.start()
    job.attached()
    mix(scene, job, b, web=0.25, law=0.5, code=0.25)
    skip(scene, job, a, 10_000)
    saved(scene, job, b, "checkpoint")
    job.trains()
    assert (job.pids, job.ended()) == (was, {}), "all in the same processes"
    job = rescaled(scene, job, a, 3, 8)
    mix(scene, job, a, law=3.0, code=1.0)
    job = rescaled(scene, job, b, 2, 7)
    skip(scene, job, b, 14 * 10)  # to the present grid
    saved(scene, job, b, "drain")


# ---- the proof ----


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
        arguments = f"--rank 0 --world 1 --micro 64 --batches {-(-count // 64)} --run look".split()
        arguments += ["--cursor", path, "--socket", node.daemon.socket]
        code, out, err = run(TOKCTL, "cat", "train", *arguments)
        assert code == 0, err
        rows.append(numpy.frombuffer(out, "<u2").reshape(-1, WINDOW)[:count])
    return numpy.concatenate(rows)


def verify(scene, node):
    code, out, err = run(
        TOKCTL, "verify", "-c", node.config, "train", scene.records(RUN), "--run", RUN, "--json"
    )
    assert out, err
    return {"exit": code, **json.loads(out)}


def wrong_sums(checkpoint, weighed):
    """The first batches whose sum is wrong: (step, position, rows, its sum, the sum of all)."""
    paths = glob.glob(f"{checkpoint}.*.sums")
    entries = numpy.concatenate([numpy.fromfile(path, "<i8").reshape(-1, 5) for path in paths])
    right = [int(weighed[at : at + rows].sum()) for _, at, rows, _, _ in entries]
    return entries[entries[:, 3] != right][:5].tolist()


def prove(scene, killed):
    """Proves the run in four ways. @killed: rows may be void, and taken twice."""
    state = scene.state(RUN)
    end = state["position"]
    left_out = numpy.zeros(end, bool)
    for first, to in state["skips"]:
        left_out[first:to] = True

    said, skipped = verify(scene, scene.nodes[0]), int(left_out.sum())
    want = {"exit": 0, "repeated": 0, "lost": 0, "altered": 0, "skipped": skipped, "from": 0,
            "samples": end - skipped, "to": end, "faults": [], "skips": state["skips"]}  # fmt: skip
    assert {key: said[key] for key in want} == want
    assert (said["void"] > 0) == killed, said
    assert state["samples"] == want["samples"], "as many as the model has seen"
    assert verify(scene, scene.nodes[1]) == said, "the other node's mix log proves the same"

    rows, positions = cat(scene, scene.nodes[0], RUN, end), numpy.arange(end)
    assert rows.shape == (end, WINDOW)
    should = [(at, checksum(at, rows[at])) for at in positions[~left_out].tolist()]
    files = [entries(path) for path in glob.glob(f"{scene.records(RUN)}/*")]
    taken = sorted(tuple(row) for file in files for row in file[row_entries(file)].tolist())
    assert (not set(should) - set(taken)) if killed else taken == should
    weighed = rows.sum(1, dtype="u8") * (
        positions.astype("u8") % numpy.uint64(8191) + numpy.uint64(1)
    )
    seen = int(weighed[~left_out].sum()) % elastic_trainer.SUM
    assert state["sum"] == seen, wrong_sums(scene.checkpoint(RUN), weighed)

    order, shards = order_of(("web", "code"), state["mixes"]), scene.tokens()
    for position in range(0, end, EVERY):
        place = order.place(position)
        tokens = shards[place.dataset, place.shard][place.offset : place.offset + WINDOW]
        assert numpy.array_equal(tokens, rows[position]), place


# ---- its members die ----


class Storm:
    """The job goes on, and its ranks and daemons die."""

    def __init__(self, scene):
        self.scene, self.random = scene, random.Random(RANDOM_SEED)
        self.interrupted = 0  # requests that were open when a member died

    def begin(self, moment=None):
        """@moment of a request at which one of the ranks dies; None: none does."""
        world, micro = self.random.choice([(4, 8), (3, 5), (2, 8), (4, 3), (3, 8)])
        one = [self.random.randrange(world)]
        victims = range(world) if moment == "fetched" else one  # any rank may fetch it
        job = Job(self.scene, RUN, world, micro, dict.fromkeys(victims, moment))
        job.trains(steps=16)
        return job

    def ask(self, node=None):
        """A random request."""
        node, rng = node or self.random.choice(self.scene.nodes), self.random
        weights = [f"{name}={rng.uniform(0.1, 1):.3f}" for name in ("web", "code", "law")]
        samples = rng.choice([1, 640, rng.randrange(1, 5000)])
        kinds = [["mix", *weights], ["skip", "--samples", samples], ["checkpoint", "--tag", "x"]]
        return operator(node, RUN, *rng.choice(kinds))

    def outcome(self, asked):
        """Waits for a request's end, with a result or one line. Returns the exit code."""
        code, _, result, err = asked.result(2 * PATIENCE)
        good = (code, err) == (0, "") and result
        assert good or code == 1 and err.startswith("tokctl: ") and err.count("\n") == 1, err
        return code

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))

    def a_rank_dies(self):
        """At a random moment of a request."""
        job = self.begin()
        asked = self.ask()
        self.pause(0.15)
        self.interrupted += asked.process.poll() is None
        job.kill([self.random.randrange(job.world)])
        self.die_out(job)
        self.outcome(asked)

    def one_dies_in_a_request(self):
        """A rank dies when it has fetched a request, or has obeyed it and not answered."""
        job = self.begin(self.random.choice(["fetched", "obeyed"]))
        asked = self.ask()
        dead = wait_for(job.ended, PATIENCE)
        assert -signal.SIGKILL in dead.values(), (dead, job.said())
        self.interrupted += 1
        self.die_out(job)
        self.outcome(asked)

    def die_out(self, job):
        """The other ranks end by themselves, or are killed, as launchers do."""
        if self.random.random() < 0.5:
            hangs = not wait_for(lambda: len(job.ended()) == job.world, PATIENCE)
            assert not hangs, (job.status, job.said())
        job.kill()

    def daemons_die(self):
        """Daemons die during a request; the trainers continue with the next daemon."""
        job = self.begin()
        for node in self.random.sample(self.scene.nodes, self.random.choice([1, 2])):
            asleep = self.random.choice([None, *range(job.world)])
            if asleep is not None:
                os.kill(job.pids[asleep], signal.SIGSTOP)  # so that the request is open
            asked = self.ask(self.random.choice([node, None]))
            self.pause(0.08)
            self.interrupted += asked.process.poll() is None
            node.daemon.kill()
            self.pause(0.2)
            node.daemon.start()
            if asleep is not None:
                os.kill(job.pids[asleep], signal.SIGCONT)
            self.outcome(asked)
        job.attached()
        assert job.ended() == {}, "no rank dies"
        assert self.outcome(self.ask()) == 0, "the next request is carried out"
        job.trains(steps=self.random.randrange(30))
        job.kill()

    def weather(self):
        accidents = [self.one_dies_in_a_request, self.daemons_die, self.a_rank_dies]
        for i in range(ROUNDS):
            accidents[i % 3]()
        assert self.interrupted > ROUNDS // 4, "deaths while a request is open are common"
        injected(35, self.interrupted)
        job = Job(self.scene, RUN, 4, 8)  # afterwards requests work as before
        job.trains()
        mix(self.scene, job, self.scene.nodes[1], web=1.0, law=2.0)
        saved(self.scene, job, self.scene.nodes[0], "drain")


@pytest.mark.limit(240 + 30 * ROUNDS)
def test_a_job_is_changed_and_killed_without_losing_a_sample(place):
    print(f"TOKEND_SEED={RANDOM_SEED} TOKEND_ROUNDS={ROUNDS}")
    scene = Scene(place)
    change(scene)
    prove(scene, killed=False)
    Storm(scene).weather()
    prove(scene, killed=True)
