"""The rows that a job must get, computed by `tokctl plan` and numpy."""

import json
import os

import numpy

from .process import TOKCTL, run


def rows_at(config, stream, first, count, *more):
    """The windows at positions [first, first + count): an array [count, window]."""
    whole = json.load(open(config))
    about = whole["streams"][stream]
    window = about["seq_len"] + about.get("extra", 1)
    code, out, err = run(
        TOKCTL, "plan", "-c", config, stream, "--from", first, "--count", count, "--json", *more
    )
    if code:
        raise RuntimeError(f"tokctl plan: {err}")
    roots = {d["name"]: os.path.join(os.path.dirname(config), d["path"]) for d in about["datasets"]}
    dtype = {
        d["name"]: {"u16": "<u2", "u32": "<u4"}[d.get("dtype", "u16")] for d in about["datasets"]
    }
    shards, rows = {}, []
    for line in out.splitlines():
        at = json.loads(line)
        key = (at["dataset"], at["shard"])
        if key not in shards:
            shards[key] = numpy.fromfile(os.path.join(roots[key[0]], key[1]), dtype[key[0]])
        rows.append(shards[key][at["offset"] : at["offset"] + window])
    return numpy.stack(rows)


def rank_rows(rows, rank, world, micro):
    """The rows of one rank, out of those of all: [batches, micro, window]."""
    batches = len(rows) // (world * micro)
    return rows[: batches * world * micro].reshape(batches, world, micro, -1)[:, rank]
