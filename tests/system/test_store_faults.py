"""A dataset in an object store (moto, which verifies signatures): the store is busy, slow, cuts its
answers, and an object is replaced. The rest is in tests/objects/.
"""

import json

import pytest

from lib import TOKCTL, Client, Daemon, Refused, has, rank_rows, rows_at, run
from lib.fault_proxy import Fault, FaultProxy
from lib.injected import injected
from lib.stores import Moto

SEQ_LEN, BATCHES = 255, 80


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
        code, _, err = run(TOKCTL, "inspect", "--manifest", manifest, "-c", config, url, env=env)
        assert code == 0, err
        assert all("etag" in json.loads(line) for line in open(manifest))
        dataset = {"name": "web", "path": url, "manifest": manifest}
        streams = {"train": {**about, "datasets": [dataset]}}
        config = shared.config(stores=lab, streams=streams, memory=32 << 20)
        daemon = Daemon(shared, config, env=env)
        yield daemon, proxy, rows, store
        assert daemon.stop() == 0


@pytest.mark.tsan  # the thread that fetches, and those that wait for it
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


def test_an_object_that_is_replaced_stops_the_stream(served):
    daemon, proxy, _, store = served
    client = Client(daemon.socket).attach(micro=2, slots=8, run="replaced")
    client.next()
    store.fill("corpus", {"web/b.bin": bytes(200_000)})
    with pytest.raises(Refused) as ended:
        for _ in range(400):
            client.next(60)
    assert has(str(ended.value), "b.bin"), ended.value
    client.close()
    injected(37)
