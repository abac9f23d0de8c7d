"""Datasets of 2 and 4 bytes a token in one stream: every row is exact, as in a stream of its own,
with documents, loss masks and a vocab. A run continues when a wider dataset joins its stream.
"""

import numpy
import pytest
from lib import Daemon
from lib.shard_writers import megatron, npy, put, raw, seekable
from loading import make, verify

SEQ, EOS, TOKENS, VOCAB = 32, 5, 6000, 70_000
WINDOW = SEQ + 1
KEYS = {"seed": 3, "seq_len": SEQ, "eos": EOS, "documents": True, "loss_mask": True, "epochs": 1}
NARROW = {  # name: (stored dtype, keys, writer)
    "masked": ("<u2", {"label_mask": "masks"}, put(".bin", raw)),
    "npy-i64": ("<i8", {"dtype": "u16"}, put(".npy", npy)),
    "zstd": ("<u2", {}, seekable(".bin.zst", raw, 1000)),
    "megatron": ("<u2", {}, megatron),
}
WIDE = {
    "npy-u32": ("<u4", {}, put(".npy", npy)),
    "zstd-u32": ("<u4", {"dtype": "u32"}, seekable(".bin.zst", raw, 1000)),
}


def content_of(name, dtype):
    """Tokens with an eos now and then; half of the wide ones are above 65535."""
    rng = numpy.random.default_rng([9, *name.encode()])
    least, most = (0, 50_000) if name in NARROW else (VOCAB - 9000, VOCAB)
    tokens = rng.integers(least, most, TOKENS)
    tokens[rng.integers(0, TOKENS, TOKENS // 20)] = EOS
    return tokens.astype(dtype)


def rows_of(daemon, stream):
    """{(dataset, offset): (tokens, position_ids, loss_mask)} of a finite stream."""
    rows = {}
    more = {"framework": "numpy", "documents": True, "loss_mask": True, "provenance": True}
    with make(daemon, stream, 7, tokens=True, **more) as loader:
        for batch in loader:
            for i in numpy.flatnonzero(batch["position"] >= 0):
                key = int(batch["dataset"][i]), int(batch["offset"][i])
                assert key not in rows, f"{key} came twice"
                rows[key] = tuple(batch[n][i] for n in ("tokens", "position_ids", "loss_mask"))
    return rows


def test_every_row_is_exact(shared):
    entries, contents = {}, {}
    for name, (dtype, keys, write) in {**NARROW, **WIDE}.items():
        content = content_of(name, dtype)
        write(shared.file(name, "a"), content)
        entries[name] = {"name": name, "path": name, **keys}
        contents[name] = content.astype(numpy.int64)
    mask = numpy.random.default_rng(2).integers(0, 2, TOKENS, dtype=numpy.uint8)
    mask.tofile(shared.file("masks", "a.bin"))
    names = list(entries)
    streams = {f"alone-{n}": {**KEYS, "datasets": [entries[n]]} for n in names}
    streams["mixed"] = {**KEYS, "vocab": VOCAB, "datasets": list(entries.values())}
    daemon = Daemon(shared, shared.config(memory=256 << 20, streams=streams))
    mixed = rows_of(daemon, "mixed")
    for (d, offset), (tokens, _, _) in mixed.items():
        want = contents[names[d]][offset : offset + WINDOW]
        assert numpy.array_equal(tokens, want), f"{names[d]} at token {offset}"
    for d, name in enumerate(names):
        alone = rows_of(daemon, f"alone-{name}")
        here = {offset: row for (i, offset), row in mixed.items() if i == d}
        assert sorted(here) == sorted(offset for _, offset in alone), f"{name}: each window once"
        for (_, offset), row in alone.items():
            same = [numpy.array_equal(*pair) for pair in zip(row, here[offset], strict=True)]
            assert all(same), f"{name} at {offset}: as when alone"
    masks = [numpy.mean([row[2].mean() for (i, _), row in mixed.items() if i == d]) for d in (0, 1)]
    assert masks[0] < 0.6 < 0.9 < masks[1]
    assert daemon.stop() == 0


def test_a_wider_dataset_joins_a_running_stream(place):
    """After a restart of the daemon the run continues in a wider ring, and adds the dataset by an
    edit of its cursor. A ring may also become narrow again.
    """
    rows, configs, records = {}, {}, place.file("records")
    for name, dtype, most in (("old", "<u2", 50_000), ("new", "<u4", 1 << 20)):
        tokens = numpy.random.default_rng(most).integers(0, most, TOKENS).astype(dtype)
        numpy.save(place.file(name, "a.npy"), tokens)
        rows[name] = tokens.astype(numpy.int64)
        entries = [{"name": n, "path": n} for n in rows]
        stream = {"seed": 11, "seq_len": SEQ, "datasets": entries}
        configs[name] = place.config(f"{name}.yaml", streams={"train": stream})
    narrow, wide = configs.values()
    daemon = Daemon(place, narrow)

    def loader(**more):
        return make(daemon, record=records, run="job", slots=4, provenance=True, **more)

    def check(batch, names=("old",)):
        for i, (d, offset) in enumerate(zip(batch["dataset"], batch["offset"], strict=True)):
            want = rows[names[int(d)]][int(offset) : int(offset) + WINDOW]
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
        assert (job.datasets, job.fresh().datasets) == (["old"], ["old", "new"])
        added = job.cursor.add("new", like=job.fresh()).mix({"old": 1, "new": 1}, at=1024)
    seen = set()
    with loader(start=192) as job:
        job.seek(added)
        for _ in range(300):
            batch = next(job)
            check(batch, ("old", "new"))
            seen |= set(batch["dataset"].tolist())
    assert seen == {0, 1}
    whole = (0, [[0, 192 + 1200, 0, 0, 0]])  # a part of it was recorded in the other width
    assert verify(daemon, "train", records, "--run", "job") == whole
    assert daemon.stop() == 0


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
