"""A loader gives the tokens, labels and documents of every format as its writer got them."""

import numpy
import pytest
import tokend
from lib import Daemon
from lib.corpus import FORMATS, SEQ_LEN, corpus, plan

MICRO, BATCHES = 8, 40


@pytest.fixture(scope="module")
def written():
    return corpus()


@pytest.fixture(scope="module")
def served(shared, written):
    streams = {
        name + marked: about.config(str(written[0] / name), bool(marked))
        for name, about in FORMATS.items()
        for marked in ("", "-marked")
    }
    daemon = Daemon(shared, shared.config(memory=64 << 20, streams=streams))
    yield daemon
    assert daemon.stop() == 0


@pytest.mark.parametrize("marked", ["", "-marked"])
@pytest.mark.parametrize("name", FORMATS)
def test_batches_are_what_the_writers_got(written, served, name, marked):
    about, more = FORMATS[name], {"documents": True, "loss_mask": True} if marked else {}
    shards = written[1][name]
    rows = iter(plan(served.config, name, MICRO * BATCHES))
    with tokend.Loader(
        name + marked, MICRO, socket=served.socket, rank=0, world=1, **more
    ) as loader:
        for _ in range(BATCHES):
            batch = next(loader)
            for i, at in zip(range(MICRO), rows):
                window = SEQ_LEN + about.stream.get("extra", 1)
                shard = shards[at["shard"]]
                want, starts, mask = about.window(shard, at["offset"], window)
                assert numpy.array_equal(batch["input_ids"][i], want[:SEQ_LEN]), at
                labels = numpy.where(numpy.array(mask) | (not marked), want, -100)[1:]
                assert numpy.array_equal(batch["labels"][i, : window - 1], labels), at
                if marked:
                    found = numpy.flatnonzero(batch["position_ids"][i] == 0)
                    assert found.tolist() == [0, *(s for s in starts if s < SEQ_LEN)], at


def test_a_restarted_daemon_without_masks_is_refused(place, written):
    root, more = str(written[0] / "npy-listed"), {"documents": True, "loss_mask": True}
    stream = FORMATS["npy-listed"].config(root, True)
    daemon = Daemon(place, place.config(streams={"s": stream}))
    with tokend.Loader("s", MICRO, socket=daemon.socket, rank=0, world=1, **more) as loader:
        next(loader)
        daemon.kill()
        without = {**FORMATS["npy-listed"].config(root, False), "documents": True}
        place.config(streams={"s": without})
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="no longer has it for stream s"):
            for _ in range(BATCHES):
                next(loader)
    assert daemon.stop() == 0
