"""The mix log of daemons that share it or cannot write it; and `tokctl plan` by steps, over shards
that change, with wrong options, and at scale.
"""

import json
import os
import random
import shutil
import subprocess

import numpy
import pytest
from lookback import SEQ_LEN, SHARDS, WINDOW, Scene, run_with_mixes

from lib import TOKCTL, Client, Daemon, has
from lib import order_reference as ref


@pytest.fixture(scope="module")
def scene(shared):
    """A run with several mixes. `first` is its mix log."""
    scene = Scene(shared)
    scene.first = run_with_mixes(scene)
    yield scene
    assert scene.daemon.stop() == 0, "exit 0"


def test_log_cannot_be_written(scene):
    """If the mix log cannot be written, the run goes on, and the log of the daemon says so."""
    place = scene.place
    whole = json.load(open(scene.config))
    whole["state_dir"] = place.file("blocked")
    config = place.config("blocked.yaml", **{**whole, "socket": place.file("blocked.sock")})
    with open(place.file("blocked"), "w") as f:
        f.write("no directory")
    daemon = Daemon(place, config)
    for _ in range(3):
        client = Client(daemon.socket).attach()
        assert client.next() is not None, "a log that cannot be written does not stop the run"
        client.close()
    said = daemon.said("cannot write the mix log")
    assert len(said) == 1 and "Not a directory" in said[0] and "run test" in said[0], (
        "one line says so",
        said,
    )
    os.unlink(place.file("blocked"))
    client = Client(daemon.socket).attach()
    client.close()
    assert os.listdir(place.file("blocked/train/test/mixes")) == ["000001.cursor"], (
        "the mix is logged once that is possible"
    )
    assert daemon.stop() == 0, "the daemon exits with 0"


def test_two_daemons_share_one_log(scene):
    """Daemons that share a state_dir, as nodes of a job may, log each mix once."""
    place = scene.place
    second = Daemon(place, scene.config, socket_path=place.file("second.sock"))
    sockets = [scene.daemon.socket, second.socket]
    for round_, cursor in enumerate(["begin", "mixed", "begin", "mixed"]):
        both = []
        for rank in range(8):
            command = [
                TOKCTL,
                "cat",
                "train",
                "--rank",
                rank,
                "--world",
                8,
                "--micro",
                1,
                "--batches",
                1,
                "--run",
                "both",
            ]
            command += ["--socket", sockets[rank % 2], "--cursor", scene.file(cursor)]
            both.append(place.spawn([str(a) for a in command], stdout=subprocess.DEVNULL))
        codes = [process.wait(60) for process in both]
        names = sorted(os.listdir(place.file("state/train/both/mixes/x")[:-2]))
        want = [f"{n:06}.cursor" for n in range(1, round_ + 2)]
        assert not any(codes) and names == want, (
            f"two daemons, 8 ranks, mix {round_}: one file",
            (codes, names),
        )
    for socket, cursor in zip([*sockets, sockets[0]], ["begin", "mixed", "begin"], strict=True):
        scene.ctl("cat", "train", "--rank", 0, "--world", 1, "--micro", 1, "--batches", 1, "--run",
        "turns",
                  "--socket", socket, "--cursor", scene.file(cursor))  # fmt: skip
    names = sorted(os.listdir(place.file("state/train/turns/mixes/x")[:-2]))
    assert names == [f"{n:06}.cursor" for n in (1, 2, 3)], (
        "a daemon sees what the other one has logged"
    )
    assert second.stop() == 0, "exit 0"


# ---- steps ----


def test_plan_by_step_equals_cat(scene):
    rng, bad = random.Random(3), []
    for world, micro in ((1, 1), (1, 7), (2, 4), (3, 5), (7, 2), (16, 3)):
        cursor = rng.choice([None, "at1200", "mixed", "at4000", "at6000"])
        batches = rng.randrange(3, 12)
        by = ["--cursor", scene.file(cursor)] if cursor else []
        got = scene.train(
            cursor, world, micro, batches, f"steps-{world}-{micro}", run_="steps"
        ).reshape(batches, world, micro, WINDOW)
        step, rank = rng.randrange(batches), rng.randrange(world)
        ask = [
            "plan",
            "-c",
            scene.config,
            "train",
            "--step",
            step,
            "--world",
            world,
            "--micro",
            micro,
            *by,
            "--tokens",
        ]
        rows = scene.lines(*ask)
        named = [(row["rank"], row["row"]) for row in rows]
        if named != [(r, b) for r in range(world) for b in range(micro)]:
            bad.append((world, micro, named))
        if ([row["tokens"] for row in rows] != got[step].reshape(-1, WINDOW)).any():
            bad.append((world, micro, "tokens"))
        if scene.lines(*ask, "--rank", rank) != rows[rank * micro : (rank + 1) * micro]:
            bad.append((world, micro, "--rank"))
        if scene.lines(*ask, "--from", rows[0]["position"] - step * world * micro) != rows:
            bad.append((world, micro, "--from"))
    assert not bad, ("plan --step --tokens equals the output of cat, for six worlds", bad[:2])

    windows = sum(
        ref.shard_windows(t, WINDOW, SEQ_LEN) for d in ("web", "code") for t in SHARDS[d].values()
    )
    world, micro = 4, 6
    last = ref.ceil_div(windows, world * micro) - 1
    ask = ["plan", "-c", scene.config, "finite", "--world", world, "--micro", micro]
    rows = scene.lines(*ask, "--tokens", "--step", last)
    left = windows - last * world * micro
    assert [row["position"] for row in rows] == [
        *range(last * world * micro, windows),
        *[None] * (world * micro - left),
    ], "the last step of a finite stream"
    assert all((row["tokens"] is None) == (row["position"] is None) for row in rows), (
        "padding has no tokens"
    )
    assert has(
        scene.ctl(*ask, "--step", last).decode(), "rank    row", "padding: the stream has ended"
    ), "padding is named for people"
    assert has(
        scene.ctl(*ask, "--step", last + 1, code=1), f"{last + 1} steps", f"the last is step {last}"
    ), "a later step is refused"
    err = scene.ctl(*ask, "--step", 0, "--from", windows, code=1)
    assert has(err, f"ends at position {windows}", "no step"), "a step at the end is refused"
    text = scene.ctl(*ask, "--step", 0, "--rank", 1, "--tokens").decode().splitlines()
    assert len(text) == 1 + micro and text[1].endswith(" ..."), (
        "text has a head, a line per row, and the first tokens",
        text[:2],
    )


def test_changed_shard_stops_plan(scene):
    """If shards change while plan --tokens prints, it names the shard and stops."""
    place = scene.place
    entry = [{"name": "walk", "path": "walk", "shuffle": "none"}]
    config = place.config(
        "walk.yaml", streams={"train": {"seed": 1, "seq_len": SEQ_LEN, "datasets": entry}}
    )
    for name, change, *words in (
        (
            "truncated",
            lambda: os.truncate(place.file("walk/0.bin"), 2000),
            "shard 0.bin at token",
            "was truncated",
        ),
        (
            "replaced",
            lambda: os.replace(place.shard("walk-other", 3000, seed=2), place.file("walk/1.bin")),
            "walk/1.bin: ",
            "was listed",
        ),
        ("removed", lambda: os.unlink(place.file("walk/1.bin")), "walk/1.bin: No such file"),
    ):
        tokens = numpy.fromfile(
            place.shard("walk/0.bin", 300_000), "<u2"
        )  # far more lines than the pipe holds
        place.shard("walk/1.bin", 3000)
        command = [
            TOKCTL,
            "plan",
            "-c",
            config,
            "train",
            "--from",
            "0",
            "--count",
            "20000",
            "--tokens",
            "--json",
        ]
        process = place.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        first = process.stdout.readline()
        change()
        rest, err = process.communicate(timeout=60)
        lines = (first + rest).decode().splitlines()
        sound = all(
            json.loads(line)["tokens"] == list(tokens[30 * i : 30 * i + 31])
            for i, line in enumerate(lines[:-1])
        )
        assert sound and len(lines) > 100, (
            f"a shard {name} meanwhile: the lines before are correct",
            len(lines),
        )
        assert process.returncode == 1, "exit status 1"
        assert has(err.decode(), *words), "one line names the shard"
        assert err.count(b"\n") == 1, "it is one line"


# ---- usage ----


def test_usage_errors_name_the_option(scene):
    plan = ["plan", "-c", scene.config, "train"]
    step = [*plan, "--step", 0]
    when = ["when", "-c", scene.config, "train", "--dataset", "web", "--shard", "a.bin"]
    for arguments, *words in (
        (plan, "--from and --count", "--step"),
        ([*plan, "--from", 0], "--from and --count"),
        ([*plan, "--from", 0, "--count", 1, "--world", 2], "need --step"),
        (step, "--step needs --world and --micro"),
        ([*step, "--world", 2], "--step needs --world and --micro"),
        ([*step, "--world", 2, "--micro", 0], "--micro: '0'", "from 1 to 65536"),
        ([*step, "--world", 0, "--micro", 1], "--world: '0'", "from 1"),
        ([*step, "--world", 2, "--micro", 1, "--rank", 2], "--rank 2", "below the world, 2"),
        ([*step, "--world", 2, "--micro", 1, "--count", 2], "exclude each other"),
        ([*step, "--world", 2, "--micro", 1, "--cursor", "a", "b"], "needs --from"),
        ([*plan, "--from", 0, "--count", 1, "--run", "r", "--cursor", "f"], "exclude each other"),
        ([*plan, "--from", -1, "--count", 1], "--from: '-1'", "integer"),
        ([*when, "--offset", 0, "--tokens", 0], "--tokens: '0'"),
        ([*when, "--offset", 0, "--run", "r", "--cursor", "f"], "exclude each other"),
    ):
        err = scene.ctl(*arguments, code=2)
        assert has(err, *words), f"usage: {' '.join(map(str, arguments[3:]))}"
    err = scene.ctl(*when, "--offset", 9000, "--tokens", 2, code=1)
    assert has(err, "--tokens 2: from offset 9000 on, a.bin has only 1"), (
        "tokens after the shard's end"
    )


# ---- scale ----


def test_work_does_not_grow_with_the_position(scene):
    """plan does the same work at any position of 100 T tokens in 10,000 sparse shards."""
    place = scene.place
    for i in range(10_000):
        with open(place.file(f"big/s{i:05}.bin"), "wb") as f:
            f.truncate(40_000_000_000)
    stream = {
        "seed": 1,
        "seq_len": 2048,
        "datasets": [{"name": "big", "path": "big", "dtype": "u32"}],
    }
    config = place.config("big.yaml", streams={"train": stream})
    windows = 10_000 * ref.shard_windows(10_000_000_000, 2049, 2048)
    worlds = ["--step", 10**7, "--world", 32768, "--micro", 1, "--rank", 32767]
    asks = {
        "begin": ["--from", 0],
        "middle": ["--from", windows // 2],
        "epoch 10": ["--from", 10 * windows],
    }
    calls = {}
    for name, at in {**asks, "a step of 32768 ranks": worlds}.items():
        count = [] if "--step" in at else ["--count", 1]
        trace = place.file("calls")
        follow = ["strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=openat,pread64", "-o", trace]
        command = follow if shutil.which("strace") else []
        done = subprocess.run([*command, *map(str, [TOKCTL, "plan", "-c", config, "train", *at,
            *count, "--tokens", "--json"])],
                              capture_output=True, timeout=60)  # fmt: skip
        row = json.loads(done.stdout)
        assert row["tokens"] == [0] * 2049 and row["window"] < windows, (
            f"100 T tokens: {name}",
            done.stderr,
        )
        if command:
            total = next(line for line in open(trace) if line.endswith("total\n"))
            calls[name] = int(total.split()[3])
    if calls:
        assert 10_000 < min(calls.values()) and max(calls.values()) - min(calls.values()) < 20, (
            "it makes as many reads at any position",
            calls,
        )
    else:
        pytest.skip("strace is not installed")
