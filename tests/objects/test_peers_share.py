"""Few requests: tensor-parallel peers share the GETs of their windows, a start costs a GET
per manifest, and the daemon never lists."""

import json

from jobs import BUCKET, Reader, distinct, stream, windows

from lib import wait_until
from lib.fault_proxy import Fault

PEERS, BATCHES = 8, 150


def test_peers_share_their_gets(job, proxy):
    daemon = job.daemon()
    begin = len(proxy.requests)
    readers = [Reader(job, daemon, micro=2, slots=16, peer=peer) for peer in range(PEERS)]
    for _ in range(BATCHES // 5):
        for reader in readers:
            reader.read(5)
    for reader in readers:
        reader.close()
    got = [r for r in proxy.requests[begin:] if windows(r)]
    ahead = 16 * 2  # windows in the rings
    assert distinct(got) <= len(got) <= 1.01 * (BATCHES * 2 + ahead) + 3
    assert daemon.stop() == 0


def test_runs_take_turns(job, proxy):
    """A run with many GETs waiting for the store's only connection does not delay another one."""
    daemon = job.daemon(job.config(stores={"connections": 1}))
    proxy.inject("slow", Fault(delay=0.05), 1 << 30, windows)
    begin = len(proxy.requests)
    first = Reader(job, daemon, micro=2, slots=64)
    wait_until(lambda: len(proxy.requests) > begin, "the first GET")
    second = Reader(job, daemon, 3000, micro=2, slots=1, run="second")
    between = len(proxy.requests)
    second.read(1)
    waited = sum(map(windows, proxy.requests[between:]))
    proxy.clear()
    first.read(64)
    got = sum(map(windows, proxy.requests[begin:]))
    assert waited <= 6 and got > 20
    for reader in (first, second):
        reader.close()
    assert daemon.stop() == 0


def test_what_is_needed_first_is_asked_for_first(job, proxy):
    """The threads that read ahead run in any order."""
    daemon = job.daemon(job.config(stores={"connections": 1}))
    proxy.inject("slow", Fault(delay=0.05), 1 << 30, windows)
    begin = len(proxy.requests)
    reader = Reader(job, daemon, micro=8, slots=8)
    reader.read(1)
    assert sum(map(windows, proxy.requests[begin:])) <= 16
    reader.close()
    assert daemon.stop() == 0


def test_neighbours_share_a_get(job, proxy):
    streams = {"train": stream(
        f"lab://{BUCKET}/web/", manifest=job.manifest, dataset={"shuffle": "none"}
    )}  # fmt: skip
    daemon = job.daemon(job.config(streams))
    begin = len(proxy.requests)
    reader = Reader.attach(daemon, micro=8, slots=16)
    for _ in range(20):
        reader.next(60)
    reader.close()
    got = [r for r in proxy.requests[begin:] if windows(r)]
    assert len(got) <= 20 * 8 / 4 and max(r.range[1] for r in got) <= 1 << 20, len(got)
    assert daemon.stop() == 0


def test_a_start_reads_the_manifest_and_nothing_else(job, proxy):
    line = json.loads(open(job.manifest).readline())
    lines = [json.dumps({**line, "path": f"part-{i:06}.bin"}) for i in range(100_000)]
    body = "\n".join(lines).encode() + b"\n"
    job.s3.put_object(Bucket=BUCKET, Key="large.jsonl", Body=body)
    url = f"lab://{BUCKET}/large.jsonl"
    config = job.config({"train": stream(f"lab://{BUCKET}/parts/", manifest=url)}, memory=256 << 20)
    begin = len(proxy.requests)
    daemon = job.daemon(config)
    assert [r.path for r in proxy.requests[begin:]] == 2 * [f"/{BUCKET}/large.jsonl"]
    assert daemon.stop() == 0
