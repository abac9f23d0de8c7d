"""Two daemons, as of two nodes, jobs whose ranks attach to both, and operators."""

import glob
import os
from functools import partial

import numpy
import tokend
import torch
from requesting import Operator

from lib import Daemon, datasets, elastic_trainer, free_port, status, wait_for, with_parent
from lib.ranks import Ranks

SEED, SEQ, WINDOW = 42, 32, 33
SHARDS = {"web": (90_000, 60_001), "code": (50_000, 20_000), "law": (40_000,)}
SHUFFLE = {
    "web": {"shuffle": "global"},
    "code": {"shuffle": "block", "block": 16, "group": 4},
    "law": {"shuffle": "none", "slide": True},
}
PATIENCE = 40.0  # seconds; a job of four processes needs one or two

# ---- two nodes ----


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

    def cursors(self, run_):
        """The paths of a run's mix log, in order."""
        return sorted(glob.glob(os.path.join(self.state, "train", run_, "mixes", "*.cursor")))


def operator(node, run_, kind, *arguments):
    """tokctl, run on a node."""
    arguments = [kind, "train", *arguments, "--run", run_, "--timeout", round(PATIENCE)]
    return Operator(node, *arguments)


# ---- a job on them ----


class Job(Ranks):
    """All processes of one life of a run."""

    def __init__(self, scene, run_, world, micro, dies=None):
        super().__init__()
        self.scene, self.run, self.world, self.micro = scene, run_, world, micro
        self.on_first = -(-world // 2)  # ranks on the first node; the others are on the second
        self.records = scene.records(run_)
        scene.lives += 1
        log = scene.place.file(f"logs/{run_}-{scene.lives}")
        for rank in range(world):
            self.fork(f"{log}-{rank}.log", partial(self.live, rank, (dies or {}).get(rank)))

    def node(self, rank):
        return self.scene.nodes[rank >= self.on_first]

    def live(self, rank, dies):
        node = self.node(rank)
        environment = {"RANK": rank, "WORLD_SIZE": self.world, "TORCHELASTIC_RUN_ID": self.run}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.scene.port}
        with_parent()
        os.environ.update({name: str(value) for name, value in environment.items()})
        keys = {"socket": node.daemon.socket, "record": self.records, "dies": dies}
        elastic_trainer.main(checkpoint=self.scene.checkpoint(self.run), micro=self.micro, **keys)

    def left(self):
        """All ranks have ended by themselves, with status 0."""
        wait_for(lambda: len(self.ended()) == self.world, PATIENCE)
        assert self.status == dict.fromkeys(range(self.world), 0), (self.status, self.said())

    def attached(self):
        """Waits until all ranks are attached. They notice a killed daemon when their rings are
        empty.
        """

        def there():
            sessions = [s for node in self.scene.nodes for s in status(node.daemon.socket)[0]]
            return sum(s["run"] == self.run for s in sessions) == self.world or self.ended()

        assert wait_for(there, PATIENCE) and not self.ended(), (self.ended(), self.said())

    def trains(self, beyond=None, steps=24):
        """Waits for a checkpoint at or beyond a position, or for a number of steps."""
        at = self.scene.state(self.run)
        until = at["step"] + steps

        def there():
            state = self.scene.state(self.run)
            return (
                state["position"] >= beyond if beyond is not None else state["step"] >= until
            ) or self.ended()

        hangs = not wait_for(there, PATIENCE)
        assert not hangs and not self.ended(), (until, self.ended(), self.said())


class Scene:
    def __init__(self, place):
        self.place = place
        for name, sizes in SHARDS.items():
            for i, tokens in enumerate(sizes):
                place.shard(f"{name}/{i}.bin", tokens)
        self.nodes = [Node(place, name) for name in ("a", "b")]
        self.port = free_port()
        self.lives = 0

    def checkpoint(self, run_):
        return self.place.file(f"{run_}.pt")

    def records(self, run_):
        return self.place.file(f"{run_}.records")

    def state(self, run_):
        """The last checkpoint."""
        if not os.path.exists(self.checkpoint(run_)):
            return {"step": 0, "position": 0, "mixes": [], "skips": [], "errors": []}
        state = torch.load(self.checkpoint(run_))
        return {**state, "position": tokend.Cursor(state["data"]["cursor"]).position}

    def tokens(self):
        """The tokens of all shards, by dataset and name."""
        shards = {}
        for name, sizes in SHARDS.items():
            for i in range(len(sizes)):
                shards[name, f"{i}.bin"] = numpy.fromfile(self.place.file(f"{name}/{i}.bin"), "<u2")
        return shards
