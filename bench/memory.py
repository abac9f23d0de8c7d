"""Memory of a node with one and with eight trainers, next to torch's DataLoader.

A trainer's memory is what it grows by after it has imported torch: the PSS of all its mappings,
those of its workers included, but not the pages of the token file, which are the page cache's.
tokend's sum includes the daemon and the rings.
"""

from pathlib import Path

from common import (
    MICRO,
    Daemon,
    await_phase,
    end_phase,
    flat_windows,
    forever,
    next_phase,
    result_of,
    row,
    rss,
    serve_child,
    start_child,
    train_stream,
)

TRAINERS, BATCHES, WORKERS = 8, 200, 2


def take_batches(batches):
    for _ in range(BATCHES):
        next(batches)
    end_phase()


def tokend_trainer(socket, rank, world):
    import torch

    torch.set_num_threads(1)
    end_phase()
    from tokend import Loader

    with Loader("train", MICRO, socket=socket, rank=rank, world=world, run=f"w{world}") as loader:
        take_batches(loader)


def torch_trainer(file):
    import torch

    torch.set_num_threads(1)
    end_phase()
    data = flat_windows(file)
    workers = {"num_workers": WORKERS, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(data, MICRO, shuffle=True, drop_last=True, **workers)
    take_batches(forever(loader))


def pss(pid, file):
    """Bytes of a process and its children, without the mappings of @file."""
    total, counts = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key = line.split(None, 1)[0]
        if not key.endswith(":"):
            counts = not line.endswith(str(file))
        elif counts and key == "Pss:":
            total += 1024 * int(line.split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return total + sum(pss(child, file) for child in children)


def growth(children, file, measured_then=lambda: 0):
    """Bytes by which trainers grow between their import of torch and their last batch."""
    try:
        await_phase(children)
        before = sum(pss(child.pid, file) for child in children)
        next_phase(children)
        await_phase(children)
        after = sum(pss(child.pid, file) for child in children)
        then = measured_then()
        next_phase(children)
        for child in children:
            result_of(child)
        return after - before, then
    finally:
        for child in children:
            child.kill()
            child.wait()


def of_tokend(directory, file, world):
    """(all memory, the daemon's without rings)"""
    with Daemon(directory, train_stream(file)) as daemon:
        daemon.wait()
        children = [
            start_child(__file__, "tokend_trainer", socket=daemon.socket, rank=rank, world=world)
            for rank in range(world)
        ]
        grown, (whole, private) = growth(
            children, file, lambda: (pss(daemon.process.pid, file), rss(daemon) * 2**20)
        )
        return grown + whole, private


def of_torch(file, world):
    children = [start_child(__file__, "torch_trainer", file=file) for _ in range(world)]
    return growth(children, file)[0]


def memory(directory, args):
    file = directory / "tokens.bin"
    ours = {world: of_tokend(directory, file, world) for world in (1, TRAINERS)}
    torch = {
        world: of_torch(file, world) for world in ((TRAINERS,) if args.quick else (1, TRAINERS))
    }
    print(f"\nMemory of a node, private and shared, without importing torch; {MICRO} rows a batch")
    print(f"  {'':<66}{'1 trainer':>14}{f'{TRAINERS} trainers':>14}")
    for name, found in (
        ("tokend, daemon and rings included", {world: ours[world][0] for world in ours}),
        ("  the daemon without rings", {world: ours[world][1] for world in ours}),
        (f"torch DataLoader over memmap, {WORKERS} workers", torch),
    ):
        cells = [f"{found[w] / 2**20:.1f} MiB" if w in found else "–" for w in (1, TRAINERS)]
        print(f"  {name:<66}{cells[0]:>14}{cells[1]:>14}")
    figures = {
        "memory_8": ours[TRAINERS][0] / torch[TRAINERS],
        "memory_growth": ours[TRAINERS][1] / ours[1][1],
    }
    row(f"{TRAINERS} trainers: tokend ÷ torch", f"{figures['memory_8']:.3f}", "")
    row("the daemon without rings, 8 trainers ÷ 1", f"{figures['memory_growth']:.2f}", "")
    return figures | {f"memory_{world}_mib": ours[world][0] / 2**20 for world in ours}


if __name__ == "__main__":
    serve_child({"tokend_trainer": tokend_trainer, "torch_trainer": torch_trainer})
