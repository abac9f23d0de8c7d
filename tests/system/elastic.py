"""Two nodes on one machine, jobs on them, and operators.

A node is a network namespace with its own host name and daemon. Ranks on both nodes communicate
with gloo over a virtual cable.
"""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
from functools import partial

import numpy
import pytest
import tokend
import torch

from lib import TOKCTL, Daemon, datasets, elastic_trainer, status, wait_for, with_parent
from lib.ranks import Ranks

SEED, SEQ, WINDOW, BLOCK = 42, 32, 33, 1024
SHARDS = {"web": (90_000, 60_001), "code": (50_000, 20_000), "law": (40_000,)}
SHUFFLE = {
    "web": {"shuffle": "global"},
    "code": {"shuffle": "block", "block": 16, "group": 4},
    "law": {"shuffle": "none", "slide": True},
}
PATIENCE = 40.0  # seconds; a job of four processes needs one or two

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
MS_REC, MS_PRIVATE = 16384, 1 << 18


def enter_namespaces():
    """Enters a mount namespace for tmpfs(). Users other than root also enter a user namespace."""
    if not shutil.which("ip"):
        pytest.skip("needs the command ip (Debian: iproute2)")
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        pytest.skip("may not make namespaces of mounts")
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    if _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        pytest.skip("may not change mounts")
    if subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("may not make namespaces of networks")


@contextlib.contextmanager
def tmpfs(path):
    """Keeps all files but the shards in memory, so that a busy disk does not slow the test."""
    os.makedirs(path)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


# ---- two nodes ----


class Node:
    """A host name and a network, and a daemon with its own socket and state_dir."""

    def __init__(self, place, name, address):
        self.place, self.name, self.address = place, name, address
        self.state = place.file("memory", f"{name}.state")

        def leave():
            with_parent()
            if _libc.unshare(CLONE_NEWNET | CLONE_NEWUTS):
                raise OSError(ctypes.get_errno(), "unshare")
            socket.sethostname(name)

        try:
            self.init = place.spawn(["sleep", "infinity"], preexec_fn=leave)
        except subprocess.SubprocessError:
            pytest.skip("may not make a network namespace")
        self.namespaces = [
            os.open(f"/proc/{self.init.pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts")
        ]
        self.daemon = None

    def enter(self):
        """For preexec_fn: runs a program on this node."""
        with_parent()
        for namespace in self.namespaces:
            if _libc.setns(namespace, 0):
                raise OSError(ctypes.get_errno(), "setns")

    def ip(self, *arguments):
        done = subprocess.run(
            ["ip", *map(str, arguments)], preexec_fn=self.enter, capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")

    def up(self, interface):
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", f"{self.address}/24", "dev", interface)
        self.ip("link", "set", interface, "up")

    def configure(self, names):
        about = {
            "seed": SEED,
            "seq_len": SEQ,
            "datasets": [{**d, **SHUFFLE[d["name"]]} for d in datasets(*names)],
        }
        keys = {"socket": self.place.file(f"{self.name}.sock"), "state_dir": self.state}
        self.config = self.place.config(f"{self.name}.yaml", streams={"train": about}, **keys)

    def start(self):
        self.daemon = Daemon(self.place, self.config, preexec_fn=self.enter)

    def load(self):
        """Another job, which keeps the daemon busy with 12 MB/s.

        Not faster: with both cores busy Linux 6.18 starved other processes for a minute at a time.
        """
        arguments = [
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            8,
            "--batches",
            1 << 50,
            "--run",
            "load",
            "--socket",
            self.daemon.socket,
        ]
        reader = 'while [ "$(head -c 262144 | wc -c)" -gt 0 ]; do sleep 0.02; done'
        self.place.spawn(
            ["sh", "-c", f'"$@" | {reader}', "load", TOKCTL, "cat", "train", *map(str, arguments)],
            preexec_fn=self.enter,
        )

    def cursors(self, run_):
        """The paths of a run's mix log, in order."""
        log = os.path.join(self.state, "train", run_, "mixes")
        return [
            os.path.join(log, name) for name in sorted(os.listdir(log)) if name.endswith(".cursor")
        ]


class Operator:
    """tokctl, run on a node."""

    def __init__(self, node, run_, kind, *arguments):
        command = [
            TOKCTL,
            kind,
            "train",
            *map(str, arguments),
            "--run",
            run_,
            "--socket",
            node.daemon.socket,
            "--json",
        ]
        command += ["--timeout", str(round(PATIENCE))]
        self.process = node.place.spawn(
            command,
            preexec_fn=node.enter,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self):
        """(exit code, answers, result, stderr)"""
        out, err = self.process.communicate(timeout=2 * PATIENCE)
        lines = [json.loads(line) for line in out.splitlines()]
        return (
            self.process.returncode,
            [x for x in lines if "outcome" in x],
            next((x for x in lines if "kind" in x), None),
            err,
        )


# ---- a job on them ----


class Job(Ranks):
    """All processes of one life of a run."""

    def __init__(self, scene, run_, world, micro, dies=None):
        super().__init__()
        self.scene, self.run, self.world, self.micro = scene, run_, world, micro
        self.on_first = -(-world // 2)  # ranks on the first node; the others are on the second
        self.records = scene.records(run_)
        scene.lives += 1
        log = scene.place.file("memory", f"logs/{run_}-{scene.lives}")
        for rank in range(world):
            self.fork(f"{log}-{rank}.log", partial(self.live, rank, (dies or {}).get(rank)))

    def node(self, rank):
        return self.scene.nodes[rank >= self.on_first]

    def local(self, node):
        """How many ranks are on @node."""
        return sum(self.node(rank) is node for rank in range(self.world))

    def live(self, rank, dies):
        node = self.node(rank)
        environment = {"RANK": rank, "WORLD_SIZE": self.world, "TORCHELASTIC_RUN_ID": self.run}
        environment |= {"MASTER_ADDR": self.scene.nodes[0].address, "MASTER_PORT": 29500}
        environment["GLOO_SOCKET_IFNAME"] = "cable"
        node.enter()
        os.environ.update({name: str(value) for name, value in environment.items()})
        keys = {"socket": node.daemon.socket, "record": self.records, "dies": dies}
        elastic_trainer.main(checkpoint=self.scene.checkpoint(self.run), micro=self.micro, **keys)

    def end(self):
        self.kill()

    def left(self, name):
        """All ranks have ended by themselves, with status 0."""
        wait_for(lambda: len(self.ended()) == self.world, PATIENCE)
        good = self.status == dict.fromkeys(range(self.world), 0)
        assert good, (name, (self.status, self.said() if not good else ""))
        self.end()
        if not good:
            raise RuntimeError("later results would mean nothing")

    def attached(self):
        """Waits until all ranks are attached. They notice a killed daemon when their rings are
        empty.
        """

        def there():
            seen = [
                sum(s["run"] == self.run for s in status(node.daemon.socket)[0])
                for node in self.scene.nodes
            ]
            return seen == [self.local(node) for node in self.scene.nodes] or self.ended()

        if not wait_for(there, PATIENCE) or self.ended():
            raise RuntimeError(f"not all ranks attached: {self.ended()}, {self.said()}")

    def trains(self, beyond=None, steps=24):
        """Waits for a checkpoint at or beyond a position, or for a number of steps."""
        at = self.scene.state(self.run)
        until = at["step"] + steps

        def there():
            state = self.scene.state(self.run)
            return (
                state["position"] >= beyond if beyond is not None else state["step"] >= until
            ) or self.ended()

        if not wait_for(there, PATIENCE) or self.ended():
            raise RuntimeError(
                f"the job hangs: {self.scene.state(self.run)}, {self.ended()}, {self.said()}"
            )


class Scene:
    def __init__(self, place):
        self.place = place
        for name, sizes in SHARDS.items():
            for i, tokens in enumerate(sizes):
                place.shard(f"{name}/{i}.bin", tokens)
        self.nodes = [Node(place, "node-a", "10.97.0.1"), Node(place, "node-b", "10.97.0.2")]
        a, b = self.nodes
        a.ip(
            "link",
            "add",
            "cable",
            "netns",
            a.init.pid,
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            b.init.pid,
        )
        for node in self.nodes:
            node.up("cable")
            node.configure(("web", "code"))
            node.start()
            node.load()
        self.lives = 0

    def checkpoint(self, run_):
        return self.place.file("memory", f"{run_}.pt")

    def records(self, run_):
        return self.place.file("memory", f"{run_}.records")

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


# ---- the first run ----


def done(scene, name, operator, job, node):
    """The result of a request, which must succeed."""
    code, answers, result, err = operator.end()
    assert (code, err) == (0, ""), f"{name}: exit 0, stderr is empty"
    if code:
        print("\n".join([job.said(), *(n.daemon.log() for n in scene.nodes)]))
        raise RuntimeError("later results would mean nothing")
    seen = sorted({(a["rank"], a["world"], a["host"]) for a in answers if a["outcome"] == "done"})
    there = [(rank, job.world, node.name) for rank in range(job.world) if job.node(rank) is node]
    assert (seen, result["sessions"]) == (there, len(there)), (
        f"  answered by the ranks of {node.name}"
    )
    return result
