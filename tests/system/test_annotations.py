"""Document starts and loss masks in the slots of real daemons are those of the shards' writers, in
every format that has them and every way of reading. Damaged side files stop a stream.
"""

import csv
import ctypes
import gzip
import json
import os
import shutil
import warnings

import numpy
import pyarrow
import pytest
import pyzstd
import torch
from datatrove.pipeline.tokens.tokenizer import TokenizedFile

from lib import REPO, TOKCTL, Client, Daemon, Refused, has, mode_name, run
from lib.declarations import Batch, Options
from lib.shard_writers import mds

pytestmark = pytest.mark.asan  # parsers must not touch memory out of bounds


EOS, SEQ = 5, 32
EREFUSED = -3
RNG = numpy.random.default_rng(3)


class Shard:
    """Random documents and a mask. @gaps: some tokens belong to no document."""

    def __init__(self, dtype, gaps=False):
        lengths = RNG.choice([0, 1, 2, 7, SEQ, SEQ + 1, 100, 400], 60)
        lengths[0] = lengths[30] = 0
        self.tokens = RNG.integers(0, 12, lengths.sum()).astype(dtype)
        ends = numpy.cumsum(lengths)
        self.documents = [
            (int(e - n), int(e), not gaps or i % 5 != 2)
            for i, (n, e) in enumerate(zip(lengths, ends))
        ]
        self.mask = RNG.integers(0, 5, len(self.tokens)) > 0

    def bounds(self):
        """(start, end) of each document, without the gaps."""
        return [(start, end) for start, end, listed in self.documents if listed]

    def boundaries(self):
        return numpy.unique(
            [
                at
                for start, end, listed in self.documents
                for at in (start, end)
                if listed and start < end
            ]
        )

    def inside(self):
        inside = numpy.zeros(len(self.tokens), bool)
        for start, end in self.bounds():
            inside[start:end] = True
        return inside


# ---- writers: (path without suffix, shard) → path ----


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def megatron(path, shard):
    with (
        warnings.catch_warnings()
    ):  # about Transformer Engine and Apex, which the index does not need
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    builder = IndexedDatasetBuilder(path + ".bin", dtype=shard.tokens.dtype.type)
    for start, end, _ in shard.documents:
        builder.add_item(torch.from_numpy(shard.tokens[start:end].copy()))
        builder.end_document()
    builder.finalize(path + ".idx")
    return path + ".bin"


def datatrove(path, shard, loss=True):
    file = TokenizedFile(os.path.dirname(path), os.path.basename(path) + ".ds",
        token_size=shard.tokens.dtype.itemsize,
                         save_final_metadata=True, tokenizer_name_or_path="gpt2",
                         save_loss_metadata=loss)  # fmt: skip
    for start, end, _ in shard.documents:
        file.write(shard.tokens[start:end].tolist(), shard.mask[start:end] if loss else None)
    file.close()
    return path + ".ds"


def datatrove_plain(path, shard):
    return datatrove(path, shard, False)


def arrow(path, shard):
    schema = pyarrow.schema([("tokens", pyarrow.from_numpy_dtype(shard.tokens.dtype))])
    with pyarrow.ipc.new_file(path + ".arrow", schema) as writer:
        for start, end, _ in shard.documents:
            writer.write(
                pyarrow.record_batch([pyarrow.array(shard.tokens[start:end])], schema=schema)
            )
    return path + ".arrow"


def dolma(path, shard):
    """Document bounds as dolma writes them: CRLF line ends, and an id that must be quoted."""
    with gzip.open(path + ".csv.gz", "wt", newline="") as f:
        rows = csv.writer(f)
        for i, (start, end) in enumerate(shard.bounds()):
            rows.writerow([start, end, f'id "{i}", of\nmany', "s3://a/b.gz", i])


def olmo(path, shard):
    dolma(path, shard)
    put(path + ".npy", shard.tokens.tobytes())
    return path + ".npy"


def numpy_file(path, shard):
    dolma(path, shard)
    numpy.save(path + ".npy", shard.tokens)
    return path + ".npy"


def zstd(path, shard):
    dolma(path, shard)
    with pyzstd.SeekableZstdFile(path + ".bin.zst", "w", max_frame_content_size=1000) as f:
        f.write(shard.tokens.tobytes())
    return path + ".bin.zst"


def flat(path, shard):
    put(path + ".bin", shard.tokens.tobytes())
    return path + ".bin"


def write_mask(path, name, shard, save):
    """Writes the mask for label_mask: at @path with masks/ instead of data/."""
    at = os.path.join(path.replace("/data/", "/masks/"), name)
    os.makedirs(os.path.dirname(at), exist_ok=True)
    if save:
        with open(at, "wb") as f:
            numpy.save(f, shard.mask)
    else:
        put(at, shard.mask.tobytes())


# name: (writer, dtype, keys of the dataset, keys of the stream, gaps, source of the boundaries,
# source of the mask)
KINDS = {
    "megatron": (megatron, "<u2", {}, {}, False, "index", None),
    "megatron-i32": (megatron, "<i4", {}, {"stride": 7}, False, "index", None),
    "datatrove": (datatrove, "<u2", {}, {"eos": EOS}, False, "index", "mask"),
    "datatrove-slide": (
        datatrove_plain,
        "<u4",
        {"slide": True},
        {"stride": 50},
        False,
        "index",
        None,
    ),
    "arrow": (arrow, "<u4", {"slide": True}, {}, False, "index", None),
    "olmo": (olmo, "<u2", {}, {"extra": 0}, False, "index", None),
    "olmo-gaps": (
        olmo,
        "<u4",
        {"dtype": "u32"},
        {"eos": EOS, "stride": 100},
        True,
        "index",
        "gaps",
    ),
    "npy-gaps": (numpy_file, "<u2", {"slide": True}, {}, True, "index", "gaps"),
    "zstd-gaps": (zstd, "<u2", {}, {}, True, "index", "gaps"),
    "olmo-mask": (olmo, "<u2", {"label_mask": "raw"}, {}, False, "index", "mask"),
    "npy-mask": (numpy_file, "<u2", {"label_mask": "npy"}, {}, True, "index", "both"),
    "flat-mask": (
        flat,
        "<u2",
        {"label_mask": "raw", "slide": True},
        {"eos": EOS},
        False,
        "eos",
        "mask",
    ),
    "flat": (flat, "<u2", {}, {"eos": EOS}, False, "eos", None),
}


class Kind:
    def __init__(self, place, name):
        self.name = name
        self.write, dtype, self.dataset, self.stream, gaps, self.by, self.masked = KINDS[name]
        self.shards = {}
        for i in range(3):
            directory = place.file(name, "data", "ab"[i % 2], "")[:-1]
            os.makedirs(directory, exist_ok=True)
            shard = Shard(dtype, gaps)
            path = self.write(os.path.join(directory, str(i)), shard)
            shard_name = os.path.relpath(path, place.file(name, "data"))
            self.shards[shard_name] = shard
            kind = self.dataset.get("label_mask")
            if kind:
                write_mask(place.file(name, "data", ""), shard_name, shard, kind == "npy")

    def config(self):
        dataset = {"name": "d", "path": f"{self.name}/data", **self.dataset}
        if "label_mask" in dataset:
            dataset["label_mask"] = f"{self.name}/masks"
        return {
            "seed": 1,
            "seq_len": SEQ,
            "documents": True,
            "loss_mask": True,
            "datasets": [dataset],
            **self.stream,
        }

    def want(self, at, window):
        """(tokens, boundaries, mask) of a window that `tokctl plan` lists."""
        shard, a = self.shards[at["shard"]], at["offset"]
        tokens = shard.tokens[a : a + window]
        if self.by == "eos":
            begins = numpy.flatnonzero(tokens[:-1] == EOS) + 1
        else:
            begins = shard.boundaries() - a
        mask = numpy.ones(window, bool)
        if self.masked in ("mask", "both"):
            mask &= shard.mask[a : a + window]
        if self.masked in ("gaps", "both"):
            mask &= shard.inside()[a : a + window]
        return tokens, begins[(begins > 0) & (begins < window)].tolist(), mask


def plan(config, stream, count):
    code, out, err = run(
        TOKCTL, "plan", "-c", config, stream, "--from", 0, "--count", count, "--json"
    )
    if code:
        raise RuntimeError(err)
    return [json.loads(line) for line in out.splitlines()]


def check_kind(how, daemon, config, kind, batches=60, micro=5):
    client = Client(daemon.socket).attach(stream=kind.name, micro=micro, slots=3)
    rows = iter(plan(config, kind.name, batches * micro))
    wrong, begins, masked = [], 0, 0
    for _ in range(batches):
        client.wait()
        found, masks = client.row_documents(client.batch), client.row_masks(client.batch)
        for tokens, documents, mask, at in zip(client.next(), found, masks, rows):
            want = kind.want(at, client.window)
            same = (
                numpy.array_equal(tokens, want[0])
                and documents == want[1]
                and numpy.array_equal(mask, want[2])
            )
            if not same:
                wrong.append((at, documents, want[1], mask.tolist(), want[2].astype(int).tolist()))
            begins += len(documents)
            masked += int((mask == 0).sum())
    client.close()
    seen = (wrong[:1], begins > 0, masked > 0)
    assert seen == ([], True, kind.masked is not None), f"{how}: {kind.name}"


def test_annotations_with_manifests(shared, kinds):
    """With a manifest no shard or side file is read at the start."""
    place, streams = shared, {kind.name: kind.config() for kind in kinds}
    with_manifests = {}
    for kind in kinds:
        wide = ["--input-dtype", "u32"] if "dtype" in kind.dataset else []
        code, _, err = run(
            TOKCTL,
            "inspect",
            "--manifest",
            place.file(f"{kind.name}.jsonl"),
            *wide,
            place.file(kind.name, "data"),
        )
        assert code == 0, err
        about = streams[kind.name]
        with_manifests[kind.name] = {
            **about,
            "datasets": [{**about["datasets"][0], "manifest": f"{kind.name}.jsonl"}],
        }
    missing = {"seed": 1, "seq_len": SEQ, "documents": True, "loss_mask": True}
    with_manifests["no-eos"] = {
        **missing,
        "datasets": [{"name": "d", "path": "flat/data", "manifest": "flat.jsonl"}],
    }
    for how, direct in ("uring", True), ("pread", False):
        config = place.config(
            io=how, direct=direct, socket=place.file(f"m-{how}.sock"), streams=with_manifests
        )
        daemon = Daemon(place, config)
        for kind in kinds:
            check_kind(f"{how}{', direct' * direct}, manifest", daemon, config, kind)
        why = "the ends of its documents are unknown: it has no index, and the stream has no eos"
        assert has(refusal(daemon, "no-eos"), "data: dataset d: shard ", why), (
            "manifest: no index, and no eos"
        )
        assert daemon.stop() == 0, "manifest: the daemon ends with 0"


def test_annotations_of_samples(served, shared):
    """MDS: a window is a sample, in which only an eos ends a document. The stream is finite, so the
    last rows are padding.
    """
    daemon, _ = served
    for stream, eos in ("mds", False), ("mds-eos", True):
        client = Client(daemon.socket).attach(stream=stream, micro=4, slots=1)
        wrong = 0
        for _ in range(3):
            client.wait()
            found, masks, batch = (
                client.row_documents(client.batch),
                client.row_masks(client.batch),
                client.batch,
            )
            for i, tokens in enumerate(client.next()):
                real = batch * 4 + i < 10
                want = (numpy.flatnonzero(tokens[:-1] == EOS) + 1).tolist() if eos and real else []
                wrong += (
                    found[i] != want
                    or masks[i].tolist() != [int(real)] * SEQ
                    or (real and 3 not in tokens)
                )
        assert wrong == 0, f"{stream}: the annotations of each row"
        client.close()


def test_annotations_in_libtokend(served, kinds):
    """tokend_documents() and tokend_loss_mask() of the C library, with several batches held, and
    with a stream without masks.
    """
    (daemon, config), kind = served, next(kind for kind in kinds if kind.name == "npy-mask")
    lib = ctypes.CDLL(os.path.join(REPO, "build/lib/libtokend.so.1"))
    lib.tokend_why.restype = ctypes.c_char_p
    lib.tokend_loss_mask.restype = ctypes.POINTER(ctypes.c_uint8)
    lib.tokend_documents.restype = ctypes.POINTER(ctypes.c_uint32)

    def attach(stream):
        t, why = ctypes.c_void_p(), ctypes.create_string_buffer(1000)
        options = Options(size=ctypes.sizeof(Options), socket=daemon.socket.encode(),
            stream=stream.encode(), world=1,
                          micro_batch=3, slots=4)  # fmt: skip
        if lib.tokend_attach(ctypes.byref(t), ctypes.byref(options), why, len(why)):
            raise RuntimeError(why.value)
        return t

    def take(t):
        batch = Batch()
        assert lib.tokend_next(t, ctypes.byref(batch)) == 1
        return batch

    t, rows, wrong, held = attach(kind.name), iter(plan(config, kind.name, 60)), 0, []
    for _ in range(20):
        batch = take(t)
        for i in range(batch.rows):
            count = ctypes.c_uint32()
            starts = lib.tokend_documents(t, ctypes.byref(batch), i, ctypes.byref(count))
            mask = lib.tokend_loss_mask(t, ctypes.byref(batch), i)
            tokens, begins, want = kind.want(next(rows), batch.window_tokens)
            wrong += (
                starts[: count.value] != begins
                or mask[: batch.window_tokens] != want.astype(int).tolist()
            )
        held.append(batch)
        if len(held) == 3:
            lib.tokend_release(t, ctypes.byref(held.pop(0)))
    none = [bool(lib.tokend_loss_mask(t, ctypes.byref(batch), row)) for row in (0, 2, 3, 2**32 - 1)]
    assert (wrong, none) == (0, [True, True, False, False]), (
        "libtokend: the annotations of each row"
    )
    lib.tokend_detach(t)
    t = attach("plain")
    batch = take(t)
    assert not lib.tokend_loss_mask(t, ctypes.byref(batch), 0), (
        "libtokend: a stream without masks has none"
    )
    lib.tokend_detach(t)

    t = attach(kind.name)
    about = json.load(open(config))
    about["streams"][kind.name]["loss_mask"] = False
    del about["streams"][kind.name]["datasets"][0]["label_mask"]
    daemon.kill()
    with open(config, "w") as f:
        json.dump(about, f)
    daemon.start()
    batch = Batch()
    while (code := lib.tokend_next(t, ctypes.byref(batch))) == 1:
        lib.tokend_release(t, ctypes.byref(batch))
    assert code == EREFUSED, "libtokend: a restarted daemon without masks"
    why = f"loss_mask: the restarted daemon's config no longer has it for stream {kind.name}"
    assert has(lib.tokend_why(t).decode(), why), "libtokend: the error says why"
    lib.tokend_detach(t)


def test_inspect_counts_documents(shared, kinds):
    place = shared
    for kind in kinds:
        if kind.write in (olmo, numpy_file, zstd):
            wide = ["--input-dtype", "u32"] if "dtype" in kind.dataset else []
            code, out, err = run(TOKCTL, "inspect", "--json", *wide, place.file(kind.name, "data"))
            seen = {
                os.path.relpath(f["path"], place.file(kind.name, "data")): f["documents"]
                for f in map(json.loads, out.splitlines())
            }
            want = {name: len(shard.bounds()) for name, shard in kind.shards.items()}
            assert (code, seen, err) == (0, want, ""), f"inspect: {kind.name}"
    put(place.file("broken", "x.npy"), bytes(40))
    put(place.file("broken", "x.csv.gz"), gzip.compress(b"0,20\r\n20,21\r\n"))
    code, out, err = run(TOKCTL, "inspect", "--json", place.file("broken"))
    problems = ["x.csv.gz:2: end is 21; must be at most 20, the number of tokens in the shard"]
    assert (code, json.loads(out)["problems"]) == (1, problems), "inspect: bounds beyond the shard"


def refusal(daemon, stream):
    try:
        client = Client(daemon.socket).attach(stream=stream, micro=1, slots=2)
        for _ in range(400):
            client.next()
        return "not refused"
    except Refused as e:
        return str(e)


def test_damaged_side_files_stop_the_stream(place):
    """Damage that is found only when a shard is opened, or its mask is read."""
    for name in ("datatrove", "olmo-gaps", "datatrove-slide", "flat-mask", "npy-gaps", "megatron"):
        Kind(place, name)
    good = Shard("<u2")
    for name, bounds in (
        ("decreasing", "9,20\n5,9\n"),
        ("beyond", f"0,{len(good.tokens) + 1}\n"),
        ("text", "start,end\n"),
    ):
        put(place.file(name, "x.npy"), good.tokens.tobytes())
        put(place.file(name, "x.csv.gz"), gzip.compress(bounds.encode()))
    put(place.file("value", "x.npy"), good.tokens.tobytes())
    put(place.file("value-mask", "x.npy"), bytes([2]) * len(good.tokens))
    stream = {"seed": 1, "seq_len": SEQ, "documents": True, "eos": 0, "loss_mask": True}
    streams = {
        n: {**stream, "datasets": [{"name": "d", "path": n}]}
        for n in ("decreasing", "beyond", "text", "value")
    }
    streams["value"]["datasets"][0]["label_mask"], gone = "value-mask", []
    losses = (
        ("mask", "datatrove", "0.ds.loss"),
        ("list", "olmo-gaps", "0.csv.gz"),
        ("index", "datatrove-slide", "0.ds.index"),
    )
    for name, kind, lost in losses:
        streams[f"lost {name}"] = {
            **stream,
            "datasets": [{"name": "d", "path": f"{kind}/data/a/0.*", "dtype": "u32"}],
        }
        gone.append(place.file(kind, "data", "a", lost))
    changed = []
    for name, kind, side_file in (
        ("loss mask", "flat-mask", "masks/b/1.bin"),
        ("list of document bounds", "npy-gaps", "data/b/1.csv.gz"),
        ("index", "megatron", "data/b/1.idx"),
        ("index or loss mask", "datatrove", "data/b/1.ds.index"),
    ):
        about = {"name": "d", "path": f"{kind}/data/b/1.*"} | (
            {"label_mask": f"{kind}/masks/b"} if kind == "flat-mask" else {}
        )
        streams[f"changed {name}"] = {**stream, "datasets": [about]}
        changed.append(place.file(kind, side_file))
    daemon = Daemon(place, place.config(socket=place.file("damaged.sock"), streams=streams))
    for path in gone:
        os.remove(path)
    for path in changed:  # the same name and size
        os.rename(path, path + "~")
        shutil.copy(path + "~", path)
        os.remove(path + "~")
    another = {f"changed {n}": f"its {n} changed after the shard was listed"
               for n in ("loss mask", "list of document bounds", "index",
               "index or loss mask")}  # fmt: skip
    for name, why in another.items():
        assert has(
            refusal(daemon, name), "data: dataset d: shard 1.", why, f"stream {name} stops here"
        ), name
    for name, why in {
        "lost mask": "had its loss mask when it was listed and has none now",
        "lost list": "had its list of document bounds when it was listed and has none now",
        "lost index": "had its index of documents when it was listed and has none now",
        "decreasing": "x.csv.gz:2: start is 5; must be at least 20, the end of the previous row",
        "beyond": (
            f"x.csv.gz:1: end is {len(good.tokens) + 1}; must be at most {len(good.tokens)}, the "
            "number of tokens in the shard"
        ),
        "text": "x.csv.gz:1: start is 'start'; must be an integer below 2^64",
        "value": " is 2; must be 0 or 1",
    }.items():
        assert has(
            refusal(daemon, name),
            "data: dataset d: shard ",
            " at token ",
            why,
            f"stream {name} stops here",
        ), f"damaged: {name}"
    assert daemon.stop() == 0, "damaged: the daemon ends with 0"


@pytest.fixture(scope="module")
def kinds(shared):
    return [Kind(shared, name) for name in KINDS]


@pytest.fixture(scope="module")
def streams(shared, kinds):
    """Each kind's stream by name, and those that have no annotations."""
    tokens = RNG.integers(0, 12, (10, SEQ)).astype("<i4")
    tokens[:, 0] = 3
    mds(shared.file("mds"), tokens, None)
    finite = {
        "seed": 1,
        "seq_len": SEQ,
        "extra": 0,
        "epochs": 1,
        "documents": True,
        "loss_mask": True,
    }
    plain = [{"name": "d", "path": "flat/data"}]
    return {kind.name: kind.config() for kind in kinds} | {
        "mds": {**finite, "datasets": [{"name": "d", "path": "mds"}]},
        "mds-eos": {**finite, "eos": EOS, "datasets": [{"name": "d", "path": "mds"}]},
        "plain": {"seed": 1, "seq_len": SEQ, "datasets": plain},
    }


@pytest.fixture(scope="module")
def served(shared, streams):
    """(daemon, config): all streams, read in one way."""
    config = shared.config("served.yaml", io="pread", direct=True, streams=streams)
    daemon = Daemon(shared, config)
    yield daemon, config
    assert daemon.stop() == 0


def test_annotations_are_the_writers(shared, kinds, streams, mode):
    io, direct = mode
    socket = shared.file(f"{io}-{direct}.sock")
    config = shared.config(
        f"{io}-{direct}.yaml", io=io, direct=direct, socket=socket, streams=streams
    )
    daemon = Daemon(shared, config)
    for kind in kinds:
        check_kind(mode_name(mode), daemon, config, kind)
    assert daemon.stop() == 0, "the daemon ends with 0"
