"""Shard formats relative to flat files, and tokctl relative to cat and zstd."""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

from common import BATCH_TOKENS, BIN, MICRO, ROOT, SEQ, WIN, Daemon, median, row

sys.path.append(str(ROOT / "tests"))

from lib import shard_writers  # noqa: E402

PLAIN = ("npy", "llmc", "datatrove", "megatron", "arrow", "datasets", "mds")
ZSTD = ("zstd-64K", "zstd-256K")


def write_arrow(path, tokens, name, batch, new):
    """Column @name, @batch tokens a record batch. "tokens": a row a token, as IBM's fms-fsdp;
    otherwise a row a document of 1,000 tokens, as Hugging Face's datasets.
    """
    import numpy
    import pyarrow

    def rows(some):
        if name == "tokens":
            return pyarrow.array(some)
        ends = numpy.array([*range(0, len(some), 1000), len(some)], "<i4")
        return pyarrow.ListArray.from_arrays(ends, pyarrow.array(some))

    schema = pyarrow.schema([(name, rows(tokens[:1000]).type)])
    with new(str(path), schema) as writer:
        for at in range(0, len(tokens), batch):
            writer.write(pyarrow.record_batch([rows(tokens[at : at + batch])], schema=schema))


def write_formats(home, count):
    """Writes the same tokens, as compressible as text, in a directory a format; their number."""
    import numpy
    import pyarrow

    some = (50257 ** numpy.random.default_rng(1).random(10_000_000)).astype("<u2")
    tokens = numpy.resize(some, count // WIN * WIN)
    for name in ("flat", "npy", "llmc", "datatrove", "arrow", "datasets"):
        (home / name).mkdir(parents=True)
    tokens.tofile(home / "flat/a.bin")
    (home / "npy/a.npy").write_bytes(shard_writers.npy(tokens))
    (home / "llmc/a.bin").write_bytes(shard_writers.llmc(tokens))
    tokens.tofile(home / "datatrove/a.ds")
    ends = numpy.array([*range(1000, len(tokens), 1000), len(tokens)], "<u8")
    ends.tofile(home / "datatrove/a.ds.index")
    write_arrow(home / "arrow/a.arrow", tokens, "tokens", 1000, pyarrow.ipc.new_file)
    datasets = home / "datasets/a.arrow"
    write_arrow(datasets, tokens, "input_ids", 1_000_000, pyarrow.ipc.new_stream)
    shard_writers.mds(home / "mds", tokens.reshape(-1, WIN), None)  # as llm-foundry: a window each
    pack(home, "megatron", "--format", "megatron", "--eos", "1000")
    for kib in (64, 256):
        pack(home, f"zstd-{kib}K", "--format", "zstd", "--frame", str(kib << 10))
    # How a file came into the page cache shows in its rate: read them all from the disk alike.
    for path in home.glob("*/*"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 20):
                pass
    return len(tokens)


def pack(home, name, *options):
    command = [BIN / "tokctl", "pack", home / "flat/a.bin", home / name, *options]
    subprocess.run(command, check=True, capture_output=True)


def cost_of(*command):
    """Runs a program; returns its seconds and CPU seconds."""

    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    wall, before = time.monotonic(), cpu()
    words = [str(word) for word in command]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"s": time.monotonic() - wall, "cpu_s": cpu() - before}


def serve(daemon, stream):
    """Tokens per second that a trainer in C takes, and the daemon's CPU seconds."""
    before = daemon.cpu()
    rate = daemon.next(0, 10000, "stored", stream=stream)["tokens_s"]
    return {"rate": rate, "cpu": daemon.cpu() - before}


def stream(name):
    windows = {"seq_len": WIN, "extra": 0} if name == "mds" else {"seq_len": SEQ}
    data = {"name": "d", "path": f"formats/{name}"}
    if name in ZSTD:  # a block has many frames
        data |= {"shuffle": "block", "block": 512, "group": 8}
    return {"seed": 42, **windows, "datasets": [data]}


def relative(directory, streams, rounds):
    """{format: its rounds ÷ flat's}, and flat's rates. Each format is between two of flat, and flat
    itself, too, which shows the scatter.
    """
    found, rates = {name: [] for name in streams}, []
    for number in range(rounds):
        with Daemon(directory, streams, memory=128 << 20) as daemon:
            for name in streams:
                daemon.next(0, 0, stream=name)  # opens it: Arrow's index takes a while
            begin = serve(daemon, "flat")
            for i in range(len(streams)):
                name = list(streams)[(i + number) % len(streams)]
                here, end = serve(daemon, name), serve(daemon, "flat")
                ratio = {key: 2 * here[key] / (begin[key] + end[key]) for key in here}
                found[name].append(ratio)
                begin = end
                rates.append(end["rate"])
    return found, rates


def unpacked(directory, streams, name, count):
    """Tokens a CPU second that the daemon serves ÷ those of `zstd -d`."""
    with Daemon(directory, streams, memory=128 << 20) as daemon:
        cat = [BIN / "tokctl", "cat", name, "--socket", daemon.socket, "--rank", 0, "--world", 1]
        cat += ["--micro", MICRO, "--batches", count // BATCH_TOKENS, "--start"]
        cost_of(*cat, 0)  # an epoch, so that its memory is there
        before = daemon.cpu()
        cost_of(*cat, count // SEQ)
        served = daemon.cpu() - before
    return cost_of("zstd", "-dqc", *(directory / "formats" / name).iterdir())["cpu_s"] / served


def tools(home, rounds):
    """Seconds of cat, inspect, zstd and pack."""
    flat, found = home / "flat/a.bin", {}
    many = [flat] * 8  # long enough that the start of a program does not count
    commands = {
        "cat": ("cat", *many),
        "inspect": (BIN / "tokctl", "inspect", "--deep", *many),
        "zstd": ("zstd", "-qf", "-T2", "-3", flat, "-o", home / "a.zst"),
        "pack": (BIN / "tokctl", "pack", flat, home / "packed", "--format", "zstd"),
    }
    for _ in range(rounds):
        for name, command in commands.items():
            found.setdefault(name, []).append(cost_of(*command))
        shutil.rmtree(home / "packed")
    return {name: median(costs, "s") for name, costs in found.items()}


def formats(directory, args):
    home = directory / "formats"
    # More than the daemon keeps decoded, and with --quick no more than that.
    count = write_formats(home, 50_000_000 if args.quick else max(args.tokens // 5, 50_000_000))
    streams = {name: stream(name) for name in ("flat", *PLAIN, *ZSTD)}
    found, rates = relative(directory, streams, args.rounds)
    cpu = {
        name: [unpacked(directory, streams, name, count) for _ in range(args.rounds)]
        for name in ZSTD
    }
    took = tools(home, args.rounds)
    shutil.rmtree(home)
    print(
        f"\nFormats: {count / 1e6:.0f} M u16 tokens in each, windows of {WIN}, in the page cache; "
        "zstd with shuffle: block, block: 512, group: 8; arrow has a document a batch, datasets "
        "1,000"
    )
    said = "lowest–highest ratio; daemon's CPU a window ÷ flat's"
    row("windows/s of flat", f"{statistics.median(rates) / WIN / 1e3:.0f} k", said)
    for name, runs in found.items():
        ratios = [run["rate"] for run in runs]
        said = f"{min(ratios):.2f}–{max(ratios):.2f}; {median(runs, 'cpu'):.2f}"
        said += "; wanted ≥ 0.95" if name in PLAIN else ""
        row(f"  of {name} ÷ flat", f"{statistics.median(ratios):.2f}", said)
    for name, ratios in cpu.items():
        said = f"{min(ratios):.2f}–{max(ratios):.2f}; wanted ≥ 1"
        what = f"tokens a CPU second, {name} ÷ `zstd -d`"
        row(what, f"{statistics.median(ratios):.2f}", said)
    inspect, packs = took["cat"] / took["inspect"], took["zstd"] / took["pack"]
    what = "speed of `tokctl inspect --deep` ÷ `cat FILE >/dev/null`"
    row(what, f"{inspect:.2f}", "wanted ≥ 0.9")
    row("speed of `tokctl pack --format zstd` ÷ `zstd -T2 -3`", f"{packs:.2f}", "wanted ≥ 0.7")
    return {
        **{name: median(found[name], "rate") for name in PLAIN},
        "zstd_256k": statistics.median(cpu["zstd-256K"]),
        "inspect_deep": inspect,
        "pack": packs,
    }
