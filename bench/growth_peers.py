"""Other loaders at other sizes, for growth.py: their starts, and their rates by seq_len.

The loaders are those of contest.py. Files that no test could hold are sparse: a start reads only
the first batch of them. Megatron's documents have 1,000 tokens, and its first start writes indexes
that later starts map; Mosaic's shards have 64 MB.
"""

import json
import os
import shutil
import sys

import loaders
from common import SEQ, WIN, CannotRun, answer, fresh
from contest import PEERS
from loaders import DOCUMENT, import_without_init, place

START_S = 60  # a start that takes longer has no figure
SAMPLES = {"torch": 10**8, "megatron": 10**7, "mosaic": 10**8}  # more do not fit or take too long
TOKENS = 50_000_000  # of Mosaic's and Megatron's files, for rates
SECONDS = 0.7  # of one rate


# ---- in a process of its own, in build/trainers/peers ----


def megatron_files(args):
    """IndexedDataset's .idx and .bin. The .bin is @args.file, which becomes sparse if it grows."""
    import numpy

    count = args.tokens // DOCUMENT
    os.truncate(args.file, 2 * args.tokens)
    place(args, "").mkdir()
    os.link(args.file, place(args, "megatron.bin"))
    with open(place(args, "megatron.idx"), "wb") as index:
        index.write(b"MMIDIDX\0\0" + numpy.array([1], "<u8").tobytes() + bytes([8]))  # 8: uint16
        index.write(numpy.array([count, count + 1], "<u8").tobytes())
        numpy.full(count, DOCUMENT, "<i4").tofile(index)
        numpy.arange(0, 2 * DOCUMENT * count, 2 * DOCUMENT, "<i8").tofile(index)
        numpy.arange(count + 1, dtype="<i8").tofile(index)
    return {}


def sparse_mosaic(args):
    """One shard by Mosaic's writer, and as many sparse copies as the tokens need."""
    import_without_init()
    import numpy
    from streaming.base.format.mds.writer import MDSWriter

    out, empty = place(args, "mds"), numpy.zeros(WIN, "<u2")
    columns, samples = {"tokens": f"ndarray:uint16:{WIN}"}, (64 << 20) // (2 * WIN + 4) - 1
    with MDSWriter(out=str(out), columns=columns, size_limit="64mb") as writer:
        for _ in range(samples):
            writer.write({"tokens": empty})
    index = json.loads((out / "index.json").read_text())
    (shard,) = index["shards"]
    first = out / shard["raw_data"]["basename"]
    with open(first, "rb") as file:
        head = file.read(4 * (samples + 2) + 4096)
    index["shards"] = []
    for number in range(max(1, args.tokens // SEQ // samples)):
        name = f"shard.{number:05}.mds"
        with open(out / name, "r+b" if number == 0 else "wb") as file:
            file.write(head)
            file.truncate(shard["raw_data"]["bytes"])
        index["shards"].append(shard | {"raw_data": shard["raw_data"] | {"basename": name}})
    (out / "index.json").write_text(json.dumps(index))
    return {}


# ---- the figures ----


def told(why):
    print(f"  {why}")
    return {}


def starts(directory, size):
    """{figure: value} of the starts at @size tokens, in a @directory of its own."""
    makers = {"torch": None, "megatron": megatron_files, "mosaic": sparse_mosaic}
    makers = {name: makes for name, makes in makers.items() if size // SEQ <= SAMPLES[name]}
    file, found = directory / "tokens.bin", {}
    if makers:  # else the file is larger than file systems allow
        directory.mkdir()
        file.touch()
        os.truncate(file, 2 * size)
    for name, makes in makers.items():
        about = {"file": file, "workers": 0, "start": True}
        function = "torch_dataloader" if name == "torch" else name
        try:
            if makes:
                fresh(__file__, makes.__name__, PEERS, START_S, file=file, tokens=size)
            run = fresh(loaders.__file__, function, PEERS, START_S, **about)
            found |= {f"{name}_{key}": value for key, value in run.items()}
            if name == "megatron":
                run = fresh(loaders.__file__, function, PEERS, START_S, **about)
                found["megatron_again_ms"] = run["start_ms"]
        except CannotRun as why:
            told(f"{name} at {size:.0e} tokens: {why}")
    shutil.rmtree(directory, ignore_errors=True)
    return found


def rates(directory, tokens_bin, shape, names):
    """{"NAME_int64": tokens/s} of the loaders @names with @shape, without workers."""
    about, found = {"workers": 0, "seconds": SECONDS, "busy": False, "shape": shape}, {}
    for name in names:
        file, function = tokens_bin, "torch_dataloader"
        try:
            if name != "torch":
                file, function = directory / f"{name}-{shape[0]}/tokens.bin", name
                file.parent.mkdir()
                with open(tokens_bin, "rb") as whole:
                    file.write_bytes(whole.read(2 * TOKENS))
                given = {"shape": shape, "file": file, "tokens": TOKENS}
                if name == "megatron":
                    fresh(__file__, "megatron_files", PEERS, START_S, **given)
                else:
                    fresh(loaders.__file__, f"write_{name}", PEERS, START_S, **given)
            run = fresh(loaders.__file__, function, PEERS, START_S, file=file, **about)
            found[f"{name}_int64"] = run["rate"]
        except CannotRun as why:
            told(f"{name} with {shape[0]} × {shape[1]}: {why}")
    return found


if __name__ == "__main__":
    sys.exit(answer((megatron_files, sparse_mosaic)))
