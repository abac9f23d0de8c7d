"""The contestants of contest.py: each function makes one loader's batches in a process of its own.

All of them deliver 8 windows of 2049 tokens to one trainer, shuffled, from shards in the page
cache: int64 where the name does not say otherwise. Every loader is used as its documentation shows
it. A contestant runs in build/trainers/peers (bench/peers.txt), tokend's in build/venv.
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
    BIN,
    MICRO,
    ROOT,
    SEQ,
    WIN,
    answer,
    busy_cores,
    descendants,
    flat_windows,
    forever,
    memory_of,
    process_cpu,
)

sys.path.append(str(ROOT / "tests/lib"))

from mosaic import import_without_init  # noqa: E402

DOCUMENT = 1000  # tokens of a Megatron document
FIO_DEPTH = 256  # reads that the daemon has in flight at most, LIMIT_READS / 2


# ---- measuring ----


def both(measure):
    """@measure() on free cores, and then while another process keeps each core busy."""
    found = measure()
    with busy_cores():
        found["busy"] = measure()["rate"]
    return found


def take(batches, seconds, daemon):
    """Takes batches for @seconds. CPU seconds per 10⁹ tokens are those of this thread, and of this
    process, its descendants and the daemon.
    """
    pids = [os.getpid(), *descendants(os.getpid()), *([daemon] if daemon else [])]
    count, cpu, thread = 0, sum(map(process_cpu, pids)), time.thread_time()
    begin = now = time.monotonic()
    while now - begin < seconds:
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


def begins(args):
    """A loader's start begins here: its packages are imported."""
    args.begun = time.monotonic(), memory_of(os.getpid())["VmRSS"]


def started(args, batches):
    """Milliseconds and MiB from begins() to the first batch."""
    next(batches)
    begin, before = args.begun
    seconds = time.monotonic() - begin
    return {"start_ms": 1e3 * seconds, "memory": memory_of(os.getpid())["VmRSS"] - before}


def measured(args, batches, package, dtype="torch.int64", width=WIN):
    """The figures of an iterator of tensors [8, 2049], after a warm-up of 64 batches or 2 s."""
    import torch

    torch.set_num_threads(1)
    batches, until = iter(batches), time.monotonic() + 2
    if getattr(args, "start", False):
        return started(args, batches)
    for number in range(64):
        tokens = next(batches)
        assert str(tokens.dtype) == dtype and tuple(tokens.shape) == (MICRO, width), tokens
        if number and time.monotonic() > until:
            break
    del tokens  # a view holds a slot of the ring
    daemon = getattr(args, "daemon", None)

    def run():
        return take(batches, args.seconds, daemon)

    found = both(run) if getattr(args, "busy", True) else run()
    return found | {"version": f"{package} {version(package)}" if package else ""}


# ---- tokend ----


def tokend_loader(args, made="torch.int64", **options):
    import torch  # noqa: F401 - as in all trainers
    from tokend import Loader

    loader = Loader("train", MICRO, socket=args.socket, tokens=True, **options)
    return measured(args, (batch["tokens"] for batch in loader), None, made)


def tokend(args):
    return tokend_loader(args)


def tokend_pair(args):
    """input_ids and labels, each a tensor of its own: the default of Loader."""
    import torch  # noqa: F401
    from tokend import Loader

    loader = Loader("train", MICRO, socket=args.socket)
    return measured(args, (batch["labels"] for batch in loader), None, width=SEQ)


def tokend_int32(args):
    import torch

    return tokend_loader(args, "torch.int32", dtype=torch.int32)


def tokend_view(args):
    """The slots of the ring themselves, uint16, without a copy."""
    import torch  # noqa: F401
    from tokend import Loader

    loader = Loader("train", MICRO, socket=args.socket, view=True, hold=1)
    return measured(args, (batch["tokens"] for batch in loader), None, "torch.uint16")


def in_c(args, width):
    """bench-next for about args.seconds."""

    def run(batches):
        before = process_cpu(args.daemon)
        out = subprocess.run(
            [BIN / "bench-next", args.socket, "train", "0", str(batches), width],
            check=True,
            capture_output=True,
        )
        done, giga = json.loads(out.stdout), batches * BATCH_TOKENS / 1e9
        thread = done["cpu_s_per_1e9"]
        daemon = (process_cpu(args.daemon) - before) / giga
        return {"rate": done["tokens_s"], "thread": thread, "all": thread + daemon}

    batches = int(run(5000)["rate"] * args.seconds / BATCH_TOKENS)
    return both(lambda: run(batches)) | {"version": ""}


def tokend_c(args):
    return in_c(args, "stored")


def tokend_c_int64(args):
    return in_c(args, "int64")


# ---- the limits ----


def empty_loop(args):
    """The contest's own loop over one tensor."""
    import torch

    return measured(args, itertools.repeat(torch.zeros(MICRO, WIN, dtype=torch.int64)), "torch")


def floor(args, piece_bytes, pieces):
    command = [BIN / "bench-floor", args.file, args.seconds, piece_bytes, pieces]

    def run():
        out = subprocess.run([str(word) for word in command], check=True, capture_output=True)
        done = json.loads(out.stdout)
        cpu = done["cpu_s"] / BATCH_TOKENS * 1e9
        return {"rate": done["copies_s"] * BATCH_TOKENS, "thread": cpu, "all": cpu}

    return both(run) | {"version": ""}


def memcpy_stored(args):
    """8 random windows of the mapped file, u16, into one buffer."""
    return floor(args, 2 * WIN, MICRO)


def memcpy_int64(args):
    """The bytes of an int64 batch from a random place of the mapped file."""
    return floor(args, 8 * BATCH_TOKENS, 1)


def fio(args, *engine):
    """fio's random reads of windows from the page cache, in one thread."""
    command = ["fio", "--name=hot", f"--filename={args.file}", "--rw=randread", *engine]
    command += [f"--bs={2 * WIN}", f"--blockalign={2 * SEQ}", "--norandommap", "--direct=0"]
    command += ["--invalidate=0", "--time_based", f"--runtime={max(1, round(args.seconds))}"]
    command += ["--thread", "--gtod_reduce=1", "--output-format=json"]

    def run():
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        done = json.loads(out[out.index("{") :])
        job = done["jobs"][0]
        giga = job["read"]["total_ios"] * WIN / 1e9
        seconds = job["read"]["runtime"] / 1e3
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / giga
        return {"rate": giga * 1e9 / seconds, "thread": cpu, "all": cpu, "v": done["fio version"]}

    found = both(run)
    return found | {"version": found.pop("v")}


def fio_uring(args):
    return fio(args, "--ioengine=io_uring", f"--iodepth={FIO_DEPTH}", "--registerfiles")


def fio_pread(args):
    return fio(args, "--ioengine=psync")


# ---- the trainer's own code ----


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

    batches = itertools.chain.from_iterable(epoch() for _ in itertools.count())
    return measured(args, batches, "numpy")


def nanogpt(args):
    """get_batch() of nanoGPT's train.py: random offsets, x and y, a new memmap for each batch."""
    import numpy as np
    import torch

    block_size, batch_size = SEQ, MICRO

    def get_batch():
        data = np.memmap(args.file, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - block_size, (batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
        )
        return x, y

    return measured(args, (get_batch()[0] for _ in itertools.count()), "numpy", width=SEQ)


# ---- loaders ----


def torch_dataloader(args):
    from torch.utils.data import DataLoader

    begins(args)
    loader = DataLoader(
        flat_windows(args.file),
        batch_size=MICRO,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    return measured(args, forever(loader), "torch")


def torch_batches(args):
    """A whole batch from the dataset's __getitems__(), uint16, which the trainer widens."""
    import numpy
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Batches(Dataset):
        def __init__(self):
            self.tokens = numpy.memmap(args.file, dtype="<u2", mode="r")

        def __len__(self):
            return (len(self.tokens) - WIN) // SEQ + 1

        def __getitems__(self, numbers):
            rows = [self.tokens[i * SEQ : i * SEQ + WIN] for i in numbers]
            return torch.from_numpy(numpy.stack(rows))

    loader = DataLoader(
        Batches(),
        batch_size=MICRO,
        shuffle=True,
        drop_last=True,
        collate_fn=lambda batch: batch,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    return measured(args, (batch.long() for batch in forever(loader)), "torch")


def stateful_dataloader(args):
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        flat_windows(args.file),
        batch_size=MICRO,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    return measured(args, forever(loader), "torchdata")


def mosaic(args):
    import_without_init()
    import numpy
    import torch
    from streaming.base.dataloader import StreamingDataLoader
    from streaming.base.dataset import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    class Windows(StreamingDataset):
        def __getitem__(self, i):
            return torch.from_numpy(super().__getitem__(i)["tokens"].astype(numpy.int64))

    clean_stale_shared_memory()
    begins(args)
    dataset = Windows(local=str(place(args, "mds")), batch_size=MICRO, shuffle=True)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = StreamingDataLoader(dataset, batch_size=MICRO, drop_last=True, **workers)
    return measured(args, forever(loader), "mosaicml-streaming")


def litdata(args):
    """Workers pass uint16, and the trainer widens: better for litData than the other way."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(
        str(place(args, "litdata")),
        item_loader=TokensLoader(block_size=WIN),
        shuffle=True,
        drop_last=True,
    )
    loader = StreamingDataLoader(dataset, batch_size=MICRO, num_workers=args.workers)
    return measured(args, (batch.long() for batch in forever(loader)), "litdata")


class Windows:
    """A random-access source for grain, which sends it to its workers."""

    def __init__(self, path):
        import numpy

        self.tokens = numpy.memmap(path, dtype="<u2", mode="r")

    def __len__(self):
        return (len(self.tokens) - WIN) // SEQ + 1

    def __getitem__(self, i):
        return self.tokens[i * SEQ : i * SEQ + WIN].astype("int64")


def grain(args):
    import grain
    import torch

    data = grain.MapDataset.source(Windows(args.file)).shuffle(seed=1).repeat()
    # ReadOptions advises 0 threads for data in memory: that is about 4 times as fast here.
    data = data.batch(MICRO).to_iter_dataset(grain.ReadOptions(num_threads=0))
    if args.workers:
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=args.workers))
    return measured(args, map(torch.from_numpy, data), "grain")


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
    joined = (torch.cat((batch["tokens"], batch["labels"][:, -1:]), dim=1) for batch in batches)
    return measured(args, joined, "megatron-core")


def ibm(args):
    raise SystemExit("fms-fsdp is not on PyPI, and has no release to pin")


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
    with MDSWriter(out=str(place(args, "mds")), columns=columns, size_limit="64mb") as out:
        for at in range(0, len(tokens) - WIN, SEQ):
            out.write({"tokens": tokens[at : at + WIN]})
    return {}


def write_litdata(args):
    """With the chunk size of litData's documentation for tokens."""
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    tokens, step = all_tokens(args), 16 * WIN
    place(args, "litdata").mkdir()
    writer = BinaryWriter(
        str(place(args, "litdata")), chunk_size=WIN * 8012, item_loader=TokensLoader(WIN)
    )
    for number, at in enumerate(range(0, len(tokens) - step, step)):
        writer.add_item(number, torch.from_numpy(tokens[at : at + step].copy()))
    writer.done()
    writer.merge(1)
    return {}


def write_megatron(args):
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    tokens, part = all_tokens(args), 1000 * DOCUMENT
    builder = IndexedDatasetBuilder(str(place(args, "megatron.bin")), dtype=numpy.uint16)
    for at in range(0, len(tokens) - part, part):
        builder.add_document(tokens[at : at + part], [DOCUMENT] * (part // DOCUMENT))
    builder.finalize(str(place(args, "megatron.idx")))
    return {}


# (its name, function, workers or None, the quick contest has it, it runs in build/trainers/peers)
LIMITS = (
    ("empty loop, Python", empty_loop, None, False),
    ("memcpy in C, stored width", memcpy_stored, None, False),
    ("memcpy in C, int64", memcpy_int64, None, False),
    ("fio, io_uring", fio_uring, None, True),
    ("fio, pread", fio_pread, None, False),
)
OURS = (
    ("tokend", tokend, None, True),
    ("tokend, input_ids and labels", tokend_pair, None, False),
    ("tokend, int32", tokend_int32, None, True),
    ("tokend, views", tokend_view, None, True),
    ("tokend in C, stored width", tokend_c, None, True),
    ("tokend in C, int64", tokend_c_int64, None, False),
)
PEERS = (
    ("numpy.memmap", numpy_memmap, 0, True),
    ("nanoGPT get_batch()", nanogpt, 0, False),
    ("torch DataLoader", torch_dataloader, 0, True),
    ("torch DataLoader", torch_dataloader, 1, False),
    ("torch DataLoader", torch_dataloader, 2, True),
    ("torch DataLoader, u16 batches", torch_batches, 0, False),
    ("torch DataLoader, u16 batches", torch_batches, 2, False),
    ("StatefulDataLoader", stateful_dataloader, 0, False),
    ("StatefulDataLoader", stateful_dataloader, 2, False),
    ("litData TokensLoader", litdata, 0, False),
    ("litData TokensLoader", litdata, 2, False),
    ("Megatron GPTDataset", megatron, 0, False),
    ("Megatron GPTDataset", megatron, 2, False),
    ("grain", grain, 0, False),
    ("grain", grain, 2, False),
    ("Mosaic Streaming", mosaic, 0, False),
    ("Mosaic Streaming", mosaic, 2, False),
    ("IBM fms-fsdp", ibm, 2, False),
)
WRITERS = (write_mosaic, write_litdata, write_megatron)

if __name__ == "__main__":
    answer([function for _, function, _, _ in LIMITS + OURS + PEERS] + list(WRITERS))
