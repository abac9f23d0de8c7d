"""Loader(documents=True) compared with NumPy: position_ids and cu_seqlens from the eos in the
tokens.
"""

import gzip
import subprocess

import numpy
import pytest
import tokend
import torch
from lib import TOKCTL
from lib.stock import StockDaemon

SEQ, EOS = 64, 7
STREAMS = """\
streams:
  u16:
    seed: 3
    seq_len: 64
    eos: 7
    documents: true
    datasets: [{name: narrow, path: narrow.bin, shuffle: none}]
  u32: {seed: 3, seq_len: 64, eos: 70000, documents: true,
        datasets: [{name: wide, path: wide.bin, dtype: u32}]}
  whole: {seed: 3, seq_len: 64, extra: 0, eos: 7, documents: true,
          datasets: [{name: narrow, path: narrow.bin}]}
  more: {seed: 3, seq_len: 64, extra: 3, eos: 7, documents: true,
         datasets: [{name: narrow, path: narrow.bin}]}
  finite: {seed: 3, seq_len: 64, eos: 7, documents: true, epochs: 1,
           datasets: [{name: narrow, path: narrow.bin}]}
  absent: {seed: 3, seq_len: 64, eos: 6, documents: true, datasets: [{name: calm, path: calm.bin}]}
  plain: {seed: 3, seq_len: 64, eos: 7, datasets: [{name: narrow, path: narrow.bin}]}
"""
WINDOWS = 150


def tokens_with(eos, dtype, seed):
    """Tokens: a third with many eos, a third with few, and windows of only eos and of none."""
    random = numpy.random.default_rng(seed)
    tokens = random.integers(8, 50000, WINDOWS * SEQ + 1).astype(dtype)
    for part, share in enumerate((0.3, 0.01)):
        stretch = tokens[part * 50 * SEQ : (part + 1) * 50 * SEQ]
        stretch[random.random(len(stretch)) < share] = eos
    tokens[110 * SEQ : 115 * SEQ] = eos
    tokens[[120 * SEQ, 125 * SEQ - 1, 130 * SEQ]] = (
        eos  # first in a window; last input; only a label, then first
    )
    return tokens


@pytest.fixture(scope="module")
def documents(shared):
    daemon = StockDaemon(shared.path)
    tokens_with(EOS, numpy.uint16, 1).tofile(daemon.directory / "narrow.bin")
    tokens_with(70000, numpy.uint32, 2).tofile(daemon.directory / "wide.bin")
    numpy.full(WINDOWS * SEQ, 9, numpy.uint16).tofile(daemon.directory / "calm.bin")
    write(daemon, STREAMS)
    yield daemon.start()
    daemon.end()


def write(daemon, streams):
    daemon.config.write_text(
        f"socket: {daemon.socket}\nstate_dir: {daemon.directory}/state\nmemory: 64MiB\n" + streams
    )


def make(daemon, stream, micro=4, **more):
    return tokend.Loader(
        stream, micro, socket=daemon.socket, **{"rank": 0, "world": 1, "documents": True, **more}
    )


def expected(inputs, eos, valid=None):
    """The expected values by definition, token by token."""
    ids, starts = numpy.zeros(inputs.shape, numpy.int64), []
    for r, row in enumerate(inputs):
        for i, _ in enumerate(row):
            begins = i == 0 or (row[i - 1] == eos and (valid is None or valid[r]))
            ids[r, i] = 0 if begins else ids[r, i - 1] + 1
            if begins:
                starts.append(r * row.size + i)
    return ids, numpy.array([*starts, inputs.size], numpy.int32)


def check(batch, eos, valid=None):
    ids, starts = expected(numpy.asarray(batch["input_ids"]), eos, valid)
    assert numpy.array_equal(numpy.asarray(batch["position_ids"]), ids)
    assert numpy.array_equal(numpy.asarray(batch["cu_seqlens"]), starts)
    assert batch["max_seqlen"] == numpy.diff(starts).max()
    return starts


@pytest.mark.parametrize(
    ("stream", "eos"), [("u16", EOS), ("u32", 70000), ("whole", EOS), ("more", EOS), ("absent", 6)]
)
@pytest.mark.parametrize("micro", [1, 4])
def test_documents_begin_after_each_eos(documents, stream, eos, micro):
    first = last = pairs = none = label = 0
    with make(documents, stream, micro) as loader:
        for _ in range(2 * WINDOWS // micro):
            batch = next(loader)
            check(batch, eos)
            inputs = batch["input_ids"].numpy() == eos
            first += inputs[:, 0].sum()
            last += inputs[:, -1].sum()
            pairs += (inputs[:, 1:] & inputs[:, :-1]).sum()
            none += (~inputs.any(1)).sum()
            label += (~inputs[:, -1] & (batch["labels"][:, -1].numpy() == eos)).sum()
        assert none and (
            stream == "absent" or (first and last and pairs and (label or stream == "whole"))
        )


def test_shapes_and_types(documents):
    for framework, kind in (("torch", torch), ("numpy", numpy)):
        with make(documents, "absent", framework=framework) as loader:
            batch = next(loader)
            assert list(batch) == [
                "input_ids",
                "labels",
                "position",
                "dataset",
                "position_ids",
                "cu_seqlens",
                "max_seqlen",
            ]
            assert (
                tuple(batch["position_ids"].shape) == (4, SEQ)
                and batch["position_ids"].dtype == kind.int64
            )
            assert (
                tuple(batch["cu_seqlens"].shape) == (5,) and batch["cu_seqlens"].dtype == kind.int32
            )
            assert type(batch["max_seqlen"]) is int and batch["max_seqlen"] == SEQ


def test_an_eos_that_is_only_a_label_begins_nothing(documents):
    """Window 129 ends with the eos that window 130 begins with."""
    with make(documents, "u16", 1, start=129) as loader:
        before, behind = next(loader), next(loader)
        assert before["labels"][0, -1] == EOS and behind["input_ids"][0, 0] == EOS
        assert before["cu_seqlens"].tolist() == [0, SEQ] and before["max_seqlen"] == SEQ
        assert behind["cu_seqlens"].tolist() == [0, 1, SEQ] and behind["max_seqlen"] == SEQ - 1
        assert behind["position_ids"][0].tolist() == [0, *range(SEQ - 1)]


def test_an_eos_as_the_last_input_begins_nothing(documents):
    with make(documents, "u16", 1, start=124) as loader:
        batch = next(loader)
        assert batch["input_ids"][0, -1] == EOS
        assert batch["cu_seqlens"].tolist() == [0, SEQ]


def test_a_window_of_only_eos(documents):
    with make(documents, "u16", 1, start=111) as loader:
        batch = next(loader)
        assert (batch["input_ids"] == EOS).all()
        assert batch["cu_seqlens"].tolist() == list(range(SEQ + 1))
        assert batch["max_seqlen"] == 1 and (batch["position_ids"] == 0).all()


def test_the_end_of_a_finite_stream(documents):
    """A padding row is one document, also in a slot whose rows had many documents before."""
    for rank in range(2):
        padded = 0
        with make(documents, "finite", 4, rank=rank, world=2, slots=2) as loader:
            for batch in loader:
                valid = (batch["position"] >= 0).numpy()
                check(batch, EOS, valid)
                padded += (~valid).sum()
        assert padded == (2 if rank else 0)  # 150 windows in steps of 8


def test_other_batches_after_a_seek(documents):
    with make(documents, "u16") as loader:
        next(loader)
        loader.seek(position=10, micro_batch=7)
        for _ in range(5):
            batch = next(loader)
            check(batch, EOS)
            assert batch["position_ids"].shape == (7, SEQ)


def test_a_stream_without_documents_says_what_to_configure(documents):
    with pytest.raises(
        tokend.ArgumentError, match="stream plain carries none; .*documents: true and eos"
    ):
        make(documents, "plain")


def test_without_documents_batches_do_not_change(documents):
    with make(documents, "u16", documents=False) as loader, make(documents, "u16") as other:
        for _ in range(10):
            batch, packed = next(loader), next(other)
            assert list(batch) == ["input_ids", "labels", "position", "dataset"]
            assert all(torch.equal(batch[name], packed[name]) for name in batch)


def test_a_restarted_daemon_without_documents_is_refused(directory):
    daemon = StockDaemon(directory)
    tokens_with(EOS, numpy.uint16, 1).tofile(directory / "narrow.bin")
    write(daemon, STREAMS[: STREAMS.index("  u32")])
    daemon.start()
    with make(daemon, "u16", slots=2) as loader:
        next(loader)
        daemon.kill()
        daemon.start()
        for _ in range(5):  # served before and after the restart
            check(next(loader), EOS)
        daemon.kill()
        write(
            daemon, STREAMS[: STREAMS.index("  u32")].replace("documents: true", "documents: false")
        )
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="^documents: .*stream u16"):
            for _ in range(5):
                check(next(loader), EOS)
        place = loader.position
        loader.seek()
        with pytest.raises(tokend.ArgumentError, match="stream u16 carries none"):
            next(loader)
        assert loader.position == place
    daemon.kill()


def test_rows_of_packed_documents(directory):
    """Of `tokctl pack --fit`: positions restart at each document, the mask excludes the padding."""
    daemon, row = StockDaemon(directory), SEQ + 1
    tokens_with(EOS, numpy.uint16, 1).tofile(directory / "narrow.bin")
    command = [TOKCTL, "pack", directory / "narrow.bin", directory / "rows", "--eos", str(EOS)]
    subprocess.run([*command, "--fit", str(row), "--shards", "1"], check=True)
    listed = gzip.open(directory / "rows/shard-00000.csv.gz", "rt").read().split()
    bounds = numpy.array([line.split(",") for line in listed], int)
    tokens = numpy.fromfile(directory / "rows/shard-00000.bin", numpy.uint16)
    tokens = tokens.reshape(-1, row).astype(int)
    inside = numpy.zeros(tokens.size, bool)
    position = numpy.arange(tokens.size) % row
    for (_, before), (begin, end) in zip([(0, 0), *bounds], bounds):
        inside[begin:end] = True
        position[before:begin] = numpy.arange(begin - before)  # padding is counted on its own
        position[begin:end] = numpy.arange(end - begin)
    position[end:] = numpy.arange(tokens.size - end)
    inside, position = inside.reshape(-1, row), position.reshape(-1, row)
    write(
        daemon,
        "streams:\n  packed: {seed: 3, seq_len: 64, epochs: 1, documents: true, loss_mask: true,\n"
        "    vocab: 50000, datasets: [{name: r, path: rows, dtype: u16, shuffle: none}]}\n",
    )
    daemon.start()
    try:
        with make(daemon, "packed", 1, loss_mask=True) as loader:
            for i, batch in enumerate(loader):
                kept = inside[i, 1:]
                assert numpy.array_equal(batch["input_ids"][0], tokens[i, :-1])
                assert numpy.array_equal(batch["position_ids"][0], position[i, :-1])
                assert numpy.array_equal(batch["loss_mask"][0], kept)
                assert numpy.array_equal(batch["labels"][0], numpy.where(kept, tokens[i, 1:], -100))
        assert i + 1 == len(tokens) and not inside.all()
    finally:
        daemon.end()
