"""Copies from the ring: registered memory, and when a slot is released."""

from pathlib import Path

from check_common import Session, cuda, feed, ok, slow, unsigned, want, wrong

LATE = 60  # batches whose copies are late


def check_is_pinned(torch, daemon):
    session, gpu = Session(daemon), cuda(torch)
    slot = session.slot()
    ok("is_pinned: false before registering", not slot.is_pinned())
    why = gpu.register(*session.client.memory(gpu.gone))
    ok("is_pinned: the ring is registered", not why, why)
    ok("is_pinned: a tensor over a slot", slot.is_pinned())
    ok("is_pinned: at interior pointers", all(slot[row:, 7:].is_pinned() for row in range(8)))
    del slot
    session.close()
    maps = Path("/proc/self/maps").read_text()
    ok("is_pinned: nothing stays registered", "tokend-data" not in maps)


def check_refused(torch, daemon):
    """The runtime remembers an error, which must not appear in a later kernel."""
    session, gpu = Session(daemon), cuda(torch)
    base, size = session.client.memory(gpu.gone)
    ok("refused: registering once works", not gpu.register(base, size))
    why = gpu.register(base, size)
    ok("refused: registering twice does not", why, why)
    ok("refused: the next kernel runs", int(torch.ones(8, device="cuda").sum()) == 8)
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
    session.look()
    maps = Path("/proc/self/maps").read_text().splitlines()
    ring = next(line for line in maps if "tokend-data" in line)
    begin, end = (int(word, 16) for word in ring.split()[0].split("-"))
    cudart = torch.cuda.cudart()
    # tokend does not know of it, and does not wait for copies
    assert int(cudart.cudaHostRegister(begin, end - begin, 0)) == 0
    for _ in right:
        with torch.cuda.stream(side):
            slow(torch, 5)
            seen.append(session.slot().to("cuda", non_blocking=True))
        session.take()
    torch.cuda.synchronize()
    bad = wrong(unsigned(torch, seen), right)
    ok("reuse: the control (slots released early) arrives wrong", bad, bad)
    cudart.cudaHostUnregister(begin)
    session.close()
