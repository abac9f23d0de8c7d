"""The contestants: each function makes the batches of one loader, in a process of its own.

All of them deliver 8 windows of 2049 tokens to one trainer, shuffled: int64 where the name does not
say otherwise. Every loader is used as its documentation shows it. tokend's run in build/venv, the
others in build/trainers/peers (bench/peers.txt).

rate(), start() and waits() measure any of them: fresh(loaders.__file__, "rate", loader=NAME, …).
"""

import itertools
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from common import (
    BATCH_TOKENS,
    MICRO,
    ROOT,
    SEQ,
    WIN,
    CannotRun,
    answer,
    busy_cores,
    descendants,
    micro,
    private_mib,
    process_cpu,
    pss_mib,
)

sys.path.append(str(ROOT / "tests/lib"))

from mosaic import import_without_init  # noqa: E402

DOCUMENT = 1000  # tokens of a Megatron document
FIO_DEPTH = 256  # reads that the daemon has in flight at most, LIMIT_READS / 2
STEP_S, WARM_UP = 0.02, 25  # of waits()


# ---- measuring ----


def iterator(args):
    """The batches of args.loader. Its packages are imported before args.begun."""
    import torch

    torch.set_num_threads(1)
    begins(args)
    return iter(globals()[args.loader](args))


def begins(args):
    """A loader's start begins here: its packages are imported."""
    args.memory = pss_mib([os.getpid()], args.file)
    args.resident, args.begun = private_mib(os.getpid()), time.monotonic()


def take(batches, args):
    """Takes batches for args.seconds. CPU seconds per 10⁹ tokens are those of this thread, and of
    this process, its descendants and the daemon.
    """
    daemon = getattr(args, "daemon", None)
    pids = [os.getpid(), *descendants(os.getpid()), *([daemon] if daemon else [])]
    count, cpu, thread = 0, sum(map(process_cpu, pids)), time.thread_time()
    begin = now = time.monotonic()
    while now - begin < args.seconds:
        for _ in range(4):
            next(batches)
        count += 4
        now = time.monotonic()
    giga = count * BATCH_TOKENS / 1e9
    return {
        "rate": giga * 1e9 / (now - begin),
        "thread": (time.thread_time() - thread) / giga,
        "all": (sum(map(process_cpu, pids)) - cpu) / giga,
    }


def rate(args):
    """Tokens per second after a warm-up of 64 batches or 2 s, on free cores, and as "busy" while
    another process keeps each core busy. MiB by which this process and its workers have grown, and
    those of the daemon. "first": seconds to the first batch. "taken": all tokens.
    """
    batches = iterator(args)
    first, warm = None, 0
    while warm < 64:
        tokens = next(batches)
        warm += 1
        first = first or time.monotonic() - args.begun
        assert str(tokens.dtype).endswith(getattr(args, "dtype", "int64")), tokens.dtype
        assert tuple(tokens.shape) in ((MICRO, WIN), (MICRO, SEQ)), tokens.shape
        if time.monotonic() > args.begun + 2:
            break
    del tokens
    found = take(batches, args)
    found["taken"] = warm * BATCH_TOKENS + found["rate"] * args.seconds
    if getattr(args, "busy", False):
        with busy_cores():
            found["busy"] = take(batches, args)["rate"]
    own = [os.getpid(), *descendants(os.getpid())]
    found |= {"first": first, "memory": pss_mib(own, args.file) - args.memory}
    if getattr(args, "daemon", None):
        found["daemon"] = pss_mib([args.daemon], args.file)
    return found | {"version": version(args.package) if getattr(args, "package", None) else ""}


def start(args):
    """Milliseconds and MiB, mapped files included, from the imports to the first batch."""
    batches = iterator(args)
    next(batches)
    ms = 1e3 * (time.monotonic() - args.begun)
    found = {"start_ms": ms, "memory": private_mib(os.getpid()) - args.resident}
    batches.close()  # until here it holds the list of all samples
    return found


def waits(args):
    """(when, seconds that next() took) of each of args.steps of 20 ms. The trainer computes with
    torch, which empties the CPU's caches, as real trainers do. Makes the file args.warm after the
    warm-up.
    """
    import torch

    batches, found = iterator(args), []
    weights, inputs, out = torch.rand(512, 512), torch.rand(512, 512), torch.empty(512, 512)
    for number in range(WARM_UP + args.steps):
        if number == WARM_UP and hasattr(args, "warm"):
            Path(args.warm).touch()
        begin = time.perf_counter()
        tokens = next(batches)
        computes = time.perf_counter()
        found.append((begin, computes - begin))
        int(tokens.sum())
        while time.perf_counter() < computes + STEP_S:
            torch.mm(weights, inputs, out=out)
    return found[WARM_UP:]


# ---- tokend ----


def tokend(args, **options):
    """input_ids and labels, each a tensor of its own."""
    from tokend import Loader

    begins(args)
    begin = getattr(args, "position", None)
    rank, world = getattr(args, "rank", (0, 1))
    options |= {"slots": getattr(args, "slots", 0), "start": "begin" if begin is None else begin}
    options["run"] = str(os.getpid()) if world == 1 else "w"
    loader = Loader("train", MICRO, socket=args.socket, rank=rank, world=world, **options)
    return (batch["labels"] for batch in loader)


def tokend_int32(args):
    return tokend(args, dtype={"input_ids": "int32", "labels": "int32"})


# ---- the trainer's own code ----


def forever(loader):
    while True:
        yield from loader


def numpy_memmap(args):
    """A bare loop: a shuffled index, slices of the map, one conversion a batch."""
    import numpy
    import torch

    tokens = numpy.memmap(args.file, dtype="<u2", mode="r")
    random = numpy.random.default_rng(1)

    def epoch():
        order = random.permutation((len(tokens) - WIN) // SEQ + 1)
        for at in range(0, len(order) - MICRO, MICRO):
            rows = [tokens[i * SEQ : i * SEQ + WIN] for i in order[at : at + MICRO].tolist()]
            yield torch.from_numpy(numpy.stack(rows).astype(numpy.int64))

    return itertools.chain.from_iterable(epoch() for _ in itertools.count())


# ---- loaders ----


class Windows:
    """A random-access source: the windows of a flat file, int64 arrays or tensors."""

    def __init__(self, path, tensors=False):
        import numpy

        self.tokens, self.tensors = numpy.memmap(path, dtype="<u2", mode="r"), tensors

    def __len__(self):
        return (len(self.tokens) - WIN) // SEQ + 1

    def __getitem__(self, i):
        import torch

        row = self.tokens[i * SEQ : i * SEQ + WIN].astype("int64")
        return torch.from_numpy(row) if self.tensors else row


def torch_dataloader(args):
    from torch.utils.data import DataLoader

    begins(args)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    data = Windows(args.file, tensors=True)
    return forever(DataLoader(data, batch_size=MICRO, shuffle=True, drop_last=True, **workers))


def grain(args):
    import grain
    import torch

    data = grain.MapDataset.source(Windows(args.file)).shuffle(seed=1).repeat()
    # ReadOptions advises 0 threads for data in memory: that is about 4 times as fast here.
    data = data.batch(MICRO).to_iter_dataset(grain.ReadOptions(num_threads=0))
    if args.workers:
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=args.workers))
    return map(torch.from_numpy, data)


def mosaic(args):
    import_without_init()
    import numpy
    import torch
    from streaming.base.dataloader import StreamingDataLoader
    from streaming.base.dataset import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    class Samples(StreamingDataset):
        def __getitem__(self, i):
            return torch.from_numpy(super().__getitem__(i)["tokens"].astype(numpy.int64))

    clean_stale_shared_memory()
    begins(args)
    where = {"local": str(place(args, "mosaic"))}
    if hasattr(args, "remote"):
        where |= {"remote": args.remote, "shuffle_block_size": 4096}  # its shards are small
    dataset = Samples(batch_size=MICRO, shuffle=True, **where)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    return forever(StreamingDataLoader(dataset, batch_size=MICRO, drop_last=True, **workers))


def litdata(args):
    """Workers pass uint16, and the trainer widens: better for litData than the other way."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    begins(args)
    where = {"input_dir": str(place(args, "litdata"))}
    if hasattr(args, "remote"):
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # the store is on loopback
        where = {"input_dir": args.remote, "cache_dir": str(place(args, "litdata-cache"))}
    items = TokensLoader(block_size=WIN)
    dataset = StreamingDataset(item_loader=items, shuffle=True, drop_last=True, **where)
    loader = StreamingDataLoader(dataset, batch_size=MICRO, num_workers=args.workers)
    return (batch.long() for batch in forever(loader))


def megatron(args):
    """GPTDataset with Megatron's own shuffled index, without the loss mask's special cases."""
    import numpy
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split
    from torch.utils.data import DataLoader

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 50256, 0, 50257, {"name": "none"}

    begins(args)
    prefix = str(place(args, "megatron"))
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQ,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=str(place(args, "megatron-index")),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    config.mock = False
    indexed = IndexedDataset(prefix)
    documents = numpy.arange(len(indexed.sequence_lengths), dtype=numpy.int32)
    dataset = GPTDataset(indexed, prefix, documents, None, Split.train, config)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    batches = forever(DataLoader(dataset, batch_size=MICRO, drop_last=True, **workers))
    return (torch.cat((batch["tokens"], batch["labels"][:, -1:]), dim=1) for batch in batches)


# ---- the same tokens in the formats of Mosaic, litData and Megatron ----


def place(args, name):
    return Path(args.file).parent / "contest" / name


def all_tokens(args):
    import numpy

    place(args, "").mkdir(exist_ok=True)
    return numpy.memmap(args.file, dtype="<u2", mode="r")


def write_mosaic(args):
    import_without_init()
    from streaming.base.format.mds.writer import MDSWriter

    tokens, columns = all_tokens(args), {"tokens": f"ndarray:uint16:{WIN}"}
    size = getattr(args, "shard_bytes", 64 << 20)
    with MDSWriter(out=str(place(args, "mosaic")), columns=columns, size_limit=size) as out:
        for at in range(0, len(tokens) - WIN, SEQ):
            out.write({"tokens": tokens[at : at + WIN]})


def write_litdata(args):
    """With the chunk size of litData's documentation for tokens."""
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    tokens, step, small = all_tokens(args), 16 * WIN, getattr(args, "shard_bytes", None)
    place(args, "litdata").mkdir()
    size = {"chunk_bytes": small} if small else {"chunk_size": WIN * 8012}
    writer = BinaryWriter(str(place(args, "litdata")), item_loader=TokensLoader(WIN), **size)
    for number, at in enumerate(range(0, len(tokens) - step, step)):
        writer.add_item(number, torch.from_numpy(tokens[at : at + step].copy()))
    writer.done()
    writer.merge(1)


def write_megatron(args):
    """IndexedDataset's .idx, and the tokens, which may be sparse, as its .bin."""
    import numpy

    count = len(all_tokens(args)) // DOCUMENT
    os.link(args.file, place(args, "megatron.bin"))
    with open(place(args, "megatron.idx"), "wb") as index:
        index.write(b"MMIDIDX\0\0" + numpy.array([1], "<u8").tobytes() + bytes([8]))  # 8: uint16
        index.write(numpy.array([count, count + 1], "<u8").tobytes())
        numpy.full(count, DOCUMENT, "<i4").tofile(index)
        numpy.arange(0, 2 * DOCUMENT * count, 2 * DOCUMENT, "<i8").tofile(index)
        numpy.arange(count + 1, dtype="<i8").tofile(index)


# ---- the limits: other programs ----


def both(args, run):
    found = run()
    with busy_cores():
        return found | {"busy": run()["rate"], "version": found.get("version", "")}


def in_c(args):
    """A trainer in C, for about args.seconds; args.width: "stored" or "int64"."""

    def run(batches):
        before = process_cpu(args.daemon)
        done = micro("next", args.socket, "train", 0, batches, args.width)
        daemon = (process_cpu(args.daemon) - before) / (batches * BATCH_TOKENS / 1e9)
        thread = done["cpu_s_per_1e9"]
        return {"rate": done["tokens_s"], "thread": thread, "all": thread + daemon}

    batches = int(run(5000)["rate"] * args.seconds / BATCH_TOKENS)
    return both(args, lambda: run(batches))


def memcpy(args):
    """The bytes of a batch from random places of the mapped file into one buffer."""
    pieces = (2 * WIN, MICRO) if args.width == "stored" else (8 * BATCH_TOKENS, 1)

    def run():
        done = micro("floor", args.file, args.seconds, *pieces)
        cpu = done["cpu_s"] / BATCH_TOKENS * 1e9
        return {"rate": done["copies_s"] * BATCH_TOKENS, "thread": cpu, "all": cpu}

    return both(args, run)


def run_fio(file, seconds, size, align, *options):
    """fio's random reads of windows, in one thread, with as many in flight as the daemon has."""
    command = ["fio", "--name=bench", f"--filename={file}", "--rw=randread", *options]
    command += [f"--bs={size}", f"--blockalign={align}", "--norandommap", "--randrepeat=0"]
    command += ["--ioengine=io_uring", f"--iodepth={FIO_DEPTH}", "--registerfiles", "--thread"]
    command += ["--iodepth_batch_submit=64", "--iodepth_batch_complete_max=64"]
    command += ["--invalidate=0", "--time_based", f"--runtime={round(seconds * 1000)}ms"]
    command += ["--gtod_reduce=1", "--output-format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotRun("fio is not installed") from None
    if done.returncode:
        raise CannotRun((done.stderr.strip().splitlines() or ["fio failed"])[-1])
    found = json.loads(done.stdout[done.stdout.index("{") :])
    job, release = found["jobs"][0], found["fio version"].removeprefix("fio-")
    tokens, seconds = job["read"]["total_ios"] * WIN, job["read"]["runtime"] / 1e3
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / (tokens / 1e9)
    found = {"rate": tokens / seconds, "all": cpu, "thread": cpu}
    return found | {"taken": tokens, "version": release}


def fio(args):
    return both(args, lambda: run_fio(args.file, args.seconds, 2 * WIN, 2 * SEQ, "--direct=0"))


# (its name, workers or None, the quick contest has it, its function, its package, more of args)
LIMITS = (
    ("memcpy in C, stored width", None, False, memcpy, None, {"width": "stored"}),
    ("memcpy in C, int64", None, True, memcpy, None, {"width": "int64"}),
    ("fio, io_uring", None, True, fio, None, {}),
)
OURS = (
    ("tokend", None, True, tokend, None, {}),
    ("tokend, int32", None, True, tokend_int32, None, {"dtype": "int32"}),
    ("tokend in C, stored width", None, True, in_c, None, {"width": "stored"}),
    ("tokend in C, int64", None, False, in_c, None, {"width": "int64"}),
)
PEERS = (
    ("numpy.memmap", 0, True, numpy_memmap, "numpy", {}),
    ("torch DataLoader", 0, True, torch_dataloader, "torch", {}),
    ("torch DataLoader", 2, True, torch_dataloader, "torch", {}),
    ("litData TokensLoader", 0, False, litdata, "litdata", {}),
    ("litData TokensLoader", 2, False, litdata, "litdata", {}),
    ("Megatron GPTDataset", 0, False, megatron, "megatron-core", {}),
    ("Megatron GPTDataset", 2, False, megatron, "megatron-core", {}),
    ("grain", 0, False, grain, "grain", {}),
    ("grain", 2, False, grain, "grain", {}),
    ("Mosaic Streaming", 0, False, mosaic, "mosaicml-streaming", {}),
    ("Mosaic Streaming", 2, False, mosaic, "mosaicml-streaming", {}),
)

if __name__ == "__main__":
    answer(rate, start, waits, write_mosaic, write_litdata, write_megatron, memcpy, in_c, fio)
