"""Shards on the disk and the same ones in a store, and daemons that read them."""

import contextlib
import glob
import os

import numpy

from lib import Client, Daemon, rows_at, wait_until
from lib.order import rank_rows
from lib.store_faults import PIECE

SEQ_LEN = 255  # windows of 512 bytes
SHARD_TOKENS, SHARDS = 400_000, 4
PIECE_BYTES = 64 << 10
BUCKET = "corpus"


def write_shards(place, name="web", tokens=SHARD_TOKENS):
    for i in range(SHARDS):
        place.shard(f"{name}/{i}.bin", tokens, seed=i)


def stream(path, **keys):
    more = {"manifest": keys.pop("manifest")} if "manifest" in keys else {}
    dataset = {"name": "web", "path": path, **more, **keys.pop("dataset", {})}
    return {"seed": 3, "seq_len": SEQ_LEN, "datasets": [dataset], **keys}


class Job:
    """A store with the shards @web, filled once. Configs name it `lab`, at the proxy."""

    def __init__(self, place, store, proxy, name="c", web="web", tokens=SHARD_TOKENS):
        self.name, self.web = name, web
        self.place, self.store, self.proxy = place, store, proxy
        write_shards(place, web, tokens)
        self.s3 = store.upload(BUCKET, place.file(web), f"{web}/")
        self.manifest = store.manifest(f"{BUCKET}/{web}/", place.file(f"{web}.jsonl"))
        listed = open(self.manifest, "rb").read()
        self.s3.put_object(Bucket=BUCKET, Key=f"{web}.jsonl", Body=listed)
        self.local = place.config(f"{name}-local.yaml", streams={"train": stream(web)})
        self.rows = rows_at(self.local, "train", 0, 6000)
        self.configs = 0

    def config(self, streams=None, stores=None, **keys):
        """A config, with a socket and a state_dir of its own."""
        self.configs += 1
        name = f"{self.name}{self.configs}"
        if streams is None:
            streams = {"train": stream(f"lab://{BUCKET}/{self.web}/", manifest=self.manifest)}
        lab = {"endpoint": self.proxy.endpoint, **(stores or {})}
        keys.setdefault("memory", 32 << 20)
        return self.place.config(
            f"{name}.yaml",
            socket=self.place.file(f"{name}.sock"),
            state_dir=self.place.file(f"{name}.state", ""),
            stores={"lab": lab},
            streams=streams,
            **keys,
        )

    def config_by(self, mode, urls=None, size=64 << 20, **keys):
        """Streams {name: URL} that are read in this mode; in piece mode with a new cache."""
        dataset, keys = {}, {"memory": 64 << 20, **keys}
        if mode == PIECE:
            dataset = {"fetch": "piece", "piece": PIECE_BYTES}
            self.cache = self.place.file(f"{self.name}{self.configs}.cache")
            keys["cache"] = {"dir": self.cache, "size": size}
        urls = urls or {"train": f"lab://{BUCKET}/{self.web}/"}
        streams = {
            name: stream(url, manifest=self.manifest, dataset=dataset) for name, url in urls.items()
        }
        return self.config(streams, **keys)

    def daemon(self, config=None, env=None, **keys):
        return Daemon(
            self.place, config or self.config(), env=env or self.store.environment(), **keys
        )

    def cached(self):
        """The number of pieces in the cache, each of which is compared with its shard."""
        pieces = glob.glob(os.path.join(self.cache, "*.[0-9]*"))
        for piece in pieces:
            with open(piece, "rb") as file:
                body = file.read()
            url = body[-4096:].split(b"\0")[0].decode()
            with open(self.place.file(url.split("/", 3)[3]), "rb") as file:
                file.seek(int(piece.rpartition(".")[2]) * PIECE_BYTES)
                shard = file.read(PIECE_BYTES)
            assert body[: len(shard)] == shard, (url, piece)
        return len(pieces)

    def expected(self, position, rank=0, world=1, micro=2):
        return rank_rows(self.rows[position:], rank, world, micro)


class Reader:
    """A client that compares every batch with the order."""

    def __init__(self, job, daemon, position=0, **keys):
        self.client = Client(daemon.socket).attach(**place_of(position), **keys)
        rank, world = keys.get("rank", 0), keys.get("world", 1)
        self.batches = job.expected(position, rank, world, self.client.rows)
        self.checked = 0

    @staticmethod
    def attach(daemon, **keys):
        """A client that compares nothing."""
        return Client(daemon.socket).attach(**keys)

    def read(self, count, seconds=60):
        for _ in range(count):
            batch = self.client.next(seconds)
            assert numpy.array_equal(batch, self.batches[self.checked]), f"batch {self.checked}"
            self.checked += 1

    @contextlib.contextmanager
    def read_ring(self):
        """Waits until most of the ring is filled. At the end reads that: new reads begin."""
        ready = lambda: self.client.published() - self.checked  # noqa: E731
        wait_until(lambda: ready() > self.client.slots // 2, "a ring that is half full")
        yield
        self.read(ready())

    def close(self):
        self.client.close()


def place_of(position):
    return {"position": position} if position else {"begin": 1}


def windows(request):
    """Of a proxy: is this a GET of a window?"""
    return request.method == "GET" and request.path.endswith(".bin")


def distinct(requests):
    return len({(r.path, r.range) for r in requests})
