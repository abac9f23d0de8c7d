#!/usr/bin/env python3
"""Documents in the ring, read by the layout in proto/ring.h and nothing else, against numpy; and that who does not ask is not charged."""

import sys

import numpy

from harness import TOKCTL, Checks, Client, Daemon, Place, datasets, rank_rows, rows_at, run

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


def check_stream(c, daemon, config, stream, rows, world, micro, slots):
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
        c.equal(
            f"{stream}, rank {rank} of {world}: each row's documents",
            (client.documents, wrong, seen > 0),
            (1, 0, True),
        )
        client.close()


def costs(c, daemon):
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
    c.equal("a ring without documents is as it was", sizes["plain"][:2], (0, -(-plain // 4096)))
    c.equal(
        "a ring with them has room for the worst case",
        sizes["u16"][:2],
        (1, -(-(plain + more) // 4096)),
    )
    c.equal("its data segment is the same", sizes["u16"][2], sizes["plain"][2])


def cat(c, daemon, config):
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
        c.equal(f"tokctl cat {stream}", (code, out == rows.tobytes(), err), (0, True, ""))


def finite(c, daemon, config):
    """The last slot's rows behind the end have none, though the place held some."""
    windows = (1000 - 1) // SEQ
    client = Client(daemon.socket).attach(stream="finite", micro=4, slots=1)
    rows, found = [], []
    for _ in range(-(-windows // 4)):
        client.wait()
        found += client.row_documents(client.batch)
        rows += list(client.next())
    c.equal(
        "a finite stream: each row's documents",
        found[:windows],
        [begins(row) for row in rows[:windows]],
    )
    c.equal("padding rows have none", found[windows:], [[]] * (-windows % 4))
    c.ok(
        "there was padding, and every place had held some",
        windows % 4 and all(map(len, found[:4])),
        found[:4],
    )
    client.close()


def main():
    c = Checks()
    with Place() as place:
        few_values(place, "narrow/a.bin", "<u2")
        few_values(place, "wide/a.bin", "<u4")
        few_values(place, "short/a.bin", "<u2", 1000)
        narrow, short = datasets("narrow"), datasets("short", shuffle="none")
        config = place.config(
            streams={
                "u16": {**STREAM, "datasets": narrow},
                "u32": {**STREAM, "extra": 0, "datasets": datasets("wide", dtype="u32")},
                "finite": {**STREAM, "epochs": 1, "datasets": short},
                "plain": {**STREAM, "documents": False, "datasets": narrow},
            }
        )
        daemon = Daemon(place, config)
        for stream in ("u16", "u32"):
            rows = rows_at(config, stream, 0, 600)
            check_stream(c, daemon, config, stream, rows, 1, 3, 4)
            check_stream(c, daemon, config, stream, rows, 3, 5, 1)
        costs(c, daemon)
        cat(c, daemon, config)
        finite(c, daemon, config)
        c.equal("the daemon ends well", daemon.stop(), 0)
    c.exit()


if __name__ == "__main__":
    sys.exit(main())
