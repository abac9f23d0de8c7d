#!/usr/bin/env python3
"""The proof after the fact: what real trainers recorded of real runs is exactly the order, and whatever is not so is named.

Trainers are `tokctl cat` (one attach, one record) and the Python loader (which goes elsewhere in one process). The checksums are
computed here a second time, from proto/record.h, `tokctl plan` and the shards.
"""

import json
import os
import random
import resource
import signal
import struct
import subprocess
import time

import numpy

from harness import TOKCTL, Checks, Daemon, Place, datasets, rows_at, run, wait_for, with_parent
from tokend import Cursor, Loader

SEQ_LEN, WINDOW, SHARD = 30, 31, 20_000
BEGIN, VERSION, HEAD = (1 << 64) - 1, 1, 5 * 16  # of a beginning, its marker included
M64 = (1 << 64) - 1


# ---- the checksum, from proto/record.h ----


def mix(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & M64
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def derive(seed, *values):
    h = mix(seed + 0x9E3779B97F4A7C15 & M64)
    for value in values:
        h = mix((h ^ value) + 0x9E3779B97F4A7C15 & M64)
    return h


def checksum(position, row):
    raw = row.astype("<u2").tobytes()
    lanes = [0] * 4
    for w, (word,) in enumerate(struct.iter_unpack("<Q", raw + bytes(-len(raw) % 32))):
        v = (lanes[w % 4] ^ word) * 0xBF58476D1CE4E5B9 & M64
        lanes[w % 4] = v ^ v >> 32
    return derive(position, len(raw), *lanes)


# ---- records as bytes ----


def entries(path):
    return numpy.fromfile(path, "<u8").reshape(-1, 2)


def row_entries(path):
    """Indices of a record's rows."""
    at, i, all_ = [], 0, entries(path)
    while i < len(all_):
        if all_[i, 0] == BEGIN:
            i += 5
        else:
            at.append(i)
            i += 1
    return at


class Scene:
    def __init__(self, place, checks):
        self.place, self.checks = place, checks
        for name in ("web", "code"):
            place.shard(f"{name}/a.bin", SHARD)
            place.shard(f"{name}/b.bin", SHARD // 2)
        both = [
            {**d, "weight": w} for d, w in zip(datasets("web", "code"), (0.7, 0.3), strict=True)
        ]
        finite = {"seed": 7, "seq_len": SEQ_LEN, "epochs": 1, "datasets": datasets("web")}
        stream = {"seed": 42, "seq_len": SEQ_LEN, "datasets": both}
        other = {"seed": 43, "seq_len": SEQ_LEN, "datasets": both}
        self.config = place.config(streams={"train": stream, "other": other, "finite": finite})
        self.daemon = Daemon(place, self.config)

    def directory(self, name):
        return os.path.dirname(self.place.file(f"records/{name}/x"))

    def cursor(self, name):
        return self.place.file(f"cursors/{name}")

    def cat(
        self,
        record,
        rank,
        world,
        micro,
        batches,
        start=None,
        stream="train",
        to=None,
        run_="job",
        **keys,
    ):
        start = (
            ["--cursor", self.cursor(start)] if isinstance(start, str) else ["--start", start or 0]
        )
        out = ["--cursor-out", self.cursor(f"{to}-{rank}")] if to else []
        command = [
            TOKCTL,
            "cat",
            stream,
            "--rank",
            rank,
            "--world",
            world,
            "--micro",
            micro,
            "--batches",
            batches,
            "--run",
            run_,
        ]
        command += ["--socket", self.daemon.socket, "--record", record, *start, *out]
        keys.setdefault("stderr", subprocess.PIPE)
        return self.place.spawn([str(a) for a in command], stdout=subprocess.DEVNULL, **keys)

    def finish(self, processes):
        """All of them to their end; what they said if it was not 0."""
        said = []
        for process in processes:
            _, err = process.communicate(timeout=60)
            self.place.children.remove(process)
            if process.returncode:
                said.append((process.returncode, err.decode()))
        return said

    def phase(self, name, world, micro, batches, start=None, to=None, **keys):
        """All ranks of a world at once, a new record each, as restarted processes have."""
        tag = f"{time.monotonic_ns()}"
        ranks = [
            self.cat(
                f"{self.directory(name)}/{tag}-{rank}.record",
                rank,
                world,
                micro,
                batches,
                start,
                to=to,
                **keys,
            )
            for rank in range(world)
        ]
        said = self.finish(ranks)
        if said:
            raise RuntimeError(said)
        if to:
            os.replace(self.cursor(f"{to}-0"), self.cursor(to))
        return f"{self.directory(name)}/{tag}"

    def verify(self, *records, code=0, stream="train"):
        """What it says as JSON; the text is looked at too."""
        status, out, err = run(TOKCTL, "verify", "-c", self.config, stream, *records, "--json")
        text_status, text, _ = run(TOKCTL, "verify", "-c", self.config, stream, *records)
        if status != code or text_status != code:
            self.checks.ok(f"  exit {code}", False, (status, text_status, err, out))
        said = json.loads(out)
        lines = text.decode().splitlines()
        shown = {line.split()[0]: int(line.split()[1]) for line in lines if ":" not in line}
        if any(said[key] != value for key, value in shown.items()):
            self.checks.ok("  text and JSON say the same", False, (said, lines))
        said["text"], said["err"] = text.decode(), err
        return said

    def refused(self, *records, code=1, stream="train"):
        status, out, err = run(TOKCTL, "verify", "-c", self.config, stream, *records)
        if status != code or out or err.count("\n") != 1:
            self.checks.ok(f"  refused with {code} in one line", False, (status, out, err))
        return err

    def is_proof(self, name, said, first, to, **more):
        want = {
            "samples": to - first - more.get("skipped", 0),
            "repeated": 0,
            "lost": 0,
            "altered": 0,
            "from": first,
            "to": to,
        }
        want.update(more)
        self.checks.equal(name, {key: said[key] for key in want}, want)

    def true_sum(self, first, to, *by):
        rows = rows_at(self.config, "train", first, to - first, *by)
        return sum(checksum(first + i, row) for i, row in enumerate(rows)) & M64

    def copy(self, name, *kept):
        """A directory of records of its own, to be damaged: its files."""
        to = self.directory(name)
        for path in kept:
            with open(os.path.join(to, os.path.basename(path)), "wb") as f:
                f.write(open(path, "rb").read())
        return sorted(os.path.join(to, f) for f in os.listdir(to))


# ---- runs that are exact ----


def rescaled(scene):
    """4 → 3 → 2 → 4 by cursors, and the same range by one rank: one sum."""
    checks = scene.checks
    scene.phase("chain", 4, 2, 50, to="one")  # to 400
    scene.phase("chain", 3, 5, 20, "one", to="two")  # to 700
    scene.phase("chain", 2, 1, 30, "two", to="three")  # to 760
    scene.phase("chain", 4, 2, 30, "three", to="four")  # to 1000
    said = scene.verify(scene.directory("chain"))
    scene.is_proof(
        "4 → 3 → 2 → 4 ranks", said, 0, 1000, generations=4, void=0, records=13, outside=0
    )
    scene.phase("alone", 1, 8, 125)
    alone = scene.verify(scene.directory("alone"))
    checks.equal("  the sum is that of one rank", said["sum"], alone["sum"])
    checks.equal("  and that of the shards' tokens", said["sum"], scene.true_sum(0, 1000))
    part = scene.verify(scene.directory("chain"), "--from", 100, "--to", 723)
    scene.is_proof("  a part of it", part, 100, 723, outside=1000 - 623)
    checks.equal("    has its own sum", part["sum"], scene.true_sum(100, 723))
    files = [f"{scene.directory('chain')}/{name}" for name in os.listdir(scene.directory("chain"))]
    again = scene.verify(*files, scene.directory("chain"), files[0])
    checks.equal("  a file named twice is read once", again["samples"], 1000)


def restarted(scene):
    """From older cursors: on another grid, on the same one, back and forth, and one rank alone."""
    checks = scene.checks
    name = scene.directory("restarted")
    scene.phase("restarted", 4, 2, 50, to="r400")
    scene.phase("restarted", 4, 2, 50, "r400", to="r800")  # the same grid: the same generation
    scene.phase("restarted", 2, 3, 40, "r400")  # to 640: 400 … 800 are void
    said = scene.verify(name)
    scene.is_proof("from an older cursor, another world", said, 0, 640, generations=2, void=400)
    scene.phase("restarted", 4, 2, 10, "r400")  # to 480, the first grid again, after another one
    said = scene.verify(name)
    scene.is_proof(
        "  and the first world from there once more", said, 0, 480, generations=3, void=640
    )
    scene.phase("restarted", 4, 2, 20, 8)  # to 168, the same grid: back to the beginning nearly
    said = scene.verify(name)
    scene.is_proof("  and on the newest grid from a much older one", said, 0, 168, generations=3)
    checks.equal("  the sum is that of what counts", said["sum"], scene.true_sum(0, 168))

    record = scene.phase("spare", 3, 4, 40)  # to 480
    spare = scene.cat(f"{scene.directory('spare')}/spare.record", 1, 3, 4, 20, 240)
    checks.equal("a spare in the place of rank 1", scene.finish([spare]), [])
    said = scene.verify(scene.directory("spare"))
    scene.is_proof("  makes void only what rank 1 took", said, 0, 480, generations=1, void=80)
    os.unlink(f"{record}-1.record")
    said = scene.verify(scene.directory("spare"), code=1)
    checks.equal(
        "  and nothing that rank 1 took before it",
        (said["lost"], said["faults"][0]["rank"]),
        (80, 1),
    )


def out_of_step(scene):
    """Ranks that go through the same generations one after the other: the late ones are members all the same."""
    checks = scene.checks
    for rank in range(3):
        for world, batches, start in ((2, 25, 0), (3, 20, 100)):
            if rank < world:
                late = scene.cat(
                    f"{scene.directory('late')}/{rank}-{world}.record",
                    rank,
                    world,
                    2,
                    batches,
                    start,
                )
                checks.equal(f"rank {rank} of {world}", scene.finish([late]), [])
    scene.is_proof(
        "  all of them are exact",
        scene.verify(scene.directory("late")),
        0,
        220,
        generations=2,
        void=0,
    )


def cut_short(scene):
    """A world that not all ranks had begun when it was killed, another one from there, and then that world again."""
    checks, name = scene.checks, scene.directory("cut")
    scene.phase("cut", 4, 2, 15)  # to 120
    for i, (world, batches, ranks) in enumerate(
        ((3, 4, (0, 1)), (2, 3, (1, 0)), (3, 20, (2, 0, 1)))
    ):
        for rank in ranks:
            one = scene.cat(f"{name}/z{i}-{rank}.record", rank, world, 2, batches, 120)
            checks.equal(f"rank {rank} of {world} from 120", scene.finish([one]), [])
    scene.is_proof(
        "  the first of them is no late one",
        scene.verify(name),
        0,
        240,
        generations=4,
        void=16 + 12,
    )


def daemon_killed(scene):
    """A trainer that loses its daemon goes on, and so does its record: that is no new beginning."""
    checks = scene.checks
    record = f"{scene.directory('lost')}/a.record"
    process = scene.cat(record, 0, 1, 1, 300_000)
    for i in range(3):
        wait_for(
            lambda size=HEAD + 16 * (1 + 2000 * i): (
                os.path.exists(record) and os.path.getsize(record) > size
            ),
            pause=0.0005,
        )
        process.send_signal(signal.SIGSTOP)  # far from its end, whatever a new daemon takes to come
        scene.daemon.kill()
        scene.daemon.start()
        process.send_signal(signal.SIGCONT)
    checks.ok(
        "three daemons are killed under a trainer",
        os.path.getsize(record) < 16 * 290_000,
        os.path.getsize(record),
    )
    checks.equal("  it ends well", scene.finish([process]), [])
    checks.equal("  with one beginning", os.path.getsize(record), HEAD + 16 * 300_000)
    scene.is_proof(
        "  exactly",
        scene.verify(record, "--to", 50_000),
        0,
        50_000,
        generations=1,
        void=0,
        outside=250_000,
    )


def same_record(scene):
    """One file for all lives of a rank, as for a job whose file names do not tell them apart."""
    for start, batches in ((0, 30), (100, 30), (60, 50), (60, 70)):
        ranks = [
            scene.cat(f"{scene.directory('one-file')}/{r}.record", r, 2, 5, batches, start)
            for r in range(2)
        ]
        scene.checks.equal(f"appended from {start}", scene.finish(ranks), [])
    scene.is_proof("  is exact", scene.verify(scene.directory("one-file")), 0, 760, records=2)


def in_one_process(scene):
    """Skips, mixes and rescales by seek, of ranks that are threads of one program: the records of long lives."""
    checks, records = scene.checks, scene.directory("life")
    keys = {
        "socket": scene.daemon.socket,
        "run": "life",
        "framework": "numpy",
        "agree": False,
        "record": records,
    }
    ranks = [Loader("train", 4, rank=r, world=3, **keys) for r in range(3)]

    def step(n):
        for _ in range(n):
            for loader in ranks:
                next(loader)

    step(20)  # to 240
    early = ranks[0].cursor
    acts = {loader.set_mix({"web": 0.2, "code": 0.8}) for loader in ranks}
    checks.equal("a mix is announced", acts, {1024})
    step(10)  # to 360
    for loader in ranks:
        loader._client.obey("skip", "samples 100\n")
    step(60)  # 460 to 1180, the mix acts
    kept = ranks[0].cursor
    step(5)  # to 1240
    for r, loader in enumerate(ranks[:2]):
        loader.seek(rank=r, world=2, micro_batch=7)
    ranks.pop().close()
    step(10)  # to 1380
    said = scene.verify(records, "--run", "life")
    scene.is_proof(
        "mix, skip and rescale in one process", said, 0, 1380, skipped=100, generations=3, void=0
    )
    checks.equal("  the skip is stated", said["skips"], [[360, 460]])
    checks.has("  to people too", said["text"], "skipped: positions 360 to 459")
    log = scene.place.file("state/train/life/mixes/x")[:-2]
    cursors = sorted(os.path.join(log, f) for f in os.listdir(log))
    by_cursors = scene.verify(records, "--cursor", *cursors)
    checks.equal("  the same by cursors", by_cursors["sum"], said["sum"])
    checks.equal(
        "  the sum",
        said["sum"],
        (scene.true_sum(0, 360) + scene.true_sum(460, 1380, "--run", "life")) & M64,
    )
    without = scene.verify(records, code=1)
    checks.ok("  by another mix it is altered, from where the mix acts",
              without["altered"] > 100 and without["faults"][0]["position"] >= 1024 and without["lost"] == 0, without)  # fmt: skip
    for r, loader in enumerate(ranks):
        loader.seek(kept, rank=r, world=2, micro_batch=7)
    step(20)  # 1180 to 1460
    said = scene.verify(records, "--run", "life")
    scene.is_proof("back to a kept cursor", said, 0, 1460, skipped=100, void=200)
    for r, loader in enumerate(ranks):
        loader.seek(early, rank=r, world=2, micro_batch=7)
    step(3)  # 240 to 282
    said = scene.verify(records, "--run", "life")
    scene.is_proof("back to before the skip: it never was", said, 0, 282, skipped=0)
    for loader in ranks:
        loader._client.obey("skip", "samples 118\n")
        loader.close()  # no batch follows: it stopped here
    scene.phase("life", 2, 5, 10, 400, run_="after")  # to 500
    said = scene.verify(records)
    scene.is_proof("a skip and then the end, and another life", said, 0, 500, skipped=118)


def loaded(scene):
    """A checkpoint is loaded into loaders that have attached already: what was taken before is still proven, what is missing is lost."""
    records = scene.directory("loaded")
    keys = {
        "socket": scene.daemon.socket,
        "run": "loaded",
        "framework": "numpy",
        "agree": False,
        "record": records,
    }

    def part(world, micro, steps, state=None, skip=0, ahead=0):
        """The state after it. @skip: samples that an operator has it skip; @ahead: that it goes ahead by itself."""
        ranks = [Loader("train", micro, rank=r, world=world, **keys) for r in range(world)]
        for loader in ranks:
            if state:
                loader.load_state_dict(state)
            if skip:
                loader._client.obey("skip", f"samples {skip}\n")
            if ahead:
                loader.seek(position=loader.position + ahead)
        for _ in range(steps):
            for loader in ranks:
                next(loader)
        state = ranks[0].state_dict()
        for loader in ranks:
            loader.close()
        return state

    state = part(3, 2, 10, part(2, 4, 10))  # to 80, to 140
    scene.is_proof(
        "a checkpoint loaded in another world", scene.verify(records), 0, 140, generations=2, void=0
    )
    state = part(3, 2, 10, state)  # to 200
    scene.is_proof("  and in the same one", scene.verify(records), 0, 200, generations=2, void=0)
    state = part(2, 4, 10, state, skip=40)  # 240 to 320
    said = scene.verify(records)
    scene.is_proof("  and made to skip before its first batch", said, 0, 320, skipped=40, void=0)
    scene.checks.equal("    which is stated", said["skips"], [[200, 240]])
    cursor = Cursor(state["cursor"])
    part(3, 2, 10, {"cursor": bytes(cursor.seek(cursor.position + 5))}, ahead=2)
    said = scene.verify(records, code=1)
    scene.checks.equal(
        "  one that is 7 samples ahead of what was trained on",
        (said["lost"], said["skipped"]),
        (7, 40),
    )


def killed(scene):
    """kill -9 of trainers in full run; each time all start again where the last common cursor was, the order is exact."""
    checks, rng = scene.checks, random.Random(3)
    at = 0
    for _ in range(8):
        world, micro = rng.choice([(4, 2), (3, 3), (2, 1)])
        tag = f"{scene.directory('killed')}/{time.monotonic_ns()}"
        ranks = [
            scene.cat(f"{tag}-{r}.record", r, world, micro, 1 << 40, at, run_="killed")
            for r in range(world)
        ]
        time.sleep(rng.uniform(0.05, 0.3))
        for process in ranks:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            scene.place.children.remove(process)
        steps = []
        for r in range(world):
            path = f"{tag}-{r}.record"
            if os.path.exists(path):
                steps.append(len(row_entries(path)) // micro)
        whole = min(steps) if len(steps) == world else 0  # the last step that every rank has taken
        at += min(whole, 2000) * world * micro
    checks.ok("ranks that were killed had taken something", at > 0)
    scene.phase("killed", 2, 4, 25, at)
    said = scene.verify(scene.directory("killed"))
    scene.is_proof("after eight kills of all ranks", said, 0, at + 200)
    checks.ok("  much was undone", said["void"] > 0, said)


def finite(scene):
    checks = scene.checks
    end = sum((n - WINDOW) // SEQ_LEN + 1 for n in (SHARD, SHARD // 2))
    record = scene.phase("finite", 3, 7, 1 << 40, stream="finite")
    said = scene.verify(scene.directory("finite"), stream="finite")
    scene.is_proof("a finite stream with padding", said, 0, end)
    checks.ok("  it had padding", end % 21 != 0)
    checks.has(
        "beyond its end",
        scene.refused(scene.directory("finite"), "--to", end + 1, stream="finite"),
        f"ends at position {end}",
    )
    all_ = entries(f"{record}-0.record")
    numpy.concatenate([all_, numpy.array([[end + 3, 1]], "<u8")]).tofile(f"{record}-0.record")
    said = scene.verify(scene.directory("finite"), code=1, stream="finite")
    checks.equal(
        "a row that the stream does not have",
        (said["altered"], said["faults"][0]["position"]),
        (1, end + 3),
    )
    checks.has("  is named", said["text"], "past the end of the stream")


def peers(scene):
    """Each peer's records are a proof of their own."""
    checks, place = scene.checks, scene.place
    for peer in (0, 5):
        command = [
            TOKCTL,
            "cat",
            "train",
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            4,
            "--batches",
            30,
            "--peer",
            peer,
            "--socket",
        ]
        command += [scene.daemon.socket, "--record", place.file(f"records/peers/{peer}.record")]
        checks.equal(f"peer {peer}", run(*command)[0], 0)
    status, out, _ = run(
        TOKCTL, "verify", "-c", scene.config, "train", scene.directory("peers"), "--json"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    seen = [(line["peer"], line["samples"], line["repeated"]) for line in lines]
    checks.equal("two peers, two proofs", (status, seen), (0, [(0, 120, 0), (5, 120, 0)]))
    checks.equal("  of one sum", lines[0]["sum"], lines[1]["sum"])


# ---- runs that are not ----


def damaged(scene):
    checks, rng = scene.checks, random.Random(5)
    record = scene.phase("sound", 2, 3, 50)  # to 300
    files = [f"{record}-{r}.record" for r in range(2)]
    scene.is_proof("before the damage", scene.verify(*files), 0, 300)

    def victim():
        """A row in the middle: file, entry, position."""
        which = rng.randrange(2)
        at = rng.choice(row_entries(files[which])[10:-10])
        return which, at, int(entries(files[which])[at, 0])

    def flip(all_, at):
        all_[at, 1] ^= 1 << 40
        return all_

    for name, change, kind in (
        ("dropped", lambda all_, at: numpy.delete(all_, at, 0), "lost"),
        ("doubled", lambda all_, at: numpy.insert(all_, at, all_[at], 0), "repeated"),
        ("with a checksum flipped", flip, "altered"),
    ):
        which, at, position = victim()
        copies = scene.copy(f"damaged {kind}", *files)
        all_ = entries(copies[which])
        change(all_, at).astype("<u8").tofile(copies[which])
        said = scene.verify(*copies, code=1)
        want = {"repeated": 0, "lost": 0, "altered": 0, kind: 1}
        checks.equal(f"one row {name}", {key: said[key] for key in want}, want)
        fault = said["faults"][0]
        checks.equal(
            "  its position",
            (fault["fault"], fault["position"], len(said["faults"])),
            (kind, position, 1),
        )
        place = json.loads(
            run(
                TOKCTL,
                "plan",
                "-c",
                scene.config,
                "train",
                "--from",
                position,
                "--count",
                1,
                "--json",
            )[1]
        )
        checks.equal(
            "  its place",
            [fault[k] for k in ("dataset", "shard", "offset")],
            [place[k] for k in ("dataset", "shard", "offset")],
        )
        about = f"of rank {which} of 2" if kind == "lost" else f"in {copies[which]}"
        checks.has(
            "  in one line",
            said["text"],
            f"{kind}: position {position}  dataset {place['dataset']}  shard",
            about,
        )
        checks.ok("  no advice to look away", "--to" not in said["err"], said["err"])

    # a position that nobody had to take, with the tokens of another one
    copies = scene.copy("moved", *files)
    all_ = entries(copies[0])
    at = row_entries(copies[0])[20]
    all_[at, 0] += 3
    all_.tofile(copies[0])
    said = scene.verify(*copies, code=1)
    checks.equal(
        "a row at another position", [said[k] for k in ("repeated", "lost", "altered")], [1, 1, 1]
    )

    many = scene.copy("many", files[0])
    said = scene.verify(*many, "--from", 0, "--to", 300, code=1)
    checks.equal("a whole rank is missing", (said["lost"], said["samples"]), (150, 150))
    checks.has(
        "  the first are named, the others counted",
        said["text"],
        "lost: position 3 ",
        "and 2 more behind it",
        "and 120 more",
    )


def altered_shard(scene):
    """One token of one shard, changed after the run: exactly the windows that hold it."""
    checks, place = scene.checks, scene.place
    scene.phase("altered", 2, 5, 150)  # to 1500
    shard = place.file("code/a.bin")
    tokens = numpy.fromfile(shard, "<u2")
    plan = run(TOKCTL, "plan", "-c", scene.config, "train", "--from", 0, "--count", 1500, "--json")[
        1
    ]
    rows = [
        row
        for row in map(json.loads, plan.splitlines())
        if (row["dataset"], row["shard"]) == ("code", "a.bin")
    ]
    row = rows[7]
    before = os.stat(shard)
    tokens[row["offset"] + 11] ^= 1
    tokens.tofile(shard)
    said = scene.verify(scene.directory("altered"), code=1)
    same = [r["position"] for r in rows if r["offset"] == row["offset"]]
    got = [
        (f["fault"], f["position"], f["dataset"], f["shard"], f["offset"]) for f in said["faults"]
    ]
    checks.equal(
        "one token of a shard changed",
        sorted(got),
        [("altered", p, "code", "a.bin", row["offset"]) for p in sorted(same)],
    )
    checks.equal(
        "  nothing else", (said["lost"], said["repeated"], said["altered"]), (0, 0, len(same))
    )
    tokens[row["offset"] + 11] ^= 1
    tokens.tofile(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # the daemon goes on with it
    scene.is_proof("  and back again", scene.verify(scene.directory("altered")), 0, 1500)


def other_mix(scene):
    """A rank that goes on with another mix than the others."""
    checks = scene.checks
    start = scene.cursor("mixed")
    run(TOKCTL, "cursor", "new", "-c", scene.config, "train", "-o", start)
    run(TOKCTL, "cursor", "mix", start, "--at", 1024, "web=0.1", "code=0.9", "-o", start)
    ranks = [
        scene.cat(
            f"{scene.directory('mixed')}/{r}.record",
            r,
            2,
            4,
            200,
            "mixed" if r else 0,
            run_=f"m{r}",
        )
        for r in range(2)
    ]
    checks.equal("one rank of two has another mix", scene.finish(ranks), [])
    for by, guilty in (((), "1.record"), (("--cursor", start), "0.record")):
        said = scene.verify(scene.directory("mixed"), *by, code=1)
        named = {os.path.basename(f["record"]) for f in said["faults"]}
        checks.equal(
            "  altered is what the mix did not give",
            (named, said["lost"], said["repeated"]),
            ({guilty}, 0, 0),
        )
        checks.ok(
            "  from where it acts",
            min(f["position"] for f in said["faults"]) >= 1024,
            said["faults"],
        )


def last_step(scene):
    """A run that was stopped in the middle of a step."""
    checks = scene.checks
    batches = (20, 18, 19)
    ranks = [
        scene.cat(f"{scene.directory('stopped')}/{r}.record", r, 3, 2, n)
        for r, n in enumerate(batches)
    ]
    checks.equal("ranks that stop at different steps", scene.finish(ranks), [])
    said = scene.verify(scene.directory("stopped"), code=1)
    checks.equal("  to the last row", (said["lost"], said["to"], said["whole_to"]), (2, 116, 108))
    err = run(TOKCTL, "verify", "-c", scene.config, "train", scene.directory("stopped"))[2]
    checks.has(
        "  what is missing is said, and where whole steps end",
        err,
        "rank 1 of 3",
        "from position 110",
        "--to 108",
    )
    scene.is_proof(
        "  and there it is whole", scene.verify(scene.directory("stopped"), "--to", 108), 0, 108
    )


def full_disk(scene):
    """A file that may not grow: the batch is not taken, and a life on another disk goes on there."""
    checks = scene.checks
    record = f"{scene.directory('full')}/a.record"

    def limited():
        with_parent()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    process = scene.cat(record, 0, 1, 4, 50, to="full", preexec_fn=limited)
    said = scene.finish([process])
    checks.ok(
        "a disk that takes no more stops the trainer", len(said) == 1 and said[0][0] == 1, said
    )
    checks.has("  it says which file", said[0][1], record, "File too large", "nothing was taken")
    checks.equal("  whole batches are in it", (os.path.getsize(record) - HEAD) % 64, 0)
    scene.phase("full", 1, 4, 20, "full-0")
    at = (os.path.getsize(record) - HEAD) // 16
    scene.is_proof(
        "  its cursor goes on behind the last one",
        scene.verify(scene.directory("full")),
        0,
        at + 80,
        void=0,
    )


# ---- bad input ----


def bad_input(scene):
    checks, place = scene.checks, scene.place
    sound = scene.phase("bad", 1, 4, 10) + "-0.record"
    other = scene.phase("bad-other", 1, 4, 10, stream="other") + "-0.record"
    checks.has(
        "a record of another stream", scene.refused(sound, other), other, "another stream", "train"
    )
    empty = os.path.dirname(place.file("empty/x"))
    checks.has("an empty directory", scene.refused(empty), empty, "no *.record")
    checks.has(
        "a file that is not there",
        scene.refused(place.file("none.record")),
        "none.record",
        "No such file",
    )
    checks.has("a file that is no record", scene.refused(scene.config), scene.config, "no record")
    checks.has("a device", scene.refused("/dev/zero"), "no regular file")
    whole = open(sound, "rb").read()
    for n in (1, 16, HEAD - 1):
        short = place.file(f"short{n}.record")
        open(short, "wb").write(whole[:n])
        checks.has(f"only {n} bytes", scene.refused(short), "nothing was recorded")
    torn = place.file("torn/torn.record")
    open(torn, "wb").write(whole[:-5])
    said = scene.verify(torn)
    scene.is_proof("a torn last entry is left out", said, 0, 39)
    open(torn, "wb").write(whole[:48] + whole)
    scene.is_proof("a torn beginning before another one", scene.verify(torn), 0, 40)
    newer = bytearray(whole)
    newer[8] = 9
    open(torn, "wb").write(newer)
    checks.has("a newer version", scene.refused(torn), "version")
    for at, value, name in ((48, 0, "world"), (40, 3, "rank"), (56, 1 << 40, "micro")):
        broken = bytearray(whole)
        broken[at : at + 8] = struct.pack("<Q", value)
        open(torn, "wb").write(broken)
        checks.has(f"an impossible {name}", scene.refused(torn), "damaged")
    far = bytearray(whole)
    far[-16:-8] = struct.pack("<Q", 1 << 62)
    open(torn, "wb").write(far)
    checks.has("a row at the end of the world", scene.refused(torn), "give --from and --to")
    scene.is_proof("  with --to it is outside", scene.verify(torn, "--to", 39), 0, 39, outside=1)
    checks.has("nothing in the range", scene.refused(sound, "--from", 4000), "4000")
    checks.has(
        "a range upside down", scene.refused(sound, "--from", 20, "--to", 20), "must be above"
    )
    for arguments, word in (
        (["train"], "its records"),
        (["train", sound, "--from", "x"], "--from x"),
        (["train", sound, "--run", "a", "--cursor", "b"], "exclude"),
    ):
        status, out, err = run(TOKCTL, "verify", "-c", scene.config, *arguments)
        checks.equal(f"usage: {arguments[1:]}", (status, out), (2, b""))
        checks.has("  says", err, word)
    config = scene.config
    status, _, err = run(
        TOKCTL,
        "cat",
        "train",
        "--rank",
        0,
        "--world",
        1,
        "--micro",
        1,
        "--batches",
        1,
        "-c",
        config,
        "--record",
        config,
    )
    checks.equal("cat does not write into what is no record", status, 1)
    checks.has("  and says so", err, config, "is no record")
    json.load(open(config))


def main():
    checks = Checks()
    with Place() as place:
        scene = Scene(place, checks)
        rescaled(scene)
        restarted(scene)
        out_of_step(scene)
        cut_short(scene)
        daemon_killed(scene)
        same_record(scene)
        in_one_process(scene)
        loaded(scene)
        killed(scene)
        finite(scene)
        peers(scene)
        damaged(scene)
        altered_shard(scene)
        other_mix(scene)
        last_step(scene)
        full_disk(scene)
        bad_input(scene)
        checks.equal("exit 0", scene.daemon.stop(), 0)
    checks.exit()


if __name__ == "__main__":
    main()
