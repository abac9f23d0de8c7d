"""A dataset in an object store (moto, which verifies signatures): the store is busy, slow, cuts its
answers, and an object is replaced. The rest is in tests/objects/.
"""

import pytest

from lib import TOKCTL, Client, Daemon, Refused, has, rank_rows, refusal, rows_at, run, wait_for
from lib.fault_proxy import Fault, FaultProxy
from lib.injected import injected
from lib.preload import OPENS, Preload
from lib.stores import Moto

SEQ_LEN, BATCHES = 255, 80
DISK = r"""
#include <string.h>

static void hang(const char *path)
{
	if (strlen(path) > 33 && path[32] == '.' && words[HANGS]) /* a piece */
		for (words[HELD]++; words[HANGS];)
			usleep(10000);
}

static int opening(const char *call, const char *path)
{
	hang(path);
	return 0;
}

int unlinkat(int at, const char *path, int flags)
{
	NEXT(unlinkat);
	hang(path);
	return next(at, path, flags);
}
"""


def windows(request):
    return request.method == "GET" and request.path.endswith(".bin")


@pytest.fixture(scope="module")
def served(shared, seed):
    for name in ("a.bin", "b.bin"):
        shared.shard(f"web/{name}", 100_000, seed=len(name))
    with Moto(shared) as store, FaultProxy(store.port, seed=seed) as proxy:
        store.upload("corpus", shared.file("web"), "web/")
        about = {"seed": 3, "seq_len": SEQ_LEN}
        local = {"train": {**about, "datasets": [{"name": "web", "path": "web"}]}}
        rows = rows_at(shared.config("local.yaml", streams=local), "train", 0, 2000)
        lab = {"lab": {"endpoint": proxy.endpoint}}
        url, manifest = "lab://corpus/web/", shared.file("web.jsonl")
        config = shared.config("inspect.yaml", stores=lab, streams=local)
        env = store.environment()
        code, _, err = run(TOKCTL, "manifest", url, manifest, "-c", config, env=env)
        assert code == 0, err
        store.fill("corpus", {"web.jsonl": open(manifest, "rb").read()})
        dataset = {"name": "web", "path": url, "manifest": "lab://corpus/web.jsonl"}
        shared.keys = {"stores": lab, "memory": 32 << 20}
        shared.pieces = {
            "train": {**about, "datasets": [{**dataset, "piece": 64 << 10}]},
            "window": {**about, "datasets": [{**dataset, "fetch": "window"}]},
        }
        streams = {"train": {**about, "datasets": [dataset]}}
        config = shared.config(stores=lab, streams=streams, memory=32 << 20)
        daemon = Daemon(shared, config, env=env)
        yield daemon, proxy, rows, store
        assert daemon.stop() == 0


@pytest.mark.tsan  # threads that fetch, and those that wait for them
def test_a_store_that_is_busy_slow_or_cuts(served):
    daemon, proxy, rows, _ = served
    faults = {
        "busy": Fault(status=503, code="SlowDown"),
        "slow": Fault(delay=0.2),
        "short": Fault(cut=100),
    }
    begin = len(proxy.requests)
    for name, fault in faults.items():
        proxy.inject(name, fault, 10, windows, 0.2)
    client = Client(daemon.socket).attach(micro=2, slots=8)
    for batch in rank_rows(rows, 0, 1, 2)[:BATCHES]:
        assert (client.next() == batch).all()
    client.close()
    happened = sum(proxy.injected[name] for name in faults)
    got = [r for r in proxy.requests[begin:] if windows(r)]
    assert min(proxy.injected[name] for name in faults) > 0
    assert len(got) <= len({r.range + (r.path,) for r in got}) + happened
    injected(37, happened)


def test_a_hung_disk_of_the_cache(served, shared):
    """Windows that need no cache are read."""
    store, rows = served[3], served[2]
    disk = Preload(shared, DISK + OPENS, ["hangs", "held"])
    config = shared.config(
        "cache.yaml",
        socket=shared.file("cache.sock"),
        cache={"dir": "cache", "size": 8 << 20},
        streams=shared.pieces,
        **shared.keys,
    )
    daemon = Daemon(shared, config, env={**store.environment(), **disk.env})
    disk.set(hangs=1)
    client = Client(daemon.socket).attach(micro=2, slots=8)
    assert wait_for(lambda: disk.get("held") > 0), "the disk hangs"
    other = Client(daemon.socket).attach(micro=2, slots=8, stream="window")
    for batch in rank_rows(rows, 0, 1, 2)[:BATCHES]:
        assert (other.next() == batch).all()
    other.close()
    disk.set(hangs=0, held=0)
    assert (client.next() == rank_rows(rows, 0, 1, 2)[0]).all()
    client.close()
    injected(37)
    assert daemon.stop() == 0


def test_an_object_that_is_replaced_stops_the_stream(served):
    daemon, proxy, _, store = served
    proxy.inject("hang", Fault(hang=True), match=lambda r: r.method == "HEAD")
    client = Client(daemon.socket).attach(micro=2, slots=8, run="replaced")
    seen = wait_for(lambda: proxy.injected["hang"] == 1)
    assert seen, "the manifest is looked at, but not waited for"
    client.next()
    store.fill("corpus", {"web/b.bin": bytes(200_000)})
    with pytest.raises(Refused) as ended:
        for _ in range(400):
            client.next(60)
    assert has(str(ended.value), "b.bin"), ended.value
    client.close()
    store.fill("corpus", {"web.jsonl": b"another"})
    assert "web.jsonl: changed after the manifest" in refusal(Client(daemon.socket).attach)
    injected(37)
