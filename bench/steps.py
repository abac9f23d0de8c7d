"""The wait of a trainer with steps of 20 ms: all of next(), in turn with other loaders.

The trainer computes with torch, which empties the CPU's caches, as real trainers do. nanoGPT is
get_batch() of its train.py. torch is a DataLoader over memmap, and on storage that stalls, over
pread(): FUSE's direct files cannot be mapped.
"""

import os
import time

from common import MICRO, SEQ, WIN, Daemon, end_phase, flat_windows, forever, in_child, serve_child
from common import train_stream

STEP_S = 0.02
WARM_UP = 25
NAMES = {
    "tokend": "tokend",
    "nanogpt": "nanoGPT's get_batch",
    "torch0": "torch DataLoader, 0 workers",
    "torch2": "torch DataLoader, 2 workers",
}


def tokend(file, socket, slots=0):
    from tokend import Loader

    loader = Loader("train", MICRO, socket=socket, slots=slots, run=str(os.getpid()))
    return ((batch["input_ids"], batch["labels"]) for batch in loader)


def nanogpt(file, socket):
    import numpy
    import torch

    while True:
        data = numpy.memmap(file, dtype=numpy.uint16, mode="r")
        ix = torch.randint(len(data) - SEQ, (MICRO,))
        x = torch.stack([torch.from_numpy(data[i : i + SEQ].astype(numpy.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + SEQ].astype(numpy.int64)) for i in ix]
        )
        yield x, y


def read_windows(file):
    import numpy
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self):
            self.file = os.open(file, os.O_RDONLY)

        def __len__(self):
            return (os.fstat(self.file).st_size // 2 - WIN) // SEQ + 1

        def __getitem__(self, i):
            raw = os.pread(self.file, 2 * WIN, 2 * i * SEQ)
            return torch.from_numpy(numpy.frombuffer(raw, "<u2").astype(numpy.int64))

    return Windows()


def with_torch(file, workers, mapped):
    import torch

    data = flat_windows(file) if mapped else read_windows(file)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = torch.utils.data.DataLoader(data, MICRO, shuffle=True, drop_last=True, **options)
    for tokens in forever(loader):
        yield tokens[:, :-1], tokens[:, 1:]


CONTESTANTS = {
    "tokend": tokend,
    "nanogpt": nanogpt,
    "torch0": lambda file, socket: with_torch(file, 0, True),
    "torch2": lambda file, socket: with_torch(file, 2, True),
    "read0": lambda file, socket: with_torch(file, 0, False),
    "read2": lambda file, socket: with_torch(file, 2, False),
}


def train(contestant, steps, announce=False, **options):
    """When each step began and its wait, in seconds. @announce: end_phase() after the warm-up."""
    import torch

    torch.set_num_threads(1)
    batches = CONTESTANTS[contestant](**options)
    weights, inputs, out = torch.rand(512, 512), torch.rand(512, 512), torch.empty(512, 512)
    waits = []
    for number in range(WARM_UP + steps):
        if announce and number == WARM_UP:
            end_phase()
        begin = time.perf_counter()
        input_ids, labels = next(batches)
        computes = time.perf_counter()
        waits.append((begin, computes - begin))
        int(input_ids.sum() + labels.sum())
        while time.perf_counter() < computes + STEP_S:
            torch.mm(weights, inputs, out=out)
    return waits[WARM_UP:]


def percentile(waits, share):
    ordered = sorted(waits)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def print_waits(names, found, unit, scale):
    print(f"  {'':<40}" + "".join(f"{name:>11}" for name in ("p50", "p99", "p99.9", "max", "mean")))
    for name, waits in found.items():
        cells = [percentile(waits, share) for share in (0.5, 0.99, 0.999, 1)]
        cells.append(sum(waits) / len(waits))
        print(f"  {names[name]:<40}" + "".join(f"{c * scale:>11,.0f}" for c in cells) + f" {unit}")


def steps(directory, args):
    number, rounds = (150, 1) if args.quick else (350, 3)
    names = ("tokend", "torch0") if args.quick else NAMES
    found = {name: [] for name in names}
    file = directory / "tokens.bin"
    with Daemon(directory, train_stream(file)) as daemon:
        daemon.wait()
        for _ in range(rounds):
            for name in names:
                options = {"file": file, "socket": daemon.socket, "steps": number}
                found[name] += [
                    wait for _, wait in in_child(__file__, "train", contestant=name, **options)
                ]
    print(
        f"\nWait of {rounds} × {number} steps of {STEP_S * 1e3:.0f} ms: all of next(), "
        f"{MICRO}×{SEQ} tokens in the page cache, int64 input_ids and labels"
    )
    print_waits(NAMES, found, "µs", 1e6)
    print("  goals for tokend: p50 15, p99.9 60, max 400 µs")
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1}
    waits = {
        who: {name: percentile(each, share) * 1e6 for name, share in shares.items()}
        for who, each in found.items()
    }
    return {f"step_{name}_us": us for name, us in waits["tokend"].items()} | {"waits": waits}


if __name__ == "__main__":
    serve_child({"train": train})
