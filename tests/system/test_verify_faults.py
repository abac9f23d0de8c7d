"""tokctl verify finds and names every fault of records and shards, and refuses invalid input."""

import json
import os
import random
import resource
import signal
import struct

import numpy
import pytest
from verifying import HEAD, Scene, entries, row_entries

from lib import TOKCTL, has, run, with_parent

# ---- runs with faults ----


@pytest.fixture(scope="module")
def scene(shared):
    scene = Scene(shared)
    yield scene
    assert scene.daemon.stop() == 0, "exit 0"


def test_damaged_rows_are_named(scene):
    rng = random.Random(5)
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

    for name, change, kind, cause in (
        ("dropped", lambda all_, at: numpy.delete(all_, at, 0), "lost", "were never taken"),
        (
            "doubled",
            lambda all_, at: numpy.insert(all_, at, all_[at], 0),
            "repeated",
            "{} has rows that were taken before",
        ),
        ("with a checksum flipped", flip, "altered", "if the run's mix was changed, add --run"),
    ):
        which, at, position = victim()
        copies = scene.copy(f"damaged {kind}", *files)
        all_ = entries(copies[which])
        change(all_, at).astype("<u8").tofile(copies[which])
        said = scene.verify(*copies, code=1)
        want = {"repeated": 0, "lost": 0, "altered": 0, kind: 1}
        assert {key: said[key] for key in want} == want, f"one row {name}"
        fault = said["faults"][0]
        assert (fault["fault"], fault["position"], len(said["faults"])) == (kind, position, 1), (
            "the position is reported"
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
        assert [fault[k] for k in ("dataset", "shard", "offset")] == [
            place[k] for k in ("dataset", "shard", "offset")
        ], "dataset, shard and offset are reported"
        about = f"of rank {which} of 2" if kind == "lost" else f"in {copies[which]}"
        assert has(
            said["text"], f"{kind}: position {position}  dataset {place['dataset']}  shard", about
        ), "it is one line"
        assert cause.format(copies[which]) in said["verdict"], said["verdict"]
        assert f", 1 {kind}" in said["verdict"], said["verdict"]
        assert "--to" not in said["verdict"], "no hint suggests a smaller range"

    # a position that no rank should have taken, with the tokens of another one
    copies = scene.copy("moved", *files)
    all_ = entries(copies[0])
    at = row_entries(copies[0])[20]
    all_[at, 0] += 3
    all_.tofile(copies[0])
    said = scene.verify(*copies, code=1)
    assert [said[k] for k in ("repeated", "lost", "altered")] == [1, 1, 1], (
        "a row at another position"
    )

    many = scene.copy("many", files[0])
    said = scene.verify(*many, "--from", 0, "--to", 300, code=1)
    assert (said["lost"], said["samples"]) == (150, 150), "a whole rank is missing"
    assert has(said["verdict"], "no record of rank 1 of 2 from position 0 on was given"), said
    assert has(said["text"], "lost: position 3 ", "and 2 more after it", "and 120 more"), (
        "the first are named, and the others counted"
    )


def test_altered_shard_alters_its_windows(scene):
    """One token of a shard is changed after the run: exactly the windows with it are altered."""
    place = scene.place
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
    assert sorted(got) == [("altered", p, "code", "a.bin", row["offset"]) for p in sorted(same)], (
        "one token of a shard changed"
    )
    assert (said["lost"], said["repeated"], said["altered"]) == (0, 0, len(same)), (
        "nothing else is reported"
    )
    assert len(same) == 1 or "shard a.bin of dataset code is not what" in said["verdict"], said
    tokens[row["offset"] + 11] ^= 1
    tokens.tofile(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # the daemon goes on with it
    scene.is_proof(
        "with the token restored the proof is exact",
        scene.verify(scene.directory("altered")),
        0,
        1500,
    )


def test_rank_with_another_mix_is_found(scene):
    """One rank has another mix: the rows in which it differs are altered."""
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
    assert scene.finish(ranks) == [], "one rank of two has another mix"
    for by, guilty in (((), "1.record"), (("--cursor", start), "0.record")):
        said = scene.verify(scene.directory("mixed"), *by, code=1)
        named = {os.path.basename(f["record"]) for f in said["faults"]}
        assert (named, said["lost"], said["repeated"]) == ({guilty}, 0, 0), (
            "rows that the mix does not give are altered"
        )
        cause = f"{guilty} has other tokens" if by else "compared with the config's mix"
        assert cause in said["verdict"], said["verdict"]
        assert min(f["position"] for f in said["faults"]) >= 1024, (
            "from the start of that mix on",
            said["faults"],
        )


def test_full_disk_keeps_whole_batches(scene):
    """If the record cannot grow, the batch is not taken; a new process with another file continues
    from there.
    """
    record = f"{scene.directory('full')}/a.record"

    def limited():
        with_parent()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    process = scene.cat(record, 0, 1, 4, 50, to="full", preexec_fn=limited)
    said = scene.finish([process])
    assert len(said) == 1 and said[0][0] == 1, ("a full disk stops the trainer", said)
    assert has(said[0][1], record, "File too large", "nothing was taken"), (
        "the message names the file"
    )
    assert (os.path.getsize(record) - HEAD) % 64 == 0, "the record has complete batches only"
    scene.phase("full", 1, 4, 20, "full-0")
    at = (os.path.getsize(record) - HEAD) // 16
    scene.is_proof(
        "its cursor continues after the last one",
        scene.verify(scene.directory("full")),
        0,
        at + 80,
        void=0,
    )


# ---- invalid input ----


def test_invalid_input_is_refused(scene):
    place = scene.place
    sound = scene.phase("bad", 1, 4, 10) + "-0.record"
    other = scene.phase("bad-other", 1, 4, 10, stream="other") + "-0.record"
    assert has(scene.refused(sound, other), other, "another stream", "train"), (
        "a record of another stream"
    )
    empty = os.path.dirname(place.file("empty/x"))
    assert has(scene.refused(empty), empty, "no *.record"), "an empty directory"
    assert has(scene.refused(place.file("none.record")), "none.record", "No such file"), (
        "a missing file"
    )
    assert has(scene.refused(scene.config), scene.config, "not a record"), (
        "a file that is not a record"
    )
    assert has(scene.refused("/dev/zero"), "not a regular file"), "a device"
    whole = open(sound, "rb").read()
    for n in (1, 16, HEAD - 1):
        short = place.file(f"short{n}.record")
        open(short, "wb").write(whole[:n])
        assert has(scene.refused(short), "nothing was recorded"), f"only {n} bytes"
    torn = place.file("torn/torn.record")
    open(torn, "wb").write(whole[:-5])
    said = scene.verify(torn)
    scene.is_proof("an incomplete last entry is ignored", said, 0, 39)
    open(torn, "wb").write(whole[:48] + whole)
    scene.is_proof(
        "an incomplete beginning before another one is ignored", scene.verify(torn), 0, 40
    )
    newer = bytearray(whole)
    newer[8] = 9
    open(torn, "wb").write(newer)
    assert has(scene.refused(torn), "version"), "a newer version"
    for at, value, name in ((48, 0, "world"), (40, 3, "rank"), (56, 1 << 40, "micro")):
        broken = bytearray(whole)
        broken[at : at + 8] = struct.pack("<Q", value)
        open(torn, "wb").write(broken)
        assert has(scene.refused(torn), "damaged"), f"an impossible {name}"
    far = bytearray(whole)
    far[-16:-8] = struct.pack("<Q", 1 << 62)
    open(torn, "wb").write(far)
    assert has(scene.refused(torn), "give --from and --to"), "a row at a huge position"
    scene.is_proof(
        "with --to that row is outside the range", scene.verify(torn, "--to", 39), 0, 39, outside=1
    )
    assert has(scene.refused(sound, "--from", 4000), "4000"), "nothing in the range"
    assert has(scene.refused(sound, "--from", 20, "--to", 20), "must be above"), "an empty range"
    for arguments, word in (
        (["train"], "RECORD"),
        (["train", sound, "--from", "x"], "--from: 'x'"),
        (["train", sound, "--run", "a", "--cursor", "b"], "exclude"),
    ):
        status, out, err = run(TOKCTL, "verify", "-c", scene.config, *arguments)
        assert (status, out) == (2, b""), f"usage: {arguments[1:]}"
        assert has(err, word), "the usage error names it"
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
    assert status == 1, "cat does not append to a file that is not a record"
    assert has(err, config, "is not a record"), "the message says so"
    json.load(open(config))
