"""Stores, daemons, credentials and clocks that really fail: radosgw and the daemon are killed, keys
are rotated, this machine's clock is wrong.
"""

import os
import random
import time

import pytest
from jobs import BUCKET, PIECE_BYTES, Job, Reader, distinct, stream, windows
from test_credentials import Metadata, instance
from test_fault_clocks import SHIFTED
from test_fault_clocks import WORDS as CLOCK_WORDS

from lib import TOKCTL, TOKEND, has, run, wait_for, wait_until
from lib.cat import Cat
from lib.fault_proxy import Fault, FaultProxy
from lib.injected import injected
from lib.preload import Preload
from lib.store_faults import PIECE, WINDOW
from lib.stores import Moto


@pytest.fixture(scope="module")
def bigger(job):
    """Twice as large as its cache, so that pieces are evicted and fetched again."""
    return Job(job.place, job.store, job.proxy, name="big", web="big", tokens=1_500_000)


def more_requests(proxy, count):
    begin = len(proxy.requests)
    wait_until(lambda: len(proxy.requests) >= begin + count, "more requests")


def asked(proxy, begin):
    """The bytes asked for since request @begin, whatever was tried again."""
    return sum(n for _, (_, n) in {(r.path, r.range) for r in proxy.requests[begin:]})


def test_memory_bounds_what_is_in_flight(job, bigger, proxy):
    """An eighth of `memory:`. With more of it, all that a ring waits for is asked for."""
    wide, least = {"seq_len": 32_767}, 24 << 20
    for memory in (least, 512 << 20):
        url = f"lab://{BUCKET}/big/"
        config = job.config({"train": stream(url, manifest=bigger.manifest, **wide)}, memory=memory)
        daemon = job.daemon(config)
        reader = Reader.attach(daemon, micro=8, slots=6)
        for _ in range(6):  # more and more GETs are in flight
            reader.next(60)
        reader.close()
        begin = len(proxy.requests)
        proxy.inject("hang", Fault(hang=True), 1 << 30, windows)
        reader = Reader.attach(daemon, micro=8, slots=11, position=96)
        more_requests(proxy, 5)
        if memory == least:
            time.sleep(1)
            assert asked(proxy, begin) <= least // 8
        else:
            wait_until(
                lambda b=begin: asked(proxy, b) > least // 8, "as much as the ring waits for"
            )
        proxy.clear()
        reader.close()
        assert daemon.stop() == 0


def test_wrong_credentials_stop_at_the_start(job, proxy):
    begin = time.monotonic()
    for key, secret, code in (
        ("NOBODY", job.store.secret_key, "InvalidAccessKeyId"),
        (job.store.access_key, "wrong-and-secret", "SignatureDoesNotMatch"),
    ):
        env = job.store.environment(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
        streams = {"train": stream(f"lab://{BUCKET}/web/", manifest=f"lab://{BUCKET}/web.jsonl")}
        config = job.config(streams)
        for arguments in ([TOKEND, "-c", config], [TOKEND, "-c", config, "--check"]):
            status_, out, err = run(*arguments, env=env)
            text = out.decode() + err
            assert status_ != 0 and has(text, "web.jsonl", code, "environment"), text
            assert secret not in text
    assert time.monotonic() - begin < 60, "nothing waits for what cannot heal"
    injected(WINDOW + 9, 4)


@pytest.fixture(scope="module")
def other(shared, seed):
    """The same shards in moto, whose keys can be made and deleted, and which ignores clocks."""
    with Moto(shared) as store, FaultProxy(store.port, seed=seed) as proxy:
        yield Job(shared, store, proxy, name="keys")


def profile(path, key, secret):
    with open(path + ".new", "w") as file:
        file.write(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    os.chmod(path + ".new", 0o600)
    os.replace(path + ".new", path)


def test_keys_are_rotated_under_a_run(other):
    iam, path = other.store.client("iam"), other.place.file("credentials")
    key = iam.create_access_key(UserName="test")["AccessKey"]
    profile(path, key["AccessKeyId"], key["SecretAccessKey"])
    env = other.store.environment(AWS_SHARED_CREDENTIALS_FILE=path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del env[name]
    daemon = other.daemon(env=env)
    reader = Reader(other, daemon, micro=2, slots=8)
    secrets = [key["SecretAccessKey"]]
    for _ in range(3):
        reader.read(20)
        with reader.read_ring():
            iam.delete_access_key(UserName="test", AccessKeyId=key["AccessKeyId"])
        more_requests(other.proxy, 4)  # with the deleted key
        key = iam.create_access_key(UserName="test")["AccessKey"]
        secrets.append(key["SecretAccessKey"])
        profile(path, key["AccessKeyId"], key["SecretAccessKey"])
        reader.read(20)
    reader.close()
    assert daemon.stop() == 0
    assert not any(secret in daemon.log() for secret in secrets)
    injected(WINDOW + 7, 3)


def test_a_clock_that_is_20_minutes_off(job, proxy):
    """radosgw refuses signatures of another time. By the first clock, the keys have expired."""
    metadata = Metadata(job.store)
    metadata.lives = 900
    env = job.store.environment(AWS_ACCESS_KEY_ID="", **instance(metadata))
    for minutes in (20, -20):
        clock = Preload(job.place, SHIFTED, CLOCK_WORDS, f"clock{minutes}")
        clock.set(shift=minutes * 60)
        begin = len(proxy.requests)
        daemon = job.daemon(env={**env, **clock.own})
        reader = Reader(job, daemon, micro=2)
        reader.read(60)
        reader.close()
        got = [r for r in proxy.requests[begin:] if windows(r)]
        assert distinct(got) < len(got) <= distinct(got) + 140, "some were refused, then none"
        assert len(daemon.said("the clocks differ")) == 1, daemon.log()
        assert daemon.stop() == 0
        injected(WINDOW + 8)


# ---- all at random ----

ROW_BYTES = 512
STORM_S = float(os.environ.get("STORM_SECONDS", 30))
STORM = {
    "busy": Fault(status=503, code="SlowDown"),
    "error": Fault(status=500, code="InternalError"),
    "hang": Fault(hang=True),
    "stall": Fault(stall=100),
    "reset": Fault(reset=True),
    "cut": Fault(cut=200),
    "long": Fault(extra=b"x" * 600),
    "page": Fault(status=200, body=b"<html>"),
    "range": Fault(headers={"Content-Range": "bytes 0-511/800000"}),
    "expired": Fault(status=400, code="ExpiredToken"),
    "late": Fault(delay=0.3),
}
# The daemon is killed while pieces are half written, too.
OF_PIECES = {"stall": Fault(stall=40_000), "cut": Fault(cut=40_000), "drips": Fault(drip=1e-4)}


@pytest.mark.limit(240)
@pytest.mark.parametrize("mode", [WINDOW, PIECE])
def test_all_faults_at_random(job, bigger, proxy, seed, mode):
    """Two trainers record their rows, under kills of daemon and store. Each row is read once."""
    draw = random.Random(seed)
    of = bigger if mode == PIECE else job
    daemon = job.daemon(of.config_by(mode, size=6 << 20))
    storm = {**STORM, **(OF_PIECES if mode == PIECE else {})}
    for name, fault in storm.items():
        rare = name in ("hang", "stall", "drips")  # each takes seconds
        proxy.inject(name, fault, 2, windows)
        proxy.inject(name, fault, 1 << 30, windows, 0.002 if rare else 0.02)
    if mode == WINDOW:
        proxy.inject("pace", Fault(delay=0.01), 1 << 30, windows)
    records = [job.place.file(f"storm{mode}.{rank}") for rank in (0, 1)]
    cats = [
        Cat(job.place, daemon, rank, 1 << 20, pipe=False, record=record)
        for rank, record in enumerate(records)
    ]
    before, until = proxy.injected.copy(), time.monotonic() + STORM_S
    kills = {"daemon": 0, "store": 0}
    while time.monotonic() < until:
        time.sleep(draw.uniform(0, 2))
        if draw.random() < 0.5:
            assert daemon.alive(), daemon.log()
            kills["daemon"] += 1
            daemon.kill()
            daemon.start(ready=False)
        else:
            job.store.kill_gateway()
            time.sleep(draw.uniform(0, 1))
            job.store.start_gateway()
            kills["store"] += 1
    proxy.clear()
    size = [cat.written() for cat in cats]
    on = wait_for(lambda: all(c.written() > n + 10_000 for c, n in zip(cats, size)), 60)
    assert on, [daemon.log()[-9000:], *(open(cat.err).read() for cat in cats)]
    for cat in cats:
        cat.process.terminate()
        cat.process.wait()
    end = 2 * min(size) // ROW_BYTES // 8 * 8  # both have recorded at least these
    code, out, err = run(TOKCTL, "verify", "train", *records, "-c", of.local, "--to", end)
    assert code == 0, (out, err)
    happened = {name: proxy.injected[name] - before[name] for name in storm}
    assert min(kills.values()) > 0 and min(happened[name] for name in STORM) > 0
    daemon.kill()
    if mode == PIECE:
        pieces = of.cached()
        assert 0 < pieces * PIECE_BYTES <= 6 << 20
    injected(mode + 16, sum(happened.values()))
    injected(mode + 14, kills["store"])
    if mode == WINDOW:
        injected(WINDOW + 15, kills["daemon"])
