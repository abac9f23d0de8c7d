"""Shards in an object store: what a window costs, what latency and faults do, and other loaders.

    build/venv/bin/python bench/run.py objects

Stores run on this machine: Ceph's radosgw, and nginx with TLS. A proxy between them and the loaders
adds latency and 503s, and counts GETs. Other loaders read the same tokens from the same store in
the same run, as MDS and as litData's chunks.
"""

import contextlib
import shutil
import statistics
import sys
import time

import loaders
from common import BIN, MICRO, PEERS, ROOT, SEQ, CannotRun, Daemon, fresh
from common import result, row, told, train_stream, write_tokens

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "build/python")]

from lib import Place  # noqa: E402
from lib.fault_proxy import Fault, FaultProxy  # noqa: E402
from lib.stores import Nginx, Radosgw  # noqa: E402

BUCKET, TOKENS, IN_FLIGHT = "tokens", 50_000_000, 128
# An eighth is for answers: a small part of the data.
MEMORY, ANSWERS_MIB = {"memory": 64 << 20}, 8
LATENCY, JITTER, SLOW_DOWN = 0.05, 0.1, 0.05  # seconds, seconds, share of 503s
SECONDS = 4  # of one measurement
RATE = 12.5  # batches per second of a trainer: 200,000 tokens/s
# Of Mosaic's and litData's shards: a dataset of 10^5 shards of 64 MB in small.
SHARD_BYTES = 1 << 20


def slow(proxy, least=LATENCY, jitter=JITTER, errors=0.0):
    """Every answer of the proxy takes a while; a share of them is 503."""

    def fault(_):
        return Fault(delay=least + proxy.random.random() * jitter)

    proxy.clear()
    if errors:
        down = Fault(delay=least, status=503, code="SlowDown")
        proxy.inject("503", down, times=1 << 60, probability=errors)
    if least or jitter:
        proxy.inject("slow", fault, times=1 << 60)


def environment(store, endpoint):
    """For all contestants: each has its own name for the endpoint."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
    more = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    return store.environment(**dict.fromkeys(names, endpoint), **more)


def remote(env, manifest, url, *options):
    """The stream of the shards at @url, whose manifest is written first."""
    command = [BIN / "tokctl", "manifest", "--json", *options, url, manifest]
    told(*command, env=env)
    return train_stream(url, manifest=str(manifest))


# ---- the CPU time of a window ----


def cost(what, directory, stream, env, args):
    """CPU µs of a window by GET, with a trainer that takes all it can get, and the daemon's MiB."""
    with Daemon(directory, stream, env, **MEMORY) as daemon:
        requests = lambda: daemon.status()[-1]["stores"][0]["requests"]
        costs = []
        for _ in range(args.rounds):
            cpu, gets = daemon.cpu(), requests()
            daemon.polite(SECONDS).wait()
            costs.append((daemon.cpu() - cpu) * 1e6 / (requests() - gets))
        memory = daemon.memory()
    row(f"CPU of a window by GET, {what}", f"{statistics.median(costs):.0f} µs")
    return statistics.median(costs), memory


def local_cost(directory, data):
    """CPU µs of the daemon per window, and its memory, from a local disk."""
    with Daemon(directory, train_stream(data), **MEMORY) as daemon:
        cpu, rate = daemon.cpu(), result(daemon.polite(SECONDS))["rate"]
        return (daemon.cpu() - cpu) * 1e6 / (rate * MICRO * SECONDS), daemon.memory()


def over_tls(place, directory, data, local, args):
    with Nginx(place, str(data.parent)) as nginx:
        env = nginx.environment(SSL_CERT_FILE=nginx.ca)
        url = f"{nginx.endpoint}/{data.name}/"
        told(BIN / "tokctl", "manifest", "--json", data, directory / "local.jsonl")
        stream = remote(env, directory / "tls.jsonl", url, "--from", directory / "local.jsonl")
        ours, memory = cost("TLS", directory / "tls", stream, env, args)
    row("CPU of 10⁹ tokens: window mode ÷ local", f"{ours / local[0]:.0f}", "wanted ≤ 60")
    most = 16 + 0.1 * IN_FLIGHT + ANSWERS_MIB
    what = f"RSS of the daemon with a store of {IN_FLIGHT} connections"
    row(what, f"+ {memory - local[1]:.0f} MiB", f"wanted ≤ + {most:.0f} MiB")


# ---- latency, faults, peers of a rank ----


def first_batch(directory, stream, env, number):
    """Seconds from the attach to the first batch of a daemon that has read nothing yet."""
    with Daemon(directory / str(number), stream, env) as daemon:
        return daemon.next(10**9 * (number + 1), 0)["first_ms"] / 1e3


def gets_of_peers(daemon, proxy, peers=8, rate=20, seconds=5):
    """GETs per window that 8 tensor-parallel peers of one rank take together."""
    begin, most = proxy.count(), 0
    trainers = [daemon.polite(seconds, peer, rate) for peer in range(peers)]
    while any(trainer.poll() is None for trainer in trainers):
        most = max([most, *(line.get("published", 0) for line in daemon.status())])
        time.sleep(0.2)
    return (proxy.count() - begin) / (most * MICRO)


# ---- next to other loaders ----


def fetched(proxy, sizes, since):
    """Bytes of the GETs of objects, as the clients asked for them."""
    total = 0
    for request in proxy.requests[since:]:
        key = request.path.removeprefix(f"/{BUCKET}/")
        if request.method == "GET" and key in sizes:
            total += request.range[1] if request.range else sizes[key]
    return total


def compare(name, directory, env, proxy, daemon):
    """A line of a loader: first batch, rate, bytes."""
    files = (directory / "objects" / name).iterdir()
    sizes = {f"{name}/{path.name}": path.stat().st_size for path in files}
    since = len(proxy.requests)
    about = {"loader": name, "file": directory / f"cache-{name}/tokens", "workers": 1}
    about |= {"remote": f"s3://{BUCKET}/{name}/", "socket": daemon.socket, "seconds": SECONDS}
    python = sys.executable if name == "tokend" else PEERS
    try:
        found = fresh(loaders.__file__, "rate", python, env=env, **about)
    except CannotRun as why:
        print(f"  {name:<8} cannot run: {why}")
        return
    read = fetched(proxy, sizes, since) / (2 * found["taken"])
    print(
        f"  {name:<8} first batch {found['first']:5.2f} s, {found['rate'] / 1e6:5.2f} M tokens/s, "
        f"bytes fetched ÷ used {read:5.2f}"
    )


def with_latency(directory, store):
    with FaultProxy(store.port) as proxy:
        env = environment(store, proxy.endpoint)
        stream = remote(env, directory / "s3.jsonl", f"s3://{BUCKET}/tokend/")
        slow(proxy, LATENCY, 0)
        firsts = [first_batch(directory, stream, env, number) for number in range(5)]
        ms = f"{1e3 * LATENCY:.0f}"
        first = statistics.median(firsts)
        row(f"attach → first batch, answers after {ms} ms", f"{1e3 * first:.0f} ms", "≤ 170 ms")
        with Daemon(directory / "paced", stream, env) as daemon:
            paced = (10, 0, RATE, 64 // MICRO)  # 64 windows ahead
            slow(proxy, 0, 0)
            without = result(daemon.polite(*paced))["rate"]
            slow(proxy, errors=SLOW_DOWN)
            ratio = result(daemon.polite(*paced))["rate"] / without
        row("tokens/s at 50 to 150 ms, 5 % of 503 ÷ without", f"{ratio:.2f}", "wanted ≥ 0.95")
        slow(proxy, 0, 0)
        with Daemon(directory / "peers", stream, env) as daemon:
            gets = gets_of_peers(daemon, proxy)
        row("GETs ÷ windows, 8 tensor-parallel peers", f"{gets:.3f}", "wanted ≤ 1.01")
        print(
            "\nA store with 50 to 150 ms before each answer; shards of 1 MiB for the others, "
            f"{TOKENS / 1e6:.0f} M tokens"
        )
        slow(proxy)
        for name in ("tokend", "mosaic", "litdata"):
            with Daemon(directory / "others", stream, env) as daemon:
                compare(name, directory, env, proxy, daemon)
    return {"object_first_s": first, "object_faults": ratio, "object_gets": gets}


# ---- all of it ----


def objects(directory, args):
    """Figures of each store; none is a goal of goals.py."""
    directory = directory / "objects"
    data = directory / "served/tokens"
    data.mkdir(parents=True)
    write_tokens(data / "a.bin", TOKENS)
    for name in ("mosaic", "litdata"):
        about = {"file": data / "a.bin", "shard_bytes": SHARD_BYTES}
        fresh(loaders.__file__, f"write_{name}", PEERS, 240, **about)
    shutil.move(data / "contest", directory / "objects")
    (directory / "objects/tokend").symlink_to(data)
    print(f"\nShards in an object store on this machine, windows of {SEQ + 1} tokens")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(Place())
        local = local_cost(directory / "local", data)
        over_tls(place, directory, data, local, args)
        store = stack.enter_context(Radosgw(place))
        for name in ("tokend", "mosaic", "litdata"):
            store.upload(BUCKET, directory / "objects" / name, f"{name}/")
        env = environment(store, store.endpoint)
        stream = remote(env, directory / "rgw.jsonl", f"s3://{BUCKET}/tokend/")
        cost("signed", directory / "rgw", stream, env, args)
        return with_latency(directory, store)
