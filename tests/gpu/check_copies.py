"""Copies from the ring: registered memory, rates, and when a slot is released."""

import time
from pathlib import Path
from statistics import median

from check_common import Session, feed, info, ok, slow, unsigned, want, wrong

LATE = 60  # batches whose copies are late


def check_is_pinned(torch, daemon):
    session = Session(daemon)
    session.client.lend(2)
    session.take()
    slot = session.slot()
    ok("is_pinned: false before registering", not slot.is_pinned())
    session.client.pin(0)
    ok("is_pinned: a tensor over a slot", slot.is_pinned())
    ok("is_pinned: at interior pointers", all(slot[row:, 7:].is_pinned() for row in range(8)))
    del slot
    session.close()
    maps = Path("/proc/self/maps").read_text()
    ok("is_pinned: nothing stays registered", "tokend-data" not in maps)


def rate(torch, source, to, copies=20):
    """GB/s of copies to the device."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(copies):
        to.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return source.nbytes * copies / begin.elapsed_time(end) / 1e6


def check_rate(torch, daemon):
    for micro in (8, 4096):
        session = Session(daemon, micro)
        ring = session.first_slot()
        sources = {
            "ring": ring,
            "torch pinned": torch.empty_like(ring, pin_memory=True).copy_(ring),
            "pageable": ring.clone(),
        }
        seen, to = {name: [] for name in sources}, torch.empty_like(ring, device="cuda")
        for _ in range(26):
            for name, source in sources.items():  # in turns
                seen[name].append(rate(torch, source, to))
        rates = {name: median(values[1:]) for name, values in seen.items()}
        size = f"rate, {ring.nbytes / 1e6:.2f} MB per slot"
        info(size, ", ".join(f"{name} {value:.1f} GB/s" for name, value in rates.items()))
        good = rates["ring"] >= 0.95 * rates["torch pinned"]
        ok(f"{size}: ring ≥ 0.95 of torch's own pinned memory", good)
        del ring, sources, source
        session.close()


def check_early_return(torch, daemon):
    session = Session(daemon, 4096)
    ring = session.first_slot()
    to = torch.empty_like(ring, device="cuda")
    to.copy_(ring, non_blocking=True)
    torch.cuda.synchronize()
    slow(torch, 200)
    begin = time.perf_counter()
    to.copy_(ring, non_blocking=True)
    took = (time.perf_counter() - begin) * 1e3
    torch.cuda.synchronize()
    ok("early return: within 2 ms, while the stream is busy for 200", took < 2, f"{took:.3f} ms")
    del ring
    session.close()


def check_reuse(torch, daemon):
    """Slots are released at the event of their copy, also on late streams. A control that releases
    them early must fail.
    """
    right = want(daemon, LATE)
    session = Session(daemon, slots=3)
    source, seen = feed(session), []
    for _ in right:
        with torch.cuda.stream(source._gpu.side):
            slow(torch, 5)  # each copy is late
        seen.append(session.fed(source))
    torch.cuda.synchronize()
    bad = wrong(seen, right)
    ok(f"reuse: {LATE} late batches arrive unchanged", not bad, bad)
    session.close()

    session, side, seen = Session(daemon, slots=3), torch.cuda.Stream(), []
    session.client.lend(1)
    maps = Path("/proc/self/maps").read_text().splitlines()
    ring = next(line for line in maps if "tokend-data" in line)
    begin, end = (int(word, 16) for word in ring.split()[0].split("-"))
    cudart = torch.cuda.cudart()
    # tokend does not know of it, and does not wait for copies
    assert int(cudart.cudaHostRegister(begin, end - begin, 0)) == 0
    for _ in right:
        session.take()
        with torch.cuda.stream(side):
            slow(torch, 5)
            seen.append(session.slot().to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    bad = wrong(unsigned(torch, seen), right)
    ok("reuse: the control (slots released early) arrives wrong", bad, bad)
    cudart.cudaHostUnregister(begin)
    session.close()


def check_view(torch, daemon):
    """Lent slots are not registered, so a copy reads them before the call returns, and they may be
    released at once. This must hold on late streams, and on GPUs that read pageable memory directly
    (HMM, ATS).
    """
    from tokend import Loader

    right, side, seen = want(daemon, LATE), torch.cuda.Stream(), []
    keys = {"socket": daemon.socket, "rank": 0, "world": 1, "slots": 3}
    with Loader("train", 8, **keys, view=True, hold=1) as loader:
        for _ in right:
            with torch.cuda.stream(side):
                slow(torch, 5)
                seen.append(next(loader)["tokens"].view(torch.int16).to("cuda", non_blocking=True))
        torch.cuda.synchronize()
    bad = wrong(unsigned(torch, seen), right)
    ok("view: copied on a late stream and released at once, it arrives unchanged", not bad, bad)
