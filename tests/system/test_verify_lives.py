"""tokctl verify proves the records of real jobs: ranks that rescale, mix and go back; and of
sessions that load, seek, skip, commit and end in any order.
"""

import os
import signal
import sys

import numpy
import pytest
from tokend import Loader
from verifying import M64, SEQ_LEN, SHARD, WINDOW, Scene, proves

from lib import has, wait_for, with_parent

WORLD, MICRO = 2, 4


@pytest.fixture(scope="module")
def scene(shared):
    scene = Scene(shared)
    yield scene
    wait_for(lambda: scene.daemon.rings() == 0)
    assert scene.daemon.stop() == 0


def loader_of(scene, rank, world, records, **keys):
    keys = {"socket": scene.daemon.socket, "framework": "numpy", "agree": False, **keys}
    return Loader("train", MICRO, rank=rank, world=world, record=records, **keys)


# ---- jobs ----


def test_finite_stream_with_padding(scene):
    end = sum((n - WINDOW) // SEQ_LEN + 1 for n in (SHARD, SHARD // 2))
    assert end % 21 != 0, "it has padding"
    name = scene.directory("finite")
    record = scene.phase("finite", 3, 7, 1 << 40, stream="finite")
    proves(scene.verify(name, stream="finite"), 0, end)
    with open(f"{record}-0.record", "ab") as file:
        numpy.array([end + 3, 1], "<u8").tofile(file)
    said = scene.verify(name, code=1, stream="finite")
    assert (said["altered"], said["faults"][0]["position"]) == (1, end + 3)
    assert has(said["verdict"], "-0.record has rows past the end of the stream")


def test_altered_shard_alters_its_windows(scene):
    """Tokens of a shard are changed after the run: exactly the windows with them are altered."""
    scene.phase("altered", 2, 5, 150)  # to 1500
    name, shard = scene.directory("altered"), scene.place.file("code/a.bin")
    tokens, plan = numpy.fromfile(shard, "<u2"), scene.planned(1500)
    two = [row for row in plan if (row["dataset"], row["shard"]) == ("code", "a.bin")][7:9]
    changed = tokens.copy()
    for row in two:
        changed[row["offset"] + 11] ^= 1
    scene.daemon.stop()
    changed.tofile(shard)
    said = scene.verify(name, code=1)
    same = [position for position, row in enumerate(plan) if row in two]
    assert sorted(f["position"] for f in said["faults"]) == same
    assert (said["lost"], said["repeated"], said["altered"]) == (0, 0, len(same))
    assert has(said["verdict"], "shard a.bin of dataset code is not what", "restore that shard")
    tokens.tofile(shard)
    proves(scene.verify(name), 0, 1500)
    scene.daemon.start()


def test_skips_mixes_and_rescales_in_one_process(scene):
    """Ranks, here threads of one process, skip, mix, rescale and go back."""
    records = scene.directory("life")
    ranks = [loader_of(scene, r, 3, records, run="life") for r in range(3)]

    def step(n):
        for _ in range(n):
            for loader in ranks:
                next(loader)

    step(20)  # to 240
    assert {loader.set_mix({"web": 0.2, "code": 0.8}) for loader in ranks} == {1024}
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
    said = scene.verify(records)  # their names begin with the run's
    assert said == scene.verify(records, "--run", "life")
    proves(said, 0, 1380, skipped=100, generations=3, void=0)
    assert said["skips"] == [[360, 460]]
    sums = scene.true_sum(0, 360) + scene.true_sum(460, 1380, "--run", "life")
    assert said["sum"] == sums & M64
    renamed = scene.directory("renamed")
    for i, name in enumerate(sorted(os.listdir(records))):
        os.link(f"{records}/{name}", f"{renamed}/{i}.record")
    without = scene.verify(renamed, code=1)
    assert without["altered"] > 100 and without["lost"] == 0, "compared with another mix"
    assert without["faults"][0]["position"] >= 1024
    for r, loader in enumerate(ranks):
        loader.seek(kept, rank=r, world=2, micro_batch=7)
    step(20)  # 1180 to 1460
    for loader in ranks:
        loader.close()
    said = scene.verify(records, "--run", "life")
    proves(said, 0, 1460, skipped=100, void=200)


# ---- sessions ----

# Lives that follow each other, of each rank; "&": of rank 0 and of rank 1. They close their loader,
# unless they die. Then what verify finds.
CASES = """
take 10 / load 80, take 10                                              to=160
take 10 / die / load 80, take 10                                        to=160
take 10 / load 80, die / load 80, take 10                               to=160
take 10 / load 40, die / load 40, die / load 80, take 10                to=160
take 10 / start 40, die / load 80, take 10                              to=160
take 10 / world 1, load 48, die / load 80, take 10                      to=160 generations=1
take 10 / load 80, skip 40, die / load 120, take 5                      to=160 lost=40
die / take 10 / load 80, take 10                                        to=160
take 10 / load 80, skip 40, take 5                                      to=160 skipped=40
take 10 / load 80, seek 120, take 5                                     to=160 lost=40
take 10, load 40, take 15                                               to=160 void=40
take 10, load 0, skip 40, take 15                                       to=160 skipped=40 void=80
take 10 / world 3, load 80, take 5                                      to=140 generations=2
take 10, skip 40, die / load 120, take 5                                to=160 skipped=40
commit, take 10, commit 72, take 3, die                                 to=72
commit, take 8, commit, take 2, die / load 64, take 12                  to=160
commit, take 8, commit, take 2, load 64, take 12, commit                to=160
commit, take 8, skip 40, take 2, commit, take 1, die                    to=120 skipped=40
take 8, commit 56, take 2, die                                          to=64
"""


def act(scene, rank, actions, records):
    """Runs one life, in this process, which was forked for it."""
    world, start = WORLD, "begin"
    while actions[0][0] in ("world", "start"):
        what, number = actions.pop(0)
        world, start = (number, start) if what == "world" else (world, number)
    loader = loader_of(scene, rank, world, records, run="job", start=start)
    for what, *number in actions:
        if what == "take":
            for _ in range(number[0]):
                next(loader)
        elif what == "load":
            loader.load_state_dict({"cursor": bytes(loader.cursor.seek(number[0]))})
        elif what == "commit":
            loader.commit(*number)
        elif what == "seek":
            loader.seek(position=number[0])
        elif what == "skip":
            loader._client.obey("skip", f"samples {number[0]}\n")
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    loader.close()


def live(scene, rank, actions, records):
    """Starts one rank's life. Returns its pid and its intended status."""
    pid = os.fork()
    if pid == 0:
        with_parent()
        try:
            act(scene, rank, actions, records)
            os._exit(0)
        except BaseException as error:
            print(f"rank {rank}, {actions}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return pid, signal.SIGKILL if actions[-1][0] == "die" else 0


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_sessions_without_batches_leave_no_trace(scene, case):
    """A session that took no batch does not change the verdict, wherever it seeked and however it
    ended: processes are killed between any two of their actions.
    """
    lives, members = case.split("  ", 1)
    records = scene.directory(lives.replace("/", "then"))
    for text in lives.split(" / "):
        ranks = [
            [[int(w) if w.isdigit() else w for w in action.split()] for action in one.split(", ")]
            for one in text.split(" & ")
        ]
        if len(ranks) == 1:
            ranks *= dict(a for a in ranks[0] if a[0] == "world").get("world", WORLD)
        for pid, status in [live(scene, r, a, records) for r, a in enumerate(ranks)]:
            assert os.waitpid(pid, 0)[1] == status
    want = {"from": 0, "void": 0}
    want |= {key: int(value) for key, value in (member.split("=") for member in members.split())}
    said = scene.verify(records, code=int("lost" in want))
    proves(said, want.pop("from"), want.pop("to"), **want)
