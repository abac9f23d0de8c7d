#!/usr/bin/env python3
"""What tokend costs, beside torch's DataLoader over numpy.memmap, in one run on this machine.

Only ratios are meant to be quoted: machines differ, and this one may be busy. Every figure is the median of ROUNDS rounds in
which the contestants take turns. Nothing here is a test; it asserts nothing but that the tokens are there.

    make bench                        all of it (about eight minutes)
    build/venv/bin/python bench/run.py --tokens 100000000 --rounds 3
"""

import argparse, concurrent.futures, json, os, resource, shutil, signal, statistics, subprocess, sys, tempfile, time
from pathlib import Path

import neighbours

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("TOKEND_BIN", ROOT / "build/bin"))
sys.path.insert(0, str(ROOT / "build/python"))
SEQ, MICRO = 2048, 8
WIN = SEQ + 1
BATCH_TOKENS = MICRO * WIN


def cpu_of(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        l.split(":")[0]: int(l.split()[1]) / 1024
        for l in lines
        if l.startswith(("VmRSS", "RssAnon", "RssShmem", "RssFile"))
    }


class Daemon:
    def __init__(self, directory, streams, extra=""):
        self.dir = Path(directory)
        self.socket = self.dir / "s.sock"
        self.config = self.dir / "tokend.yaml"
        self.config.write_text(
            f"socket: {self.socket}\nstate_dir: {self.dir}/state\n{extra}streams:\n{streams}"
        )
        self.process = None

    def __enter__(self):
        self.process = subprocess.Popen(
            [BIN / "tokend", "-c", self.config], stderr=subprocess.DEVNULL
        )
        return self

    def wait(self):
        for _ in range(2000):
            if (
                subprocess.run(
                    [BIN / "tokctl", "status", "--socket", self.socket], capture_output=True
                ).returncode
                == 0
            ):
                return self
            time.sleep(0.005)
        raise SystemExit("bench: the daemon did not start")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def next_from_c(daemon, stream, position, batches):
    out = subprocess.run(
        [BIN / "bench-next", daemon.socket, stream, str(position), str(batches)],
        check=True,
        capture_output=True,
    )
    return json.loads(out.stdout)


# ---- the contestants: each is a fresh process, so that CPU and memory are its own ----


def measure(batches, seconds, workers_cpu=lambda: 0.0):
    """Drains @batches for @seconds after a warm-up; int64 tensors [8, 2049] in the trainer's hands."""
    for _ in range(64):
        tokens = next(batches)
    assert str(tokens.dtype) == "torch.int64" and tuple(tokens.shape) == (MICRO, WIN)
    n, begin, thread, other = 0, time.monotonic(), time.thread_time(), workers_cpu()
    while time.monotonic() - begin < seconds:
        for _ in range(16):
            next(batches)
        n += 16
    wall, thread, other = (
        time.monotonic() - begin,
        time.thread_time() - thread,
        workers_cpu() - other,
    )
    total = n * BATCH_TOKENS
    return {
        "rate": total / wall,
        "thread_cpu": thread / total * 1e9,
        "all_cpu": (thread + other) / total * 1e9,
    }


def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(
            int(line.split()[1])
            for line in file
            if line.startswith(("Private_Clean", "Private_Dirty"))
        )


def contest_tokend(args):
    import torch

    torch.set_num_threads(1)
    begin = time.perf_counter()
    from tokend import Loader

    imported, before = time.perf_counter() - begin, private_bytes()
    loader = Loader("train", micro_batch=MICRO, socket=args.socket, tokens=True)
    result = measure(
        (batch["tokens"] for batch in loader), args.seconds, lambda: cpu_of(args.daemon)
    )
    result["import_ms"], result["private"] = 1e3 * imported, private_bytes() - before

    def ready(loader):  # a ready ring: let it fill, take a few, time those
        times = []
        for _ in range(100):
            time.sleep(0.003)
            for _ in range(16):
                begin = time.perf_counter()
                next(loader)
                times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e6

    result["ready_us"] = ready(loader)
    with Loader(
        "train", micro_batch=MICRO, socket=args.socket, run="pair"
    ) as pair:  # input_ids and labels
        result["pair_us"] = ready(pair)
    next_into = loader._client.next_into
    loader._batches._next_into = lambda tokens, *more: next_into(0, *more)  # all of it but the copy
    result["beyond_us"] = ready(loader)
    result["lost_wakes"] = loader.stats()["lost_wakes"]
    loader.close()
    return result


def contest_memmap(args):
    import numpy, torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)

    class Windows(Dataset):
        def __init__(self):
            self.tokens = numpy.memmap(args.file, dtype="<u2", mode="r")

        def __len__(self):
            return (len(self.tokens) - WIN) // SEQ + 1

        def __getitem__(self, i):
            return torch.from_numpy(self.tokens[i * SEQ : i * SEQ + WIN].astype(numpy.int64))

    loader = DataLoader(
        Windows(), batch_size=MICRO, shuffle=True, num_workers=args.workers, drop_last=True
    )

    def forever():
        while True:
            yield from loader

    def workers():
        me = os.getpid()
        mine = resource.getrusage(resource.RUSAGE_SELF)
        pids = [int(p) for p in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
        # threads of this process other than the trainer's are the loader's too (pin, queues)
        return sum(cpu_of(p) for p in pids) + mine.ru_utime + mine.ru_stime - time.thread_time()

    return measure(forever(), args.seconds, workers)


def busy(tokens, position, rng):
    """A transform of 2 ms of a core."""
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        pass
    return tokens


def contest_transform(args):
    from tokend import Loader

    with Loader(
        "train", micro_batch=MICRO, socket=args.socket, transform=busy, workers=args.workers
    ) as loader:
        for _ in range(8 * args.workers):  # what they are ahead by now
            next(loader)
        begin, batches = time.monotonic(), 0
        while time.monotonic() - begin < args.seconds or batches % args.workers:
            next(loader)
            batches += 1
        return {"rate": batches / (time.monotonic() - begin)}


def contest_control(args):
    """One of two processes with steps of 10 ms: what control() with nothing to do takes of a step."""
    import torch
    import torch.distributed as distributed
    from tokend import Loader

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{args.file}", rank=args.rank, world_size=2
    )
    loader, noise, times = (
        Loader("train", micro_batch=MICRO, socket=args.socket),
        torch.rand(256, 256),
        [],
    )
    for _ in range(850):
        next(loader)
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            noise @ noise
        begin = time.perf_counter()
        loader.control()
        times.append(time.perf_counter() - begin)
    loader.close()
    distributed.destroy_process_group()
    times = sorted(times[50:])[:-8]  # the slowest hundredth is when another process had the CPU
    return {"mean_us": statistics.mean(times) * 1e6, "median_us": statistics.median(times) * 1e6}


def contest(name, **args):
    command = [sys.executable, __file__, "--contest", name] + [
        f"--{k}={v}" for k, v in args.items()
    ]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]
    )


# ---- the report ----


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def row(what, value, wanted):
    print(f"  {what:<66} {value:>14}   {wanted}")


def write_tokens(path, tokens):
    import numpy

    random = numpy.random.default_rng(1)
    with open(path, "wb") as file:
        while tokens > 0:
            n = min(tokens, 20_000_000)
            random.integers(0, 50257, n, dtype=numpy.uint16).tofile(file)
            tokens -= n


def throughput(directory, args):
    path = directory / "tokens.bin"
    write_tokens(path, args.tokens)
    streams = f"  train:\n    seed: 42\n    seq_len: {SEQ}\n    datasets:\n      - {{name: web, path: tokens.bin}}\n"
    rounds = {"tokend": [], "memmap0": [], "memmap2": [], "c": []}
    for io in ("uring", "pread"):
        rounds[io] = []
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        for _ in range(args.rounds):
            rounds["tokend"].append(
                contest(
                    "tokend", socket=daemon.socket, daemon=daemon.process.pid, seconds=args.seconds
                )
            )
            rounds["memmap0"].append(contest("memmap", file=path, workers=0, seconds=args.seconds))
            rounds["memmap2"].append(contest("memmap", file=path, workers=2, seconds=args.seconds))
            rounds["c"].append(next_from_c(daemon, "train", 0, 20000))
    for _ in range(args.rounds):
        for io in ("uring", "pread"):
            with Daemon(directory, streams, f"io: {io}\n") as daemon:
                daemon.wait()
                rounds[io].append(next_from_c(daemon, "train", 0, 20000))
    t, m0, m2 = rounds["tokend"], rounds["memmap0"], rounds["memmap2"]
    print(
        f"\nOne trainer, {args.tokens / 1e6:.0f} M u16 tokens in the page cache, int64 tensors of {MICRO}×{WIN}"
    )
    print(
        f"  {'':<34}{'M tokens/s':>12}{'trainer CPU s':>16}{'all CPU s':>12}   (CPU per 10⁹ tokens)"
    )
    for name, r in (
        ("tokend", t),
        ("DataLoader over memmap, 0 workers", m0),
        ("DataLoader over memmap, 2 workers", m2),
    ):
        print(
            f"  {name:<34}{median(r, 'rate') / 1e6:>12.1f}{median(r, 'thread_cpu'):>16.2f}{median(r, 'all_cpu'):>12.2f}"
        )
    print()
    row(
        "tokens/s ÷ DataLoader with 0 workers",
        f"{median(t, 'rate') / median(m0, 'rate'):.2f}",
        "wanted ≥ 2",
    )
    row(
        "tokens/s ÷ DataLoader with 2 workers",
        f"{median(t, 'rate') / median(m2, 'rate'):.1f}",
        "wanted ≥ 20",
    )
    row(
        "CPU of the trainer's thread ÷ DataLoader with 0 workers",
        f"{median(t, 'thread_cpu') / median(m0, 'thread_cpu'):.3f}",
        "wanted ≤ 0.33",
    )
    row(
        "CPU of all processes ÷ DataLoader with 2 workers",
        f"{median(t, 'all_cpu') / median(m2, 'all_cpu'):.3f}",
        "wanted ≤ 0.1",
    )
    row(
        "ready next() in C, p50, clock included",
        f"{median(rounds['c'], 'ready_ns'):.0f} ns",
        "wanted ≤ 200 ns",
    )
    row(
        "ready next() in Python to torch int64, p50: input_ids and labels",
        f"{median(t, 'pair_us'):.1f} µs",
        "wanted ≤ 20 µs",
    )
    row("the same, tokens=True", f"{median(t, 'ready_us'):.1f} µs", "wanted ≤ 20 µs")
    row(
        "input_ids and labels ÷ tokens=True",
        f"{median(t, 'pair_us') / median(t, 'ready_us'):.2f}",
        "wanted ≤ 1.5",
    )
    row("  of it: all but the widening copy", f"{median(t, 'beyond_us'):.1f} µs", "wanted ≤ 5 µs")
    row("import tokend, beside torch", f"{median(t, 'import_ms'):.0f} ms", "wanted ≤ 50 ms")
    row("private memory of a loader", f"{median(t, 'private') / 2**20:.1f} MiB", "wanted ≤ 8 MiB")
    row(
        "tokens/s in C, pread pool ÷ io_uring",
        f"{median(rounds['pread'], 'tokens_s') / median(rounds['uring'], 'tokens_s'):.2f}",
        "",
    )
    row("lost wake-ups", str(max(r["lost_wakes"] for r in t + rounds["c"])), "wanted 0")


def transforms(directory, args):
    streams = f"  train:\n    seed: 42\n    seq_len: {SEQ}\n    datasets:\n      - {{name: web, path: tokens.bin}}\n"
    cores = len(os.sched_getaffinity(0))
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        rates = {1: [], cores: []}
        for n in sorted(rates) * args.rounds:
            rates[n].append(
                contest("transform", socket=daemon.socket, workers=n, seconds=args.seconds)
            )
    each = {n: median(rates[n], "rate") / n for n in rates}
    print(f"\nA transform of 2 ms a row, {cores} cores")
    row(
        f"rows/s of {cores} workers ÷ {cores} × those of one",
        f"{each[cores] / each[1]:.2f}",
        "wanted ≥ 0.8",
    )


def control(directory, args):
    streams = f"  train:\n    seed: 42\n    seq_len: {SEQ}\n    datasets:\n      - {{name: web, path: tokens.bin}}\n"
    rounds = []
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        for i in range(args.rounds):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                ranks = [
                    pool.submit(
                        contest,
                        "control",
                        socket=daemon.socket,
                        file=directory / f"meet{i}",
                        rank=rank,
                    )
                    for rank in range(2)
                ]
                rounds += [rank.result() for rank in ranks]
    print("\nAn operator's requests, 2 ranks, steps of 10 ms")
    row(
        "loader.control() with nothing to do, mean over the steps",
        f"{median(rounds, 'mean_us'):.0f} µs",
        "wanted ≤ 50 µs",
    )
    row(
        "  p50, as few steps launch or read an all-reduce",
        f"{median(rounds, 'median_us'):.0f} µs",
        "",
    )


def start_up(directory, args):
    sparse = directory / "sparse.bin"
    tokens = 10**12
    with open(sparse, "wb") as file:
        file.truncate(2 * tokens)
    windows = (tokens - WIN) // SEQ + 1
    streams = f"  train:\n    seed: 42\n    seq_len: {SEQ}\n    datasets:\n      - {{name: web, path: sparse.bin}}\n"
    first = {}
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        next_from_c(daemon, "train", 0, 0)
        for _ in range(20):
            for name, position in (
                ("0", 0),
                ("middle", windows // 2),
                ("end", windows - 8),
                ("2^62", 2**62),
            ):
                first.setdefault(name, []).append(
                    next_from_c(daemon, "train", position, 0)["first_ms"]
                )
        memory = memory_of(daemon.process.pid)
    cold = []
    for _ in range(10):
        begin = time.monotonic()
        with Daemon(directory, streams) as daemon:
            next_from_c(daemon, "train", 0, 0)
            cold.append((time.monotonic() - begin) * 1e3)
    base = statistics.median(first["0"])
    print("\nStart-up on one dataset of 10¹² tokens (a sparse file)")
    row("attach → first batch at position 0", f"{base:.2f} ms", "wanted ≤ 20 ms")
    for name in ("middle", "end", "2^62"):
        row(f"  at {name} ÷ at 0", f"{statistics.median(first[name]) / base:.2f}", "wanted ≤ 1.2")
    row(
        "tokend exec → first batch (processes included)",
        f"{statistics.median(cold):.0f} ms",
        "wanted ≤ 100 ms",
    )
    private = memory["VmRSS"] - memory["RssShmem"]
    row("daemon's RSS beside rings", f"{private:.1f} MiB", "wanted ≤ 16 MiB + 64 B a shard")


def order(args):
    """What a position costs. CPU time, and yardsticks of the same run: machines differ, and so do their hours."""
    result = json.loads(
        subprocess.run([BIN / "bench-order"], check=True, capture_output=True).stdout
    )
    far = result["far_read_ns"]
    names = {
        "one": "one dataset",
        "mix8": "8 datasets",
        "mix8_block": "8 datasets in blocks",
        "mix8_slide": "8 datasets that slide",
        "mix1000": "1,000 datasets",
        "shards_1e6": "one dataset of 10⁶ shards",
        "mix8_shards_1e6": "8 datasets of 10⁶ shards in all, sliding",
    }
    print(
        f"\nPosition → window, and → shard and offset; a read past all caches: {far:.0f} ns, a division: {result['division_ns']:.1f} ns"
    )
    for key, name in names.items():
        window, token = result[key]["window_ns"], result[key]["token_ns"]
        row(
            name,
            f"{window:.0f} → {token:.0f} ns",
            f"{window / far:.2f} → {token / far:.2f} such reads; wanted ≤ 300 ns to the window",
        )


def rss(daemon):
    memory = memory_of(daemon.process.pid)
    return memory["VmRSS"] - memory["RssShmem"]


def opened(directory, streams):
    """Seconds and MiB from exec to the first session, of a daemon with these shards."""
    begin = time.monotonic()
    with Daemon(directory, streams) as daemon:
        out = subprocess.run(
            [BIN / "bench-next", daemon.socket, "train", "0", "0"], capture_output=True
        )
        while out.returncode:  # its patience is shorter than this may take
            if daemon.process.poll() is not None or time.monotonic() - begin > 600:
                raise SystemExit(f"bench: {out.stderr.decode()}")
            out = subprocess.run(
                [BIN / "bench-next", daemon.socket, "train", "0", "0"], capture_output=True
            )
        return time.monotonic() - begin, rss(daemon)


def small_shards(directory, count):
    directory.mkdir(parents=True)
    at = os.open(directory, os.O_RDONLY)
    for s in range(count):
        file = os.open(f"{s:07}.bin", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=at)
        os.truncate(file, 64)
        os.close(file)
    os.close(at)
    os.sync()


def opening(directory, args):
    """Small shards and many datasets, warm: the files were made a moment ago."""
    small_shards(directory / "many", args.shards)
    for d in range(1000):
        small_shards(directory / f"sets/{d}", 1)
    stream = "  train:\n    seed: 42\n    seq_len: 8\n    datasets:\n"
    least = opened(directory, stream + "      - {name: d0, path: sets/0}\n")
    many = min(opened(directory, stream + "      - {name: web, path: many}\n") for _ in range(3))
    sets = opened(
        directory,
        stream + "".join(f"      - {{name: d{d}, path: sets/{d}}}\n" for d in range(1000)),
    )
    print("\nOpening, files in the page cache")
    each = (many[0] - least[0]) / args.shards * 1e6
    row(
        f"exec → first batch, one dataset of {args.shards} shards",
        f"{many[0]:.2f} s",
        f"{each:.1f} µs a shard",
    )
    row(
        "  daemon's memory a shard, names of 12 bytes included",
        f"{(many[1] - least[1]) * 2**20 / args.shards:.0f} B",
        "wanted ≤ 64 B",
    )
    row(
        "exec → first batch, 1,000 datasets in one mix",
        f"{sets[0] * 1e3:.0f} ms",
        f"one dataset: {least[0] * 1e3:.0f} ms",
    )
    shutil.rmtree(directory / "many")


def hundred_t(directory, args):
    """10,000 sparse shards of 10 G tokens: does it matter where one is?"""
    win, shards, tokens = 4097, 10_000, 10**10
    (directory / "sparse").mkdir()
    for s in range(shards):
        with open(directory / f"sparse/{s:05}.bin", "wb") as file:
            file.truncate(4 * tokens)
    every = shards * ((tokens - win) // 4096 + 1)
    places = {"0": 0, "middle": every // 2, "end": every - 64, "2^62": 2**62}
    costs = {
        what: {name: [] for name in places}
        for what in ("tokctl plan", "tokctl when", "attach → first batch")
    }
    streams = "  train:\n    seed: 42\n    seq_len: 4096\n    datasets:\n      - {name: web, path: sparse, dtype: u32}\n"
    with Daemon(directory, streams) as daemon:
        daemon.wait()
        before = rss(daemon)
        for _ in range(15):
            for name, position in places.items():
                begin = time.monotonic()
                plan = [
                    BIN / "tokctl",
                    "plan",
                    "-c",
                    daemon.config,
                    "train",
                    "--from",
                    str(position),
                    "--count",
                    "1",
                    "--json",
                ]
                at = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
                costs["tokctl plan"][name].append((time.monotonic() - begin) * 1e3)
                begin = time.monotonic()
                when = [
                    BIN / "tokctl",
                    "when",
                    "-c",
                    daemon.config,
                    "train",
                    "--dataset",
                    "web",
                    "--shard",
                    at["shard"],
                    "--offset",
                    str(at["offset"] + 1),
                    "--epoch",
                    str(at["epoch"]),
                    "--json",
                ]
                subprocess.run(when, check=True, capture_output=True)
                costs["tokctl when"][name].append((time.monotonic() - begin) * 1e3)
                costs["attach → first batch"][name].append(
                    next_from_c(daemon, "train", position, 0)["first_ms"]
                )
        after = rss(daemon)
        for _ in range(15):
            for position in places.values():
                next_from_c(daemon, "train", position + 10**6, 0)
        last = rss(daemon)
    print("\n100 T tokens: 10,000 sparse shards of 10 G u32 tokens")
    for what, cost in costs.items():
        base = statistics.median(cost["0"])
        ratios = ", ".join(
            f"{name} {statistics.median(cost[name]) / base:.2f}" for name in places if name != "0"
        )
        row(f"{what} at position 0; elsewhere ÷ that", f"{base:.2f} ms", f"{ratios}; wanted ≤ 1.2")
    row(
        "daemon's RSS beside rings: opened, after 60 sessions, after 120",
        f"{before:.1f} {after:.1f} {last:.1f} MiB",
        "wanted flat",
    )


def mds_shard(path, tokens):
    """A sample a window, as llm-foundry's writer lays them out: their tokens are not aligned."""
    import numpy

    samples = numpy.zeros(
        len(tokens) // WIN, [("bytes", "<u4"), ("shape", "u1", 3), ("tokens", "<u2", WIN)]
    )
    samples["bytes"], samples["shape"], samples["tokens"] = (
        3 + 2 * WIN,
        [5, WIN % 256, WIN // 256],
        tokens.reshape(-1, WIN),
    )
    about = {
        "column_encodings": ["ndarray:uint16"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
    config, count = json.dumps(about).encode(), len(samples)
    offsets = 8 + 4 * count + len(config) + samples.itemsize * numpy.arange(count + 1)
    path.write_bytes(numpy.array([count, *offsets], "<u4").tobytes() + config + samples.tobytes())
    raw = {"basename": path.name, "bytes": path.stat().st_size, "hashes": {}}
    shard = {**about, "raw_data": raw, "zip_data": None, "samples": count}
    (path.parent / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))


def write_formats(directory, count):
    """The same tokens in each, as compressible as text is; directories by their formats."""
    import numpy, pyarrow

    tokens = numpy.resize(
        (50257 ** numpy.random.default_rng(1).random(10_000_000)).astype("<u2"), count // WIN * WIN
    )
    for name in ("flat", "npy", "llmc", "datatrove", "arrow", "mds"):
        (directory / name).mkdir(parents=True)
    tokens.tofile(directory / "flat/a.bin")
    numpy.save(directory / "npy/a.npy", tokens)
    header = numpy.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    (directory / "llmc/a.bin").write_bytes(header.tobytes() + tokens.tobytes())
    tokens.tofile(directory / "datatrove/a.ds")
    numpy.array([*range(1000, len(tokens), 1000), len(tokens)], "<u8").tofile(
        directory / "datatrove/a.ds.index"
    )
    schema = pyarrow.schema([("tokens", pyarrow.uint16())])
    with pyarrow.ipc.new_file(str(directory / "arrow/a.arrow"), schema) as writer:
        for at in range(0, len(tokens), 1000):  # a document
            writer.write(
                pyarrow.record_batch([pyarrow.array(tokens[at : at + 1000])], schema=schema)
            )
    mds_shard(directory / "mds/shard.00000.mds", tokens)
    pack = [BIN / "tokctl", "pack", directory / "flat/a.bin"]
    quiet = {"check": True, "capture_output": True}
    subprocess.run(
        [*pack, directory / "megatron", "--format", "megatron", "--eos", "1000"], **quiet
    )
    for frame in (64, 256):
        subprocess.run(
            [*pack, directory / f"zstd-{frame}K", "--format", "zstd", "--frame", str(frame << 10)],
            **quiet,
        )
    for path in directory.glob(
        "*/*"
    ):  # how a file was written shows in how the page cache holds it: make them alike
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    return len(tokens)


def addressing(home):
    """CPU of finding a window and reading it out of the page cache, in nanoseconds, beyond what flat takes."""
    paths = {
        name: next(
            path
            for path in sorted((home / name).iterdir())
            if path.suffix in (".bin", ".npy", ".ds", ".arrow", ".mds")
        )
        for name in ("flat", "npy", "datatrove", "megatron", "arrow", "mds")
    }

    def cost(window, names):
        out = subprocess.run(
            [BIN / "bench-shard", str(window), *(paths[name] for name in names)],
            check=True,
            capture_output=True,
        )
        took = json.loads(out.stdout)
        return {name: took[str(paths[name])] - took[str(paths["flat"])] for name in names[1:]}

    # a single token costs no more than to find it; of a sample all is read, as it is looked at
    return cost(WIN, list(paths)), cost(1, ["flat", "megatron", "arrow"])


def cost_of(*command):
    """Seconds and CPU seconds of a program."""

    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    wall, before = time.monotonic(), cpu()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"s": time.monotonic() - wall, "cpu_s": cpu() - before}


def serve(daemon, stream):
    """Tokens/s of a stream as fast as a trainer in C takes them, and the daemon's CPU in nanoseconds."""

    def cpu():
        tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    before = cpu()
    rate = next_from_c(daemon, stream, 0, 10000)["tokens_s"]
    return {"rate": rate, "cpu": cpu() - before}


def formats(directory, args):
    """What a format costs beside flat, and beside the plain tool for the same bytes."""
    home = directory / "formats"
    count = write_formats(home, max(args.tokens // 5, 50_000_000))  # fewer would be kept decoded
    names = (
        "flat",
        "npy",
        "llmc",
        "datatrove",
        "megatron",
        "arrow",
        "mds",
        "zstd-64K",
        "zstd-256K",
    )
    keys = {"mds": f"seq_len: {WIN}, extra: 0"}
    shuffle = "block, block: 512, group: 8"  # a block is many frames: those at its ends are decoded once more for its neighbours
    streams = "".join(
        f"  {name}: {{seed: 42, {keys.get(name, f'seq_len: {SEQ}')}, datasets: "
        f"[{{name: d, path: formats/{name}, shuffle: {shuffle if name.startswith('zstd') else 'global'}}}]}}\n"
        for name in names
    )
    beside, cpu, tools = {name: [] for name in names}, {name: [] for name in names[-2:]}, {}
    rates, flat, level = [], home / "flat/a.bin", "3"
    for round in range(args.rounds):
        with Daemon(
            directory, streams, "memory: 128MiB\n"
        ) as daemon:  # decoded frames: two groups of blocks, not all
            daemon.wait()
            for name in names:
                next_from_c(
                    daemon, name, 0, 0
                )  # opens it: an index of 50,000 Arrow batches takes longer than 10,000 windows
            begin = serve(daemon, "flat")
            for i in range(
                len(names)
            ):  # each between two of flat, and flat itself too, which shows the scatter
                name = names[(i + round) % len(names)]
                here, end = serve(daemon, name), serve(daemon, "flat")
                beside[name].append(
                    {key: here[key] / statistics.mean((begin[key], end[key])) for key in here}
                )
                begin = end
                rates.append(end["rate"])
        for name in cpu:
            with Daemon(directory, streams, "memory: 128MiB\n") as daemon:
                daemon.wait()
                cat = [
                    BIN / "tokctl",
                    "cat",
                    name,
                    "--socket",
                    daemon.socket,
                    "--rank",
                    "0",
                    "--world",
                    "1",
                    "--micro",
                    str(MICRO),
                    "--batches",
                    str(count // BATCH_TOKENS),
                    "--start",
                ]
                cost_of(*cat, "0")  # an epoch, so that its memory is there
                before = cpu_of(daemon.process.pid)
                cost_of(*cat, str(count // SEQ))
                served = cpu_of(daemon.process.pid) - before
                cpu[name].append(
                    cost_of("zstd", "-dqc", *(home / name).iterdir())["cpu_s"] / served
                )
    many = [flat] * 8  # or the start of the programs is what is measured
    for _ in range(args.rounds):
        for name, command in (
            ("cat", ("cat", *many)),
            ("inspect", (BIN / "tokctl", "inspect", "--deep", *many)),
            ("zstd", ("zstd", "-qf", "-T2", f"-{level}", flat, "-o", home / "a.zst")),
            (
                "pack",
                (
                    BIN / "tokctl",
                    "pack",
                    flat,
                    home / "packed",
                    "--format",
                    "zstd",
                    "--level",
                    level,
                ),
            ),
        ):
            tools.setdefault(name, []).append(cost_of(*command))
        shutil.rmtree(home / "packed")
    print(
        f"\nFormats: {count / 1e6:.0f} M u16 tokens in each, windows of {WIN}, in the page cache; zstd with shuffle: {shuffle}"
    )
    row(
        "windows/s of flat",
        f"{statistics.median(rates) / WIN / 1e3:.0f} k",
        "lowest–highest ratio; daemon's CPU a window ÷ flat's",
    )
    for name in names:
        ratios = [ratio["rate"] for ratio in beside[name]]
        wanted = "" if name == "flat" or name.startswith("zstd") else "; wanted ≥ 0.95"
        row(
            f"  of {name} ÷ flat",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}–{max(ratios):.2f}; {median(beside[name], 'cpu'):.2f}{wanted}",
        )
    reading, finding = addressing(home)
    costs = ", ".join(f"{name} {ns:+.0f}" for name, ns in reading.items())
    row("CPU to find and read a window, beyond flat's", costs + " ns", "")
    row(
        "  to find it alone",
        ", ".join(f"{name} {ns:+.0f}" for name, ns in finding.items()) + " ns",
        "wanted ≤ 100",
    )
    for name in names[-2:]:
        row(
            f"tokens a CPU second, {name} ÷ `zstd -d`",
            f"{statistics.median(cpu[name]):.2f}",
            "wanted ≥ 0.8",
        )
    row(
        "speed of `tokctl inspect --deep` ÷ `cat FILE >/dev/null`",
        f"{median(tools['cat'], 's') / median(tools['inspect'], 's'):.2f}",
        "wanted ≥ 0.7",
    )
    row(
        f"speed of `tokctl pack --format zstd` ÷ `zstd -T2 -{level}`",
        f"{median(tools['zstd'], 's') / median(tools['pack'], 's'):.2f}",
        "wanted ≥ 0.7",
    )
    shutil.rmtree(home)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=500_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument(
        "--shards", type=int, default=1_000_000, help="of the dataset whose opening is measured"
    )
    for hidden in ("contest", "socket", "file"):
        parser.add_argument("--" + hidden, help=argparse.SUPPRESS)
    for hidden in ("daemon", "workers", "rank"):
        parser.add_argument("--" + hidden, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contest:
        contests = {
            "tokend": contest_tokend,
            "memmap": contest_memmap,
            "control": contest_control,
            "transform": contest_transform,
        }
        print(json.dumps(contests[args.contest](args)))
        return
    print(
        f"tokend bench: {os.cpu_count()} CPUs, Linux {os.uname().release}, {args.rounds} rounds of {args.seconds:g} s, medians"
    )
    directory = Path(tempfile.mkdtemp(prefix="tokend-bench-"))
    try:
        throughput(directory, args)
        transforms(directory, args)
        control(directory, args)
        neighbours.table(directory / "neighbours")
        formats(directory, args)
        start_up(directory, args)
        order(args)
        opening(directory, args)
        hundred_t(directory, args)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
