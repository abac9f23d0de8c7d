"""A bit flips on its way from the disk. A compressed shard is read once more, from the disk and not
from the page cache. The stream continues with the right tokens, and the log names shard and bytes.
If the bit is wrong on the disk, the stream stops with an error that names them.

A preloaded library flips the bit. Like a bit flipped in the page cache, it is wrong in every read
until those bytes are dropped from the cache.
"""

import os
import re
import shutil
import subprocess
import urllib.request

import numpy
import pytest
import pyzstd

from lib import TOKCTL, Daemon, free_port, run
from lib.injected import injected
from lib.preload import Preload
from lib.shard_writers import mds, raw, seekable

SEQ_LEN, TOKENS = 128, 200_000
WINDOW = SEQ_LEN + 1
MDS_ROWS, SMALL_ROWS = 1000, 50  # a small shard is decoded as a whole when it is opened

FLIP = r"""
#include <sys/stat.h>

static int is_it(int fd)
{
	struct stat st;

	return words[FLIPS] && fstat(fd, &st) == 0 && (int64_t)st.st_ino == words[INODE];
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	static ssize_t (*next)(int, void *, size_t, off_t);

	if (!next)
		next = dlsym(RTLD_NEXT, "pread");
	ssize_t got = next(fd, to, n, at);

	if (got > 0 && is_it(fd) && at <= words[BYTE] && words[BYTE] < at + got) {
		((uint8_t *)to)[words[BYTE] - at] ^= 0x10;
		words[INJECTED]++;
	}
	return got;
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) { return pread(fd, to, n, at); }

int posix_fadvise(int fd, off_t at, off_t n, int advice)
{
	static int (*next)(int, off_t, off_t, int);

	if (!next)
		next = dlsym(RTLD_NEXT, "posix_fadvise");
	/* Only dropping the whole page of the byte counts. */
	int64_t page = words[BYTE] / 4096 * 4096;

	const int covers = at <= page && (n == 0 || page + 4096 <= at + n);
	if (advice == POSIX_FADV_DONTNEED && is_it(fd) && covers) {
		words[DROPPED]++;
		words[FLIPS] = words[PERMANENT];
	}
	return next(fd, at, n, advice);
}

int posix_fadvise64(int fd, off64_t at, off64_t n, int advice)
{
	return posix_fadvise(fd, at, n, advice);
}
"""


class Flip(Preload):
    def __init__(self, place, name):
        names = ["flips", "permanent", "inode", "byte", "injected", "dropped"]
        super().__init__(place, FLIP, names, name)

    def begin(self, path, byte, permanent):
        self.set(inode=os.stat(path).st_ino, byte=byte, permanent=permanent)
        self.set(flips=1)


# ---- shards ----


def zstd_tool(path, tokens):
    """As written by `zstd PART…; cat`: frames with checksums, without a seek table."""
    edges = [len(tokens) * i // 6 for i in range(7)]
    with open(path + ".bin.zst", "wb") as f:
        for a, b in zip(edges, edges[1:]):
            f.write(
                subprocess.run(
                    ["zstd", "-qc"], input=tokens[a:b].tobytes(), stdout=subprocess.PIPE, check=True
                ).stdout
            )


def mds_hashed(rows, compression="zstd"):
    def write(path, tokens):
        directory = os.path.dirname(path)
        shutil.rmtree(directory)
        mds(
            directory,
            numpy.resize(tokens, (rows, WINDOW)),
            1 << 24,
            compression=compression,
            hashes=["xxh64"],
        )

    return write


def middle_of(path):
    return os.path.getsize(path) // 2 + 777


def unnoticed_in(path):
    """A byte whose flipped bit decodes to something else: only the hash shows it."""
    with open(path, "rb") as f:
        packed = f.read()
    content = pyzstd.decompress(packed)
    for byte in range(len(packed) // 2, len(packed)):
        try:
            other = pyzstd.decompress(
                packed[:byte] + bytes([packed[byte] ^ 0x10]) + packed[byte + 1 :]
            )
        except pyzstd.ZstdError:
            continue
        if other != content and len(other) == len(content):
            return byte
    raise RuntimeError(f"{path}: every flipped bit is noticed")


def end_of(path):
    return os.path.getsize(path) - 5


# name: (writer, shard, the byte with the flip, whether only decoding a frame reads it, words of the
# error for a permanent flip)
CASES = {
    "frames with sums": (seekable(".bin.zst", raw, 16_384, {pyzstd.CParameter.checksumFlag: 1}),
    "a.bin.zst", middle_of, True, "frame"),
    "frames of zstd": (zstd_tool, "a.bin.zst", middle_of, True, "frame"),
    "the seek table": (seekable(".bin.zst", raw, 16_384), "a.bin.zst", end_of, False, "seek table"),
    "a small one of MDS": (mds_hashed(SMALL_ROWS), "shard.00000.mds.zstd", unnoticed_in, False,
    "hashes in index.json is"),
    "a plain one of MDS": (mds_hashed(SMALL_ROWS, None), "shard.00000.mds", end_of, False,
    "hashes in index.json is"),
    "a hash of MDS": (mds_hashed(MDS_ROWS), "shard.00000.mds.zstd", middle_of, False,
    "hashes in index.json is"),
}  # fmt: skip


def write_all(place):
    tokens = numpy.random.default_rng(4).integers(0, 4000, TOKENS).astype("<u2")
    for name, (write, *_) in CASES.items():
        os.makedirs(place.file(name), exist_ok=True)
        write(place.file(name, "a"), tokens)
    return tokens


def cat(socket, start=0):
    return run(
        *(TOKCTL, "cat", "train", "--socket", socket, "--rank", 0, "--world", 1, "--micro", 1),
        *("--start", start),
    )


def total(port):
    """tokend_rereads_total, as a scraper sees it."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    found = re.search(r"^tokend_rereads_total (\d+)$", page, re.M)
    return int(found[1]) if found else None


def served(place, label, name, flip, permanent, want):
    write, shard, byte, late, words = CASES[name]
    path = place.file(name, shard)
    streams = {
        "train": {
            "seed": 3,
            "seq_len": SEQ_LEN,
            "epochs": 1,
            "datasets": [{"name": "d", "path": name, "shuffle": "none"}],
        }
    }
    port = free_port()
    config = place.config(
        f"{label}.yaml", memory=64 << 20, io="pread", metrics=f"127.0.0.1:{port}", streams=streams
    )
    daemon = Daemon(place, config, env=flip.env)
    flip.begin(path, byte(path), permanent)
    code, out, err = cat(daemon.socket)
    if not permanent:
        daemon.said("were damaged when read")
    log = daemon.log()
    told = re.findall(
        rf"shard {re.escape(os.path.realpath(path))}: bytes (\d+) to (\d+) were damaged when read",
        log,
    )
    seen = (flip.get("injected"), flip.get("dropped"))
    if permanent:
        assert seen[0] >= 2 and seen[1] >= 1, (
            f"{label}: the bit was wrong in both reads, with the cache dropped in between",
            seen,
        )
        injected(11)
        good = (
            code == 1
            and words in err
            and want.startswith(out)
            and "stops here, nothing was skipped" in err
            and not told
        )
        assert good, (
            f"{label}: the stream stops, and no wrong token was served",
            (code, len(out), err, log),
        )
        at = re.search(r"bytes (\d+) to (\d+)", err)
        if late:
            assert at and int(at[1]) <= byte(path) < int(at[2]), (
                f"{label}: the error names the frame's bytes",
                err,
            )
    else:
        assert seen[0] >= 1 and seen[1] == 1, (
            f"{label}: the bit was flipped, and the cache dropped once",
            seen,
        )
        assert code == 0 and out == want, (
            f"{label}: every row is right",
            (code, len(out), len(want), err, log),
        )
        at = [int(n) for n in told[0]] if told else [0, 0]
        assert len(told) == 1 and at[0] <= byte(path) < at[1], (
            f"{label}: the log names shard and bytes, once",
            log,
        )
    assert total(port) == (0 if permanent else 1), f"{label}: the metrics count it"
    assert daemon.stop() == 0, f"{label}: the daemon ends with 0"
    injected(53, seen[0])


@pytest.fixture(scope="module")
def tokens(shared):
    return write_all(shared)


@pytest.mark.parametrize("permanent", [False, True], ids=["once", "on the disk"])
@pytest.mark.parametrize("name", CASES)
def test_a_bit_flips(shared, tokens, name, permanent):
    rows = {"a small one of MDS": SMALL_ROWS, "a plain one of MDS": SMALL_ROWS}.get(name)
    rows = MDS_ROWS if name == "a hash of MDS" else rows
    windows = [tokens[i : i + WINDOW] for i in range(0, TOKENS - SEQ_LEN, SEQ_LEN)]
    want = b"".join(w.tobytes() for w in windows)
    if rows:
        want = numpy.resize(tokens, rows * WINDOW).tobytes()
    label = f"{name}, {'on the disk' if permanent else 'once'}"
    served(shared, label, name, Flip(shared, label), permanent, want)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_a_bit_that_is_flipped_in_the_file_stops_the_stream(shared, tokens, name):
    """The bit is flipped in the shard itself, before the daemon starts. Once it is right again, the
    stream continues after the last batch that was served.
    """
    _, shard, byte, _, _ = CASES[name]
    path = shared.file(name, shard)
    stream = {"seed": 3, "seq_len": SEQ_LEN, "epochs": 1}
    stream["datasets"] = [{"name": "d", "path": name, "shuffle": "none"}]
    daemon = Daemon(shared, shared.config("flipped.yaml", streams={"train": stream}))
    code, want, err = cat(daemon.socket)
    assert code == 0 and len(want) == (TOKENS - 1) // SEQ_LEN * WINDOW * 2, err
    daemon.stop()
    before = os.stat(path)

    def flip():
        with open(path, "r+b") as f:
            at = byte(path)
            f.seek(at)
            bits = f.read(1)[0]
            f.seek(at)
            f.write(bytes([bits ^ 0x10]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return at

    at = flip()
    injected(11)
    try:
        daemon.start()
        code, out, err = cat(daemon.socket)
        assert "stops here, nothing was skipped" in err and out, err
        daemon.stop()
    except RuntimeError as error:  # without a seek table, all frames are decoded at the start
        code, out, err = daemon.process.wait(), b"", str(error)
        assert name == "frames of zstd", err
    found = re.search(r"bytes (\d+) to (\d+)", err)
    assert code == 1 and want.startswith(out), ("the stream stops", code, err)
    assert shard in err and found and int(found[1]) <= at < int(found[2]), err
    flip()
    daemon.start()
    code, rest, err = cat(daemon.socket, start=len(out) // (WINDOW * 2))
    assert (code, out + rest == want) == (0, True), err
    assert daemon.stop() == 0
