"""tokctl verify proves records of the Python loader, which seeks and loads within one process."""

import os

import pytest
from tokend import Cursor, Loader
from verifying import M64, Scene

from lib import has


@pytest.fixture(scope="module")
def scene(shared):
    scene = Scene(shared)
    yield scene
    assert scene.daemon.stop() == 0, "exit 0"


def test_skips_mixes_and_rescales_in_one_process(scene):
    """Ranks, here threads of one process, skip, mix, rescale and go back: each is proved and
    reported.
    """
    records = scene.directory("life")
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
    assert acts == {1024}, "a mix is announced"
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
    scene.is_proof(
        "mix, skip and rescale in one process", said, 0, 1380, skipped=100, generations=3, void=0
    )
    assert said["skips"] == [[360, 460]], "the skip is reported"
    assert has(said["text"], "skipped: positions 360 to 459"), "for people too"
    log = scene.place.file("state/train/life/mixes/x")[:-2]
    cursors = sorted(os.path.join(log, f) for f in os.listdir(log))
    by_cursors = scene.verify(records, "--cursor", *cursors)
    assert by_cursors["sum"] == said["sum"], "with --cursor the proof is the same"
    assert (
        said["sum"] == (scene.true_sum(0, 360) + scene.true_sum(460, 1380, "--run", "life")) & M64
    ), "so is the sum"
    files = [os.path.join(records, name) for name in sorted(os.listdir(records))]
    renamed = scene.copy("renamed", *files)
    for i, path in enumerate(renamed):
        os.rename(path, f"{os.path.dirname(path)}/{i}.record")
    without = scene.verify(os.path.dirname(renamed[0]), code=1)
    assert (
        without["altered"] > 100
        and without["faults"][0]["position"] >= 1024
        and without["lost"] == 0
    ), ("compared with another mix, rows from its start on are altered", without)
    for r, loader in enumerate(ranks):
        loader.seek(kept, rank=r, world=2, micro_batch=7)
    step(20)  # 1180 to 1460
    said = scene.verify(records, "--run", "life")
    scene.is_proof("back to a kept cursor", said, 0, 1460, skipped=100, void=200)
    for r, loader in enumerate(ranks):
        loader.seek(early, rank=r, world=2, micro_batch=7)
    step(3)  # 240 to 282
    said = scene.verify(records, "--run", "life")
    scene.is_proof(
        "after going back to before the skip, it is not reported", said, 0, 282, skipped=0
    )
    for loader in ranks:
        loader._client.obey("skip", "samples 118\n")
        loader.close()  # the process ends without another batch
    scene.phase("life", 2, 5, 10, 400, run_="after")  # to 500
    said = scene.verify(records)
    scene.is_proof("a skip and then the end, and another life", said, 0, 500, skipped=118)


def test_checkpoints_loaded_after_the_attach(scene):
    """A checkpoint is loaded into loaders that have already taken batches: those are still proved,
    and missing rows are lost.
    """
    records = scene.directory("loaded")
    keys = {
        "socket": scene.daemon.socket,
        "run": "loaded",
        "framework": "numpy",
        "agree": False,
        "record": records,
    }

    def part(world, micro, steps, state=None, skip=0, ahead=0):
        """Runs a life, and returns the state after it. @skip: samples skipped by request; @ahead:
        samples that the program seeks past by itself.
        """
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
    scene.is_proof("and in the same world", scene.verify(records), 0, 200, generations=2, void=0)
    state = part(2, 4, 10, state, skip=40)  # 240 to 320
    said = scene.verify(records)
    scene.is_proof("and a skip by request before the first batch", said, 0, 320, skipped=40, void=0)
    assert said["skips"] == [[200, 240]], "the skip is reported"
    cursor = Cursor(state["cursor"])
    part(3, 2, 10, {"cursor": bytes(cursor.seek(cursor.position + 5))}, ahead=2)
    said = scene.verify(records, code=1)
    assert (said["lost"], said["skipped"]) == (7, 40), (
        "a checkpoint 7 samples ahead of the training"
    )
