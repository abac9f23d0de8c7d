"""A real job of two daemons is changed at one of them while it runs, and killed; then every sample
is accounted for.

Its ranks attach to both daemons, as if on two nodes. The job gets mixes, a new dataset and skips,
and is rescaled 4 → 3 → 2. Then ranks and daemons are killed (-9) all the time, and the job restarts
at its last checkpoint, in any world size. The samples are proved by tokctl verify, by
order_reference.py with the operator's commands and their results, and by the model itself.

TOKEND_ROUNDS: how many times members are killed. TOKEND_SEED: when, and which.
"""

import json
import os
import random
import signal
import time
from functools import partial

import numpy
import pytest
import tokend
import torch
from requesting import Operator

from lib import TOKCTL, Daemon, datasets, elastic_trainer, free_port, has, rows_at, run, status
from lib import order_reference as reference
from lib import wait_for, with_parent
from lib.injected import injected
from lib.ranks import Ranks

SEED, SEQ, WINDOW = 42, 32, 33
SHARDS = {"web": (90_000, 60_001), "code": (50_000, 20_000), "law": (40_000,)}
SHUFFLE = {
    "web": {"shuffle": "global"},
    "code": {"shuffle": "block", "block": 16, "group": 4},
    "law": {"shuffle": "none", "slide": True},
}
PATIENCE = 40.0  # seconds; a job of four processes needs one or two
RUN = "run"
EVERY = 97  # the reference checks every 97th position
ROUNDS = int(os.environ.get("TOKEND_ROUNDS", 12))
RANDOM_SEED = int(os.environ.get("TOKEND_SEED", time.time_ns() % 1_000_000))

# ---- two nodes ----


def cursor_in(path):
    with open(path, "rb") as file:
        return tokend.Cursor(file.read())


class Node:
    """A daemon with its own socket and state_dir."""

    def __init__(self, place, name):
        self.place, self.name = place, name
        self.state = place.file(f"{name}.state", "")[:-1]
        self.configure(("web", "code"))
        self.daemon = Daemon(place, self.config)

    def configure(self, names):
        about = {
            "seed": SEED,
            "seq_len": SEQ,
            "datasets": [{**d, **SHUFFLE[d["name"]]} for d in datasets(*names)],
        }
        keys = {"socket": self.place.file(f"{self.name}.sock"), "state_dir": self.state}
        self.config = self.place.config(f"{self.name}.yaml", streams={"train": about}, **keys)

    def logged(self):
        """The datasets of the cursor that the daemon keeps of the run."""
        return cursor_in(os.path.join(self.state, "train", RUN, ".run.cursor")).datasets

    def operator(self, kind, *arguments):
        more = ["--run", RUN, "--timeout", round(PATIENCE)]
        return Operator(self, kind, "train", *arguments, *more)


class Job(Ranks):
    """All processes of one life of the run, on two nodes."""

    def __init__(self, scene, world, micro):
        super().__init__()
        self.scene, self.world, self.micro = scene, world, micro
        scene.lives += 1
        for rank in range(world):
            log = scene.place.file(f"logs/{scene.lives}-{rank}.log")
            self.fork(log, partial(self.live, rank))

    def node(self, rank):
        return self.scene.nodes[rank >= -(-self.world // 2)]

    def live(self, rank):
        environment = {"RANK": rank, "WORLD_SIZE": self.world, "TORCHELASTIC_RUN_ID": RUN}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.scene.port}
        with_parent()
        os.environ.update({name: str(value) for name, value in environment.items()})
        keys = {"socket": self.node(rank).daemon.socket, "record": self.scene.records}
        elastic_trainer.main(checkpoint=self.scene.checkpoint, micro=self.micro, **keys)

    def left(self):
        """All ranks have ended by themselves, with status 0."""
        wait_for(lambda: len(self.ended()) == self.world, PATIENCE)
        assert self.status == dict.fromkeys(range(self.world), 0), (self.status, self.said())

    def attached(self):
        """Waits until all ranks are attached. They notice a killed daemon when their rings are
        empty.
        """
        there = lambda: len(self.scene.sessions()) == self.world or self.ended()
        assert wait_for(there, PATIENCE) and not self.ended(), (self.ended(), self.said())

    def trains(self, beyond=0, steps=24):
        """Waits for a checkpoint some steps later, at or beyond a position."""
        until = self.scene.state()["step"] + steps

        def there():
            state = self.scene.state()
            return (state["position"] >= beyond and state["step"] >= until) or self.ended()

        assert wait_for(there, PATIENCE) and not self.ended(), (self.ended(), self.said())

    # ---- requests ----

    def done(self, node, *request):
        """The result of a request, which must succeed, and have been answered by the node's
        ranks.
        """
        code, answers, result, err = node.operator(*request).result(2 * PATIENCE)
        assert (code, err) == (0, ""), (request, self.said())
        seen = {a["rank"] for a in answers if a["outcome"] == "done"}
        there = {r for r in range(self.world) if self.node(r) is node}
        assert seen == there and result["sessions"] == len(there)
        return result

    def mix(self, node, **weights):
        result = self.done(node, "mix", *(f"{d}={w}" for d, w in weights.items()))
        self.trains(result["acts_from"] + 1, steps=0)
        assert self.scene.state()["mixes"][-1] == [result["acts_from"], weights]

    def skip(self, node, samples):
        result = self.done(node, "skip", "--samples", samples)
        assert result["acts_from"] - result["from"] == samples
        self.trains(result["acts_from"] + 1, steps=0)
        assert self.scene.state()["skips"][-1] == [result["from"], result["acts_from"]]

    def saved(self, node, kind, *arguments):
        """Requests a checkpoint, a drain or a rescale."""
        full = sum(s["published"] - s["released"] for s in self.scene.sessions())
        result = self.done(node, kind, *arguments, "--tag", "saved")
        paths = [os.path.join(n.state, "train", RUN, "saved.cursor") for n in self.scene.nodes]
        at = lambda: [os.path.exists(p) and cursor_in(p).position for p in paths]
        both = [result["position"]] * 2
        assert wait_for(lambda: at() == both, PATIENCE), "both daemons wrote the cursor"
        if kind != "checkpoint":
            self.left()
            assert self.scene.state()["position"] == result["position"], "where it is saved"
            assert full > 0, "with batches in flight"
            injected(33)

    def rescaled(self, node, world, micro):
        self.saved(node, "rescale", "--world", world, "--micro", micro)
        job = Job(self.scene, world, micro)
        job.trains()
        return job


class Scene:
    def __init__(self, place):
        self.place, self.lives, self.port = place, 0, free_port()
        self.shards = {
            (name, f"{i}.bin"): numpy.fromfile(place.shard(f"{name}/{i}.bin", tokens), "<u2")
            for name, sizes in SHARDS.items()
            for i, tokens in enumerate(sizes)
        }
        self.nodes = [Node(place, name) for name in ("a", "b")]
        self.checkpoint, self.records = place.file("run.pt"), place.file("run.records")

    def state(self):
        """The last checkpoint."""
        if not os.path.exists(self.checkpoint):
            return {"step": 0, "position": 0, "mixes": [], "skips": [], "errors": []}
        state = torch.load(self.checkpoint)
        return {**state, "position": tokend.Cursor(state["data"]["cursor"]).position}

    def sessions(self):
        return [s for node in self.nodes for s in status(node.daemon.socket)[0]]


def change(scene):
    """Mixes, a new dataset, skips, and world sizes 4 → 3 → 2, under load."""
    (a, b) = scene.nodes
    job = Job(scene, 4, 8)
    job.trains()
    job.mix(a, web=0.4, code=0.6)
    was = job.pids
    # A new dataset in the configs: first on one node, which is not enough.
    for node in scene.nodes:
        node.configure(("law", "web", "code"))
    a.daemon.stop(), a.daemon.start()
    job.attached()
    before = scene.state()
    code, _, _, err = a.operator("mix", "web=1", "law=1").result(2 * PATIENCE)
    assert code == 1 and has(err, "dataset law: is not in the config", "process 2 of 4")
    job.trains()
    after = scene.state()
    assert after["mixes"] == before["mixes"] and len(after["errors"]) == 1
    assert tokend.Cursor(after["data"]["cursor"]).datasets == ["web", "code"]
    assert wait_for(lambda: a.logged() == ["web", "code"], PATIENCE), "the edit is taken back"
    b.daemon.stop(), b.daemon.start()
    job.attached()
    job.mix(b, web=0.25, law=0.5, code=0.25)
    job.skip(a, 10_000)
    job.saved(b, "checkpoint")
    job.trains()
    assert (job.pids, job.ended()) == (was, {}), "all in the same processes"
    job = job.rescaled(a, 3, 8)
    job.mix(a, law=3.0, code=1.0)
    job = job.rescaled(b, 2, 7)
    job.skip(b, 14 * 10)  # to the present grid
    job.saved(b, "drain")


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


def prove(scene, killed):
    """@killed: rows may be void, and taken twice."""
    state = scene.state()
    end = state["position"]
    left_out = numpy.zeros(end, bool)
    for first, to in state["skips"]:
        left_out[first:to] = True
    skipped = int(left_out.sum())
    want = {"repeated": 0, "lost": 0, "altered": 0, "skipped": skipped, "from": 0, "to": end}
    want |= {"samples": end - skipped, "faults": [], "skips": state["skips"]}
    said = []
    for node in scene.nodes:  # each node's cursor of the run proves the same
        command = ["verify", "-c", node.config, "train", scene.records, "--run", RUN, "--json"]
        code, out, err = run(TOKCTL, *command)
        assert code == 0, (out, err)
        said.append(json.loads(out))
    assert said[0] == said[1] and said[0].items() >= want.items(), said
    assert (said[0]["void"] > 0) == killed, said
    assert state["samples"] == end - skipped, "as many as the model has seen"

    rows = rows_at(scene.nodes[0].config, "train", 0, end, "--run", RUN)
    weights = numpy.arange(end, dtype="u8") % numpy.uint64(8191) + numpy.uint64(1)
    weighed = rows.sum(1, dtype="u8") * weights
    assert state["sum"] == int(weighed[~left_out].sum()) % elastic_trainer.SUM
    order = order_of(("web", "code"), state["mixes"])
    for position in range(0, end, EVERY):
        place = order.place(position)
        tokens = scene.shards[place.dataset, place.shard][place.offset : place.offset + WINDOW]
        assert numpy.array_equal(tokens, rows[position]), place


# ---- its members die ----


def outcome(asked):
    """Waits for a request's end, with a result or one line. Returns the exit code."""
    code, _, result, err = asked.result(2 * PATIENCE)
    good = (code, err) == (0, "") and result
    assert good or code == 1 and err.startswith("tokctl: ") and err.count("\n") == 1, err
    return code


def weather(scene, rng):
    """The job goes on, while its ranks and daemons die during requests."""
    interrupted = 0
    for i in range(ROUNDS):
        job = Job(scene, *rng.choice([(4, 8), (3, 5), (2, 8), (4, 3)]))
        job.trains(steps=16)
        node, asleep = rng.choice(scene.nodes), rng.randrange(job.world)
        os.kill(job.pids[asleep], signal.SIGSTOP)  # so that the request is open
        weights = [f"{name}={rng.uniform(0.1, 1):.3f}" for name in ("web", "code", "law")]
        skip = ["skip", "--samples", rng.choice([1, 640, rng.randrange(1, 5000)])]
        request = rng.choice([["mix", *weights], skip, ["checkpoint", "--tag", "x"]])
        asked = node.operator(*request)
        time.sleep(rng.uniform(0, 0.1))
        interrupted += asked.process.poll() is None
        if i % 2:
            os.kill(job.pids[asleep], signal.SIGCONT)
            time.sleep(rng.uniform(0, 0.05))
            job.kill([rng.randrange(job.world)])
        else:
            node.daemon.kill()
            os.kill(job.pids[asleep], signal.SIGCONT)
            node.daemon.start()
            job.attached()
            assert outcome(node.operator(*request)) == 0, "the next request is carried out"
            job.trains(steps=rng.randrange(30))
            assert job.ended() == {}, "no rank dies"
        outcome(asked)
        job.kill()
    assert interrupted > ROUNDS // 2, "deaths while a request is open are common"
    injected(35, interrupted)
    job = Job(scene, 4, 8)  # afterwards requests work as before
    job.trains()
    job.mix(scene.nodes[1], web=1.0, law=2.0)
    job.saved(scene.nodes[0], "drain")


@pytest.mark.limit(240 + 30 * ROUNDS)
def test_a_job_is_changed_and_killed_without_losing_a_sample(place):
    print(f"TOKEND_SEED={RANDOM_SEED} TOKEND_ROUNDS={ROUNDS}")
    scene = Scene(place)
    change(scene)
    prove(scene, killed=False)
    weather(scene, random.Random(RANDOM_SEED))
    prove(scene, killed=True)
