"""tokctl verify: the records of real runs are exactly the order, and every deviation is named.

Trainers are `tokctl cat` (one attach, one record) and the Python loader (which seeks in one
process). The checksums are computed here a second time, from proto/record.h, `tokctl plan` and the
shards.
"""

import json
import os
import random
import signal
import struct
import time

import numpy
import pytest
from verifying import HEAD, SEQ_LEN, SHARD, WINDOW, Scene, entries, row_entries

from lib import TOKCTL, has, run, wait_for

# ---- runs that are exact ----


@pytest.fixture(scope="module")
def scene(shared):
    scene = Scene(shared)
    yield scene
    assert scene.daemon.stop() == 0, "exit 0"


def test_rescaled_run_has_one_sum(scene):
    """4 → 3 → 2 → 4 ranks by cursors have the same sum as one rank over the same range."""
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
    assert said["sum"] == alone["sum"], "the sum is that of one rank"
    assert said["sum"] == scene.true_sum(0, 1000), "the sum is that of the shards' tokens"
    part = scene.verify(scene.directory("chain"), "--from", 100, "--to", 723)
    scene.is_proof("a part of the range", part, 100, 723, outside=1000 - 623)
    assert part["sum"] == scene.true_sum(100, 723), "a part of the range has its own sum"
    files = [f"{scene.directory('chain')}/{name}" for name in os.listdir(scene.directory("chain"))]
    again = scene.verify(*files, scene.directory("chain"), files[0])
    assert again["samples"] == 1000, "a file named twice is read once"


def test_restarts_make_rows_void(scene):
    """Restarts from older cursors: on another grid, on the same one, and of one rank alone."""
    name = scene.directory("restarted")
    scene.phase("restarted", 4, 2, 50, to="r400")
    scene.phase("restarted", 4, 2, 50, "r400", to="r800")  # the same grid: the same generation
    scene.phase("restarted", 2, 3, 40, "r400")  # to 640: 400 … 800 are void
    said = scene.verify(name)
    scene.is_proof("from an older cursor, another world", said, 0, 640, generations=2, void=400)
    scene.phase("restarted", 4, 2, 10, "r400")  # to 480, the first grid again, after another one
    said = scene.verify(name)
    scene.is_proof("and the first world from there again", said, 0, 480, generations=3, void=640)
    scene.phase("restarted", 4, 2, 20, 8)  # to 168, the same grid: back to the beginning nearly
    said = scene.verify(name)
    scene.is_proof("and from a much older cursor on the newest grid", said, 0, 168, generations=3)
    assert said["sum"] == scene.true_sum(0, 168), "the sum is that of the rows that count"

    record = scene.phase("spare", 3, 4, 40)  # to 480
    spare = scene.cat(f"{scene.directory('spare')}/spare.record", 1, 3, 4, 20, 240)
    assert scene.finish([spare]) == [], "a new process takes over rank 1"
    said = scene.verify(scene.directory("spare"))
    scene.is_proof("it makes only rows of rank 1 void", said, 0, 480, generations=1, void=80)
    os.unlink(f"{record}-1.record")
    said = scene.verify(scene.directory("spare"), code=1)
    assert (said["lost"], said["faults"][0]["rank"]) == (80, 1), (
        "rows of rank 1 before its cursor stay"
    )


def test_clock_that_was_set_back_is_named(scene):
    """Then a restart seems to be older than what it continues, whose rows become void."""
    name = scene.directory("clock")
    scene.phase("clock", 1, 4, 250)  # to 1000
    later = scene.phase("clock", 1, 4, 250, 500) + "-0.record"  # to 1500
    said = scene.verify(name)
    scene.is_proof("the clock is right", said, 0, 1500, void=500)
    assert said["verdict"] == "OK: every sample from 0 to 1499 once"
    with open(later, "r+b") as f:
        f.seek(16)
        (ns,) = struct.unpack("<Q", f.read(8))
        f.seek(16)
        f.write(struct.pack("<Q", ns - 1000 * 10**9))
    said = scene.verify(name)
    assert said["verdict"].startswith("OK: every sample from 0 to 999 once; "), said["verdict"]
    assert has(said["verdict"], "clock was set back", *os.listdir(name))


def test_late_ranks_belong_to_their_generation(scene):
    """Ranks that pass through the same generations one after the other belong to them, late ones
    too.
    """
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
                assert scene.finish([late]) == [], f"rank {rank} of {world}"
    scene.is_proof(
        "all generations are exact",
        scene.verify(scene.directory("late")),
        0,
        220,
        generations=2,
        void=0,
    )


def test_world_that_was_cut_short(scene):
    """A world is killed before all its ranks have begun; another world follows from there, and then
    the first world again.
    """
    name = scene.directory("cut")
    scene.phase("cut", 4, 2, 15)  # to 120
    for i, (world, batches, ranks) in enumerate(
        ((3, 4, (0, 1)), (2, 3, (1, 0)), (3, 20, (2, 0, 1)))
    ):
        for rank in ranks:
            one = scene.cat(f"{name}/z{i}-{rank}.record", rank, world, 2, batches, 120)
            assert scene.finish([one]) == [], f"rank {rank} of {world} from 120"
    scene.is_proof(
        "its first rank is not a late member of the killed world",
        scene.verify(name),
        0,
        240,
        generations=4,
        void=16 + 12,
    )


def test_record_continues_after_a_killed_daemon(scene):
    """A trainer that loses its daemon continues its record, without a new beginning."""
    record = f"{scene.directory('lost')}/a.record"
    process = scene.cat(record, 0, 1, 1, 300_000)
    for i in range(3):
        wait_for(
            lambda size=HEAD + 16 * (1 + 2000 * i): (
                os.path.exists(record) and os.path.getsize(record) > size
            ),
            pause=0.0005,
        )
        # far from its end, however long a new daemon takes to start
        process.send_signal(signal.SIGSTOP)
        scene.daemon.kill()
        scene.daemon.start()
        process.send_signal(signal.SIGCONT)
    assert os.path.getsize(record) < 16 * 290_000, (
        "three daemons are killed under a trainer",
        os.path.getsize(record),
    )
    assert scene.finish([process]) == [], "the trainer exits with 0"
    assert os.path.getsize(record) == HEAD + 16 * 300_000, "its record has one beginning"
    scene.is_proof(
        "exactly",
        scene.verify(record, "--to", 50_000),
        0,
        50_000,
        generations=1,
        void=0,
        outside=250_000,
    )


def test_all_lives_in_one_file(scene):
    """All lives of a rank may be in one file, as for a job that reuses its file names."""
    for start, batches in ((0, 30), (100, 30), (60, 50), (60, 70)):
        ranks = [
            scene.cat(f"{scene.directory('one-file')}/{r}.record", r, 2, 5, batches, start)
            for r in range(2)
        ]
        assert scene.finish(ranks) == [], f"appended from {start}"
    scene.is_proof(
        "the proof is exact", scene.verify(scene.directory("one-file")), 0, 760, records=2
    )


def test_killed_trainers_are_exact(scene):
    """Trainers are killed while they run, and each time restart from the last common cursor: the
    order is exact.
    """
    rng = random.Random(3)
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
    assert at > 0, "ranks that were killed had taken something"
    scene.phase("killed", 2, 4, 25, at)
    said = scene.verify(scene.directory("killed"))
    scene.is_proof("after eight kills of all ranks", said, 0, at + 200)
    assert said["void"] > 0, ("rows were undone", said)


def test_finite_stream_with_padding(scene):
    end = sum((n - WINDOW) // SEQ_LEN + 1 for n in (SHARD, SHARD // 2))
    record = scene.phase("finite", 3, 7, 1 << 40, stream="finite")
    said = scene.verify(scene.directory("finite"), stream="finite")
    scene.is_proof("a finite stream with padding", said, 0, end)
    assert end % 21 != 0, "it had padding"
    assert has(
        scene.refused(scene.directory("finite"), "--to", end + 1, stream="finite"),
        f"ends at position {end}",
    ), "a range after its end is refused"
    all_ = entries(f"{record}-0.record")
    numpy.concatenate([all_, numpy.array([[end + 3, 1]], "<u8")]).tofile(f"{record}-0.record")
    said = scene.verify(scene.directory("finite"), code=1, stream="finite")
    assert (said["altered"], said["faults"][0]["position"]) == (1, end + 3), (
        "a row after the end of the stream"
    )
    assert has(said["text"], "past the end of the stream"), "it is named"


def test_peers_are_proved_separately(scene):
    """Each peer's records are proved separately."""
    place = scene.place
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
        assert run(*command)[0] == 0, f"peer {peer}"
    status, out, _ = run(
        TOKCTL, "verify", "-c", scene.config, "train", scene.directory("peers"), "--json"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    seen = [(line["peer"], line["samples"], line["repeated"]) for line in lines]
    assert (status, seen) == (0, [(0, 120, 0), (5, 120, 0)]), "two peers, two proofs"
    assert lines[0]["sum"] == lines[1]["sum"], "their sums are equal"


def test_last_complete_step_is_named(scene):
    """A run was stopped in the middle of a step: the report names the last complete step."""
    batches = (20, 18, 19)
    ranks = [
        scene.cat(f"{scene.directory('stopped')}/{r}.record", r, 3, 2, n)
        for r, n in enumerate(batches)
    ]
    assert scene.finish(ranks) == [], "ranks that stop at different steps"
    said = scene.verify(scene.directory("stopped"), code=1)
    assert (said["lost"], said["to"], said["whole_to"]) == (2, 116, 108), (
        "the range ends at the last row"
    )
    assert has(said["verdict"], "rank 1 of 3", "from position 110", "2 lost", "--to 108"), (
        "the missing rows and the end of the complete steps are reported"
    )
    scene.is_proof(
        "the range up to there is exact",
        scene.verify(scene.directory("stopped"), "--to", 108),
        0,
        108,
    )
