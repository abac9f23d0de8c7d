#!/usr/bin/env python3
"""Real jobs on two nodes, changed from a shell on one of them while they run, and the proof afterwards.

A node is a network namespace with a host name and a daemon of its own; the ranks on both meet over a virtual cable, by gloo. The first
run is mixed, given a new dataset, skipped and rescaled 4 → 3 → 2 → 4. In the second one ranks and daemons are killed (-9) all along, and
the job begins again at its last checkpoint, in any world. What was trained on is proved in four ways that share no code: tokctl verify,
order_reference.py over what the operator was told, tokctl cat over the logs of mixes, and the model itself.

TOKEND_ROUNDS: how many times the second run's members are killed. TOKEND_SEED: when, and which.
"""

import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

from lib import elastic_trainer
import numpy
import tokend
import torch
from harness import TOKCTL, Checks, Daemon, Place, datasets, run, status, wait_for, with_parent

from lib import order_reference as reference  # noqa: E402

SEED, SEQ, WINDOW, BLOCK = 42, 32, 33, 1024
SHARDS = {"web": (90_000, 60_001), "code": (50_000, 20_000), "law": (40_000,)}
SHUFFLE = {
    "web": {"shuffle": "global"},
    "code": {"shuffle": "block", "block": 16, "group": 4},
    "law": {"shuffle": "none", "slide": True},
}
EVERY = 97  # positions, from one that the reference looks at to the next
PATIENCE = 40.0  # seconds for what a job of four processes does in one or two
ROUNDS = int(os.environ.get("TOKEND_ROUNDS", 16))
RANDOM_SEED = int(os.environ.get("TOKEND_SEED", time.time_ns() % 1_000_000))

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000


def skip(why):
    print(f"skipped: {why}", flush=True)
    sys.exit(77)


def become_root():
    """Namespaces are root's; where we are not, a user namespace makes us. One of mounts is for what tmpfs() mounts."""
    if os.environ.get("ELASTIC_NAMESPACES"):
        return
    if not shutil.which("ip"):
        skip("needs the command ip (Debian: iproute2)")
    make = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--mount", "--user", "--map-root-user"]
    )
    if subprocess.run([*make, "--net", "true"], stderr=subprocess.DEVNULL).returncode:
        skip("may not make namespaces of networks and mounts")
    os.environ["ELASTIC_NAMESPACES"] = "1"
    os.execvp(make[0], [*make, sys.executable, *sys.argv])


@contextlib.contextmanager
def tmpfs(path):
    """All but the shards goes to memory: how busy the disk is with others is not what is looked at here."""
    os.makedirs(path)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


# ---- two nodes ----


class Node:
    """A host name, a network, a daemon with a socket and a state directory of its own."""

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
            skip("may not make a network namespace")
        self.namespaces = [
            os.open(f"/proc/{self.init.pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts")
        ]
        self.daemon = None

    def enter(self):
        """For preexec_fn: whatever is run is run on this node."""
        with_parent()
        for namespace in self.namespaces:
            if _libc.setns(namespace, 0):
                raise OSError(ctypes.get_errno(), "setns")

    def ip(self, *arguments):
        done = subprocess.run(
            ["ip", *map(str, arguments)], preexec_fn=self.enter, capture_output=True, text=True
        )
        if done.returncode:
            skip(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")

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
        """Another job, which takes what it can get of a processor that others leave."""

        def idle():
            self.enter()
            os.nice(19)

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
        self.place.spawn(
            [TOKCTL, "cat", "train", *map(str, arguments)],
            preexec_fn=idle,
            stdout=subprocess.DEVNULL,
        )

    def cursors(self, run_):
        """The log of a run's mixes, in order."""
        log = os.path.join(self.state, "train", run_, "mixes")
        return [
            os.path.join(log, name) for name in sorted(os.listdir(log)) if name.endswith(".cursor")
        ]


class Operator:
    """tokctl, typed on a node."""

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
        """(exit code, answers, result, what it complained of)"""
        out, err = self.process.communicate(timeout=2 * PATIENCE)
        lines = [json.loads(line) for line in out.splitlines()]
        return (
            self.process.returncode,
            [x for x in lines if "outcome" in x],
            next((x for x in lines if "kind" in x), None),
            err,
        )


# ---- a job on them ----


class Job:
    """All processes of one life of a run. They are forked from here, where torch is imported already."""

    def __init__(self, scene, run_, world, micro, dies=None):
        self.scene, self.run, self.world, self.micro = scene, run_, world, micro
        self.on_first = -(-world // 2)  # of the nodes; the others are on the second
        self.records = scene.records(run_)
        self.status = {}  # of those that have ended, by rank
        scene.lives += 1
        self.log = scene.place.file("memory", f"logs/{run_}-{scene.lives}")
        self.pids = [self.fork(rank, (dies or {}).get(rank)) for rank in range(world)]

    def node(self, rank):
        return self.scene.nodes[rank >= self.on_first]

    def local(self, node):
        """How many ranks are on @node."""
        return sum(self.node(rank) is node for rank in range(self.world))

    def fork(self, rank, dies):
        node = self.node(rank)
        options = {"socket": node.daemon.socket, "checkpoint": self.scene.checkpoint(self.run), "record": self.records,
                   "micro": self.micro, "dies": dies}  # fmt: skip
        environment = {"RANK": rank, "WORLD_SIZE": self.world, "MASTER_ADDR": self.scene.nodes[0].address, "MASTER_PORT": 29500,
                       "GLOO_SOCKET_IFNAME": "cable", "TORCHELASTIC_RUN_ID": self.run, "ELASTIC": json.dumps(options)}  # fmt: skip
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(f"{self.log}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1), os.dup2(log, 2)
            node.enter()
            os.environ.update({name: str(value) for name, value in environment.items()})
            elastic_trainer.main()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)

    def said(self):
        """The last words of each rank."""
        return [
            open(f"{self.log}-{rank}.log", errors="replace").read()[-1500:]
            for rank in range(self.world)
        ]

    def ended(self):
        """Exit status by rank of those that are gone; minus the signal, if one ended it."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.status:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.status[rank] = os.waitstatus_to_exitcode(status)
        return self.status

    def kill(self, rank):
        if rank not in self.ended():
            os.kill(self.pids[rank], signal.SIGKILL)
            self.status[rank] = os.waitstatus_to_exitcode(os.waitpid(self.pids[rank], 0)[1])

    def end(self):
        for rank in range(self.world):
            self.kill(rank)

    def left(self, name):
        """All have gone by themselves, and well."""
        wait_for(lambda: len(self.ended()) == self.world, PATIENCE)
        good = self.status == dict.fromkeys(range(self.world), 0)
        self.scene.checks.ok(name, good, (self.status, self.said() if not good else ""))
        self.end()
        if not good:
            raise RuntimeError("nothing that follows would say anything")

    def attached(self):
        """All ranks have found their daemon: one that was killed is missed when the ring is empty."""

        def there():
            seen = [
                sum(s["run"] == self.run for s in status(node.daemon.socket)[0])
                for node in self.scene.nodes
            ]
            return seen == [self.local(node) for node in self.scene.nodes] or self.ended()

        if not wait_for(there, PATIENCE) or self.ended():
            raise RuntimeError(
                f"the ranks do not find their daemons: {self.ended()}, {self.said()}"
            )

    def trains(self, beyond=None, steps=24):
        """Until there is a checkpoint at or beyond a position, or so many steps on."""
        at = self.scene.state(self.run)
        until = at["step"] + steps

        def there():
            state = self.scene.state(self.run)
            return (
                state["position"] >= beyond if beyond is not None else state["step"] >= until
            ) or self.ended()

        if not wait_for(there, PATIENCE) or self.ended():
            raise RuntimeError(
                f"the job does not go on: {self.scene.state(self.run)}, {self.ended()}, {self.said()}"
            )


class Scene:
    def __init__(self, place, checks):
        self.place, self.checks = place, checks
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
        """What the last checkpoint says."""
        if not os.path.exists(self.checkpoint(run_)):
            return {"step": 0, "position": 0, "mixes": [], "skips": [], "errors": []}
        state = torch.load(self.checkpoint(run_))
        return {**state, "position": tokend.Cursor(state["data"]["cursor"]).position}

    def tokens(self):
        """All shards, by dataset and name."""
        shards = {}
        for name, sizes in SHARDS.items():
            for i in range(len(sizes)):
                shards[name, f"{i}.bin"] = numpy.fromfile(self.place.file(f"{name}/{i}.bin"), "<u2")
        return shards


# ---- the first run ----


def done(scene, name, operator, job, node):
    """What tokctl says of a request that is carried out."""
    code, answers, result, err = operator.end()
    scene.checks.equal(f"{name}: exit 0, nothing to complain of", (code, err), (0, ""))
    if code:
        print("\n".join([*job.said(), *(n.daemon.log() for n in scene.nodes)]))
        raise RuntimeError("nothing that follows would say anything")
    seen = sorted({(a["rank"], a["world"], a["host"]) for a in answers if a["outcome"] == "done"})
    there = [(rank, job.world, node.name) for rank in range(job.world) if job.node(rank) is node]
    scene.checks.equal(
        f"  answered by the ranks of {node.name}", (seen, result["sessions"]), (there, len(there))
    )
    return result


def mix(scene, job, node, weights, before):
    """@before: where the mix in force began."""
    name = f"mix of {', '.join(weights)} from {node.name}"
    operator = Operator(node, job.run, "mix", *(f"{d}={w}" for d, w in weights.items()))
    result = done(scene, name, operator, job, node)
    soon = max(-(-result["from"] // BLOCK) * BLOCK, before + BLOCK)
    scene.checks.equal(
        "  it acts from the next block on",
        (result["acts_from"], result["position"]),
        (soon, result["from"]),
    )
    job.trains(beyond=soon + 1)
    scene.checks.equal(
        "  as the trainers were told", scene.state(job.run)["mixes"][-1], [soon, weights]
    )
    return soon


def skipped(scene, job, node, samples):
    result = done(
        scene,
        f"skip of {samples} from {node.name}",
        Operator(node, job.run, "skip", "--samples", samples),
        job,
        node,
    )
    scene.checks.equal("  from where to where", result["acts_from"] - result["from"], samples)
    job.trains(beyond=result["acts_from"] + 1)
    scene.checks.equal(
        "  as the trainers were told",
        scene.state(job.run)["skips"][-1],
        [result["from"], result["acts_from"]],
    )


def saved(scene, name, job, node, kind, *arguments):
    """A checkpoint, a drain or a rescale."""
    result = done(scene, name, Operator(node, job.run, kind, *arguments), job, node)
    if kind != "checkpoint":
        job.left("  and all leave well")
        scene.checks.equal(
            "  the model is saved where it says",
            scene.state(job.run)["position"],
            result["position"],
        )
    if "--tag" in arguments:
        tag = f"{job.run}/{arguments[arguments.index('--tag') + 1]}.cursor"
        paths = [os.path.join(n.state, "train", tag) for n in scene.nodes]
        wait_for(
            lambda: all(map(os.path.exists, paths)), PATIENCE
        )  # tokctl speaks for its own node
        cursors = [tokend.Cursor.load(path) for path in paths]
        scene.checks.ok("  both daemons wrote the cursor", cursors[0] == cursors[1], cursors)
        scene.checks.equal("    of that place", cursors[0].position, result["position"])
    return result


def rescaled(scene, job, node, world, micro=None):
    """Drains the job, and begins it again in another world."""
    more = ["--micro", micro] if micro else []
    after = micro or job.micro
    name = f"rescale {job.world} → {world} from {node.name}"
    told = saved(
        scene, name, job, node, "rescale", "--world", world, *more, "--tag", f"world-{world}"
    )
    at = told["position"]
    before = (told["world_before"], told["micro_before"], told["global_before"])
    scene.checks.equal("  what was", before, (job.world, job.micro, job.world * job.micro))
    scene.checks.equal(
        "  what will be",
        (told["world"], told["micro"], told["global"]),
        (world, after, world * after),
    )
    table = [
        {"rank": r, "first": at + r * after, "last": at + r * after + after - 1}
        for r in range(world)
    ]
    scene.checks.equal("  what each rank will get first", told["ranks"], table)
    old = set(os.listdir(job.records))
    job = Job(scene, job.run, world, after)
    job.trains()
    first = {}
    for path in set(os.listdir(job.records)) - old:
        entries = records(os.path.join(job.records, path))
        first[path.split(".")[1].split("-")[0]] = int(entries[0][0])
    scene.checks.equal("  and it does", first, {str(row["rank"]): row["first"] for row in table})
    return job


def changed(scene):
    """Mixes, a dataset more, a skip, 4 → 3 → 2 → 4, under load."""
    checks, (a, b) = scene.checks, scene.nodes
    job = Job(scene, "change", 4, 8)
    job.trains()
    began = mix(scene, job, a, {"web": 0.4, "code": 0.6}, 0)
    was = job.pids
    # A dataset that the configs have got since: first on one node, which is not enough.
    for node in scene.nodes:
        node.configure(("law", "web", "code"))
    a.daemon.stop(), a.daemon.start()
    job.attached()
    before = scene.state(job.run)
    code, answers, result, err = Operator(a, job.run, "mix", "web=1", "law=1").end()
    checks.has(
        "a dataset that one node does not know of: refused",
        f"{code} {err}",
        "1 ",
        "has no dataset law",
        "process 2 of 4",
    )
    checks.equal(
        "  by all",
        [answer["outcome"] for answer in answers if answer["outcome"] != "noted"],
        ["failed"] * 2,
    )
    job.trains()
    after = scene.state(job.run)
    checks.equal("  nothing is changed", after["mixes"], before["mixes"])
    checks.equal("  and the trainers know", [err.split(": ", 2)[-1].strip()], after["errors"])
    checks.equal(
        "  the dataset is in nobody's cursor",
        tokend.Cursor(after["data"]["cursor"]).datasets,
        ["web", "code"],
    )
    b.daemon.stop(), b.daemon.start()
    job.attached()
    began = mix(scene, job, b, {"web": 0.25, "law": 0.5, "code": 0.25}, began)
    checks.equal(
        "  it was appended",
        tokend.Cursor(scene.state(job.run)["data"]["cursor"]).datasets,
        ["web", "code", "law"],
    )
    skipped(scene, job, a, 10_000)
    saved(scene, "checkpoint", job, b, "checkpoint", "--tag", "mid")
    job.trains()
    checks.equal("all that in the same processes", (job.pids, job.ended()), (was, {}))
    job = rescaled(scene, job, a, 3)
    began = mix(scene, job, a, {"law": 3.0, "code": 1.0}, began)
    job = rescaled(scene, job, b, 2, micro=7)
    skipped(scene, job, b, 14 * 10)  # to the grid where it is
    began = mix(scene, job, b, {"web": 1.0, "code": 2.0, "law": 1.0}, began)
    job = rescaled(scene, job, a, 4, micro=8)
    saved(scene, "drain", job, b, "drain")
    prove(scene, job.run, ("web", "code"), generations=5)


# ---- the proof ----


def records(path):
    """[rows, 2]: position and checksum, by proto/record.h. A torn end is left out."""
    raw = open(path, "rb").read()
    entries = numpy.frombuffer(raw[: len(raw) // 16 * 16], "<u8").reshape(-1, 2)
    keep = numpy.ones(len(entries), bool)
    for begin in numpy.flatnonzero(entries[:, 0] == (1 << 64) - 1):
        keep[begin : begin + 5] = False
    return entries[keep]


def checksums(positions, rows):
    """Of windows, by proto/record.h."""
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
    """The order as order.md has it, from what the config had at the run's beginning, and what the operator typed and was told."""
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
    """All windows of [0, end), by the cursors that the daemon of @node logged: [end, window]. A later one holds from the start of its
    segment on: what earlier ones announced there never acted."""
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


def prove(scene, run_, names, void=0, **want):
    """@void: None if any number of rows may be."""
    checks, state = scene.checks, scene.state(run_)
    end = state["position"]
    left_out = numpy.zeros(end, bool)
    for first, to in state["skips"]:
        left_out[first:to] = True

    said = verify(scene, run_, scene.nodes[0])
    want |= {"exit": 0, "repeated": 0, "lost": 0, "altered": 0, "skipped": int(left_out.sum()), "samples": int(end - left_out.sum()),
             "from": 0, "to": end, "void": said["void"] if void is None else void, "faults": []}  # fmt: skip
    checks.equal(f"{run_}: tokctl verify", {key: said[key] for key in want}, want)
    checks.equal("  the skips", said["skips"], state["skips"])
    checks.equal("  as many as the model has seen", state["samples"], want["samples"])
    checks.equal(
        "  the other node's log of mixes tells the same", verify(scene, run_, scene.nodes[1]), said
    )

    rows, cursors = cat(scene, scene.nodes[0], run_, end)
    positions = numpy.arange(end)
    if not checks.equal(
        f"{run_}: tokctl cat by {cursors} cursors of the log, every position",
        rows.shape,
        (end, WINDOW),
    ):
        return said
    weighed = rows.sum(1, dtype="u8") * (
        positions.astype("u8") % numpy.uint64(8191) + numpy.uint64(1)
    )
    checks.equal(
        "  the model has learned all of it once",
        state["sum"],
        int(weighed[~left_out].sum()) % elastic_trainer.SUM,
    )
    should = numpy.stack([positions.astype("u8"), checksums(positions, rows)], 1)[~left_out]
    directory = scene.records(run_)
    taken = numpy.concatenate(
        [records(os.path.join(directory, name)) for name in os.listdir(directory)]
    )
    if void == 0:
        same = numpy.array_equal(taken[numpy.argsort(taken[:, 0])], should)
        checks.ok("  the records are just that, each row once", same, (len(taken), len(should)))
    else:
        missing = set(map(tuple, should.tolist())) - set(map(tuple, taken.tolist()))
        checks.ok("  each row of it is in the records", not missing, sorted(missing)[:5])

    order, shards, wrong = order_of(names, state["mixes"]), scene.tokens(), []
    for position in range(0, end, EVERY):
        place = order.place(position)
        if not numpy.array_equal(
            shards[place.dataset, place.shard][place.offset : place.offset + WINDOW], rows[position]
        ):
            wrong.append(place)
    checks.ok(
        f"{run_}: order.md agrees, at every {EVERY}th position of {end}, in {len(state['mixes']) + 1} mixes",
        not wrong,
        wrong[:5],
    )
    return said


# ---- the second run ----


class Storm:
    """A job whose members die."""

    def __init__(self, scene):
        self.scene, self.checks, self.random = scene, scene.checks, random.Random(RANDOM_SEED)
        self.run = "storm"
        self.outcomes = {}  # what came of the operator's requests, counted

    def begin(self, moment=None):
        """@moment: at which one of the ranks dies, of a request."""
        world, micro = self.random.choice([(4, 8), (3, 5), (2, 8), (4, 3), (3, 8)])
        victims = (
            range(world) if moment == "fetched" else [self.random.randrange(world)]
        )  # whoever it is that fetches
        return Job(self.scene, self.run, world, micro, dict.fromkeys(victims, moment))

    def ask(self, node=None):
        """A request, as any operator may have one."""
        node, rng = node or self.random.choice(self.scene.nodes), self.random
        weights = [f"{name}={rng.uniform(0.1, 1):.3f}" for name in ("web", "code", "law")]
        kinds = [
            ["mix", *weights],
            ["skip", "--samples", rng.choice([1, 640, rng.randrange(1, 5000)])],
            ["checkpoint", "--tag", "storm"],
        ]
        return Operator(node, self.run, *rng.choice(kinds))

    def outcome(self, operator):
        """It ends, with one line if not well."""
        code, _, result, err = operator.end()
        good = (
            (code, err) == (0, "")
            and result
            or code == 1
            and err.startswith("tokctl: ")
            and err.count("\n") == 1
        )
        if not good:
            self.checks.ok(
                "an operator's request ends with a result or one line", False, (code, result, err)
            )
        what = (
            result["kind"]
            if result
            else re.sub(r"(, )?rank \d+ \(pid \d+ on \S+\)|at /\S+|\d+", "…", err.strip())
        )
        self.outcomes[what] = self.outcomes.get(what, 0) + 1
        return code

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))

    # -- what may happen --

    def a_rank_dies(self):
        """At any moment, with a request under way."""
        job = self.begin()
        job.trains(steps=16)
        operator = self.ask()
        self.pause(0.15)
        job.kill(self.random.randrange(job.world))
        self.die_out(job)
        self.outcome(operator)

    def one_dies_in_a_request(self):
        """When it has fetched it, or when it has carried it out and nobody knows."""
        moment = self.random.choice(["fetched", "obeyed"])
        job = self.begin(moment)
        job.trains(steps=16)
        operator = self.ask()
        dead = wait_for(job.ended, PATIENCE)
        self.checks.ok(
            f"  a rank is dead that had {moment} a request",
            -signal.SIGKILL in dead.values(),
            (dead, job.said()),
        )
        self.die_out(job)
        self.outcome(operator)

    def die_out(self, job):
        """The others see that one is gone, and end; or they are killed as well, as launchers do."""
        if self.random.random() < 0.5:
            all_ended = wait_for(lambda: len(job.ended()) == job.world, PATIENCE)
            self.checks.ok(
                "  no rank hangs when another one is gone", all_ended, (job.status, job.said())
            )
        job.end()

    def all_die_at_the_start(self):
        job = self.begin()
        self.pause(0.7)
        job.end()

    def a_daemon_dies(self, both=False):
        """With a request under way; the trainers go on with the next one."""
        job = self.begin()
        job.trains(steps=16)
        for node in random.Random(RANDOM_SEED).sample(self.scene.nodes, 2)[: 1 + both]:
            asleep = self.random.choice([None, *range(job.world)])
            if asleep is not None:
                os.kill(job.pids[asleep], signal.SIGSTOP)  # so that the request is open
            operator = self.ask(self.random.choice([node, None]))
            self.pause(0.08)
            node.daemon.kill()
            self.pause(0.2)
            node.daemon.start()
            if asleep is not None:
                os.kill(job.pids[asleep], signal.SIGCONT)
            self.outcome(operator)
        job.attached()
        self.checks.equal("  no rank dies of that", job.ended(), {})
        self.checks.equal("  and the next request is carried out", self.outcome(self.ask()), 0)
        job.trains(steps=self.random.randrange(30))
        job.end()

    def both_daemons_die(self):
        self.a_daemon_dies(both=True)

    def weather(self):
        """The run's whole life."""
        self.begin_well()
        accidents = [self.one_dies_in_a_request, self.a_daemon_dies, self.a_rank_dies, self.all_die_at_the_start,
                     self.one_dies_in_a_request, self.both_daemons_die, self.a_rank_dies, self.one_dies_in_a_request]  # fmt: skip
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
        self.checks.equal("storm: a mix in quiet weather", self.outcome(first), 0)
        job.trains(beyond=self.scene.state(self.run)["position"] + 2 * BLOCK)
        job.kill(self.random.randrange(4))
        job.end()

    def settle(self):
        """After the storm all works as ever."""
        job = self.begin()
        job.trains()
        self.checks.equal(
            "storm: afterwards a mix",
            self.outcome(Operator(self.scene.nodes[1], self.run, "mix", "web=1", "law=2")),
            0,
        )
        job.trains(beyond=self.scene.state(self.run)["mixes"][-1][0] + 1)
        self.checks.equal(
            "  and a drain", self.outcome(Operator(self.scene.nodes[0], self.run, "drain")), 0
        )
        job.left("  all leave well")
        print(f"      the operator heard: {self.outcomes}", flush=True)
        said = prove(self.scene, self.run, ("law", "web", "code"), void=None)
        self.checks.ok(
            f"storm: {said['void']} rows were undone by restarts", said["void"] > 0, said
        )


def main():
    become_root()
    checks = Checks()
    with Place() as place, tmpfs(place.file("memory")):
        signal.alarm(240 + 30 * ROUNDS)
        scene = Scene(place, checks)
        print(f"      TOKEND_SEED={RANDOM_SEED} TOKEND_ROUNDS={ROUNDS}", flush=True)
        begin = time.monotonic()
        changed(scene)
        print(f"      {time.monotonic() - begin:.1f} s", flush=True)
        Storm(scene).weather()
    checks.exit()


if __name__ == "__main__":
    main()
