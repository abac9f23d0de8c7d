"""A loader gives the tokens, labels and documents of every format as its writer got them, also of
formats of 2 and 4 bytes a token in one stream. A run continues when a wider dataset joins its
stream.
"""

import numpy
import pytest
import tokend
from lib import Daemon, wait_for
from lib.corpus import FORMATS, SEQ_LEN, plan
from lib.web import metric
from loading import make, verify

MICRO, BATCHES = 8, 40
MARKS = {"documents": True, "loss_mask": True}
MIXED = ("flat-masked", "zstd", "megatron", "npy-i64", "npy-i32", "arrow-lists", "zstd-i64")


@pytest.fixture(scope="module")
def served(shared, written):
    streams = {
        name + marked: about.config(str(written[0] / name), bool(marked), name=name)
        for name, about in FORMATS.items()
        for marked in ("", "-marked")
    }
    for marked in "", "-marked":
        datasets = [streams[name + marked]["datasets"][0] for name in MIXED]
        streams[f"mixed{marked}"] = {**streams[f"flat{marked}"], "datasets": datasets}
    return Daemon(shared, shared.config(memory=256 << 20, streams=streams))


@pytest.mark.parametrize("marked", ["", "-marked"])
@pytest.mark.parametrize("name", [*FORMATS, "mixed"])
def test_batches_are_what_the_writers_got(written, served, name, marked):
    more, read = MARKS if marked else {}, set()
    rows = iter(plan(served.config, name + marked, MICRO * BATCHES))
    with tokend.Loader(
        name + marked, MICRO, socket=served.socket, rank=0, world=1, **more
    ) as loader:
        for _ in range(BATCHES):
            batch = next(loader)
            for i, at in zip(range(MICRO), rows):
                about, shard = FORMATS[at["dataset"]], written[1][at["dataset"]][at["shard"]]
                window = SEQ_LEN + FORMATS.get(name, about).stream.get("extra", 1)
                want, starts, mask = about.window(shard, at["offset"], window)
                assert numpy.array_equal(batch["input_ids"][i], want[:SEQ_LEN]), at
                labels = numpy.where(numpy.array(mask) | (not marked), want, -100)[1:]
                assert numpy.array_equal(batch["labels"][i, : window - 1], labels), at
                if marked:
                    found = numpy.flatnonzero(batch["position_ids"][i] == 0)
                    assert found.tolist() == [0, *(s for s in starts if s < SEQ_LEN)], at
                read.add(at["dataset"])
    assert read == ({name} if name in FORMATS else set(MIXED))


def test_a_restarted_daemon_without_masks_is_refused(place, written):
    root, stream = str(written[0] / "npy-listed"), FORMATS["npy-listed"]
    daemon = Daemon(place, place.config(streams={"s": stream.config(root, True)}))
    with make(daemon, "s", slots=4, **MARKS) as loader:  # fewer than BATCHES are ready
        next(loader)
        daemon.kill()
        place.config(streams={"s": {**stream.config(root, False), "documents": True}})
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="loss_mask: is no longer true .* stream s"):
            for _ in range(BATCHES):
                next(loader)


def test_a_wider_dataset_joins_a_running_stream(place):
    """After a restart of the daemon the run continues in a wider ring, and adds the dataset by an
    edit of its cursor. A ring may also become narrow again.
    """
    rows, configs, records = {}, {}, place.file("records")
    for name, dtype, most in (("old", "<u2", 50_000), ("new", "<u4", 1 << 20)):
        tokens = numpy.random.default_rng(most).integers(0, most, 6000).astype(dtype)
        numpy.save(place.file(name, "a.npy"), tokens)
        rows[name] = tokens.astype(numpy.int64)
        entries = [{"name": n, "path": n} for n in rows]
        stream = {"seed": 11, "seq_len": SEQ_LEN, "datasets": entries}
        configs[name] = place.config(f"{name}.yaml", streams={"train": stream})
    narrow, wide = configs.values()
    daemon = Daemon(place, narrow)

    def loader(**more):
        return make(daemon, record=records, run="job", slots=4, provenance=True, **more)

    def check(batch, names=("old",)):
        for i, (d, offset) in enumerate(zip(batch["dataset"], batch["offset"], strict=True)):
            want = rows[names[int(d)]][int(offset) : int(offset) + SEQ_LEN + 1]
            assert numpy.array_equal(batch["input_ids"][i], want[:-1])
            assert numpy.array_equal(batch["labels"][i], want[1:])

    with loader() as job:
        for config in (wide, narrow, wide):
            for _ in range(12):
                check(next(job))
            daemon.kill()
            daemon = Daemon(place, config)
        for _ in range(12):
            check(next(job))
        assert job.datasets == ["old"] and job.set_mix({"old": 1, "new": 1}) == 1024
        added = job.cursor
    seen = set()
    with loader(start=192) as job:
        job.seek(added)
        for _ in range(300):
            batch = next(job)
            check(batch, ("old", "new"))
            seen |= set(batch["dataset"].tolist())
    assert seen == {0, 1}
    # the run's cursor is in state_dir, for --run
    assert wait_for(lambda: metric(daemon.socket, "tokend_state_dir_jobs") == 0)
    whole = (0, [[0, 192 + 1200, 0, 0, 0]])  # a part of it was recorded in the other width
    assert verify(daemon, "train", records, "--run", "job") == whole


@pytest.mark.parametrize("datasets", [1, 900])
def test_a_doubtful_dtype_is_a_few_warnings(place, datasets):
    """One is not repeated by a seek or a new daemon; the log holds hundreds, a socket does not."""
    numpy.arange(9000, dtype="<u4").tofile(place.file("a.bin"))
    data = {"path": place.file("a.bin"), "dtype": "u16", "weight": 1}
    named = [{**data, "name": f"d{i}"} for i in range(datasets)]
    config = place.config(
        streams={"s": {"seed": 1, "seq_len": 64, "vocab": 65536, "datasets": named}}
    )
    daemon = Daemon(place, config)
    assert daemon.log().count("looks like u32") == datasets

    with pytest.warns(RuntimeWarning, match="looks like u32") as said:
        with make(daemon, "s", framework="numpy") as loader:
            next(loader)
            loader.load_state_dict(loader.state_dict())
            daemon.kill()
            daemon.start()
            for _ in range(40):
                next(loader)
    assert len(said) == 1 if datasets == 1 else len(said) < 20
