"""Shard formats relative to flat files, and tokctl relative to cat and zstd."""

import json
import os
import resource
import shutil
import statistics
import subprocess
import time

from common import BIN, SEQ, MICRO, WIN, BATCH_TOKENS, Daemon, next_from_c, median, process_cpu, row


def mds_shard(path, tokens):
    """Writes a sample a window, as llm-foundry does: the tokens are not aligned."""
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


def datasets_shard(path, tokens):
    """Writes 1,000 documents a record batch, as Hugging Face's datasets does."""
    import numpy, pyarrow

    schema = pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.uint16()))])
    with pyarrow.ipc.new_stream(str(path), schema) as writer:
        for at in range(0, len(tokens), 1_000_000):
            some = tokens[at : at + 1_000_000]
            ends = numpy.array([*range(0, len(some), 1000), len(some)], "<i4")
            lists = pyarrow.ListArray.from_arrays(ends, pyarrow.array(some))
            writer.write(pyarrow.record_batch([lists], schema=schema))


def write_formats(directory, count):
    """Writes the same tokens, as compressible as text, in a directory a format; returns their
    number.
    """
    import numpy, pyarrow

    tokens = numpy.resize(
        (50257 ** numpy.random.default_rng(1).random(10_000_000)).astype("<u2"), count // WIN * WIN
    )
    for name in ("flat", "npy", "llmc", "datatrove", "arrow", "datasets", "mds"):
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
        for at in range(0, len(tokens), 1000):  # a document a batch, as IBM's fms-fsdp
            writer.write(
                pyarrow.record_batch([pyarrow.array(tokens[at : at + 1000])], schema=schema)
            )
    datasets_shard(directory / "datasets/a.arrow", tokens)
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
    # How a file came into the page cache shows in its rate: read them all from the disk alike.
    for path in directory.glob("*/*"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 20):
                pass
    return len(tokens)


def addressing(home):
    """CPU nanoseconds of a window beyond those of flat: to find and read it, to find it."""
    paths = {
        name: next(
            path
            for path in sorted((home / name).iterdir())
            if path.suffix in (".bin", ".npy", ".ds", ".arrow", ".mds")
        )
        for name in ("flat", "npy", "datatrove", "megatron", "arrow", "datasets", "mds")
    }

    def cost(window, names):
        out = subprocess.run(
            [BIN / "bench-shard", str(window), *(paths[name] for name in names)],
            check=True,
            capture_output=True,
        )
        took = json.loads(out.stdout)
        return {name: took[str(paths[name])] - took[str(paths["flat"])] for name in names[1:]}

    # Reading a single token measures finding it; MDS reads whole samples, so it is left out.
    return cost(WIN, list(paths)), cost(1, ["flat", "megatron", "arrow"])


def cost_of(*command):
    """Runs a program; returns its seconds and CPU seconds."""

    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    wall, before = time.monotonic(), cpu()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"s": time.monotonic() - wall, "cpu_s": cpu() - before}


def serve(daemon, stream):
    """Tokens per second that a trainer in C takes, and the daemon's CPU seconds."""
    before = process_cpu(daemon.process.pid)
    rate = next_from_c(daemon, stream, 0, 10000, "stored")["tokens_s"]
    return {"rate": rate, "cpu": process_cpu(daemon.process.pid) - before}


def formats(directory, args):
    """Measures formats relative to flat files, and tools relative to cat and zstd."""
    home = directory / "formats"
    # More than the daemon keeps decoded, and with --quick no more than that.
    count = write_formats(home, 50_000_000 if args.quick else max(args.tokens // 5, 50_000_000))
    names = (
        "flat",
        "npy",
        "llmc",
        "datatrove",
        "megatron",
        "arrow",
        "datasets",
        "mds",
        "zstd-64K",
        "zstd-256K",
    )
    keys = {"mds": f"seq_len: {WIN}, extra: 0"}
    # A block has many frames; the first and the last are decoded again for its neighbours.
    shuffle = "block, block: 512, group: 8"
    streams = ""
    for name in names:
        windows = keys.get(name, f"seq_len: {SEQ}")
        order = shuffle if name.startswith("zstd") else "global"
        streams += (
            f"  {name}: {{seed: 42, {windows}, datasets: "
            f"[{{name: d, path: formats/{name}, shuffle: {order}}}]}}\n"
        )
    rounds_of, cpu, tools = {name: [] for name in names}, {name: [] for name in names[-2:]}, {}
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
                rounds_of[name].append(
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
                before = process_cpu(daemon.process.pid)
                cost_of(*cat, str(count // SEQ))
                served = process_cpu(daemon.process.pid) - before
                cpu[name].append(
                    cost_of("zstd", "-dqc", *(home / name).iterdir())["cpu_s"] / served
                )
    many = [flat] * 8  # long enough that the start of a program does not count
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
        f"\nFormats: {count / 1e6:.0f} M u16 tokens in each, windows of {WIN}, in the page cache; "
        f"zstd with shuffle: {shuffle}; arrow has a document a batch, datasets 1,000"
    )
    row(
        "windows/s of flat",
        f"{statistics.median(rates) / WIN / 1e3:.0f} k",
        "lowest–highest ratio; daemon's CPU a window ÷ flat's",
    )
    for name in names:
        ratios = [ratio["rate"] for ratio in rounds_of[name]]
        wanted = "" if name == "flat" or name.startswith("zstd") else "; wanted ≥ 0.95"
        row(
            f"  of {name} ÷ flat",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}–{max(ratios):.2f}; {median(rounds_of[name], 'cpu'):.2f}{wanted}",
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
            f"{min(cpu[name]):.2f}–{max(cpu[name]):.2f}; wanted ≥ 1",
        )
    inspect = median(tools["cat"], "s") / median(tools["inspect"], "s")
    pack = median(tools["zstd"], "s") / median(tools["pack"], "s")
    row(
        "speed of `tokctl inspect --deep` ÷ `cat FILE >/dev/null`", f"{inspect:.2f}", "wanted ≥ 0.9"
    )
    row(
        f"speed of `tokctl pack --format zstd` ÷ `zstd -T2 -{level}`", f"{pack:.2f}", "wanted ≥ 0.7"
    )
    shutil.rmtree(home)
    return {
        **{name: median(rounds_of[name], "rate") for name in names[1:-2]},
        "zstd_64k": statistics.median(cpu["zstd-64K"]),
        "zstd_256k": statistics.median(cpu["zstd-256K"]),
        "inspect_deep": inspect,
        "pack": pack,
    }
