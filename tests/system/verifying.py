"""A daemon, ranks that record their rows, calls of `tokctl verify`, and records that are made as
proto/record.h describes them, with the checksums that real ranks recorded.
"""

import collections
import json
import os
import re
import subprocess
import time
import types

import numpy

from lib import TOKCTL, Daemon, datasets, run, wait_for
from lib.web import metric

SEQ_LEN, WINDOW, SHARD = 30, 31, 20_000
BEGIN, KIND, FIRST = (1 << 64) - 1, 0x74646B7200000200, 1  # of a beginning, see proto/record.h
PASS = 2
MADE = 2000  # records can be made of positions before this one


def entries(path):
    """Without a torn end."""
    words = numpy.fromfile(path, "<u8")
    return words[: len(words) // 2 * 2].reshape(-1, 2)


def timeless(all_):
    """The entries, with 0 for the times of their beginnings."""
    all_ = all_.copy()
    all_[numpy.flatnonzero(all_[:, 0] == BEGIN) + 1, 0] = 0
    return all_


def begin(time_ns, position, left, rank, world, micro, peer, cursor, flags=0):
    """The entries of a beginning; @cursor: bytes."""
    words = BEGIN, KIND | flags, time_ns, position, left, rank, world, micro, peer, len(cursor)
    frames = numpy.zeros((-(-len(cursor) // 15), 16), "u1")
    rest = numpy.frombuffer(cursor + bytes(-len(cursor) % 15), "u1").reshape(-1, 15)
    frames[:, :7], frames[:, 8:] = rest[:, :7], rest[:, 7:]
    return numpy.concatenate([numpy.array(words, "<u8").reshape(-1, 2), frames.view("<u8")])


def cursor_of(entries_):
    """The cursor of the beginning that the entries begin with, and its number of entries."""
    size = int(entries_[4, 1])
    frames = numpy.ascontiguousarray(entries_[5 : 5 - (-size // 15)]).view("u1").reshape(-1, 16)
    return numpy.delete(frames, 7, 1).tobytes()[:size], 5 + len(frames)


def life(text):
    """Processes one after the other, from WORLDxMICRO@START+BATCHES. Then may follow :RANKS (two as
    "1,0"; none named: of all), =LIFE whose files they continue, and %PEER. START is a position, or
    the moves (LEFT>POSITION, …) to it.
    """
    form = r"(\d+)x(\d+)@([\d>,]+)\+(\d+)(?::([\d,]+))?(?:=(\d+))?(?:%(\d+))?"
    world, micro, start, batches, ranks, file, peer = re.fullmatch(form, text).groups()
    moves = [[int(n) for n in move.split(">")] for move in start.split(",")]
    return types.SimpleNamespace(
        world=int(world),
        micro=int(micro),
        moves=[(move[0], move[-1]) for move in moves],
        batches=int(batches),
        ranks=[int(n) for n in ranks.split(",")] if ranks else range(int(world)),
        file=file,
        peer=int(peer or 0),
    )


class Scene:
    def __init__(self, place):
        self.place = place
        for name in ("web", "code"):
            place.shard(f"{name}/a.bin", SHARD)
            place.shard(f"{name}/b.bin", SHARD // 2)
        both = [
            {**d, "weight": w} for d, w in zip(datasets("web", "code"), (0.7, 0.3), strict=True)
        ]
        finite = {"seed": 7, "seq_len": SEQ_LEN, "epochs": 1, "datasets": datasets("web")}
        stream = {"seed": 42, "seq_len": SEQ_LEN, "datasets": both}
        other = {**stream, "seed": 43}
        self.streams = {"train": stream, "other": other, "finite": finite}
        self.config = place.config(streams=self.streams)
        self.daemon = Daemon(place, self.config)
        self.checksums = self.begin = self.head = None

    def directory(self, name):
        return os.path.dirname(self.place.file(f"records/{name}/x"))

    def cursor(self, name):
        return self.place.file(f"cursors/{name}")

    def phase(self, name, world, micro, batches, start=None, to=None, stream="train", run_="job"):
        """Runs all ranks of a world at once, each with a new record, as after a restart."""
        tag, ranks = f"{self.directory(name)}/{time.monotonic_ns()}", []
        at = ["--cursor", self.cursor(start)] if isinstance(start, str) else ["--start", start or 0]
        for rank in range(world):
            options = f"--rank {rank} --world {world} --micro {micro} --batches {batches}".split()
            options += ["--run", run_, "--record", f"{tag}-{rank}.record", *at]
            options += ["--cursor-out", self.cursor(f"{to}-{rank}")] if to else []
            command = [TOKCTL, "cat", stream, *options, "--socket", self.daemon.socket]
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            ranks.append(self.place.spawn([str(a) for a in command], **pipes))
        for process in ranks:
            err = process.communicate(timeout=60)[1]
            assert process.returncode == 0, err
        # the run's cursor is in state_dir, for --run
        assert wait_for(lambda: metric(self.daemon.socket, "tokend_state_dir_jobs") == 0)
        if to:
            os.replace(self.cursor(f"{to}-0"), self.cursor(to))
        return tag

    def made(self, lives, together=False):
        """The records of @lives, "2x4@0+10 …": {LIFE-RANK: entries}. @together: one file a rank."""
        if self.checksums is None:  # of positions 0 to MADE, as a real rank recorded them
            base = entries(self.phase("base", 1, 8, MADE // 8) + "-0.record")
            self.begin, head = cursor_of(base)
            self.checksums, self.head = base[head:, 1], 16 * head
        files, time_ns = collections.defaultdict(list), 10**18
        for number, a in enumerate(map(life, lives.split())):
            for rank in a.ranks:
                name = f"{a.file or number}-{rank}"
                file = files[f"{rank}" if together else name]
                for number_, (left, position) in enumerate(a.moves):
                    time_ns += 10**9
                    words = time_ns, position, left, rank, a.world, a.micro, a.peer
                    first = FIRST if a.file is None and number_ == 0 else 0
                    file.append(begin(*words, self.begin, first))
                steps = a.moves[-1][1] + (numpy.arange(a.batches) * a.world + rank) * a.micro
                at = (steps[:, None] + numpy.arange(a.micro)).ravel()
                file.append(numpy.stack([at.astype("<u8"), self.checksums[at]], 1))
        return {name: numpy.concatenate(parts) for name, parts in files.items()}

    def write(self, directory, files):
        for name, file in files.items():
            whole = file if isinstance(file, bytes) else file.astype("<u8").tobytes()
            with open(f"{self.directory(directory)}/{name}.record", "wb") as f:
                f.write(whole)
        return self.directory(directory)

    # ---- tokctl verify ----

    def verify(self, *records, code=0, stream="train"):
        """Its JSON."""
        command = TOKCTL, "verify", "-c", self.config, stream, *records, "--json"
        status, out, err = run(*command)
        assert (status, err) == (code, ""), (err, out)
        said = json.loads(out)
        assert said["verdict"].startswith("OK: ") == (code == 0), said["verdict"]
        return said

    def refused(self, *records, code=1):
        """Its message."""
        status, out, err = run(TOKCTL, "verify", "-c", self.config, "train", *records)
        assert (status, out) == (code, b"") and (code == 2 or err.count("\n") == 1), err
        return err

    def planned(self, count):
        """Where each row below position @count is in the shards."""
        arguments = "-c", self.config, "train", "--from", 0, "--count", count, "--json"
        lines = map(json.loads, run(TOKCTL, "plan", *arguments)[1].splitlines())
        return [{key: line[key] for key in ("dataset", "shard", "offset")} for line in lines]


def proves(said, first, to, **more):
    """Every sample from @first to @to - 1 once, but for skips and losses that are named."""
    want = {"from": first, "to": to, "repeated": 0, "lost": 0, "altered": 0, "skipped": 0, **more}
    want["samples"] = to - first - want["skipped"] - want["lost"]
    assert {key: said[key] for key in want} == want
