"""Copies from the ring: registered memory, rates, and when a slot is released."""

import time
from pathlib import Path

from check_common import Session, feed, info, median, ok, slow, want


def rates(torch, sources, rounds=25, copies=20):
    """GB/s of copies of each tensor to the device, measured in turns."""
    to, seen = (
        torch.empty_like(next(iter(sources.values())), device="cuda"),
        {name: [] for name in sources},
    )
    for turn in range(rounds + 1):
        for name, source in sources.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(copies):
                to.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            if turn:
                seen[name].append(source.nbytes * copies / begin.elapsed_time(end) / 1e6)
    return {name: median(values) for name, values in seen.items()}


def check_is_pinned(torch, daemon):
    session = Session(daemon)
    session.client.lend(2)
    session.take()
    before = torch.from_dlpack(session.client.view())
    ok("is_pinned: false before registering", not before.is_pinned())
    session.client.pin(0)
    ok("is_pinned: a tensor over a slot", before.is_pinned())
    session.take()
    tensor = torch.from_dlpack(session.client.view())
    ok(
        "is_pinned: at interior pointers",
        all(tensor.view(torch.int16)[row:, 7:].is_pinned() for row in range(8)),
    )
    del before, tensor
    session.close()
    ok(
        "is_pinned: nothing stays registered",
        "tokend-data" not in Path("/proc/self/maps").read_text(),
    )


def check_rate(torch, daemon):
    for micro in (8, 4096):
        session = Session(daemon, micro)
        session.client.lend(2)
        session.client.pin(0)
        session.take()
        ring = torch.from_dlpack(session.client.view()).view(torch.int16)
        pinned, pageable = torch.empty_like(ring, pin_memory=True).copy_(ring), ring.clone()
        seen = rates(torch, {"ring": ring, "torch pinned": pinned, "pageable": pageable})
        size = f"{ring.nbytes / 1e6:.2f} MB per slot"
        info(f"rate, {size}", ", ".join(f"{name} {value:.1f} GB/s" for name, value in seen.items()))
        ok(
            f"rate, {size}: ring ≥ 0.95 of torch's own pinned memory",
            seen["ring"] >= 0.95 * seen["torch pinned"],
        )
        del ring
        session.close()


def check_early_return(torch, daemon):
    session = Session(daemon, 4096)
    session.client.lend(2)
    session.client.pin(0)
    session.take()
    ring = torch.from_dlpack(session.client.view()).view(torch.int16)
    to = torch.empty_like(ring, device="cuda")
    took = {}
    for name, source in (("ring", ring), ("pageable", ring.clone())):
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        slow(torch, 200)
        begin = time.perf_counter()
        to.copy_(source, non_blocking=True)
        took[name] = (time.perf_counter() - begin) * 1e3
        torch.cuda.synchronize()
    info(
        "early return on a stream that is busy for about 200 ms",
        ", ".join(f"{k} {v:.3f} ms" for k, v in took.items()),
    )
    ok("early return: from the ring within 2 ms", took["ring"] < 2, f"{took['ring']:.3f} ms")
    del ring
    session.close()


def check_reuse(torch, daemon):
    """Slots are released at the event of their copy, also on late streams. A control that releases
    them early must fail.
    """
    batches, micro = 60, 8
    right = want(daemon, batches, micro)
    session = Session(daemon, micro, slots=3)
    source, seen = feed(session), []
    for _ in range(batches):
        with torch.cuda.stream(source._gpu.side):
            slow(torch, 5)  # each copy is late
        seen.append(session.fed(source))
    torch.cuda.synchronize()
    wrong = [
        i
        for i, (got, tokens) in enumerate(zip(seen, right, strict=True))
        if not torch.equal(got.cpu(), tokens)
    ]
    ok(f"reuse: {batches} late batches arrive unchanged", not wrong, wrong)
    session.close()

    session, cudart = Session(daemon, micro, slots=3), torch.cuda.cudart()
    session.client.lend(1)
    session.take()
    line = next(
        line for line in Path("/proc/self/maps").read_text().splitlines() if "tokend-data" in line
    )
    begin, end = (int(word, 16) for word in line.split()[0].split("-"))
    error = int(
        cudart.cudaHostRegister(begin, end - begin, 0)
    )  # tokend does not know: it does not wait for copies
    assert error == 0, f"cudaHostRegister: {error}"
    side, seen = torch.cuda.Stream(), []
    for i in range(batches):
        if i:
            session.take()
        with torch.cuda.stream(side):
            slow(torch, 5)
            seen.append(
                torch.from_dlpack(session.client.view())
                .view(torch.int16)
                .to("cuda", non_blocking=True)
            )
    torch.cuda.synchronize()
    wrong = sum(
        not torch.equal(got.cpu().to(torch.int64) & 0xFFFF, tokens)
        for got, tokens in zip(seen, right, strict=True)
    )
    ok(
        "reuse: the control (slots released early) arrives wrong",
        wrong > 0,
        f"{wrong} of {batches} batches wrong",
    )
    cudart.cudaHostUnregister(begin)
    session.close()


def check_view(torch, daemon):
    """Lent slots are not registered, so a copy reads them before the call returns, and they may be
    released at once. This must hold on late streams, and on GPUs that read pageable memory directly
    (HMM, ATS).
    """
    from tokend import Loader

    right, side, seen = want(daemon, 60), torch.cuda.Stream(), []
    with Loader(
        "train", 8, socket=daemon.socket, rank=0, world=1, slots=3, view=True, hold=1
    ) as loader:
        for _ in right:
            with torch.cuda.stream(side):
                slow(torch, 5)
                seen.append(next(loader)["tokens"].view(torch.int16).to("cuda", non_blocking=True))
        torch.cuda.synchronize()
    wrong = [
        i
        for i, (got, tokens) in enumerate(zip(seen, right, strict=True))
        if not torch.equal(got.cpu().to(torch.int64) & 0xFFFF, tokens)
    ]
    ok("view: copied on a late stream and released at once, it arrives unchanged", not wrong, wrong)
