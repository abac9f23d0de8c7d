"""Datasets of 2 and 4 bytes a token in one stream: every row is exact, in every format and way of
reading, with documents, loss masks and a vocab. A run continues when a wider dataset joins its
stream.
"""

import json

import numpy
import pytest

import tokend
from lib import TOKCTL, TOKEND, Daemon, run
from lib.shard_writers import arrow, datatrove, llmc, mds, megatron, npy, put, raw, seekable

SEQ, EOS, TOKENS = 32, 5, 6000
WINDOW = SEQ + 1
KEYS = {"seed": 3, "seq_len": SEQ, "eos": EOS, "documents": True, "loss_mask": True}

# name: (stored dtype, keys, writer)
NARROW = {
    "flat": ("<u2", {}, put(".bin", raw)),
    "masked": ("<u2", {"label_mask": "masks"}, put(".bin", raw)),
    "npy": ("<u2", {}, put(".npy", npy)),
    "listed": ("<u2", {"manifest": "listed.jsonl"}, put(".npy", npy)),
    "npy-i64": ("<i8", {"dtype": "u16"}, put(".npy", npy)),
    "llmc": ("<u2", {}, put(".bin", llmc)),
    "zstd": ("<u2", {}, seekable(".bin.zst", raw, 1000)),
    "datatrove": ("<u2", {}, datatrove),
    "megatron": ("<u2", {}, megatron),
}
WIDE = {
    "npy-u32": ("<u4", {}, put(".npy", npy)),
    "flat-u32": ("<u4", {"dtype": "u32"}, put(".bin", raw)),
    "zstd-u32": ("<u4", {"dtype": "u32"}, seekable(".bin.zst", raw, 1000)),
    "arrow": ("<i4", {}, arrow),
    "mds": ("<i4", {}, None),
}
VOCAB = 70_000


def content_of(name, dtype):
    """Tokens with an eos now and then; half of the wide ones are above 65535."""
    rng = numpy.random.default_rng([9, *name.encode()])
    most = 50_000 if name in NARROW else VOCAB
    tokens = rng.integers(VOCAB - 9000 if name in WIDE else 0, most, TOKENS)
    tokens[rng.integers(0, TOKENS, TOKENS // 20)] = EOS
    return tokens.astype(dtype)


@pytest.fixture(scope="module")
def written(shared):
    """Returns (datasets by name, their tokens by name)"""
    entries, contents = {}, {}
    for name, (dtype, keys, write) in {**NARROW, **WIDE}.items():
        content = content_of(name, dtype)
        if write:
            write(shared.file(name, "a"), content)
        else:
            content = content[: TOKENS // WINDOW * WINDOW]
            mds(shared.file(name), content.reshape(-1, WINDOW), 1 << 20)
        entries[name] = {"name": name, "path": name, **keys}
        contents[name] = content.astype(numpy.int64)
    manifest = shared.file("listed.jsonl")
    code, _, err = run(TOKCTL, "inspect", "--manifest", manifest, shared.file("listed"))
    assert code == 0, err
    mask = numpy.random.default_rng(2).integers(0, 2, TOKENS, dtype=numpy.uint8)
    mask.tofile(shared.file("masks", "a.bin"))
    return entries, contents


def rows_of(socket, stream, **more):
    """Returns {(dataset, offset): (tokens, position_ids, loss_mask)} of a finite stream."""
    rows = {}
    options = {"framework": "numpy", "documents": True, "loss_mask": True, "provenance": True}
    with tokend.Loader(
        stream, 7, socket=socket, rank=0, world=1, tokens=True, **options, **more
    ) as loader:
        width = loader._client.shape()["token_bytes"]
        for batch in loader:
            for i in numpy.flatnonzero(batch["position"] >= 0):
                key = int(batch["dataset"][i]), int(batch["offset"][i])
                assert key not in rows, f"{key} came twice"
                rows[key] = tuple(
                    batch[what][i].copy() for what in ("tokens", "position_ids", "loss_mask")
                )
    return rows, width


def test_every_row_is_exact(shared, written, mode):
    entries, contents = written
    names = list(entries)
    streams = {f"alone-{n}": {**KEYS, "epochs": 1, "datasets": [entries[n]]} for n in names}
    everything = {**KEYS, "epochs": 1, "vocab": VOCAB, "datasets": list(entries.values())}
    config = shared.config(
        f"{mode[0]}{mode[1]}.yaml",
        io=mode[0],
        direct=mode[1],
        memory=256 << 20,
        streams={**streams, "mixed": everything},
    )
    daemon = Daemon(shared, config)
    mixed, width = rows_of(daemon.socket, "mixed")
    assert width == 4, "a stream is as wide as the widest of its datasets"
    for (d, offset), (tokens, _, _) in mixed.items():
        want = contents[names[d]][offset : offset + WINDOW]
        assert numpy.array_equal(tokens, want), f"{names[d]} at token {offset}"
    for d, name in enumerate(names):
        alone, width = rows_of(daemon.socket, f"alone-{name}")
        assert width == (2 if name in NARROW else 4)
        here = {offset: row for (i, offset), row in mixed.items() if i == d}
        assert sorted(here) == sorted(offset for _, offset in alone), f"{name}: each window once"
        for (_, offset), row in alone.items():
            for what, one, other in zip(
                ("tokens", "documents", "mask"), row, here[offset], strict=True
            ):
                assert numpy.array_equal(one, other), f"{name} at {offset}: {what} as when alone"
    masks = [
        numpy.mean([row[2].mean() for (i, _), row in mixed.items() if names[i] == n]) for n in names
    ]
    assert masks[names.index("masked")] < 0.6 < 0.9 < masks[names.index("flat")]
    assert daemon.stop() == 0


@pytest.mark.parametrize("name", ["flat", "zstd", "npy-u32"])
def test_a_token_above_the_vocab_is_named(shared, written, name):
    entries, contents = written
    at = int(numpy.argmax(contents[name][: TOKENS // 2]))
    vocab = int(contents[name][at])
    other = "mds" if name in NARROW else "flat"
    stream = {
        "seed": 3,
        "seq_len": SEQ,
        "epochs": 1,
        "vocab": vocab,
        "datasets": [{**entries[n], "shuffle": "none"} for n in (name, other)],
    }
    for dataset in stream["datasets"]:
        dataset.pop("label_mask", None)
    daemon = Daemon(shared, shared.config(f"vocab-{name}.yaml", streams={"train": stream}))
    arguments = ["--socket", daemon.socket, "--rank", 0, "--world", 1, "--micro", 1]
    code, _, err = run(TOKCTL, "cat", "train", *arguments)
    assert code == 1 and "must be below the stream's vocab" in err, err
    assert daemon.stop() == 0


def test_documents_need_an_eos_that_the_stream_can_hold(shared, written):
    entries, _ = written
    stream = {**KEYS, "eos": VOCAB - 1, "loss_mask": False}
    for names, fine in (
        (["flat", "npy"], False),
        (["flat", "npy-u32"], False),
        (["npy-u32"], True),
    ):
        datasets = [entries[n] for n in names]
        config = shared.config("eos.yaml", streams={"train": {**stream, "datasets": datasets}})
        code, _, err = run(TOKEND, "--check", "-c", config)
        assert (code == 0) == fine and (fine or "does not fit u16" in err), (names, err)


# ---- a running stream ----


class Grown:
    """A stream of one u16 dataset; a u32 dataset joins it."""

    def __init__(self, place):
        self.place = place
        self.rows = {}
        for name, dtype, most in (("old", "<u2", 50_000), ("new", "<u4", 1 << 20)):
            tokens = numpy.random.default_rng(most).integers(0, most, TOKENS).astype(dtype)
            place.file(name, "x")
            numpy.save(place.file(name, "a.npy"), tokens)
            self.rows[name] = tokens.astype(numpy.int64)
        self.records = place.file("records", "x")[:-2]
        self.narrow, self.wide = (
            self.config("narrow.yaml", "old"),
            self.config("wide.yaml", "old", "new"),
        )
        self.daemon = Daemon(place, self.narrow)

    def config(self, file, *names):
        datasets = [{"name": n, "path": n} for n in names]
        stream = {"seed": 11, "seq_len": SEQ, "datasets": datasets}
        return self.place.config(file, streams={"train": stream})

    def restart(self, config):
        self.daemon.kill()
        self.daemon = Daemon(self.place, config)

    def loader(self, **more):
        more = {"record": self.records, "run": "job", "slots": 4, **more}
        return tokend.Loader(
            "train", 4, socket=self.daemon.socket, rank=0, world=1, framework="numpy",
            provenance=True, **more,
        )  # fmt: skip

    def check(self, batch, names, tokens="tokens"):
        for i in range(4):
            offset = int(batch["offset"][i])
            want = self.rows[names[int(batch["dataset"][i])]][offset : offset + WINDOW]
            assert numpy.array_equal(numpy.asarray(batch[tokens])[i].astype(numpy.int64), want)

    def verify(self, config, samples):
        code, out, err = run(
            TOKCTL, "verify", "-c", config, "train", self.records, "--run", "job", "--json"
        )
        said = json.loads(out)
        found = [said[what] for what in ("lost", "repeated", "altered")]
        assert (code, found, said["samples"]) == (0, [0, 0, 0], samples), (said, err)


@pytest.fixture
def grown(place):
    scene = Grown(place)
    yield scene
    assert scene.daemon.stop() == 0


def test_a_wider_dataset_joins_a_running_stream(grown):
    """After a restart of the daemon the run continues in a wider ring, and adds the dataset by an
    edit of its cursor.
    """
    with grown.loader(tokens=True) as loader:
        batches = iter(loader)
        for _ in range(20):
            grown.check(next(batches), ["old"])
        grown.restart(grown.wide)
        for _ in range(20):
            grown.check(next(batches), ["old"])
        assert loader._client.shape()["token_bytes"] == 4
        cursor = grown.place.file("cursor")
        with open(cursor, "wb") as file:
            file.write(bytes(loader.state_dict()["cursor"]))
    grown.verify(grown.narrow, 160)  # half of it was recorded in the other width
    grown.verify(grown.wide, 160)
    add = run(TOKCTL, "cursor", "add", cursor, "-c", grown.wide, "-o", cursor)
    mix = run(TOKCTL, "cursor", "mix", cursor, "--at", 1024, "old=1", "new=1", "-o", cursor)
    assert (add[0], mix[0]) == (0, 0), (add, mix)
    seen = set()
    with grown.loader(tokens=True, start=open(cursor, "rb").read()) as loader:
        batches = iter(loader)
        for _ in range(300):
            batch = next(batches)
            grown.check(batch, ["old", "new"])
            seen |= set(batch["dataset"].tolist())
    assert seen == {0, 1}
    grown.verify(grown.wide, 160 + 1200)


def test_a_wider_ring_for_the_usual_batches(grown):
    """input_ids are int64, whatever the ring's width; a ring may also become narrow again."""
    with grown.loader() as loader:
        for config in (grown.wide, grown.narrow, grown.wide):
            for _ in range(12):
                batch = next(loader)
                assert batch["input_ids"].dtype == numpy.int64
                offset = batch["offset"].tolist()
                for i in range(4):
                    want = grown.rows["old"][offset[i] : offset[i] + WINDOW]
                    assert numpy.array_equal(batch["input_ids"][i], want[:-1])
                    assert numpy.array_equal(batch["labels"][i], want[1:])
            grown.restart(config)
    grown.verify(grown.wide, 36 * 4)


def test_a_doubtful_dtype_is_one_warning(place):
    """Not repeated by a seek or a new daemon."""
    numpy.arange(9000, dtype="<u4").tofile(place.file("a.bin"))
    data = {"name": "a", "path": place.file("a.bin"), "dtype": "u16"}
    config = place.config(
        streams={"s": {"seed": 1, "seq_len": 64, "vocab": 65536, "datasets": [data]}}
    )
    daemon = Daemon(place, config)
    with pytest.warns(RuntimeWarning, match="looks like u32") as said:
        with tokend.Loader("s", 4, socket=daemon.socket, framework="numpy") as loader:
            next(loader)
            loader.load_state_dict(loader.state_dict())
            daemon.kill()
            daemon.start()
            for _ in range(40):
                next(loader)
    assert len(said) == 1


def test_many_doubts_are_a_few_warnings(place):
    """A socket does not hold a warning for each of many datasets."""
    numpy.arange(9000, dtype="<u4").tofile(place.file("a.bin"))
    data = {"path": place.file("a.bin"), "dtype": "u16"}
    datasets = [{"name": f"d{i}", **data, "weight": 1} for i in range(900)]
    config = place.config(streams={"s": {"seed": 1, "seq_len": 64, "datasets": datasets}})
    daemon = Daemon(place, config)
    with pytest.warns(RuntimeWarning, match="looks like u32") as said:
        with tokend.Loader("s", 4, socket=daemon.socket, framework="numpy") as loader:
            next(loader)
    assert len(said) < 20


def test_lent_batches_change_their_type(grown):
    with grown.loader(view=True, hold=1) as loader:
        types = []
        for config in (grown.wide, None):
            for _ in range(12):
                batch = next(loader)
                grown.check(batch, ["old"])
                types.append(str(batch["tokens"].dtype))
            if config:
                grown.restart(config)
    assert types[0].endswith("uint16") and types[-1].endswith("uint32"), types
