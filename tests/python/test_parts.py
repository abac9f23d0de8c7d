"""Datasets that are parts of their paths: what they serve, what is said of it, what proves it."""

import signal

import numpy
import pytest
import tokend
from lib import TOKCTL, TOKEND, run
from loading import check, check_run, make

STREAM = """
  {name}:
    seed: {seed}
    seq_len: 64
    vocab: 65536
    {more}
    datasets:
      - {{name: {dataset}, path: web, part: [{part}]}}
"""
TWO = """
  run:
    seed: 11
    seq_len: 64
    vocab: 65536
    datasets:
      - {name: most, path: web, part: [0, 0.9]}
      - {name: best, path: web, part: [0.9, 1], weight: 0, shuffle: none}
"""
WINDOWS = 937 + 644  # of web's two shards, in 25 runs of 64


def stream(name, dataset, part, seed=3, more="epochs: 1"):
    return STREAM.format(name=name, dataset=dataset, part=part, seed=seed, more=more)


def restart(daemon, streams):
    """Serves these streams and no others."""
    daemon.stop()
    head, _, _ = daemon.config.read_text().partition("streams:")
    daemon.config.write_text(f"{head}streams:{streams}")
    for name in ("most", "best", "held-out"):
        daemon.shards |= {f"{name}/{s}": daemon.shards[f"web/{s}"] for s in ("a.bin", "b.bin")}
    return daemon.start()


@pytest.fixture
def parts(daemon):
    some = stream("some", "web", "0, 0.9") + stream("held", "held-out", "0.9, 1", seed=4)
    return restart(daemon, some + TWO)


def windows(daemon, name):
    return [row["window"] for row in daemon.plan(name, 0, 2 * WINDOWS)]


def served(daemon, name, world=3):
    """The rows of one epoch, as ranks of a world take them: sorted."""
    found = []
    for rank in range(world):
        with make(daemon, name, rank=rank, world=world) as loader:
            for batch in loader:
                valid = numpy.asarray(batch["position"]) >= 0
                found += numpy.asarray(batch["input_ids"])[valid].tolist()
    return sorted(found)


def test_two_streams_serve_the_path_once(parts):
    """Each has its own seed and name of the dataset."""
    code, out, err = run(TOKEND, "-c", parts.config, "--check")
    assert code == 0 and b"held-out: windows 192 of 1581\n" in out, (out, err)
    some, held = windows(parts, "some"), windows(parts, "held")
    assert sorted(some + held) == list(range(WINDOWS))
    assert (len(some), len(held)) == (22 * 64 - 19, 3 * 64)  # the short run is in the first
    path = [parts.shards[f"web/{name}.bin"] for name in "ab"]
    whole = [shard[: (len(shard) - 1) // 64 * 64].reshape(-1, 64).tolist() for shard in path]
    assert sorted(served(parts, "some") + served(parts, "held")) == sorted(sum(whole, []))


def test_the_best_part_joins_by_a_mix_and_the_run_is_proved(parts, tmp_path):
    """Killed with its daemon, it goes on with another number of ranks."""
    record = {"record": tmp_path / "records", "run": "job"}
    with make(parts, "run", **record) as loader:
        check_run(parts, loader, 40, "run")
        cursor = loader.cursor.mix({"most": 1, "best": 1})
        best = {*windows(parts, "held")}
        assert not best & {row["window"] for row in parts.plan("run", 0, 1024)}
        parts.signal(signal.SIGKILL)
    parts.process.wait()
    parts.start()
    for rank in range(3):
        with make(parts, "run", rank=rank, world=3, start=cursor, **record) as loader:
            plan = parts.plan("run", 160, 100 * 3 * 4, bytes(cursor))
            for step in range(100):
                at = (step * 3 + rank) * 4
                check(parts, next(loader), plan[at : at + 4], loader.datasets)
    late = {row["window"] for row in plan if row["dataset"] == "best"}
    assert late and late <= best
    (said,) = parts.tokctl("verify", "-c", parts.config, "run", record["record"], "--json")
    assert said["verdict"] == "OK: every sample from 0 to 1359 once"


def test_a_cursor_of_another_part_is_refused(parts):
    with make(parts, "some") as loader:
        cursor = loader.cursor
    parts.config.write_text(parts.config.read_text().replace("[0, 0.9]", "[0, 0.95]"))
    parts.stop()
    parts.start()
    with pytest.raises(tokend.RefusedError, match=r"web: part: the cursor has \[0, 0.9\], the st"):
        make(parts, "some", start=cursor)


def test_when_says_that_another_part_has_the_window(parts):
    (row,) = parts.plan("held", 0, 1)
    place = ("--shard", row["shard"], "--offset", row["offset"] + 5)
    found = parts.tokctl(
        "when", "-c", parts.config, "held", "--dataset", "held-out", *place, "--json"
    )[0]
    assert (found["position"], found["window"]) == (0, row["window"])
    code, out, err = run(TOKCTL, "when", "-c", parts.config, "some", "--dataset", "web", *place)
    assert (code, out) == (1, b"")
    assert f"never served here: window {row['window']} is not in part [0, 0.9] of the path" in err


def test_parts_that_overlap_are_remarked(daemon):
    """In one stream and of two, if they are not the same."""
    two = TWO.replace("[0.9, 1]", "[0.85, 1]")
    restart(daemon, two + stream("held", "held-out", "0.85, 1"))
    for said in (
        "run: best: its part of the path, [0.85, 1], overlaps [0, 0.9] of dataset most: both",
        "held: held-out: its part of the path, [0.85, 1], overlaps [0, 0.9] of dataset most of "
        "stream run: both",
    ):
        assert daemon.log().count(said) == 1
    assert daemon.log().count("overlaps") == 2
    with pytest.warns(RuntimeWarning, match=r"overlaps \[0, 0.9\] of dataset most"):
        make(daemon, "run").close()
