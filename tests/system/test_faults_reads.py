"""Reads that fail, once or for good, and indexes that cannot be read."""

import errno
import os
import struct
import time

import numpy
import pytest
from faults import SEQ_LEN, SHARD_TOKENS

from lib import (
    MODES,
    TOKCTL,
    Client,
    Daemon,
    Refused,
    Witness,
    has,
    mode_name,
    rows_at,
    run,
    wait_for,
)
from lib.fuse import hanging
from lib.injected import injected
from lib.preload import Preload


# ---- reads that fail ----

ROWS = {errno.EIO: 9, errno.EINTR: 13, errno.ESTALE: 36}  # of the catalogue of faults

FAILING = r"""
#include <errno.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* 0, or -1 with errno; may shorten *n. */
static int meddle(int fd, size_t *n)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || (int64_t)st.st_ino != words[INODE])
		return 0;
	words[CALLS]++;
	/* How many reads fail, in all threads together; below 0: all. */
	int64_t left = words[FAIL];

	while (left > 0 && !atomic_compare_exchange_weak(&words[FAIL], &left, left - 1))
		;
	if (left != 0) {
		words[INJECTED]++;
		errno = (int)words[ERROR];
		return -1;
	}
	if (words[SHORTEST] > 0 && *n > (size_t)words[SHORTEST]) {
		*n = (size_t)words[SHORTEST];
		words[INJECTED]++;
	}
	return 0;
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	static ssize_t (*next)(int, void *, size_t, off_t);

	if (!next)
		next = dlsym(RTLD_NEXT, "pread");
	return meddle(fd, &n) < 0 ? -1 : next(fd, to, n, at);
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) { return pread(fd, to, n, at); }

ssize_t preadv2(int fd, const struct iovec *io, int count, off_t at, int flags)
{
	static ssize_t (*next)(int, const struct iovec *, int, off_t, int);
	struct iovec one = io[0];

	if (!next)
		next = dlsym(RTLD_NEXT, "preadv2");
	if (count != 1)
		abort();
	return meddle(fd, &one.iov_len) < 0 ? -1 : next(fd, &one, 1, at, flags);
}

ssize_t preadv64v2(int fd, const struct iovec *io, int count, off64_t at, int flags)
{
	return preadv2(fd, io, count, at, flags);
}
"""


WORDS = ["fail", "error", "inode", "shortest", "injected", "calls"]


class Failing(Preload):
    """A daemon (io: pread) whose reads fail on command, and its witness."""

    def __init__(self, place, name, direct):
        super().__init__(place, FAILING, WORDS, name)
        shard = place.shard(f"{name}/0.bin", SHARD_TOKENS)
        streams = {
            "train": {
                "seed": 3,
                "seq_len": SEQ_LEN,
                "datasets": [{"name": "failing", "path": name}],
            }
        }
        config = place.config(
            f"{name}.yaml",
            io="pread",
            direct=direct,
            socket=place.file(f"{name}.sock"),
            streams=streams,
        )
        self.daemon = Daemon(place, config, env=self.env)
        self.set(inode=os.stat(shard).st_ino)
        self.witness = Witness(self.daemon, rows_at(config, "train", 0, 2000))
        self.witness.step()

    def error(self):
        try:
            while True:
                self.witness.step()
        except Refused as e:
            return e.packet


def failing_indexes(place):
    """Reads of an index fail while its shard is opened."""
    tokens = numpy.fromfile(place.shard("indexed/0.bin", SHARD_TOKENS), "<u2")
    index = place.file("indexed", "0.idx")
    with open(index, "wb") as f:  # Megatron's: u16, one sequence, one document
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, SHARD_TOKENS, 0, 0, 1))
    n = SHARD_TOKENS // SEQ_LEN // 2
    want = b"".join(tokens[i * SEQ_LEN : i * SEQ_LEN + SEQ_LEN + 1].tobytes() for i in range(n))
    dataset = {"name": "d", "path": "indexed", "shuffle": "none"}
    config = place.config("indexed.yaml", socket=place.file("indexed.sock"), io="pread",
                          streams={"train": {"seed": 3, "seq_len": SEQ_LEN,
                          "datasets": [dataset]}})  # fmt: skip
    for error, name in ((errno.EIO, "EIO"), (errno.ESTALE, "ESTALE")):
        page = Preload(place, FAILING, WORDS, f"indexed-{name}")
        daemon = Daemon(place, config, env=page.env)
        page.set(inode=os.stat(index).st_ino, error=error, fail=-1)
        cat = [
            TOKCTL,
            "cat",
            "train",
            "--socket",
            daemon.socket,
            "--rank",
            0,
            "--world",
            1,
            "--micro",
            1,
            "--batches",
            n,
        ]
        code, out, err = run(*cat)
        told = (
            code == 1
            and out == b""
            and "shard 0.bin at token 0" in err
            and os.strerror(error) in err
            and err.count("\n") == 1
        )
        injected(ROWS[error], page.get("injected"))
        assert told and 3 <= page.get("injected") < 3000, (
            f"index: {name} that stays: the stream stops",
            (err, page.get("injected")),
        )
        page.set(injected=0, fail=1)
        code, out, err = run(*cat)
        assert code == 0 and out == want and page.get("injected") == 1, (
            f"index: {name} that passes: opened again, the same bytes",
            (err, len(out), page.get("injected")),
        )
        assert daemon.stop() == 0, "  exit 0"


def test_failing_reads_are_repeated_then_stop_the_stream(place):
    failing_indexes(place)
    EIO, ESTALE, EINTR = 5, 116, 4
    for direct in (False, True):
        mode = mode_name(("pread", direct))
        f = Failing(place, f"failing{direct}", direct)
        assert f.get("calls") > 0, (f"{mode}: the library sees the reads", f.get("calls"))
        for error, name in ((EIO, "EIO"), (ESTALE, "ESTALE"), (EINTR, "EINTR")):
            before = f.get("injected")
            for _ in range(10):
                f.set(error=error, fail=1)
                while f.get("fail") and f.witness.checked < 800:
                    f.witness.step()
                # More batches than the ring holds, so that the failed read is not the next to
                # fail.
                f.witness.step(5)
            failed = f.get("injected") - before
            injected(ROWS[error], failed)
            good = failed == 10 and f.witness.step(20)
            assert good, (
                f"{mode}: {name} that passes, ten times: read again, the same bytes",
                failed,
            )
        before = f.get("injected")
        f.set(shortest=512 if direct else 100)
        good = f.witness.step(100)
        shortened = f.get("injected") - before
        injected(13, shortened)
        if direct:  # a window is hardly longer than a block: not every read can be shortened
            assert good and shortened > 0, (
                f"{mode}: {shortened} short reads are continued",
                (f.witness.wrong, shortened),
            )
        else:
            assert good and shortened > 1000, (
                f"{mode}: {shortened} short reads are continued",
                (f.witness.wrong, shortened),
            )
        f.set(shortest=0, error=EIO, fail=-1, injected=0)
        e = f.error()
        assert e["code"] == "data" and f.witness.wrong == 0, (
            f"{mode}: EIO that stays: the stream stops",
            e,
        )
        assert has(
            e["text"], "shard 0.bin at token ", "Input/output error", "nothing was skipped"
        ), "  with shard, token and errno"
        time.sleep(0.2)  # for reads in flight
        injected(9, f.get("injected"))
        tries, in_flight = f.get("injected"), f.witness.client.slots * f.witness.client.rows
        assert 3 <= tries <= 2 * 3 * in_flight, (
            f"  after a bounded number of tries ({tries})",
            (tries, in_flight),
        )
        time.sleep(0.2)
        assert f.get("injected") == tries, "  and no more afterwards"
        f.witness.close()
        f.set(fail=0)
        again = Client(f.daemon.socket).attach(position=f.witness.checked * 2)
        good = numpy.array_equal(again.next(), f.witness.batches[f.witness.checked])
        assert good, "  when the disk works again, an attach at the cursor continues"
        again.close()
        assert f.daemon.stop() == 0, "  exit 0"


@pytest.mark.parametrize("mode", MODES[:2], ids=mode_name, indirect=True)
def test_eio_of_a_file_server_that_passes_is_waited_for(place, mode):
    place.shard("served/0.bin", SHARD_TOKENS)
    mount = hanging(place.file("served"), place.file("mount"))
    stream = {"seed": 3, "seq_len": SEQ_LEN, "datasets": [{"name": "d", "path": "mount"}]}
    try:
        daemon = Daemon(place, place.config(io=mode[0], streams={"train": stream}))
        rows = rows_at(daemon.config, "train", 0, 200)
        mount.fail(errno.EIO)
        trainer = Witness(daemon, rows)
        # Some reads have failed twice.
        assert wait_for(lambda: mount.failed() > trainer.client.slots * trainer.client.rows)
        mount.fail(0)
        assert trainer.step(50) and trainer.wrong == 0
        injected(9, mount.failed())
        trainer.close()
        assert daemon.stop() == 0
    finally:
        mount.close()


@pytest.mark.parametrize("mode", MODES[:2], ids=mode_name, indirect=True)
def test_eio_of_a_file_server_stops_its_stream_only(place, mode):
    """With io_uring too, which no preloaded library can make fail."""
    for name in ("served", "near"):
        place.shard(f"{name}/0.bin", SHARD_TOKENS)
    mount = hanging(place.file("served"), place.file("mount"))
    try:
        stream = {"seed": 3, "seq_len": SEQ_LEN}
        streams = {
            name: {**stream, "datasets": [{"name": "d", "path": path}]}
            for name, path in (("train", "mount"), ("near", "near"))
        }
        daemon = Daemon(place, place.config(io=mode[0], streams=streams))
        rows = rows_at(daemon.config, "train", 0, 2000)
        trainer, other = (
            Witness(daemon, rows),
            Witness(daemon, rows_at(daemon.config, "near", 0, 2000), stream="near"),
        )
        assert trainer.step(10) and other.step(10)
        mount.fail(errno.EIO)
        with pytest.raises(Refused) as refused:
            trainer.step(500)
        injected(9, mount.failed())
        packet = refused.value.packet
        assert packet["code"] == "data" and trainer.wrong == 0
        assert has(packet["text"], "shard 0.bin at token ", "Input/output error")
        assert "nothing was skipped" in packet["text"]
        in_flight = trainer.client.slots * trainer.client.rows
        assert 3 <= mount.failed() <= 2 * 3 * in_flight, "after a bounded number of tries"
        assert other.step(300), "the other stream continues"
        trainer.close()
        mount.fail(0)
        again = Client(daemon.socket).attach(position=trainer.checked * 2)
        assert numpy.array_equal(again.next(), trainer.batches[trainer.checked]), "nothing is lost"
        again.close()
        other.close()
        assert daemon.stop() == 0
    finally:
        mount.close()
