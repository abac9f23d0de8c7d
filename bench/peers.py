"""tokend next to other loaders: each contestant in a fresh process, in turn, on the same tokens.

    build/venv/bin/python bench/peers.py

Every loader delivers int64 tensors of 8 × 2049 tokens to one trainer, shuffled, from shards in the
page cache. Mosaic reads MDS, Megatron .bin and .idx, the others the flat file. All but tokend run
in build/trainers/peers (bench/peers.txt), as their documentation shows them.
"""

import argparse
import importlib
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import (
    BATCH_TOKENS,
    MICRO,
    ROOT,
    SEQ,
    WIN,
    Daemon,
    cpu_of,
    flat_windows,
    forever,
    train_stream,
    write_tokens,
)

sys.path.append(str(ROOT / "tests/lib"))

from mosaic import import_without_init  # noqa: E402

PEERS = ROOT / "build/trainers/peers/bin/python"
DOCUMENT = 1000  # tokens of a Megatron document


def children_cpu():
    me = os.getpid()
    pids = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    return sum(cpu_of(pid) for pid in pids)


def own_cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + children_cpu()


# Each takes the arguments and the batches to skip, and returns an iterator of int64 [8, 2049].


def tokend(args, skip):
    from tokend import Loader

    start = skip * MICRO if skip else "begin"
    loader = Loader("train", MICRO, socket=args.socket, tokens=True, start=start)
    return (batch["tokens"] for batch in loader)


def loaded(dataset, args, skip, shuffle):
    """A DataLoader whose sampler leaves out the first @skip batches, so that none is read."""
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

    class Skipping(BatchSampler):
        def __iter__(self):
            nonlocal skip
            left, skip = skip, 0
            return itertools.islice(super().__iter__(), left, None)

    rows = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    batches = Skipping(rows, MICRO, drop_last=True)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    return DataLoader(dataset, batch_sampler=batches, **workers)


def memmap(args, skip):
    return forever(loaded(flat_windows(args.file), args, skip, shuffle=True))


def mosaic(args, skip):
    import numpy
    import torch
    from streaming.base.dataloader import StreamingDataLoader
    from streaming.base.dataset import StreamingDataset

    class Windows(StreamingDataset):
        def __getitem__(self, i):
            return torch.from_numpy(super().__getitem__(i)["tokens"].astype(numpy.int64))

    dataset = Windows(local=str(Path(args.file).parent / "mds"), batch_size=MICRO, shuffle=True)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    if skip:
        dataset.load_state_dict(dataset.state_dict(skip * MICRO, from_beginning=True))
    return forever(StreamingDataLoader(dataset, batch_size=MICRO, **workers))


def megatron(args, skip):
    import numpy
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 50256, 0, 50257, {"name": "none"}

    prefix = str(Path(args.file).parent / "megatron")
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQ,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=args.cache,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    config.mock = False
    indexed = IndexedDataset(prefix)
    documents = numpy.arange(len(indexed.document_indices) - 1, dtype=numpy.int32)
    dataset = GPTDataset(indexed, prefix, documents, None, Split.train, config)
    batches = forever(loaded(dataset, args, skip, shuffle=False))  # Megatron's index is shuffled
    return (torch.cat((batch["tokens"], batch["labels"][:, -1:]), dim=1) for batch in batches)


def write_shards(args):
    """The same tokens as MDS and for Megatron."""
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    import_without_init()
    from streaming.base.format.mds.writer import MDSWriter

    tokens = numpy.memmap(args.file, dtype="<u2", mode="r")
    directory = Path(args.file).parent
    columns = {"tokens": f"ndarray:uint16:{WIN}"}
    with MDSWriter(out=str(directory / "mds"), columns=columns, size_limit="64mb") as out:
        for at in range(0, len(tokens) - WIN, SEQ):
            out.write({"tokens": tokens[at : at + WIN]})
    builder = IndexedDatasetBuilder(str(directory / "megatron.bin"), dtype=numpy.uint16)
    part = 1000 * DOCUMENT
    for at in range(0, len(tokens) - part, part):
        builder.add_document(tokens[at : at + part], [DOCUMENT] * (part // DOCUMENT))
    builder.finalize(str(directory / "megatron.idx"))
    return {}


def measure(args):
    """A run from the beginning, then one that resumes halfway, both with imports done."""
    import torch

    torch.set_num_threads(1)
    if args.contest == "mosaic":
        import_without_init()
    for module in IMPORTS[args.contest]:
        importlib.import_module(module)
    begin = time.perf_counter()
    batches = CONTESTS[args.contest](args, args.skip)
    tokens = next(batches)
    first = time.perf_counter() - begin
    assert str(tokens.dtype) == "torch.int64" and tuple(tokens.shape) == (MICRO, WIN)
    if args.skip:
        return {"first_s": first}
    for _ in range(64):
        next(batches)
    n, begin, cpu = 0, time.monotonic(), own_cpu() + (cpu_of(args.daemon) if args.daemon else 0)
    while time.monotonic() - begin < args.seconds:
        next(batches)
        n += 1
    wall = time.monotonic() - begin
    cpu = own_cpu() + (cpu_of(args.daemon) if args.daemon else 0) - cpu
    total = n * BATCH_TOKENS
    return {"rate": total / wall, "cpu": cpu / total * 1e9, "first_s": first}


IMPORTS = {
    "tokend": ["tokend"],
    "memmap": ["torch.utils.data"],
    "mosaic": ["streaming.base.dataset", "streaming.base.dataloader"],
    "megatron": ["megatron.core.datasets.gpt_dataset"],
}
CONTESTS = {"tokend": tokend, "memmap": memmap, "mosaic": mosaic, "megatron": megatron}
TABLE = (
    ("tokend", 0),
    ("memmap", 0),
    ("memmap", 2),
    ("mosaic", 0),
    ("mosaic", 2),
    ("megatron", 0),
    ("megatron", 2),
)


def contest(name, **args):
    """Runs this file in a process of its own; returns what it measured."""
    python = sys.executable if name == "tokend" else PEERS
    env = os.environ | {"PYTHONPATH": str(ROOT / "build/python"), "PYTHONWARNINGS": "ignore"}
    command = [python, __file__, "--contest", name]
    command += [f"--{key}={value}" for key, value in args.items()]
    done = subprocess.run(command, env=env, capture_output=True)
    if done.returncode:
        raise SystemExit(f"bench: {name} failed:\n{done.stderr.decode()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peers(directory, args):
    directory = directory / "peers"
    directory.mkdir(exist_ok=True)
    path = directory / "tokens.bin"
    write_tokens(path, args.tokens)
    contest("write", file=path)
    half = args.tokens // SEQ // MICRO // 2
    found = {contestant: [] for contestant in TABLE}
    with Daemon(directory, train_stream("tokens.bin")) as daemon:
        daemon.wait()
        for number in range(args.rounds):
            for name, workers in TABLE:
                common = {"file": path, "workers": workers, "seconds": args.seconds}
                common["cache"] = directory / f"cache-{number}-{workers}"  # Megatron's index
                if name == "tokend":
                    common |= {"socket": daemon.socket, "daemon": daemon.process.pid}
                run = contest(name, **common)
                run["resume_s"] = contest(name, skip=half, **common)["first_s"]
                found[name, workers].append(run)
    print(f"\nPeers: {args.tokens / 1e6:.0f} M tokens, int64 {MICRO}×{WIN}, one trainer")
    print(f"  {'':<22}{'M tokens/s':>12}{'CPU s/10⁹':>12}{'first batch':>13}{'resume':>10}")
    for (name, workers), runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        label = name if name == "tokend" else f"{name}, {workers} workers"
        print(
            f"  {label:<22}{middle['rate'] / 1e6:>12,.1f}{middle['cpu']:>12.2f}"
            f"{1000 * middle['first_s']:>10.0f} ms{1000 * middle['resume_s']:>7.0f} ms"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    for name in ("contest", "socket", "file", "cache"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    for name in ("daemon", "workers", "skip"):
        parser.add_argument("--" + name, type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contest:
        print(json.dumps(write_shards(args) if args.contest == "write" else measure(args)))
        return
    directory = Path(tempfile.mkdtemp(prefix="tokend-peers-"))
    try:
        peers(directory, args)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
