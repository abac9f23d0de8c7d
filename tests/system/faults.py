"""Shared by the tests of faults."""

from lib import datasets

SEQ_LEN, SHARD_TOKENS = 512, 40_000


def simple_streams(place):
    place.shard("small/a.bin", 30_000)
    return {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("small")}}


def fill(path):
    """Writes a file until its file system is full."""
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass
