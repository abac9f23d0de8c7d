"""A bit flips on its way from the disk. A compressed shard is read once more, from the disk and not
from the page cache. The stream continues with the right tokens, and the log names shard and bytes.
If the bit is wrong on the disk, the stream stops with an error that names them.

A preloaded library flips it in every read, until those bytes are dropped from the page cache.
"""

import glob
import os
import re
import subprocess

import numpy
import pytest
import pyzstd

from lib import TOKCTL, Daemon, has, run
from lib.injected import injected
from lib.preload import Preload
from lib.shard_writers import mds, raw, seekable
from lib.web import metric

SEQ_LEN, TOKENS = 128, 600_000
WINDOW = SEQ_LEN + 1
WORDS = ["flips", "permanent", "inode", "byte", "injected", "dropped"]

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


# ---- shards ----


def zstd_tool(path, tokens):
    """One frame with a checksum, without a seek table."""
    tokens.tofile(path + ".bin")
    subprocess.run(["zstd", "-q", "--rm", path + ".bin"], check=True)


SUMS = {pyzstd.CParameter.checksumFlag: 1}


def mosaic(path, tokens):
    """A large frame, which stores the offsets of samples as they are."""
    mds(path, numpy.split(tokens, 100), None)
    with open(f"{path}/shard.00000.mds", "rb") as file, open(path + ".mds.zst", "wb") as packed:
        packed.write(pyzstd.compress(file.read(), {**SUMS, pyzstd.CParameter.compressionLevel: -9}))


CASES = {"sums": seekable(".bin.zst", raw, 16_384, SUMS), "no table": zstd_tool, "mds": mosaic}


class Scene:
    """A daemon that serves a shard in which a bit flips."""

    def __init__(self, place, name, permanent):
        tokens = numpy.random.default_rng(4).integers(0, 4000, TOKENS).astype("<u2")
        CASES[name](place.file(name, "a"), tokens)
        windows = [tokens[i : i + WINDOW] for i in range(0, TOKENS - SEQ_LEN, SEQ_LEN)]
        self.rows = numpy.concatenate(windows)
        (self.path,) = map(os.path.realpath, glob.glob(place.file(name, "a.*")))
        self.byte = 100 if name == "mds" else os.path.getsize(self.path) // 2 + 777
        self.flip = Preload(place, FLIP, WORDS)
        stream = {"seed": 3, "seq_len": SEQ_LEN, "epochs": 1}
        stream["datasets"] = [{"name": "d", "path": f"{name}/a.*", "shuffle": "none"}]
        keys = {"memory": 64 << 20, "io": "pread"}
        config = place.config(streams={"train": stream}, **keys)
        self.daemon = Daemon(place, config, env=self.flip.env)
        self.flip.set(inode=os.stat(self.path).st_ino, byte=self.byte, permanent=permanent)
        self.flip.set(flips=1)

    def cat(self, start=0):
        at = ["--socket", self.daemon.socket, "--rank", 0, "--world", 1, "--micro", 1]
        return run(TOKCTL, "cat", "train", *at, "--start", start)


@pytest.mark.parametrize("name", CASES)
def test_a_bit_that_flips_once_is_read_again(place, name):
    scene = Scene(place, name, permanent=0)
    code, out, err = scene.cat()
    assert code == 0 and out == scene.rows.tobytes(), err
    assert scene.flip.get("injected") >= 1 and scene.flip.get("dropped") == 1
    (said,) = scene.daemon.said("were damaged when read")
    first, end = re.search(rf"shard {re.escape(scene.path)}: bytes (\d+) to (\d+)", said).groups()
    assert int(first) <= scene.byte < int(end)
    assert metric(scene.daemon.socket, "tokend_rereads_total") == 1
    assert scene.daemon.stop() == 0
    injected(53, scene.flip.get("injected"))


@pytest.mark.parametrize("name", CASES)
def test_a_bit_that_is_wrong_on_the_disk_stops_the_stream(place, name):
    """Once it is right again, the stream continues after the last batch that was served."""
    scene = Scene(place, name, permanent=1)
    code, out, err = scene.cat()
    assert code == 1 and has(err, "bytes ", "stops here, nothing was skipped"), err
    assert scene.rows.tobytes().startswith(out)
    assert scene.flip.get("injected") >= 2 and scene.flip.get("dropped") >= 1, "it was read again"
    assert "were damaged when read" not in scene.daemon.log()
    assert metric(scene.daemon.socket, "tokend_rereads_total") == 0
    first, end = re.search(r"bytes (\d+) to (\d+)", err).groups()
    assert int(first) <= scene.byte < int(end)
    injected(11)
    scene.flip.set(flips=0)
    code, rest, err = scene.cat(start=len(out) // (2 * WINDOW))
    assert code == 0 and out + rest == scene.rows.tobytes(), err
