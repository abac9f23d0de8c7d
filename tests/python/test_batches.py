"""The contents of a batch: each kind that a trainer may ask for equals its definition in NumPy."""

import json

import numpy
import pytest
import torch
import transforms
from loading import SEQ, WINDOWS, check, check_run, make, positions, python

import tokend
from lib.stock import StockDaemon
from tokend.integrations.megatron import TokendIterator

EOS = {"packed": 7, "packed-wide": 70_000, "packed-whole": 7, "packed-end": 7}
EXTRA = {"whole": 0, "packed-whole": 0, "ahead": 3, "packed-end": 3}
SHARDS = {"web": ["a.bin", "b.bin"]}  # the others have one
ROWS = 150  # of narrow.bin
STREAMS = """\
  packed: {seed: 3, seq_len: 64, eos: 7, documents: true, loss_mask: true, vocab: 65536,
           datasets: [{name: narrow, path: narrow.bin, label_mask: masks, shuffle: none}]}
  packed-wide: {seed: 3, seq_len: 64, eos: 70000, documents: true, vocab: 100000,
                datasets: [{name: broad, path: broad.bin, dtype: u32}]}
  packed-whole: {seed: 3, seq_len: 64, extra: 0, eos: 7, documents: true, loss_mask: true,
                 vocab: 65536, datasets: [{name: narrow, path: narrow.bin}]}
  packed-end: {seed: 3, seq_len: 64, extra: 3, epochs: 1, eos: 7, documents: true, vocab: 65536,
               datasets: [{name: narrow, path: narrow.bin}]}
"""


def tokens_with(eos, dtype, seed):
    """A third with many eos, a third with few, and windows of only eos and of none."""
    random = numpy.random.default_rng(seed)
    tokens = random.integers(8, 50_000, ROWS * SEQ + 3).astype(dtype)
    for part, share in enumerate((0.3, 0.01)):
        stretch = tokens[part * 50 * SEQ : (part + 1) * 50 * SEQ]
        stretch[random.random(len(stretch)) < share] = eos
    tokens[110 * SEQ : 115 * SEQ] = eos
    # first in a window; the last input; only a label, then first
    tokens[[120 * SEQ, 125 * SEQ - 1, 130 * SEQ]] = eos
    return tokens


@pytest.fixture(scope="module")
def served(shared):
    stock = StockDaemon(shared.path)
    stock.shards["narrow.bin"] = tokens_with(7, numpy.uint16, 1)
    stock.shards["broad.bin"] = tokens_with(70_000, numpy.uint32, 2)
    stock.masks = numpy.random.default_rng(5).integers(0, 2, ROWS * SEQ + 3).astype(numpy.uint8)
    for name in ("narrow.bin", "broad.bin"):
        stock.shards[name].tofile(stock.directory / name)
    stock.masks.tofile(shared.file("masks", "narrow.bin"))
    with open(stock.config, "a") as file:
        file.write(STREAMS)
    yield stock.start()
    stock.end()


# ---- the definition ----


def documents_of(inputs, eos, valid):
    """position_ids and cu_seqlens, token by token. A padding row is one document."""
    ids, starts = numpy.zeros(inputs.shape, numpy.int64), []
    for r, row in enumerate(inputs):
        for i in range(len(row)):
            begins = i == 0 or (row[i - 1] == eos and valid[r])
            ids[r, i] = 0 if begins else ids[r, i - 1] + 1
            if begins:
                starts.append(r * row.size + i)
    return ids, numpy.array([*starts, inputs.size], numpy.int32)


def sliced(rows, rank, size, kind):
    """The context-parallel slice of one rank."""
    parts = numpy.split(rows, 2 * size if kind == "zigzag" else size, axis=1)
    if kind == "zigzag":
        return numpy.concatenate((parts[rank], parts[2 * size - 1 - rank]), 1)
    return parts[rank]


def defined(daemon, stream, plan, micro, **asked):
    """The batch of @micro rows that begins with the rows of @plan."""
    width = SEQ + EXTRA.get(stream, 1)
    valid = numpy.arange(micro) < len(plan)
    rows, stored = numpy.zeros((micro, width), int), numpy.zeros((micro, SEQ), int)
    labels = numpy.full((micro, SEQ), -100)
    fields = {
        name: numpy.full(micro, -1)
        for name in ("position", "dataset", "epoch", "window", "shard", "offset")
    }
    for i, row in enumerate(plan):
        rows[i] = daemon.tokens(row, width)
        for name in ("position", "epoch", "window", "offset"):
            fields[name][i] = row[name]
        fields["dataset"][i] = stream == "train" and row["dataset"] == "code"
        fields["shard"][i] = SHARDS.get(row["dataset"], [row["shard"]]).index(row["shard"])
        stored[i] = rows[i, :SEQ]
        if "transform" in asked:
            rows[i] = asked["transform"](rows[i], row["position"], None)
        known = rows[i, 1 : SEQ + 1]
        labels[i, : len(known)] = known
        if stream == "packed":
            allowed = daemon.masks[row["offset"] :][1 : SEQ + 1]
            labels[i][allowed == 0] = -100
    batch = {"input_ids": rows[:, :SEQ], "labels": labels}
    if asked.get("loss_mask"):
        batch["loss_mask"] = (labels != -100).astype(numpy.float32)
    if asked.get("documents"):
        ids, starts = documents_of(stored, EOS[stream], valid)
        batch["position_ids"] = ids
    elif "cp" in asked:
        batch["position_ids"] = numpy.tile(numpy.arange(SEQ), (micro, 1))
    if "cp" in asked:
        batch = {name: sliced(value, *asked["cp"]) for name, value in batch.items()}
    if asked.get("shift_labels"):  # input i of the slice has label i + 1
        batch["shift_labels"] = labels = batch["labels"]
        batch["labels"] = numpy.concatenate((numpy.full((micro, 1), -100), labels[:, :-1]), 1)
    if asked.get("documents"):
        batch |= {"cu_seqlens": starts, "max_seqlen": int(numpy.diff(starts).max())}
    dtype = asked.get("dtype", {})
    for name, kind in (dtype if type(dtype) is dict else {"input_ids": dtype}).items():
        for key in (name, f"shift_{name}"):
            if key in batch:
                batch[key] = batch[key].astype(kind)
    kept = fields if asked.get("provenance") else {k: fields[k] for k in ("position", "dataset")}
    return batch | kept


def check_batch(batch, want, framework="torch"):
    """It has these keys, types and values, contiguous and in memory of their own."""
    assert batch.keys() == want.keys()
    if "max_seqlen" in want:
        assert type(batch["max_seqlen"]) is int
        assert batch.pop("max_seqlen") == want.pop("max_seqlen")
    for name, value in want.items():
        got = batch[name]
        assert str(got.dtype).removeprefix("torch.") == str(value.dtype), name
        assert type(got).__module__ == framework
        assert got.is_contiguous() if framework == "torch" else got.flags.c_contiguous
        assert numpy.array_equal(numpy.asarray(got), value), name
        got[...] = 1  # changes none of the next ones


INT32 = {"input_ids": "int32", "labels": "int32"}
KINDS = [
    {},
    {"framework": "numpy"},
    {"provenance": True, "dtype": "int32"},
    {"provenance": True, "framework": "numpy", "dtype": INT32, "cp": (0, 1, "zigzag")},
    {"dtype": {"labels": "int32"}},
    {"shift_labels": True},
    {"cp": (0, 2, "contiguous")},
    {"cp": (2, 4, "zigzag"), "framework": "numpy", "shift_labels": True},
    {"transform": transforms.in_place, "dtype": INT32},
    {"transform": transforms.in_place, "workers": 2, "cp": (1, 2, "contiguous")},
]
OF_DOCUMENTS = [
    {"documents": True},
    {"documents": True, "framework": "numpy", "provenance": True},
    {"documents": True, "cp": (1, 2, "zigzag"), "dtype": INT32},
    {"documents": True, "transform": transforms.in_place},
]
OF_MASKS = [
    {},
    {"loss_mask": True, "framework": "numpy", "cp": (1, 2, "zigzag")},
    {"loss_mask": True, "transform": transforms.in_place, "workers": 1},
    {"loss_mask": True, "documents": True, "shift_labels": True, "provenance": True},
]
CASES = [
    *((stream, kind) for kind in KINDS for stream in ("train", "whole", "ahead", "finite")),
    *(("wide", kind) for kind in KINDS if "dtype" not in kind),
    *((stream, kind) for kind in OF_DOCUMENTS for stream in ("packed", "packed-end")),
    *(("packed-wide", {"documents": True, "dtype": kind}) for kind in ("int32", INT32)),
    *((stream, kind) for kind in OF_MASKS for stream in ("packed", "packed-whole")),
]


def name_of(value):
    return value if type(value) is str else "-".join(value) or "plain"


@pytest.mark.parametrize(("stream", "more"), CASES, ids=name_of)
def test_a_batch_is_as_defined(served, stream, more):
    """The last ones of a finite stream, too, with padding. Some batches are of one row."""
    start = {"finite": WINDOWS - 8, "packed-end": ROWS - 8}.get(stream, 0)
    framework = more.get("framework", "torch")
    for micro in (1, 5):
        plan = served.plan(stream, start, 3 * micro)
        with make(served, stream, micro, start=start, **more) as loader:
            for at in range(0, len(plan), micro):
                part = plan[at : at + micro]
                check_batch(next(loader), defined(served, stream, part, micro, **more), framework)
            assert len(plan) == 3 * micro or next(loader, None) is None


@pytest.mark.parametrize("stream", ["packed", "packed-wide"])
def test_documents_begin_after_each_eos(served, stream):
    """In any batch size, also after a seek. The tokens have every special case: tokens_with()."""
    plan = served.plan(stream, 0, ROWS)
    with make(served, stream, 1, documents=True) as loader:
        for micro in (1, 7):
            loader.seek(position=0, micro_batch=micro)
            for at in range(0, ROWS, micro):
                want = defined(served, stream, plan[at : at + micro], micro, documents=True)
                check_batch(next(loader), want) if len(plan[at:]) >= micro else None


# ---- whose rows ----


@pytest.mark.parametrize(
    ("rank", "world", "micro", "start"),
    [(0, 1, 4, 0), (4, 5, 1, 1000), (2, 3, 7, 2047), (0, 1, 4, 10**12)],
)
def test_every_rank_gets_its_share(served, rank, world, micro, start):
    with make(served, micro=micro, rank=rank, world=world, start=start) as loader:
        check_run(served, loader, 100, start=start, rank=rank, world=world, micro=micro)
        assert loader.position == start + 100 * world * micro
        stats = loader.stats()
        assert stats["tokens"] == 100 * micro * (SEQ + 1)
        assert (stats["batches"], stats["lost_wakes"]) == (100, 0)


@pytest.mark.parametrize("more", [{}, {"transform": transforms.in_place, "workers": 2}], ids=str)
def test_a_finite_stream_ends_on_all_ranks_at_once(served, more):
    seen, lengths = [], set()
    for rank in range(3):
        with make(served, "finite", micro=5, rank=rank, world=3, **more) as loader:
            batches = list(loader)
            lengths |= {len(batches), len(loader)}
            assert next(loader, None) is None and loader.position == WINDOWS
        seen += positions(batches)
    assert lengths == {-(-WINDOWS // 15)} and WINDOWS % 15
    assert sorted(seen) == list(range(WINDOWS))


def test_batches_are_in_the_cpus_memory_whatever_the_default_device(served):
    for device in (None, "cpu", torch.device("cpu", 0)):
        with make(served, device=device) as loader, torch.device("meta"):
            assert {value.device.type for value in next(loader).values()} == {"cpu"}
    more = {"rank": 0, "world": 1, "socket": served.socket, "documents": True}
    how = {"transform": transforms.in_place}
    with torch.inference_mode(), torch.device("meta"):
        here, there = make(served, **how), make(served, run="there", workers=1, **how)
        assert torch.equal(next(here)["labels"], next(there)["labels"])
    there.close()
    with torch.device("meta"):  # what Megatron's adapter makes, too
        batch = next(TokendIterator("packed", 4, **more))
    assert {value.device.type for value in batch.values()} == {"cpu"}


# ---- what does not fit ----


def test_a_token_that_the_dtype_cannot_hold_is_named_and_nothing_is_lost(served):
    """The wide shard uses all 32 bits of its tokens."""
    (row,) = served.plan("wide", 0, 1)
    tokens = served.tokens(row, SEQ + 1)
    at = 1 + int(numpy.flatnonzero(tokens[1:] >= 2**31)[0])
    place = f"position 0, dataset wide, shard 0, offset {row['offset'] + at}"
    with make(served, "wide", micro=1, dtype={"labels": torch.int32}) as loader:
        for _ in range(2):
            with pytest.raises(tokend.ArgumentError) as error:
                next(loader)
            assert f"token {tokens[at]} " in str(error.value) and place in str(error.value)
            assert loader.position == loader.taken == 0


Y, ARGUMENT, REFUSED = transforms.in_place, tokend.ArgumentError, tokend.RefusedError


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"stream": "trian"}, REFUSED, r"stream: trian .*; did you mean train\?"),
        ({"rank": 2, "world": 2}, ARGUMENT, "rank: 2"),
        ({"rank": 1, "world": None}, ValueError, "rank, world: .*both"),
        ({"micro": 0}, ARGUMENT, "micro_batch: 0; must be 1"),
        ({"run": "two\nlines"}, ARGUMENT, r"run: 'two\?lines' is not a name"),
        ({"slots": 4097}, ARGUMENT, "slots"),
        ({"micro": 65_536, "slots": 4096}, REFUSED, "slots: .* = 268435456 rows"),
        ({"stream": "finite", "start": 469}, REFUSED, "position: 469 is past the end .*, 468"),
        ({"start": "../x"}, REFUSED, "tag"),
        ({"start": {"epoch": 3}}, ARGUMENT, r"start: .* its keys are \['epoch'\]"),
        ({"deadline": "3"}, ValueError, "deadline: '3'"),
        ({"deadline": 0}, ValueError, "deadline: 0"),
        ({"framework": "jax"}, ValueError, "framework"),
        ({"group": 3}, TypeError, "group: 3"),
        ({"stream": 5}, TypeError, "stream: 5"),
        ({"mesh": 3, "rank": None, "world": None}, TypeError, "mesh: 3"),
        ({"record": "/dev/null"}, ARGUMENT, "record: /dev/null"),
        ({"device": "mps"}, ARGUMENT, "device: 'mps'"),
        ({"config": "y"}, ValueError, "socket, config"),
        ({"dtype": numpy.uint16}, ARGUMENT, "dtype: .* cannot hold all tokens"),
        ({"documents": True}, ARGUMENT, ".*documents: true and eos"),
        ({"loss_mask": True}, ARGUMENT, "loss_mask: the stream has none; set loss_mask: true"),
        ({"cp": (0, 3, "zigzag")}, ARGUMENT, "cp: seq_len 64"),
        ({"transform": 3}, TypeError, "transform: 3"),
        ({"workers": 2}, ValueError, "workers: 2 without a transform"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_impossible_argument_is_named_and_harms_nobody(served, arguments, error, text):
    with pytest.raises(error, match=f"^{text}") as raised:
        make(served, **arguments)
    assert "\n" not in str(raised.value)
    with make(served) as loader:
        check_run(served, loader, 1)


def test_device_cuda_without_a_gpu_is_refused(served):
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(ARGUMENT, match="device: cuda:1, but torch .* sees no GPU"):
        make(served, device="cuda:1")


# ---- without torch ----

ABSENT = """
import json, sys

for name in sys.argv[2].split():
    sys.modules[name] = None
import tokend
try:
    with tokend.Loader("train", 4, socket=sys.argv[1]) as loader:
        batch = next(loader)
    print(json.dumps({
        name: [type(array).__module__, str(array.dtype), array.tolist()]
        for name, array in batch.items()
    }))
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_without_torch_batches_are_numpy_arrays(served):
    said = python(ABSENT, served.socket, "torch numpy").stdout
    assert said.startswith("ImportError framework: neither torch nor numpy is installed")
    printed = json.loads(python(ABSENT, served.socket, "torch").stdout)
    assert {tuple(value[:2]) for value in printed.values()} == {("numpy", "int64")}
    batch = {name: numpy.array(value[2]) for name, value in printed.items()}
    check(served, batch, served.plan("train", 0, 4), ["web", "code"])


def test_an_old_or_broken_torch_is_an_import_error(served, directory):
    program = f"import sys; sys.path.insert(0, {str(directory)!r})\n{ABSENT}"
    for code, text in (
        ("__version__ = '1.13.1+cu117'", "ImportError torch: 1.13.1+cu117 is older than 2.2"),
        ("import no_such_part", "ModuleNotFoundError No module named 'no_such_part'"),
    ):
        (directory / "torch.py").write_text(code)
        assert python(program, served.socket, "").stdout.startswith(text)


@pytest.mark.parametrize("name", ["maker", "_arrays", "_tokens_and_labels"])
def test_a_seek_amid_next_is_followed(served, name):
    """By a signal's handler, before and after the batch is copied. Both batches end at 8. Or by
    another thread, which then takes a batch.
    """
    with make(served, micro=8) as loader:
        of = loader._batches.wanted.make if name == "maker" else loader._batches
        function = getattr(of, name)

        def seeks(*arguments):
            setattr(of, name, function)
            made = function(*arguments)
            loader.seek(rank=1, world=2, micro_batch=4)
            return made if name != "_arrays" else (next(loader), made)[1]

        setattr(of, name, seeks)
        loader.seek(micro_batch=8)
        assert next(loader)["position"].tolist() == [*range(loader.taken - 4, loader.taken)]
        assert loader.taken == (16 if name == "_arrays" else 8)
