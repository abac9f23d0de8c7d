"""One contestant of objects.py: trains from a store, one batch at a time, and prints what happened.

    object_peers.py tokend|mosaic|litdata --remote URL --cache DIR --socket PATH …

Prints "first SECONDS" with the first batch, and then one line of JSON. Mosaic and litData run in
build/trainers/peers (bench/peers.txt), as their documentation shows them, with their caches.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MICRO, WIN = 8, 2049
# A dataset of 10^5 shards of 64 MB in small: shards, and Mosaic's block of the shuffle, are a 64th.
SHARD_BYTES, BLOCK = 1 << 20, 4096


def tokend(args):
    sys.path.insert(0, str(ROOT / "build/python"))
    import torch  # noqa: F401 - the others have imported it, too
    from tokend import Loader

    def batches():
        begin = int(args.start) if args.start else "begin"
        loader = Loader(
            "train", MICRO, run=args.run, socket=args.socket, tokens=True, start=begin,
            slots=args.slots,
        )  # fmt: skip
        return (batch["tokens"] for batch in loader)

    return batches


def mosaic(args):
    import numpy
    import torch

    sys.path.append(str(ROOT / "tests/lib"))
    from mosaic import import_without_init

    import_without_init()
    from streaming.base.dataloader import StreamingDataLoader
    from streaming.base.dataset import StreamingDataset

    class Windows(StreamingDataset):
        def __getitem__(self, i):
            return torch.from_numpy(super().__getitem__(i)["tokens"].astype(numpy.int64))

    def batches():
        dataset = Windows(
            remote=args.remote, local=args.cache, batch_size=MICRO, shuffle=True,
            shuffle_block_size=BLOCK,
        )  # fmt: skip
        return iter(StreamingDataLoader(dataset, batch_size=MICRO, num_workers=args.workers))

    return batches


def litdata(args):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # this store is on loopback

    def batches():
        dataset = StreamingDataset(
            args.remote, cache_dir=args.cache, item_loader=TokensLoader(block_size=WIN),
            shuffle=True, drop_last=True,
        )  # fmt: skip
        loader = StreamingDataLoader(dataset, batch_size=MICRO, num_workers=args.workers)
        return iter(loader)

    return batches


def write_mosaic(tokens, to):
    sys.path.append(str(ROOT / "tests/lib"))
    from mosaic import import_without_init

    import_without_init()
    from streaming.base.format.mds.writer import MDSWriter

    columns = {"tokens": "ndarray:uint16"}
    with MDSWriter(out=to, columns=columns, size_limit=SHARD_BYTES) as out:
        for at in range(0, len(tokens) - WIN, WIN - 1):
            out.write({"tokens": tokens[at : at + WIN]})


def write_litdata(tokens, to):
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(to, chunk_bytes=SHARD_BYTES, item_loader=TokensLoader(block_size=WIN))
    step = WIN * 16
    for number, at in enumerate(range(0, len(tokens) - step, step)):
        writer.add_item(number, torch.from_numpy(tokens[at : at + step]))
    writer.done()
    writer.merge(1)


def write(args):
    """The tokens of the flat file, as each format has them."""
    import numpy

    tokens = numpy.fromfile(args.file, dtype="<u2")
    {"mosaic": write_mosaic, "litdata": write_litdata}[args.name](tokens, args.cache)


def train(args):
    batches = {"tokend": tokend, "mosaic": mosaic, "litdata": litdata}[args.name](args)
    begin, taken, longest, error = time.monotonic(), 0, 0.0, None
    due = None
    try:
        batches = batches()
        next(batches)
        print("first", time.monotonic() - begin, flush=True)
        begin = due = time.monotonic()
        while time.monotonic() - begin < args.seconds:
            asked = time.monotonic()
            next(batches)
            longest = max(longest, time.monotonic() - asked)
            taken += 1
            due += args.pace
            time.sleep(max(0.0, due - time.monotonic()) if args.pace else 0.0)
    except StopIteration:
        error = "the epoch ended"
    except Exception as e:  # each loader has errors of its own
        error = f"{type(e).__name__}: {str(e).strip().splitlines()[-1][:150] if str(e) else ''}"
    seconds = time.monotonic() - begin
    print(
        json.dumps(
            {"batches": taken, "seconds": seconds, "longest": longest, "error": error,
             "rate": taken * MICRO * (WIN - 1) / seconds}
        ),
        flush=True,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("tokend", "mosaic", "litdata"))
    parser.add_argument("--file", help="write the shards of these tokens to --cache, and end")
    parser.add_argument("--remote")
    parser.add_argument("--cache")
    parser.add_argument("--socket")
    parser.add_argument("--run", default="bench")
    parser.add_argument("--start")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--pace", type=float, default=0, help="seconds between two batches")
    args = parser.parse_args()
    if args.file:
        write(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
