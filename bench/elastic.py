"""Checkpoints, and worlds that change: samples that are repeated or lost."""

import statistics
import threading
import time

from common import MICRO, Daemon, in_child, row, serve_child, train_stream

WORLDS, STEPS = (4, 2, 3), 50


def of_tokend(socket):
    """Numbers of the samples that the ranks of all worlds took."""
    from tokend import Loader

    taken, start = [], "begin"
    for world in WORLDS:
        ranks = [
            Loader(
                "train", MICRO, socket=socket, rank=r, world=world, start=start, framework="numpy"
            )
            for r in range(world)
        ]
        for _ in range(STEPS):
            for loader in ranks:
                taken += next(loader)["position"].tolist()
        states = [loader.state_dict() for loader in ranks]
        assert all(state == states[0] for state in states)
        start = states[0]
        for loader in ranks:
            loader.close()
    return taken


def of_torch(samples=100_000):
    """The same with a DistributedSampler that continues as torchdata's stateful one does: each rank
    stores how many samples it took. Samples are numbered in the order of the shuffle."""
    from torch.utils.data import DistributedSampler

    order = DistributedSampler(range(samples), 1, 0, shuffle=True)
    number = {sample: position for position, sample in enumerate(order)}
    taken, yielded = [], 0
    for world in WORLDS:
        for rank in range(world):
            mine = list(DistributedSampler(range(samples), world, rank, shuffle=True))
            taken += [number[s] for s in mine[yielded : yielded + STEPS * MICRO]]
        yielded += STEPS * MICRO
    return taken


def checkpoints(socket, steps):
    """Bytes of a state, milliseconds of saving, and of next() while a thread takes states."""
    import torch
    from tokend import Loader

    torch.set_num_threads(1)
    loader, done = Loader("train", MICRO, socket=socket), threading.Event()

    def times(call, count):
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - begin))
        return found

    def train():
        found = []
        for _ in range(steps):
            found += times(lambda: next(loader), 1)
            time.sleep(0.005)
        return sorted(found)

    def save():
        while not done.wait(0.001):
            loader.state_dict()

    train()
    quiet = train()
    saver = threading.Thread(target=save)
    saver.start()
    saving = train()
    done.set()
    saver.join()
    return {
        "bytes": len(loader.state_dict()["cursor"]),
        "state_ms": statistics.median(times(loader.state_dict, 500)),
        "snapshot_ms": statistics.median(times(lambda: loader.checkpoint("bench"), 50)),
        "quiet_ms": quiet[len(quiet) // 2],
        "saving_ms": saving[len(saving) // 2],
        "quiet_most": quiet[-1],
        "saving_most": saving[-1],
    }


def elastic(directory, args):
    with Daemon(directory, train_stream(directory / "tokens.bin")) as daemon:
        daemon.wait()
        taken = {
            "tokend": in_child(__file__, "of_tokend", socket=daemon.socket),
            "torch DistributedSampler, samples of each rank stored": in_child(__file__, "of_torch"),
        }
        saved = in_child(
            __file__, "checkpoints", socket=daemon.socket, steps=100 if args.quick else 500
        )
    print(f"\nSamples of a job of {' → '.join(map(str, WORLDS))} ranks, {STEPS} steps each")
    figures = {}
    for name, numbers in taken.items():
        repeated = len(numbers) - len(set(numbers))
        lost = max(numbers) + 1 - len(set(numbers))
        row(name, f"{len(numbers)}", f"{repeated} repeated, {lost} lost")
        if name == "tokend":
            figures = {"repeated": repeated, "lost": lost}
    print("\nCheckpoints")
    row("bytes of a state, for all ranks", f"{saved['bytes']}", "")
    row("state_dict()", f"{1e3 * saved['state_ms']:.1f} µs", "")
    row(
        "checkpoint(), which next() waits for: the daemon writes it",
        f"{saved['snapshot_ms']:.2f} ms",
        "",
    )
    row(
        "next() while a thread takes a state each ms, p50 and longest",
        f"{1e3 * saved['saving_ms']:.0f} µs",
        f"{saved['saving_most']:.2f} ms; without: {1e3 * saved['quiet_ms']:.0f} µs, "
        f"{saved['quiet_most']:.2f} ms",
    )
    return figures | {f"checkpoint_{key}": value for key, value in saved.items()}


if __name__ == "__main__":
    serve_child({"of_tokend": of_tokend, "of_torch": of_torch, "checkpoints": checkpoints})
