"""Training on the GPU: step time and results."""

import time
from statistics import median

from check_common import SEQ, WINDOW, Session, feed, info, ok


def check_step_time(torch, daemon):
    """Compared with synthetic tokens made on the device, in pairs of alternating order."""
    micro, steps, pairs = 4, 10, 40
    layer = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True)
    blocks = torch.nn.TransformerEncoder(layer, 6)
    net = torch.nn.Sequential(torch.nn.Embedding(65536, 1024), blocks).cuda().bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    session = Session(daemon, micro, slots=8)
    source = feed(session)

    def seconds(batch):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            net(batch()[:, :SEQ]).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps

    ways = {
        "synthetic": lambda: torch.randint(65536, (micro, WINDOW), device="cuda"),
        "tokend": lambda: session.fed(source),
    }
    seen = {name: [] for name in ways}
    for turn in range(pairs + 3):
        for name in sorted(ways, reverse=turn % 2 == 0):
            seen[name].append(seconds(ways[name]))
    seen = {name: times[3:] for name, times in seen.items()}  # the first ones warm up
    more = sorted(a / b - 1 for a, b in zip(seen["tokend"], seen["synthetic"], strict=True))
    # of 40: a 96 % confidence interval of the median
    low, high = more[pairs // 2 - 7], more[pairs // 2 + 6]
    info("step time", {name: f"{median(times) * 1e3:.3f} ms" for name, times in seen.items()})
    said = f"{median(more) * 100:+.3f} %, between {low * 100:+.3f} and {high * 100:+.3f}"
    ok("step time: at most 0.1 % more than with synthetic tokens", median(more) <= 0.001, said)
    session.close()


def check_loader(torch, daemon):
    """A loader returns the same batches on the GPU and on the CPU, and either can load the other's
    state.
    """
    from tokend import Loader

    masked = {"stream": "papers", "loss_mask": True}
    ways = {
        "plain": {},
        "documents, masks, provenance": {**masked, "documents": True, "provenance": True},
        "a slice": {**masked, "cp": (1, 2, "zigzag")},
        "int32": {"dtype": torch.int32},
        "transformed": {"transform": backwards},
    }
    for name, more in ways.items():
        keys = {"stream": "train", "micro_batch": 8, "rank": 0, "world": 1, **more}
        keys["socket"] = daemon.socket
        with Loader(**keys) as plain, Loader(**keys, device="cuda") as there:
            pairs = [(next(plain), next(there)) for _ in range(6)]
            there.load_state_dict(plain.state_dict())
            pairs += [(next(plain), next(there)) for _ in range(3)]
        bad = {key for a, b in pairs for key in a.keys() | b.keys() if not same(a[key], b[key])}
        ok(f"loader, {name}: as on the CPU", not bad, sorted(bad))
        on = {key for key, value in pairs[0][1].items() if getattr(value, "is_cuda", False)}
        needed = {"input_ids", "labels"} | ({"cu_seqlens"} if "documents" in keys else set())
        ok(f"loader, {name}: on the device", on >= needed, on)


def same(a, b):
    return a.equal(b.cpu()) if hasattr(a, "cpu") else a == b


def backwards(tokens, position, rng):
    return tokens[::-1].copy()
