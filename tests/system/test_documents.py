"""The ring has the document starts that NumPy finds, in the layout of proto/ring.h. A client that
does not request them needs no memory for them.
"""

import numpy
import pytest

from lib import TOKCTL, Client, Daemon, datasets, rank_rows, rows_at, run

SEQ, EOS = 32, 5
STREAM = {"seed": 1, "seq_len": SEQ, "eos": EOS, "documents": True}


def begins(row):
    return (numpy.flatnonzero(row[:-1] == EOS) + 1).tolist()


def few_values(place, name, dtype, tokens=6000):
    """Tokens 0 to 11, so one in twelve is the eos; then some of them alone."""
    values = numpy.random.default_rng(len(name)).integers(0, 12, tokens)
    values[tokens // 2 : tokens // 2 + 3 * SEQ] = EOS
    values[tokens // 4 : tokens // 4 + 3 * SEQ] = 1
    values.astype(dtype).tofile(place.file(name))


def check_stream(daemon, config, stream, rows, world, micro, slots):
    for rank in range(world):
        want = rank_rows(rows, rank, world, micro)
        client = Client(daemon.socket).attach(
            stream=stream, rank=rank, world=world, micro=micro, slots=slots
        )
        wrong = seen = 0
        for batch in want:
            client.wait()
            found = client.row_documents(client.batch)
            tokens = client.next()
            wrong += not numpy.array_equal(tokens, batch) or found != [begins(row) for row in batch]
            seen += sum(map(len, found))
        assert (client.documents, wrong, seen > 0) == (1, 0, True), (
            f"{stream}, rank {rank} of {world}: each row's documents"
        )
        client.close()


def costs(daemon):
    sizes = {}
    for stream in ("u16", "plain"):
        client = Client(daemon.socket).attach(stream=stream, micro=3, slots=8)
        sizes[stream] = (
            client.documents,
            client.feed["meta_bytes"] // 4096,
            client.feed["data_bytes"],
        )
        client.close()
    rows, window = 3 * 8, SEQ + 1
    plain, more = 4096 + 16 * 8 + 40 * rows, 4 * rows * (1 + window)
    assert sizes["plain"][:2] == (0, -(-plain // 4096)), "a ring without documents has its old size"
    assert sizes["u16"][:2] == (1, -(-(plain + more) // 4096)), (
        "a ring with them has room for the worst case"
    )
    assert sizes["u16"][2] == sizes["plain"][2], "its data segment is the same"


def cat(daemon, config):
    for stream in ("u16", "u32"):
        rows = rows_at(config, stream, 0, 40)
        code, out, err = run(
            TOKCTL,
            "cat",
            stream,
            "--socket",
            daemon.socket,
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            4,
            "--batches",
            10,
        )
        assert (code, out == rows.tobytes(), err) == (0, True, ""), f"tokctl cat {stream}"


def finite(daemon, config):
    """Padding rows of the last slots have no documents, although these slots had some before."""
    windows = (1000 - 1) // SEQ
    client = Client(daemon.socket).attach(stream="finite", micro=4, slots=1)
    rows, found = [], []
    for _ in range(-(-windows // 4)):
        client.wait()
        found += client.row_documents(client.batch)
        rows += list(client.next())
    assert found[:windows] == [begins(row) for row in rows[:windows]], (
        "a finite stream: each row's documents"
    )
    assert found[windows:] == [[]] * (-windows % 4), "padding rows have none"
    assert windows % 4 and all(map(len, found[:4])), (
        "there was padding in slots that had contained documents",
        found[:4],
    )
    client.close()


@pytest.fixture(scope="module")
def daemon(shared):
    few_values(shared, "narrow/a.bin", "<u2")
    few_values(shared, "wide/a.bin", "<u4")
    few_values(shared, "short/a.bin", "<u2", 1000)
    narrow, short = datasets("narrow"), datasets("short", shuffle="none")
    config = shared.config(
        streams={
            "u16": {**STREAM, "datasets": narrow},
            "u32": {**STREAM, "extra": 0, "datasets": datasets("wide", dtype="u32")},
            "finite": {**STREAM, "epochs": 1, "datasets": short},
            "plain": {**STREAM, "documents": False, "datasets": narrow},
        }
    )
    daemon = Daemon(shared, config)
    yield daemon
    assert daemon.stop() == 0


@pytest.mark.parametrize("stream", ["u16", "u32"])
def test_rows_have_their_documents(daemon, stream):
    rows = rows_at(daemon.config, stream, 0, 600)
    check_stream(daemon, daemon.config, stream, rows, 1, 3, 4)
    check_stream(daemon, daemon.config, stream, rows, 3, 5, 1)


def test_ring_without_documents_is_smaller(daemon):
    costs(daemon)


def test_cat_is_the_same_with_documents(daemon):
    cat(daemon, daemon.config)


def test_padding_has_no_documents(daemon):
    finite(daemon, daemon.config)
