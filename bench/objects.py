"""Shards in an object store: what a window costs, what latency and faults do, and other loaders.

    build/venv/bin/python bench/objects.py

Stores run on this machine: Ceph's radosgw, and nginx with TLS. A proxy between them and the loaders
adds latency and 503s, counts GETs, and is away for some seconds. Other loaders read the same
tokens from the same store in the same run, as MDS and as litData's chunks.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import (
    BATCH_TOKENS,
    BIN,
    MICRO,
    ROOT,
    SEQ,
    WIN,
    Daemon,
    cpu_of,
    row,
    rss,
    train_stream,
    write_tokens,
)

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "build/python")]

from lib import Place  # noqa: E402
from lib.fault_proxy import Fault, FaultProxy  # noqa: E402
from lib.stores import Nginx, Radosgw  # noqa: E402

PEERS = ROOT / "build/trainers/peers/bin/python"
BUCKET, TOKENS, IN_FLIGHT = "tokens", 50_000_000, 128
MEMORY, ANSWERS_MIB = "memory: 64MiB\n", 8  # an eighth is for answers: a small part of the data
LATENCY, JITTER, SLOW_DOWN = 0.05, 0.1, 0.05  # seconds, seconds, share of 503s
PACE = 0.08  # seconds between two batches of a trainer: 200,000 tokens/s
AWAY = 5, 30  # the store is away: after and for so many seconds


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


def remote_stream(url, manifest):
    return (
        f"  train:\n    seed: 42\n    seq_len: {SEQ}\n    datasets:\n"
        f'      - {{name: web, path: "{url}", manifest: {manifest}}}\n'
    )


def inspect(env, manifest, *words):
    command = [BIN / "tokctl", "inspect", "--manifest", manifest, *words]
    subprocess.run([str(word) for word in command], check=True, env=env, capture_output=True)


def environment(store, endpoint):
    """For all contestants: each has its own name for the endpoint."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
    return store.environment(
        **dict.fromkeys(names, endpoint), AWS_DEFAULT_REGION="us-east-1", AWS_ALLOW_HTTP="true"
    )


@contextlib.contextmanager
def serving(directory, streams, env=None, extra=""):
    directory.mkdir(parents=True, exist_ok=True)
    with Daemon(directory, streams, extra, env) as daemon:
        yield daemon.wait()


def store_of(daemon):
    out = subprocess.run(
        [BIN / "tokctl", "status", "--json", "--socket", daemon.socket],
        check=True,
        capture_output=True,
    )
    return json.loads(out.stdout.splitlines()[-1])["stores"][0]


def polite(daemon, seconds, *more):
    command = [BIN / "bench-polite", daemon.socket, "train", seconds, *more]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE)


# ---- the CPU time of a window ----


def get_cost(url, env, seconds):
    command = [BIN / "bench-get", url, 2 * WIN, IN_FLIGHT, seconds]
    out = subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, env=env
    ).stdout
    return json.loads(out)["cpu_us"]


def window_cost(daemon, seconds):
    """CPU µs of the daemon per GET, with a trainer that takes all it can get."""
    cpu, gets = cpu_of(daemon.process.pid), store_of(daemon)["requests"]
    polite(daemon, seconds).wait()
    return (cpu_of(daemon.process.pid) - cpu) * 1e6 / (store_of(daemon)["requests"] - gets)


def cost(what, directory, url, get_url, env, manifest, args):
    with serving(directory, remote_stream(url, manifest), env, MEMORY) as daemon:
        rounds = [
            (window_cost(daemon, args.seconds), get_cost(get_url, env, args.seconds))
            for _ in range(args.rounds)
        ]
        memory = rss(daemon)
    ours, base = (statistics.median(part) for part in zip(*rounds))
    row(f"CPU of a window by GET, {what}: daemon, bench-get", f"{ours:.0f}, {base:.0f} µs", "")
    row(f"… ÷ bench-get, {what}", f"{ours / base:.2f}", "at most 1.25")
    return ours, memory


def local_cost(directory, data, args):
    """CPU µs of the daemon per window, and its memory, from a local disk."""
    with serving(directory, train_stream(data), extra=MEMORY) as daemon:
        cpu, trainer = cpu_of(daemon.process.pid), polite(daemon, args.seconds)
        rate = json.loads(trainer.communicate()[0])["rate"]
        cpu = cpu_of(daemon.process.pid) - cpu
        return cpu * 1e6 / (rate * MICRO * args.seconds), rss(daemon)


# ---- latency, faults, peers of a rank ----


def loader(daemon, run, **keys):
    from tokend import Loader

    return Loader("train", MICRO, run=run, socket=daemon.socket, tokens=True, **keys)


def first_batch(directory, stream, env, number):
    """Seconds from the attach to the first batch of a daemon that has read nothing yet."""
    with serving(directory / str(number), stream, env) as daemon:
        begin = time.monotonic()
        batches = loader(daemon, f"first-{number}", start=10**9 * (number + 1))
        next(batches)
        took = time.monotonic() - begin
        batches.close()
        return took


def paced(daemon, run, start, seconds):
    """Tokens per second of a trainer that takes a batch every PACE seconds, 64 windows ahead."""
    batches, taken = loader(daemon, run, start=start, slots=64 // MICRO), 0
    next(batches)
    begin = due = time.monotonic()
    while time.monotonic() - begin < seconds:
        next(batches)
        taken += 1
        due += PACE
        time.sleep(max(0.0, due - time.monotonic()))
    batches.close()
    return taken * BATCH_TOKENS / (time.monotonic() - begin)


def gets_of_peers(daemon, proxy, peers=8, rate=20, seconds=5):
    """GETs per window that 8 tensor-parallel peers of one rank take together."""
    begin = proxy.count()
    trainers = [polite(daemon, seconds, peer, rate) for peer in range(peers)]
    most = 0
    while any(trainer.poll() is None for trainer in trainers):
        out = subprocess.run(
            [BIN / "tokctl", "status", "--json", "--socket", daemon.socket],
            check=True,
            capture_output=True,
        )
        published = [json.loads(line).get("published", 0) for line in out.stdout.splitlines()]
        most = max([most, *published])
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


def contestant(name, directory, env, *words):
    cache = directory / f"cache-{name}"
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable if name == "tokend" else PEERS, ROOT / "bench/object_peers.py", name]
    command += ["--remote", f"s3://{BUCKET}/{name}/", "--cache", cache, *words]
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        text=True,
        start_new_session=True,
    )


def first_of(process):
    line = process.stdout.readline()
    return float(line.split()[1]) if line.startswith("first") else None


def result_of(process):
    lines = process.stdout.read().splitlines()
    process.wait()
    return json.loads(lines[-1]) if lines else {"error": f"exit status {process.returncode}"}


def compare(name, directory, env, proxy, sizes, daemon, args):
    """A line per loader: first batch, rate, bytes, and what a store that is away does."""
    socket = ["--socket", daemon.socket]
    slow(proxy)
    since = len(proxy.requests)
    process = contestant(name, directory, env, *socket, "--seconds", args.seconds, "--run", "rate")
    first, result = first_of(process), result_of(process)
    read = fetched(proxy, sizes, since)
    used = (result.get("batches", 0) + 1) * MICRO * WIN * 2
    print(
        f"  {name:<8} first batch {first or float('nan'):5.2f} s, "
        f"{result.get('rate', 0) / 1e6:5.2f} M tokens/s, "
        f"bytes fetched ÷ used {read / used:5.2f}  {result['error'] or ''}"
    )
    seconds = sum(AWAY) + 15
    process = contestant(
        name, directory, env, *socket, "--seconds", seconds, "--run", "away", "--pace", PACE,
        "--start", 10**6,
    )  # fmt: skip
    first_of(process)
    time.sleep(AWAY[0])
    proxy.refuse()
    time.sleep(AWAY[1])
    proxy.listen()
    result = result_of(process)
    ended = f"ended: {result['error']}" if result["error"] else "continued"
    print(
        f"  {'':<8} store away for {AWAY[1]} s: {ended}; "
        f"{result.get('batches', 0)} batches in {result.get('seconds', 0):.0f} s, longest wait "
        f"{result.get('longest', 0):.1f} s"
    )


def write_for(name, data, to):
    to.mkdir()
    command = [PEERS, ROOT / "bench/object_peers.py", name, "--file", data, "--cache", to]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


# ---- all of it ----


def over_tls(place, directory, data, args):
    nginx = Nginx(place, str(directory / "served"))
    with nginx:
        env = nginx.environment(SSL_CERT_FILE=nginx.ca)
        url = f"{nginx.endpoint}/tokens/"
        inspect(env, directory / "local.jsonl", data)
        inspect(env, directory / "tls.jsonl", "--from", directory / "local.jsonl", url)
        return cost("TLS", directory / "tls", url, url + "a.bin", env, "../tls.jsonl", args)


def with_latency(directory, store, args):
    url = f"s3://{BUCKET}/tokend/"
    with FaultProxy(store.port) as proxy:
        env = environment(store, proxy.endpoint)
        inspect(env, directory / "s3.jsonl", url)
        stream = remote_stream(url, "../s3.jsonl")
        slow(proxy, LATENCY, 0)
        firsts = [first_batch(directory, stream, env, number) for number in range(5)]
        row(
            f"attach to first batch, answers (not handshakes) after {1e3 * LATENCY:.0f} ms",
            f"{1e3 * statistics.median(firsts):.0f} ms",
            f"at most {3e3 * LATENCY + 20:.0f} ms",
        )
        with serving(directory / "paced", stream, env) as daemon:
            slow(proxy, 0, 0)
            without = paced(daemon, "without", 0, 10)
            slow(proxy, errors=SLOW_DOWN)
            ratio = paced(daemon, "with", 10**6, 10) / without
            row("tokens/s at 50 to 150 ms, 5 % of 503 ÷ without", f"{ratio:.2f}", "at least 0.95")
        slow(proxy, 0, 0)
        with serving(directory / "peers", stream, env) as daemon:
            gets = gets_of_peers(daemon, proxy)
            row("GETs ÷ windows, 8 tensor-parallel peers", f"{gets:.3f}", "at most 1.01")
        print(
            "\nA store with 50 to 150 ms before each answer; shards of 1 MiB for the others, "
            f"{TOKENS / 1e6:.0f} M tokens"
        )
        for name in ("tokend", "mosaic", "litdata"):
            sizes = {
                f"{name}/{path.name}": path.stat().st_size
                for path in (directory / "objects" / name).iterdir()
            }
            with serving(directory / "others", stream, env) as daemon:
                compare(name, directory, env, proxy, sizes, daemon, args)


def objects(directory, args):
    directory = directory / "objects"
    directory.mkdir(parents=True, exist_ok=True)
    served = directory / "served/tokens"
    served.mkdir(parents=True)
    data = served / "a.bin"
    write_tokens(data, TOKENS)
    (directory / "objects").mkdir()
    (directory / "objects/tokend").symlink_to(served)
    for name in ("mosaic", "litdata"):
        write_for(name, data, directory / "objects" / name)
    print("\nShards in an object store on this machine")
    with Place() as place:
        local_us, local_memory = local_cost(directory / "local", served, args)
        ours_us, memory = over_tls(place, directory, served, args)
        row("CPU of 10⁹ tokens: window mode ÷ local", f"{ours_us / local_us:.0f}", "at most 60")
        more = memory - local_memory
        row(
            f"RSS of the daemon with a store of {IN_FLIGHT} connections",
            f"+ {more:.0f} MiB",
            f"at most + {16 + 0.1 * IN_FLIGHT + ANSWERS_MIB:.0f} MiB, {ANSWERS_MIB} for answers",
        )
        with Radosgw(place) as store:
            for name in ("tokend", "mosaic", "litdata"):
                store.upload(BUCKET, directory / "objects" / name, f"{name}/")
            env = environment(store, store.endpoint)
            url = f"s3://{BUCKET}/tokend/"
            inspect(env, directory / "rgw.jsonl", url)
            get_url = f"{store.endpoint}/{BUCKET}/tokend/a.bin"
            cost("signed", directory / "rgw", url, get_url, env, "../rgw.jsonl", args)
            with_latency(directory, store, args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    scratch = Path(tempfile.mkdtemp(prefix="tokend-bench-"))
    try:
        objects(scratch, parser.parse_args())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
