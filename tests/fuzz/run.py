#!/usr/bin/env python3
"""Fuzzes every parser of shards for --seconds each, starting from small real files.

--seconds 0 runs only the known inputs: those files and tests/fuzz/regressions/FORMAT/*.b64,
inputs that once failed. An input that fails now is kept in build/fuzz/FORMAT/.

An input is, for each side file, its length (u16; 65535: there is none) and its bytes; then the
shard.
"""

import argparse, base64, concurrent.futures, gzip, io, json, os, pathlib, re, shutil, struct
import subprocess, sys
import numpy, pyarrow, zstandard

ROOT = pathlib.Path(__file__).resolve().parents[2]
FUZZERS = ROOT / "build/fuzz/check"
TOKENS = numpy.arange(300) * 7 % 100


def seed(shard, *sides):
    """The input of a shard and its side files; None: the file is absent."""
    files = [
        struct.pack("<H", 65535) if b is None else struct.pack("<H", len(b)) + b for b in sides
    ]
    return b"".join(files) + shard


def npy(array, version=(1, 0)):
    file = io.BytesIO()
    numpy.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def npys():
    for version in (1, 0), (2, 0), (3, 0):
        for dtype in ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", ">i4", "<f4"):
            yield seed(npy(TOKENS[:40].astype(dtype), version))
    yield seed(npy(TOKENS.reshape(-1, 4).astype("<u2")))
    yield seed(npy(numpy.asfortranarray(TOKENS.reshape(-1, 4).astype("<i8"))))
    yield seed(npy(numpy.zeros(3, [("a", "<u2"), ("b", "?")])))


def llmcs():
    for magic, version, dtype in (20240520, 1, "<u2"), (20240801, 7, "<u4"), (20240522, 1, "<u2"):
        header = numpy.zeros(256, "<i4")
        header[:3] = magic, version, len(TOKENS)
        yield seed(header.tobytes() + TOKENS.astype(dtype).tobytes())


def datatroves():
    ends = numpy.array([0, 3, 3, 100, 300], "<u8").tobytes()
    for dtype, text in (
        ("<u2", "gpt2|2\n300\n300 T"),
        ("<u4", "Unknown Tokenizer|4|4\n300\n300 T"),
        ("<u4", "gpt2\n300\n"),
        ("<u2", None),
    ):
        for index in ends, None, b"":
            yield seed(
                TOKENS.astype(dtype).tobytes(), text.encode() if text is not None else None, index
            )


def zstds():
    content = TOKENS.astype("<u2").tobytes()
    for sized in True, False:
        compressor = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=sized)
        yield seed(compressor.compress(content))
        frames = [
            (compressor.compress(piece), len(piece))
            for piece in (content[:77], b"", content[77:300], content[300:])
        ]
        yield seed(b"".join(f for f, n in frames))
        yield seed(struct.pack("<II", 0x184D2A51, 3) + b"abc" + frames[0][0])
        table = b"".join(struct.pack("<II", len(f), n) for f, n in frames)
        footer = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
        yield seed(
            b"".join(f for f, n in frames)
            + struct.pack("<II", 0x184D2A5E, len(table) + 9)
            + table
            + footer
        )
    yield seed(zstandard.ZstdCompressor().compress(bytes(1 << 20)))


def megatrons():
    for code, dtype in enumerate("u1 i1 <i2 <i4 <i8 <f8 <f4 <u2".split(), 1):
        size = numpy.dtype(dtype).itemsize
        for modes in b"", b"\0\1\0\1":
            lengths = numpy.array([100, 0, 150, 50], "<i4")
            pointers = (numpy.cumsum(lengths) - lengths).astype("<i8") * size
            for order in [0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 3], []:
                n = len(order)
                head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, 3)
                documents = numpy.array([0, n // 2, n], "<i8")
                index = (
                    head
                    + lengths[order].tobytes()
                    + pointers[order].tobytes()
                    + documents.tobytes()
                    + modes[:n]
                )
                yield seed(TOKENS.astype(dtype).tobytes(), index)


def arrows():
    for options in (
        {},
        {"use_legacy_format": True},
        {"metadata_version": pyarrow.ipc.MetadataVersion.V4},
        {"compression": "zstd"},
    ):
        for ahead in [[], ["list"], ["text", "union"], ["dictionary", "view"]]:
            file, rows = io.BytesIO(), 10
            ids, text = (
                pyarrow.array([i % 2 for i in range(rows)], pyarrow.int8()),
                pyarrow.array(["a word that no view holds"] * rows),
            )
            kinds = {
                "list": pyarrow.array([[i] for i in range(rows)]),
                "text": text,
                "dictionary": text.dictionary_encode(),
                "view": text.cast(pyarrow.string_view()),
                "union": pyarrow.UnionArray.from_sparse(ids, [text, ids]),
            }
            columns = {name: kinds[name] for name in ahead} | {
                "tokens": pyarrow.array(range(rows), pyarrow.uint32())
            }
            batch = pyarrow.record_batch(columns)
            with pyarrow.ipc.new_file(
                file, batch.schema, options=pyarrow.ipc.IpcWriteOptions(**options)
            ) as writer:
                for n in rows, 0, 3:
                    writer.write(batch.slice(0, n))
            yield seed(file.getvalue())


def autos():
    yield from npys()
    yield from llmcs()
    yield from zstds()
    for head in (
        b"\x80\4\x95\2\0\0\0\0\0\0\0N.",
        b"PK\3\4",
        b"\x1f\x8b\x08",
        b"MMIDIDX\0\0",
        b"ARROW1",
    ):
        yield seed(head + TOKENS.astype("<u2").tobytes())


def mds(samples, encoding="ndarray:int32", sizes=None, names=("tokens",)):
    config = json.dumps(
        {
            "column_encodings": [encoding] + ["str"] * (len(names) - 1),
            "column_names": list(names),
            "format": "mds",
            "version": 2,
            "column_sizes": [sizes] + [None] * (len(names) - 1),
        }
    ).encode()
    begin = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = numpy.cumsum([begin] + [len(s) for s in samples]).astype("<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + config + b"".join(samples)


def mdss():
    tokens = TOKENS.astype("<i4").tobytes()
    array = struct.pack("<I", 18) + b"\4\4" + tokens[:16]
    raw = mds([array] * 3)
    entry = {
        "column_encodings": ["ndarray:int32"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": "zstd",
        "format": "mds",
        "hashes": ["xxh64"],
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(raw), "hashes": {}},
        "samples": 3,
        "version": 2,
        "zip_data": {
            "basename": "shard.00000.mds.zstd",
            "bytes": 99,
            "hashes": {"xxh64": "0" * 16},
        },
    }
    for index in (
        None,
        {"shards": [entry], "version": 2},
        {"shards": [entry, {**entry, "zip_data": None}], "version": 2},
    ):
        yield seed(raw, json.dumps(index).encode() if index else None)
    yield seed(
        mds(
            [
                struct.pack("<II", 18, 1) + b"\4\4" + tokens[:16] + b"x",
                struct.pack("<II", 18, 0) + b"\4\4" + tokens[:16],
            ],
            names=("tokens", "z"),
        ),
        None,
    )
    yield seed(mds([tokens[:16]] * 4, "ndarray:int32:2,2", 16), None)
    yield seed(mds([struct.pack("<I", 20) + b"\x21\x05\4\0" + tokens[:16]] * 2, "ndarray"), None)
    yield seed(mds([struct.pack("<I", 16) + tokens[:16]] * 2, "bytes"), None)
    yield seed(zstandard.ZstdCompressor().compress(raw), None)


def annotations():
    bounds = b'0,7,id,s3://a\r\n7,7,"a, ""b""\n",x\r\n9,300,,\r\n'
    mask = bytes(i % 3 != 1 for i in range(300))
    for dtype in "<u2", "<u4":
        shard = TOKENS.astype(dtype).tobytes()
        for more in b"", b"0":  # so that the input ends in both kinds of hint
            for text in (
                bounds + more,
                gzip.compress(bounds + more, mtime=0),
                b"0,300" + more,
                b"start,end\n",
                None,
            ):
                yield seed(shard, text, mask)
                yield seed(shard, text, npy(numpy.frombuffer(mask, "?")))
        yield seed(shard, bounds, None)
        yield seed(shard, bounds, mask[:-1] + b"\2")


def manifests():
    """Manifests with lines of every format and type."""
    more = {
        "npy": {"row_tokens": 5},
        "mds": {"sample_tokens": 5},
        "flat": {"frame_bytes": 4096},
        "llmc": {},
    }
    for name in more:
        for dtype in "u16", "i32", "u64", "i8":
            keys = {
                "format": name,
                "dtype": dtype,
                "tokens": 500,
                "size": 1000,
                "digest": "0123456789abcdef",
                **more[name],
            }
            lines = [
                json.dumps({"path": path, **keys})
                for path in ("a.bin", "a/b.bin", 'b/\u00e9 "x"/c.bin')
            ]
            yield "".join(line + "\n" for line in lines).encode()
            yield "".join(line + "\n" for line in reversed(lines)).encode()
    yield b"{}"
    yield b"\n"


TARGETS = {
    "auto": autos,
    "zstd": zstds,
    "npy": npys,
    "llmc": llmcs,
    "datatrove": datatroves,
    "megatron": megatrons,
    "arrow": arrows,
    "mds": mdss,
    "annotations": annotations,
    "manifest": manifests,
}


def prepare(name):
    known = ROOT / "build/fuzz" / name / "known"
    shutil.rmtree(known, ignore_errors=True)
    known.mkdir(parents=True)
    for i, data in enumerate(TARGETS[name]()):
        (known / f"seed-{i}").write_bytes(data)
    for regression in (ROOT / "tests/fuzz/regressions" / name).glob("*.b64"):
        (known / regression.stem).write_bytes(base64.b64decode(regression.read_text()))
    return known


def run(name, *options):
    directory = ROOT / "build/fuzz" / name
    limits = [
        f"-artifact_prefix={directory}/",
        "-rss_limit_mb=1024",
        "-malloc_limit_mb=64",
        "-timeout=10",
        "-max_len=70000",
    ]
    together = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "errors": "replace",
    }
    fuzzer = FUZZERS / ("fuzz-manifest" if name == "manifest" else "fuzz-shard")
    return subprocess.run(
        [fuzzer, *limits, *options], env={**os.environ, "FORMAT": name}, **together
    )


def was_slow(name, done):
    """Whether a timeout was the machine's: the input now runs in time."""
    hangs = re.findall(r"Test unit written to (\S+/timeout-\w+)", done.stdout)
    if not hangs or run(name, hangs[0]).returncode:
        return False
    os.unlink(hangs[0])
    return True


def fuzz(name, seconds):
    known, found = prepare(name), ROOT / "build/fuzz" / name / "corpus"
    found.mkdir(exist_ok=True)
    options = (
        [f"-max_total_time={seconds}", "-print_final_stats=1", found, known]
        if seconds
        else ["-runs=0", known]
    )
    done = run(name, *options)
    if done.returncode and was_slow(name, done):
        done = run(name, *options)
    (ROOT / "build/fuzz" / name / "log").write_text(done.stdout)
    runs = re.findall(r"number_of_executed_units: (\d+)", done.stdout)
    what = f"{runs[0]} inputs" if runs else f"{len(list(known.iterdir()))} known inputs"
    print(f"{name}: {what}" + (", FAILED" if done.returncode else ""), flush=True)
    if done.returncode:
        print(done.stdout[-6000:])
    return done.returncode == 0


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument("target", nargs="*", default=list(TARGETS))
    options = options.parse_args()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        fine = list(pool.map(lambda name: fuzz(name, options.seconds), options.target))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
