"""A daemon, ranks that record their rows, and calls of `tokctl verify`."""

import json
import os
import struct
import subprocess
import time

import numpy

from lib import TOKCTL, Daemon, datasets, rows_at, run

SEQ_LEN, WINDOW, SHARD = 30, 31, 20_000
BEGIN, VERSION, HEAD = (1 << 64) - 1, 1, 5 * 16  # of a beginning, with its marker
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
    """The indices of the entries that are rows."""
    at, i, all_ = [], 0, entries(path)
    while i < len(all_):
        if all_[i, 0] == BEGIN:
            i += 5
        else:
            at.append(i)
            i += 1
    return at


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
        """Waits for all processes. Returns the output of those whose exit status was not 0."""
        said = []
        for process in processes:
            _, err = process.communicate(timeout=60)
            self.place.children.remove(process)
            if process.returncode:
                said.append((process.returncode, err.decode()))
        return said

    def phase(self, name, world, micro, batches, start=None, to=None, **keys):
        """Runs all ranks of a world at once, each with a new record, as after a restart."""
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
        """Runs verify. Returns its JSON, after comparing it with its text."""
        status, out, err = run(TOKCTL, "verify", "-c", self.config, stream, *records, "--json")
        text_status, text, _ = run(TOKCTL, "verify", "-c", self.config, stream, *records)
        if status != code or text_status != code:
            raise AssertionError(f"exit {code}", (status, text_status, err, out))
        said = json.loads(out)
        lines = text.decode().splitlines()
        shown = {line.split()[0]: int(line.split()[1]) for line in lines if ":" not in line}
        if any(said[key] != value for key, value in shown.items()):
            raise AssertionError("text and JSON agree", (said, lines))
        if lines[0] != said["verdict"] or err or said["verdict"].startswith("OK: ") != (code == 0):
            raise AssertionError("the verdict comes first", (said, lines, err))
        said["text"] = text.decode()
        return said

    def refused(self, *records, code=1, stream="train"):
        status, out, err = run(TOKCTL, "verify", "-c", self.config, stream, *records)
        if status != code or out or err.count("\n") != 1:
            raise AssertionError(f"refused with {code} in one line", (status, out, err))
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
        assert {key: said[key] for key in want} == want, name

    def true_sum(self, first, to, *by):
        rows = rows_at(self.config, "train", first, to - first, *by)
        return sum(checksum(first + i, row) for i, row in enumerate(rows)) & M64

    def copy(self, name, *kept):
        """Copies records to a new directory, to be damaged. Returns the files."""
        to = self.directory(name)
        for path in kept:
            with open(os.path.join(to, os.path.basename(path)), "wb") as f:
                f.write(open(path, "rb").read())
        return sorted(os.path.join(to, f) for f in os.listdir(to))
